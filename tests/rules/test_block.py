"""The block rule: its formula, its optimality, its worked example, and what it reads."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.distribution import Distribution
from draftproof.noise import CounterNoise, Lane, ScriptedNoise
from draftproof.rules import BlockRule, TokenRule, TraversalRule, verify_block, verify_token
from draftproof.tree import DraftTree
from draftproof.types import Draft, as_tokens
from tests.laws import EXACT, Case, emitted_law, expected_length, mean_length, of_rule
from tests.linear_program import best_expected_tokens
from tests.strategies import BLOCK_WITNESS, by_place, family, grid

SUN = Case("sun", 2, 2, by_place([(1 / 3, 2 / 3)]), by_place([(2 / 3, 1 / 3)]))


def expected_block_length(case: Case) -> float:
    """Returns 1 + sum_j E_q[P_j], from the definition of P alone."""

    def tail(tokens: tuple[int, ...], drawn: float, reach: float) -> float:
        if len(tokens) == case.k:
            return 0.0
        total = 0.0
        context = (*case.prompt, *tokens)
        p, q = case.p(context), case.q(context)
        for x in range(case.vocab):
            if q.prob(x) > 0.0:
                further = min(1.0, reach * p.prob(x) / q.prob(x))
                total += drawn * q.prob(x) * further + tail((*tokens, x), drawn * q.prob(x), further)
        return total

    return 1.0 + tail((), 1.0, 1.0)


def test_suns_example() -> None:
    assert mean_length(emitted_law(of_rule(BlockRule()), SUN)) - 1.0 == pytest.approx(11 / 9, abs=EXACT)
    assert mean_length(emitted_law(of_rule(TokenRule()), SUN)) - 1.0 == pytest.approx(10 / 9, abs=EXACT)


@pytest.mark.parametrize("case", [*grid(3, 2), *grid(2, 3), *grid(4, 3), BLOCK_WITNESS], ids=str)
def test_it_gives_what_its_formula_says_and_no_less_than_the_token_rule(case: Case) -> None:
    given = mean_length(emitted_law(of_rule(BlockRule()), case))
    if case.deterministic:
        assert given == pytest.approx(expected_length(case), abs=EXACT)
    else:
        assert given == pytest.approx(expected_block_length(case), abs=EXACT)
        assert given > expected_length(case) - EXACT


@pytest.mark.parametrize(
    "case", [SUN, BLOCK_WITNESS, *(family(name, v, 2) for v in (2, 3) for name in ("far", "near", "zeros", "clamped"))],
    ids=str,
)  # fmt: skip
def test_no_rule_gives_more(case: Case) -> None:
    assert mean_length(emitted_law(of_rule(BlockRule()), case)) == pytest.approx(best_expected_tokens(case), abs=1e-9)


def test_some_pair_gains() -> None:
    assert best_expected_tokens(SUN) == pytest.approx(1 + 11 / 9, abs=1e-9)
    assert best_expected_tokens(BLOCK_WITNESS) > expected_length(BLOCK_WITNESS) + 1e-3


@pytest.mark.parametrize("seed", range(300))
def test_traversal_of_a_chain_is_the_block_rule_token_for_token(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k, vocab = int(rng.integers(0, 5)), int(rng.integers(2, 6))
    p = [Distribution(row) for row in rng.dirichlet([0.5] * vocab, k + 1)]
    q = [Distribution(row) for row in rng.dirichlet([0.5] * vocab, k)]
    tokens = as_tokens([law.sample(float(rng.random())) for law in q])
    block = verify_block(p, Draft(tokens, q), CounterNoise(seed), 3)
    chain = DraftTree(tokens, as_tokens(np.arange(k) - 1), q)
    path = TraversalRule().verify(p, chain, CounterNoise(seed), 3)
    assert (path.path, path.token) == (tuple(range(block.accepted)), block.token)


@pytest.mark.parametrize("seed", range(100))
def test_one_drafted_token_is_judged_as_by_the_token_rule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, q = (Distribution(row) for row in rng.dirichlet([0.4] * 4, 2))
    draft = Draft(as_tokens([q.sample(float(rng.random()))]), [q])
    assert verify_block([p, p], draft, CounterNoise(seed), 0) == verify_token([p, p], draft, CounterNoise(seed), 0)


def test_a_later_coin_rescues_what_an_earlier_one_would_have_cut() -> None:
    # P_1 = 1/2 and P_2 = 1: the first coin misses, the second lands, and both tokens stand.
    p = [Distribution(np.array(law)) for law in ((0.25, 0.75), (0.8, 0.2), (0.5, 0.5))]
    q = [Distribution(np.array(law)) for law in ((0.5, 0.5), (0.4, 0.6))]
    noise = ScriptedNoise({(0, 0, Lane.ACCEPT): 0.99, (0, 1, Lane.ACCEPT): 0.99, (0, 2, Lane.FINAL): 0.2})
    draft = Draft(as_tokens([0, 0]), q)
    assert verify_block(p, draft, noise, 0).accepted == 2
    assert verify_token(p, draft, ScriptedNoise({(0, 0, Lane.ACCEPT): 0.99, (0, 0, Lane.FINAL): 0.2}), 0).accepted == 0


class _Rows(list[Distribution]):
    """Laws that count which were asked for."""

    def __init__(self, laws: list[Distribution]) -> None:
        super().__init__(laws)
        self.asked: set[int] = set()

    def __getitem__(self, i: int) -> Distribution:  # type: ignore[override]
        self.asked.add(i)
        return super().__getitem__(i)


def test_rows_beyond_an_impossible_token_are_not_looked_at() -> None:
    even = Distribution(np.array([0.5, 0.5]))
    p = _Rows([even, Distribution(np.array([0.0, 1.0])), even, even])
    draft = Draft(as_tokens([0, 0, 0]), [even, even, even])
    noise = ScriptedNoise({(0, 0, Lane.ACCEPT): 0.1, (0, 1, Lane.FINAL): 0.5})
    assert verify_block(p, draft, noise, 0).accepted == 1
    assert p.asked == {0, 1}
