"""One request: what to generate, how, and where to stop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np

from draftproof.errors import PromptTooLongError, UsageError, whole
from draftproof.models.base import Message, Model
from draftproof.noise import Seed
from draftproof.sampling import Sampler
from draftproof.types import Tokens, as_tokens

Prompt: TypeAlias = str | Sequence[Message] | Sequence[int] | np.ndarray
"""Plain text, chat messages, or token ids."""


@dataclass(frozen=True)
class Request:
    """A request; whatever is left at its default may be filled by the engine.

    Attributes:
        prompt: plain text (completed as it stands), chat messages (the model's template is applied), or token ids.
        sampler: the sampling law; None uses the engine's.
        seed: an integer or a tuple of them; None draws fresh randomness.
        max_tokens: most tokens to generate; 0 gives an empty completion; None goes on to the end of the context.
        stop: a string, or several, that end the text; the text is cut before it.
        stop_token_ids: ids that end the text, beside the model's own.
        include_stop: keep the stop string in the text.
        ignore_eos: go on after an end-of-sequence token.
        logprobs: None for none, else how many of the likeliest tokens to list beside each emitted one.
        speculate: False decodes this request plainly.
    """

    prompt: Prompt
    sampler: Sampler | None = None
    seed: Seed | None = None
    max_tokens: int | None = None
    stop: str | Sequence[str] | None = ()
    stop_token_ids: Collection[int] | None = ()
    include_stop: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    speculate: bool = True

    def __post_init__(self) -> None:
        stop = () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if not all(isinstance(text, str) and text for text in stop):
            raise UsageError(f"stop {self.stop!r} holds an empty string or none; give strings of one character or more")
        ends = () if self.stop_token_ids is None else self.stop_token_ids
        if not isinstance(ends, Iterable):
            raise UsageError(f"stop_token_ids {ends!r} is no list of ids; write [{ends!r}]")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(whole("stop_token_ids", token) for token in ends))
        for name in ("max_tokens", "logprobs"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(name, getattr(self, name)))
        if self.sampler is not None and not isinstance(self.sampler, Sampler):
            raise UsageError(f"sampler {self.sampler!r} is no Sampler; write for example Sampler(temperature=0.7)")
        if self.max_tokens is not None and self.max_tokens < 0:
            raise UsageError(f"max_tokens {self.max_tokens} is negative; use 0 or a positive count")
        if self.logprobs is not None and self.logprobs < 0:
            raise UsageError(f"logprobs {self.logprobs} is negative; use 0 (only the emitted token) or a count")

    def filled(self, options: Mapping[str, Any]) -> Request:
        """Returns the request with `options` put where it was left at its default."""
        changes = {
            each.name: options[each.name]
            for each in fields(self)
            if each.name in options and each.default is not MISSING and getattr(self, each.name) == each.default
        }
        return replace(self, **changes)

    def prompt_tokens(self, model: Model) -> Tokens:
        """Returns the prompt as the model's ids, `[n]`.

        Raises:
            UsageError: if it is empty, has ids outside the vocabulary, or needs a chat template the model lacks.
            PromptTooLongError: if it leaves no room for a new token.
        """
        tokens = encode_prompt(self.prompt, model)
        if len(tokens) == 0:
            raise UsageError("the prompt is empty; give at least one token")
        if not 0 <= int(tokens.min()) <= int(tokens.max()) < model.vocab_size:
            raise UsageError(f"prompt ids must be 0..{model.vocab_size - 1}; {tokens.tolist()[:8]}... has others")
        if len(tokens) >= model.context_length:
            raise PromptTooLongError(
                f"the prompt has {len(tokens)} tokens and the context holds {model.context_length}, new tokens "
                "included; shorten the prompt or raise context_length"
            )
        return tokens


def encode_prompt(prompt: Prompt, model: Model) -> Tokens:
    """Returns the ids of a prompt of any kind, `[n]`."""
    if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Iterable):
        raise UsageError(f"prompt {prompt!r} is neither text, chat messages nor token ids")
    if isinstance(prompt, str):
        return model.tokenizer.encode(prompt)
    if isinstance(prompt, np.ndarray):
        if not np.issubdtype(prompt.dtype, np.integer):
            raise UsageError(f"prompt array has dtype {prompt.dtype}; token ids are integers")
        if prompt.size and prompt.size != prompt.shape[-1]:
            raise UsageError(f"prompt array has shape {prompt.shape}; give the ids of one text")
        return _ids(prompt.reshape(-1).tolist(), model.vocab_size)
    parts = list(prompt)
    if all(isinstance(part, Mapping) for part in parts) and parts:
        messages = [part for part in parts if isinstance(part, Mapping)]
        if any("role" not in message or "content" not in message for message in messages):
            raise UsageError("a chat message needs 'role' and 'content'")
        return model.tokenizer.encode(model.tokenizer.apply_chat_template(messages), parse_special=True)
    if not all(isinstance(part, int | np.integer) and not isinstance(part, bool) for part in parts):
        raise UsageError(f"prompt {prompt!r} is neither text, chat messages nor token ids")
    return _ids([int(part) for part in parts], model.vocab_size)  # type: ignore[call-overload]


def _ids(ids: list[int], vocab_size: int) -> Tokens:
    # Before they become int32: a larger one would wrap around to another id.
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        raise UsageError(f"prompt ids must be 0..{vocab_size - 1}; {ids[:8]}... has others")
    return as_tokens(ids)
