"""Rows of logits to laws, against a naive reference: full sorts over Python floats, one step after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jaxtyping import Float

from draftproof.distribution import Distribution
from draftproof.errors import ProcessorError, RowError, UsageError
from draftproof.noise import CounterNoise
from draftproof.rules import CoupledRule, Rule, TokenRule
from draftproof.sampling import GREEDY_TEMPERATURE, Sampler
from draftproof.types import Draft, Tokens, as_tokens
from tests.strategies import rows

# Sums of up to 50,257 terms in another order; and how near a threshold two right answers may differ.
CLOSE = 1e-9


class Reference:
    """The steps of `Sampler` as its docstring lists them.

    Attributes:
        logits: the row after penalties, bias and masks.
        order: ids with a positive probability after temperature and top-k, likeliest first.
        weights: what they weigh, relative to the likeliest.
        fewest: the law keeps at least this many of `order` ...
        most: ... and at most this many: more, if a nucleus or a minimum ends within rounding of an id.
    """

    def __init__(
        self, sampler: Sampler, history: Sequence[int], prompt_length: int, eos: Sequence[int], row: Sequence[float]
    ) -> None:
        logits = [float(x) for x in row]
        for token, bias in sampler.logit_bias.items():
            logits[token] += bias
        for token in set(history):
            r = sampler.repetition_penalty
            logits[token] = logits[token] / r if logits[token] > 0 else logits[token] * r
        output = list(history[prompt_length:])
        for token in set(output):
            logits[token] -= sampler.presence_penalty
            logits[token] -= sampler.frequency_penalty * output.count(token)
        for token in range(len(logits)):
            allowed = sampler.allowed_token_ids is None or token in sampler.allowed_token_ids
            early = token in eos and len(output) < sampler.min_tokens
            if not allowed or token in sampler.banned_token_ids or early:
                logits[token] = -math.inf
        self.logits = logits
        top = max(logits)
        if top == -math.inf:
            return
        if sampler.temperature < 1e-5:
            self.order, self.weights, self.fewest, self.most = [logits.index(top)], [1.0], 1, 1
            return
        scaled = [(x - top) / sampler.temperature for x in logits]
        order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
        order = order[: sampler.top_k] if sampler.top_k else order
        self.order = [token for token in order if math.exp(scaled[token]) > 0.0]
        self.weights = [math.exp(scaled[token]) for token in self.order]
        self.fewest, self.most = (self._kept(sampler.top_p, sampler.min_p, slack) for slack in (-CLOSE, CLOSE))

    def _kept(self, top_p: float, min_p: float, slack: float) -> int:
        total, mass = math.fsum(self.weights), 0.0
        for kept, weight in enumerate(self.weights):
            too_small = min_p > 0.0 and weight < min_p * (1.0 - slack)
            enough = top_p < 1.0 and mass >= (top_p + slack) * total
            if kept > 0 and (too_small or enough):
                return kept
            mass += weight
        return len(self.weights)


def agree(law: Distribution, reference: Reference) -> bool:
    """Returns whether a law is one that the reference allows."""
    found = {token: p for token, p in zip(law.support().tolist(), law.probs.tolist(), strict=True) if p > 0.0}
    order, weights = reference.order[: len(found)], reference.weights[: len(found)]
    total = math.fsum(weights)
    return (
        reference.fewest <= len(found) <= reference.most
        and found.keys() == set(order)
        and all(
            math.isclose(found[token] * total, weight, rel_tol=CLOSE)
            for token, weight in zip(order, weights, strict=True)
        )
    )


def law_of(sampler: Sampler, row: Sequence[float] | np.ndarray, history: Sequence[int] = (0,)) -> Distribution:
    array = np.asarray(row, dtype=np.float64) if not isinstance(row, np.ndarray) else row
    return sampler.bind(1, (), len(array)).law(as_tokens(list(history)), array)


def dense(sampler: Sampler, row: Sequence[float] | np.ndarray, history: Sequence[int] = (0,)) -> list[float]:
    probs: list[float] = law_of(sampler, row, history).dense(len(row)).tolist()
    return probs


def logs(*probs: float) -> Float[np.ndarray, "vocab"]:
    with np.errstate(divide="ignore"):
        result: Float[np.ndarray, "vocab"] = np.log(np.array(probs))
    return result


TEMPERATURES = [0.0, 1e-10, 1e-6, 1e-5, 1e-3, 0.7, 1.0, 100.0]


@st.composite
def parameters(draw: st.DrawFn, vocab: int = 7) -> dict[str, Any]:
    """Arguments of a sampler, each absent as often as not. The sampler is made outside: its type check is random."""

    def some(strategy: st.SearchStrategy[Any], nothing: Any) -> Any:
        return draw(st.one_of(st.just(nothing), strategy))

    ids = st.lists(st.integers(0, vocab - 1), max_size=3, unique=True)
    return {
        "temperature": draw(st.sampled_from(TEMPERATURES)),
        "top_k": some(st.integers(1, vocab + 2), 0),
        "top_p": some(st.one_of(st.sampled_from([1e-9, 0.5, 0.9, math.nextafter(1, 0)]), st.floats(0.01, 0.999)), 1.0),
        "min_p": some(st.one_of(st.sampled_from([1e-9, 0.5, 1.0]), st.floats(0.01, 1.0)), 0.0),
        "repetition_penalty": some(st.floats(0.5, 2.0), 1.0),
        "presence_penalty": some(st.floats(-2.0, 2.0), 0.0),
        "frequency_penalty": some(st.floats(-2.0, 2.0), 0.0),
        "logit_bias": some(st.dictionaries(st.integers(0, vocab - 1), st.sampled_from([-100.0, -1.5, 2.0])), {}),
        "allowed_token_ids": some(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=5, unique=True), None),
        "banned_token_ids": some(ids, ()),
        "min_tokens": some(st.integers(1, 4), 0),
    }


@given(parameters(), rows(), st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(0, 3))
def test_small_rows_agree_with_the_reference(
    arguments: dict[str, Any], row: np.ndarray, history: list[int], prompt_length: int
) -> None:
    sampler = Sampler(**arguments)
    prompt_length = min(prompt_length, len(history))
    reference = Reference(sampler, history, prompt_length, [6], row.tolist())
    before = row.copy()
    bound = sampler.bind(prompt_length, [6], 7)
    if max(reference.logits) == -math.inf:
        with pytest.raises(RowError, match="all -inf"):
            bound.law(as_tokens(history), row)
        return
    # Penalties and scaling are the same float operations here and there, but a tie may split either way after
    # a subtraction in another order: such rows are for the tests of ties below.
    finite = sorted(x for x in reference.logits if x > -math.inf)
    assume(all(b == a or b - a > 1e-9 for a, b in pairwise(finite)))
    assert agree(bound.law(as_tokens(history), row), reference)
    assert row.tobytes() == before.tobytes(), "the row belongs to the model"


@pytest.mark.parametrize("gap", [-np.inf, -900.0, -744.0, -36.8])
def test_a_nucleus_of_nearly_everything_meets_impossible_ids(gap: float) -> None:
    # Most ids masked, as by a grammar: the mass is short of top_p by rounding alone when only they are left.
    for seed in range(40):
        rng = np.random.default_rng(seed)
        row: Float[np.ndarray, "vocab"] = rng.normal(0.0, 1.0, 300)
        row[rng.random(300) < 0.9] = gap
        row[0] = 0.0
        for top_p in (math.nextafter(1, 0), 1 - 1e-15, 1 - 1e-12):
            assert agree(law_of(Sampler(top_p=top_p), row), Reference(Sampler(top_p=top_p), [0], 1, [], row.tolist()))


VOCAB = 50_257
LARGE_ROWS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "normal": lambda rng: rng.normal(0.0, 3.0, VOCAB).astype(np.float32),
    "peaked": lambda rng: (rng.normal(0.0, 1.0, VOCAB) + 12.0 * (np.arange(VOCAB) == 777)).astype(np.float16),
    "ties": lambda rng: rng.integers(-3, 4, VOCAB).astype(np.float32),
    "flat": lambda rng: np.full(VOCAB, 1.5, dtype=np.float16),
    "half-size": lambda rng: rng.choice([-60000.0, 0.0, 59968.0, 60000.0], VOCAB).astype(np.float16),
    "masked": lambda rng: np.where(rng.random(VOCAB) < 0.9999, -np.inf, rng.normal(0.0, 1.0, VOCAB)),
    "ramp": lambda rng: -1e-3 * rng.permutation(VOCAB).astype(np.float64),
}
LARGE_SAMPLERS = [
    Sampler(),
    Sampler(temperature=0.0),
    Sampler(top_k=50),
    Sampler(top_p=0.95),
    Sampler(temperature=0.8, top_k=1000, top_p=0.9, min_p=0.05),
    Sampler(temperature=100.0, top_p=0.5),
    Sampler(temperature=1e-3, top_p=0.999999),
    Sampler(top_k=60_000, top_p=math.nextafter(1, 0)),
    Sampler(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25, logit_bias={777: -100.0}, top_p=0.8),
]


@pytest.mark.parametrize("name", LARGE_ROWS)
def test_large_rows_agree_with_the_reference(name: str) -> None:
    rng = np.random.default_rng(3)
    history = [777, 5, 777, 777, 50_256]
    row = LARGE_ROWS[name](rng)
    for sampler in LARGE_SAMPLERS:
        law = sampler.bind(1, (), VOCAB).law(as_tokens(history), row)
        assert agree(law, Reference(sampler, history, 1, [], row.tolist())), sampler


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_every_temperature_in_every_float_type(dtype: type, temperature: float) -> None:
    # https://github.com/vllm-project/vllm/pull/27077 : zero temperature divided, half-sized logits overflowed.
    row: Float[np.ndarray, "vocab"] = np.array([60000.0, -60000.0, 59968.0, 60000.0, -np.inf], dtype=dtype)
    law = law_of(Sampler(temperature=temperature), row)
    assert np.isfinite(law.probs).all()
    assert law.dense(5).sum() == pytest.approx(1.0, abs=1e-12)
    if temperature < GREEDY_TEMPERATURE:
        assert law.dense(5).tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    elif temperature <= 1.0:
        np.testing.assert_allclose(law.dense(5), [0.5, 0.0, 0.0, 0.5, 0.0], atol=1e-12)
    else:
        np.testing.assert_allclose(law.dense(5)[2] / law.dense(5)[0], math.exp(-0.32), rtol=1e-12)


def test_just_above_greedy_agrees_with_greedy_where_gaps_are_large() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        row: Float[np.ndarray, "vocab"] = rng.permutation(20) / 4.0
        assert law_of(Sampler(temperature=1e-3), row).prob(int(np.argmax(row))) == 1.0


def test_temperature_changes_the_law_as_a_power() -> None:
    np.testing.assert_allclose(dense(Sampler(temperature=0.5), logs(0.6, 0.4)), [0.36 / 0.52, 0.16 / 0.52], rtol=1e-12)
    np.testing.assert_allclose(dense(Sampler(temperature=1.0), logs(0.6, 0.4)), [0.6, 0.4], rtol=1e-12)


@pytest.mark.parametrize("temperature", [0.0, 9.99e-6])
def test_greedy_takes_the_lowest_id_on_ties(temperature: float) -> None:
    sampler = Sampler(temperature=temperature)
    assert sampler.greedy
    assert dense(sampler, [1.0, 3.0, 3.0, 2.0, 3.0]) == [0.0, 1.0, 0.0, 0.0, 0.0]


def test_greedy_begins_below_its_temperature() -> None:
    assert not Sampler(temperature=1e-5).greedy
    assert len(law_of(Sampler(temperature=1e-5), [1.0, 1.0])) == 2


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (Sampler(top_k=2), [0.5, 0.5, 0.0, 0.0, 0.0]),
        (Sampler(top_k=3), [1 / 3, 1 / 3, 1 / 3, 0.0, 0.0]),
        (Sampler(top_p=0.4), [0.5, 0.5, 0.0, 0.0, 0.0]),
        (Sampler(top_p=0.41), [1 / 3, 1 / 3, 1 / 3, 0.0, 0.0]),
        (Sampler(top_k=4, top_p=0.5), [0.5, 0.5, 0.0, 0.0, 0.0]),
        (Sampler(min_p=1.0), [0.2] * 5),
    ],
)
def test_truncation_keeps_the_lowest_ids_on_ties(sampler: Sampler, expected: list[float]) -> None:
    np.testing.assert_allclose(dense(sampler, [0.0] * 5), expected, atol=1e-12)


def test_a_nucleus_is_the_fewest_that_reach_the_mass() -> None:
    row = logs(0.5, 0.3, 0.2)
    assert dense(Sampler(top_p=0.5 - 1e-9), row) == [1.0, 0.0, 0.0]
    np.testing.assert_allclose(dense(Sampler(top_p=0.5 + 1e-9), row), [0.625, 0.375, 0.0], atol=1e-12)
    assert dense(Sampler(top_p=1e-12), row) == [1.0, 0.0, 0.0]
    np.testing.assert_allclose(dense(Sampler(top_p=math.nextafter(1, 0)), row), [0.5, 0.3, 0.2], atol=1e-12)


def test_a_nucleus_is_of_what_top_k_left() -> None:
    # Of (.5, .3) the first has .625 of the mass; of the whole row it has .5.
    assert dense(Sampler(top_k=2, top_p=0.6), logs(0.5, 0.3, 0.2)) == [1.0, 0.0, 0.0]


def test_min_p_is_relative_to_the_likeliest() -> None:
    np.testing.assert_allclose(dense(Sampler(min_p=0.45), logs(0.5, 0.3, 0.2)), [0.625, 0.375, 0.0], atol=1e-12)


def test_repetition_penalty_moves_either_sign_down_and_counts_the_prompt() -> None:
    sampler = Sampler(repetition_penalty=2.0)
    bound = sampler.bind(2, (), 4)
    law = bound.law(as_tokens([0, 1, 1]), np.array([2.0, -2.0, 2.0, -2.0]))
    expected = np.exp([1.0, -4.0, 2.0, -2.0])
    np.testing.assert_allclose(law.probs, expected / expected.sum(), rtol=1e-12)


def test_presence_and_frequency_penalties_count_the_output_only() -> None:
    bound = Sampler(presence_penalty=0.5, frequency_penalty=0.25).bind(2, (), 4)
    law = bound.law(as_tokens([0, 0, 1, 1, 1, 2]), np.zeros(4))
    expected = np.exp([0.0, -1.25, -0.75, 0.0])
    np.testing.assert_allclose(law.probs, expected / expected.sum(), rtol=1e-12)


def test_min_tokens_holds_back_the_end_until_enough_are_out() -> None:
    bound = Sampler(min_tokens=2).bind(1, [2], 3)
    assert [bound.law(as_tokens([0] * n), np.zeros(3)).prob(2) > 0.0 for n in (1, 2, 3, 4)] == [
        False,
        False,
        True,
        True,
    ]


def test_allowed_and_banned_ids() -> None:
    np.testing.assert_allclose(
        dense(Sampler(allowed_token_ids=[0, 2, 3], banned_token_ids=[3]), [0.0] * 5), [0.5, 0.0, 0.5, 0.0, 0.0]
    )


def test_bias_comes_before_penalties_as_in_transformers() -> None:
    # (-1 + 3) / 2 = 1; the other way round it would be -1 * 2 + 3 = 1 for this id and differ for the next.
    bound = Sampler(logit_bias={0: 3.0, 1: -3.0}, repetition_penalty=2.0).bind(2, (), 3)
    law = bound.law(as_tokens([0, 1]), np.array([-1.0, 1.0, 0.0]))
    expected = np.exp([1.0, -4.0, 0.0])
    np.testing.assert_allclose(law.probs, expected / expected.sum(), rtol=1e-12)


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(temperature=0.0), Sampler(top_p=0.9), Sampler(top_k=2)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ([0.0, np.nan, 1.0], "hold NaN"),
        ([np.nan] * 3, "hold NaN"),
        ([np.inf, np.nan, 0.0], "hold NaN"),
        ([0.0, np.inf, 1.0], r"hold \+inf"),
        ([-np.inf] * 3, "are all -inf"),
    ],
)
def test_a_row_that_is_no_law_fails_the_request(sampler: Sampler, dtype: type, row: list[float], fault: str) -> None:
    with pytest.raises(RowError, match=f"the logits at position 4 {fault}: .*check the model file"):
        law_of(sampler, np.array(row, dtype=dtype), [0, 1, 2, 1])


def test_a_row_that_the_user_emptied_is_the_users_to_mend() -> None:
    with pytest.raises(RowError, match=r"after processing at position 1 are all -inf.*allowed and banned ids"):
        law_of(Sampler(allowed_token_ids=[1], banned_token_ids=[1]), [0.0, 0.0])
    with pytest.raises(RowError, match=r"after processing at position 1 hold NaN.*processors"):
        law_of(Sampler(processors=[lambda tokens, row: row * np.nan]), [0.0, 0.0])


def test_one_allowed_id_is_a_certainty() -> None:
    assert dense(Sampler(allowed_token_ids=[2], top_p=0.3, top_k=2), [5.0, 1.0, -3.0]) == [0.0, 0.0, 1.0]


class Recorder:
    """A processor that records what it saw."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[int], list[float]]] = []

    def __call__(self, tokens: Tokens, logits: Float[np.ndarray, "vocab"]) -> Float[np.ndarray, "vocab"]:
        self.seen.append((tokens.tolist(), logits.tolist()))
        logits[0] += 10.0
        return logits


