"""The draft length is the best over all lengths, looks only back, and gets out of the way when nothing pays."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.cost import CostTable, measure, row_counts
from draftproof.draft import ModelDrafter
from draftproof.engine import Engine
from draftproof.errors import UsageError
from draftproof.models.base import Session
from draftproof.models.toy import ToyModel
from draftproof.policy import FIRST_DRAFT, MARGIN, AcceptanceRate, FixedLength, PayingLength
from draftproof.sampling import Sampler
from draftproof.types import as_tokens
from tests.doubles import FunctionDrafter, oracle_drafter, scripted_model


def costs(curve: dict[int, float], context: int = 10) -> CostTable:
    table = CostTable()
    for rows, seconds in curve.items():
        table.observe(rows, context, seconds)
    return table


def survival(rate: float, length: int = 24) -> np.ndarray:
    return rate ** np.arange(1, length + 1)


FLAT = costs({1: 1.0, 64: 1.0})
STEEP = costs({1: 1.0, 2: 2.0, 3: 3.0})
STAIRS = costs({1: 1.0, 2: 1.7, 3: 1.75, 4: 1.8, 5: 2.6, 8: 2.65})


class Frozen(PayingLength):
    """Costs as given, whatever the clock says."""

    def observe_pass(self, rows: int, context: int, seconds: float) -> None:
        return None

    def observe_draft(self, tokens: int, seconds: float) -> None:
        return None

    def prepare(self, session: Session, slot: int, tokens: np.ndarray) -> None:
        return None


def brute_force(rate: float, table: CostTable, limit: int) -> tuple[int, float]:
    """Returns the best k and its speed, by trying each against S(k) = E[N] / v(k+1)."""
    one = table.curve(1, 10)[0]
    speeds = [(1 - rate ** (k + 1)) / (1 - rate) / (table.curve(k + 1, 10)[k] / one) for k in range(limit + 1)]
    best = max(range(limit + 1), key=lambda k: speeds[k])
    return best, speeds[best]


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99])
@pytest.mark.parametrize("table", [FLAT, STEEP, STAIRS], ids=["flat", "steep", "stairs"])
def test_the_best_length_over_all_lengths_is_chosen(rate: float, table: CostTable) -> None:
    best, speed = brute_force(rate, table, 24)
    (chosen,) = PayingLength(table).choose([survival(rate)], 10)
    assert chosen == (best if speed > MARGIN else 0)


def test_a_marginal_test_would_stop_before_the_stair_that_pays() -> None:
    # One row more costs .7 and brings .65: no gain. Two or three more cost .75 and .8, and pay.
    assert brute_force(0.65, STAIRS, 1)[0] == 0
    assert PayingLength(STAIRS).choose([survival(0.65)], 10)[0] >= 2


def test_nothing_is_drafted_when_nothing_pays() -> None:
    assert PayingLength(STEEP).choose([survival(0.9)], 10) == [0]
    assert PayingLength(FLAT).choose([survival(0.005)], 10) == [0]
    assert PayingLength(FLAT).choose([np.zeros(0), np.zeros(0)], 10) == [0, 0]


@given(
    st.lists(st.lists(st.floats(0.0, 1.0), max_size=4), min_size=1, max_size=3),
    st.lists(st.floats(0.0, 1.0), min_size=15, max_size=15),
)
def test_running_requests_share_a_pass_as_well_as_any_split_could(
    chains: list[list[float]], increments: list[float]
) -> None:
    survivals = [np.cumprod(np.array(chain, dtype=np.float64)) for chain in chains]
    seconds = 1.0 + np.concatenate([[0.0], np.cumsum(increments)])
    table = costs({rows + 1: float(seconds[rows]) for rows in range(16)})
    chosen = PayingLength(table).choose(survivals, 10)

    def speed(lengths: tuple[int, ...]) -> float:
        tokens = sum(1.0 + survivals[r][:length].sum() for r, length in enumerate(lengths))
        return float(tokens / seconds[len(chains) + sum(lengths) - 1])

    splits = np.ndindex(*(len(each) + 1 for each in survivals))
    best = max(speed(split) for split in splits)
    assert speed(tuple(chosen)) >= best / MARGIN - 1e-12
    if sum(chosen):
        assert speed(tuple(chosen)) == pytest.approx(best)


def test_a_fixed_length_is_fixed() -> None:
    policy = FixedLength(3)
    assert policy.choose([survival(0.01), survival(0.9, 2)], 10) == [3, 2]
    assert [policy.proceed(0.0, offset, 10) for offset in range(5)] == [True] * 3 + [False] * 2
    with pytest.raises(UsageError, match="-1"):
        FixedLength(-1)


@pytest.mark.parametrize(
    ("rate", "cost", "length"), [(0.6, 0.1, 3), (0.8, 0.05, 8), (0.8, 0.1, 6), (0.9, 0.05, 13), (0.9, 0.02, 19)]
)
def test_sampled_drafts_stop_at_the_best_length(rate: float, cost: float, length: int) -> None:
    policy = PayingLength(FLAT)
    policy.observe_draft(10, 10 * cost)
    drawn = 0
    while policy.proceed(rate ** (drawn + 1), drawn, 10):
        drawn += 1
    assert drawn == length


def test_sampled_drafts_stop_at_once_when_a_draft_token_costs_more_than_it_brings() -> None:
    policy = PayingLength(FLAT)
    policy.observe_draft(1, 0.5)
    assert not policy.proceed(0.4, 0, 10)
    assert policy.proceed(0.6, 0, 10)


def test_a_rate_near_a_threshold_does_not_flip_the_length_to_and_fro() -> None:
    rng = np.random.default_rng(0)
    policy, rate, lengths = PayingLength(STAIRS), AcceptanceRate(), []
    for _ in range(500):
        (length,) = policy.choose([survival(rate.rate)], 10)
        if not length and rate.due:
            length = 1
        accepted = int(np.argmin(np.append(rng.random(length) < 0.62, False)))
        rate.observe(length, accepted)
        lengths.append(length > 0)
    switches = sum(a != b for a, b in pairwise(lengths))
    assert switches <= 25


def test_the_door_is_knocked_at_again_and_opens() -> None:
    curve = costs({1: 1.0, 2: 1.4, 4: 2.0, 8: 3.5, 16: 6.0})
    policy, rate = PayingLength(curve), AcceptanceRate()

    def step(good: bool) -> int:
        (length,) = policy.choose([survival(rate.rate)], 10)
        if not length and rate.due:
            length = 1
        rate.observe(length, length if good else 0)
        return length

    closed = [step(False) for _ in range(200)]
    assert sum(closed[10:]) <= 6
    opened = [step(True) for _ in range(300)]
    assert max(opened[:260]) > 1
    assert opened[-1] >= 8


def test_full_acceptance_lets_the_length_grow() -> None:
    policy, rate = PayingLength(costs({1: 1.0, 2: 1.1, 24: 3.3})), AcceptanceRate()
    lengths = []
    for _ in range(40):
        (length,) = policy.choose([survival(rate.rate)], 10)
        rate.observe(length, length)
        lengths.append(length)
    assert lengths[-1] > lengths[0]
    assert rate.rate > 0.9


def test_what_one_request_learnt_is_not_carried_to_the_next() -> None:
    model = scripted_model([1, 2, 3], 1, 5)
    engine = Engine(model, FunctionDrafter(lambda tokens: [4] * 8), num_draft_tokens="auto")
    engine.policy = Frozen(STAIRS)
    first = engine.generate([0], max_tokens=60).counts
    second = engine.generate([0], max_tokens=60).counts
    assert first.num_draft_tokens == second.num_draft_tokens
    assert 0 < first.num_drafts < 20


def test_drafts_of_no_use_cost_almost_nothing() -> None:
    # The cost of all passes by the table, over plain decoding's: never under .95 of its speed.
    model = ToyModel.random(50, seed=2, spread=4.0)
    rng = np.random.default_rng(1)
    engine = Engine(model, FunctionDrafter(lambda tokens: rng.integers(0, 50, 16).tolist()))
    table = costs({1: 1.0, 2: 1.45, 4: 2.05, 8: 3.5, 16: 6.3, 32: 12.0})
    engine.policy = Frozen(table)
    spent = 0.0
    tokens = 0
    for step in engine.stream([1], max_tokens=400):
        spent += float(table.curve(step.num_draft_tokens + 1, 10)[-1])
        tokens += len(step.tokens)
    assert tokens / spent > 0.95


def test_good_drafts_reach_the_predicted_speed() -> None:
    model = ToyModel.random(9, seed=2)
    engine = Engine(model, oracle_drafter(model, wrong_every=9))
    table = costs({1: 1.0, 24: 1.5})
    engine.policy = Frozen(table)
    spent = sum(
        float(table.curve(step.num_draft_tokens + 1, 10)[-1])
        for step in engine.stream([1], max_tokens=400, sampler=Sampler(temperature=0))
    )
    assert 400 / spent > 4.0


def test_the_cost_of_a_noisy_moment_is_forgotten() -> None:
    table = costs({1: 1.0})
    for _ in range(10):
        table.observe(2, 10, 1.5)
    table.observe(2, 10, 90.0)
    assert table.curve(2, 10)[1] == 1.5


def test_a_pass_costs_no_more_than_a_wider_one() -> None:
    table = costs({1: 1.0, 2: 1.4, 3: 9.0, 4: 1.8})
    assert table.curve(4, 10).tolist() == [1.0, 1.4, 1.8, 1.8]


def test_costs_between_and_beyond_the_measured_ones() -> None:
    table = costs({1: 1.0, 3: 2.0, 5: 4.0})
    assert table.curve(7, 10).tolist() == [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert CostTable().curve(3, 10).tolist() == [1.0, 1.0, 1.0]
    assert not CostTable().measured
    assert not costs({1: 1.0}).measured


def test_a_longer_context_takes_over_ratios_until_it_has_its_own() -> None:
    table = costs({1: 1.0, 2: 1.5, 4: 3.0}, context=100)
    table.observe(1, 3000, 2.0)
    assert table.curve(4, 3000).tolist() == [2.0, 3.0, 4.5, 6.0]
    table.observe(4, 3000, 7.0)
    assert table.curve(4, 3000).tolist() == [2.0, 3.0, 5.0, 7.0]
    assert table.curve(4, 100).tolist() == [1.0, 1.5, 2.25, 3.0]


def test_measuring_times_every_row_count_and_keeps_the_text() -> None:
    model = ToyModel.random(9, context_length=100)
    with model.session() as session:
        table = CostTable()
        measure(session, 0, as_tokens([1, 2, 3]), table, 25)
        assert table.measured_at(3)
        assert not table.measured_at(600)
        assert session.prefix_length(0, as_tokens([1, 2, 3])) == 3
    assert row_counts(25) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 25]
    assert row_counts(4) == [1, 2, 3, 4]


def test_a_text_that_grows_has_its_cost_measured_again() -> None:
    model = ToyModel.random(9, context_length=4096)
    with model.session() as session:
        policy = PayingLength()
        for length in (10, 20, 600, 700, 3000):
            policy.prepare(session, 0, as_tokens([1] * length))
            assert policy.costs.measured_at(length)
        assert not policy.costs.measured_at(1500)


def test_auto_on_a_draft_model_drafts_when_it_pays() -> None:
    target = ToyModel.random(9, seed=4)
    engine = Engine(target, ModelDrafter(ToyModel.random(9, seed=4, mix=0.1)))
    engine.policy = Frozen(FLAT)
    counts = engine.generate([1], max_tokens=60).counts
    assert counts.tokens_per_pass is not None
    assert counts.tokens_per_pass > 3.0


def test_a_rectangular_pass_has_one_length_for_all() -> None:
    """Where a row that one request needs is computed for all, the others' drafts ride along."""
    sure, doubtful = survival(0.95, 4), survival(0.3, 4)
    flat = costs({1: 1.0, 2: 1.0, 4: 1.0, 6: 1.01, 8: 1.02, 10: 1.03, 25: 2.0})
    assert PayingLength(flat).choose([sure, doubtful], 10, True) == [4, 4]
    assert PayingLength(flat).choose([sure, doubtful[:1]], 10, True) == [4, 1]
    # Three rows are cheap and four are not: apart, the surer draft alone would get its row.
    steep = costs({1: 1.0, 2: 1.0, 3: 1.1, 4: 2.4, 6: 3.6, 8: 4.8, 10: 6.0, 25: 15.0})
    assert PayingLength(steep).choose([sure, doubtful], 10, True) == [0, 0]
    assert PayingLength(steep).choose([sure, doubtful], 10) == [1, 0]
    assert PayingLength(steep).choose([np.zeros(0), np.zeros(0)], 10, True) == [0, 0]


