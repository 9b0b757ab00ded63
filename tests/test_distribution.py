"""Laws: what they refuse, what they compute, and that no coin draws a token of probability 0."""

from __future__ import annotations

import inspect
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.distribution import Distribution
from draftproof.errors import UsageError
from tests.laws import EXACT, enumerate_law
from tests.strategies import EDGE_UNIFORMS, LARGEST_UNIFORM, distributions, uniforms, weights

VOCAB = 6


@pytest.mark.parametrize(
    "probs",
    [[], [0.0], [0.0, 0.0], [0.5, -0.1], [np.nan, 1.0], [1.0, np.inf], [-np.inf, 1.0], [-1.0, -1.0], [np.nan, np.nan]],
)
def test_what_is_no_law_is_refused(probs: list[float]) -> None:
    with pytest.raises(UsageError, match="are not a law; give finite, non-negative weights"):
        Distribution(np.array(probs, dtype=np.float64))


@pytest.mark.parametrize("ids", [[2, 1], [1, 1], [1], [1, 2, 3]])
def test_ids_must_be_sorted_distinct_and_as_many_as_probs(ids: list[int]) -> None:
    # Unwrapped: with run-time shape checks on, those object to a wrong length first.
    with pytest.raises(UsageError, match="must be sorted, distinct"):
        inspect.unwrap(Distribution.__init__)(object.__new__(Distribution), np.array([0.5, 0.5]), np.array(ids))


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1.0, 3.0, 1e9, 1e300])
def test_weights_are_divided_by_their_sum(scale: float) -> None:
    np.testing.assert_allclose(Distribution(np.array([1.0, 2.0, 5.0]) * scale).probs, [0.125, 0.25, 0.625], rtol=1e-15)


def test_a_law_does_not_change_when_the_callers_buffer_does() -> None:
    buffer = np.array([0.5, 0.25, 0.25])
    law = Distribution(buffer)
    buffer[:] = [0.0, 0.0, 1.0]
    assert law.probs.tolist() == [0.5, 0.25, 0.25]


def test_one_hot() -> None:
    law = Distribution.one_hot(7)
    assert (law.prob(7), law.prob(6), law.prob(8), len(law)) == (1.0, 0.0, 0.0, 1)
    assert law.dense(9).tolist() == [0.0] * 7 + [1.0, 0.0]
    assert {law.sample(u) for u in EDGE_UNIFORMS} == {7}


def test_repr_shows_the_first_ids() -> None:
    assert repr(Distribution(np.array([1.0, 3.0]), np.array([4, 9]))) == "Distribution({4: 0.25, 9: 0.75})"
    assert repr(Distribution(np.ones(10))).endswith("7: 0.1, ...})")


@given(distributions())
def test_probabilities_by_id_agree_with_the_dense_law(p: Distribution) -> None:
    dense = p.dense(VOCAB)
    assert dense.sum() == pytest.approx(1.0, abs=EXACT)
    assert [p.prob(token) for token in range(VOCAB)] == dense.tolist()
    asked = np.array([5, -1, 0, 3, 99, 3])
    assert p.prob_of(asked).tolist() == [p.prob(int(token)) for token in asked]
    assert p.prob(-1) == p.prob(99) == 0.0


@given(distributions(), distributions())
def test_overlap_is_one_minus_total_variation(p: Distribution, q: Distribution) -> None:
    distance = 0.5 * float(np.abs(p.dense(VOCAB) - q.dense(VOCAB)).sum())
    assert p.overlap(q) == pytest.approx(1.0 - distance, abs=EXACT)
    assert p.overlap(q) == pytest.approx(q.overlap(p), abs=EXACT)
    assert p.overlap(p) == pytest.approx(1.0, abs=EXACT)


@given(distributions(), distributions())
def test_residual_supplies_what_acceptance_lacks(p: Distribution, q: Distribution) -> None:
    accepted = np.minimum(p.dense(VOCAB), q.dense(VOCAB))
    output = accepted + (1.0 - accepted.sum()) * p.residual(q).dense(VOCAB)
    np.testing.assert_allclose(output, p.dense(VOCAB), atol=EXACT)


