"""Models in GGUF files, run by llama.cpp through llama-cpp-python's C functions."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from draftproof.errors import BackendError, ModelLoadError, UsageError, whole
from draftproof.models.base import Model, Query
from draftproof.models.cpu import amx_on_virtual_machine, multiplies_bfloat16, usable_cores
from draftproof.models.llamacpp_library import LOG, Pointer, interrupts_held, library, quiet, set_field
from draftproof.models.llamacpp_session import LlamaCppSession
from draftproof.models.llamacpp_tokenizer import LlamaCppTokenizer
from draftproof.types import NO_TOKENS

DEFAULT_CONTEXT = 4096
"""Most tokens of context a slot gets unless told otherwise: memory for them is taken when the session is made."""

_PROBE_CONTEXT = 256
_SMALLEST_CONTEXT = 4
"""What `_prove_truncation` runs."""

FlashAttention: TypeAlias = bool | Literal["auto"]


class LlamaCppModel(Model):
    """A model in a GGUF file.

    A session takes, for each slot, context_length x layers x key-value heads x head size x 4 bytes: 92 MB for
    SmolLM2-135M at 4096 tokens.

    Args:
        path: the GGUF file.
        context_length: most tokens a sequence may hold; None takes what the model was trained for, at most 4096.
        threads: of a pass; None takes the usable cores.
        flash_attention: whether to compute attention by the fused kernel; "auto" leaves it to llama.cpp, which does
            on a CPU.
        batch_invariant: whether a row should not depend, to the last bit, on what is computed with it: other rows,
            other slots, drafts taken back. Greedy text with drafts is then greedy text without. Holds for weights in
            Q8_0, Q4_0 and Q4_1, up to 3 rows in K-quants; elsewhere rounding still differs. Keys are kept in bfloat16
            instead of float16, for which llama.cpp has a single attention kernel on CPUs, and every slot has cells of
            its own. A pass costs nearly the same, with drafts of unequal length in several slots a little more; prompts
            take longer to read, the more so the longer they are. None does on x86 processors unless
            flash_attention is False.
        use_extra_bufts: whether llama.cpp may repack weights for faster kernels; None does, except on a virtual
            machine that shows AMX, where those kernels crash the process.
        gpu_layers: how many layers to put on a GPU, if llama.cpp was built for one; -1 all. 0 computes on the CPU.
        name: what to call it; None takes the file's name.

    Raises:
        ModelLoadError: if the file is missing, damaged or no GGUF, or if the model cannot take a draft back: recurrent
            and hybrid models, encoders, diffusion models.
        MissingDependencyError: if llama-cpp-python is not installed.
        UsageError: if an option is out of range.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        context_length: int | None = None,
        threads: int | None = None,
        flash_attention: FlashAttention = "auto",
        use_extra_bufts: bool | None = None,
        batch_invariant: bool | None = None,
        gpu_layers: int = 0,
        name: str | None = None,
    ) -> None:
        for option, value in (("context_length", context_length), ("threads", threads)):
            if value is not None and whole(option, value) < 1:
                raise UsageError(f"{option} {value} is not positive; leave it out for the default")
        if context_length is not None and context_length < _SMALLEST_CONTEXT:
            raise UsageError(f"context_length {context_length} holds no text; use {_SMALLEST_CONTEXT} or more")
        if flash_attention not in (True, False, "auto"):
            raise UsageError(f'flash_attention {flash_attention!r} is unknown; use True, False or "auto"')
        if batch_invariant and (flash_attention is False or gpu_layers):
            raise UsageError("batch_invariant needs flash_attention and gpu_layers 0; leave one of them out")
        try:
            file = Path(path).expanduser()
            _check_file(file)
        except (OSError, RuntimeError) as error:
            raise ModelLoadError(f"{path} cannot be looked up ({error}); give the path of a .gguf file") from error
        self.path = file
        self.name = file.stem if name is None else name
        self.threads = usable_cores() if threads is None else threads
        self.flash_attention = flash_attention
        self.gpu_layers = gpu_layers
        if batch_invariant is None:
            batch_invariant = flash_attention is not False and gpu_layers == 0 and multiplies_bfloat16()
        self.batch_invariant = batch_invariant
        self.pointer = _load(
            file, gpu_layers, not amx_on_virtual_machine() if use_extra_bufts is None else use_extra_bufts
        )
        self._sessions: weakref.WeakSet[LlamaCppSession] = weakref.WeakSet()
        try:
            _refuse_unsuitable(self.name, self.pointer)
            trained: int = library().llama_model_n_ctx_train(self.pointer.address)
            if context_length is not None and context_length > trained > 0:
                raise UsageError(
                    f"context_length {context_length} exceeds the {trained} tokens {self.name} was trained for"
                )
            self.context_length = context_length or min(trained or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
            tokenizer = LlamaCppTokenizer(self.pointer, self.name)
            self.tokenizer = tokenizer
            self.vocab_size = tokenizer.size
            self.eos_ids = tokenizer.end_ids()
            _prove_truncation(self)
        except BaseException:
            self.close()
            raise

    def session(self, slots: int = 1) -> LlamaCppSession:
        """See `Model.session`.

        Raises:
            UsageError: if the model is closed, or for more slots than llama.cpp can hold apart.
            ModelLoadError: if there is no memory for them.
        """
        if self.pointer.closed:
            raise UsageError(f"model {self.name} is closed; load it again")
        session = LlamaCppSession(self, slots)
        self._sessions.add(session)
        return session

    def close(self) -> None:
        """Frees the model and the sessions still open on it; closing twice is harmless."""
        for session in list(self._sessions):
            session.close()
        self.pointer.close()


def _check_file(path: Path) -> None:
    if path.is_dir():
        inside = sorted(each.name for each in path.glob("*.gguf"))
        raise ModelLoadError(
            f"{path} is a directory; give a .gguf file{': ' + ', '.join(inside[:5]) if inside else ''}"
        )
    if not path.exists():
        raise ModelLoadError(f"{path} does not exist; give the path of a .gguf file")
    if not path.is_file():
        raise ModelLoadError(f"{path} is no regular file; give the path of a .gguf file")
    try:
        with path.open("rb") as stream:
            start = stream.read(20)
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read ({error.strerror}); check its permissions") from error
    if not start:
        raise ModelLoadError(f"{path} is empty; download it again")
    if start.startswith(b"version https://git"):
        raise ModelLoadError(f"{path} is a Git LFS pointer, not the model itself; run: git lfs pull")
    if not start.startswith(b"GGUF"):
        raise ModelLoadError(
            f"{path} is no GGUF file: it starts with {start[:4]!r}; convert it with llama.cpp's convert_hf_to_gguf.py"
        )


def _load(path: Path, gpu_layers: int, use_extra_bufts: bool) -> Pointer:
    lib = library()
    params = lib.llama_model_default_params()
    set_field(params, "n_gpu_layers", gpu_layers)
    set_field(params, "use_extra_bufts", use_extra_bufts)
    quiet()
    address = None
    try:
        with interrupts_held():
            address = lib.llama_model_load_from_file(os.fsencode(path), params)
    except KeyboardInterrupt:
        if address:
            lib.llama_model_free(address)
        raise
    if not address:
        raise ModelLoadError(
            f"llama.cpp cannot load {path}: {LOG.reason()}; download it again if it is cut off, or update "
            "llama-cpp-python if the model is newer: pip install -U llama-cpp-python"
        )
    return Pointer(address, lib.llama_model_free)


def _refuse_unsuitable(name: str, pointer: Pointer) -> None:
    lib, address = library(), pointer.address
    if lib.llama_model_has_encoder(address) or not lib.llama_model_has_decoder(address):
        raise ModelLoadError(f"model {name} has an encoder; only decoder models can verify drafts: use one")
    if lib.llama_model_is_diffusion(address):
        raise ModelLoadError(f"model {name} is a diffusion model, which has no next-token law; use a decoder model")
    for kind, test in (("recurrent", lib.llama_model_is_recurrent), ("hybrid", lib.llama_model_is_hybrid)):
        if test(address):
            raise ModelLoadError(
                f"model {name} is {kind}: its state cannot be cut back when a draft is rejected, so its text would "
                "silently go wrong; use a model with plain attention"
            )


def _prove_truncation(model: LlamaCppModel) -> None:
    # The architecture's own word is not enough: what matters is that its cache gives a rejected draft back.
    two = np.zeros(2, dtype=np.int32)
    with LlamaCppSession(model, 1, context_length=_PROBE_CONTEXT) as probe:
        try:
            probe.score([Query(0, two, two)])
            probe.score([Query(0, two, NO_TOKENS)])
        except BackendError as error:
            raise ModelLoadError(f"model {model.name} cannot be used: {error}") from error
