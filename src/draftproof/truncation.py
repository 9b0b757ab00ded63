"""From processed logits to a law: temperature, top-k, top-p, min-p, without sorting or even copying a whole row."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from draftproof.distribution import Distribution

if TYPE_CHECKING:
    from draftproof.sampling import Sampler

Scaled: TypeAlias = Float[np.ndarray, "candidates"]
"""Logits minus the largest, over temperature, float64."""

SHALLOW, DEEP = 8.0, 18.0
"""How far below the largest, in scaled logits, candidates are looked for at first; e**-18 is 1.5e-8."""

BINS, BINS_PER_UNIT = 2048, 64.0
"""Bins of depth in which a nucleus is looked for; what lies deeper than 32 is in the last."""


def truncated_law(logits: Float[np.ndarray, "vocab"], top: float, sampler: Sampler) -> Distribution:
    """Returns steps 6 to 9 of `Sampler` on processed logits whose largest is `top`; needs temperature > 0.

    A truncated law is found among the few ids near the largest, together with a proof that the others could not have
    changed it; only where there is none is the whole row looked at.
    """
    # What lies below the shallow depth can weigh too much for a nucleus of the whole row.
    depths = (SHALLOW, DEEP) if sampler.top_k or sampler.top_p == 1.0 else (DEEP,)
    for depth in depths if sampler.truncates else ():
        # Rounded as the logits are, so that what is left out lies below the threshold that the proof counts with.
        lowest = float(np.finfo(logits.dtype).min)
        threshold = logits.dtype.type(max(top - depth * sampler.temperature, lowest))
        above = logits >= threshold
        if 2 * int(np.count_nonzero(above)) > len(logits):
            break  # A flat row: nothing is gained by picking most of it.
        ids = np.flatnonzero(above)
        scaled = _scale(logits[ids], top, sampler.temperature)
        weights = np.exp(scaled)
        below = (top - float(threshold)) / sampler.temperature
        kept = _truncate(scaled, weights, len(logits) - len(ids), below, sampler)
        if kept is not None:
            return _law(weights[kept], ids[kept])
    scaled = _scale(logits, top, sampler.temperature)
    weights = np.exp(scaled)
    kept = _truncate(scaled, weights, 0, math.inf, sampler)
    return _law(weights, None) if kept is None else _law(weights[kept], kept)


def own_law(logits: Float[np.ndarray, "ids"]) -> Float[np.ndarray, "ids"]:
    """Returns a model's own probabilities of some ids by their logits: temperature 1, nothing cut, `[ids]`."""
    return _law(np.exp(_scale(logits, float(logits.max()), 1.0)), None).probs


def _scale(logits: Float[np.ndarray, "candidates"], top: float, temperature: float) -> Scaled:
    # Subtract before dividing: logits / T would overflow for half-precision-sized logits and a small T.
    scaled: Scaled = np.subtract(logits, top, dtype=np.float64)
    scaled /= temperature
    return scaled


def _law(weights: Scaled, ids: Int[np.ndarray, "candidates"] | None) -> Distribution:
    weights /= weights.sum()
    return Distribution.normalised(weights, ids)


def _truncate(
    scaled: Scaled, weights: Scaled, hidden: int, below: float, sampler: Sampler
) -> Int[np.ndarray, "kept"] | None:
    """Returns the places of the candidates that stay, sorted; None if all do, or if hidden ids could change it.

    Args:
        scaled: the candidates.
        weights: their exponentials.
        hidden: how many ids are not among them.
        below: how far below the largest those lie at least.
        sampler: top_k, top_p and min_p.
    """
    kept: Int[np.ndarray, "kept"] | None = None
    if 0 < sampler.top_k < len(scaled) + hidden:
        if sampler.top_k > len(scaled):
            return None
        kept, hidden = _largest(scaled, sampler.top_k), 0
        scaled, weights = scaled[kept], weights[kept]
    if sampler.top_p < 1.0:
        mass = float(weights.sum())
        inner = _nucleus(scaled, weights, sampler.top_p * mass)
        # The fewest that reach the share of a mass that is too small by at most `tail`. If they reach that of the
        # largest possible mass too, they are the fewest for the true one.
        tail = hidden * math.exp(-below)
        if hidden and float(weights[inner].sum()) < sampler.top_p * (mass + tail):
            return None
        kept, weights, hidden = inner if kept is None else kept[inner], weights[inner], 0
    if sampler.min_p > 0.0:
        if hidden and sampler.min_p < math.exp(-below):
            return None
        inner = np.flatnonzero(weights >= sampler.min_p)
        kept = inner if kept is None else kept[inner]
    return kept


def _largest(scaled: Scaled, k: int) -> Int[np.ndarray, "k"]:
    """Returns the sorted places of the k largest values, the lowest places on ties."""
    cut = np.partition(scaled, len(scaled) - k)[len(scaled) - k]
    above = np.flatnonzero(scaled > cut)
    ties = np.flatnonzero(scaled == cut)[: k - len(above)]
    return np.sort(np.concatenate([above, ties]))


def _nucleus(scaled: Scaled, weights: Scaled, mass: float) -> Int[np.ndarray, "kept"]:
    """Returns the sorted places of the fewest largest values whose weights reach `mass`, lowest places on ties.

    The weights are summed in bins of depth and only the bin at the edge is sorted: linear, however flat the law is.
    """
    bins = np.minimum(scaled * -BINS_PER_UNIT, float(BINS)).astype(np.intp)
    reached = np.cumsum(np.bincount(bins, weights))
    # By rounding only, all of them may fall short.
    edge = min(int(np.searchsorted(reached, mass, side="left")), len(reached) - 1)
    at_edge = np.flatnonzero(bins == edge)
    order = at_edge[np.argsort(-scaled[at_edge], kind="stable")]
    short = mass - (float(reached[edge - 1]) if edge else 0.0)
    needed = int(np.searchsorted(np.cumsum(weights[order]), short, side="left")) + 1
    kept = bins < edge
    kept[order[:needed]] = True
    return np.flatnonzero(kept)
