"""One batched verification, with its arguments checked: what every implementation is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from draftproof.errors import RowError, UsageError
from draftproof.noise import CounterNoise, Lane, Seed
from draftproof.sampling import Sampler

Array: TypeAlias = Any
"""A NumPy array, or a tensor of PyTorch; all arguments of one call are of one kind."""

LAST_POSITION = 2**62

SUM_TOLERANCE = {"float64": 1e-3, "float32": 1e-3, "float16": 2e-2, "bfloat16": 2e-2}
"""How far the sum of a row of probabilities may be from 1: rounding of the type, not more."""


OPTIONS = ("temperature", "top_k", "top_p", "min_p")
"""Names of the numbers that shape logits."""


@dataclass(frozen=True, eq=False)
class Shaping:
    """How logits become laws: numbers for the whole batch, or one for each row, `[batch]`; see `Sampler`."""

    temperature: Array = 1.0
    top_k: Array = 0
    top_p: Array = 1.0
    min_p: Array = 0.0
    precision: Literal["float32", "float64"] = "float32"
    cuts: tuple[bool, bool, bool] = (True, True, True)
    """Whether top_k, top_p and min_p may cut anything: known without looking at a device."""

    def each(self, change: Callable[[Array], Array]) -> Shaping:
        """Returns it with every option changed alike."""
        return replace(self, **{name: change(getattr(self, name)) for name in OPTIONS})

    def sampler(self, row: int) -> Sampler:
        """Returns the sampler of one row, once the numbers are arrays."""
        return Sampler(
            temperature=float(self.temperature[row]),
            top_k=int(self.top_k[row]),
            top_p=float(self.top_p[row]),
            min_p=float(self.min_p[row]),
        )


@dataclass(frozen=True, eq=False)
class Problem:
    """A batch to judge.

    Attributes:
        target: rows of the target, `[batch, draft+1, vocab]`.
        tokens: drafted ids, int64 `[batch, draft]`.
        draft: rows of the drafter, `[batch, draft, vocab]`; None for deterministic drafts.
        accept: the coins of the draft tokens, float64 `[batch, draft]`.
        final: the coin of the final token if i tokens were accepted, float64 `[batch, draft+1]`.
        lengths: drafted tokens of each row, int64 `[batch]`.
        rule: "token", "block" or "match".
        shaping: how the target's rows become laws; None: they are probabilities.
        draft_shaping: the same for the drafter's rows.
        tolerances: how far the sums of rows of probabilities may be from 1, of the target and of the drafter.
    """

    target: Array
    tokens: Array
    draft: Array | None
    accept: Array
    final: Array
    lengths: Array
    rule: str
    shaping: Shaping | None
    draft_shaping: Shaping | None
    tolerances: tuple[float, float]


def rows_of(problem: Problem, first: int, last: int) -> Problem:
    """Returns the part of a problem that is some rows of its batch; works on arrays of either kind."""

    def part(shaping: Shaping | None) -> Shaping | None:
        return None if shaping is None else shaping.each(lambda option: option[first:last])

    arrays = {n: getattr(problem, n)[first:last] for n in ("target", "tokens", "accept", "final", "lengths")}
    draft = None if problem.draft is None else problem.draft[first:last]
    shaping, draft_shaping = part(problem.shaping), part(problem.draft_shaping)
    return replace(problem, **arrays, draft=draft, shaping=shaping, draft_shaping=draft_shaping)


def is_tensor(value: object) -> bool:
    """Returns whether a value is PyTorch's, without importing that."""
    return type(value).__module__.partition(".")[0] == "torch"


def in_unit(values: Array) -> Array:
    """Returns which values lie in [0, 1); NaN does not."""
    return (values >= 0.0) & (values < 1.0)


def sum_tolerance(name: str, rows: Array) -> float:
    """Returns how far the sums of rows of probabilities may be from 1; raises UsageError if their type is unknown."""
    if kind_of(rows) not in SUM_TOLERANCE:
        raise UsageError(f"{name} has dtype {kind_of(rows)}; use one of: {', '.join(SUM_TOLERANCE)}")
    return SUM_TOLERANCE[kind_of(rows)]


def check_law(name: str, total: float, least: float, tolerance: float) -> None:
    """Raises RowError if a row of probabilities with this sum and least entry is no law."""
    if not least >= 0.0 or not abs(total - 1.0) <= tolerance:
        raise RowError(f"{name} is no law: its sum is {total:.6g}, its least entry {least:.3g}; give probabilities")


def host(name: str, value: Any) -> np.ndarray:
    """Returns an argument as a NumPy array; a tensor on a CPU is looked at where it lies.

    Raises:
        UsageError: if it is none, or is on a device.
    """
    if is_tensor(value):
        if value.device.type != "cpu":
            raise UsageError(f'{name} is on device {value.device}; use impl="torch", or move it to the CPU')
        value = value.detach()
        value = value.float() if kind_of(value) == "bfloat16" else value
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UsageError(f"{name} {value!r} is no array ({error}); give numbers of one shape") from error
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise UsageError(f"{name} {value!r} has dtype {array.dtype}; give numbers")
    return array