def test_processors_see_the_committed_text_and_the_drafts_before_the_row() -> None:
    # https://github.com/osaurus-ai/vmlx-swift/issues/357 and a sibling: one token doubled, the draft missing.
    recorder = Recorder()
    table = np.arange(12.0).reshape(4, 3)
    laws = Sampler(processors=[recorder]).bind(2, (), 3).laws(as_tokens([0, 1, 2]), as_tokens([2, 1, 0]), table)
    assert len(laws) == 4
    for i in (0, 1, 3, 2, 1):
        laws[i]
    histories = [[0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 2, 1, 0], [0, 1, 2, 2, 1]]
    assert recorder.seen == [(history, table[i].tolist()) for history, i in zip(histories, (0, 1, 3, 2), strict=True)]
    assert table.tolist() == np.arange(12.0).reshape(4, 3).tolist()


def test_rows_that_nobody_asks_for_are_not_processed() -> None:
    recorder = Recorder()
    laws = Sampler(processors=[recorder]).bind(1, (), 3).laws(as_tokens([0]), as_tokens([1, 1]), np.zeros((3, 3)))
    assert recorder.seen == []
    laws[0]
    assert len(recorder.seen) == 1


def test_laws_index_like_a_sequence() -> None:
    laws = (
        Sampler().bind(1, (), 2).laws(as_tokens([0]), as_tokens([1, 1]), np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 9.0]]))
    )
    assert laws[-1] is laws[2]
    assert [law.probs.argmax() for law in laws[:2]] == [1, 0]
    assert [law.probs.argmax() for law in laws] == [1, 0, 1]
    for place in (3, -4):
        with pytest.raises(IndexError, match=f"row {place} of a pass of 3 rows"):
            laws[place]


