"""Models of the transformers library: causal language models from a directory, a hub, a GGUF file or memory."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float

from draftproof.errors import MissingDependencyError, ModelLoadError, UsageError, whole
from draftproof.models.base import Model, Query, Session
from draftproof.models.transformers_tokenizer import TransformersTokenizer
from draftproof.types import Tokens, as_tokens

if TYPE_CHECKING:
    import torch

    from draftproof.models.transformers_cache import SlotCache

PassMode: TypeAlias = Literal["together", "apart", "stepwise"]

INSTALL = 'pip install "draftproof[transformers]"'

UNBOUNDED_CONTEXT = 2**17
"""Context of a model that names none, such as a recurrent one."""

_CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""What a model's forward calls its cache, newest first."""

_MASKED_ATTENTION = ("sdpa", "eager")
"""Attention implementations that take a mask of any shape."""

_MISSING_IDS = 1024
"""How many ids a tokenizer may lack for padding: more, and it belongs to another model."""

_REFUSALS = (TypeError, ValueError, IndexError, KeyError, AttributeError, RuntimeError)
"""What a model raises that does not take what it is given."""

_PROBE_LENGTH = 8
_PROBE_PASSES = ((3, 5, 4), (4, 6, 2), (6, 7, 0), (8, 8, 0))
"""What the proof of a mode runs: lengths of two texts, and of the first one's draft (the second's is half of it)."""


