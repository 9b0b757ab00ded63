"""Bets: that none can be won against an exact engine, by enumeration; that each bug loses and is named."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftproof.audit.martingale import BUG_LAWS, EDGE, Evidence, Place
from draftproof.sampling import Sampler

VOCAB = 12
ABSOLUTE = "the residual is |p - q|"


def a_place(seed: int, *, drafted: bool = True, one_hot: bool = False, vocab: int = VOCAB) -> Place:
    rng = np.random.default_rng(seed)
    p, other, raw, before, plain, fewer, more = rng.dirichlet([0.7] * vocab, size=7)
    q = np.eye(vocab)[int(rng.integers(vocab))] if one_hot else 0.5 * p + 0.5 * other
    return Place(
        p=p,
        q=q if drafted else None,
        raw=0.5 * q + 0.5 * raw if drafted else None,
        before=before,
        unprocessed=plain,
        again=Sampler(temperature=0.5),
        uncounted=fewer,
        twice=more,
    )


def fair(place: Place, evidence: Evidence) -> dict[tuple[str, float], float]:
    """Returns the mean factor of every bet under the target's law, by enumeration of the token."""
    mean: dict[tuple[str, float], float] = {}
    for at, chance in enumerate(place.p.tolist()):
        seen = Evidence(evidence.allowance)
        seen.see(place, at)
        for bet, gain in seen.wealth.items():
            mean[bet] = mean.get(bet, 0.0) + chance * math.exp(gain)
    return mean


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("drafted", "one_hot"), [(True, False), (True, True), (False, False)])
def test_no_bet_gains_on_average_under_the_targets_law(seed: int, drafted: bool, one_hot: bool) -> None:
    place = a_place(seed, drafted=drafted, one_hot=one_hot)
    means = fair(place, Evidence())
    assert all(mean == pytest.approx(1.0, abs=1e-12) for mean in means.values())
    assert len(means) >= 24
    allowed = fair(place, Evidence(0.01))
    assert all(mean == pytest.approx(1 / 1.01, abs=1e-12) for mean in allowed.values())


def test_ties_and_parts_of_laws_are_fair_too() -> None:
    p = np.array([0.25, 0.25, 0.25, 0.25])
    for q in (np.array([0.3, 0.0, 0.1, 0.0]), np.zeros(4), p):
        means = fair(Place(p=p, q=q), Evidence())
        assert all(mean == pytest.approx(1.0, abs=1e-12) for mean in means.values())


def test_the_e_value_is_the_mean_wealth_and_starts_at_one() -> None:
    evidence = Evidence()
    assert evidence.log_e == pytest.approx(0.0, abs=1e-12)
    place = a_place(0)
    mean = 0.0
    for at, chance in enumerate(place.p.tolist()):
        seen = Evidence()
        seen.see(place, at)
        mean += chance * math.exp(seen.log_e)
    assert mean == pytest.approx(1.0, abs=1e-12)


def test_an_edge_bet_only_wins_where_the_edge_comes_too_often() -> None:
    rare, often = Evidence(), Evidence()
    for i in range(400):
        rare.see_edge(i % 100 == 0, 0.01)
        often.see_edge(i % 4 == 0, 0.01)
    assert rare.log_e < 0.5
    assert often.log_e > 5.0
    assert {bet for bet, _ in often.wealth} == {EDGE}
    no_edge = Evidence()
    no_edge.see_edge(False, 0.0)
    assert not no_edge.wealth


def told(
    seed: int, law: str | None, tokens: int, share: float = 1.0, bar: float = math.inf, named: int = 0
) -> Evidence:
    """Returns the evidence of tokens drawn from a bug's law (None: the target's) at ten kinds of place.

    Args:
        seed: of the tokens.
        law: the bug's name.
        tokens: how many, at most.
        share: how often it acts.
        bar: log e at which no more is bet.
        named: how many to look at for the name then, counted from the first.
    """
    rng = np.random.default_rng(seed)
    places = [a_place(100 + i) for i in range(10)]
    evidence = Evidence()
    for i in range(tokens):
        place = places[i % 10]
        real = place.p
        for bug in BUG_LAWS:
            if bug.name == law:
                weights = bug.law(place)
                assert weights is not None
                real = share * weights / weights.sum() + (1 - share) * place.p
        evidence.see(place, int(rng.choice(VOCAB, p=real / real.sum())), measure=law is None)
        evidence.closed = evidence.log_e >= bar
        if evidence.closed and i + 1 >= named:
            break
    return evidence


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("bug", BUG_LAWS, ids=lambda each: each.name)
def test_each_bug_is_found_and_named(bug: object) -> None:
    name, family = bug.name, bug.family  # type: ignore[attr-defined]
    evidence = told(1, name, 20_000, bar=math.log(100.0), named=1500 if name == ABSOLUTE else 300)
    assert evidence.log_e >= math.log(100.0)
    likeliest = evidence.likeliest()
    assert likeliest is not None
    # min(p, q) + |p - q| / 2 = (p + q) / 2, which is also what half an unchecked draft gives, and takes longer.
    assert likeliest.family == family or (name, likeliest.family) == (ABSOLUTE, "acceptance")


@pytest.mark.usefixtures("unchecked")
def test_power_is_what_simulations_find() -> None:
    promised = told(0, None, 600).power(1e-3)
    for name in ("the residual is p itself", "accepts 1.2 times too often"):
        found = np.mean([told(seed, name, 600, 0.7, math.log(1e3)).tokens < 600 for seed in range(4)])
        assert abs(found - promised[name]) < 0.6
    assert promised["draft tokens are not checked"] > 0.99


def test_the_telling_places_are_those_of_largest_gain() -> None:
    evidence = told(2, "draft tokens are not checked", 50)
    places = evidence.telling("draft tokens are not checked", 3)
    assert len(places) == 3
    assert places[0][1] >= places[1][1] >= places[2][1] > 1.0
    assert all(0 <= number < 50 for number, _ in places)


@pytest.mark.parametrize("seed", range(4))
def test_a_token_that_is_not_told_costs_every_bet_at_least_what_it_could(seed: int) -> None:
    place = a_place(seed)
    unknown = Evidence()
    unknown.see(place, 0)
    unknown.see_edge(False, 0.3)
    start = dict(unknown.wealth)
    unknown.see_unknown()
    for at in range(VOCAB):
        known = Evidence()
        known.see(place, at)
        known.see_edge(False, 0.3)
        for bet, gain in known.wealth.items():
            assert unknown.wealth[bet] - start[bet] <= gain + 1e-12