def test_a_row_that_is_no_law_spoils_no_other_and_is_remembered() -> None:
    table = np.array([[0.0, 1.0], [np.nan, 0.0], [0.0, 0.0]])
    laws = Sampler().bind(1, (), 2).laws(as_tokens([0]), as_tokens([1, 1]), table)
    assert len(laws[0]) == len(laws[2]) == 2
    assert laws.fault is None
    for _ in range(2):
        with pytest.raises(RowError, match="position 2 hold NaN"):
            laws[1]
        assert laws.fault == 1


def test_scores_are_the_processed_logits_over_temperature_before_any_cut() -> None:
    sampler = Sampler(temperature=2.0, top_k=1, logit_bias={0: 4.0}, banned_token_ids=[2])
    row = np.array([0.0, 1.0, 3.0], dtype=np.float32)
    assert sampler.bind(1, (), 3).scores(as_tokens([0]), row).tolist() == [2.0, 0.5, -np.inf]
    greedy = Sampler(temperature=0.0, presence_penalty=1.0).bind(1, (), 3)
    assert greedy.scores(as_tokens([0, 1]), row).tolist() == [0.0, 0.0, 3.0]


def test_processors_run_in_order_after_the_masks_and_before_temperature() -> None:
    def double(tokens: Tokens, row: Float[np.ndarray, "vocab"]) -> Float[np.ndarray, "vocab"]:
        assert row[2] == -np.inf
        return row * 2.0

    def add(tokens: Tokens, row: Float[np.ndarray, "vocab"]) -> Float[np.ndarray, "vocab"]:
        row[0] += 1.0
        return row

    sampler = Sampler(temperature=2.0, banned_token_ids=[2], processors=[double, add])
    expected = np.exp([1.5, 2.0])
    np.testing.assert_allclose(dense(sampler, [1.0, 2.0, 9.0])[:2], expected / expected.sum(), rtol=1e-12)


