"""The law of a place of which a server tells only the likeliest tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from draftproof.audit.edge import MARGIN, doubtful_edges
from draftproof.audit.endpoint.answers import Key, nameable
from draftproof.sampling import Sampler

MOST_HIDDEN = 100_000
"""Tokens that the rest is spread over, at most."""


@dataclass(frozen=True, eq=False)
class TopLaw:
    """What is known of the law of a place.

    A token that is none of `keys` is no evidence: given that it is one of them, its law is `probs`, whatever the others
    have.

    Attributes:
        keys: tokens that are kept beyond doubt, likeliest first.
        probs: their probabilities given one of them, `[keys]`.
        logprobs: the model's own logarithms, before temperature and truncation, `[keys]`.
        allowed: the tokens that may be written at all; None: any.
        doubtful: the most that all others together may have; 0 if that is unknown, or if there are none.
    """

    keys: list[Key]
    probs: Float[np.ndarray, "keys"]
    logprobs: Float[np.ndarray, "keys"]
    allowed: frozenset[Key] | None = None
    doubtful: float = 0.0

    def place(self, key: Key) -> int | None:
        """Returns where a token is among the keys."""
        return self.keys.index(key) if key in self.keys else None

    def spread(self, other: dict[Key, float]) -> Float[np.ndarray, "keys"]:
        """Returns the probabilities that another list gives these tokens; what it lacks is below its last."""
        least = min(other.values(), default=0.0) - math.log(10.0)
        return np.exp([other.get(key, least) for key in self.keys])


def top_law(top: dict[Key, float], sampler: Sampler, noise: float = 0.0) -> TopLaw:
    """Returns what is known of the law of a token under temperature, top-k, top-p and min-p.

    Args:
        top: the likeliest tokens with their logprobs under the model's own law.
        sampler: what the law is claimed to be made with; temperature above 0, no penalties and no bias.
        noise: standard deviation of log p between these and the ones that tokens were drawn with.
    """
    keys = sorted(top, key=lambda key: -top[key])
    own = np.array([top[key] for key in keys])
    rest = max(1.0 - float(np.exp(own).sum()), 0.0)
    scores = (own - own[0]) / sampler.temperature
    # No token of the rest is likelier than the last that is told. At most, then, there are so many as likely as that
    # one; below temperature 1 no other way to share the rest gives them more.
    hidden = min(math.ceil(rest * math.exp(-own[-1])), MOST_HIDDEN)
    most = np.append(scores, np.full(hidden, scores[-1]))
    fewest = np.append(scores, np.full(hidden, math.log(rest / hidden) - own[0])) if hidden else scores
    if sampler.temperature != 1.0:
        fewest = scores
    known = sampler.temperature <= 1.0
    if sampler.truncates:
        margin = MARGIN * noise
        (surely, _), (so_too, possible) = (doubtful_edges(each, sampler, margin, noise) for each in (fewest, most))
        certain = np.intersect1d(surely, so_too)
        certain = certain[certain < len(keys)]
        # The list may end before what is kept does, and above temperature 1 the rest may weigh anything.
        weighed = known or sampler.top_p == 1.0 or 0 < sampler.top_k <= len(keys)
        open_ended = not weighed or bool((possible >= len(keys)).any())
        allowed = None if open_ended else frozenset(keys[i] for i in possible.tolist())
    else:
        certain, possible, allowed = np.arange(len(keys)), np.arange(len(most)), None
    # The likeliest is kept whatever is cut.
    certain = np.array([i for i in certain.tolist() or [0] if nameable(keys[i])], dtype=int)
    if len(certain) == 0:
        return TopLaw([], np.zeros(0), np.zeros(0), allowed)
    others = np.setdiff1d(possible, certain)
    listed = float(np.exp(scores[others[others < len(keys)]]).sum())
    beyond = rest * math.exp(-own[0]) if sampler.temperature == 1.0 else hidden * math.exp(scores[-1])
    theirs = listed + (beyond if bool((others >= len(keys)).any()) else 0.0)
    mine = float(np.exp(scores[certain]).sum())
    doubtful = theirs / (theirs + mine) * (1.0 + MARGIN * noise) if known or allowed is not None else 0.0
    return TopLaw(
        [keys[i] for i in certain.tolist()],
        np.exp(scores[certain]) / mine,
        own[certain],
        allowed,
        min(doubtful, 1.0),
    )
