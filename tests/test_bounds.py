"""What a draft is worth: formulas against enumeration of the rules, and against linear programs."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

import draftproof as dp
from draftproof.distribution import Distribution
from draftproof.errors import UsageError
from draftproof.rules import BlockRule, KSequentialRule, MatchRule, RecursiveRule, Rule, TokenRule, TreeMatchRule
from tests.laws import Case, emitted_law, mean_length, of_rule
from tests.linear_program import best_acceptance, best_expected_tokens
from tests.rules.agreement import match_probability
from tests.strategies import BLOCK_WITNESS, by_context, family, grid
from tests.tree_laws import drafted_trees, tree_law

SUN_P, SUN_Q = Distribution(np.array([1 / 3, 2 / 3])), Distribution(np.array([2 / 3, 1 / 3]))
PAIRS = [
    ((0.1, 0.6, 0.3), (0.6, 0.2, 0.2)),
    ((0.5, 0.3, 0.15, 0.05), (0.1, 0.2, 0.3, 0.4)),
    ((0.4, 0.3, 0.2, 0.1), (0.25, 0.25, 0.25, 0.25)),
    ((0.0, 0.5, 0.5), (0.4, 0.0, 0.6)),
    ((0.2, 0.2, 0.2, 0.2, 0.2), (0.9, 0.025, 0.025, 0.025, 0.025)),
]


def laws(pair: tuple[tuple[float, ...], tuple[float, ...]]) -> tuple[Distribution, Distribution]:
    return Distribution(np.array(pair[0])), Distribution(np.array(pair[1]))


@pytest.mark.parametrize("rule", [TokenRule, BlockRule, MatchRule])
@pytest.mark.parametrize("case", [case for case in grid(3, 2) if not case.deterministic] + [BLOCK_WITNESS], ids=str)
def test_expected_tokens_are_those_of_the_rule(rule: type[Rule], case: Case) -> None:
    found = dp.expected_tokens(
        lambda text: case.p((*case.prompt, *text)),
        lambda text: case.q((*case.prompt, *text)),
        rule(),
        draft_length=case.k,
    )
    assert found.exact
    assert found.value == pytest.approx(mean_length(emitted_law(of_rule(rule()), case)), abs=1e-12)


def test_the_coupled_rule_is_worth_its_match_probability() -> None:
    p, q = laws(PAIRS[1])
    chance = match_probability(p.probs, q.probs)
    found = dp.expected_tokens([p, p, p], q, "coupled", draft_length=3).value
    assert found == pytest.approx(1 + chance + chance**2 + chance**3, abs=1e-12)


def test_suns_example() -> None:
    assert dp.expected_tokens(SUN_P, SUN_Q, "token", draft_length=2).value == pytest.approx(1 + 10 / 9, abs=1e-15)
    assert dp.block_optimum(SUN_P, SUN_Q, draft_length=2) == pytest.approx(1 + 11 / 9, abs=1e-15)
    assert dp.joint_overlap_bound(SUN_P, SUN_Q, draft_length=2) == pytest.approx(1 + 2 / 3 + 2 / 3, abs=1e-15)


@pytest.mark.parametrize("case", [case for case in grid(2, 2) + grid(3, 2) if not case.deterministic], ids=str)
def test_bounds_are_ordered(case: Case) -> None:
    def p(text: tuple[int, ...]) -> Distribution:
        return case.p((*case.prompt, *text))

    def q(text: tuple[int, ...]) -> Distribution:
        return case.q((*case.prompt, *text))

    token = dp.expected_tokens(p, q, "token", draft_length=case.k).value
    block = dp.block_optimum(p, q, draft_length=case.k)
    bound = dp.joint_overlap_bound(p, q, draft_length=case.k)
    assert token <= block + 1e-12
    assert block <= bound + 1e-12


@pytest.mark.parametrize("name", ["far", "near", "clamped"])
def test_the_block_optimum_is_the_linear_programs(name: str) -> None:
    case = family(name, 2, 2)
    found = dp.block_optimum(
        lambda text: case.p((*case.prompt, *text)), lambda text: case.q((*case.prompt, *text)), draft_length=2
    )
    assert found == pytest.approx(best_expected_tokens(case), abs=1e-9)


@pytest.mark.parametrize("rule", ["token", "block", "coupled", "match"])
def test_sampling_agrees_with_the_formula(rule: str) -> None:
    p, q = laws(PAIRS[0])
    exact = dp.expected_tokens(p, q, rule, draft_length=3).value
    sampled = dp.expected_tokens(p, q, rule, draft_length=3, method="sample", draws=4000, seed=5)
    assert not sampled.exact
    # Five standard errors either way: a false alarm once in a million.
    spread = (sampled.high - sampled.low) / 2 * 5 / 1.96
    assert abs(sampled.value - exact) < spread
    assert spread < 0.15


def test_many_prefixes_are_sampled_unless_told_otherwise() -> None:
    flat = Distribution(np.full(300, 1.0))
    assert not dp.expected_tokens(flat, flat, "token", draft_length=3, draws=10).exact
    assert dp.expected_tokens(flat, flat, "token", draft_length=1).value == pytest.approx(2.0)


def drafts_of(q: Distribution, n: int, replacement: bool) -> list[tuple[tuple[int, ...], float]]:
    vocab = len(q)
    found = []
    for group in product(range(vocab), repeat=n) if replacement else permutations(range(vocab), n):
        mass, law = 1.0, q
        for token in group:
            mass *= law.prob(token)
            rest = law if replacement else law.without(token)
            law = law if rest is None else rest
        if mass > 0.0:
            found.append((group, mass))
    return found


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("replacement", [True, False], ids=["with", "without"])
def test_the_best_acceptance_is_the_linear_programs(
    pair: tuple[tuple[float, ...], tuple[float, ...]], n: int, replacement: bool
) -> None:
    p, q = laws(pair)
    if not replacement and n > int((q.probs > 0).sum()):
        with pytest.raises(UsageError, match="without replacement exceeds"):
            dp.optimal_acceptance(p, q, n, replacement=False)
        return
    best = dp.optimal_acceptance(p, q, n, replacement=replacement)
    assert best == pytest.approx(best_acceptance(p, drafts_of(q, n, replacement), len(p)), abs=1e-9)
    for rule in ("recursive", "kseq", "match"):
        if replacement or rule != "kseq":
            assert dp.draft_acceptance(p, q, n, rule, replacement=replacement) <= best + 1e-12
    assert dp.draft_acceptance(p, q, n) >= p.overlap(q) - 1e-12


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize(
    ("name", "rule"), [("recursive", RecursiveRule()), ("kseq", KSequentialRule()), ("match", TreeMatchRule())]
)
@pytest.mark.parametrize("replacement", [True, False], ids=["with", "without"])
def test_acceptance_of_several_drafts_is_that_of_the_rule(
    pair: tuple[tuple[float, ...], tuple[float, ...]], n: int, name: str, rule: dp.TreeRule, replacement: bool
) -> None:
    p, q = laws(pair)
    if not replacement and (name == "kseq" or n > int((q.probs > 0).sum())):
        return
    case = Case("pair", len(p), 1, by_context([pair[0]]), by_context([pair[1]]))
    law = tree_law(rule, case, drafted_trees(case, (n,), replacement=replacement))
    accepted = sum(mass for text, mass in law.items() if len(text) > 1)
    found = dp.draft_acceptance(p, q, n, name, replacement=replacement)  # type: ignore[arg-type]
    assert found == pytest.approx(accepted, abs=1e-9)


def test_the_worked_table_of_several_drafts() -> None:
    p, q = laws(PAIRS[0])
    independent = [
        dp.draft_acceptance(p, q, 2, "match"), dp.draft_acceptance(p, q, 2), dp.draft_acceptance(p, q, 2, "kseq"),
    ]  # fmt: skip
    assert [*independent, dp.optimal_acceptance(p, q, 2)] == pytest.approx([0.408, 0.7, 0.708, 0.74], abs=5e-4)
    without = [
        dp.draft_acceptance(p, q, 2, "match", replacement=False), dp.draft_acceptance(p, q, 2, replacement=False),
    ]  # fmt: skip
    best = dp.optimal_acceptance(p, q, 2, replacement=False)
    assert [*without, best] == pytest.approx([0.585, 0.85, 0.95], abs=5e-4)


def test_k_sequential_keeps_its_promise() -> None:
    for pair in PAIRS:
        p, q = laws(pair)
        for n in (2, 3, 8):
            best = dp.optimal_acceptance(p, q, n)
            assert dp.draft_acceptance(p, q, n, "kseq") >= (1 - 1 / np.e) * best - 1e-12


def test_wrong_arguments_are_refused_by_name(unchecked: None) -> None:
    p, q = laws(PAIRS[0])
    number: Any = 0.5
    with pytest.raises(UsageError, match="no Distribution"):
        dp.expected_tokens([number, number], q, draft_length=2)
    with pytest.raises(UsageError, match="no Distribution"):
        dp.optimal_acceptance(p, number, 2)
    with pytest.raises(UsageError, match="None is no law"):
        dp.joint_overlap_bound(None, q, draft_length=1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="draft_length -1"):
        dp.joint_overlap_bound(p, q, draft_length=-1)
    with pytest.raises(UsageError, match="too many texts"):
        dp.joint_overlap_bound(p, q, draft_length=18)
    with pytest.raises(UsageError, match='method="sample"'):
        dp.block_optimum(p, q, draft_length=14)
    with pytest.raises(UsageError, match="num_drafts 1000000000 must lie in"):
        dp.draft_acceptance(p, q, 10**9)
    with pytest.raises(UsageError, match="draft_length 2000 exceeds 256"):
        dp.expected_tokens(p, q, draft_length=2000)
    with pytest.raises(UsageError, match="draft_length -1"):
        dp.expected_tokens(p, q, draft_length=-1)
    with pytest.raises(UsageError, match="'guess'"):
        dp.expected_tokens(p, q, "guess", draft_length=1)
    with pytest.raises(UsageError, match="1 laws do not reach place 1"):
        dp.expected_tokens([p], q, draft_length=2)
    with pytest.raises(UsageError, match="num_drafts 0"):
        dp.draft_acceptance(p, q, 0)
    with pytest.raises(UsageError, match="independent drafts"):
        dp.draft_acceptance(p, q, 2, "kseq", replacement=False)
    flat = Distribution(np.full(20, 1.0))
    with pytest.raises(UsageError, match="16 at most"):
        dp.optimal_acceptance(flat, flat, 2, replacement=False)


class _Nameless(TokenRule):
    name = "nameless"


def test_a_rule_without_a_formula_is_sampled() -> None:
    p, q = laws(PAIRS[0])
    with pytest.raises(UsageError, match="no formula"):
        dp.expected_tokens(p, q, _Nameless(), draft_length=1, method="enumerate")
    found = dp.expected_tokens(p, q, _Nameless(), draft_length=1, draws=2000)
    assert found.low < 1 + p.overlap(q) < found.high
