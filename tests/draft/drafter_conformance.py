"""What every drafter must do, whatever it drafts from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from draftproof.distribution import Distribution
from draftproof.draft import Drafter, DraftSession, Proposal
from draftproof.models.toy import ToyModel
from draftproof.noise import CounterNoise
from draftproof.rules import TokenRule
from draftproof.sampling import Sampler
from draftproof.types import Draft, Verdict, as_tokens

VOCABULARY = 8
PLAIN = Sampler().bind(1, (), VOCABULARY)

TEXTS = {
    "one": [3],
    "two": [3, 3],
    "short": [2, 4, 6],
    "shorter than an n-gram's double": [2, 4, 6, 2, 4],
    "lookup": [2, 4, 6, 1, 4, 6],
    "all equal": [5] * 20,
    "no repeat": [0, 1, 2, 3, 4, 5, 6, 7],
    "match ends at the last token": [1, 2, 3, 3],
    "only the suffix itself": [7, 6, 5, 4, 3, 2, 1, 0],
    "loop": [1, 2, 3, 4] * 6,
    "mixed": [1, 2, 3, 1, 2, 5, 1, 2, 3, 6, 0, 7, 1, 2, 3],
}


def always(survival: float, offset: int) -> bool:
    """Goes on drawing."""
    return True


def proposal(
    tokens: Sequence[int],
    limit: int = 4,
    *,
    slot: int = 0,
    sampler: Sampler | None = None,
    draw: Callable[[Distribution, int], int] | None = None,
    proceed: Callable[[float, int], bool] = always,
) -> Proposal:
    """A request for a draft, with the noise of the token rule under a fixed seed."""
    noise, rule, start = CounterNoise(5), TokenRule(), len(tokens)
    return Proposal(
        slot,
        as_tokens(tokens),
        limit,
        PLAIN if sampler is None else sampler.bind(1, (), VOCABULARY),
        draw or (lambda law, offset: rule.draw(law, noise, start, offset)),
        proceed,
    )


def propose(session: DraftSession, tokens: Sequence[int], limit: int = 4, *, slot: int = 0) -> Draft:
    """The draft of one request."""
    (draft,) = session.propose([proposal(tokens, limit, slot=slot)])
    return draft


def content(draft: Draft) -> tuple[list[int], list[float] | None]:
    """What two equal drafts share."""
    return draft.tokens.tolist(), None if draft.survival is None else draft.survival.tolist()


class DrafterConformance(ABC):
    """Subclass as TestX and say how to make one; ids are 0..7."""

    @abstractmethod
    def make(self) -> Drafter:
        """Returns a new drafter."""

    def check(self, draft: Draft, limit: int) -> None:
        """Fails unless the draft can be verified and its estimates are probabilities."""
        assert len(draft) <= limit
        assert draft.tokens.dtype == np.int32
        draft.check(VOCABULARY)
        if len(draft):
            assert (draft.laws is not None) == self.make().stochastic
        if draft.survival is not None:
            assert len(draft.survival) == len(draft)
            assert np.all((draft.survival >= 0.0) & (draft.survival <= 1.0))
            assert np.all(np.diff(draft.survival) <= 0.0)

    def test_declares_itself(self) -> None:
        drafter = self.make()
        assert drafter.name
        assert isinstance(drafter.stochastic, bool)
        drafter.check(ToyModel.random(VOCABULARY))

    @pytest.mark.parametrize("limit", [0, 1, 2, 5, 17])
    def test_drafts_are_legal(self, limit: int) -> None:
        session = self.make().session()
        for greedy in (False, True):
            for text in TEXTS.values():
                session.begin(0, as_tokens(text), greedy)
                self.check(propose(session, text, limit), limit)
        session.close()

    def test_needs_no_begin(self) -> None:
        for text in TEXTS.values():
            self.check(propose(self.make().session(), text), 4)

    def test_an_empty_text_gets_an_empty_draft_or_a_legal_one(self) -> None:
        session = self.make().session()
        self.check(propose(session, []), 4)
        self.check(propose(session, [1]), 4)

    def test_no_proposals_no_drafts(self) -> None:
        assert self.make().session().propose([]) == []

    def test_asking_again_changes_nothing(self) -> None:
        session = self.make().session()
        text = TEXTS["mixed"]
        first = propose(session, text)
        assert content(propose(session, text)) == content(first)

    def test_a_history_that_shrinks_or_is_edited_is_a_new_one(self) -> None:
        for other in TEXTS.values():
            fresh = propose(self.make().session(), other, 2)
            for text in TEXTS.values():
                session = self.make().session()
                propose(session, text, 2)
                after = propose(session, other, 2)
                assert after.tokens.tolist() == fresh.tokens.tolist()
                if other[: len(text)] != text:  # else it only grew, and may have taught something
                    assert content(after) == content(fresh)

    def test_an_output_that_shrinks_or_is_edited(self) -> None:
        session = self.make().session()
        text = TEXTS["loop"]
        session.begin(0, as_tokens(text[:5]), False)
        for length in (5, 12, 8, 20, 19, 6, 24):
            fresh = propose(self.make().session(), text[:length])
            assert propose(session, text[:length]).tokens.tolist() == fresh.tokens.tolist()
        edited = [*text[:10], 7, *text[11:]]
        fresh = propose(self.make().session(), edited)
        assert propose(session, edited).tokens.tolist() == fresh.tokens.tolist()

    def test_slots_are_independent(self) -> None:
        names = ["loop", "mixed", "all equal"]
        together = self.make().session(3)
        alone = [self.make().session() for _ in names]
        for slot, name in enumerate(names):
            together.begin(slot, as_tokens(TEXTS[name][:3]), slot == 0)
            alone[slot].begin(0, as_tokens(TEXTS[name][:3]), slot == 0)
        for length in range(3, 15):
            asked = [proposal(TEXTS[name][:length], slot=slot) for slot, name in enumerate(names)]
            drafts = together.propose(asked[::-1])[::-1]
            for slot, name in enumerate(names):
                assert content(drafts[slot]) == content(propose(alone[slot], TEXTS[name][:length]))
                verdict = Verdict(0, TEXTS[name][length])
                together.observe(slot, as_tokens(TEXTS[name][:length]), drafts[slot], verdict)
                alone[slot].observe(0, as_tokens(TEXTS[name][:length]), drafts[slot], verdict)

    def test_begin_forgets_what_the_last_request_showed(self) -> None:
        session = self.make().session()
        session.begin(0, as_tokens(TEXTS["loop"][:6]), False)
        for length in range(6, len(TEXTS["loop"])):
            draft = propose(session, TEXTS["loop"][:length])
            session.observe(0, as_tokens(TEXTS["loop"][:length]), draft, Verdict(0, TEXTS["loop"][length]))
        session.begin(0, as_tokens(TEXTS["mixed"]), False)
        fresh = self.make().session()
        fresh.begin(0, as_tokens(TEXTS["mixed"]), False)
        assert content(propose(session, TEXTS["mixed"])) == content(propose(fresh, TEXTS["mixed"]))

    def test_every_verdict_is_taken(self) -> None:
        for name in ("loop", "all equal", "mixed"):
            text = TEXTS[name]
            for accepted in range(6):
                session = self.make().session()
                session.begin(0, as_tokens(text[:2]), False)
                draft = propose(session, text, 5)
                if accepted > len(draft):
                    break
                session.observe(0, as_tokens(text), draft, Verdict(accepted, 0))
                self.check(propose(session, [*text, *draft.tokens[:accepted].tolist(), 0], 5), 5)

    def test_a_cut_draft_may_be_observed(self) -> None:
        session = self.make().session()
        draft = propose(session, TEXTS["loop"], 5).cut(1)
        session.observe(0, as_tokens(TEXTS["loop"]), draft, Verdict(len(draft), 1))
        self.check(propose(session, [*TEXTS["loop"], *draft.tokens.tolist(), 1]), 4)

    def test_growing_by_many_tokens_is_growing_by_one(self) -> None:
        text = TEXTS["loop"] + TEXTS["mixed"]
        slow, quick = self.make().session(), self.make().session()
        for session in (slow, quick):
            session.begin(0, as_tokens(text[:4]), False)
        for length in range(4, len(text)):
            propose(slow, text[:length])
        assert content(propose(slow, text)) == content(propose(quick, text))

    def test_ends_and_closes(self) -> None:
        session = self.make().session(2)
        session.begin(0, as_tokens(TEXTS["mixed"]), False)
        propose(session, TEXTS["mixed"])
        session.end(0, as_tokens([*TEXTS["mixed"], 1]))
        session.end(1, as_tokens([1]))
        session.close()
        session.close()
