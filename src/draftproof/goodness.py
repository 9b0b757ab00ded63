"""Whether counts fit a law: the G-test, and how likely it is to find another law."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True)
class GTest:
    """How counts differ from what a law leads to expect.

    Attributes:
        g: 2 sum O log(O/E) over the cells; infinite if something impossible was counted.
        degrees_of_freedom: cells less one.
        p_value: P(a g at least this large) if the law is right, by the chi-square limit.
    """

    g: float
    degrees_of_freedom: int
    p_value: float


def g_test(law: Float[np.ndarray, "outcomes"], counts: Float[np.ndarray, "outcomes"], least: float = 5.0) -> GTest:
    """Returns the G-test of counts against a law.

    Args:
        law: probabilities of the outcomes, with sum 1.
        counts: how often each was seen.
        least: outcomes that expect fewer than this are taken together.
    """
    from scipy.stats import chi2  # takes longer to import than most commands run

    draws = float(counts.sum())
    if bool(counts[law == 0.0].any()):
        return GTest(math.inf, 0, 0.0)
    cells = _cells(law, draws, least)
    expected, seen = np.bincount(cells, law) * draws, np.bincount(cells, counts)
    found = seen > 0.0
    g = max(2.0 * float((seen[found] * np.log(seen[found] / expected[found])).sum()), 0.0)
    degrees = len(expected) - 1
    return GTest(g, degrees, float(chi2.sf(g, degrees)) if degrees else 1.0)


def power(
    law: Float[np.ndarray, "outcomes"],
    other: Float[np.ndarray, "outcomes"],
    draws: float,
    alpha: float,
    least: float = 5.0,
) -> float:
    """Returns P(the G-test at level `alpha` rejects `law`) if outcomes have the law `other`.

    Args:
        law: probabilities of the outcomes.
        other: what they really are.
        draws: how many outcomes are counted.
        alpha: P(rejected) if the law is right.
        least: as for `g_test`.
    """
    from scipy.stats import chi2, ncx2

    impossible = float(other[law == 0.0].sum())
    sure = -math.expm1(draws * math.log1p(-impossible)) if impossible < 1.0 else 1.0
    cells = _cells(law, draws, least)
    expected, real = np.bincount(cells, law), np.bincount(cells, other)
    degrees = len(expected) - 1
    if degrees == 0:
        return sure
    # The smaller of the two usual measures of distance, so that power is not promised beyond what is there.
    there = real > 0.0
    noncentral = draws * min(
        float(((real - expected) ** 2 / expected).sum()),
        2.0 * float((real[there] * np.log(real[there] / expected[there])).sum()) if impossible == 0.0 else math.inf,
    )
    if noncentral <= 0.0:
        return max(sure, alpha)
    return max(sure, min(1.0, float(ncx2.sf(chi2.isf(alpha, degrees), degrees, noncentral))))


def _cells(law: Float[np.ndarray, "outcomes"], draws: float, least: float) -> Int[np.ndarray, "outcomes"]:
    """Returns which cell each outcome belongs to."""
    own = draws * law >= least
    count = int(own.sum())
    rest = count if count == 0 or draws * float(law[~own].sum()) >= least else 0
    return np.where(own, np.cumsum(own) - 1, rest)
