"""One request's failure is its own: neighbours, later requests and what was already produced are untouched."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from draftproof.draft import ModelDrafter, NullDrafter
from draftproof.engine import Engine
from draftproof.errors import BackendError, ProcessorError, RequestError, RowError, UsageError
from draftproof.models.toy import ToyModel
from draftproof.request import Request
from draftproof.sampling import Sampler
from tests.doubles import FailingDrafter, FlakyModel, FunctionDrafter, oracle_drafter, random_drafter, scripted_model

GREEDY = Sampler(temperature=0)
TARGET = ToyModel.random(9, seed=5, order=2)


def breaking(model: ToyModel, length: int, row: np.ndarray) -> ToyModel:
    """The model, but with a broken row after `length` tokens in texts that begin with 7."""
    return ToyModel(
        lambda tokens: row if len(tokens) == length and tokens[0] == 7 else model.table(tokens), model.vocab_size
    )


@pytest.mark.parametrize("row", [np.full(9, np.nan), np.full(9, -np.inf), np.full(9, np.inf)])
@pytest.mark.parametrize("drafter", ["none", "suffix", "good"])
def test_a_row_that_is_no_law_fails_there_and_nothing_before_is_lost(row: np.ndarray, drafter: str) -> None:
    target = breaking(TARGET, 9, row)
    chosen = oracle_drafter(TARGET) if drafter == "good" else drafter
    engine = Engine(target, chosen, sampler=GREEDY, num_draft_tokens=5)
    expected = Engine(TARGET, NullDrafter(), sampler=GREEDY).generate([7, 1], max_tokens=7).tokens
    with pytest.raises(RowError, match="position 9") as failure:
        engine.generate([7, 1], max_tokens=20)
    assert failure.value.completion is not None
    assert failure.value.completion.tokens == expected
    assert failure.value.completion.finish_reason == "error"
    stream = engine.stream([7, 1], max_tokens=20)
    shown: list[int] = []
    with pytest.raises(RowError):  # noqa: PT012 - what was streamed before the error is the point
        for step in stream:
            shown += step.tokens
    assert shown == expected
    others = engine.generate_batch([[1, 2], [7, 1], [3, 3]], max_tokens=20)
    assert [each.finish_reason for each in others] == ["length", "error", "length"]
    assert others[1].tokens == expected
    assert others[0].tokens == Engine(TARGET, NullDrafter(), sampler=GREEDY).generate([1, 2], max_tokens=20).tokens


def test_the_accepted_part_of_a_block_before_a_broken_row_keeps_the_law() -> None:
    # Whatever the drafts, the seeded text up to the broken row is plain decoding's.
    target = breaking(TARGET, 9, np.full(9, np.nan))
    for seed in range(20):
        expected = Engine(TARGET, "none").generate([7, 1], max_tokens=7, seed=seed).tokens
        with pytest.raises(RowError) as failure:
            Engine(target, random_drafter(9, seed), num_draft_tokens=6).generate([7, 1], max_tokens=20, seed=seed)
        assert failure.value.completion is not None
        assert failure.value.completion.tokens == expected


def test_a_processor_that_raises_fails_its_request_alone() -> None:
    def bad(tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        if len(tokens) > 6:
            raise KeyError("grammar")
        return logits

    def wrong_shape(tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        return logits[:3]

    def meddling(tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        tokens[0] = 1
        return logits

    engine = Engine(TARGET, "suffix", sampler=GREEDY)
    found = engine.generate_batch(
        [
            Request([1], sampler=Sampler(temperature=0, processors=[bad])),
            Request([1]),
            Request([1], sampler=Sampler(processors=[wrong_shape])),
            Request([1], sampler=Sampler(processors=[meddling])),
        ],
        max_tokens=12,
    )
    assert [each.finish_reason for each in found] == ["error", "length", "error", "error"]
    assert isinstance(found[0].error, ProcessorError)
    assert "grammar" in str(found[0].error)
    assert len(found[0].tokens) == 6
    assert "shape" in str(found[2].error)
    assert "read-only" in str(found[3].error)


@pytest.mark.parametrize("drafter", ["none", "suffix"])
def test_a_pass_that_fails_once_is_survived_by_the_batch(drafter: str) -> None:
    calls = iter(range(10_000))
    target = FlakyModel(TARGET, lambda queries: next(calls) == 9)
    found = Engine(target, drafter, sampler=GREEDY, num_draft_tokens=3).generate_batch([[1], [2], [3]], max_tokens=15)
    expected = Engine(TARGET, "none", sampler=GREEDY).generate_batch([[1], [2], [3]], max_tokens=15)
    assert [each.tokens for each in found] == [each.tokens for each in expected]


def test_a_request_whose_passes_fail_ends_alone() -> None:
    target = FlakyModel(TARGET, lambda queries: any(q.tokens[0] == 2 and len(q.tokens) > 6 for q in queries))
    engine = Engine(target, "none", sampler=GREEDY)
    found = engine.generate_batch([[1], [2], [3]], max_tokens=15)
    assert [each.finish_reason for each in found] == ["length", "error", "length"]
    assert isinstance(found[1].error, BackendError)
    assert "fell over" in str(found[1].error)
    assert len(found[1].tokens) == 6
    with pytest.raises(BackendError):
        engine.generate([2], max_tokens=15)
    assert engine.generate([1], max_tokens=15).tokens == found[0].tokens


@pytest.mark.parametrize("hook", ["begin", "propose", "observe"])
def test_a_failing_drafter_is_switched_off_for_its_request_and_reported(hook: str) -> None:
    expected = Engine(TARGET, "none").generate_batch([[1], [2], [3]], max_tokens=15, seed=0)
    drafter = FailingDrafter(hook, token=2, after=0 if hook == "begin" else 2)
    found = Engine(TARGET, drafter, num_draft_tokens=2).generate_batch([[1], [2], [3]], max_tokens=15, seed=0)
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert [each.finish_reason for each in found] == ["length"] * 3
    assert f"no luck in {hook}" in str(found[1].drafter_error)
    assert found[0].drafter_error is None
    assert found[0].counts.num_drafts > 10
    assert found[1].counts.num_drafts < 10


def test_a_draft_of_impossible_ids_switches_the_drafter_off() -> None:
    expected = Engine(TARGET, "none").generate([1], max_tokens=9, seed=0)
    found = Engine(TARGET, FunctionDrafter(lambda tokens: [99]), num_draft_tokens=2).generate([1], max_tokens=9, seed=0)
    assert found.tokens == expected.tokens
    assert "99" in str(found.drafter_error)


def test_a_draft_model_with_broken_rows_is_switched_off_and_the_text_stays_exact() -> None:
    broken = breaking(TARGET, 4, np.full(9, np.nan))
    engine = Engine(TARGET, ModelDrafter(broken), num_draft_tokens=3)
    found = engine.generate_batch([[7, 1], [1, 1]], seed=2, max_tokens=15)
    expected = Engine(TARGET, "none").generate_batch([[7, 1], [1, 1]], seed=2, max_tokens=15)
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert found[0].drafter_error is not None
    assert found[1].drafter_error is None


@pytest.mark.parametrize("drafter", ["none", "suffix", "ngram"])
def test_a_stream_closed_early_leaves_the_engine_ready(drafter: str) -> None:
    engine = Engine(TARGET, drafter, num_draft_tokens=4)
    expected = engine.generate([1, 2], seed=1, max_tokens=20).tokens
    for taken in range(4):
        stream = engine.stream([1, 2], seed=1, max_tokens=20)
        for _ in range(taken):
            next(stream)
        stream.close()  # type: ignore[attr-defined]
    assert engine.generate([1, 2], seed=1, max_tokens=20).tokens == expected
    assert engine._running.count(None) == len(engine._running)


def test_streams_may_be_interleaved() -> None:
    engine = Engine(TARGET, "suffix")
    prompts = [[1], [2, 2], [3, 1, 4]]
    expected = [engine.generate(prompt, seed=8, max_tokens=16).tokens for prompt in prompts]
    streams = [engine.stream(prompt, seed=8, max_tokens=16) for prompt in prompts]
    found: list[list[int]] = [[] for _ in prompts]
    alive = set(range(len(prompts)))
    while alive:
        for i in sorted(alive):
            step = next(streams[i], None)
            if step is None:
                alive.discard(i)
            else:
                found[i] += step.tokens
    assert found == expected


def test_more_streams_than_places_are_refused_and_the_running_ones_go_on() -> None:
    engine = Engine(TARGET, "none", max_batch_size=2)
    first, second, third = (engine.stream([i], seed=1, max_tokens=6) for i in (1, 2, 3))
    begun = [next(first), next(second)]
    with pytest.raises(UsageError, match="all 2 places"):
        next(third)
    assert len(begun[0].tokens) + sum(len(step.tokens) for step in first) == 6
    assert engine.generate([3], seed=1, max_tokens=6).finish_reason == "length"
    second.close()  # type: ignore[attr-defined]


def test_an_engine_serves_several_threads() -> None:
    engine = Engine(TARGET, "suffix")
    expected = {i: Engine(TARGET, "none").generate([i], seed=i, max_tokens=30).tokens for i in range(6)}
    found: dict[int, list[int]] = {}

    def work(i: int) -> None:
        found[i] = engine.generate([i], seed=i, max_tokens=30).tokens

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_an_error_of_the_caller_between_steps_harms_nothing() -> None:
    engine = Engine(TARGET, "suffix")
    expected = engine.generate([1], seed=1, max_tokens=10).tokens

    def consume() -> None:
        for _ in engine.stream([1], seed=1, max_tokens=10):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()
    assert engine.generate([1], seed=1, max_tokens=10).tokens == expected


def test_the_error_of_a_request_is_in_the_tree() -> None:
    for kind in (BackendError, ProcessorError, RowError):
        assert issubclass(kind, RequestError)


def test_scripted_rows_of_minus_infinity_but_one_are_a_law() -> None:
    model = scripted_model([1, 2], 1, 4)
    only = ToyModel(lambda tokens: np.where(np.arange(4) == 2, 0.0, -np.inf), 4)
    assert Engine(only, "none").generate([1], max_tokens=3).tokens == [2, 2, 2]
    assert Engine(model, "none", sampler=GREEDY).generate([0], max_tokens=2).tokens == [1, 2]


def test_closing_the_engine_under_open_streams_costs_a_replay_and_nothing_else() -> None:
    engine = Engine(TARGET, "suffix", sampler=GREEDY)
    expected = [engine.generate([i], max_tokens=12).tokens for i in (1, 2)]
    streams = [engine.stream([i], max_tokens=12) for i in (1, 2)]
    found = [list(next(stream).tokens) for stream in streams]
    engine.close()
    for each, stream in zip(found, streams, strict=True):
        each += [token for step in stream for token in step.tokens]
    assert found == expected


def test_a_batch_waits_for_places_that_a_stream_holds() -> None:
    engine = Engine(TARGET, "none", sampler=GREEDY, max_batch_size=2)
    stream = engine.stream([3], max_tokens=12)
    next(stream)
    found = engine.generate_batch([[1], [2]], max_tokens=12)
    assert [len(each.tokens) for each in found] == [12, 12]
    stream.close()  # type: ignore[attr-defined]


def test_a_seed_under_the_token_rule_is_refused_with_a_drafter_that_remembers() -> None:
    # The memory holds a text drawn with the same coins, so the draft would not be independent of them.
    from draftproof.draft import SuffixDrafter

    engine = Engine(TARGET, SuffixDrafter(memory_tokens=100), "token")
    with pytest.raises(UsageError, match="remembers"):
        engine.generate([1], seed=1, max_tokens=5)
    assert len(engine.generate([1], max_tokens=5).tokens) == 5
    coupled = Engine(TARGET, SuffixDrafter(memory_tokens=100))
    assert coupled.generate([1], seed=1, max_tokens=5).rule == "coupled"


def test_a_rule_that_raises_fails_its_request_alone() -> None:
    from draftproof.rules import CoupledRule
    from draftproof.types import Draft, Verdict

    class Moody(CoupledRule):
        exact = False

        def verify(self, p, draft: Draft, noise, start: int) -> Verdict:  # type: ignore[no-untyped-def]
            if int(p[0].support()[0]) == first and start == 4:
                raise ArithmeticError("no verdict")
            return super().verify(p, draft, noise, start)

    first = Engine(TARGET, "none", sampler=GREEDY).generate([1, 1], max_tokens=3).tokens[2]
    found = Engine(TARGET, "none", Moody(), GREEDY).generate_batch([[1, 1], [1, 1, 1, 1, 1]], max_tokens=6)
    assert [each.finish_reason for each in found] == ["error", "length"]
    assert "no verdict" in str(found[0].error)
    assert len(found[0].tokens) == 2


def test_a_drafter_cannot_write_into_the_text() -> None:
    def meddling(tokens: np.ndarray) -> list[int]:
        tokens[0] = 3
        return [1]

    found = Engine(TARGET, FunctionDrafter(meddling), num_draft_tokens=2).generate([1, 2], seed=1, max_tokens=6)
    assert found.tokens == Engine(TARGET, "none").generate([1, 2], seed=1, max_tokens=6).tokens
    assert "read-only" in str(found.drafter_error)


def test_an_interrupt_while_a_request_gets_its_place_gives_the_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine("toy:pair", "suffix", max_batch_size=1)
    join = engine._join

    def interrupted(*arguments: Any) -> bool:
        join(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "_join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.generate("abc", max_tokens=4)
    monkeypatch.undo()
    assert len(engine.generate("abc", max_tokens=4).tokens) == 4
