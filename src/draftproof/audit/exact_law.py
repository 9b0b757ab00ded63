"""The exact law of what a rule emits, from its answers to chosen uniforms: thresholds are found by bisection.

A rule with k coins and one uniform for the final token is, for a given draft, a function on the unit cube that is
constant on boxes. Along each coin the places where its answer changes are bracketed on a grid and then halved until
two neighbouring floats are left; the boxes' volumes are the law. Random points check that there were no other boxes.
All drafts are treated side by side, so that a batched rule is called a few hundred times, not a few hundred thousand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from draftproof.audit.witness import Text, Witness

Answers: TypeAlias = Callable[[Int[np.ndarray, "points"], Float[np.ndarray, "points coins"]], list[Text]]
"""(which draft, uniforms) a point a row -> what is emitted at each point."""

Edges: TypeAlias = Float[np.ndarray, "_"]

LARGEST = 1.0 - 2.0**-24
"""The largest uniform of single precision: what lies beyond rounds to 1 there, which no generator gives."""

FINEST = 2.0**-60
"""Where halving stops: a change that only a uniform of exactly 0 shows takes up no volume."""

GRID = 17
"""Places tried along each coin. Several changes between two of them are found, unless they cancel."""

ROUNDS = 200
"""Changes looked for in one interval between two places, before the answers are taken to have no order."""

CHECKS = 64
"""Random points tried for each draft: for boxes that cancelled, or answers that depend on more than the uniforms."""


class NotBoxes(Exception):
    """The rule's answers are not constant on boxes of its uniforms, or depend on more than those."""


def exact_law(answers: Answers, witness: Witness, seed: int = 0) -> dict[Text, float]:
    """Returns P(emitted text) over drafts drawn from q and independent uniforms.

    Args:
        answers: the rule's, for drafts by their place in `witness.drafts`.
        witness: the laws.
        seed: of the random points that check the boxes.

    Raises:
        NotBoxes: if random points disagree with the boxes that were found.
    """
    lines, drafts, k = _Lines(answers), range(len(witness.drafts)), witness.length
    again = np.repeat(np.arange(len(drafts)), 8), np.random.default_rng(seed).random((8 * len(drafts), k + 1))
    if answers(*again) != answers(*again):
        raise NotBoxes
    edges: list[list[Edges]] = [[] for _ in drafts]
    for coin in range(k):
        # Earlier coins at the middle of each of their intervals; later ones at either end; two final uniforms.
        later = [np.array([0.0, LARGEST])] * (k - coin - 1)
        grids = [np.array(list(product(*map(_middles, edges[d]), *later, (0.2, 0.8)))) for d in drafts]
        which = np.repeat(np.arange(len(grids)), [len(grid) for grid in grids])
        for d, found in enumerate(lines.edges(which, which, np.concatenate(grids), coin)):
            edges[d].append(found)
    cells = [(d, cell) for d in drafts for cell in product(*(range(len(each) + 1) for each in edges[d]))]
    which = np.array([d for d, _ in cells])
    middles = np.array([[_middles(edges[d][i])[at] for i, at in enumerate(cell)] for d, cell in cells])
    finals = lines.edges(which, np.arange(len(cells)), middles, k)
    texts = lines.between(which, middles, finals)
    law: defaultdict[Text, float] = defaultdict(float)
    masses = list(witness.drafts.values())
    for (d, cell), final, emitted in zip(cells, finals, texts, strict=True):
        volume = masses[d] * float(np.prod([_widths(edges[d][i])[at] for i, at in enumerate(cell)]))
        for text, width in zip(emitted, _widths(final), strict=True):
            law[text] += volume * float(width)
    found_at = {key: (final, emitted) for key, final, emitted in zip(cells, finals, texts, strict=True)}
    _check(answers, edges, found_at, seed)
    return {text: mass for text, mass in law.items() if mass > 0.0}


