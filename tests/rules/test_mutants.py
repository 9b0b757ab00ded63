"""Each bug of the zoo is rejected by the layer that can see it, on cases where the faithful procedure passes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from draftproof.distribution import Distribution
from draftproof.noise import CounterNoise, Noise
from draftproof.rules import BlockRule, CoupledRule, Rule, TokenRule
from draftproof.types import Draft, as_tokens
from tests.doubles import SameCoin
from tests.laws import (
    EXACT,
    Case,
    Iteration,
    Text,
    emitted_law,
    exact_rules,
    g_test,
    identity_failures,
    of_rule,
    rule_error,
    types_unchecked,
)
from tests.mutants import (
    MUTANTS,
    NOISES,
    ORDINARY,
    DropsUnlikely,
    FaultyBlockRule,
    FaultyTokenRule,
    Layer,
    Mutant,
    SharedRace,
    at,
)
from tests.rules.agreement import agreement_p_value
from tests.strategies import EDGE_UNIFORMS, WORKED, by_context, families

# A bug shows at 1e-4 or more somewhere; an exact procedure is within 1e-12 everywhere.
SEEN = 1e-4

VISIBLE_CASES = list(dict.fromkeys(case for mutant in MUTANTS for case in mutant.cases))


def test_the_zoo_is_complete_and_distinct() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    assert {mutant.layer for mutant in MUTANTS} == set(Layer)
    assert all(mutant.cases for mutant in MUTANTS)
    assert not [mutant.name for mutant in MUTANTS if mutant.rule is not None and mutant.rule.exact]


@pytest.mark.parametrize("case", VISIBLE_CASES, ids=str)
@pytest.mark.parametrize("rule", [TokenRule, FaultyTokenRule, BlockRule, FaultyBlockRule])
def test_the_unharmed_procedure_passes(rule: type[Rule], case: Case) -> None:
    assert rule_error(of_rule(rule()), case) < EXACT


@pytest.mark.parametrize("mutant", at(Layer.LAW), ids=str)
def test_the_law_of_one_block_rejects(mutant: Mutant) -> None:
    assert max(rule_error(mutant.step, case) for case in mutant.cases) > SEEN


@pytest.mark.parametrize("mutant", at(Layer.TWO_BLOCKS), ids=str)
def test_the_law_of_two_blocks_rejects_what_one_block_lets_pass(mutant: Mutant) -> None:
    assert max(rule_error(mutant.step, case) for case in mutant.cases) < EXACT
    assert any(rule_error(mutant.step, case, blocks=2) > SEEN for case in mutant.cases)
    assert rule_error(of_rule(TokenRule()), mutant.cases[0], blocks=2) < EXACT


def test_coins_beyond_the_cut_are_safe_when_keyed_by_the_blocks_start() -> None:
    assert rule_error(of_rule(BlockRule()), ORDINARY[0], blocks=2) < EXACT


def impossible_tokens(rule: Rule, vocab: int = 3) -> int:
    """Returns how often, over edge coins, laws and drafts, a rule emits a token that the target gives probability 0."""
    found = 0
    for target, draft in families(vocab).values():
        for p, q in zip(map(np.array, target), map(np.array, draft), strict=False):
            for x in np.flatnonzero(q).tolist():
                for u in EDGE_UNIFORMS:
                    verdict = rule.verify(
                        [Distribution(p), Distribution(p)],
                        Draft(as_tokens([x]), [Distribution(q)]),
                        SameCoin(u),
                        0,
                    )
                    emitted = [*[x][: verdict.accepted], verdict.token]
                    found += any(p[token] == 0.0 for token in emitted)
    return found


@pytest.mark.parametrize("rule", exact_rules())
def test_no_coin_makes_a_rule_emit_the_impossible(rule: type[Rule]) -> None:
    assert impossible_tokens(rule()) == 0


@pytest.mark.parametrize("mutant", at(Layer.EDGE), ids=str)
def test_edge_coins_reject_what_the_law_lets_pass(mutant: Mutant) -> None:
    assert mutant.rule is not None
    assert max(rule_error(mutant.step, case) for case in mutant.cases) < EXACT
    assert impossible_tokens(mutant.rule) > 0


@pytest.mark.parametrize("mutant", at(Layer.IDENTITY), ids=str)
def test_identity_rejects(mutant: Mutant) -> None:
    assert any(identity_failures(mutant.step, case, range(100), 6) > 0 for case in mutant.cases)
    assert all(identity_failures(of_rule(CoupledRule()), case, range(100), 6) == 0 for case in mutant.cases)


@pytest.mark.parametrize("mutant", at(Layer.COUPLING), ids=str)
def test_agreement_rejects_what_identity_lets_pass(mutant: Mutant) -> None:
    assert mutant.rule is not None
    assert all(identity_failures(mutant.step, case, range(25), 6) == 0 for case in mutant.cases)
    assert agreement_p_value(mutant.rule) < 1e-6


def _first_token_counts(rule: Rule, p: Distribution, q: Distribution, draws: int) -> np.ndarray:
    counts = np.zeros(len(p), dtype=np.int64)
    for seed in range(draws):
        with types_unchecked(unless=seed == 0):
            noise = CounterNoise(seed)
            x = rule.draw(q, noise, 0, 0)
            verdict = rule.verify([p, p], Draft(as_tokens([x]), [q]), noise, 0)
            counts[x if verdict.accepted else verdict.token] += 1
    return counts


def test_frequencies_reject_a_race_shared_by_draft_and_residual() -> None:
    # The law is exactly (.1, .6375, .2625) instead of p. At 12,000 draws G has non-centrality 86 on 2 degrees of
    # freedom, where 27.6 is 1e-6: power .99998.
    p, q = np.array([0.1, 0.6, 0.3]), np.array([0.6, 0.2, 0.2])
    counts = _first_token_counts(SharedRace(), Distribution(p), Distribution(q), 12_000)
    assert g_test(counts, p) < 1e-6
    assert g_test(counts, np.array([0.1, 0.6375, 0.2625])) > 1e-6
    assert [mutant.name for mutant in at(Layer.COUNT)] == ["SharedRace"]


def replayed(noise: Noise, case: Case, idle: int) -> Text:
    """Returns a text of some blocks; before each, `idle` rounds without a draft draw coins that are thrown away."""
    step, text = Iteration(TokenRule()), case.prompt
    for _ in range(8):
        for _ in range(idle):
            TokenRule().verify([case.p(text)], Draft(as_tokens([])), noise, len(text))
        text += step(case, text, noise)
    return text


@pytest.mark.parametrize("mutant", at(Layer.REPLAY), ids=str)
def test_replay_rejects_a_seed_that_other_work_consumes(mutant: Mutant) -> None:
    def differing(noise: Callable[[int], Noise]) -> int:
        return sum(
            replayed(noise(seed), case, 0) != replayed(noise(seed), case, idle)
            for case in mutant.cases
            for seed in range(10)
            for idle in (1, 3)
        )

    assert differing(NOISES["counter"]) == 0
    assert differing(NOISES["sequential"]) > 0
    # The law does not show it: every coin is fresh and uniform.
    assert max(rule_error(mutant.step, case) for case in mutant.cases) < EXACT


def test_a_dropped_token_biases_as_computed_by_hand() -> None:
    # Drop x if q(x) < .5 : the first token is then 0 with .8 * .5 / .8 + .2 * .5 = .6 instead of .5.
    case = Case("drop", 2, 1, by_context([(0.5, 0.5)]), by_context([(0.8, 0.2)]))
    law = emitted_law(lambda: DropsUnlikely(TokenRule()), case)
    assert sum(mass for text, mass in law.items() if text[0] == 0) == pytest.approx(0.6, abs=1e-15)


def test_an_argmax_draft_taken_for_a_sample_biases_as_reported() -> None:
    # https://github.com/huggingface/transformers/issues/32867 : p = (.5, .5), argmax draft, soft q = (.6, .4).
    case = Case("argmax", 2, 1, by_context([(0.5, 0.5)]), by_context([(0.6, 0.4)]))
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "ArgmaxDraftAsSample")
    law = emitted_law(mutant.step, case)
    assert sum(mass for text, mass in law.items() if text[0] == 0) == pytest.approx(5 / 6, abs=1e-15)


def test_the_worked_example_tells_wrong_acceptances_apart() -> None:
    rejected = {mutant.name for mutant in at(Layer.LAW) if mutant.rule and rule_error(mutant.step, WORKED) > SEEN}
    assert {"ResidualIsP", "AcceptsBelowP", "NoCoin", "SwappedRatio", "Lenient", "AcceptsAll"} <= rejected
