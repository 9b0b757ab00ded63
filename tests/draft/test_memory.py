"""The memory that requests share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from draftproof.draft.automaton import LEVELS, ROOT
from draftproof.draft.memory import TextMemory


def matched(memory: TextMemory, ending: list[int]) -> int:
    with memory.lock:
        return memory.match(ending)[2]


@pytest.mark.parametrize("capacity", [0, 1, 2, 3, 10, 64])
def test_it_is_bounded_whatever_is_added(capacity: int) -> None:
    memory = TextMemory(capacity)
    for length in [0, 1, 5, 100, 3, 31, 32, 33, 1, 1, 1]:
        memory.add(list(range(length)))
        assert memory.size <= capacity


def test_the_latest_texts_are_kept_and_the_oldest_forgotten() -> None:
    memory = TextMemory(40)
    memory.add([1, 2, 3, 4])
    for start in range(100, 200, 5):
        memory.add(list(range(start, start + 5)))
    assert matched(memory, [1, 2, 3]) == 0
    assert matched(memory, [195, 196, 197]) == 3
    assert matched(memory, [190, 191, 192]) == 3


def test_of_a_text_too_long_the_end_is_kept() -> None:
    memory = TextMemory(20)
    memory.add(list(range(1000)))
    assert matched(memory, [996, 997, 998]) == 3
    assert matched(memory, [1, 2]) == 0


def test_no_match_reaches_across_texts() -> None:
    memory = TextMemory(100)
    memory.add([1, 2])
    memory.add([3, 4])
    assert matched(memory, [1, 2, 3, 4]) == 2
    assert matched(memory, [9]) == 0
    with memory.lock:
        assert memory.match([9])[1] == ROOT


def test_forgetting_costs_nothing_a_token() -> None:
    memory = TextMemory(200)
    visited = 0
    for start in range(500):
        before = memory._young, memory._young.visited
        memory.add([start % 7, start % 5, start % 3, 1, 2])
        visited += memory._young.visited - (before[1] if memory._young is before[0] else 0)
    assert visited <= (LEVELS + 6) * 500 * 6


def test_threads_may_add_and_look_at_once() -> None:
    memory = TextMemory(300)

    def work(seed: int) -> int:
        found = 0
        for i in range(150):
            text = [(seed * i + j) % 11 for j in range(8)]
            memory.add(text)
            with memory.lock:
                index, state, length = memory.match(text[:6])
                assert index.length[state] >= length
                found += length
        return found

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(1, 5)))
    assert memory.size <= 300
