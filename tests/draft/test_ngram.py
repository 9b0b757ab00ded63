"""Prompt lookup, against a search of the whole history."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.draft import Drafter, NgramDrafter
from draftproof.errors import UsageError
from draftproof.types import as_tokens
from tests.draft.drafter_conformance import DrafterConformance, propose


class TestNgramDrafter(DrafterConformance):
    def make(self) -> Drafter:
        return NgramDrafter()


class TestLongNgrams(DrafterConformance):
    def make(self) -> Drafter:
        return NgramDrafter(max_ngram=6, min_ngram=2, num_tokens=3)


def search(text: list[int], max_ngram: int, min_ngram: int, limit: int) -> list[int]:
    """The definition of prompt lookup: scan the history for the longest n, then for the latest place."""
    for n in range(min(max_ngram, len(text) - 1), min_ngram - 1, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if text[start : start + n] == text[len(text) - n :]:
                found: list[int] = []
                for i in range(limit):
                    place = start + n + i
                    found.append(text[place] if place < len(text) else found[place - len(text)])
                return found
    return []


@given(
    st.lists(st.integers(0, 2), max_size=40),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, 7),
    st.integers(1, 40),
)
def test_equals_a_search(text: list[int], min_ngram: int, more: int, limit: int, prompt_length: int) -> None:
    session = NgramDrafter(min_ngram + more, min_ngram).session()
    for length in range(min(prompt_length, len(text)), len(text) + 1, 3):
        assert propose(session, text[:length], limit).tokens.tolist() == search(
            text[:length], min_ngram + more, min_ngram, limit
        )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([2, 4, 6, 1, 4, 6], [1, 4, 6, 1]),  # the reported case: a loop goes on through the draft
        ([1, 2, 5, 1, 2, 6, 1, 2], [6, 1, 2, 6]),  # the latest occurrence of the longest n-gram
        ([1, 2, 3, 7, 2, 3, 5, 1, 2, 3], [7, 2, 3, 5]),  # length before recency
        ([5, 5, 5], [5, 5, 5, 5]),
        ([1, 2, 3, 4], []),  # the suffix itself is no match
        ([6], []),
        ([], []),
    ],
)
def test_hand_worked(text: list[int], expected: list[int]) -> None:
    assert propose(NgramDrafter().session(), text).tokens.tolist() == expected


def test_num_tokens_caps_the_draft() -> None:
    assert len(propose(NgramDrafter(num_tokens=2).session(), [1, 2, 1, 2], 7)) == 2
    assert len(propose(NgramDrafter(num_tokens=0).session(), [1, 2, 1, 2], 7)) == 0
    assert len(propose(NgramDrafter(num_tokens=9).session(), [1, 2, 1, 2], 7)) == 7


def test_longer_matches_promise_more() -> None:
    session = NgramDrafter().session()
    one = propose(session, [1, 2, 1]).survival
    three = propose(session, [1, 2, 3, 4, 1, 2, 3]).survival
    assert one is not None
    assert three is not None
    assert three[0] > one[0]


def test_estimates_follow_the_text() -> None:
    session = NgramDrafter().session()
    session.begin(0, as_tokens([1, 2]), False)
    text = [1, 2] * 40
    good = propose(session, text).survival
    assert good is not None
    fresh = propose(NgramDrafter().session(), text).survival
    assert fresh is not None
    assert good[0] > fresh[0]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((0, 0), "min_ngram"), ((3, 0), "min_ngram"), ((1, 2), "max_ngram"), ((3, 1, -1), "num_tokens")],
)
def test_bad_arguments_are_named(arguments: tuple[int, ...], name: str) -> None:
    with pytest.raises(UsageError, match=name):
        NgramDrafter(*arguments)
