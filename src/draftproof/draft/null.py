"""The drafter that never drafts: with it the engine is plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.draft.base import Drafter, DraftSession, Proposal
from draftproof.types import EMPTY_DRAFT, Draft


class NullDrafter(Drafter):
    """Proposes nothing: the oracle of every test and the baseline of every measurement."""

    name = "none"
    stochastic = False

    def session(self, slots: int = 1) -> DraftSession:
        """See `Drafter.session`."""
        return _NullSession()


class _NullSession(DraftSession):
    def propose(self, proposals: Sequence[Proposal]) -> list[Draft]:
        return [EMPTY_DRAFT] * len(proposals)