@dataclass(frozen=True)
class _Lines:
    """Looks for changes along lines through the cube: one coin varies, the others stand still."""

    answers: Answers

    def edges(
        self,
        which: Int[np.ndarray, "lines"],
        owner: Int[np.ndarray, "lines"],
        backgrounds: Float[np.ndarray, "lines others"],
        axis: int,
    ) -> list[Edges]:
        """Returns where the answer changes along `axis`, ascending, for each owner of lines.

        Args:
            which: each line's draft.
            owner: which list its changes belong to.
            backgrounds: the other uniforms.
            axis: the uniform that varies.
        """
        numbers: dict[Text, int] = {}

        def at(lines: Int[np.ndarray, "n"], places: Float[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
            texts = self.answers(which[lines], np.insert(backgrounds[lines], axis, places, axis=1))
            return np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)

        places = np.linspace(0.0, LARGEST, GRID)
        everywhere = np.repeat(np.arange(len(which)), GRID)
        found = at(everywhere, np.tile(places, len(which))).reshape(len(which), GRID)
        lines, columns = np.nonzero(found[:, 1:] != found[:, :-1])
        low, high = places[columns], places[columns + 1]
        at_low, at_high = found[lines, columns], found[lines, columns + 1]
        edges: list[list[float]] = [[] for _ in range(int(owner.max()) + 1)]
        for _ in range(ROUNDS):
            if not len(lines):
                break
            # One line for each draft and interval is halved; most others change at the same place, which is tried.
            _, first, group = np.unique(
                np.stack([which[lines], low, high], axis=1), axis=0, return_index=True, return_inverse=True
            )
            edge, beyond = self._halved(at, lines[first], low[first], high[first], at_low[first])
            place, before = edge[group.reshape(-1)], beyond[group.reshape(-1)]
            here: Bool[np.ndarray, "n"] = at(lines, before) == at_low
            up = at(lines, place)
            here &= up != at_low
            for line, each in zip(lines[here].tolist(), place[here].tolist(), strict=True):
                edges[int(owner[line])].append(each)
            # Where the answer after the change is not that of the interval's end, there is another change to find.
            more = ~here | (up != at_high)
            low = np.where(here, place, low)[more]
            at_low = np.where(here, up, at_low)[more]
            lines, high, at_high = lines[more], high[more], at_high[more]
        else:
            raise NotBoxes
        return [_apart(np.array(sorted(each))) for each in edges]

    def _halved(
        self,
        at: Callable[[Int[np.ndarray, "n"], Float[np.ndarray, "n"]], Int[np.ndarray, "n"]],
        lines: Int[np.ndarray, "n"],
        low: Float[np.ndarray, "n"],
        high: Float[np.ndarray, "n"],
        at_low: Int[np.ndarray, "n"],
    ) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
        """Returns, for each line, the first place where the answer is not `at_low`, and the last where it is."""
        while bool((wide := high - low > np.maximum(np.spacing(high), FINEST)).any()):
            middle = np.where(wide, 0.5 * (low + high), high)
            same = np.zeros(len(lines), dtype=bool)
            same[wide] = at(lines[wide], middle[wide]) == at_low[wide]
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        return high, low

    def between(
        self,
        which: Int[np.ndarray, "lines"],
        backgrounds: Float[np.ndarray, "lines others"],
        edges: Sequence[Edges],
    ) -> list[list[Text]]:
        """Returns what is emitted in each interval of the final uniform."""
        lengths = [len(each) + 1 for each in edges]
        points = np.concatenate(
            [np.repeat(backgrounds, lengths, axis=0), np.concatenate(list(map(_middles, edges)))[:, None]], axis=1
        )
        texts = iter(self.answers(np.repeat(which, lengths), points))
        return [[next(texts) for _ in range(length)] for length in lengths]


def _check(
    answers: Answers,
    edges: Sequence[Sequence[Edges]],
    found: dict[tuple[int, tuple[int, ...]], tuple[Edges, list[Text]]],
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    which = np.repeat(np.arange(len(edges)), CHECKS)
    points = rng.random((len(which), len(edges[0]) + 1))
    for d, point, text in zip(which.tolist(), points, answers(which, points), strict=True):
        cell = tuple(int(np.searchsorted(each, u, side="right")) for each, u in zip(edges[d], point[:-1], strict=True))
        final, texts = found[d, cell]
        if texts[int(np.searchsorted(final, point[-1], side="right"))] != text:
            raise NotBoxes


def _apart(edges: Edges) -> Edges:
    """Returns the edges without those that rounding set beside another one."""
    return edges[np.concatenate([[True], np.diff(edges) > 1e-13])] if len(edges) else edges


def _middles(edges: Edges) -> Float[np.ndarray, "cells"]:
    bounds = np.concatenate([[0.0], edges, [1.0]])
    middles: Float[np.ndarray, "cells"] = 0.5 * (bounds[1:] + bounds[:-1])
    return middles


def _widths(edges: Edges) -> Float[np.ndarray, "cells"]:
    return np.diff(np.concatenate([[0.0], edges, [1.0]]))