@runtime_checkable
class Kernel(Protocol):
    """What the module of an implementation has."""

    def take(self, given: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the arguments as this implementation's arrays on one device; raises UsageError if they are none."""

    def floats(self, values: Array, like: Array) -> Array:
        """Returns numbers as float64 beside another array."""

    def integers(self, values: Array, like: Array) -> Array:
        """Returns numbers as int64 beside another array."""

    def full(self, value: float, like: Array) -> Array:
        """Returns a number for each row of a batch, `[batch]`: float64, or int64 if it is an integer."""

    def known(self, array: Array) -> bool:
        """Returns whether looking at an array's values costs no wait for a device."""

    def on_host(self, problem: Problem, row: int) -> Problem:
        """Returns the problem of one row as NumPy arrays."""

    def verify(self, problem: Problem) -> tuple[Array, Array, Array]:
        """Returns num_accepted `[batch]`, tokens `[batch, draft+1]` and failed `[batch]`; see `Verification`."""


def make_problem(
    kernel: Kernel,
    names: tuple[str, str],
    arrays: tuple[Array, Array, Array | None],
    shapings: tuple[Shaping | None, Shaping | None],
    coins: tuple[Array | None, Seed | Sequence[Seed] | None, Array | int | None],
    num_draft: Array | None,
    rule: str,
) -> tuple[Problem, bool]:
    """Returns the checked problem, and whether it came without the batch axis.

    Args:
        kernel: the implementation.
        names: what the user calls the target's and the drafter's rows.
        arrays: the target's rows, the drafted tokens, the drafter's rows.
        shapings: of the target's and the drafter's rows.
        coins: uniforms, seed, positions.
        num_draft: lengths of the drafts.
        rule: checked already.

    Raises:
        UsageError: naming the argument, its value and the remedy.
    """
    uniforms, seed, positions = coins
    given = {names[0]: arrays[0], "draft_tokens": arrays[1], names[1]: arrays[2], "uniforms": uniforms}
    for name in (names[0], "draft_tokens"):
        if given[name] is None:
            raise UsageError(f"{name} is None; it is needed")
    taken = kernel.take({name: each for name, each in given.items() if each is not None})
    target, tokens, draft = taken[names[0]], taken["draft_tokens"], taken.get(names[1])
    # By the type as given: what is taken may be wider.
    first, second = (
        sum_tolerance(name, given[name] if hasattr(given[name], "dtype") else taken[name]) if name in taken else 0.0
        for name in names
    )
    if 0 not in tokens.shape and not kind_of(tokens).startswith(("int", "uint")):
        raise UsageError(f"draft_tokens has dtype {kind_of(tokens)}; token ids are integers")
    alone = target.ndim == 2
    if alone:
        target, tokens, draft = target[None], tokens[None], None if draft is None else draft[None]
    if target.ndim != 3 or target.shape[1] < 1 or target.shape[2] < 1:
        raise UsageError(f"{names[0]} has shape {tuple(taken[names[0]].shape)}; give [batch, draft+1, vocab]")
    batch, rows, vocab = target.shape
    _shape("draft_tokens", tokens, (batch, rows - 1), alone)
    if draft is not None:
        _shape(names[1], draft, (batch, rows - 1, vocab), alone)
    lengths = _lengths(kernel, num_draft, target, alone)
    accept, final = _coins(kernel, taken.get("uniforms"), seed, positions, target, rule, alone)
    shaping = None if shapings[0] is None else _shaping(kernel, shapings[0], target)
    draft_shaping = None if shapings[1] is None else shaping
    tokens = kernel.integers(tokens, target)
    return Problem(target, tokens, draft, accept, final, lengths, rule, shaping, draft_shaping, (first, second)), alone


def _shape(name: str, array: Array, expected: tuple[int, ...], alone: bool) -> None:
    if tuple(array.shape) != expected:
        cut = 1 if alone else 0
        raise UsageError(
            f"{name} has shape {tuple(array.shape)[cut:]}; beside these rows of the target it must be {expected[cut:]}"
        )


def _lengths(kernel: Kernel, num_draft: Array | None, target: Array, alone: bool) -> Array:
    batch, rows, _ = target.shape
    if num_draft is None:
        return kernel.full(rows - 1, target)
    given = num_draft if hasattr(num_draft, "shape") else host("num_draft", num_draft)
    if tuple(given.shape) not in ((), (batch,)) or not kind_of(given).startswith(("int", "uint")):
        raise UsageError(f"num_draft {num_draft!r} must be one integer, or one for each of {batch} rows")
    lengths = kernel.integers(given, target) if given.shape else kernel.full(int(given), target)
    if kernel.known(lengths) and not bool(((lengths >= 0) & (lengths < rows)).all()):
        raise UsageError(f"num_draft {lengths.tolist()} must lie in 0..{rows - 1}, the drafted tokens that there are")
    return lengths


def kind_of(array: Array) -> str:
    """Returns the name of the type of an array of either kind."""
    return str(array.dtype).removeprefix("torch.")


def _coins(
    kernel: Kernel,
    uniforms: Array | None,
    seed: Seed | Sequence[Seed] | None,
    positions: Array | int | None,
    target: Array,
    rule: str,
    alone: bool,
) -> tuple[Array, Array]:
    batch, rows, _ = target.shape
    if (uniforms is None) == (seed is None):
        given = "neither" if uniforms is None else "both"
        raise UsageError(f"give either uniforms or a seed, which needs positions too; {given} came")
    if uniforms is not None:
        if positions is not None:
            raise UsageError("positions belong to a seed; leave them out beside uniforms")
        values = uniforms[None] if alone else uniforms
        _shape("uniforms", values, (batch, rows), alone)
        if not kind_of(values).startswith(("float", "bfloat")):
            raise UsageError(f"uniforms has dtype {kind_of(values)}; give floats in [0, 1)")
        values = kernel.floats(values, target)
        if kernel.known(values) and not bool(in_unit(values).all()):
            bad = values[~in_unit(values)][0]
            raise UsageError(f"uniforms holds a value outside [0, 1): {bad}; draw each from [0, 1), 1 excluded")
        # The last column draws the final token, wherever the draft is cut; under "match" each column draws its own.
        last = values[:, rows - 1 :]
        repeated = np.repeat(last, rows, axis=1) if isinstance(last, np.ndarray) else last.expand(batch, rows)
        return values[:, : rows - 1], values if rule == "match" else repeated
    if positions is None:
        raise UsageError("a seed needs positions: the absolute position of each row's first draft token")
    starts = host("positions", positions)
    starts = np.broadcast_to(starts, (batch,)) if starts.ndim == 0 else starts
    if starts.shape != (batch,) or starts.dtype.kind not in "iu" or bool((np.abs(starts) > LAST_POSITION).any()):
        raise UsageError(f"positions {positions!r} must be one integer below 2**62, or one for each of {batch} rows")
    seeds: list[Any] = list(seed) if isinstance(seed, list | np.ndarray) and np.ndim(seed) else [seed] * batch
    if len(seeds) != batch or any(each is None for each in seeds):
        raise UsageError(f"seed {seed!r} has {len(seeds)} entries for {batch} rows; give one for each, or one for all")
    noises = [CounterNoise(each) for each in seeds]
    keys = [(noise.seed, start) for noise, start in zip(noises, starts.tolist(), strict=True)]
    if len(set(keys)) < batch:
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UsageError(
            f"seed {twice[0]} with position {twice[1]} comes twice in the batch, which would give rows the same coins; "
            "give each row a seed of its own, as a list"
        )
    draws = [
        [[noise.uniform(int(start), i, lane) for i in range(rows)] for lane in (Lane.ACCEPT, Lane.FINAL)]
        for noise, start in zip(noises, starts.tolist(), strict=True)
    ]
    both = kernel.floats(np.array(draws).reshape(batch, 2, rows), target)
    return both[:, 0, : rows - 1], both[:, 1]


def _shaping(kernel: Kernel, shaping: Shaping, target: Array) -> Shaping:
    batch = target.shape[0]
    values: dict[str, Array] = {}
    acts: dict[str, bool] = {}
    numbers: dict[str, Any] = {
        name: value
        for name, value in vars(shaping).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if any(value != getattr(Shaping, name) for name, value in numbers.items()):
        Sampler(**numbers)  # refuses what is out of range, by name
    for name in OPTIONS:
        convert = kernel.integers if name == "top_k" else kernel.floats
        given = getattr(shaping, name)
        if name in numbers:
            values[name], acts[name] = kernel.full(given, target), given != getattr(Shaping, name)
            continue
        array = given if hasattr(given, "shape") else host(name, given)
        kinds = ("int", "uint") if name == "top_k" else ("int", "uint", "float", "bfloat")
        if not kind_of(array).startswith(kinds):
            raise UsageError(f"{name} {given!r} is not {'an integer' if name == 'top_k' else 'a number'}")
        if tuple(array.shape) not in ((), (batch,)):
            raise UsageError(f"{name} has shape {tuple(array.shape)}; give one number, or one for each of {batch} rows")
        values[name] = convert(array, target) if array.shape else kernel.full(array.item(), target)
        acts[name] = True
        if kernel.known(values[name]):
            distinct = set(values[name].tolist())
            acts[name] = distinct != {getattr(Shaping, name)}
            for value in distinct:
                Sampler(**{name: value})
    return replace(shaping, **values, cuts=(acts["top_k"], acts["top_p"], acts["min_p"]))
