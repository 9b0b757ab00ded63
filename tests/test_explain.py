"""The account of an acceptance, and the procedure run many times."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.distribution import Distribution
from draftproof.draft.load import load_drafter
from draftproof.errors import UsageError
from draftproof.explain import TokenAccount, explain_laws, laws_after, simulate
from draftproof.models.load import load
from draftproof.rules import TokenRule
from draftproof.sampling import Sampler
from draftproof.types import Draft, as_tokens
from tests.laws import EXACT, enumerate_law
from tests.strategies import WORKED_P, WORKED_Q, distributions

P, Q = Distribution(np.array(WORKED_P)), Distribution(np.array(WORKED_Q))


def test_worked_example() -> None:
    found = explain_laws(P, Q, "abcd".__getitem__)
    assert (found.acceptance, found.residual_mass, found.total_variation) == pytest.approx(
        (0.85, 0.15, 0.15), abs=1e-15
    )
    assert found.largest_error < 1e-15
    assert [each.name for each in found.tokens] == ["a", "b", "c", "d"]
    columns = {name: [getattr(each, name) for each in found.tokens] for name in ("alpha", "accepted", "residual")}
    assert columns["alpha"] == pytest.approx([5 / 6, 1.0, 1.0, 0.5], abs=1e-15)
    assert columns["accepted"] == pytest.approx([0.5, 0.2, 0.1, 0.05], abs=1e-15)
    assert columns["residual"] == pytest.approx([0.0, 2 / 3, 1 / 3, 0.0], abs=1e-15)
    assert [each.given_acceptance for each in found.tokens] == pytest.approx([0.588, 0.235, 0.118, 0.059], abs=5e-4)
    assert [each.output for each in found.tokens] == pytest.approx(WORKED_P, abs=1e-15)


@given(distributions(), distributions())
def test_the_account_is_what_the_rule_does(p: Distribution, q: Distribution) -> None:
    found = explain_laws(p, q)

    def run(noise: object) -> tuple[bool, int, int]:
        x = TokenRule().draw(q, noise, 0, 0)  # type: ignore[arg-type]
        verdict = TokenRule().verify([p, p], Draft(as_tokens([x]), [q]), noise, 0)  # type: ignore[arg-type]
        return bool(verdict.accepted), x, x if verdict.accepted else verdict.token

    joint = enumerate_law(run)
    assert found.acceptance == pytest.approx(sum(m for (kept, _, _), m in joint.items() if kept), abs=EXACT)
    for each in found.tokens:
        accepted = sum(m for (kept, x, _), m in joint.items() if kept and x == each.token)
        recovered = sum(m for (kept, _, y), m in joint.items() if not kept and y == each.token)
        drafted = sum(m for (_, x, _), m in joint.items() if x == each.token)
        assert (each.accepted, each.q) == pytest.approx((accepted, drafted), abs=EXACT)
        assert each.accepted + recovered == pytest.approx(each.output, abs=EXACT)
        assert each.output == pytest.approx(p.prob(each.token or 0), abs=EXACT)
    assert {token for _, _, token in joint} <= {each.token for each in found.tokens}


@given(distributions(), distributions(), st.integers(1, 4))
def test_what_is_not_shown_is_added_up(p: Distribution, q: Distribution, count: int) -> None:
    full = explain_laws(p, q)
    short = full.top(count)
    assert len(short.tokens) == min(len(full.tokens), count + 1)
    for each in fields(TokenAccount):
        if each.name not in ("token", "name", "alpha"):
            whole, part = (
                math.fsum(getattr(account, each.name) or 0.0 for account in some.tokens) for some in (full, short)
            )
            assert part == pytest.approx(whole, abs=EXACT)
    if len(full.tokens) > count:
        others = short.tokens[-1]
        assert others.token is None
        assert others.name == f"{len(full.tokens) - count} others"
        assert max(others.p, others.q) <= 1.0 + EXACT
        if others.alpha is not None:
            assert others.alpha == pytest.approx(others.accepted / others.q)


def test_the_largest_of_either_law_are_shown_by_p() -> None:
    p, q = Distribution(np.array([0.1, 0.7, 0.15, 0.05])), Distribution(np.array([0.05, 0.05, 0.1, 0.8]))
    assert [each.token for each in explain_laws(p, q).top(2).tokens] == [1, 3, None]


def test_equal_laws_reject_nothing_and_disjoint_ones_everything() -> None:
    same = explain_laws(P, P)
    assert (same.acceptance, same.residual_mass) == pytest.approx((1.0, 0.0))
    assert {each.residual for each in same.tokens} == {None}
    apart = explain_laws(Distribution.one_hot(0), Distribution.one_hot(5))
    assert (apart.acceptance, apart.residual_mass, apart.total_variation) == (0.0, 1.0, 1.0)
    assert [(each.token, each.alpha, each.given_acceptance, each.residual) for each in apart.tokens] == [
        (0, None, None, 1.0),
        (5, 0.0, None, 0.0),
    ]


def test_explanations_are_json() -> None:
    found = json.loads(json.dumps(explain_laws(P, Q).top(2).as_dict()))
    assert [each["token"] for each in found["tokens"]] == [0, 1, None]
    assert found["acceptance"] == pytest.approx(0.85)


def test_simulation_runs_the_procedure() -> None:
    found = simulate(P, Q, 4000, seed=3)
    assert sum(found.counts.values()) == found.draws == 4000
    assert set(found.counts) == {0, 1, 2, 3}
    # A fixed seed; a rule whose law is off by .05 in one cell would have G near 45 more.
    assert found.p_value > 1e-6
    assert found.degrees_of_freedom == 3
    assert abs((found.accepted - 3400) / math.sqrt(4000 * 0.85 * 0.15)) < 4.9
    assert simulate(P, Q, 200, seed=3) == simulate(P, Q, 200, seed=3) != simulate(P, Q, 200, seed=4)
    assert json.loads(json.dumps(found.as_dict()))["counts"]["0"] == found.counts[0]


def test_simulation_of_a_certain_token() -> None:
    found = simulate(Distribution.one_hot(2), Distribution(np.array([0.5, 0.3, 0.2])), 50)
    assert found.counts == {2: 50}
    assert (found.g, found.degrees_of_freedom, found.p_value) == (0.0, 0, 1.0)


@pytest.mark.parametrize("draws", [0, -1])
def test_simulation_needs_draws(draws: int) -> None:
    with pytest.raises(UsageError, match=f"simulate {draws} is not a count of draws"):
        simulate(P, Q, draws)


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(temperature=0.5, top_p=0.9), Sampler(temperature=0.0)])
def test_laws_of_a_real_position(sampler: Sampler) -> None:
    target, draft = load("toy:pair"), load("toy:pair-draft")
    tokens = target.tokenizer.encode("abcab")
    p, q = laws_after(target, load_drafter("model:toy:pair-draft", target), tokens, sampler)
    assert q is not None
    for law, model in ((p, target), (q, draft)):
        row = model.table(tokens)  # type: ignore[attr-defined]
        expected = sampler.bind(len(tokens), (), 26).law(tokens, row).dense(26)
        np.testing.assert_allclose(law.dense(26), expected, atol=1e-12)


def test_a_lookup_is_certain_and_may_find_nothing() -> None:
    target = load("toy:pair")
    p, q = laws_after(target, load_drafter("suffix", target), target.tokenizer.encode("abcabcab"), Sampler())
    assert len(p) == 26
    assert q is not None
    assert q.prob(2) == 1.0
    for spec, text in (("suffix", "abcd"), ("none", "abcabcab")):
        assert laws_after(target, load_drafter(spec, target), target.tokenizer.encode(text), Sampler())[1] is None
