"""The references, row by row of a batch: what an implementation adds is how a row of numbers becomes a law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from draftproof.distribution import Distribution
from draftproof.errors import DraftError, RowError
from draftproof.kernels.problem import Problem
from draftproof.noise import Lane
from draftproof.rules import verify_block, verify_match, verify_token
from draftproof.types import Draft, Verdict

REFERENCES = {"token": verify_token, "block": verify_block, "match": verify_match}

LawMaker: TypeAlias = Callable[[int, int], Distribution]
"""(row of the batch, place) -> the law there; raises RowError if it is none."""


class LazyLaws(Sequence[Distribution]):
    """The laws of one row of the batch, each made when it is first asked for."""

    def __init__(self, make: LawMaker, row: int, count: int) -> None:
        self._make = make
        self._row = row
        self._laws: list[Distribution | None] = [None] * count

    def __len__(self) -> int:
        return len(self._laws)

    def __getitem__(self, i: Any) -> Any:
        law = self._laws[i]
        if law is None:
            law = self._laws[i] = self._make(self._row, i)
        return law


class _Drafted(LazyLaws):
    """The drafter's laws: a token that its own law excludes cannot have been drawn from it."""

    def __init__(self, make: LawMaker, row: int, tokens: Sequence[int]) -> None:
        super().__init__(make, row, len(tokens))
        self._tokens = tokens

    def __getitem__(self, i: Any) -> Any:
        law = super().__getitem__(i)
        if not law.prob(self._tokens[i]) > 0.0:
            raise DraftError(f"draft token {self._tokens[i]} at place {i} has probability 0 under its own law")
        return law


class Coins:
    """A noise that reads the coins of one draft from arrays: those of its tokens, and the final one by place."""

    def __init__(self, accept: Float[np.ndarray, "draft"], final: Float[np.ndarray, "places"]) -> None:
        self._accept = accept
        self._final = final

    def uniform(self, start: int, offset: int, lane: Lane) -> float:
        return float((self._accept if lane is Lane.ACCEPT else self._final)[offset])

    def exponentials(self, position: int, ids: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
        raise AssertionError("none of the rules that read their coins from arrays races")


def judge(problem: Problem, row: int, target: LawMaker, draft: LawMaker | None) -> tuple[Verdict, list[int]]:
    """Returns the verdict on one row, and its draft as far as its ids are in the vocabulary.

    Raises:
        RowError: if a law that the rule needs is none.
        DraftError: if a draft token has probability 0 under its own law.
    """
    vocab = problem.target.shape[2]
    tokens: list[int] = []
    for token in problem.tokens[row, : int(problem.lengths[row])].tolist():
        if not 0 <= token < vocab:
            break
        tokens.append(token)
    laws = None if draft is None else _Drafted(draft, row, tokens)
    verdict = REFERENCES[problem.rule](
        LazyLaws(target, row, len(tokens) + 1),
        Draft(np.array(tokens, dtype=np.int64), laws),
        Coins(problem.accept[row], problem.final[row]),
        0,
    )
    return verdict, tokens


def verify_rows(
    problem: Problem, target: LawMaker, draft: LawMaker | None
) -> tuple[Int[np.ndarray, "batch"], Int[np.ndarray, "batch places"], Bool[np.ndarray, "batch"]]:
    """Returns num_accepted, tokens and failed; the problem's small arrays are NumPy's."""
    batch, places = problem.final.shape
    accepted = np.zeros(batch, dtype=np.int64)
    emitted = np.full((batch, places), -1, dtype=np.int64)
    failed = np.zeros(batch, dtype=bool)
    for row in range(batch):
        try:
            verdict, tokens = judge(problem, row, target, draft)
        except (RowError, DraftError):
            failed[row] = True
            continue
        accepted[row] = verdict.accepted
        emitted[row, : verdict.accepted + 1] = [*tokens[: verdict.accepted], verdict.token]
    return accepted, emitted, failed