def test_a_processor_may_not_write_into_the_text() -> None:
    def meddle(tokens: Tokens, row: Float[np.ndarray, "vocab"]) -> Float[np.ndarray, "vocab"]:
        tokens[0] = 1
        return row

    with pytest.raises(ProcessorError, match=r"meddle raised ValueError.*read-only.*at position 3"):
        law_of(Sampler(processors=[meddle]), [0.0, 0.0], [0, 1, 1])


def test_a_processor_may_answer_in_another_float_type() -> None:
    sampler = Sampler(processors=[lambda tokens, row: row.astype(np.float32)])
    np.testing.assert_allclose(dense(sampler, logs(0.25, 0.75)), [0.25, 0.75], rtol=1e-6)


@pytest.mark.parametrize("answer", [None, np.zeros(3), np.zeros((2, 1)), 1.0, "row"])
def test_a_processor_must_return_a_row(answer: Any) -> None:
    def broken(tokens: Tokens, row: Float[np.ndarray, "vocab"]) -> Any:
        return answer

    with pytest.raises(ProcessorError, match="processor broken"):
        law_of(Sampler(processors=[broken]), [0.0, 0.0])


def test_a_processor_that_raises_is_named() -> None:
    def grammar(tokens: Tokens, row: Float[np.ndarray, "vocab"]) -> Any:
        raise KeyError("no such state")

    with pytest.raises(ProcessorError, match=r"processor grammar raised KeyError: 'no such state' \(at position 2\)"):
        law_of(Sampler(processors=[grammar]), [0.0, 0.0], [0, 1])


