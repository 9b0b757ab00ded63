"""The values that pass between the parts: drafts, verdicts, steps, completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from draftproof.distribution import Distribution, LawSequence
from draftproof.errors import DraftError, RequestError
from draftproof.metrics import Counts, Timings

Tokens: TypeAlias = Int[np.ndarray, "_"]
"""Token ids, int32, so that two sequences compare fast."""

FinishReason: TypeAlias = Literal["stop", "length", "error", "abort"]
""""abort" is what callers who close a stream early may call it; the engine itself never says it."""

NO_TOKENS = np.zeros(0, dtype=np.int32)


def as_tokens(tokens: Sequence[int] | np.ndarray) -> Tokens:
    """Returns token ids as the int32 array that sessions and drafters take, `[n]`."""
    return np.asarray(tokens, dtype=np.int32).reshape(-1)


@dataclass(frozen=True, eq=False)
class Draft:
    """What a drafter proposes: a chain of tokens to follow the text.

    Attributes:
        tokens: the proposed ids, `[draft]`.
        laws: the law each token was actually drawn from, or None for a deterministic draft (a one-hot law).
        survival: estimated P(the first i+1 tokens are accepted), `[draft]`, known before the target's pass.
    """

    tokens: Int[np.ndarray, "draft"]
    laws: LawSequence | None = None
    survival: Float[np.ndarray, "draft"] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def law(self, i: int) -> Distribution:
        """Returns q at draft position i: the law `tokens[i]` was drawn from."""
        return Distribution.one_hot(int(self.tokens[i])) if self.laws is None else self.laws[i]

    def cut(self, length: int) -> Draft:
        """Returns the first `length` tokens of the draft."""
        if length >= len(self.tokens):
            return self
        return Draft(
            self.tokens[:length],
            None if self.laws is None else self.laws[:length],
            None if self.survival is None else self.survival[:length],
        )

    def check(self, vocab_size: int) -> None:
        """Raises DraftError unless the draft can be verified: ids in the vocabulary, each drawn from its own law."""
        if len(self.tokens) and not 0 <= int(self.tokens.min()) <= int(self.tokens.max()) < vocab_size:
            raise DraftError(
                f"draft {self.tokens.tolist()} has ids outside the target's vocabulary 0..{vocab_size - 1}"
            )
        if self.laws is not None:
            if len(self.laws) != len(self.tokens):
                raise DraftError(f"draft has {len(self.tokens)} tokens but {len(self.laws)} laws")
            for i, law in enumerate(self.laws):
                if not law.prob(int(self.tokens[i])) > 0.0:
                    raise DraftError(f"draft token {int(self.tokens[i])} at {i} has probability 0 under its own law")


EMPTY_DRAFT = Draft(NO_TOKENS)


@dataclass(frozen=True)
class Verdict:
    """What a rule decides.

    Attributes:
        accepted: how many leading draft tokens are kept.
        token: the token that follows them: the bonus if all were kept, else the one recovered from the residual.
    """

    accepted: int
    token: int


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of an emitted token under the target's raw logits, before any processing.

    Attributes:
        token: the id.
        logprob: log softmax(logits)[token].
        top: the requested number of most likely (id, logprob) pairs, most likely first.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class Usage:
    """Token counts of one request, with the OpenAI names.

    Attributes:
        prompt_tokens: tokens of the prompt.
        completion_tokens: tokens generated, an end-of-sequence token included.
        cached_tokens: tokens of the prompt that a session still held and did not compute again.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Step:
    """What one target pass added to one request.

    Attributes:
        index: which request of the batch, 0 for a single one.
        tokens: the new ids.
        text: the new text; held back while it may be the start of a stop string or half a character.
        num_draft_tokens: how many draft tokens the pass verified.
        num_accepted_tokens: how many of them were kept and emitted.
        logprobs: one entry a token, if asked for.
        finish_reason: set on the last step: "stop", "length" or "error".
        completion: the whole result, on the last step.
    """

    index: int
    tokens: list[int]
    text: str
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    completion: Completion | None = None


@dataclass(frozen=True)
class Completion:
    """The result of one request.

    Attributes:
        text: the generated text, without the stop string or the end-of-sequence token.
        tokens: the generated ids only; an end-of-sequence token is among them.
        finish_reason: "stop", "length" or "error".
        usage: token counts.
        counts: what speculation did.
        timings: where the time went, seconds.
        logprobs: one entry a token, if asked for.
        seed: the seed of the noise: give it again, with the same rule, for the same text.
        rule: name of the acceptance rule used.
        error: the failure, if finish_reason is "error".
        drafter_error: why the drafter was switched off for this request, or None.
    """

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    usage: Usage
    counts: Counts = field(default_factory=Counts)
    timings: Timings = field(default_factory=Timings)
    logprobs: list[TokenLogprob] | None = None
    seed: int | tuple[int, ...] | None = None
    rule: str = ""
    error: RequestError | None = None
    drafter_error: DraftError | None = None
