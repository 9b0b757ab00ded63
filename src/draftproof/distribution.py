"""A law over token ids: dense over the vocabulary, or on a small support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from draftproof.errors import UsageError


class Distribution:
    """An immutable probability law over token ids.

    After top-k, top-p or min-p a law has tens of ids rather than the whole vocabulary; every operation here costs
    the support's size, never the vocabulary's.

    Args:
        probs: non-negative weights, float64 `[support]`; normalised by their own sum.
        ids: the token ids they belong to, sorted ascending and distinct, `[support]`; None means `0..len(probs)-1`.

    Raises:
        UsageError: if a weight is negative or not finite, if their sum is 0, or if ids are not sorted and distinct.
    """

    __slots__ = ("_cumulative", "ids", "probs")

    ids: Int[np.ndarray, "support"] | None
    probs: Float[np.ndarray, "support"]

    def __init__(self, probs: Float[np.ndarray, "support"], ids: Int[np.ndarray, "support"] | None = None) -> None:
        weights = np.asarray(probs, dtype=np.float64)
        total = float(weights.sum())
        if not (0.0 < total < np.inf) or float(weights.min()) < 0.0:
            raise UsageError(
                f"probs with sum {total} and minimum {float(weights.min()) if weights.size else None} are not a law; "
                "give finite, non-negative weights with a positive sum"
            )
        if ids is not None and (len(ids) != len(weights) or bool(np.any(np.diff(ids) <= 0))):
            raise UsageError(f"ids {ids!r} must be sorted, distinct and as many as probs ({len(weights)})")
        self.ids = ids
        self.probs = weights / total  # a new array, even for a sum of 1: the caller may reuse its buffer
        self._cumulative: Float[np.ndarray, "support"] | None = None

    @classmethod
    def normalised(
        cls, probs: Float[np.ndarray, "support"], ids: Int[np.ndarray, "support"] | None = None
    ) -> Distribution:
        """Returns the law of float64 probabilities known to be non-negative with sum 1, without a check or a copy."""
        law = cls.__new__(cls)
        law.ids, law.probs, law._cumulative = ids, probs, None
        return law

    @classmethod
    def one_hot(cls, token: int) -> Distribution:
        """Returns the law that always gives `token`."""
        return cls.normalised(np.ones(1), np.array([token], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.probs)

    def __repr__(self) -> str:
        shown = ", ".join(f"{t}: {p:.4g}" for t, p in list(zip(self.support().tolist(), self.probs, strict=True))[:8])
        return f"Distribution({{{shown}{', ...' if len(self) > 8 else ''}}})"

    def support(self) -> Int[np.ndarray, "support"]:
        """Returns the ids that `probs` belongs to, sorted, `[support]`."""
        return np.arange(len(self.probs)) if self.ids is None else self.ids

    def dense(self, vocab_size: int) -> Float[np.ndarray, "vocab"]:
        """Returns the law as probabilities over the whole vocabulary, `[vocab]`."""
        full = np.zeros(vocab_size)
        full[self.support()] = self.probs
        return full

    def prob(self, token: int) -> float:
        """Returns P(token), 0 for an id outside the support."""
        if self.ids is None:
            return float(self.probs[token]) if 0 <= token < len(self.probs) else 0.0
        place = int(np.searchsorted(self.ids, token))
        return float(self.probs[place]) if place < len(self.ids) and self.ids[place] == token else 0.0

    def prob_of(self, tokens: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
        """Returns P(token) for each of several ids, `[n]`."""
        if self.ids is None:
            inside = (tokens >= 0) & (tokens < len(self.probs))
            found = self.probs[np.where(inside, tokens, 0)]
        else:
            places = np.minimum(np.searchsorted(self.ids, tokens), len(self.ids) - 1)
            inside = self.ids[places] == tokens
            found = self.probs[places]
        return np.where(inside, found, 0.0)

    def overlap(self, q: Distribution) -> float:
        """Returns sum_x min(p(x), q(x)), which is 1 - TV(p, q) and the best possible acceptance."""
        small, large = (self, q) if len(self) <= len(q) else (q, self)
        return float(np.minimum(small.probs, large.prob_of(small.support())).sum())

    def excess(self, q: Distribution, scale: float = 1.0) -> float:
        """Returns sum_x max(scale * p(x) - q(x), 0): the mass of the residual before it is normalised."""
        return float(np.maximum(scale * self.probs - q.prob_of(self.support()), 0.0).sum())

    def residual(self, q: Distribution, scale: float = 1.0) -> Distribution:
        """Returns norm(max(scale * p - q, 0)): what a rejected draft is replaced from.

        Where that mass is 0 (equal laws up to rounding) there is nothing to correct, and p itself is returned.
        """
        weights = np.maximum(scale * self.probs - q.prob_of(self.support()), 0.0)
        return Distribution(weights, self.ids) if float(weights.sum()) > 0.0 else self

    def without(self, token: int) -> Distribution | None:
        """Returns the law given that the outcome is not `token`; None if it always is."""
        weights = self.probs.copy()
        if self.prob(token) > 0.0:
            weights[token if self.ids is None else int(np.searchsorted(self.ids, token))] = 0.0
        return Distribution(weights, self.ids) if float(weights.sum()) > 0.0 else None

    def sample(self, u: float) -> int:
        """Returns the token at `u` of the inverse CDF in id order, u in [0, 1); never one with P = 0."""
        if self._cumulative is None:
            self._cumulative = np.cumsum(self.probs)
        total = self._cumulative[-1]
        # The first place whose cumulative sum exceeds u * total: a zero-probability id adds nothing and is passed over.
        place = int(np.searchsorted(self._cumulative, u * total, side="right"))
        if place == len(self._cumulative):  # u * total rounded up to the total itself
            place = int(np.searchsorted(self._cumulative, total, side="left"))
        return place if self.ids is None else int(self.ids[place])

    def race(self, exponentials: Float[np.ndarray, "support"]) -> int:
        """Returns argmin_x E_x / p(x), a sample of the law if E are independent Exp(1), aligned with `support()`.

        Two laws that race on the same E mostly agree: this is what couples a draft with its target
        (Daliri, Musco and Suresh 2024, arXiv 2408.07978). The lowest id wins a tie.
        """
        with np.errstate(divide="ignore", over="ignore"):
            place = int(np.argmin(exponentials / self.probs))
        return place if self.ids is None else int(self.ids[place])


if TYPE_CHECKING:
    LawSequence: TypeAlias = Sequence[Distribution]
else:
    # Laws are computed when asked for: a run-time checker that looked at one would ask for a row that nobody needs.
    LawSequence = Sequence
