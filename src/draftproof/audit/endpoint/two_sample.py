"""Are two samples of texts of one law? A test for engines of which nothing but texts is to be had."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

PREFIX = 48
"""How many characters are compared place by place."""

ROUND, MOST_ROUNDS = 2048, 100
"""Permutations at a time, and how many times at most."""


def least_p_value(samples: Sequence[tuple[Sequence[str], Sequence[str]]]) -> float:
    """Returns the smallest p-value that so many texts can give, were they as far apart as can be."""
    ways = sum(math.log(math.comb(len(mine) + len(theirs), len(mine))) for mine, theirs in samples)
    return max(2.0 * math.exp(-ways), 1.0 / (ROUND * MOST_ROUNDS + 1.0))


def two_sample_test(
    samples: Sequence[tuple[Sequence[str], Sequence[str]]], alpha: float, seed: int = 0
) -> tuple[float, float]:
    """Returns the p-value of equal laws and the squared maximum mean discrepancy (Gretton et al. 2012), by permutation.

    Texts are exchanged within a prompt only. Two texts are alike by how long they begin alike and by the pairs of
    characters they share.

    Args:
        samples: for each prompt the texts of the one and of the other.
        alpha: the level that the p-value must be able to reach.
        seed: of the permutations.
    """
    rng = np.random.default_rng(seed)
    kernels = [(_kernel([*mine, *theirs]), len(mine)) for mine, theirs in samples if mine and theirs]
    rounds = min(max(1, math.ceil(20.0 / alpha / ROUND)), MOST_ROUNDS)
    # Signs of a permutation: s K s is the discrepancy, up to a factor that permutations do not change.
    real = sum(_distance(kernel, _signs(len(kernel), count)[None])[0] for kernel, count in kernels)
    reached = 0
    for _ in range(rounds):
        drawn = np.zeros(ROUND)
        for kernel, count in kernels:
            signs = np.tile(_signs(len(kernel), count), (ROUND, 1))
            drawn += _distance(kernel, rng.permuted(signs, axis=1))
        reached += int((drawn >= real - 1e-12).sum())
    return (reached + 1.0) / (rounds * ROUND + 1.0), float(real) / max(len(kernels), 1)


def _signs(size: int, mine: int) -> Float[np.ndarray, "size"]:
    """Returns weights of the texts: those of the one sum to 1, those of the other to -1."""
    return np.where(np.arange(size) < mine, 1.0 / mine, -1.0 / (size - mine))


def _distance(kernel: Float[np.ndarray, "n n"], signs: Float[np.ndarray, "m n"]) -> Float[np.ndarray, "m"]:
    return np.asarray(((signs @ kernel) * signs).sum(axis=1))


def _kernel(texts: Sequence[str]) -> Float[np.ndarray, "n n"]:
    """Returns how alike texts are, two by two: positive definite."""
    begins = np.zeros((len(texts), len(texts)))
    for length in (1, 2, 4, 8, 16, 32, PREFIX):
        heads = np.array([text[:length] for text in texts])
        begins += (heads[:, None] == heads[None, :]) / 7.0
    pairs = sorted({text[i : i + 2] for text in texts for i in range(len(text) - 1)})
    place = {pair: i for i, pair in enumerate(pairs)}
    counts = np.zeros((len(texts), max(len(pairs), 1)))
    for row, text in enumerate(texts):
        for i in range(len(text) - 1):
            counts[row, place[text[i : i + 2]]] += 1.0
    counts -= counts.mean(axis=0)
    norms = np.linalg.norm(counts, axis=1, keepdims=True)
    counts /= np.maximum(norms, 1e-12)
    return begins + counts @ counts.T
