"""What the drafters that look tokens up in the text have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int

from draftproof.draft.acceptance import Evidence
from draftproof.draft.base import DraftSession, Proposal
from draftproof.draft.history import History
from draftproof.types import EMPTY_DRAFT, Draft


@dataclass(slots=True)
class Found:
    """A looked-up continuation.

    Attributes:
        tokens: the ids.
        survival: estimated P(the first i+1 are accepted) for each.
    """

    tokens: list[int] = field(default_factory=list)
    survival: list[float] = field(default_factory=list)

    def draft(self) -> Draft:
        """Returns it as a deterministic draft."""
        if not self.tokens:
            return EMPTY_DRAFT
        return Draft(np.array(self.tokens, dtype=np.int32), None, np.array(self.survival, dtype=np.float64))


class TextIndex(ABC):
    """An index of a growing text that says how the text may go on."""

    @abstractmethod
    def extend(self, token: int) -> None:
        """Appends a token to the text, in amortised constant time."""

    @abstractmethod
    def guess(self) -> tuple[int, float] | None:
        """Returns the token it expects next and the prior logit of that, or None if it expects nothing."""

    @abstractmethod
    def follow(self, limit: int, evidence: Evidence) -> Found:
        """Returns up to `limit` expected tokens, with what the request has shown taken into account."""


class Reader:
    """One request's text as far as it is known, its index, and the evidence about the index's guesses.

    Evidence is the text itself: each new token after the prompt shows whether the index would have guessed it, whether
    or not a draft was verified there. For a deterministic draft this is all that verdicts could tell, as a token of it
    is accepted exactly if the text goes on with it; and a place is judged once, when it is read.
    """

    __slots__ = ("_history", "_judged", "_make", "evidence", "index", "prompt_length")

    def __init__(self, make: Callable[[], TextIndex], prompt_length: int = 0, greedy: bool = False) -> None:
        self._make = make
        self._history = History()
        self._judged = self.prompt_length = prompt_length
        self.index = make()
        self.evidence = Evidence(greedy)

    def read(self, tokens: Int[np.ndarray, "n"]) -> None:
        """Indexes what is new in `tokens`; starts over if the text was cut or edited."""
        before = self._history.size
        kept = self._history.update(tokens)
        if kept < before:
            self.index = self._make()
            for token in tokens[:kept].tolist():
                self.index.extend(token)
            self._judged = min(self._judged, kept)
        if not self.prompt_length or kept < min(before, self.prompt_length):
            self.prompt_length = self._judged = len(tokens)
        index, judged = self.index, self._judged
        for position, token in enumerate(tokens[kept:].tolist(), kept):
            if position >= judged:
                guess = index.guess()
                if guess is not None:
                    self.evidence.record(guess[1], guess[0] == token)
            index.extend(token)
        self._judged = max(judged, len(tokens))


class LookupSession(DraftSession):
    """Reads each request's text as it grows and proposes what its index expects.

    Args:
        make: makes the index of an empty text.
        slots: how many requests at a time.
    """

    def __init__(self, make: Callable[[], TextIndex], slots: int) -> None:
        self._make = make
        self._readers = [Reader(make) for _ in range(slots)]

    def begin(self, slot: int, tokens: Int[np.ndarray, "n"], greedy: bool) -> None:
        """See `DraftSession.begin`: a new request starts without evidence."""
        self._readers[slot] = Reader(self._make, len(tokens), greedy)

    def propose(self, proposals: Sequence[Proposal]) -> list[Draft]:
        """See `DraftSession.propose`."""
        return [self._find(each).draft() for each in proposals]

    def _find(self, proposal: Proposal) -> Found:
        reader = self._readers[proposal.slot]
        reader.read(proposal.tokens)
        return reader.index.follow(proposal.limit, reader.evidence)

    def end(self, slot: int, tokens: Int[np.ndarray, "n"]) -> None:
        """See `DraftSession.end`."""
        self._readers[slot] = Reader(self._make)

    def close(self) -> None:
        """See `DraftSession.close`."""
        self._readers = [Reader(self._make) for _ in self._readers]
