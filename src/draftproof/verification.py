"""The acceptance step for engines of others: `verify` and `verify_logits`, on arrays and tensors."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from draftproof.errors import MissingDependencyError, RowError, UsageError, choice_error
from draftproof.kernels import numpy as numpy_kernel
from draftproof.kernels.problem import Array, Kernel, Shaping, is_tensor, make_problem
from draftproof.kernels.rowwise import REFERENCES
from draftproof.noise import Seed

IMPLEMENTATIONS = ("numpy", "torch")


@dataclass(frozen=True, eq=False)
class Verification:
    """What was decided for each row of a batch; unpacks into (num_accepted, tokens).

    Attributes:
        num_accepted: how many draft tokens are kept, int64 `[batch]`.
        tokens: the kept draft tokens and the one that follows them, then -1, int64 `[batch, draft+1]`.
        failed: rows that could not be judged, bool `[batch]`: a law that the rule needed was none, or gave a draft
            token probability 0. Such a row has num_accepted 0 and no token but -1.
    """

    num_accepted: Array
    tokens: Array
    failed: Array

    def __iter__(self) -> Iterator[Array]:
        return iter((self.num_accepted, self.tokens))


def verify(
    target_probs: Array,
    draft_tokens: Array,
    draft_probs: Array | None = None,
    *,
    uniforms: Array | None = None,
    seed: Seed | Sequence[Seed] | None = None,
    positions: Array | int | None = None,
    num_draft: Array | None = None,
    rule: str = "token",
    impl: str = "auto",
    bad_rows: str = "flag",
) -> Verification:
    """Judges drafts by their probabilities; what comes out has exactly the target's law.

    ```
    for each row of the batch, with its k = num_draft tokens:
        num_accepted, last = rule(p_0 .. p_k, x_0 .. x_{k-1}, q_0 .. q_{k-1})
        tokens = x[:num_accepted] + [last]
    ```
    Each row is divided by its own sum. All arrays may come without the batch axis; the results then come without it.

    Args:
        target_probs: p, `[batch, draft+1, vocab]`: row i is the target's law after the text and the first i draft
            tokens. float64, float32, float16 or bfloat16; never written to.
        draft_tokens: x, integers `[batch, draft]`. A draft ends before an id outside the vocabulary (-1 for padding).
        draft_probs: q, `[batch, draft, vocab]`: the laws the tokens were drawn from; None for a deterministic draft.
        uniforms: u in [0, 1), `[batch, draft+1]`, each used for nothing else: column i is the coin of draft token i,
            the last one draws the final token. Under "match" column i draws the target's own token at place i.
        seed: instead of uniforms: an integer (or tuple), or a list of one for each row.
        positions: with a seed, the absolute position of each row's first draft token, `[batch]` or one number. A pair
            of (seed, position) must not come twice. A row's coins do not depend on the rest of the batch, and are those
            of `Engine`.
        num_draft: how many draft tokens each row has, `[batch]`, 0..draft; None: all.
        rule: "token", "block" or "match".
        impl: "numpy" (the readable references), "torch", or "auto": by the kind of the arrays.
        bad_rows: "flag" marks a row that cannot be judged in `failed`; "raise" raises instead (and waits for a device).

    Raises:
        UsageError: if an argument is wrong: names it, its value and the remedy.
        RowError: with bad_rows="raise", if a row cannot be judged.
        MissingDependencyError: if the implementation's library is not installed.
    """
    names, choices = ("target_probs", "draft_probs"), (rule, impl, bad_rows)
    coins = (uniforms, seed, positions)
    return _verify(names, target_probs, draft_tokens, draft_probs, None, None, coins, num_draft, choices)


def verify_logits(
    target_logits: Array,
    draft_tokens: Array,
    draft_logits: Array | None = None,
    *,
    draft_probs: Array | None = None,
    temperature: Array | float = 1.0,
    top_k: Array | int = 0,
    top_p: Array | float = 1.0,
    min_p: Array | float = 0.0,
    precision: Literal["float32", "float64"] = "float32",
    uniforms: Array | None = None,
    seed: Seed | Sequence[Seed] | None = None,
    positions: Array | int | None = None,
    num_draft: Array | None = None,
    rule: str = "token",
    impl: str = "auto",
    bad_rows: str = "flag",
) -> Verification:
    """Judges drafts by logits; probabilities that the rule does not need are never computed.

    Args:
        target_logits: `[batch, draft+1, vocab]`; see `verify` for the rest that is not named here.
        draft_tokens: see `verify`.
        draft_logits: `[batch, draft, vocab]`, shaped as the target's are: if the drafter sampled with other options,
            give `draft_probs` instead. Neither: a deterministic draft.
        draft_probs: the laws the tokens were drawn from, as probabilities.
        temperature: below 1e-5 a row is greedy: one-hot at the largest logit, the lowest id on ties. This and the next
            three are one number, or one for each row, `[batch]`; meaning and order as in `Sampler`.
        top_k: keeps the k largest; 0 keeps all.
        top_p: keeps the fewest largest that reach this mass.
        min_p: keeps those at least this likely relative to the likeliest.
        precision: of the exponentials of "torch"; the references compute in float64.
        uniforms: see `verify`.
        seed: see `verify`.
        positions: see `verify`.
        num_draft: see `verify`.
        rule: see `verify`.
        impl: see `verify`.
        bad_rows: see `verify`.

    Raises:
        UsageError: see `verify`.
        RowError: see `verify`.
        MissingDependencyError: see `verify`.
    """
    if draft_logits is not None and draft_probs is not None:
        raise UsageError("draft_logits and draft_probs are both given; give the one the drafts were drawn by")
    if precision not in ("float32", "float64"):
        raise choice_error("precision", precision, ["float32", "float64"])
    shaping = Shaping(temperature, top_k, top_p, min_p, precision)
    coins, choices = (uniforms, seed, positions), (rule, impl, bad_rows)
    if draft_probs is not None:
        names = ("target_logits", "draft_probs")
        return _verify(names, target_logits, draft_tokens, draft_probs, shaping, None, coins, num_draft, choices)
    names = ("target_logits", "draft_logits")
    return _verify(names, target_logits, draft_tokens, draft_logits, shaping, shaping, coins, num_draft, choices)


def _verify(
    names: tuple[str, str],
    target: Array,
    tokens: Array,
    draft: Array | None,
    shaping: Shaping | None,
    draft_shaping: Shaping | None,
    coins: tuple[Array | None, Any, Any],
    num_draft: Array | None,
    choices: tuple[str, str, str],
) -> Verification:
    rule, impl, bad_rows = choices
    if rule not in REFERENCES:
        raise choice_error("rule", rule, list(REFERENCES))
    if bad_rows not in ("flag", "raise"):
        raise choice_error("bad_rows", bad_rows, ["flag", "raise"])
    kernel = _kernel(impl, target)
    problem, alone = make_problem(
        kernel, names, (target, tokens, draft), (shaping, draft_shaping), coins, num_draft, rule
    )
    accepted, emitted, failed = kernel.verify(problem)
    if bad_rows == "raise" and bool(failed.any()):
        row = int(failed.nonzero()[0][0])
        raise RowError(f"row {row} of the batch cannot be judged: {numpy_kernel.fault(kernel.on_host(problem, row))}")
    if alone:
        return Verification(accepted[0], emitted[0], failed[0])
    return Verification(accepted, emitted, failed)


def _kernel(impl: str, target: Array) -> Kernel:
    """Returns the module that `impl` means; "auto" goes by the kind of the arrays, and falls back to nothing."""
    kind = "torch" if is_tensor(target) else "numpy"
    if impl not in ("auto", *IMPLEMENTATIONS):
        raise choice_error("impl", impl, ["auto", *IMPLEMENTATIONS])
    chosen = kind if impl == "auto" else impl
    if chosen == "numpy":
        return numpy_kernel
    if kind != "torch" and importlib.util.find_spec("torch") is None:
        raise MissingDependencyError(
            'impl "torch" needs PyTorch, which is not installed; run: pip install "draftproof[torch]"'
        )
    if kind != "torch":
        raise UsageError(f'impl "torch" takes tensors; {type(target).__name__} is none: use torch.from_numpy')
    from draftproof.kernels import torch as torch_kernel

    return torch_kernel
