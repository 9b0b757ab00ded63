"""From rows of logits to laws: penalties, bias, masks, processors, temperature, top-k, top-p, min-p."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, overload, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from draftproof.distribution import Distribution, LawSequence
from draftproof.errors import ProcessorError, RequestError, RowError, UsageError, whole
from draftproof.truncation import truncated_law
from draftproof.types import Tokens

Logits: TypeAlias = Float[np.ndarray, "vocab"]
Processor: TypeAlias = Callable[[Tokens, Logits], Logits]
"""A user's logits processor: (tokens before this position, a row of logits it may change) -> a row of logits."""


@runtime_checkable
class RowsOfLogits(Protocol):
    """What a pass returns for one request: rows of logits by index."""

    def __getitem__(self, i: int, /) -> Logits: ...


_REALS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")

GREEDY_TEMPERATURE = 1e-5
"""Below this the law is one-hot at the largest logit, the lowest id on ties."""


@dataclass(frozen=True)
class Sampler:
    """How a row of logits becomes the law a token is drawn from.

    The steps, in transformers' order; each acts on every row of a pass with that row's own history:

    1. `logit_bias`: added to the logits of the given ids.
    2. `repetition_penalty` r: logits of ids in prompt or output are divided by r if positive, else multiplied.
    3. `presence_penalty` once and `frequency_penalty` per occurrence: subtracted for ids in the output (as OpenAI).
    4. `allowed_token_ids` / `banned_token_ids`: everything else / these become impossible. Until `min_tokens` tokens
       are out, so do the end-of-sequence ids.
    5. `processors`: called in order with (tokens so far, logits); what they return is used.
    6. `temperature`: divides; below 1e-5 the law is one-hot at the largest logit, the lowest id on ties.
    7. `top_k`: keeps the k largest (ties: lowest ids); 0 keeps all.
    8. `top_p`: keeps the fewest largest whose mass reaches top_p of what step 7 left; 1 keeps all.
    9. `min_p`: keeps ids at least min_p times as likely as the likeliest; 0 keeps all.

    Raises:
        UsageError: if a value is outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: Collection[int] | None = None
    banned_token_ids: Collection[int] = ()
    min_tokens: int = 0
    processors: Sequence[Processor] = ()

    def __post_init__(self) -> None:
        for name in _REALS:
            value = getattr(self, name)
            if not isinstance(value, int | float | np.number) or isinstance(value, bool):
                raise UsageError(f"{name} {value!r} is not a number")
        for name in ("top_k", "min_tokens"):
            whole(name, getattr(self, name))

        def need(holds: bool, name: str, remedy: str) -> None:
            if not holds:
                raise UsageError(f"{name} {getattr(self, name)!r} is out of range; {remedy}")

        need(0.0 <= self.temperature < math.inf, "temperature", "use 0 for greedy decoding or a positive number")
        need(self.top_k >= 0, "top_k", "use 0 to keep all ids or a positive count")
        need(0.0 < self.top_p <= 1.0, "top_p", "use 0 < top_p <= 1 (1 keeps all; temperature 0 is greedy)")
        need(0.0 <= self.min_p <= 1.0, "min_p", "use 0 <= min_p <= 1 (0 keeps all)")
        need(0.0 < self.repetition_penalty < math.inf, "repetition_penalty", "use a positive number (1 is none)")
        need(math.isfinite(self.presence_penalty), "presence_penalty", "use a finite number (0 is none)")
        need(math.isfinite(self.frequency_penalty), "frequency_penalty", "use a finite number (0 is none)")
        need(self.min_tokens >= 0, "min_tokens", "use 0 or a positive count")
        need(
            not any(math.isnan(bias) or bias == math.inf for bias in self.logit_bias.values()),
            "logit_bias",
            "use finite numbers, or -inf to ban an id",
        )
        need(
            self.allowed_token_ids is None or len(self.allowed_token_ids) > 0,
            "allowed_token_ids",
            "allow at least one id, or use None to allow all",
        )

        need(
            not callable(self.processors) and all(callable(each) for each in self.processors),
            "processors",
            "give a list of functions (tokens, logits) -> logits",
        )

    @property
    def truncates(self) -> bool:
        """Whether top-k, top-p or min-p may cut tokens off."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def greedy(self) -> bool:
        """Whether every law is one-hot."""
        return self.temperature < GREEDY_TEMPERATURE

    def bind(self, prompt_length: int, eos_ids: Collection[int], vocab_size: int) -> BoundSampler:
        """Returns the sampler for one request.

        Args:
            prompt_length: how many leading tokens of the history are the prompt.
            eos_ids: ids that `min_tokens` holds back.
            vocab_size: length of a row.

        Raises:
            UsageError: if an id named by this sampler is outside the vocabulary.
        """
        return BoundSampler(self, prompt_length, eos_ids, vocab_size)