def test_a_sampled_draft_is_short_while_its_cost_is_unknown() -> None:
    policy = PayingLength(FLAT)
    assert [policy.proceed(0.9**i, i - 1, 10) for i in range(1, 7)] == [True] * FIRST_DRAFT + [False] * 2
    policy.observe_draft(4, 0.0)
    assert policy.proceed(0.9**9, 8, 10)


def test_one_slow_draft_does_not_close_the_door() -> None:
    """A pause of the machine, or a text that the draft model had to catch up with: the median stands."""
    policy = PayingLength(FLAT)
    for _ in range(5):
        policy.observe_draft(4, 0.04)
    policy.observe_draft(1, 30.0)
    assert policy.proceed(0.8, 0, 10)


def test_reading_a_prompt_is_no_cost_of_drafting() -> None:
    class Recording(Frozen):
        calls = 0

        def observe_draft(self, tokens: int, seconds: float) -> None:
            self.calls += 1

    engine = Engine(ToyModel.random(8), ModelDrafter(ToyModel.random(8, mix=0.2)), num_draft_tokens=2)
    engine.policy = policy = Recording(FLAT)
    for _ in range(2):
        policy.calls = 0
        drafts = [step.num_draft_tokens for step in engine.stream([1, 2, 3], max_tokens=20)]
        assert policy.calls == sum(1 for length in drafts if length) - 1
