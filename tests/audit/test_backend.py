"""Audits of backends: toy ones that are exact, noisy, or forget to drop a draft."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import draftproof as dp
from draftproof.audit import Verdict, check_backend
from draftproof.errors import UsageError
from draftproof.models.base import Query, Rows
from draftproof.types import Tokens, as_tokens

VOCAB = 12
TARGET = dp.ToyModel.random(VOCAB, seed=3, order=3)
PROMPTS = [[1], [2, 3]]


def test_a_toy_is_exact_bit_for_bit() -> None:
    report = check_backend(TARGET, prompts=PROMPTS, tokens=64)
    assert report.verdict is Verdict.EXACT
    assert set(report.numbers) == {"2", "3", "5", "9", "17"}
    assert all(each["rows"] >= 64 for each in report.numbers.values())


def test_rounding_is_told_from_an_error() -> None:
    rng = np.random.default_rng(0)

    def noisy(tokens: Tokens) -> np.ndarray:
        return TARGET.table(tokens) + 0.02 * rng.standard_normal(VOCAB)

    report = check_backend(dp.ToyModel(noisy, VOCAB), prompts=PROMPTS, tokens=128)
    assert report.verdict is Verdict.NO_EVIDENCE
    assert all(0.01 < each["noise"] < 0.05 for each in report.numbers.values())
    assert all(each["largest_flip_gap"] < 0.2 for each in report.numbers.values())


class Forgetful(dp.ToyModel):
    """Keeps the last wrong token of a draft in its cache, as backends do that cannot cut it."""

    def session(self, slots: int = 1) -> dp.Session:
        return _Forgetful(self, super().session(slots))


class _Forgetful(dp.Session):
    def __init__(self, model: dp.Model, inner: dp.Session) -> None:
        super().__init__(model, 1)
        self._inner = inner
        self._last: Tokens = as_tokens([])

    def _forward(self, queries: Sequence[Query], keep: Sequence[int]) -> list[Rows]:
        query = queries[0]
        text = query.tokens.copy()
        if len(self._last) and len(text) > 3:
            text[-2] = self._last[-1]
        self._last = query.draft
        return self._inner.score([Query(0, text, query.draft)])


def test_a_cache_that_keeps_dropped_tokens_is_an_error() -> None:
    forgetful = Forgetful(TARGET.table, VOCAB)
    report = check_backend(forgetful, prompts=PROMPTS, tokens=64, widths=(4,))
    assert report.verdict is Verdict.NOT_EXACT
    assert report.family == "cache, mask or positions"
    assert report.findings[0].witness["total variation"] > 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": []}, "prompts"),
        ({"widths": (1,)}, "widths"),
        ({"tokens": 4}, "tokens 4"),
    ],
)
def test_wrong_usage(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_backend(TARGET, **({"prompts": PROMPTS} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [np.nan, -np.inf])
def test_numbers_that_are_none_are_no_rounding(factor: float) -> None:
    class Broken(dp.ToyModel):
        def session(self, slots: int = 1) -> dp.Session:
            return _Broken(self, super().session(slots))

    class _Broken(dp.Session):
        def __init__(self, model: dp.Model, inner: dp.Session) -> None:
            super().__init__(model, 1)
            self._inner = inner

        def _forward(self, queries: Sequence[Query], keep: Sequence[int]) -> list[Rows]:
            rows = self._inner.score(queries)[0]
            found = [rows[i].copy() for i in range(len(rows))]
            for row in found if len(found) > 1 else []:
                row[int(np.argmin(row))] = factor
            return [found]

    report = check_backend(Broken(TARGET.table, VOCAB), prompts=PROMPTS[:1], tokens=32, widths=(3,))
    assert report.verdict is Verdict.NOT_EXACT
    assert "NaN or infinite" in report.summary


def test_more_than_rounding_is_inconclusive() -> None:
    rng = np.random.default_rng(0)

    def noisy(tokens: Tokens) -> np.ndarray:
        return TARGET.table(tokens) + 0.1 * rng.standard_normal(VOCAB)

    report = check_backend(dp.ToyModel(noisy, VOCAB), prompts=PROMPTS, tokens=128)
    assert report.verdict is Verdict.INCONCLUSIVE


def test_a_context_too_short_is_refused() -> None:
    short = dp.ToyModel(TARGET.table, VOCAB, context_length=12)
    with pytest.raises(UsageError, match="no room for a pass over 17 rows"):
        check_backend(short, prompts=PROMPTS)
