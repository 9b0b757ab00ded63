"""Which tokens a truncated law may or must keep, if its logits are known up to noise."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from draftproof.sampling import Sampler

MARGIN = 4.0
"""How many standard deviations of noise may exchange two tokens at the edge of a nucleus."""


def doubtful_edges(
    scores: Float[np.ndarray, "vocab"], sampler: Sampler, margin: float, edge: float
) -> tuple[Int[np.ndarray, "certain"], Int[np.ndarray, "possible"]]:
    """Returns the ids that are kept whatever the noise, and those that may be kept.

    Noise exchanges tokens that lie within `margin` of each other in the order that top-k and top-p go by, so that one
    of two nearly equal tokens is kept or the other; and it moves the mass of those above by up to `edge`.

    Args:
        scores: processed logits over temperature.
        sampler: top-k, top-p and min-p.
        margin: by how much two scores may be wrongly ordered.
        edge: probability mass by which the mass above a token may be wrong.
    """
    ids = np.flatnonzero(np.isfinite(scores))
    mine = scores[ids]
    weights = np.exp(mine - mine.max())
    near = mine >= _least(mine, weights, sampler, margin, edge)
    order = np.argsort(-mine[near])
    ids, falling, shares = ids[near][order], mine[near][order], weights[near][order] / weights.sum()
    mass = np.append(0.0, np.cumsum(shares))
    # How many tokens are above each one for sure, and how many may be, itself counted.
    surely = np.searchsorted(-falling, -(falling + margin), side="left")
    maybe = np.searchsorted(-falling, -(falling - margin), side="right")
    certain, possible = np.ones(len(ids), dtype=bool), np.ones(len(ids), dtype=bool)
    kept = 1.0
    if sampler.top_k:
        certain &= maybe - 1 < sampler.top_k
        possible &= surely < sampler.top_k
        kept = float(mass[min(sampler.top_k, len(ids))])
    if sampler.top_p < 1.0:
        certain &= mass[maybe] - shares < (sampler.top_p - edge) * kept
        possible &= mass[surely] < (sampler.top_p + edge) * kept
    if sampler.min_p > 0.0:
        least = float(falling[0]) + np.log(sampler.min_p)
        certain &= falling >= least + margin
        possible &= falling >= least - margin
    return np.sort(ids[certain]), np.sort(ids[possible])


def _least(
    scores: Float[np.ndarray, "ids"],
    weights: Float[np.ndarray, "ids"],
    sampler: Sampler,
    margin: float,
    edge: float,
) -> float:
    """Returns a score below which no token can be kept, nor keep one that can be from being certain: found by no sort.

    All tokens with a probability below some bound hold no more than the bound times their number.
    """
    if 0 < sampler.top_k < len(scores):
        return float(np.partition(scores, -sampler.top_k)[-sampler.top_k]) - margin
    outside = 1.0 - sampler.top_p - edge
    if outside > 0.0:
        return float(scores.max() + np.log(outside * weights.sum() / len(scores))) - margin
    if sampler.top_p == 1.0 and sampler.min_p > 0.0:
        return float(scores.max() + np.log(sampler.min_p)) - margin
    return -np.inf