class BoundSampler:
    """A sampler that knows its request: where the prompt ends, what ends a text, how long a row is."""

    def __init__(self, sampler: Sampler, prompt_length: int, eos_ids: Collection[int], vocab_size: int) -> None:
        self.sampler = sampler
        self.prompt_length = prompt_length
        self.vocab_size = vocab_size
        self._eos = _ids(eos_ids, "eos_ids", vocab_size)
        self._bias_ids = _ids(sampler.logit_bias, "logit_bias", vocab_size)
        self._bias = np.array([sampler.logit_bias[int(token)] for token in self._bias_ids], dtype=np.float64)
        self._banned = _ids(sampler.banned_token_ids, "banned_token_ids", vocab_size)
        self._forbidden: Int[np.ndarray, "n"] = self._banned
        if sampler.allowed_token_ids is not None:
            allowed = _ids(sampler.allowed_token_ids, "allowed_token_ids", vocab_size)
            mask = np.ones(vocab_size, dtype=bool)
            mask[allowed] = False
            mask[self._banned] = True
            self._forbidden = np.flatnonzero(mask)
        self._counts_history = sampler.presence_penalty != 0.0 or sampler.frequency_penalty != 0.0
        self._touches_logits = bool(
            len(self._bias_ids)
            or len(self._forbidden)
            or sampler.repetition_penalty != 1.0
            or self._counts_history
            or sampler.min_tokens
            or sampler.processors
        )

    def laws(self, tokens: Tokens, draft: Tokens, rows: RowsOfLogits) -> Laws:
        """Returns the laws of a pass, row i after tokens + draft[:i]; each is computed when it is asked for."""
        return Laws(self, tokens, draft, rows)

    def law(self, history: Tokens, row: Logits) -> Distribution:
        """Returns the law after `history`, from one row of logits, which is left unchanged.

        Raises:
            RowError: if the logits, processed, are no law: NaN, +inf, or all -inf.
            ProcessorError: if a user's processor fails.
        """
        logits = self._processed(history, row) if self._touches_logits else row
        largest = int(np.argmax(logits))  # the first NaN, if there is one
        top = float(logits[largest])
        if not math.isfinite(top):
            raise RowError(_row_fault(history, logits, row))
        if self.sampler.greedy:
            return Distribution.one_hot(largest)
        return truncated_law(logits, top, self.sampler)

    def scores(self, history: Tokens, row: Logits) -> Logits:
        """Returns the processed logits, over temperature unless greedy, float64 `[vocab]`; for looking at near ties.

        Truncation is left out: an id just outside a nucleus keeps its score.
        """
        logits = self._processed(history, row)
        return logits if self.sampler.greedy else logits / self.sampler.temperature

    def _processed(self, history: Tokens, row: Logits) -> Logits:
        sampler = self.sampler
        logits = row.astype(np.float64)
        logits[self._bias_ids] += self._bias
        if sampler.repetition_penalty != 1.0:
            seen = np.unique(history)
            values = logits[seen]
            with np.errstate(over="ignore"):  # a logit that overflows is refused as any other +inf is
                logits[seen] = np.where(
                    values > 0, values / sampler.repetition_penalty, values * sampler.repetition_penalty
                )
        if self._counts_history:
            seen, counts = np.unique(history[self.prompt_length :], return_counts=True)
            logits[seen] -= sampler.presence_penalty + sampler.frequency_penalty * counts
        logits[self._forbidden] = -np.inf
        if len(history) - self.prompt_length < sampler.min_tokens:
            logits[self._eos] = -np.inf
        for processor in sampler.processors:
            logits = _call(processor, history, logits)
        return logits


class Laws(LawSequence):
    """The target's (or a draft model's) laws over one block; row i is processed at its first use and kept.

    Attributes:
        fault: the row that turned out to be no law, or None.
    """

    def __init__(self, bound: BoundSampler, tokens: Tokens, draft: Tokens, rows: RowsOfLogits) -> None:
        self._bound = bound
        self._tokens = tokens
        self._draft = draft
        self._rows = rows
        self._laws: list[Distribution | None] = [None] * (len(draft) + 1)
        self.fault: int | None = None

    def __len__(self) -> int:
        return len(self._laws)

    @overload
    def __getitem__(self, i: int) -> Distribution: ...
    @overload
    def __getitem__(self, i: slice) -> list[Distribution]: ...
    def __getitem__(self, i: int | slice) -> Distribution | list[Distribution]:
        if isinstance(i, slice):
            return [self[each] for each in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"row {i} of a pass of {len(self)} rows")
        i %= len(self)
        law = self._laws[i]
        if law is None:
            history = self._tokens if i == 0 else np.concatenate([self._tokens, self._draft[:i]])
            try:
                law = self._laws[i] = self._bound.law(history, self._rows[i])
            except RequestError:
                self.fault = i
                raise
        return law


def _call(processor: Processor, history: Tokens, logits: Logits) -> Logits:
    name = getattr(processor, "__name__", type(processor).__name__)
    seen = history.view()
    seen.flags.writeable = False
    try:
        result = np.asarray(processor(seen, logits), dtype=np.float64)
    except Exception as error:
        raise ProcessorError(
            f"processor {name} raised {type(error).__name__}: {error} (at position {len(history)})"
        ) from error
    if result.shape != logits.shape:
        raise ProcessorError(f"processor {name} returned shape {result.shape}; return a row of shape {logits.shape}")
    return result


def _ids(ids: Collection[int], name: str, vocab_size: int) -> Int[np.ndarray, "n"]:
    listed = sorted(whole(name, token) for token in ids)
    if listed and not 0 <= listed[0] <= listed[-1] < vocab_size:
        raise UsageError(f"{name} {listed} has ids outside the vocabulary; use 0..{vocab_size - 1}")
    return np.array(listed, dtype=np.int64)


def _row_fault(history: Tokens, logits: Logits, row: Logits) -> str:
    whose = "logits" if logits is row or not np.isfinite(row.max()) else "logits after processing"
    fault = "hold NaN" if np.isnan(logits).any() else "hold +inf" if np.isposinf(logits).any() else "are all -inf"
    remedy = "check the model file" if whose == "logits" else "check bias, allowed and banned ids and processors"
    return f"the {whose} at position {len(history)} {fault}: there is no law to draw from; {remedy}"
