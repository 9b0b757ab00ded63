"""How often a coupled draft and its target agree, against the formula."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.stats import binomtest

from draftproof.distribution import Distribution
from draftproof.noise import CounterNoise
from draftproof.rules import Rule
from draftproof.types import Draft, as_tokens
from tests.laws import types_unchecked

DRAWS = 3_000

# Different supports, as after a truncation: what is coupled is the id, not the place in the support.
P = Distribution(np.array([0.5, 0.3, 0.2]), np.array([1, 2, 4]))
Q = Distribution(np.array([0.15, 0.4, 0.25, 0.2]), np.array([0, 1, 2, 3]))


def match_probability(p: Float[np.ndarray, "vocab"], q: Float[np.ndarray, "vocab"]) -> float:
    """Returns P(argmin E/p = argmin E/q) = sum_x 1 / sum_y max(p_y/p_x, q_y/q_x), x over the common support."""
    common = np.flatnonzero((p > 0.0) & (q > 0.0))
    return sum(1.0 / float(np.maximum(p / p[x], q / q[x]).sum()) for x in common)


def matches(rule: Rule, p: Distribution, q: Distribution, draws: int) -> int:
    """Returns how many of `draws` one-token drafts from q a rule accepts."""
    noise, accepted = CounterNoise(2024), 0
    for position in range(draws):
        with types_unchecked(unless=position == 0):
            x = rule.draw(q, noise, position, 0)
            accepted += rule.verify([p, p], Draft(as_tokens([x]), [q]), noise, position).accepted
    return accepted


def agreement_p_value(rule: Rule) -> float:
    """Returns the p-value of the agreement of P and Q being what the formula says."""
    chance = match_probability(P.dense(5), Q.dense(5))
    return float(binomtest(matches(rule, P, Q, DRAWS), DRAWS, chance).pvalue)
