"""An index of a growing text that knows the longest suffix which occurred before."""

from __future__ import annotations

from collections.abc import Iterable

ROOT = 0

LEVELS = 6
"""How many of the suffixes that end at a token have their statistics renewed by it, longest first.

A bound keeps the cost of a token constant: in a text of one repeated token there are as many such suffixes as tokens.
"""


class SuffixAutomaton:
    """The suffix automaton of a text, built online (Blumer et al. 1985), with statistics for prediction.

    A state stands for the set of strings that end at the same places of the text; `length` is that of the longest of
    them. The strings of `link[state]` are the next shorter ones, which end at more places. Hence the longest suffix
    of the text that occurred before is the longest string of `link` of the state of the whole text: `match`.

    States are numbers and their attributes lists, as this is the inner loop of drafting.

    Attributes:
        length: length of the state's longest string.
        link: the state of the longest suffix that ends at more places; -1 for the root.
        moves: the states reached by each token that followed.
        count: how often a token followed the state's strings; an undercount where they were not among the `LEVELS`
            longest suffixes.
        favourite: the token that followed most often, the latest one on ties; -1 before there was any.
        size: tokens in the text.
        visited: states visited by all extensions so far: at most a small multiple of `size`.
    """

    __slots__ = ("_last", "count", "favourite", "length", "link", "moves", "size", "visited")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.length = [0]
        self.link = [-1]
        self.moves: list[dict[int, int]] = [{}]
        self.count = [0]
        self.favourite = [-1]
        self.size = 0
        self.visited = 0
        self._last = ROOT
        for token in tokens:
            self.extend(token)

    @property
    def match(self) -> int:
        """The state of the longest suffix of the text that occurred before; the root if there is none."""
        return self.link[self._last] if self._last else ROOT

    def extend(self, token: int) -> None:
        """Appends a token to the text, in amortised constant time."""
        length, link, moves = self.length, self.link, self.moves
        before, new = self._last, len(length)
        visited = 1
        self.size += 1
        length.append(self.size)
        link.append(ROOT)
        moves.append({})
        self.count.append(0)
        self.favourite.append(-1)
        state = before
        while state >= 0 and token not in moves[state]:
            moves[state][token] = new
            state = link[state]
            visited += 1
        if state >= 0:
            target = moves[state][token]
            if length[state] + 1 != length[target]:
                clone = self._clone(target, length[state] + 1)
                while state >= 0 and moves[state].get(token) == target:
                    moves[state][token] = clone
                    state = link[state]
                    visited += 1
                target = clone
            link[new] = target
        self._last = new
        self.visited += visited + self._renew(before, token)

    def _clone(self, state: int, length: int) -> int:
        """Splits off the strings of `state` up to `length`, which from now on end at more places than the others."""
        clone = len(self.length)
        self.length.append(length)
        self.link.append(self.link[state])
        self.moves.append(self.moves[state].copy())
        self.count.append(self.count[state])
        self.favourite.append(self.favourite[state])
        self.link[state] = clone
        return clone

    def _renew(self, before: int, token: int) -> int:
        """Notes that `token` followed the suffixes that ended the text before it; returns states visited."""
        link, moves, count, favourite = self.link, self.moves, self.count, self.favourite
        count[before] = 1
        favourite[before] = token
        visited = 0
        state = link[before]
        while state > ROOT and visited < LEVELS:
            count[state] += 1
            best = favourite[state]
            # The occurrence just made is not counted yet for `token`: nothing followed it so far.
            if best < 0 or count[moves[state][token]] + 1 >= count[moves[state][best]]:
                favourite[state] = token
            state = link[state]
            visited += 1
        return visited + 1

    def step(self, state: int, matched: int, token: int) -> tuple[int, int]:
        """Moves a match of another text along by that text's next token, in amortised constant time.

        Args:
            state: the state of the longest suffix of the other text that occurs in this one.
            matched: the length of that suffix.
            token: the other text's next token.

        Returns:
            The state and length of the longest suffix with `token`.
        """
        while token not in self.moves[state]:
            if state == ROOT:
                return ROOT, 0
            state = self.link[state]
            matched = self.length[state]
        return self.moves[state][token], matched + 1
