"""The batched acceptance step on tensors.

On a CPU rows are looked at one after another, only those that the verdict needs, each through a buffer that stays in
the cache. On a device, and under `torch.compile`, all rows are judged at once and nothing waits for the host.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftproof.distribution import Distribution
from draftproof.errors import RowError, UsageError
from draftproof.kernels import torch_rows
from draftproof.kernels.problem import Problem, Shaping, check_law, host, rows_of
from draftproof.kernels.rowwise import verify_rows
from draftproof.sampling import GREEDY_TEMPERATURE, BoundSampler
from draftproof.types import NO_TOKENS

Answer: TypeAlias = tuple[Tensor, Tensor, Tensor]

CHUNK = 131_072
"""So many weights are made at once, or those of two places: a later place is likely to be asked for too."""

BLOCK = 1024
"""Weights summed together before a final token is looked for: first its block, then its place in the block."""


def take(given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the arguments, which must be tensors on one device."""
    devices = set()
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise UsageError(f"{name} is a {type(value).__name__} beside tensors; use torch.as_tensor")
        if value.device.type == "meta" or value.layout is not torch.strided:
            raise UsageError(f"{name} is on {value.device} with layout {value.layout}; give a dense tensor with values")
        devices.add(value.device)
    if len(devices) > 1:
        placed = ", ".join(f"{name} on {value.device}" for name, value in given.items())
        raise UsageError(f"the arguments are on different devices ({placed}); move them to one")
    return {name: value.detach() for name, value in given.items()}


def floats(values: Any, like: Tensor) -> Any:
    """Returns numbers as float64 beside another tensor: on its device, or as a NumPy array where that is the host."""
    if known(like):
        return host("options", values).astype(np.float64)
    return torch.as_tensor(values).detach().to(device=like.device, dtype=torch.float64)


def integers(values: Any, like: Tensor) -> Any:
    """Returns numbers as int64, as `floats` does."""
    if known(like):
        return host("options", values).astype(np.int64)
    return torch.as_tensor(values).detach().to(device=like.device, dtype=torch.int64)


def full(value: float, like: Tensor) -> Any:
    """Returns a number for each row of a batch; made where it is needed, so that no device waits for the host."""
    if known(like):
        return np.full(len(like), value)
    dtype = torch.int64 if isinstance(value, int) else torch.float64
    return torch.full((len(like),), value, dtype=dtype, device=like.device)


def known(array: Any) -> bool:
    """Returns whether looking at the values costs no wait for a device."""
    return not isinstance(array, Tensor) or (array.device.type == "cpu" and not torch.compiler.is_compiling())


def on_host(problem: Problem, row: int) -> Problem:
    """Returns the problem of one row as NumPy arrays."""

    def moved(value: Any) -> Any:
        if isinstance(value, Shaping):
            return value.each(moved)
        return host("row", value.cpu()) if isinstance(value, Tensor) else value

    part = rows_of(problem, row, row + 1)
    return replace(part, **{name: moved(value) for name, value in vars(part).items()})


def verify(problem: Problem) -> Answer:
    """See `Kernel.verify`."""
    if not known(problem.target):
        return torch_rows.verify(problem)
    space = _Workspace(problem)
    accepted, emitted, failed = verify_rows(
        problem, space.target_law, None if problem.draft is None else space.draft_law
    )
    return torch.from_numpy(accepted), torch.from_numpy(emitted), torch.from_numpy(failed)


TARGET, DRAFT = 0, 1


