"""Every shipped rule is lossless: by enumeration, or by identity with plain decoding if it races."""

from __future__ import annotations

import pytest

from draftproof.distribution import Distribution
from draftproof.noise import CounterNoise
from draftproof.rules import BlockRule, MatchRule, Rule, TokenRule
from tests.laws import (
    EXACT,
    Case,
    Iteration,
    emitted_law,
    exact_rules,
    expected_length,
    identity_failures,
    losslessness_error,
    mean_length,
    of_rule,
    races,
    rule_error,
    speculated_text,
)
from tests.strategies import SPECIAL, family, grid

SIZES = [(2, 1), (2, 3), (3, 0), (3, 1), (3, 2), (3, 3), (4, 2), (4, 3)]
TWO_BLOCK_SIZES = [(2, 2), (2, 3), (3, 1), (3, 2)]

ENUMERATED = [rule for rule in exact_rules() if not races(rule())]
RACING = [rule for rule in exact_rules() if races(rule())]


def _cases(sizes: list[tuple[int, int]]) -> list[Case]:
    return [case for vocab, k in sizes for case in grid(vocab, k)] + SPECIAL


def test_there_is_something_to_prove() -> None:
    assert ENUMERATED
    assert RACING


@pytest.mark.parametrize("rule", ENUMERATED)
@pytest.mark.parametrize("case", _cases(SIZES), ids=str)
def test_one_block_is_lossless(rule: type[Rule], case: Case) -> None:
    law = emitted_law(of_rule(rule()), case)
    assert sum(law.values()) == pytest.approx(1.0, abs=EXACT)
    assert losslessness_error(law, case, case.k + 1) < EXACT
    # Never proposing is lossless too: what makes it speculation is that as much is accepted as ratios allow. Matching
    # accepts less of a sampled draft.
    if rule is not MatchRule or case.deterministic:
        assert mean_length(law) > expected_length(case) - EXACT


@pytest.mark.parametrize("rule", ENUMERATED)
@pytest.mark.parametrize("case", _cases(TWO_BLOCK_SIZES), ids=str)
def test_two_blocks_are_lossless_together(rule: type[Rule], case: Case) -> None:
    assert rule_error(of_rule(rule()), case, blocks=2) < EXACT


@pytest.mark.parametrize("rule", [TokenRule, BlockRule])
@pytest.mark.parametrize("case", grid(2, 1), ids=str)
def test_three_blocks_are_lossless_together(rule: type[Rule], case: Case) -> None:
    assert rule_error(of_rule(rule()), case, blocks=3) < EXACT


@pytest.mark.parametrize("case", _cases(SIZES), ids=str)
def test_the_token_rule_accepts_exactly_the_overlap(case: Case) -> None:
    assert mean_length(emitted_law(of_rule(TokenRule()), case)) == pytest.approx(expected_length(case), abs=EXACT)


@pytest.mark.parametrize("rule", RACING)
@pytest.mark.parametrize("case", _cases(SIZES), ids=str)
def test_a_racing_rule_gives_plain_decodings_own_text(rule: type[Rule], case: Case) -> None:
    assert identity_failures(of_rule(rule()), case, range(30), 6) == 0


@pytest.mark.parametrize("rule", exact_rules())
def test_a_seed_is_a_text(rule: type[Rule]) -> None:
    case = family("far", 4, 3)
    texts = [speculated_text(of_rule(rule()), case, CounterNoise(seed), 12) for seed in (1, 1, 2)]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


class StopOnDoubt(Iteration):
    """Stops before drawing from a law that is too flat."""

    def proceed(self, i: int, q: Distribution, laws: list[Distribution], tokens: list[int]) -> bool:
        return float(q.probs.max()) > 0.55


class IncludeThenStop(Iteration):
    """Keeps an unlikely token and stops after it."""

    def proceed(self, i: int, q: Distribution, laws: list[Distribution], tokens: list[int]) -> bool:
        return not tokens or laws[-1].prob(tokens[-1]) > 0.3


class ProductOfThePast(Iteration):
    """Stops once the tokens so far are unlikely together."""

    def proceed(self, i: int, q: Distribution, laws: list[Distribution], tokens: list[int]) -> bool:
        past = 1.0
        for law, token in zip(laws, tokens, strict=True):
            past *= law.prob(token)
        return past > 0.3


@pytest.mark.parametrize("policy", [StopOnDoubt, IncludeThenStop, ProductOfThePast])
@pytest.mark.parametrize("rule", ENUMERATED)
@pytest.mark.parametrize("case", grid(3, 2), ids=str)
def test_a_length_policy_that_looks_back_only_is_lossless(
    policy: type[Iteration], rule: type[Rule], case: Case
) -> None:
    assert rule_error(lambda: policy(rule()), case) < EXACT


@pytest.mark.parametrize("policy", [StopOnDoubt, IncludeThenStop, ProductOfThePast])
def test_the_policies_do_cut(policy: type[Iteration]) -> None:
    cut = 0
    for case in grid(3, 2):
        full, short = emitted_law(of_rule(TokenRule()), case), emitted_law(lambda: policy(TokenRule()), case)
        cut += mean_length(short) < mean_length(full) - 1e-6
    assert cut > 0
