"""The token rule on examples worked by hand, at the edges, and on faults reported elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.distribution import Distribution
from draftproof.errors import DraftError, UsageError
from draftproof.noise import CounterNoise, Lane, Noise, ScriptedNoise
from draftproof.rules import TokenRule, verify_token
from draftproof.sampling import Sampler
from draftproof.types import Draft, Verdict, as_tokens
from tests.laws import EXACT, Case, emitted_law, enumerate_law, mean_length, of_rule, rule_error
from tests.strategies import (
    EDGE_UNIFORMS,
    LARGEST_UNIFORM,
    TRUNCATED,
    WORKED,
    WORKED_P,
    WORKED_Q,
    by_context,
    distributions,
    uniforms,
)

BELOW = np.nextafter


def law(*probs: float) -> Distribution:
    return Distribution(np.array(probs))


def scripted(accepts: Sequence[float], finals: Sequence[float], start: int = 0) -> ScriptedNoise:
    coins = {(start, i, Lane.ACCEPT): u for i, u in enumerate(accepts)}
    return ScriptedNoise(coins | {(start, i, Lane.FINAL): u for i, u in enumerate(finals)})


def first_token(case: Case) -> list[float]:
    emitted = emitted_law(of_rule(TokenRule()), case)
    return [sum(mass for text, mass in emitted.items() if text[0] == token) for token in range(case.vocab)]


def test_worked_example_to_the_last_digit() -> None:
    p, q = law(*WORKED_P), law(*WORKED_Q)
    rule = TokenRule()

    def alpha(x: int) -> float:
        draft = Draft(as_tokens([x]), [q])
        return enumerate_law(lambda noise: rule.verify([p, p], draft, noise, 0).accepted).get(1, 0.0)

    accept = [alpha(x) for x in range(4)]
    assert accept == pytest.approx([5 / 6, 1.0, 1.0, 0.5], abs=1e-15)

    def accepted_or_not(noise: Noise) -> tuple[int, int]:
        x = rule.draw(q, noise, 0, 0)
        verdict = rule.verify([p, p], Draft(as_tokens([x]), [q]), noise, 0)
        return verdict.accepted, x if verdict.accepted else verdict.token

    joint = enumerate_law(accepted_or_not)
    assert [joint[1, x] for x in range(4)] == pytest.approx([0.5, 0.2, 0.1, 0.05], abs=1e-15)
    assert [joint.get((0, x), 0.0) for x in range(4)] == pytest.approx([0.0, 0.1, 0.05, 0.0], abs=1e-15)
    assert sum(joint[1, x] for x in range(4)) == pytest.approx(0.85, abs=1e-15)
    given_acceptance = [joint[1, x] / 0.85 for x in range(4)]
    assert given_acceptance == pytest.approx([10 / 17, 4 / 17, 2 / 17, 1 / 17], abs=1e-15)
    assert first_token(WORKED) == pytest.approx(WORKED_P, abs=1e-15)
    assert p.residual(q).probs.tolist() == pytest.approx([0.0, 2 / 3, 1 / 3, 0.0], abs=1e-15)
    assert mean_length(emitted_law(of_rule(TokenRule()), WORKED)) == pytest.approx(1.85, abs=1e-15)


def test_ratio_of_three() -> None:
    def accepts(p: float, q: float) -> float:
        laws = [law(p, 1 - p), law(p, 1 - p)]
        draft = Draft(as_tokens([0]), [law(q, 1 - q)])
        return enumerate_law(lambda noise: TokenRule().verify(laws, draft, noise, 0).accepted).get(1, 0.0)

    assert accepts(0.3, 0.1) == 1.0
    assert accepts(0.1, 0.3) == pytest.approx(1 / 3, abs=1e-15)


@pytest.mark.parametrize("u", EDGE_UNIFORMS)
def test_what_the_target_never_says_is_rejected_whatever_the_coin(u: float) -> None:
    verdict = verify_token([law(0.0, 0.4, 0.6)] * 2, Draft(as_tokens([0]), [law(0.5, 0.5, 0.0)]), scripted([u], [u]), 0)
    assert verdict == Verdict(0, 2)  # the residual is (0, 0, .6)


def test_the_coin_is_compared_strictly() -> None:
    p, q = law(0.25, 0.75), law(0.5, 0.5)
    at, below = 0.5, float(BELOW(0.5, 0.0))
    assert verify_token([p, p], Draft(as_tokens([0]), [q]), scripted([at], [0.0]), 0) == Verdict(0, 1)
    assert verify_token([p, p], Draft(as_tokens([0]), [q]), scripted([below], [0.0, 0.0]), 0) == Verdict(1, 0)


@pytest.mark.parametrize("u", EDGE_UNIFORMS)
def test_equal_laws_are_accepted_whatever_the_coin(u: float) -> None:
    p = law(0.1, 0.2, 0.7)
    for x in range(3):
        draft = Draft(as_tokens([x]), [Distribution(np.array([0.1, 0.2, 0.7]))])
        assert verify_token([p, p], draft, scripted([u], [0.0, u]), 0).accepted == 1


def test_equal_laws_up_to_rounding_with_a_forced_rejection() -> None:
    # p <= q everywhere, by rounding or by a drafter whose law sums to a little more: no mass is left to recover.
    p, q = law(0.3, 0.7), law(0.3, 0.7)
    q.probs = q.probs * (1 + 1e-9)
    for u in EDGE_UNIFORMS:
        verdict = verify_token([p, p], Draft(as_tokens([0]), [q]), scripted([LARGEST_UNIFORM], [u]), 0)
        assert verdict == Verdict(0, 0 if u < 0.3 else 1)


def test_a_token_its_own_law_forbids_is_not_accepted_unseen() -> None:
    # u * 0 < p holds for every coin: the rule relies on the check, which refuses such a draft.
    with pytest.raises(DraftError, match="probability 0 under its own law"):
        Draft(as_tokens([0]), [law(0.0, 1.0)]).check(2)


@pytest.mark.parametrize("k", [0, 1, 2, 4])
def test_all_accepted_draws_the_bonus_from_the_last_row(k: int) -> None:
    rows = [law(1.0, 1.0, 0.0)] * k + [law(0.0, 0.0, 1.0)]
    draft = Draft(as_tokens([0, 1, 0, 1][:k]))
    noise = scripted([0.4] * k, [0.5] * (k + 1))
    assert verify_token(rows, draft, noise, 0) == Verdict(k, 2)


def test_accept_reject_accept_is_one_accepted_and_one_correction() -> None:
    # https://github.com/huggingface/transformers/pull/28508 : what follows a rejection is void.
    rows = [law(0.1, 0.2, 0.7)] * 4
    draft = Draft(as_tokens([0, 0, 0]), [law(0.8, 0.1, 0.1)] * 3)
    assert verify_token(rows, draft, scripted([0.1, 0.9, 0.1], [0.0, 0.5]), 0) == Verdict(1, 2)


def test_residual_is_divided_by_its_sum() -> None:
    # https://github.com/huggingface/transformers/pull/28508 : softmax of the residual would give .25 to token 0.
    rows, draft = [law(0.1, 0.2, 0.7)] * 2, Draft(as_tokens([0]), [law(0.8, 0.1, 0.1)])
    verdicts = enumerate_law(lambda noise: verify_token(rows, draft, noise, 0))
    rejected = [verdicts.get(Verdict(0, token), 0.0) for token in range(3)]
    assert sum(rejected) == pytest.approx(0.875, abs=1e-15)
    assert [mass / 0.875 for mass in rejected] == pytest.approx([0.0, 1 / 7, 6 / 7], abs=1e-15)


def test_a_deterministic_draft_is_a_point_mass() -> None:
    # https://github.com/huggingface/transformers/issues/32867 : p = (.5, .5), argmax draft 0.
    case = Case("argmax", 2, 1, by_context([(0.5, 0.5)]), by_context([(0.6, 0.4)]), deterministic=True)
    emitted = emitted_law(of_rule(TokenRule()), case)
    assert sum(mass for text, mass in emitted.items() if len(text) == 2) == pytest.approx(0.5, abs=1e-15)
    assert {text for text in emitted if len(text) == 1} == {(1,)}
    assert first_token(case) == pytest.approx([0.5, 0.5], abs=1e-15)


def test_a_draft_is_accepted_as_often_as_the_target_says_it() -> None:
    # https://github.com/ROCm/ATOM/pull/2318 : drafted rows were judged greedily, only the bonus was sampled.
    case = Case("lookup", 2, 2, by_context([(0.6, 0.4)]), by_context([(0.0, 1.0)]), deterministic=True)
    emitted = emitted_law(of_rule(TokenRule()), case)
    assert sum(mass for text, mass in emitted.items() if len(text) > 1) == pytest.approx(0.4, abs=1e-15)
    assert sum(mass for text, mass in emitted.items() if len(text) > 2) == pytest.approx(0.16, abs=1e-15)
    nucleus = Case(
        "nucleus",
        3,
        1,
        by_context([(0.5, 0.3, 0.2)]),
        by_context([(0.0, 1.0, 0.0)]),
        sampler=Sampler(top_p=0.5),
        draft_sampler=Sampler(),
        deterministic=True,
    )
    assert emitted_law(of_rule(TokenRule()), nucleus) == {(0,): pytest.approx(1.0)}


def test_truncated_draft_and_target() -> None:
    # https://github.com/huggingface/transformers/issues/47932
    case = TRUNCATED.of_length(1)
    emitted = emitted_law(of_rule(TokenRule()), case)
    assert first_token(case) == pytest.approx([0.625, 0.375, 0.0, 0.0], abs=1e-15)
    assert sum(mass for text, mass in emitted.items() if len(text) == 2) == pytest.approx(45 / 56, abs=1e-15)
    raw = law(0.3, 0.4, 0.2, 0.1)

    def mistaken(noise: Noise) -> Verdict | int:
        x = case.q((0,)).sample(noise.uniform(0, 0, Lane.DRAFT))
        verdict = verify_token([case.p((0,)), case.p((0, x))], Draft(as_tokens([x]), [raw]), noise, 0)
        return x if verdict.accepted else verdict.token

    wrong = enumerate_law(mistaken)
    assert wrong[0] == pytest.approx(0.464286, abs=1e-6), "the reported bug, for comparison"


def test_a_narrower_draft_vocabulary_is_zero_beyond_its_end() -> None:
    # https://github.com/vllm-project/vllm/issues/5203
    p, q = law(0.1, 0.1, 0.1, 0.1, 0.6), law(0.25, 0.25, 0.25, 0.25)

    def run(noise: Noise) -> tuple[bool, int]:
        x = TokenRule().draw(q, noise, 0, 0)
        verdict = verify_token([p, p], Draft(as_tokens([x]), [q]), noise, 0)
        return bool(verdict.accepted), x if verdict.accepted else verdict.token

    joint = enumerate_law(run)
    assert sum(mass for (accepted, _), mass in joint.items() if accepted) == pytest.approx(0.4, abs=1e-15)
    assert {token for accepted, token in joint if not accepted} == {4}
    assert sum(mass for (_, token), mass in joint.items() if token == 4) == pytest.approx(0.6, abs=1e-15)


@pytest.mark.parametrize("u", EDGE_UNIFORMS)
def test_a_wider_draft_vocabulary_is_rejected_beyond_the_targets_end(u: float) -> None:
    p, q = law(0.25, 0.25, 0.25, 0.25), law(0.1, 0.1, 0.1, 0.1, 0.6)
    verdict = verify_token([p, p], Draft(as_tokens([4]), [q]), scripted([u], [u]), 0)
    assert verdict.accepted == 0
    assert 0 <= verdict.token < 4
    with pytest.raises(DraftError, match="outside the target's vocabulary"):
        Draft(as_tokens([4]), [q]).check(4)


def test_a_draft_row_of_nan_is_no_law() -> None:
    # https://github.com/vllm-project/vllm/pull/41834 : the rejected token came out although p gave it 1e-22.
    with pytest.raises(UsageError, match="not a law"):
        law(np.nan, np.nan, np.nan)
    p = law(1e-20, 0.03, 0.97)
    for u in EDGE_UNIFORMS:
        verdict = verify_token([p, p], Draft(as_tokens([0])), scripted([u if u > 0 else 0.5], [u]), 0)
        assert verdict.accepted == 0
        assert verdict.token in (1, 2)


def test_tiny_probabilities_keep_their_ratio() -> None:
    # https://github.com/deepseek-ai/DeepSpec/issues/31 and a sibling: underflow became unconditional acceptance.
    p, q = law(2e-9, 1.0), law(2e-8, 1.0)
    draft = Draft(as_tokens([0]), [q])
    accepted = enumerate_law(lambda noise: verify_token([p, p], draft, noise, 0).accepted)
    assert accepted[1] == pytest.approx(0.1, rel=1e-7)
    half = Distribution(np.array([2e-9, 1.0], dtype=np.float16))
    assert verify_token([half, half], draft, scripted([0.0], [0.0]), 0).accepted == 0
    with pytest.raises(DraftError):
        Draft(as_tokens([0]), [Distribution(np.array([2e-9, 1.0], dtype=np.float16))]).check(2)


@given(distributions(), st.integers(0, 50), st.integers(0, 8))
def test_the_draft_is_the_inverse_cdf_of_the_very_law_handed_over(q: Distribution, start: int, offset: int) -> None:
    noise = CounterNoise(start)
    assert TokenRule().draw(q, noise, start, offset) == q.sample(noise.uniform(start, offset, Lane.DRAFT))


@given(distributions(), distributions(), st.data(), uniforms(), uniforms())
def test_whatever_comes_out_has_positive_probability(
    p: Distribution, q: Distribution, data: st.DataObject, u: float, v: float
) -> None:
    x = data.draw(st.sampled_from(q.support()[q.probs > 0].tolist()))
    verdict = verify_token([p, p], Draft(as_tokens([x]), [q]), scripted([u], [v, v]), 0)
    assert p.prob(verdict.token) > 0.0
    if verdict.accepted:
        assert p.prob(x) > 0.0


@given(distributions(), distributions())
def test_one_position_has_the_targets_law(p: Distribution, q: Distribution) -> None:
    def run(noise: Noise) -> int:
        x = TokenRule().draw(q, noise, 0, 0)
        verdict = verify_token([p, p], Draft(as_tokens([x]), [q]), noise, 0)
        return x if verdict.accepted else verdict.token

    emitted = enumerate_law(run)
    for token in range(6):
        assert emitted.get(token, 0.0) == pytest.approx(p.prob(token), abs=EXACT)


def test_rows_past_the_rejection_are_never_asked_for() -> None:
    asked: set[int] = set()

    class Rows(list[Distribution]):
        def __getitem__(self, i: Any) -> Any:
            asked.add(i)
            return super().__getitem__(i)

    verify_token(Rows([law(0.0, 1.0)] * 4), Draft(as_tokens([0, 0, 0])), scripted([0.0], [0.0]), 0)
    assert asked == {0}


def test_coins_belong_to_the_block_that_starts_here() -> None:
    rows, draft = [law(0.5, 0.5)] * 3, Draft(as_tokens([0, 1]))
    assert verify_token(rows, draft, scripted([0.1, 0.1], [0.0, 0.0, 0.9], start=17), 17) == Verdict(2, 1)
    with pytest.raises(UsageError, match="start=16"):
        verify_token(rows, draft, scripted([0.1, 0.1], [0.0, 0.0, 0.9], start=17), 16)


def test_a_long_draft_far_from_certain_is_still_lossless() -> None:
    case = Case("long", 2, 6, by_context([(0.3, 0.7), (0.9, 0.1)]), by_context([(0.5, 0.5), (0.2, 0.8), (1.0, 0.0)]))
    assert rule_error(of_rule(TokenRule()), case) < EXACT
