"""The G-test: against scipy's, its size and its power by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, power_divergence

from draftproof.goodness import g_test, power

LAW = np.array([0.5, 0.3, 0.15, 0.05])


def test_it_is_scipys_where_all_cells_are_large() -> None:
    counts = np.array([520.0, 280.0, 160.0, 40.0])
    test = g_test(LAW, counts)
    expected = power_divergence(counts, LAW * 1000, lambda_="log-likelihood")
    assert test.g == pytest.approx(expected.statistic)
    assert test.p_value == pytest.approx(expected.pvalue)
    assert test.degrees_of_freedom == 3


def test_small_cells_are_taken_together() -> None:
    law = np.array([0.7, 0.298, 0.001, 0.001])
    assert g_test(law, np.array([700.0, 298.0, 1.0, 1.0])).degrees_of_freedom == 1
    assert g_test(law, np.array([7000.0, 2980.0, 10.0, 10.0])).degrees_of_freedom == 3
    assert g_test(law, np.array([70.0, 30.0, 0.0, 0.0]), least=1000.0).p_value == 1.0


def test_what_cannot_happen_did() -> None:
    test = g_test(np.array([0.5, 0.5, 0.0]), np.array([50.0, 49.0, 1.0]))
    assert test.g == math.inf
    assert test.p_value == 0.0


def test_power_is_the_share_of_rejections() -> None:
    other, draws, alpha, runs = np.array([0.47, 0.32, 0.16, 0.05]), 2000, 1e-2, 2000
    rng = np.random.default_rng(0)
    counts = rng.multinomial(draws, other, size=runs)
    rejected = sum(g_test(LAW, row.astype(float)).p_value < alpha for row in counts)
    promised = power(LAW, other, draws, alpha)
    # False alarm 1e-6 around what is promised, if it is right to 0.03.
    low, high = binom.ppf(5e-7, runs, promised - 0.03), binom.ppf(1 - 5e-7, runs, promised + 0.03)
    assert low <= rejected <= high
    assert 0.3 < promised < 0.9


def test_power_of_the_law_itself_is_its_level_and_of_the_impossible_is_nearly_one() -> None:
    assert power(LAW, LAW, 1000, 0.01) == pytest.approx(0.01)
    assert power(np.array([1.0, 0.0]), np.array([0.99, 0.01]), 1000, 1e-4) == pytest.approx(1 - 0.99**1000)
    assert power(np.array([1.0, 0.0]), np.array([0.0, 1.0]), 10, 1e-4) == 1.0