def _emitted(rule: Rule, sampler: Sampler, draft: Draft, row: Any, seeds: int = 60) -> tuple[set[int], set[int]]:
    """Returns the tokens emitted and the numbers accepted, over seeds, with the same row at each place."""
    tokens: set[int] = set()
    accepted: set[int] = set()
    for seed in range(seeds):
        table = np.tile(np.asarray(row, dtype=np.float64), (len(draft) + 1, 1))
        laws = sampler.bind(1, [2], table.shape[1]).laws(as_tokens([0]), draft.tokens, table)
        verdict = rule.verify(laws, draft, CounterNoise(seed), 1)
        tokens |= {*draft.tokens[: verdict.accepted].tolist(), verdict.token}
        accepted.add(verdict.accepted)
    return tokens, accepted


@pytest.mark.parametrize("rule", [TokenRule(), CoupledRule()])
class TestEveryRowIsProcessed:
    """https://github.com/vllm-project/vllm/issues/42744 : drafted rows went through a shorter chain than the bonus."""

    def test_bias(self, rule: Rule) -> None:
        tokens, accepted = _emitted(rule, Sampler(logit_bias={3: -100.0}), Draft(as_tokens([3, 3, 3])), [0, 1, 2, 9])
        assert accepted == {0}
        assert 3 not in tokens

    def test_min_p(self, rule: Rule) -> None:
        tokens, accepted = _emitted(rule, Sampler(min_p=0.5), Draft(as_tokens([1, 0])), logs(0.6, 0.25, 0.15))
        assert accepted == {0}
        assert tokens == {0}

    def test_top_p(self, rule: Rule) -> None:
        tokens, accepted = _emitted(rule, Sampler(top_p=0.5), Draft(as_tokens([1])), logs(0.5, 0.3, 0.2))
        assert (tokens, accepted) == ({0}, {0})

    def test_bans(self, rule: Rule) -> None:
        tokens, _ = _emitted(rule, Sampler(banned_token_ids=[1]), Draft(as_tokens([0, 1, 1])), [0.0, 9.0, 0.0])
        assert 1 not in tokens

    def test_min_tokens(self, rule: Rule) -> None:
        # Two tokens must be out before the end (id 2): it may only come third.
        draft = Draft(as_tokens([0, 0, 2]))
        _, accepted = _emitted(rule, Sampler(min_tokens=2), draft, [2.0, -9.0, 2.0])
        assert accepted == {3, 2}
        _, accepted = _emitted(rule, Sampler(min_tokens=3), draft, [2.0, -9.0, 2.0])
        assert accepted == {2}

    def test_top_k_of_one_is_greedy(self, rule: Rule) -> None:
        row = [0.5, 2.0, 1.9, 2.0]
        one = _emitted(rule, Sampler(top_k=1), Draft(as_tokens([1, 1, 3])), row)
        greedy = _emitted(rule, Sampler(temperature=0.0), Draft(as_tokens([1, 1, 3])), row)
        assert one == greedy == ({1}, {2})

    def test_a_sampled_row_is_not_judged_greedily(self, rule: Rule) -> None:
        # https://github.com/ROCm/ATOM/pull/2318 : p = (.6, .4), draft [1, 1]; the bug never accepts.
        _, accepted = _emitted(rule, Sampler(), Draft(as_tokens([1, 1])), logs(0.6, 0.4, 0.0))
        assert accepted == {0, 1, 2}


