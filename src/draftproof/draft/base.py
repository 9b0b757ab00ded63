"""What the engine asks of a drafter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from draftproof.distribution import Distribution
from draftproof.models.base import Model
from draftproof.sampling import BoundSampler
from draftproof.types import Draft, Verdict


@dataclass(frozen=True, eq=False)
class Proposal:
    """A request for a draft.

    Attributes:
        slot: which of the draft session's sequences.
        tokens: the committed text, `[n]`.
        limit: most tokens to propose; a deterministic drafter may return all it has up to this.
        sampler: the target's sampling law for this request, for drafters that sample from it.
        draw: draw(law, offset) -> token, supplied by the rule, so that a drafter never sees noise.
        proceed: proceed(survival, offset) -> bool, asked before draft token `offset` of a sampled draft is drawn, with
            the estimated P(all tokens up to and including it are accepted), from what is known before that draw.
    """

    slot: int
    tokens: Int[np.ndarray, "n"]
    limit: int
    sampler: BoundSampler
    draw: Callable[[Distribution, int], int]
    proceed: Callable[[float, int], bool]


class DraftSession(ABC):
    """A drafter's memory of several running requests, addressed by tokens like a model's session."""

    def begin(self, slot: int, tokens: Int[np.ndarray, "n"], greedy: bool) -> None:
        """Tells that a new request with prompt `tokens` now uses the slot; `greedy`: it decodes at temperature 0."""
        return None

    @abstractmethod
    def propose(self, proposals: Sequence[Proposal]) -> list[Draft]:
        """Returns a draft for each proposal; an empty one is legal.

        It may raise. It is then asked again, one proposal at a time, so a retry must be harmless; a request for which
        it raises alone goes on undrafted. A stochastic drafter that fails after it drew tokens must not raise but
        return those, and raise the next time: to drop a drawn token for its own value biases the text. A
        deterministic one is asked at every step, also while nothing is verified, and may learn from what it sees.
        """

    def observe(self, slot: int, tokens: Int[np.ndarray, "n"], draft: Draft, verdict: Verdict) -> None:
        """Learns from what became of the draft that followed `tokens`.

        Only places up to the first rejection carry evidence: the target never judged what came after it.
        """
        return None

    def end(self, slot: int, tokens: Int[np.ndarray, "n"]) -> None:
        """Tells that the request that used the slot has ended with the text `tokens`."""
        return None

    def close(self) -> None:
        """Frees the session's memory; closing twice is harmless."""
        return None


class Drafter(ABC):
    """Something that proposes tokens; it may hold memory that requests share.

    Attributes:
        name: what to call it.
        stochastic: whether drafts are drawn from a law (which the rule then needs) or are deterministic.
        remembers: whether drafts may depend on other requests' texts. One with the same seed shares its coins, so a
            rule that judges the draft by those coins would be biased; the engine refuses that combination.
    """

    name: str
    stochastic: bool
    remembers: bool = False

    @abstractmethod
    def session(self, slots: int = 1) -> DraftSession:
        """Returns a new session for `slots` running requests."""

    def check(self, target: Model) -> None:
        """Prepares for the target of the sessions to come; raises UsageError if the drafter cannot serve it."""
        return None

    def describe(self) -> str:
        """Returns the name, and what a user should know of how it drafts for the target it was checked for."""
        return self.name
