"""A small model that drafts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from draftproof.distribution import Distribution
from draftproof.draft import Drafter, DraftSession, ModelDrafter
from draftproof.errors import DraftError
from draftproof.models.base import Query
from draftproof.models.toy import ToyModel
from draftproof.noise import CounterNoise
from draftproof.rules import CoupledRule
from draftproof.sampling import Sampler
from draftproof.types import Verdict, as_tokens
from tests.doubles import FlakyModel, scripted_model
from tests.draft.drafter_conformance import TEXTS, VOCABULARY, DrafterConformance, content, proposal, propose


class TestModelDrafter(DrafterConformance):
    def make(self) -> Drafter:
        return ModelDrafter(ToyModel.random(VOCABULARY, seed=1))


class TestModelDrafterWithItsOwnSampler(DrafterConformance):
    def make(self) -> Drafter:
        return ModelDrafter(ToyModel.random(VOCABULARY, seed=1), Sampler(temperature=0.7, top_k=3))


@pytest.mark.parametrize("length", [1, 2, 7])
def test_a_draft_of_the_target_itself_is_what_the_target_draws(length: int) -> None:
    """From the first block on: the drafter has read all of the text, the newest token included."""
    model, noise, rule = ToyModel.random(8, seed=3), CounterNoise(2), CoupledRule()
    session = ModelDrafter(model).session()
    text = TEXTS["mixed"][:length]
    for _ in range(6):
        start = len(text)
        asked = proposal(text, 3, draw=lambda law, offset, start=start: rule.draw(law, noise, start, offset))  # type: ignore[misc]
        (draft,) = session.propose([asked])
        assert len(draft) == 3
        laws = [Distribution(model.law([*text, *draft.tokens[:i].tolist()])) for i in range(4)]
        verdict = rule.verify(laws, draft, noise, start)
        assert verdict.accepted == 3
        text = [*text, *draft.tokens.tolist(), verdict.token]


def test_laws_are_those_the_tokens_were_drawn_from() -> None:
    model = ToyModel.random(VOCABULARY, seed=4)
    for own in (None, Sampler(temperature=0.5, top_k=4)):
        drawn: list[Distribution] = []

        def draw(law: Distribution, offset: int, drawn: list[Distribution] = drawn) -> int:
            assert offset == len(drawn)
            drawn.append(law)
            return law.sample(0.6)

        asked = proposal([1, 2, 3], 4, sampler=Sampler(top_p=0.9), draw=draw)
        (draft,) = ModelDrafter(model, own).session().propose([asked])
        assert draft.laws is not None
        assert list(draft.laws) == drawn
        bound = (own or Sampler(top_p=0.9)).bind(1, (), VOCABULARY)
        for i in range(4):
            history = as_tokens([1, 2, 3, *draft.tokens[:i].tolist()])
            expected = bound.law(history, model.table(history))
            assert np.array_equal(expected.dense(VOCABULARY), drawn[i].dense(VOCABULARY))


def test_the_drafts_law_sees_penalties_of_the_draft_itself() -> None:
    asked = proposal([1], 3, sampler=Sampler(temperature=0.0, presence_penalty=50.0))
    (draft,) = ModelDrafter(scripted_model([5], 1, VOCABULARY)).session().propose([asked])
    assert len(set(draft.tokens.tolist())) == 3


class Recorder:
    """Notes what each pass of a draft model ran."""

    def __init__(self) -> None:
        self.passes: list[list[tuple[int, list[int], int]]] = []

    def __call__(self, queries: Sequence[Query]) -> bool:
        self.passes.append([(each.slot, each.tokens.tolist(), len(each.draft)) for each in queries])
        return False


def test_one_pass_a_place_for_all_requests_together() -> None:
    recorder = Recorder()
    session = ModelDrafter(FlakyModel(ToyModel.random(VOCABULARY), recorder)).session(3)
    drafts = session.propose([proposal(TEXTS["mixed"], limit, slot=slot) for slot, limit in enumerate((2, 4, 0))])
    assert [len(each) for each in drafts] == [2, 4, 0]
    assert [[slot for slot, _, _ in each] for each in recorder.passes] == [[0, 1], [0, 1], [1], [1]]
    # Drafted tokens are text to the session, which runs again no more than the last of them.
    assert all(rows == 0 for each in recorder.passes for _, _, rows in each)
    assert recorder.passes[3][0][1] == [*TEXTS["mixed"], *drafts[1].tokens[:3].tolist()]


def test_it_asks_before_each_draw_and_stops_when_told() -> None:
    for stop in range(4):
        events: list[str] = []

        def proceed(survival: float, offset: int, stop: int = stop, events: list[str] = events) -> bool:
            events.append(f"ask {offset}")
            assert 0.0 < survival < 1.0
            return offset < stop

        def draw(law: Distribution, offset: int, events: list[str] = events) -> int:
            events.append(f"draw {offset}")
            return law.sample(0.5)

        session = ModelDrafter(ToyModel.random(VOCABULARY)).session()
        (draft,) = session.propose([proposal([1, 2], 3, draw=draw, proceed=proceed)])
        assert len(draft) == min(stop, 3)
        expected = [f"{what} {i}" for i in range(min(stop, 3)) for what in ("ask", "draw")]
        assert events == ([*expected, f"ask {stop}"] if stop < 3 else expected)


def asked_survivals(session: DraftSession, u: float) -> list[float]:
    asked: list[float] = []

    def proceed(survival: float, offset: int) -> bool:
        asked.append(survival)
        return True

    session.propose([proposal([1, 2], 4, draw=lambda law, offset: law.sample(u), proceed=proceed)])
    return asked


def test_whether_to_go_on_does_not_depend_on_the_tokens_drawn() -> None:
    asked = [asked_survivals(ModelDrafter(ToyModel.random(VOCABULARY)).session(), u) for u in (0.0, 0.5, 0.99)]
    assert asked[0] == asked[1] == asked[2]
    assert asked[0] == sorted(asked[0], reverse=True)


def test_estimates_follow_the_verdicts() -> None:
    session = ModelDrafter(ToyModel.random(VOCABULARY)).session()
    start = asked_survivals(session, 0.5)[0]
    draft = propose(session, [1, 2])
    for _ in range(10):
        session.observe(0, as_tokens([1, 2]), draft, Verdict(4, 0))
    good = asked_survivals(session, 0.5)[0]
    for _ in range(20):
        session.observe(0, as_tokens([1, 2]), draft, Verdict(0, 0))
    bad = asked_survivals(session, 0.5)[0]
    assert bad < start < good


def test_nothing_is_drafted_after_the_end_of_a_text() -> None:
    model = scripted_model([4, 5, 6, 7], 2, VOCABULARY, eos_ids=[5])
    asked = proposal([1, 2], 8, sampler=Sampler(temperature=0.0))
    (draft,) = ModelDrafter(model).session().propose([asked])
    assert draft.tokens.tolist() == [4, 5]


@pytest.mark.parametrize(("length", "expected"), [(7, 2), (8, 1), (9, 0), (20, 0)])
def test_a_context_that_is_full_ends_the_draft(length: int, expected: int) -> None:
    model = ToyModel.random(VOCABULARY, context_length=8)
    draft = propose(ModelDrafter(model).session(), [1] * length, 4)
    assert len(draft) == expected


def test_a_failing_pass_ends_one_draft_and_leaves_the_others() -> None:
    texts = [TEXTS["loop"], TEXTS["mixed"], TEXTS["short"]]
    model = ToyModel.random(VOCABULARY, seed=2)
    clean = ModelDrafter(model).session(3)
    expected = clean.propose([proposal(text, slot=slot) for slot, text in enumerate(texts)])
    flaky = FlakyModel(
        model, lambda queries: any(len(each.tokens) > len(TEXTS["mixed"]) and each.slot == 1 for each in queries)
    )
    session = ModelDrafter(flaky).session(3)
    found = session.propose([proposal(text, slot=slot) for slot, text in enumerate(texts)])
    # What was drawn before the failure stays: dropping it, perhaps for its value, would bias the text.
    assert content(found[1]) == content(expected[1].cut(1))
    assert [content(found[slot]) for slot in (0, 2)] == [content(expected[slot]) for slot in (0, 2)]
    with pytest.raises(DraftError, match="failed: RuntimeError: the device fell over"):
        session.propose([proposal(texts[1], slot=1)])
    session.begin(1, as_tokens(texts[2]), False)
    assert len(session.propose([proposal(texts[2], slot=1)])[0]) > 0


def test_a_row_that_is_no_law_is_told() -> None:
    broken = ToyModel(lambda tokens: np.full(VOCABULARY, np.nan), VOCABULARY, name="broken")
    with pytest.raises(DraftError, match="draft model broken failed: RowError"):
        propose(ModelDrafter(broken).session(), [1, 2])
