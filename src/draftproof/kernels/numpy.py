"""The batched acceptance step on NumPy arrays: the references themselves, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from draftproof.distribution import Distribution
from draftproof.errors import DraftError, RowError
from draftproof.kernels.problem import Problem, Shaping, check_law, host, rows_of
from draftproof.kernels.rowwise import LawMaker, judge, verify_rows
from draftproof.types import NO_TOKENS


def take(given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the arguments as NumPy arrays; tensors on a CPU are looked at where they lie."""
    return {name: host(name, value) for name, value in given.items()}


def floats(values: Any, like: np.ndarray) -> Float[np.ndarray, "..."]:
    """Returns numbers as float64."""
    return host("options", values).astype(np.float64)


def integers(values: Any, like: np.ndarray) -> Int[np.ndarray, "..."]:
    """Returns numbers as int64."""
    return host("options", values).astype(np.int64)


def full(value: float, like: np.ndarray) -> np.ndarray:
    """Returns a number for each row of a batch."""
    return np.full(len(like), value)


def known(array: np.ndarray) -> bool:
    """Returns whether looking at the values costs no wait for a device: always."""
    return True


def on_host(problem: Problem, row: int) -> Problem:
    """Returns the problem of one row."""
    return rows_of(problem, row, row + 1)


def verify(
    problem: Problem,
) -> tuple[Int[np.ndarray, "batch"], Int[np.ndarray, "batch places"], Bool[np.ndarray, "batch"]]:
    """See `Kernel.verify`."""
    return verify_rows(problem, *_makers(problem))


def fault(problem: Problem) -> str:
    """Returns why the only row of a problem cannot be judged."""
    try:
        judge(problem, 0, *_makers(problem))
    except (RowError, DraftError) as error:
        return str(error)
    return 'in this precision a law is none, or gives a draft token probability 0; try precision="float64"'


def _makers(problem: Problem) -> tuple[LawMaker, LawMaker | None]:
    draft = problem.draft
    target = _maker(problem.target, problem.shaping, "the target's row", problem.tolerances[0])
    if draft is None:
        return target, None
    return target, _maker(draft, problem.draft_shaping, "the draft's row", problem.tolerances[1])


def _maker(
    rows: Float[np.ndarray, "batch places vocab"], shaping: Shaping | None, name: str, tolerance: float
) -> LawMaker:
    if shaping is None:
        return lambda row, place: law_of_probs(rows[row, place], f"{name} {place}", tolerance)
    samplers = [shaping.sampler(row).bind(0, (), rows.shape[2]) for row in range(len(rows))]

    def law(row: int, place: int) -> Distribution:
        try:
            return samplers[row].law(NO_TOKENS, rows[row, place])
        except RowError:
            raise RowError(f"{name} {place} of logits is no law: NaN, +inf, or all -inf; check the model") from None

    return law


def law_of_probs(row: Float[np.ndarray, "vocab"], name: str, tolerance: float) -> Distribution:
    """Returns the law of a row of probabilities, divided by its sum.

    Raises:
        RowError: if it is none: negative, NaN, or with a sum that rounding cannot explain.
    """
    weights = row.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        total, least = float(weights.sum()), float(weights.min())
    check_law(name, total, least, tolerance)
    return Distribution.normalised(weights / total)