class _Workspace:
    """Room for the weights of a few places, the target's and the drafter's, used by one place after another."""

    def __init__(self, problem: Problem) -> None:
        self._rows = (problem.target, problem.draft)
        self._shapings = (problem.shaping, problem.draft_shaping)
        self._tolerances = problem.tolerances
        self._ends = (problem.lengths + 1, problem.lengths)
        _, places, vocab = problem.target.shape
        # Probabilities are summed in float64; what is made of logits is as precise as was asked for.
        wide = [each is None or each.precision == "float64" for each in self._shapings]
        types = [torch.float64 if each else torch.float32 for each in wide]
        # Some places go through one softmax, which then runs on several threads.
        self._chunk = min(places, max(2, CHUNK // vocab))
        *self._weights, self._scaled, self.left = _room(self._chunk, vocab, *types)
        self._holds = [(-1, 0, 0), (-1, 0, 0)]
        self._bound: tuple[int, BoundSampler] | None = None

    def target_law(self, row: int, place: int) -> Distribution:
        """Returns p; see `LawMaker`."""
        return self._law(TARGET, row, place)

    def draft_law(self, row: int, place: int) -> Distribution:
        """Returns q; see `LawMaker`."""
        return self._law(DRAFT, row, place)

    def weights(self, side: int, row: int, place: int) -> Tensor:
        """Returns a dense law's weights, `[vocab]`; valid until those of places far from it are asked for."""
        holder, first, last = self._holds[side]
        if holder != row or not first <= place < last:
            self._fill(side, row, place)
            first = place
        return self._weights[side][place - first]

    def _law(self, side: int, row: int, place: int) -> Distribution:
        rows, shaping = self._rows[side], self._shapings[side]
        assert rows is not None
        if shaping is None:
            weights = self.weights(side, row, place)
            total, least = float(weights.sum()), float(weights.min())
            check_law(f"row {place}", total, least, self._tolerances[side])
            return TensorLaw(self, side, row, place, total)
        if any(shaping.cuts) or float(shaping.temperature[row]) < GREEDY_TEMPERATURE:
            # A law on few ids, which the sampler finds without the weights of the others.
            if self._bound is None or self._bound[0] != row:
                self._bound = row, shaping.sampler(row).bind(0, (), len(self.left))  # of both sides, shaped alike
            return self._bound[1].law(NO_TOKENS, host("logits", rows[row, place]))
        # Anything that makes a row no law makes every weight NaN.
        if not math.isfinite(float(self.weights(side, row, place)[0])):
            raise RowError(f"the logits of row {place} hold NaN or +inf, or are all -inf")
        return TensorLaw(self, side, row, place, 1.0)

    def _fill(self, side: int, row: int, place: int) -> None:
        last = min(place + self._chunk, int(self._ends[side][row]))
        rows, shaping = self._rows[side], self._shapings[side]
        assert rows is not None
        source, out = rows[row, place:last], self._weights[side][: last - place]
        self._holds[side] = (row, place, last)
        if shaping is None:
            out.copy_(source)
            return
        temperature = float(shaping.temperature[row])
        if source.dtype.itemsize > out.dtype.itemsize:
            source = source - source.amax(-1, keepdim=True)  # narrowed first, large logits would become equal
        if temperature != 1.0 or source.dtype != out.dtype:
            source = self._scaled[: last - place].copy_(source)
        if temperature != 1.0:
            # Subtract before dividing: logits / T would lose what tells large logits apart.
            source.sub_(source.amax(-1, keepdim=True)).div_(temperature)
        torch.softmax(source, -1, out=out)


_KEPT = threading.local()


def _room(chunk: int, vocab: int, target: torch.dtype, draft: torch.dtype) -> tuple[Tensor, ...]:
    """Returns memory for weights; each thread keeps what it used last, as fresh pages take longer than the sums."""
    key = (chunk, vocab, target, draft)
    if getattr(_KEPT, "key", None) != key:
        sizes = ((chunk, vocab), target), ((chunk, vocab), draft), ((chunk, vocab), target), ((vocab,), target)
        _KEPT.room = tuple(torch.empty(size, dtype=dtype) for size, dtype in sizes)
        _KEPT.key = key
    room: tuple[Tensor, ...] = _KEPT.room
    return room


class TensorLaw(Distribution):
    """A dense law whose weights lie in a workspace, and are made again there if others took their room.

    Args:
        space: where the weights are.
        side: the target's or the drafter's.
        row: of the batch.
        place: in the draft.
        total: sum of the weights.
    """

    __slots__ = ("_place", "_row", "_side", "_space", "total")

    def __init__(self, space: _Workspace, side: int, row: int, place: int, total: float) -> None:
        self._space, self._side, self._row, self._place = space, side, row, place
        self.total = total

    @property
    def weights(self) -> Tensor:
        """The weights, `[vocab]`."""
        return self._space.weights(self._side, self._row, self._place)

    def __len__(self) -> int:
        return len(self._space.left)

    def __repr__(self) -> str:
        return f"TensorLaw({len(self)} ids)"

    def prob(self, token: int) -> float:
        """See `Distribution.prob`."""
        return float(self.weights[token]) / self.total

    def prob_of(self, tokens: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
        """See `Distribution.prob_of`."""
        found: Float[np.ndarray, "n"] = self.weights[torch.from_numpy(tokens)].numpy().astype(np.float64) / self.total
        return found

    def excess(self, q: Distribution, scale: float = 1.0) -> float:
        """See `Distribution.excess`."""
        return float(self._above(q, scale).sum())

    def residual(self, q: Distribution, scale: float = 1.0) -> Distribution:
        """See `Distribution.residual`; valid until the next one is made."""
        return _Residual(self._above(q, scale), self)

    def sample(self, u: float) -> int:
        """See `Distribution.sample`."""
        return _search(self.weights, u)

    def _above(self, q: Distribution, scale: float) -> Tensor:
        left = torch.mul(self.weights, scale / self.total, out=self._space.left)
        if isinstance(q, TensorLaw):
            return left.sub_(q.weights, alpha=1.0 / q.total).clamp_(min=0.0)
        ids = torch.from_numpy(q.support())
        left[ids] = (left[ids] - torch.from_numpy(q.probs).to(left.dtype)).clamp_(min=0.0)
        return left


class _Residual(Distribution):
    """What is left of a target's law, as weights."""

    __slots__ = ("_law", "_weights")

    def __init__(self, weights: Tensor, law: TensorLaw) -> None:
        self._weights = weights
        self._law = law

    def sample(self, u: float) -> int:
        """See `Distribution.sample`; the target's own law where nothing is left."""
        return _search(self._weights, u) if float(self._weights.max()) > 0.0 else self._law.sample(u)


def _search(weights: Tensor, u: float) -> int:
    """Returns the first place whose cumulative weight exceeds u times the total; never one of weight 0."""
    size = len(weights)
    whole = size // BLOCK * BLOCK
    sums = np.empty(whole // BLOCK + 1)
    sums[:-1] = weights[:whole].view(-1, BLOCK).sum(1).numpy()
    sums[-1] = float(weights[whole:].sum())
    edges = np.cumsum(sums)
    aim = u * edges[-1]
    block = min(int(np.searchsorted(edges, aim, side="right")), int(np.searchsorted(edges, edges[-1], side="left")))
    inside = np.cumsum(weights[block * BLOCK : min((block + 1) * BLOCK, size)].numpy().astype(np.float64))
    before = edges[block - 1] if block else 0.0
    place = min(
        int(np.searchsorted(inside, aim - before, side="right")), int(np.searchsorted(inside, inside[-1], side="left"))
    )
    return block * BLOCK + place
