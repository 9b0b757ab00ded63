"""The suffix automaton, against searches of the whole text."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from draftproof.draft.automaton import LEVELS, ROOT, SuffixAutomaton

texts = st.lists(st.integers(0, 2), max_size=40) | st.lists(st.integers(0, 6), max_size=40)


def longest_match(text: Sequence[int]) -> int:
    """The length of the longest proper suffix of `text` that occurs earlier in it."""
    for length in range(len(text) - 1, 0, -1):
        suffix = text[len(text) - length :]
        if any(text[i : i + length] == suffix for i in range(len(text) - length)):
            return length
    return 0


def followers(text: Sequence[int], length: int) -> list[int]:
    """What followed the earlier occurrences of the suffix of that length, oldest first."""
    suffix = text[len(text) - length :]
    return [text[i + length] for i in range(len(text) - length) if text[i : i + length] == suffix]


@given(texts)
def test_match_is_the_longest_suffix_seen_before(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for end, token in enumerate(text, 1):
        automaton.extend(token)
        assert automaton.length[automaton.match] == longest_match(text[:end])
    assert automaton.size == len(text)


@given(texts)
def test_statistics_are_those_of_a_search(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for end, token in enumerate(text, 1):
        automaton.extend(token)
        depth, state = 0, automaton.match
        while state > ROOT:
            depth, state = depth + 1, automaton.link[state]
        assume(depth <= LEVELS)
        state = automaton.match
        while state > ROOT:
            found = followers(text[:end], automaton.length[state])
            assert automaton.count[state] == len(found)
            assert set(automaton.moves[state]) == set(found)
            assert automaton.favourite[state] in found
            if len(set(found)) == 1 or len(found) == 2:
                assert automaton.favourite[state] == found[-1]
            state = automaton.link[state]


def test_the_favourite_is_the_commonest_and_then_the_latest() -> None:
    automaton = SuffixAutomaton([0, 1, 0, 2, 0, 1, 0, 3, 0])
    assert automaton.favourite[automaton.match] == 1
    automaton = SuffixAutomaton([0, 1, 0, 2, 0, 3, 0])
    assert automaton.favourite[automaton.match] == 3


def test_an_empty_text_matches_nothing() -> None:
    assert SuffixAutomaton().match == ROOT
    assert SuffixAutomaton([4]).match == ROOT


@given(texts, st.lists(st.integers(0, 3), max_size=20))
def test_step_keeps_the_longest_match_of_another_text(text: list[int], other: list[int]) -> None:
    automaton = SuffixAutomaton(text)
    state, matched = ROOT, 0
    for end, token in enumerate(other, 1):
        state, matched = automaton.step(state, matched, token)
        expected = max(
            length
            for length in range(end + 1)
            if length == 0
            or any(text[i : i + length] == other[end - length : end] for i in range(len(text) - length + 1))
        )
        assert matched == expected
        assert (state == ROOT) == (matched == 0)


def fibonacci(length: int) -> list[int]:
    """The word with the most distinct repeats for its length."""
    a, b = [0], [0, 1]
    while len(b) < length:
        a, b = b, b + a
    return b[:length]


def text_of_kind(kind: str, length: int) -> list[int]:
    rng = random.Random(3)
    words = [[rng.randrange(400) for _ in range(rng.randrange(1, 12))] for _ in range(40)]
    kinds = {
        "one token": [1] * length,
        "a^n b": [1] * (length - 1) + [2],
        "two tokens": [1, 2] * (length // 2),
        "fibonacci": fibonacci(length),
        "random, small alphabet": [rng.randrange(2) for _ in range(length)],
        "random, large alphabet": [rng.randrange(1000) for _ in range(length)],
        "words": [token for _ in range(length) for token in rng.choice(words)][:length],
        "one context, many successors": [token for i in range(length // 2) for token in (0, i + 1)],
    }
    return kinds[kind]


KINDS = [
    "one token",
    "a^n b",
    "two tokens",
    "fibonacci",
    "random, small alphabet",
    "random, large alphabet",
    "words",
    "one context, many successors",
]


@pytest.mark.parametrize("kind", KINDS)
def test_reading_costs_a_constant_number_of_visits_a_token(kind: str) -> None:
    per_token = {}
    for length in (500, 8000):
        automaton = SuffixAutomaton(text_of_kind(kind, length))
        assert automaton.visited <= (LEVELS + 6) * length
        assert len(automaton.length) <= 2 * length
        # A clone copies the moves of its origin; in all, that too is linear.
        assert sum(map(len, automaton.moves)) <= 3 * length
        per_token[length] = automaton.visited / length
    assert per_token[8000] <= 1.25 * per_token[500] + 1.0
