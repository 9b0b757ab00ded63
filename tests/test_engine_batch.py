"""Many requests in one pass: ragged, joining and leaving, each as if alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from draftproof.engine import PREFILL_CHUNK, PREFILL_CHUNK_SHARED, Engine
from draftproof.models.base import Query
from draftproof.models.toy import ToyModel
from draftproof.request import Request
from draftproof.sampling import Sampler
from tests.doubles import FlakyModel, FunctionDrafter, oracle_drafter

GREEDY = Sampler(temperature=0)
TARGET = ToyModel.random(10, seed=21, order=3)


def test_unequal_prompts_and_acceptances_equal_single_runs() -> None:
    prompts = [[i % 10 for i in range(length)] for length in (3, 9, 17, 40)]
    right = oracle_drafter(TARGET)
    keep = {3: [0, 1, 3, 4], 9: [1, 3, 4, 0], 17: [3, 4, 0, 1], 40: [4, 0, 1, 3]}
    rounds = dict.fromkeys(keep, 0)

    def propose(tokens: np.ndarray) -> list[int]:
        length = max((each for each in keep if each <= len(tokens)), default=3)
        guess = list(right.propose(tokens))[:4]
        stands = keep[length][rounds[length] % 4]
        rounds[length] += 1
        return [token if i < stands else (token + 1) % 10 for i, token in enumerate(guess)]

    engine = Engine(TARGET, FunctionDrafter(propose), sampler=GREEDY, num_draft_tokens=4)
    expected = [Engine(TARGET, "none", sampler=GREEDY).generate(p, max_tokens=25 + i) for i, p in enumerate(prompts)]
    found = engine.generate_batch([Request(p, max_tokens=25 + i) for i, p in enumerate(prompts)])
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert {tuple(each.counts.acceptance_histogram) for each in found} != {(0, 0, 0, 0)}


def test_ten_requests_with_alphabets_of_their_own_never_mix() -> None:
    def table(tokens: np.ndarray) -> np.ndarray:
        logits = np.full(40, -np.inf)
        own = int(tokens[0]) // 4 * 4
        logits[own : own + 4] = np.random.default_rng([own, len(tokens), int(tokens[-1])]).normal(size=4)
        return logits

    target = ToyModel(table, 40)
    rng = np.random.default_rng(3)

    def own_letters(tokens: np.ndarray) -> list[int]:
        letters: list[int] = (int(tokens[0]) // 4 * 4 + rng.integers(0, 4, rng.integers(0, 6))).tolist()
        return letters

    drafter = FunctionDrafter(own_letters)
    requests = [Request([4 * i], max_tokens=int(rng.integers(3, 30))) for i in range(10)]
    expected = [Engine(target, "none", sampler=GREEDY).generate(request) for request in requests]
    engine = Engine(target, drafter, sampler=GREEDY, num_draft_tokens=5, max_batch_size=4)
    found = engine.generate_batch(requests)
    for i, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        assert mine.tokens == theirs.tokens
        assert {token // 4 for token in mine.tokens} == {i}


def test_parameters_do_not_leak_between_requests() -> None:
    samplers = [Sampler(temperature=t) for t in (0.0, 1e-10, 1e-6, 1e-3, 1.0, 100.0)]
    samplers += [Sampler(top_p=0.5), Sampler(top_k=1), Sampler(presence_penalty=2.0)]
    requests = [Request([1, 2], sampler=sampler, seed=6, max_tokens=20) for sampler in samplers]
    alone = [Engine(TARGET, "none").generate(request).tokens for request in requests]
    together = [each.tokens for each in Engine(TARGET, "suffix").generate_batch(requests)]
    assert together == alone
    assert alone[0] == alone[1] == alone[2] == alone[3] == alone[7]
    assert alone[0] != alone[5]


def test_speculation_is_switched_per_request() -> None:
    engine = Engine(TARGET, oracle_drafter(TARGET), sampler=GREEDY, num_draft_tokens=4)
    on, off = engine.generate_batch([[1, 2], Request([1, 2], speculate=False)], max_tokens=20)
    assert on.tokens == off.tokens
    assert on.counts.num_drafts > 0
    assert off.counts.num_drafts == 0


def test_requests_join_as_places_become_free_and_are_taken_lazily() -> None:
    taken: list[int] = []

    def requests() -> Iterator[Request]:
        for i in range(5):
            taken.append(i)
            yield Request([i], max_tokens=3 + i, seed=i)

    engine = Engine(TARGET, "none", max_batch_size=2)
    steps = engine.stream_batch(requests())
    next(steps)
    assert taken == [0, 1]
    finished = [step.completion for step in steps if step.completion is not None]
    assert sorted(len(each.tokens) for each in finished) == [3, 4, 5, 6, 7]
    assert taken == list(range(5))


def test_one_pass_serves_all_running_requests() -> None:
    widths: list[int] = []

    def note(queries: Sequence[Query]) -> bool:
        widths.append(len(queries))
        return False

    Engine(FlakyModel(TARGET, note), "none").generate_batch([[i] for i in range(6)], max_tokens=4)
    assert widths == [6] * 4


def test_a_long_prompt_is_read_in_chunks_and_does_not_stall_the_others() -> None:
    sizes: list[list[int]] = []
    model = ToyModel.random(10, seed=21, order=3)

    def note(queries: Sequence[Query]) -> bool:
        sizes.append([len(each.tokens) for each in queries])
        return False

    long = [i % 10 for i in range(1000)]
    engine = Engine(FlakyModel(model, note), "none", sampler=GREEDY)
    found = engine.generate_batch([[1, 2], long], max_tokens=20)
    assert found[1].tokens == Engine(model, "none", sampler=GREEDY).generate(long, max_tokens=20).tokens
    assert [each[1] for each in sizes[:3]] == [PREFILL_CHUNK_SHARED, 2 * PREFILL_CHUNK_SHARED, 3 * PREFILL_CHUNK_SHARED]
    assert [each[0] for each in sizes[:3]] == [2, 3, 4]
    sizes.clear()
    engine.generate([*long, 3], max_tokens=1)
    assert sizes[0][0] <= PREFILL_CHUNK + 1000


def test_the_prefix_of_an_earlier_request_is_used_again() -> None:
    engine = Engine(TARGET, "suffix", sampler=GREEDY)
    prompt = [i % 10 for i in range(50)]
    first = engine.generate(prompt, max_tokens=10)
    assert first.usage.cached_tokens == 0
    second = engine.generate([*prompt, *first.tokens, 3, 4], max_tokens=10)
    assert second.usage.cached_tokens >= 59
    other = engine.generate([*prompt[:30], 9, 9], max_tokens=10)
    assert other.usage.cached_tokens == 30
    for found, text in ((second, [*prompt, *first.tokens, 3, 4]), (other, [*prompt[:30], 9, 9])):
        assert found.tokens == Engine(TARGET, "none", sampler=GREEDY).generate(text, max_tokens=10).tokens


def test_an_empty_batch_is_empty() -> None:
    assert Engine(TARGET, "none").generate_batch([]) == []


def test_identical_requests_in_a_batch_do_not_disturb_each_other() -> None:
    found = Engine(TARGET, "suffix").generate_batch([Request([1], seed=3)] * 5, max_tokens=15)
    assert len({tuple(each.tokens) for each in found}) == 1


@pytest.mark.parametrize("size", [0, -3])
def test_a_batch_size_must_be_positive(size: int) -> None:
    with pytest.raises(ValueError, match=f"max_batch_size {size}"):
        Engine(TARGET, "none", max_batch_size=size)