class TransformersModel(Model):
    """A causal language model of the transformers library.

    What its cache holds of a rejected draft is cut off if every layer is an attention layer; the state of recurrent
    layers is copied before a draft and put back. That this works is tried when the model is taken: a ragged pass with
    wrong drafts must leave the logits as they are without a cache, up to what rounding does to them.

    Args:
        module: the model, for example from `AutoModelForCausalLM.from_pretrained`.
        tokenizer: its tokenizer.
        context_length: most tokens a sequence may hold; None takes what the model was trained for.
        name: what to call it; None takes the configuration's.

    Attributes:
        module: the model.
        text_config: the configuration of its layers.
        mode: how a pass is run: requests "together" in one call, "apart" one after the other, or "stepwise", token by
            token: some recurrent layers go on from their state for a single token only. Then a draft saves nothing.

    Raises:
        ModelLoadError: if it is no causal model, the tokenizer is another model's, or a draft cannot be taken back.
        MissingDependencyError: if transformers or torch is not installed.
        UsageError: if context_length is out of range.
    """

    tokenizer: TransformersTokenizer

    def __init__(
        self, module: Any, tokenizer: Any, *, context_length: int | None = None, name: str | None = None
    ) -> None:
        config = module.config
        self.text_config = text = config.get_text_config(decoder=True)
        self.module = module.eval()
        self.name = name or Path(getattr(config, "_name_or_path", "") or type(module).__name__).name
        if getattr(config, "is_encoder_decoder", False):
            raise ModelLoadError(f"model {self.name} has an encoder; only decoder models can verify drafts: use one")
        self.tokenizer = TransformersTokenizer(tokenizer, self.name)
        self.device: torch.device = module.get_input_embeddings().weight.device
        head = module.get_output_embeddings()
        if head is None:
            raise ModelLoadError(
                f"model {self.name} ({type(module).__name__}) has no language-model head; use AutoModelForCausalLM"
            )
        self.vocab_size = _common_vocabulary(self.name, self.tokenizer.size, int(head.weight.shape[0]))
        missing = self.tokenizer.missing()
        self._banned = missing[missing < self.vocab_size]
        trained = getattr(text, "max_position_embeddings", None)
        if context_length is not None and whole("context_length", context_length) < 1:
            raise UsageError(f"context_length {context_length} is not positive; leave it out for the default")
        if context_length is not None and trained is not None and context_length > trained:
            raise UsageError(
                f"context_length {context_length} exceeds the {trained} tokens {self.name} was trained for"
            )
        self.context_length = context_length or trained or UNBOUNDED_CONTEXT
        self.eos_ids = frozenset(token for token in _end_ids(module, self.tokenizer) if token < self.vocab_size)
        self._takes = inspect.signature(module.forward).parameters
        self._cache_name = next((each for each in _CACHE_NAMES if each in self._takes), None)
        if self._cache_name is None:
            raise ModelLoadError(f"model {self.name} ({type(module).__name__}) takes no cache; use a model that does")
        attention = getattr(text, "_attn_implementation", None) or "eager"
        self.additive_masks: torch.dtype | None = module.dtype if attention == "eager" else None
        self._closed = False
        recurrent = self._cache().recurrent
        modes: list[PassMode] = ["apart", "stepwise"] if recurrent else ["apart"]
        if attention in _MASKED_ATTENTION and not recurrent:
            modes = ["together", *modes]
        self.mode: PassMode = self._first_exact(modes)

    def session(self, slots: int = 1) -> Session:
        """See `Model.session`.

        Raises:
            UsageError: if the model is closed.
        """
        from draftproof.models.transformers_session import TransformersSession

        if self._closed:
            raise UsageError(f"model {self.name} is closed; load it again")
        return TransformersSession(self, slots)

    def close(self) -> None:
        """Gives no more sessions; the memory is free when nothing refers to the model. Closing twice is harmless."""
        self._closed = True

    def call(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: Any, cache: SlotCache | None, rows: int
    ) -> torch.Tensor:
        """Runs the model once.

        Args:
            ids: new tokens, `[batch, width]`.
            positions: theirs, `[batch, width]`.
            mask: attention masks, or None to let the model make its own.
            cache: keys, values and states of what came before, or None.
            rows: for how many of the last tokens to return logits.

        Returns:
            logits, `[batch, rows, vocab]`; the vocabulary may be padded.
        """
        arguments: dict[str, Any] = {"input_ids": ids, "use_cache": cache is not None, "return_dict": True}
        if "position_ids" in self._takes:
            arguments["position_ids"] = positions
        if mask is not None:
            arguments["attention_mask"] = mask
        if cache is not None and self._cache_name is not None:
            arguments[self._cache_name] = cache
        if "logits_to_keep" in self._takes:
            arguments["logits_to_keep"] = rows
        logits: torch.Tensor = self.module(**arguments).logits
        return logits[:, logits.shape[1] - rows :]

    def host_row(self, logits: torch.Tensor) -> Float[np.ndarray, "vocab"]:
        """Returns one row of logits, `[vocab]`, in main memory: float32, or float64 if that is what the model has."""
        row = logits[: self.vocab_size]
        row = row.cpu() if row.element_size() == 8 else row.float().cpu()
        values: Float[np.ndarray, "vocab"] = row.numpy()
        if len(self._banned):
            values = values.copy()
            values[self._banned] = -np.inf
        values.flags.writeable = False
        return values

    def _cache(self) -> SlotCache:
        from draftproof.models.transformers_cache import SlotCache

        return SlotCache(self.module.config, 1)

    def _first_exact(self, modes: Sequence[PassMode]) -> PassMode:
        """Returns the first mode in which the cache gives wrong drafts back."""
        probe = as_tokens(np.random.default_rng(0).integers(0, self.vocab_size, _PROBE_LENGTH))
        try:
            allowed = 8 * self._rounding(probe) + 1e-4
        except _REFUSALS as failure:
            raise self._refusal(f"cannot run token by token: {_reason(failure)}") from failure
        reason = ""
        for mode in modes:
            self.mode = mode
            try:
                error = self._error_after_drafts(probe)
                reason = f"its logits are off by {error:.2g} of their spread, and rounding explains {allowed:.2g}"
            except _REFUSALS as failure:
                # Masks or positions that this model does not take: the next mode does without.
                error, reason = math.inf, _reason(failure)
            if error <= allowed:
                return mode
        raise self._refusal(f"does not give a rejected draft back: {reason}")

    def _refusal(self, why: str) -> ModelLoadError:
        layers = sorted({type(layer).__name__ for layer in self._cache().layers})
        return ModelLoadError(
            f"model {self.name} {why} ({type(self.module).__name__}, cache of {', '.join(layers)}); use a model with "
            "plain, sliding-window or linear attention"
        )

    def _rounding(self, probe: Tokens) -> float:
        """Returns how far logits of transformers' own token-by-token decoding are off, relative to their spread."""
        cache_class = need("transformers").DynamicCache
        cache = cache_class(config=self.module.config)
        rows = [self._run(probe[i : i + 1], i, cache)[0] for i in range(len(probe))]
        return self._apart(probe, rows, range(len(probe)))

    def _error_after_drafts(self, probe: Tokens) -> float:
        """Returns how far logits are off after ragged passes with drafts that do not stand."""
        wrong = as_tokens((probe[::-1] + 1) % self.vocab_size)
        rows: list[Float[np.ndarray, "vocab"]] = []
        places: list[int] = []
        with self.session(2) as session:
            for one, two, drafted in _PROBE_PASSES:
                queries = [Query(0, probe[:one], wrong[:drafted]), Query(1, probe[:two], wrong[: drafted // 2])]
                rows += [each[0] for each in session.score(queries)]
                places += [one - 1, two - 1]
        return self._apart(probe, rows, places)

    def _apart(self, probe: Tokens, rows: Sequence[Float[np.ndarray, "vocab"]], places: Iterable[int]) -> float:
        """Returns the largest difference of rows from those of one call without a cache, by the latter's spread."""
        right = self._run(probe, 0, None)
        differences = []
        for row, place in zip(rows, places, strict=True):
            known = np.isfinite(right[place])
            difference = row[known].astype(np.float64) - right[place][known]
            differences.append(float(np.sqrt(np.mean(difference**2)) / max(float(right[place][known].std()), 1e-30)))
        return float(np.max(differences))

    def _run(self, tokens: Tokens, start: int, cache: Any) -> list[Float[np.ndarray, "vocab"]]:
        torch = need("torch")
        ids = torch.from_numpy(tokens.astype(np.int64))[None].to(self.device)
        with torch.inference_mode():
            positions = torch.arange(start, start + len(tokens), device=self.device)[None]
            logits = self.call(ids, positions, None, cache, len(tokens))[0]
            return [self.host_row(row) for row in logits]


def _reason(failure: Exception) -> str:
    """Returns an error's text on one line; raises it if memory ran out, which says nothing about the model."""
    if "memory" in str(failure):
        raise failure
    return " ".join(str(failure).split()) or type(failure).__name__


def _common_vocabulary(name: str, tokenizer: int, model: int) -> int:
    """Returns how many ids both have; ids that only the model has are padding, which is never emitted."""
    if model - tokenizer > max(_MISSING_IDS, model // 20) or tokenizer == 0:
        raise ModelLoadError(
            f"the tokenizer of {name} has {tokenizer} ids and the model {model}; they do not belong together: load the "
            "tokenizer that came with the model"
        )
    return min(tokenizer, model)


def _end_ids(module: Any, tokenizer: TransformersTokenizer) -> set[int]:
    """Returns every id that ends a generation, by the model's generation settings, its configuration, the tokenizer."""
    ends: set[int] = set() if tokenizer.eos is None else {tokenizer.eos}
    for settings in (getattr(module, "generation_config", None), module.config):
        token = getattr(settings, "eos_token_id", None)
        ends |= set() if token is None else {int(token)} if isinstance(token, int) else {int(each) for each in token}
    return ends


def need(library: str) -> Any:
    """Returns an optional library; raises MissingDependencyError with the line that installs it."""
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"transformers models need {library}; run: {INSTALL}") from error
