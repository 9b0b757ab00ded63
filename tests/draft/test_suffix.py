"""The default drafter."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from draftproof.draft import Drafter, DraftSession, SuffixDrafter
from draftproof.draft.acceptance import prior_logit
from draftproof.draft.suffix import FLOOR
from draftproof.errors import UsageError
from draftproof.types import Verdict, as_tokens
from tests.draft.drafter_conformance import TEXTS, DrafterConformance, content, propose
from tests.draft.test_automaton import text_of_kind


class TestSuffixDrafter(DrafterConformance):
    def make(self) -> Drafter:
        return SuffixDrafter()


class TestRememberingSuffixDrafter(DrafterConformance):
    def make(self) -> Drafter:
        drafter = SuffixDrafter(memory_tokens=100)
        session = drafter.session()
        for name in ("mixed", "loop"):
            session.begin(0, as_tokens([0]), False)
            session.end(0, as_tokens([0, *TEXTS[name]]))
        return drafter


def unpredictable(letters: int) -> list[int]:
    """A text in which no token ever follows another twice: what is looked up is always wrong."""
    unused = {a: list(range(letters)) for a in range(letters)}
    path, circuit = [0], list[int]()
    while path:
        if unused[path[-1]]:
            path.append(unused[path[-1]].pop())
        else:
            circuit.append(path.pop())
    return circuit[::-1]


def first(session: DraftSession, tokens: list[int]) -> float:
    """The estimated survival of the first token of the draft, 0 without one."""
    survival = propose(session, tokens).survival
    return 0.0 if survival is None else float(survival[0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([2, 4, 6, 1, 4, 6], [1, 4, 6, 1]),
        ([1, 2, 3, 7, 2, 3, 5, 1, 2, 3], [7, 2, 3]),
        ([0, 1, 0, 2, 0, 1, 0, 3, 0], [1, 0]),  # the commonest successor
        ([1, 2, 1, 3, 1], [3, 1]),  # the latest, of equally common ones
        ([5, 5, 5], [5, 5, 5, 5]),
        ([1, 2, 3, 4], []),
        ([6], []),
        ([], []),
    ],
)
def test_hand_worked(text: list[int], expected: list[int]) -> None:
    tokens = propose(SuffixDrafter().session(), text).tokens.tolist()
    assert tokens[: len(expected)] == expected
    assert bool(tokens) == bool(expected)


def test_a_loop_is_drafted_to_the_limit_and_trusted() -> None:
    session = SuffixDrafter().session()
    session.begin(0, as_tokens([1, 2, 3]), True)
    draft = propose(session, [1, 2, 3] * 30, 16)
    assert draft.tokens.tolist() == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1]
    assert draft.survival is not None
    assert draft.survival[0] > 0.9


def test_a_draft_ends_where_it_is_hopeless() -> None:
    draft = propose(SuffixDrafter().session(), [*unpredictable(12), 3], 100)
    assert draft.survival is not None
    assert draft.survival[-1] >= FLOOR


def test_it_learns_although_no_draft_is_verified() -> None:
    bad = unpredictable(16)
    good = list(range(8)) * 20
    session = SuffixDrafter().session()
    session.begin(0, as_tokens(bad[:20]), True)
    estimates = [first(session, bad[:length]) for length in range(20, len(bad) + 1)]
    assert max(estimates[:20]) > 0.25
    assert max(estimates[-50:]) < 0.1
    estimates = [first(session, bad + good[:length]) for length in range(1, 80)]
    recovered = next(i for i, estimate in enumerate(estimates) if estimate > 0.6)
    assert recovered < 40
    assert estimates[-1] > 0.85


def test_a_place_is_evidence_once_however_often_it_is_shown() -> None:
    text = [1, 2, 3, 4] * 3
    once, often = SuffixDrafter().session(), SuffixDrafter().session()
    for session in (once, often):
        session.begin(0, as_tokens(text[:5]), False)
    for length in range(5, len(text)):
        draft = propose(often, text[:length])
        often.observe(0, as_tokens(text[:length]), draft, Verdict(min(1, len(draft)), text[length]))
        propose(often, text[:length])
    assert content(propose(once, text)) == content(propose(often, text))


def test_text_taken_back_and_repeated_is_judged_again_but_the_prompt_never_is() -> None:
    text = [1, 2, 3, 4] * 5
    session, fresh = SuffixDrafter().session(), SuffixDrafter().session()
    session.begin(0, as_tokens(text), False)
    fresh.begin(0, as_tokens(text), False)
    propose(session, text)
    propose(session, text[:7])
    assert content(propose(session, text[:7])) == content(propose(fresh, text[:7]))


def test_evidence_of_one_slot_is_not_shown_to_another() -> None:
    session = SuffixDrafter().session(2)
    bad = unpredictable(10)
    session.begin(0, as_tokens(bad[:5]), False)
    session.begin(1, as_tokens(bad), False)
    before = propose(session, bad, slot=1)
    propose(session, bad, slot=0)
    assert content(propose(session, bad, slot=1)) == content(before)


def test_greedy_requests_are_trusted_more() -> None:
    session = SuffixDrafter().session(2)
    text = [1, 2, 3, 4] * 3
    session.begin(0, as_tokens(text), True)
    session.begin(1, as_tokens(text), False)
    greedy, sampled = propose(session, text).survival, propose(session, text, slot=1).survival
    assert greedy is not None
    assert sampled is not None
    assert np.all(greedy > sampled)


@pytest.mark.parametrize("kind", ["one token", "fibonacci", "words"])
def test_a_proposal_looks_at_as_many_states_after_a_long_text_as_after_a_short_one(kind: str) -> None:
    looked = {}
    for length in (100, 10_000):
        session = SuffixDrafter().session()
        text = text_of_kind(kind, length)
        propose(session, text)
        with mock.patch("draftproof.draft.suffix.prior_logit", wraps=prior_logit) as estimate:
            propose(session, text, 16)
        looked[length] = estimate.call_count
    assert max(looked.values()) <= 17


def test_memory_helps_a_later_request_and_only_if_asked_for() -> None:
    answer = [9, 8, 7, 6, 5, 4, 3, 2, 1]
    for memory_tokens, expected in ((0, []), (50, [6, 5, 4, 3])):
        drafter = SuffixDrafter(memory_tokens)
        session = drafter.session()
        session.begin(0, as_tokens([11, 12]), True)
        propose(session, [11, 12])
        session.end(0, as_tokens([11, 12, *answer]))
        other = drafter.session()
        other.begin(0, as_tokens([13, 14]), True)
        assert propose(other, [13, 14, 9, 8, 7]).tokens.tolist() == expected


def test_memory_holds_outputs_not_prompts_and_never_proposes_across_texts() -> None:
    drafter = SuffixDrafter(100)
    session = drafter.session()
    for output in ([1, 2, 3], [1, 2, 3], [5, 6]):
        session.begin(0, as_tokens([21, 22, 23]), True)
        session.end(0, as_tokens([21, 22, 23, *output]))
    session.begin(0, as_tokens([9]), True)
    assert propose(session, [9, 1, 2], 9).tokens.tolist() == [3]
    assert propose(session, [9, 21, 22], 9).tokens.tolist() == []
    assert propose(session, [9, 2, 3], 9).tokens.tolist() == []


def test_a_request_that_memory_misleads_stops_listening_to_it() -> None:
    drafter = SuffixDrafter(2000)
    session = drafter.session()
    known = list(range(200))
    session.begin(0, as_tokens([300]), True)
    session.end(0, as_tokens([300, *known]))
    session.begin(0, as_tokens([300]), True)
    misled = [a for i in range(0, 120, 3) for a in (*known[i : i + 3], 400 + i)]
    estimates = [first(session, misled[:length]) for length in range(3, len(misled), 4)]
    assert estimates[0] > 0.5
    assert max(estimates[20:]) < 0.35


def test_a_negative_memory_is_refused() -> None:
    with pytest.raises(UsageError, match="memory_tokens -1"):
        SuffixDrafter(-1)
