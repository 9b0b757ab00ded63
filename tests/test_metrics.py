"""Counts: what was verified and emitted, under the names users know."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.metrics import Counts, Timings


def test_a_pass_at_a_time() -> None:
    counts = Counts()
    counts.add(drafted=4, accepted=4, emitted=5)
    counts.add(drafted=4, accepted=1, emitted=2)
    counts.add(drafted=2, accepted=0, emitted=1)
    counts.add(drafted=0, accepted=0, emitted=1)
    assert counts == Counts(
        num_passes=4,
        num_drafts=3,
        num_draft_tokens=10,
        num_accepted_tokens=5,
        num_accepted_tokens_per_pos=[2, 1, 1, 1],
        num_emitted_tokens=9,
        num_spec_tokens=8,
        acceptance_histogram=[1, 1, 0, 0, 1],
    )
    assert counts.draft_acceptance_rate == 0.5
    assert counts.mean_acceptance_length == pytest.approx(8 / 3)
    assert counts.tokens_per_pass == 2.25


def test_lists_are_as_long_as_the_longest_draft() -> None:
    counts = Counts()
    counts.add(drafted=3, accepted=1, emitted=2)
    assert counts.num_accepted_tokens_per_pos == [1, 0, 0]
    assert counts.acceptance_histogram == [0, 1, 0, 0]


def test_tokens_cut_off_by_a_stop_are_not_counted() -> None:
    # https://github.com/vllm-project/vllm/issues/56101 : d1 EOS d3 d4 all match; two tokens come out, not five.
    counts = Counts()
    counts.add(drafted=4, accepted=2, emitted=2)
    assert counts.mean_acceptance_length == 2.0
    assert counts.num_emitted_tokens == 2
    assert counts.num_accepted_tokens == 2


def test_rounds_without_a_draft_do_not_swell_the_denominator() -> None:
    # https://github.com/vllm-project/vllm/pull/44054
    counts = Counts()
    for _ in range(2):
        counts.add(drafted=4, accepted=3, emitted=4)
    for _ in range(8):
        counts.add(drafted=0, accepted=0, emitted=1)
    assert (counts.num_draft_tokens, counts.num_accepted_tokens, counts.draft_acceptance_rate) == (8, 6, 0.75)
    assert counts.mean_acceptance_length == 4.0


def test_ratios_of_nothing_are_none() -> None:
    counts = Counts()
    assert (counts.draft_acceptance_rate, counts.mean_acceptance_length, counts.tokens_per_pass) == (None, None, None)
    counts.add(drafted=0, accepted=0, emitted=1)
    assert (counts.draft_acceptance_rate, counts.mean_acceptance_length, counts.tokens_per_pass) == (None, None, 1.0)
    assert json.loads(json.dumps(counts.as_dict()))["draft_acceptance_rate"] is None


_PASSES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8)


def _counted(passes: list[tuple[int, int]]) -> Counts:
    counts = Counts()
    for drafted, accepted in passes:
        counts.add(drafted, min(drafted, accepted), min(drafted, accepted) + 1)
    return counts


@given(_PASSES, _PASSES)
def test_the_sum_of_counts_is_the_count_of_all(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    parts = [_counted(one), _counted(other)]
    before = [part.as_dict() for part in parts]
    total = Counts.sum(parts)
    assert total == _counted(one + other)
    total.add(5, 5, 6)
    assert [part.as_dict() for part in parts] == before, "summing must not touch its parts"


@given(_PASSES)
def test_counts_agree_with_each_other(passes: list[tuple[int, int]]) -> None:
    counts = _counted(passes)
    assert sum(counts.num_accepted_tokens_per_pos) == counts.num_accepted_tokens
    assert sum(counts.acceptance_histogram) == counts.num_drafts
    assert sum(j * drafts for j, drafts in enumerate(counts.acceptance_histogram)) == counts.num_accepted_tokens
    assert counts.num_accepted_tokens_per_pos == sorted(counts.num_accepted_tokens_per_pos, reverse=True)
    assert counts.num_emitted_tokens == counts.num_accepted_tokens + counts.num_passes
    assert counts.num_spec_tokens == counts.num_accepted_tokens + counts.num_drafts


def test_sum_of_none_is_zero() -> None:
    assert Counts.sum([]) == Counts()


def test_overhead_is_what_neither_model_took() -> None:
    timings = Timings(total=1.0, target=0.6, draft=0.15)
    assert timings.overhead == pytest.approx(0.25)
    assert Timings(total=0.5, target=0.6).overhead == 0.0
    assert timings.as_dict()["overhead"] == pytest.approx(0.25)
