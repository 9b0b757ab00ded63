"""Draft models made from the target itself: a copy in fewer bits, or its first layers."""

from __future__ import annotations

import copy
import ctypes
import hashlib
import os
from pathlib import Path
from typing import Any

from draftproof.errors import ModelLoadError, UsageError, choice_error
from draftproof.models.base import Model
from draftproof.models.llamacpp import LlamaCppModel
from draftproof.models.llamacpp_library import LOG, interrupts_held, library, quiet, set_field
from draftproof.models.transformers import TransformersModel, need

FORMATS = {"q2_k": 10, "q3_k_m": 12, "q4_0": 2, "q4_k_m": 15, "q5_0": 8, "q6_k": 18, "q8_0": 7}
"""What llama.cpp calls LLAMA_FTYPE_MOSTLY_...: numbers that files carry, so they do not change."""


def cache_folder() -> Path:
    """Returns where copies are kept: `$DRAFTPROOF_CACHE`, or the user's cache folder."""
    chosen = os.environ.get("DRAFTPROOF_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftproof"


def load_copy(spec: str, target: Model) -> Model:
    """Returns a draft model made from the target.

    Args:
        spec: the format of a quantised copy, such as `q4_0`, for llama.cpp; `layers=N` for transformers.
        target: the target, loaded.

    Raises:
        UsageError: if the spec is unknown or the target's backend cannot make such a copy.
        ModelLoadError: if the copy cannot be made.
    """
    if spec.startswith("layers="):
        if not isinstance(target, TransformersModel):
            raise UsageError(
                f"drafter 'self:{spec}' needs a transformers target, and {target.name} is none; use 'self:q4_0' for "
                "llama.cpp"
            )
        return first_layers(target, spec.removeprefix("layers="))
    if spec not in FORMATS:
        raise choice_error("drafter", f"self:{spec}", [*(f"self:{each}" for each in FORMATS), "self:layers=N"])
    if not isinstance(target, LlamaCppModel):
        raise UsageError(
            f"drafter 'self:{spec}' needs a GGUF target on llama.cpp, and {target.name} is none; use 'self:layers=N' "
            "for transformers"
        )
    return LlamaCppModel(
        quantised(target.path, spec),
        context_length=target.context_length,
        threads=target.threads,
        gpu_layers=target.gpu_layers,
        name=f"{target.name}-{spec}",
    )


def quantised(path: Path, form: str, folder: Path | None = None) -> Path:
    """Returns a copy of a GGUF file with its weights in another format, made once and kept.

    Args:
        path: the file.
        form: one of `FORMATS`.
        folder: where to keep it; None takes `cache_folder()`.

    Raises:
        ModelLoadError: if it cannot be written.
    """
    state = path.stat()
    key = hashlib.sha256(f"{path.resolve()} {state.st_size} {state.st_mtime_ns}".encode()).hexdigest()[:12]
    folder = folder or cache_folder()
    made = folder / f"{path.stem}-{key}-{form}.gguf"
    if made.is_file():
        return made
    part = made.with_suffix(f".{os.getpid()}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _quantise(path, part, FORMATS[form])
            part.replace(made)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ModelLoadError(
            f"a copy of {path.name} cannot be kept in {folder} ({error.strerror}); set DRAFTPROOF_CACHE to a folder "
            "with room"
        ) from error
    return made


def _quantise(source: Path, goal: Path, ftype: int) -> None:
    lib = library()
    params = lib.llama_model_quantize_default_params()
    # A target that is quantised itself may be the only one at hand; a draft need not be faithful to be exact.
    for name, value in (("ftype", ftype), ("allow_requantize", True)):
        set_field(params, name, value)
    quiet()
    with interrupts_held():
        failed = lib.llama_model_quantize(os.fsencode(source), os.fsencode(goal), ctypes.byref(params))
    if failed:
        raise ModelLoadError(
            f"llama.cpp cannot make a copy of {source} ({LOG.reason()}); check the room in {goal.parent}, or use "
            "drafter='suffix'"
        )


def first_layers(target: TransformersModel, count: str) -> TransformersModel:
    """Returns a model of the target's first layers and its own head; it shares the target's weights.

    Args:
        target: the target.
        count: how many layers, 1 to one less than it has.

    Raises:
        UsageError: if the count is out of range.
    """
    config = target.module.config
    text = config.get_text_config(decoder=True)
    layers = int(text.num_hidden_layers)
    if not count.isdigit() or not 1 <= int(count) < layers:
        raise UsageError(
            f"drafter 'self:layers={count}' is out of range; {target.name} has {layers}: use 1 to {layers - 1}"
        )
    small = _shorter(config, int(count))
    torch = need("torch")
    with torch.device("meta"):
        module = type(target.module)(small)
    whole = _tensors(target.module)
    for name in _tensors(module):
        owner, _, leaf = name.rpartition(".")
        holder = module.get_submodule(owner)
        for table in (holder._parameters, holder._buffers):
            if leaf in table:
                table[leaf] = whole[name]
    return TransformersModel(
        module,
        target.tokenizer.tokenizer,
        context_length=target.context_length,
        name=f"{target.name}-layers={count}",
    )


def _tensors(module: Any) -> dict[str, Any]:
    """Returns all parameters and buffers by name, shared ones by each of theirs."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return parameters | dict(module.named_buffers(remove_duplicate=False))


def _shorter(config: Any, count: int) -> Any:
    small = copy.deepcopy(config)
    text = small.get_text_config(decoder=True)
    text.num_hidden_layers = count
    types = getattr(text, "layer_types", None)
    if types:
        text.layer_types = list(types)[:count]
    return small
