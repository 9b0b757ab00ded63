"""The prior and what a request's own text makes of it."""

from __future__ import annotations

from math import exp

import pytest

from draftproof.draft.acceptance import Evidence, prior_logit
from draftproof.draft.automaton import SuffixAutomaton


def estimate(evidence: Evidence, logit: float) -> float:
    return 1.0 / (1.0 + exp(-evidence.slope * logit - evidence.shift))


def prior(text: list[int]) -> float:
    automaton = SuffixAutomaton(text)
    state = automaton.match
    return prior_logit(automaton, state, automaton.length[state], automaton.favourite[state])


def test_longer_matches_are_trusted_more() -> None:
    phrase = list(range(10, 40))
    logits = [prior([*phrase, 99, *phrase[:length]]) for length in (1, 2, 4, 8, 16, 25)]
    assert logits == sorted(logits)
    assert logits[-1] > logits[0] + 1.0


def test_one_successor_is_trusted_more_than_several() -> None:
    assert prior([1, 2, 1]) > prior([1, 2, 1, 3, 1])
    assert prior([1, 2, 1, 2, 1, 2, 1]) > prior([1, 2, 1])


def test_a_successor_that_shorter_matches_share_is_trusted_more() -> None:
    assert prior([1, 2, 3, 5, 2, 3, 1, 2]) > prior([1, 2, 3, 5, 2, 4, 1, 2])


@pytest.mark.parametrize("logit", [-2.0, 0.0, 2.0])
def test_what_was_expected_changes_nothing_and_surprises_do(logit: float) -> None:
    hits, misses = Evidence(True), Evidence(True)
    before = estimate(hits, logit)
    for _ in range(30):
        hits.record(logit, True)
        misses.record(logit, False)
    assert estimate(hits, logit) > before > estimate(misses, logit)
    assert 0.0 < estimate(misses, logit) < estimate(hits, logit) < 1.0


def test_the_estimate_converges_to_the_rate() -> None:
    evidence = Evidence(True)
    for i in range(400):
        evidence.record(1.5, i % 4 == 0)
    assert estimate(evidence, 1.5) == pytest.approx(0.25, abs=0.1)


def test_it_is_quick_to_see_that_guesses_fail_and_that_they_succeed_again() -> None:
    evidence = Evidence(True)
    for _ in range(20):
        evidence.record(1.0, False)
    assert estimate(evidence, 1.0) < 0.4
    for _ in range(180):
        evidence.record(1.0, False)
    assert 0.02 < estimate(evidence, 1.0) < 0.1
    for _ in range(25):
        evidence.record(1.0, True)
    assert estimate(evidence, 1.0) > 0.5


def test_sampled_text_is_less_certain() -> None:
    assert estimate(Evidence(False), 2.0) < estimate(Evidence(True), 2.0)
