"""What the best rule could do, by linear programming over all rules: the oracle of optimality."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from scipy.optimize import linprog

from draftproof.distribution import Distribution
from tests.laws import Case, Text


def best_expected_tokens(case: Case) -> float:
    """Returns the largest E[N] of any lossless rule for one sampled chain.

    A rule is P(tau, y | x): how much of the draft x to keep and what to emit next. Lossless is linear in it.
    """
    drafts = list(product(range(case.vocab), repeat=case.k))
    moves = [(x, tau, y) for x in drafts for tau in range(case.k + 1) for y in range(case.vocab)]
    column = {move: place for place, move in enumerate(moves)}
    strings = list(product(range(case.vocab), repeat=case.k + 1))
    matrix, right = [], []
    for x in drafts:
        row = np.zeros(len(moves))
        for tau in range(case.k + 1):
            for y in range(case.vocab):
                row[column[x, tau, y]] = 1.0
        matrix.append(row)
        right.append(1.0)
    chances = {x: _chance(case, "draft", x) for x in drafts}
    for s in strings:
        row = np.zeros(len(moves))
        for x, tau, y in moves:
            output = (*x[:tau], y)
            if output == s[: tau + 1]:
                row[column[x, tau, y]] = chances[x] * _chance(case, "target", s[tau + 1 :], s[: tau + 1])
        matrix.append(row)
        right.append(_chance(case, "target", s))
    gain = np.array([-chances[x] * (tau + 1) for x, tau, _ in moves])
    found = linprog(gain, A_eq=np.array(matrix), b_eq=np.array(right), bounds=(0.0, 1.0), method="highs")
    assert found.success, found.message
    return -float(found.fun)


def _chance(case: Case, which: str, tokens: Sequence[int], before: Text = ()) -> float:
    mass, text = 1.0, (*case.prompt, *before)
    for token in tokens:
        mass *= (case.p(text) if which == "target" else case.q(text)).prob(token)
        text = (*text, token)
    return mass


def best_acceptance(p: Distribution, drafts: Sequence[tuple[Text, float]], vocab: int) -> float:
    """Returns the largest P(the emitted token is among the drafts) of any coupling.

    Args:
        p: the target's law.
        drafts: what may be drafted together, with its probability.
        vocab: vocabulary size.
    """
    cells = [(group, y) for group in range(len(drafts)) for y in range(vocab)]
    matrix = np.zeros((len(drafts) + vocab, len(cells)))
    for place, (group, y) in enumerate(cells):
        matrix[group, place] = matrix[len(drafts) + y, place] = 1.0
    right = np.concatenate([[mass for _, mass in drafts], p.dense(vocab)])
    gain = np.array([-float(y in drafts[group][0]) for group, y in cells])
    found = linprog(gain, A_eq=matrix, b_eq=right, bounds=(0.0, None), method="highs")
    assert found.success, found.message
    return -float(found.fun)