@given(distributions(), distributions(), st.sampled_from([0.1, 0.5, 1.0, 2.0]))
def test_scaled_residual(p: Distribution, q: Distribution, scale: float) -> None:
    expected = np.maximum(scale * p.dense(VOCAB) - q.dense(VOCAB), 0.0)
    if expected.sum() == 0.0:
        assert p.residual(q, scale) is p
    else:
        np.testing.assert_allclose(p.residual(q, scale).dense(VOCAB), expected / expected.sum(), rtol=1e-9, atol=EXACT)


def test_residual_of_equal_laws_is_the_law() -> None:
    p = Distribution(np.array([0.1, 0.2, 0.7]))
    assert p.residual(p) is p
    assert p.residual(Distribution(np.array([0.1, 0.2, 0.7]), np.array([0, 1, 2]))) is p


def test_residual_may_leave_the_dense_form_of_another_length() -> None:
    wide, narrow = Distribution(np.ones(5)), Distribution(np.ones(4))
    assert wide.residual(narrow).dense(5).tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert narrow.residual(wide).dense(4).tolist() == [0.25] * 4


def _exact_inverse_cdf(p: Distribution, u: float) -> tuple[int, Fraction]:
    """Returns the token in exact arithmetic, and how near u is to the nearest step."""
    total = sum(map(Fraction, p.probs.tolist()), Fraction(0))
    target, mass, found = Fraction(u) * total, Fraction(0), -1
    nearest = Fraction(1)
    for token, probability in zip(p.support().tolist(), p.probs.tolist(), strict=True):
        mass += Fraction(probability)
        nearest = min(nearest, abs(mass - target))
        if found < 0 and mass > target:
            found = token
    return found, nearest


@given(distributions(), uniforms())
def test_sample_is_the_inverse_cdf(p: Distribution, u: float) -> None:
    token, nearest = _exact_inverse_cdf(p, u)
    if nearest > Fraction(1, 2**50):
        assert p.sample(u) == token
    assert p.prob(p.sample(u)) > 0.0


@given(weights(5), st.sampled_from(EDGE_UNIFORMS))
def test_no_edge_coin_draws_the_impossible(values: list[float], u: float) -> None:
    law = Distribution(np.array(values))
    assert values[law.sample(u)] > 0.0


@given(distributions(), st.integers(0, 5))
def test_no_coin_at_a_step_draws_the_impossible(p: Distribution, place: int) -> None:
    step = float(np.cumsum(p.probs)[min(place, len(p) - 1)])
    for u in (np.nextafter(step, 0.0), step, np.nextafter(step, 1.0)):
        if 0.0 <= u < 1.0:
            assert p.prob(p.sample(float(u))) > 0.0


@given(distributions(), st.lists(uniforms(), min_size=2, max_size=8).map(sorted))
def test_sample_grows_with_the_coin(p: Distribution, coins: list[float]) -> None:
    drawn = [p.sample(u) for u in coins]
    assert drawn == sorted(drawn)


@given(distributions())
def test_the_law_of_sample_is_the_law(p: Distribution) -> None:
    law = enumerate_law(lambda noise: p.sample(noise.coin("u")))
    for token in range(VOCAB):
        assert law.get(token, 0.0) == pytest.approx(p.prob(token), abs=EXACT)


def test_the_largest_coin_on_a_wide_law() -> None:
    # A hundred thousand roundings: the last cumulative sum is not 1, and zeros follow the last token.
    law = Distribution(np.concatenate([np.full(100_000, 0.1), np.zeros(1000)]))
    assert law.sample(LARGEST_UNIFORM) == 99_999
    assert law.sample(0.0) == 0


def test_a_coin_of_one_which_no_noise_gives_does_no_harm() -> None:
    assert Distribution(np.array([0.5, 0.5, 0.0, 0.0])).sample(1.0) == 1


def test_race_takes_the_smallest_ratio_and_the_lowest_id_on_ties() -> None:
    law = Distribution(np.array([0.5, 0.25, 0.25]), np.array([2, 5, 8]))
    assert law.race(np.array([1.0, 0.4, 0.6])) == 5
    assert law.race(np.array([1.0, 0.5, 0.5])) == 2
    assert law.race(np.array([1.0, 0.3, 0.3])) == 5


@given(distributions(), st.integers(0, 10_000))
def test_no_race_is_won_by_the_impossible(p: Distribution, seed: int) -> None:
    times = np.random.default_rng(seed).exponential(size=len(p)) * 10.0 ** (seed % 600 - 300)
    assert p.prob(p.race(np.maximum(times, 1e-300))) > 0.0