@pytest.mark.parametrize(
    "penalty", [{"presence_penalty": 1.5}, {"frequency_penalty": 0.7}, {"repetition_penalty": 1.3}]
)
def test_a_rejected_draft_leaves_no_trace(penalty: dict[str, float]) -> None:
    # https://github.com/osaurus-ai/vmlx-swift/issues/357 : rejected drafts were counted for ever.
    bound = Sampler(**penalty).bind(1, (), 4)  # type: ignore[arg-type]
    row = np.array([1.0, 2.0, 3.0, 0.5])
    committed = as_tokens([0, 2])
    before = bound.law(committed, row).probs
    bound.laws(committed, as_tokens([1, 1, 1]), np.tile(row, (4, 1)))[3]
    assert bound.law(committed, row).probs.tolist() == before.tolist()
    assert committed.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("argument", "value", "remedy"),
    [
        ("temperature", -0.1, "use 0 for greedy decoding"),
        ("temperature", math.inf, "use 0 for greedy decoding"),
        ("temperature", math.nan, "use 0 for greedy decoding"),
        ("top_k", -1, "use 0 to keep all ids"),
        ("top_p", 0.0, "use 0 < top_p <= 1"),
        ("top_p", 1.5, "use 0 < top_p <= 1"),
        ("top_p", math.nan, "use 0 < top_p <= 1"),
        ("min_p", -0.1, "use 0 <= min_p <= 1"),
        ("min_p", 1.1, "use 0 <= min_p <= 1"),
        ("repetition_penalty", 0.0, "use a positive number"),
        ("repetition_penalty", math.inf, "use a positive number"),
        ("presence_penalty", math.nan, "use a finite number"),
        ("frequency_penalty", math.inf, "use a finite number"),
        ("min_tokens", -1, "use 0 or a positive count"),
        ("logit_bias", {3: math.nan}, "use finite numbers, or -inf to ban"),
        ("logit_bias", {3: math.inf}, "use finite numbers, or -inf to ban"),
        ("allowed_token_ids", [], "allow at least one id"),
    ],
)
def test_a_value_out_of_range_is_named_with_its_remedy(argument: str, value: Any, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        Sampler(**{argument: value})
    assert str(caught.value).startswith(f"{argument} {value!r} is out of range; {remedy}")


@pytest.mark.parametrize(
    "sampler", [Sampler(logit_bias={4: 1.0}), Sampler(allowed_token_ids=[4]), Sampler(banned_token_ids=[-1])]
)
def test_ids_outside_the_vocabulary_are_refused_when_bound(sampler: Sampler) -> None:
    with pytest.raises(UsageError, match=r"outside the vocabulary; use 0\.\.3"):
        sampler.bind(1, (), 4)


def test_parameters_of_one_request_do_not_leak_into_another() -> None:
    row = logs(0.5, 0.3, 0.2)
    bound = [Sampler(temperature=t).bind(1, (), 3) for t in (0.0, 1e-3, 1.0, 100.0)]
    alone = [each.law(as_tokens([0]), row).dense(3).tolist() for each in bound]
    mixed = [each.law(as_tokens([0]), row).dense(3).tolist() for each in reversed(bound)][::-1]
    assert mixed == alone
    assert len({tuple(each) for each in alone}) == 4


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", "0.7"),
        ("temperature", None),
        ("temperature", True),
        ("top_p", "1"),
        ("top_k", 2.5),
        ("min_tokens", "3"),
        ("presence_penalty", [1.0]),
    ],
)
def test_an_option_of_another_type_is_refused_by_name(unchecked: None, option: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{option} .* is not a"):
        Sampler(**{option: value})


def test_a_penalty_that_overflows_is_a_row_that_is_no_law() -> None:
    bound = Sampler(repetition_penalty=1e-320).bind(1, (), 3)
    with pytest.raises(RowError, match="after processing"):
        bound.law(as_tokens([0]), np.array([1.0, 0.0, -1.0]))
