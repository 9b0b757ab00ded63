"""Drafts, verdicts, usage."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from draftproof.distribution import Distribution
from draftproof.errors import DraftError
from draftproof.types import EMPTY_DRAFT, NO_TOKENS, Completion, Draft, Step, Usage, Verdict, as_tokens


def _law(*probs: float) -> Distribution:
    return Distribution(np.array(probs))


@pytest.mark.parametrize("given", [[1, 2, 3], (1, 2, 3), np.array([1, 2, 3]), np.array([1, 2, 3], dtype=np.int32)])
def test_as_tokens(given: list[int]) -> None:
    tokens = as_tokens(given)
    assert tokens.dtype == np.int32
    assert tokens.tolist() == [1, 2, 3]


def test_no_tokens() -> None:
    assert as_tokens([]).shape == NO_TOKENS.shape == (0,)
    assert as_tokens([]).dtype == np.int32
    assert len(EMPTY_DRAFT) == 0
    EMPTY_DRAFT.check(1)


def test_a_deterministic_drafts_law_is_one_hot() -> None:
    draft = Draft(as_tokens([4, 2]))
    assert [draft.law(i).dense(5).tolist() for i in (0, 1)] == [[0, 0, 0, 0, 1], [0, 0, 1, 0, 0]]


def test_a_sampled_drafts_law_is_the_one_it_came_with() -> None:
    laws = [_law(0.5, 0.5), _law(0.1, 0.9)]
    draft = Draft(as_tokens([0, 1]), laws)
    assert draft.law(1) is laws[1]


@pytest.mark.parametrize(("length", "kept"), [(0, 0), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_cut_keeps_tokens_laws_and_survival_together(length: int, kept: int) -> None:
    laws = [_law(0.5, 0.5)] * 3
    draft = Draft(as_tokens([0, 1, 0]), laws, np.array([0.9, 0.5, 0.2])).cut(length)
    assert (len(draft), draft.tokens.tolist()) == (kept, [0, 1, 0][:kept])
    assert draft.laws is not None
    assert draft.survival is not None
    assert (len(draft.laws), len(draft.survival)) == (kept, kept)
    bare = Draft(as_tokens([0, 1, 0])).cut(length)
    assert (len(bare), bare.laws, bare.survival) == (kept, None, None)


@pytest.mark.parametrize("tokens", [[5], [0, 5], [-1], [2, -1]])
def test_ids_outside_the_vocabulary_cannot_be_verified(tokens: list[int]) -> None:
    with pytest.raises(DraftError, match=r"outside the target's vocabulary 0\.\.4"):
        Draft(as_tokens(tokens)).check(5)


def test_a_law_for_each_token() -> None:
    with pytest.raises(DraftError, match="2 tokens but 1 laws"):
        Draft(as_tokens([0, 1]), [_law(0.5, 0.5)]).check(2)


def test_a_token_must_be_possible_under_its_own_law() -> None:
    Draft(as_tokens([0, 1]), [_law(0.5, 0.5), _law(0.0, 1.0)]).check(2)
    with pytest.raises(DraftError, match="draft token 0 at 1 has probability 0"):
        Draft(as_tokens([0, 0]), [_law(0.5, 0.5), _law(0.0, 1.0)]).check(2)


def test_verdicts_compare_by_value_and_stay() -> None:
    assert Verdict(1, 2) == Verdict(1, 2) != Verdict(2, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Verdict(1, 2).token = 3  # type: ignore[misc]


def test_usage_and_defaults() -> None:
    assert Usage(3, 4).total_tokens == 7
    completion = Completion("ab", [0, 1], "length", Usage(1, 2))
    assert (completion.counts.num_passes, completion.timings.total, completion.error) == (0, 0.0, None)
    assert completion.counts is not Completion("", [], "stop", Usage(1, 0)).counts
    assert Step(0, [1], "b").completion is None
