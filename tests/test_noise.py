"""Coins: uniform, independent by key, stateless, and never one that breaks a race."""

from __future__ import annotations

import inspect
import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Int
from scipy.stats import kstest, pearsonr

from draftproof.errors import UsageError
from draftproof.noise import CounterNoise, Lane, Noise, ScriptedNoise
from tests.laws import g_test

FALSE_ALARM = 1e-6


def _uniforms(noise: CounterNoise, lane: Lane = Lane.ACCEPT, count: int = 20_000) -> np.ndarray:
    return np.array([noise.uniform(start, 0, lane) for start in range(count)])


def test_uniforms_are_uniform() -> None:
    # Power: a lane that never exceeds .98, or any distribution function off by .02, is rejected surely.
    values = _uniforms(CounterNoise(1))
    assert 0.0 <= values.min() < 0.001
    assert 0.999 < values.max() < 1.0
    assert kstest(values, "uniform").pvalue > FALSE_ALARM
    assert kstest(values * 0.98, "uniform").pvalue < FALSE_ALARM
    last_bits = (values * 2.0**53).astype(np.int64) % 16
    assert g_test(np.bincount(last_bits, minlength=16), np.full(16, 1 / 16)) > FALSE_ALARM


@pytest.mark.parametrize(
    "other",
    [
        lambda noise, i: noise.uniform(i + 1, 0, Lane.ACCEPT),
        lambda noise, i: noise.uniform(i, 1, Lane.ACCEPT),
        lambda noise, i: noise.uniform(i, 0, Lane.DRAFT),
        lambda noise, i: noise.uniform(i, 0, Lane.FINAL),
        lambda noise, i: CounterNoise(2).uniform(i, 0, Lane.ACCEPT),
        lambda noise, i: math.exp(-noise.exponentials(i, np.array([0]))[0]),
    ],
    ids=["position", "offset", "draft", "final", "seed", "race"],
)
def test_coins_of_different_keys_are_independent(other: object) -> None:
    # 64 cells at 12,000 draws: a correlation of .05 has G near 30 above its mean; sharing a coin has G near 5e4.
    noise, cells = CounterNoise(1), np.zeros((8, 8), dtype=np.int64)
    for i in range(12_000):
        u, v = noise.uniform(i, 0, Lane.ACCEPT), other(noise, i)  # type: ignore[operator]
        cells[int(u * 8), int(v * 8)] += 1
    assert g_test(cells.ravel(), np.full(64, 1 / 64)) > FALSE_ALARM


def test_every_key_has_its_own_coin() -> None:
    noise = CounterNoise(5)
    keys = list(product(range(30), range(20), list(Lane)))
    assert len({noise.uniform(*key) for key in keys}) == len(keys)


def test_a_coin_is_keyed_by_the_block_not_by_the_position() -> None:
    noise = CounterNoise(5)
    assert noise.uniform(3, 2, Lane.ACCEPT) != noise.uniform(4, 1, Lane.ACCEPT)


def test_noise_has_no_state() -> None:
    noise, again = CounterNoise((3, 4)), CounterNoise((3, 4))
    first = noise.uniform(7, 1, Lane.DRAFT), noise.exponentials(9, np.arange(5)).tolist()
    for position in range(50):
        noise.uniform(position, 0, Lane.FINAL)
        noise.exponentials(position, np.arange(3))
    assert (noise.uniform(7, 1, Lane.DRAFT), noise.exponentials(9, np.arange(5)).tolist()) == first
    assert (again.uniform(7, 1, Lane.DRAFT), again.exponentials(9, np.arange(5)).tolist()) == first


def test_asking_leaves_the_ids_as_they_were() -> None:
    for dtype in (np.int64, np.int32):
        ids = np.array([4, 9, 2], dtype=dtype)
        CounterNoise(0).exponentials(0, ids)
        assert ids.tolist() == [4, 9, 2]


@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=30, unique=True), st.integers(0, 2**40))
def test_an_exponential_belongs_to_its_id_whichever_others_are_asked_for(ids: list[int], position: int) -> None:
    noise = CounterNoise(8)
    together = noise.exponentials(position, np.array(ids, dtype=np.int64))
    assert together.tolist() == [noise.exponentials(position, np.array([token]))[0] for token in ids]
    assert noise.exponentials(position, np.array(ids, dtype=np.int32)).tolist() == together.tolist()


def test_a_prefix_of_the_vocabulary_has_the_same_exponentials() -> None:
    noise = CounterNoise(8)
    whole = noise.exponentials(3, np.arange(50_257))
    assert noise.exponentials(3, np.arange(100)).tolist() == whole[:100].tolist()


def test_exponentials_are_exponential_over_ids_and_over_positions() -> None:
    noise = CounterNoise(9)
    over_ids = noise.exponentials(0, np.arange(200_000))
    over_positions = np.array([noise.exponentials(position, np.array([17]))[0] for position in range(10_000)])
    for values in (over_ids, over_positions):
        assert (values > 0.0).all()
        assert np.isfinite(values).all()
        assert kstest(values, "expon").pvalue > FALSE_ALARM
        assert kstest(values * 1.1, "expon").pvalue < FALSE_ALARM, "the test has power"


