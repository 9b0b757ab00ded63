"""A bounded memory of the outputs of earlier requests."""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock

from draftproof.draft.automaton import ROOT, SuffixAutomaton

SEPARATOR = -2
"""Stands between texts in an index; no text has it, so no match reaches across."""


class TextMemory:
    """Indexes the latest texts given to it, at most `capacity` tokens of them; safe to share between threads.

    There are two indexes of half the capacity each. When the younger one is full, the older one is dropped and a new
    one begun: forgetting costs nothing a token.

    Args:
        capacity: most tokens held.
    """

    REACH = 16

    def __init__(self, capacity: int) -> None:
        self.lock = RLock()
        self._half = capacity // 2
        self._young = SuffixAutomaton()
        self._old = SuffixAutomaton()

    @property
    def size(self) -> int:
        """How many tokens the memory holds, separators included."""
        return self._young.size + self._old.size

    def add(self, tokens: Sequence[int]) -> None:
        """Adds a text; of one that is longer than half the capacity, the end."""
        kept = tokens[max(0, len(tokens) - self._half + 1) :]
        if not kept or self._half < 2:
            return
        with self.lock:
            if self._young.size + len(kept) + 1 > self._half:
                self._old = self._young
                self._young = SuffixAutomaton()
            for token in kept:
                self._young.extend(token)
            self._young.extend(SEPARATOR)

    def match(self, ending: Sequence[int]) -> tuple[SuffixAutomaton, int, int]:
        """Returns an index, and the state and length in it of the longest suffix of `ending` found; hold `lock`.

        Args:
            ending: the last tokens of a text; only `REACH` of them are looked at, so that the cost is bounded.
        """
        best = self._young, ROOT, 0
        for index in (self._young, self._old):
            state, matched = ROOT, 0
            for token in ending[-self.REACH :]:
                state, matched = index.step(state, matched, token)
            if matched > best[2]:
                best = index, state, matched
        return best
