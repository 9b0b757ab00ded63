"""The coupled rule: plain decoding's own text, a race that samples the law, and how often a draft agrees."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import binom

from draftproof.distribution import Distribution
from draftproof.models import ToyModel
from draftproof.noise import CounterNoise, Lane, Noise, ScriptedNoise
from draftproof.rules import CoupledRule, verify_coupled
from draftproof.rules.coupled import race
from draftproof.sampling import Sampler
from draftproof.types import Draft, Verdict, as_tokens
from tests.laws import g_test
from tests.rules.agreement import DRAWS, P, Q, agreement_p_value, match_probability
from tests.strategies import distributions

SAMPLERS = [
    Sampler(),
    Sampler(temperature=0.7, top_p=0.8),
    Sampler(top_k=3),
    Sampler(min_p=0.2, repetition_penalty=1.3),
    Sampler(presence_penalty=0.8, frequency_penalty=0.4),
    Sampler(temperature=0.0),
]


def _text(model: ToyModel, sampler: Sampler, noise: Noise, propose: Callable[[list[int]], Draft]) -> list[int]:
    bound = sampler.bind(2, (), model.vocab_size)
    text = [0, 1]
    while len(text) < 16:
        draft = propose(text)
        tokens = draft.tokens.tolist()
        rows = [model.table(as_tokens([*text, *tokens[:i]])) for i in range(len(tokens) + 1)]
        verdict = verify_coupled(bound.laws(as_tokens(text), draft.tokens, rows), draft, noise, len(text))
        text += [*tokens[: verdict.accepted], verdict.token]
    return text[:16]


class _Drafters:
    """Ways to propose k tokens: as the rule draws them, at random, and one token for ever."""

    def __init__(self, model: ToyModel, sampler: Sampler, noise: Noise, k: int) -> None:
        self._model, self._law, self._noise, self._k = model, sampler.bind(2, (), model.vocab_size).law, noise, k
        self._random = np.random.default_rng(k)

    def coupled(self, text: list[int]) -> Draft:
        tokens: list[int] = []
        laws: list[Distribution] = []
        for offset in range(self._k):
            context = as_tokens([*text, *tokens])
            laws.append(self._law(context, self._model.table(context)))
            tokens.append(CoupledRule().draw(laws[-1], self._noise, len(text), offset))
        return Draft(as_tokens(tokens), laws)

    def guess(self, text: list[int]) -> Draft:
        return Draft(as_tokens(self._random.integers(0, 7, self._random.integers(0, self._k + 1))))

    def stuck(self, text: list[int]) -> Draft:
        return Draft(as_tokens([text[-1]] * self._k))


@pytest.mark.parametrize("sampler", SAMPLERS, ids=range(len(SAMPLERS)))
@pytest.mark.parametrize("k", [1, 2, 5])
def test_text_is_plain_decodings_own_for_any_draft(sampler: Sampler, k: int) -> None:
    for seed in range(6):
        target, noise = ToyModel.random(7, seed=seed), CounterNoise((seed, k))
        drafters = _Drafters(ToyModel.random(7, seed=seed, mix=0.3), sampler, noise, k)
        plain = _text(target, sampler, noise, lambda text: Draft(as_tokens([])))
        for propose in (drafters.coupled, drafters.guess, drafters.stuck):
            assert _text(target, sampler, noise, propose) == plain


def test_worked_example() -> None:
    # E = (1, .2, 2): E/p = (2, .667, 13.3) -> 1 and E/q = (1.67, 1, 20) -> 1: the draft is kept.
    p, q = Distribution(np.array([0.5, 0.3, 0.15, 0.05])), Distribution(np.array([0.6, 0.2, 0.1, 0.1]))
    noise = ScriptedNoise(exponentials={4: np.array([1.0, 0.2, 2.0, 9.0]), 5: np.array([0.1, 5.0, 5.0, 5.0])})
    assert CoupledRule().draw(q, noise, 3, 1) == 1
    assert verify_coupled([p, p], Draft(as_tokens([1]), [q]), noise, 4) == Verdict(1, 0)
    assert verify_coupled([p, p], Draft(as_tokens([2]), [q]), noise, 4) == Verdict(0, 1)


def test_one_hot_laws_need_no_noise() -> None:
    rows = [Distribution.one_hot(token) for token in (3, 1, 4)]
    assert verify_coupled(rows, Draft(as_tokens([3, 1])), ScriptedNoise(), 0) == Verdict(2, 4)
    assert verify_coupled(rows, Draft(as_tokens([3, 2])), ScriptedNoise(), 0) == Verdict(1, 1)


@given(distributions(), st.integers(0, 1000))
def test_the_winner_has_positive_probability(p: Distribution, seed: int) -> None:
    assert p.prob(race(p, CounterNoise(seed), 0)) > 0.0


def _largest_winning(p: Distribution, winner: int, time: float, other: int) -> float:
    """Returns the time of `other` above which `winner`, at `time`, beats it; by bisection on the race itself."""
    times = np.full(len(p), 1e300)
    times[winner] = time
    low, high = 0.0, 1e6
    for _ in range(200):
        times[other] = (low + high) / 2
        low, high = (low, times[other]) if p.race(times) == winner else (times[other], high)
    return high


@pytest.mark.parametrize("probs", [(0.5, 0.5), (0.9, 0.1), (0.2, 0.3, 0.5), (0.001, 0.999), (0.1, 0.6, 0.3, 0.0)])
def test_the_race_samples_the_law_by_integration(probs: tuple[float, ...]) -> None:
    # P(x wins) = integral of e^-t * prod_y P(E_y > t_y(t)), with t_y read off the race, not off the formula.
    p = Distribution(np.array(probs))
    for x in np.flatnonzero(p.probs).tolist():
        ratios = [_largest_winning(p, x, 1.0, y) for y in range(len(p)) if y != x and p.probs[y] > 0]
        for y, ratio in zip([y for y in range(len(p)) if y != x and p.probs[y] > 0], ratios, strict=True):
            assert _largest_winning(p, x, 3.0, y) == pytest.approx(3.0 * ratio, rel=1e-9)
        chance = quad(lambda t, ratios=ratios: math.exp(-t * (1.0 + sum(ratios))), 0.0, np.inf)[0]
        assert chance == pytest.approx(p.prob(x), rel=1e-7)


def test_winning_against_all_is_winning_against_each() -> None:
    # What the integral above takes for granted.
    rng = np.random.default_rng(0)
    for _ in range(300):
        p = Distribution(rng.dirichlet([0.5] * 4))
        times = rng.exponential(size=4)
        winner = p.race(times)
        for other in range(4):
            pair = np.where(np.isin(np.arange(4), [winner, other]), times, 1e300)
            assert p.race(pair) == winner


def test_the_race_samples_the_law_with_the_real_noise() -> None:
    # A law off by 10 % in one of these cells (.3 for .27) is rejected with power above .999.
    p = Distribution(np.array([0.4, 0.3, 0.2, 0.1]), np.array([3, 50, 700, 50_000]))
    noise, ids = CounterNoise(11), p.support()
    counts = np.zeros(4, dtype=np.int64)
    for position in range(12_000):
        counts[np.searchsorted(ids, race(p, noise, position))] += 1
    assert g_test(counts, p.probs) > 1e-6
    assert g_test(counts, np.array([0.43, 0.27, 0.2, 0.1])) < 1e-6


def test_draft_and_target_agree_as_often_as_the_formula_says() -> None:
    assert agreement_p_value(CoupledRule()) > 1e-6
    # Power against independent draws, which agree with probability sum p q: they would have to reach the band.
    chance, independent = match_probability(P.dense(5), Q.dense(5)), float(P.dense(5) @ Q.dense(5))
    assert binom.sf(binom.ppf(1e-7, DRAWS, chance), DRAWS, independent) < 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_the_formula_lies_between_its_bounds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet([0.5] * 5), rng.dirichlet([0.5] * 5)
    distance = 0.5 * float(np.abs(p - q).sum())
    assert (1 - distance) / (1 + distance) - 1e-12 <= match_probability(p, q) <= 1 - distance + 1e-12


def test_a_lookup_is_accepted_as_often_as_the_target_says_it() -> None:
    p, noise = Distribution(np.array([0.35, 0.65])), CounterNoise(3)
    accepted = sum(verify_coupled([p, p], Draft(as_tokens([0])), noise, start).accepted for start in range(4_000))
    # The exact interval of the binomial at 1e-6; accepting with p^2 = .12 or with certainty is far outside.
    assert binom.ppf(5e-7, 4_000, 0.35) <= accepted <= binom.isf(5e-7, 4_000, 0.35)


def test_uniforms_are_never_read() -> None:
    class Only:
        def uniform(self, start: int, offset: int, lane: Lane) -> float:
            raise AssertionError("the coupled rule read a uniform")

        def exponentials(self, position: int, ids: np.ndarray) -> np.ndarray:
            return np.ones(len(ids))

    p = Distribution(np.array([0.2, 0.8]))
    assert verify_coupled([p, p, p], Draft(as_tokens([1, 0])), Only(), 0) == Verdict(1, 1)
