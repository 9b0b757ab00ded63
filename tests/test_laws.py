"""The enumeration machinery itself: it must be right before anything is proven with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from draftproof.distribution import Distribution
from draftproof.noise import Lane
from draftproof.rules import CoupledRule, TokenRule
from tests.laws import (
    EXACT,
    BranchingNoise,
    Iteration,
    Races,
    emitted_law,
    enumerate_law,
    exact_rules,
    expected_length,
    g_test,
    losslessness_error,
    mean_length,
    of_rule,
    races,
    rule_error,
)
from tests.mutants import ResidualIsP
from tests.strategies import WORKED, grid


def test_a_comparison_splits_a_coin_at_its_threshold() -> None:
    law = enumerate_law(lambda noise: noise.uniform(0, 0, Lane.ACCEPT) * 0.5 < 0.2)
    assert law == {True: pytest.approx(0.4, abs=1e-15), False: pytest.approx(0.6, abs=1e-15)}


def test_all_ways_to_compare_agree() -> None:
    def run(noise: BranchingNoise) -> tuple[bool, ...]:
        u = noise.coin("u")
        t: Any = np.float64(0.3)
        found = [u < t, u <= t, t > u, t >= u, not u > t, not u >= t, u / 2.0 < 0.15, 2.0 * u < 0.6, np.array(t) > u]
        return tuple(bool(each) for each in found)

    law = enumerate_law(run)
    assert law == {(True,) * 9: pytest.approx(0.3), (False,) * 9: pytest.approx(0.7)}


def test_a_coin_compares_with_an_array_place_by_place() -> None:
    law = enumerate_law(lambda noise: tuple((np.array([0.25, 0.75]) > noise.coin("u")).tolist()))
    assert law == {(True, True): 0.25, (False, True): 0.5, (False, False): 0.25}


def test_a_coin_times_zero_is_zero() -> None:
    assert enumerate_law(lambda noise: (noise.coin("u") * 0.0 < 0.1, noise.coin("u") * 0.0 < 0.0)) == {
        (True, False): 1.0
    }


def test_the_same_key_is_the_same_coin() -> None:
    def same(noise: BranchingNoise) -> tuple[bool, bool]:
        return noise.uniform(0, 0, Lane.ACCEPT) < 0.5, noise.uniform(0, 0, Lane.ACCEPT) < 0.25

    def different(noise: BranchingNoise) -> tuple[bool, bool]:
        return noise.uniform(0, 0, Lane.ACCEPT) < 0.5, noise.uniform(0, 1, Lane.ACCEPT) < 0.25

    assert enumerate_law(same) == {(True, True): 0.25, (True, False): 0.25, (False, False): 0.5}
    assert enumerate_law(different) == {
        (True, True): 0.125,
        (True, False): 0.375,
        (False, True): 0.125,
        (False, False): 0.375,
    }


def test_the_inverse_cdf_itself_is_enumerated() -> None:
    law = enumerate_law(lambda noise: Distribution(np.array([0.2, 0.0, 0.5, 0.3])).sample(noise.coin("u")))
    assert law == {0: pytest.approx(0.2, abs=1e-15), 2: pytest.approx(0.5, abs=1e-15), 3: pytest.approx(0.3, abs=1e-15)}


@pytest.mark.parametrize(
    "misuse",
    [
        lambda u: u + 0.1,
        lambda u: 1.0 - u,
        lambda u: -u,
        lambda u: float(u),
        lambda u: int(u),
        lambda u: bool(u),
        lambda u: u == 0.5,
        lambda u: u * -1.0,
        lambda u: u < u,
        lambda u: u < "a",
        lambda u: np.less(u, 0.5),
        lambda u: np.sort(u),
    ],
)
def test_a_coin_refuses_what_it_cannot_follow(misuse: Callable[[object], object]) -> None:
    with pytest.raises(TypeError):
        enumerate_law(lambda noise: misuse(noise.coin("u")))


def test_exponentials_are_not_enumerated() -> None:
    with pytest.raises(Races):
        emitted_law(of_rule(CoupledRule()), WORKED)
    assert races(CoupledRule())
    assert not races(TokenRule())


def test_too_many_branches_are_refused() -> None:
    with pytest.raises(RuntimeError, match="smaller vocabulary"):
        enumerate_law(lambda noise: sum(noise.coin(place) < 0.5 for place in range(25)), most=100)


def test_the_rules_are_found_by_walking() -> None:
    assert TokenRule in exact_rules()
    assert CoupledRule in exact_rules()
    assert ResidualIsP not in exact_rules()


def test_the_error_of_a_wrong_rule_is_its_distance_from_p() -> None:
    # Residual = p: the law is min(p, q) + (1 - a) p instead of p.
    p, q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.6, 0.2, 0.1, 0.1])
    by_hand = np.minimum(p, q) + 0.15 * p
    law = emitted_law(of_rule(ResidualIsP()), WORKED)
    first = [sum(mass for text, mass in law.items() if text[0] == token) for token in range(4)]
    np.testing.assert_allclose(first, by_hand, atol=1e-15)
    assert losslessness_error(law, WORKED, 1) == pytest.approx(np.abs(by_hand - p).max(), abs=1e-15)


def test_plain_decoding_has_no_error_and_a_wrong_text_has() -> None:
    plain = WORKED.of_length(0)
    assert rule_error(of_rule(TokenRule()), plain) < EXACT
    always_first: type[Iteration] = type("AlwaysFirst", (Iteration,), {"__call__": lambda *_: (0,)})
    assert rule_error(lambda: always_first(TokenRule()), plain) == pytest.approx(0.5)


def test_expected_length_of_the_worked_example() -> None:
    assert expected_length(WORKED) == pytest.approx(1.85, abs=1e-15)
    assert mean_length({(1,): 0.25, (1, 2): 0.75}) == 1.75


def test_the_grid_has_what_it_promises() -> None:
    names = {case.name for case in grid(3, 2)}
    assert {"equal", "rounded", "zeros", "tiny", "disjoint", "draft-one-hot", "clamped", "far-deterministic"} <= names
    for case in grid(4, 2):
        for text in [(0,), (0, 1), (0, 2, 3)]:
            np.testing.assert_allclose([sum(case.target(text)), sum(case.draft(text))], 1.0, atol=1e-12)
    far = next(case for case in grid(3, 2) if case.name == "far")
    assert far.target((0, 1)) != far.target((0, 2)), "laws must depend on the context"


def test_g_test() -> None:
    law = np.array([0.5, 0.5, 0.0])
    assert g_test(np.array([500, 500, 0]), law) == 1.0
    assert g_test(np.array([600, 400, 0]), law) < 1e-9
    assert g_test(np.array([500, 499, 1]), law) == 0.0
