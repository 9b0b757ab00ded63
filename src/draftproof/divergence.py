"""Where two texts of one model part, and whether rounding decided it.

A pass over several rows uses other kernels than a pass over one row, so on a real backend its logits differ in the
last digits. Rules are exact given the logits; where two tokens are nearly tied, those digits can decide. This module
tells such a near tie from an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftproof.models.base import Model, Query
from draftproof.noise import CounterNoise, Seed
from draftproof.sampling import BoundSampler
from draftproof.types import NO_TOKENS, Tokens, as_tokens

WIDTHS = (2, 3, 4, 5, 8, 12, 16)
"""Passes over this many rows are compared with a pass over one."""

ALLOWANCE = 4.0
"""How many times the measured rounding a gap may be and still count as a near tie.

The text before the place was itself computed in passes of unknown widths, and its rounding is in the cache too.
"""


@dataclass(frozen=True)
class Divergence:
    """The first place at which two texts differ.

    Attributes:
        index: place in the generated tokens, from 0.
        expected: the token that a pass over one row chooses there.
        found: the other token.
        gap: by how much `expected` leads there: the difference of logits (over temperature), with the seed's noise
            added if the text was sampled.
        rounding: the most by which that lead changes when the row is computed in passes over several rows.
        reproduced: whether one of those passes prefers `found`.
    """

    index: int
    expected: int
    found: int
    gap: float
    rounding: float
    reproduced: bool

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains the difference; if not, something is wrong."""
        return self.reproduced or abs(self.gap) <= ALLOWANCE * self.rounding


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Returns the first place at which two texts differ, or None if they are equal."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def find_divergence(
    model: Model, sampler: BoundSampler, seed: Seed, prompt: Tokens, expected: Sequence[int], found: Sequence[int]
) -> Divergence | None:
    """Compares two texts of a request and judges the first difference.

    Args:
        model: the target of both.
        sampler: the request's sampling law.
        seed: the request's noise; unused if the law is greedy.
        prompt: the prompt's ids, `[n]`.
        expected: generated ids of plain decoding.
        found: generated ids under speculation.

    Returns:
        None if the texts are equal, or one merely ends where the other goes on.
    """
    index = first_difference(expected, found)
    if index is None or index >= min(len(expected), len(found)):
        return None
    text = np.concatenate([prompt, as_tokens(expected[:index])])
    pair = expected[index], found[index]
    noise = CounterNoise(seed)

    def lead(row: np.ndarray) -> float:
        scores = sampler.scores(text, row)[list(pair)]
        if not sampler.sampler.greedy:
            scores = scores - np.log(noise.exponentials(len(text), np.array(pair)))
        return float(scores[0] - scores[1])

    with model.session(1) as session:
        gap = lead(session.score([Query(0, text, NO_TOKENS)])[0][0])
        leads = []
        for width in WIDTHS:
            if width <= len(text):
                committed, draft = text[: len(text) - width + 1], text[len(text) - width + 1 :]
                leads.append(lead(session.score([Query(0, committed, draft)])[0][width - 1]))
    rounding = max((abs(each - gap) for each in leads if np.isfinite(each)), default=0.0)
    reproduced = any((each < 0) != (gap < 0) for each in leads)
    return Divergence(index, pair[0], pair[1], gap, rounding, reproduced)
