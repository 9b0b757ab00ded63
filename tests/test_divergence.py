"""A near tie is told from an error, on a backend whose wide passes round differently."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from draftproof.comparison import compare
from draftproof.divergence import find_divergence, first_difference
from draftproof.engine import Engine
from draftproof.models.base import Model, Query, Rows, Session
from draftproof.models.toy import ToyModel
from draftproof.request import Request
from draftproof.sampling import Sampler
from draftproof.types import as_tokens
from tests.doubles import constant_drafter, oracle_drafter

GREEDY = Sampler(temperature=0)


class RoundingModel(Model):
    """A toy whose passes over several rows are off by up to `error` in each logit."""

    def __init__(self, inner: ToyModel, error: float) -> None:
        self.inner = inner
        self.error = error
        self.name, self.vocab_size, self.context_length = inner.name, inner.vocab_size, inner.context_length
        self.eos_ids, self.tokenizer = inner.eos_ids, inner.tokenizer

    def session(self, slots: int = 1) -> Session:
        return _RoundingSession(self, slots)


class _RoundingSession(Session):
    model: RoundingModel

    def _forward(self, queries: Sequence[Query], keep: Sequence[int]) -> list[Rows]:
        found: list[Rows] = []
        for each in queries:
            text = np.concatenate([each.tokens, each.draft]).astype(np.int32)
            rows = [
                self.model.inner.table(text[: len(each.tokens) + i]).astype(np.float64)
                for i in range(len(each.draft) + 1)
            ]
            if len(rows) > 1:
                for i, row in enumerate(rows):
                    rng = np.random.default_rng([len(each.tokens) + i, len(rows)])
                    row += rng.uniform(-self.model.error, self.model.error, len(row))
            found.append(rows)
        return found


def tie_after(length: int, gap: float) -> ToyModel:
    """Repeats a letter, but after `length` tokens the two best are `gap` apart."""

    def table(tokens: np.ndarray) -> np.ndarray:
        logits = np.zeros(6)
        logits[(int(tokens[-1]) + 1) % 6] = 5.0
        if len(tokens) == length:
            logits[(int(tokens[-1]) + 2) % 6] = 5.0 - gap
        return logits

    return ToyModel(table, 6)


@pytest.mark.parametrize("seed", range(5))
def test_a_difference_within_the_rounding_is_a_near_tie(seed: int) -> None:
    model = RoundingModel(tie_after(9, 0.004), 0.01)
    plain = Engine(model, "none", sampler=GREEDY).generate([0, 1], max_tokens=20).tokens
    other = [*plain[:7], (plain[6] + 2) % 6]
    found = find_divergence(model, GREEDY.bind(2, (), 6), seed, as_tokens([0, 1]), plain, other)
    assert found is not None
    assert (found.index, found.expected, found.found) == (7, plain[7], other[7])
    assert found.gap == pytest.approx(0.004)
    assert 0 < found.rounding < 0.02
    assert found.near_tie


def test_a_difference_beyond_the_rounding_is_an_error() -> None:
    model = RoundingModel(tie_after(9, 2.0), 0.01)
    plain = Engine(model, "none", sampler=GREEDY).generate([0, 1], max_tokens=20).tokens
    other = [*plain[:7], (plain[6] + 2) % 6]
    found = find_divergence(model, GREEDY.bind(2, (), 6), 0, as_tokens([0, 1]), plain, other)
    assert found is not None
    assert found.gap == pytest.approx(2.0)
    assert not found.near_tie


def test_a_seeded_near_tie_is_measured_with_its_noise() -> None:
    model = RoundingModel(ToyModel.random(12, seed=5, spread=0.5), 0.05)
    sampler = Sampler(temperature=0.9)
    for seed in range(40):
        plain = Engine(model, "none", sampler=sampler).generate([0, 1], max_tokens=60, seed=seed)
        drafted = Engine(model, constant_drafter(3), sampler=sampler, num_draft_tokens=3)
        other = drafted.generate([0, 1], max_tokens=60, seed=seed)
        apart = find_divergence(model, sampler.bind(2, (), 12), seed, as_tokens([0, 1]), plain.tokens, other.tokens)
        if apart is not None:
            assert apart.near_tie
            assert 0 < apart.gap < 0.25
            return
    pytest.fail("rounding of .05 flipped none of 40 texts: the test shows nothing")


def test_texts_that_agree_have_no_divergence() -> None:
    bound = GREEDY.bind(1, (), 6)
    assert find_divergence(tie_after(9, 1.0), bound, 0, as_tokens([0]), [1, 2], [1, 2]) is None
    assert find_divergence(tie_after(9, 1.0), bound, 0, as_tokens([0]), [1, 2], [1, 2, 3]) is None
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([1, 2], [1, 2]) is None


@pytest.mark.parametrize(("error", "agree"), [(0.0, True), (0.01, False)])
def test_compare_reports_a_flip_as_a_near_tie(error: float, agree: bool) -> None:
    inner = tie_after(9, 0.0005)
    model = RoundingModel(inner, error)
    request = Request([0, 1], max_tokens=20)
    for k in range(2, 9):
        engine = Engine(model, oracle_drafter(inner), sampler=GREEDY, num_draft_tokens=k)
        comparison = compare(engine, request, engine.generate(request), rounds=1)
        assert comparison.same_text_expected
        assert comparison.speedup is not None
        assert comparison.speedup > 0
        if comparison.agree != agree:
            continue
        if not agree:
            assert comparison.divergence is not None
            assert comparison.divergence.near_tie
            assert comparison.as_dict()["divergence"]["near_tie"]
        return
    pytest.fail("no draft length behaved as expected")
