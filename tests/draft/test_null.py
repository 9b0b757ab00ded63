"""The drafter that never drafts."""

from __future__ import annotations

from draftproof.draft import Drafter, NullDrafter
from tests.draft.drafter_conformance import TEXTS, DrafterConformance, propose


class TestNullDrafter(DrafterConformance):
    def make(self) -> Drafter:
        return NullDrafter()


def test_proposes_nothing() -> None:
    session = NullDrafter().session()
    assert all(len(propose(session, text)) == 0 for text in TEXTS.values())