def test_exponentials_of_neighbours_are_independent() -> None:
    # At 150,000 pairs, |r| > .0127 is 1e-6; one bit shared by neighbours makes r far larger.
    noise = CounterNoise(9)
    values = np.exp(-noise.exponentials(0, np.arange(150_001)))
    other = np.exp(-noise.exponentials(1, np.arange(150_001)))
    for first, second in [(values[:-1], values[1:]), (values, other), (values[:-1], other[1:])]:
        assert pearsonr(first, second).pvalue > FALSE_ALARM
        cells = np.histogram2d(first, second, bins=8, range=[[0, 1], [0, 1]])[0].astype(np.int64)
        assert g_test(cells.ravel(), np.full(64, 1 / 64)) > FALSE_ALARM


class _Stuck(CounterNoise):
    """Noise whose raw bits are what the test says."""

    def __init__(self, raw: int) -> None:
        super().__init__(0)
        self.raw = raw

    def _bits(self, start: int, offset: int, lane: Lane) -> int:
        return self.raw


def _unmixed(target: int) -> int:
    """Returns the stream for which SplitMix64 gives id 0 the 64-bit output `target`, by inverting its steps."""
    mask = 2**64 - 1

    def unshift(value: int, shift: int) -> int:
        result = value
        for _ in range(64 // shift + 1):
            result = value ^ (result >> shift)
        return result

    z = unshift(target, 31)
    z = z * pow(0x94D049BB133111EB, -1, 2**64) & mask
    z = unshift(z, 27)
    z = z * pow(0xBF58476D1CE4E5B9, -1, 2**64) & mask
    return (unshift(z, 30) - 0x9E3779B97F4A7C15) & mask


@pytest.mark.parametrize("raw", [0, 1, 2**11 - 1, 2**63, 2**64 - 1])
def test_extreme_bits_keep_a_uniform_below_one(raw: int) -> None:
    assert 0.0 <= _Stuck(raw).uniform(0, 0, Lane.ACCEPT) <= 1 - 2.0**-53


@pytest.mark.parametrize(
    ("output", "expected"),
    [(0, -math.log(2.0**-53)), (2**64 - 1, 2.0**-53), (2**12 - 1, -math.log(2.0**-53)), (2**63, math.log(2.0))],
)
def test_extreme_bits_keep_an_exponential_positive_and_finite(output: int, expected: float) -> None:
    value = _Stuck(_unmixed(output)).exponentials(0, np.array([0]))[0]
    assert value == pytest.approx(expected, rel=1e-9)
    assert 0.0 < value < 37.0


@pytest.mark.parametrize("seed", [0, -1, 2**200, (1, 2), (0,), ()])
def test_any_integer_or_tuple_of_them_is_a_seed(seed: int | tuple[int, ...]) -> None:
    noise = CounterNoise(seed)
    assert noise.seed == seed
    assert 0.0 <= noise.uniform(0, 0, Lane.DRAFT) < 1.0


def test_different_seeds_differ() -> None:
    seeds: list[int | tuple[int, ...]] = [0, 1, -1, (0, 1), (1, 0), (1, 1), (11,), (1, 1, 1), 2**64, 2**128]
    assert len({CounterNoise(seed).uniform(0, 0, Lane.DRAFT) for seed in seeds}) == len(seeds)


def test_without_a_seed_noise_is_fresh_and_can_be_replayed() -> None:
    first, second = CounterNoise(), CounterNoise()
    assert first.seed != second.seed
    assert CounterNoise(first.seed).uniform(0, 0, Lane.DRAFT) == first.uniform(0, 0, Lane.DRAFT)
    assert isinstance(first, Noise)


def test_scripted_noise_gives_what_it_was_told_and_nothing_else() -> None:
    noise = ScriptedNoise({(1, 0, Lane.FINAL): 0.25}, {4: np.array([0.5, 1.5, 2.5])})
    assert noise.uniform(1, 0, Lane.FINAL) == 0.25
    assert noise.exponentials(4, np.array([2, 0])).tolist() == [2.5, 0.5]
    with pytest.raises(UsageError, match="start=1, offset=0, lane=ACCEPT"):
        noise.uniform(1, 0, Lane.ACCEPT)
    with pytest.raises(UsageError, match="position 5"):
        noise.exponentials(5, np.array([0]))


def test_a_seed_that_is_no_integer_is_refused() -> None:
    # Unwrapped: with run-time type checks on, those object first.
    make = inspect.unwrap(CounterNoise.__init__)
    for seed in ("7", 1.5, (1, "2")):
        with pytest.raises(UsageError, match="is not an integer or a tuple of integers"):
            make(object.__new__(CounterNoise), seed)


def test_protocol_is_what_a_test_double_needs() -> None:
    class Mine:
        def uniform(self, start: int, offset: int, lane: Lane) -> float:
            return 0.5

        def exponentials(self, position: int, ids: Int[np.ndarray, "n"]) -> np.ndarray:
            return np.ones(len(ids))

    assert isinstance(Mine(), Noise)
    assert not isinstance(object(), Noise)
