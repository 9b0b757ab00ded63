"""Evidence that grows token by token: bets against the target's law that an exact engine cannot win.

Before a token is seen, each bet fixes a factor with mean at most 1 under the target's law; the product of the factors
is the bet's wealth, and the mean wealth of all bets reaches 1/alpha with probability at most alpha, however long one
looks and whenever one stops (Ville's inequality). Two kinds of bets are laid (docs/auditing.md has the reasons):

- on a known bug: `(1 - e) + e b(x) / p(x)`, where b is the law of the token under the bug and e how often it acts;
- on a score with mean 0 under p: `1 + l s(x)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from draftproof.audit.blocks import NAMES, Blocks
from draftproof.audit.laws import BUG_LAWS, BugLaw, KnownBug, Place

__all__ = ["BETS", "BUG_LAWS", "EDGE", "BugLaw", "Evidence", "KnownBug", "Place"]

SHARES = (0.2, 0.7)
"""How often a bug is taken to act."""

STAKES = (-0.4, -0.2, -0.1, -0.05, -0.02, 0.02, 0.05, 0.1, 0.2, 0.4)
"""What is laid on a score, which lies in [-2, 2]."""

EDGE = "tokens at the far end of the target's law"

SCORES = 6
"""Scores that are bet on."""

BETS = len(BUG_LAWS) * len(SHARES) + SCORES * len(STAKES)
"""Bets that start with the same stake each; one that is never laid keeps it."""


def _scores(place: Place, at: int) -> list[tuple[str, float]]:
    """Returns scores of the token at index `at`, each with mean 0 under p and values in [-2, 2]."""
    p, q = place.p, place.q
    above = float(p[p > p[at]].sum()) + 0.5 * float(p[p == p[at]].sum())
    plain = np.maximum(np.log(p), -8.0) / 8.0
    scores = [("how far down the target's order tokens lie", 2.0 * above - 1.0)]
    found = [("how likely tokens are to the target", plain)]
    if q is not None:
        found.append(("how much the drafter prefers tokens", (q - p) / (q + p)))
        found.append(("the drafter's first choice", (np.arange(len(p)) == int(np.argmax(q))).astype(float)))
        if len(p) > 10 and int(np.count_nonzero(q)) > 10:
            found.append(("the drafter's first ten", (q >= np.partition(q, -10)[-10]).astype(float)))
    return scores + [(name, float(score[at]) - float((p * score).sum())) for name, score in found]


@dataclass
class Evidence:
    """The wealth of all bets against one engine.

    Args:
        allowance: how much larger than the reference's a probability of the engine's own may be, on average over the
            ids a bet favours: each factor is divided by 1 + this. 0 for arithmetic that is the same to rounding.
        acting: the share of tokens that a bug is taken to act on when power is told.
        closed: whether no more is bet; what is seen then only tells which bug it is.
    """

    allowance: float = 0.0
    acting: float = 0.7
    tokens: int = 0
    wealth: dict[tuple[str, float], float] = field(default_factory=dict)
    peak: float = 0.0
    closed: bool = False
    blocks: Blocks = field(default_factory=Blocks)
    _log_e: float | None = None
    _laid: dict[str, int] = field(default_factory=dict)
    _growth: dict[str, list[list[tuple[float, float]]]] = field(default_factory=dict)

    @property
    def log_e(self) -> float:
        """The logarithm of the e-value: of the mean wealth of all bets."""
        if self._log_e is None:
            sleeping = [0.0] * (BETS - len(self.wealth))
            self._log_e = float(np.logaddexp.reduce([*self.wealth.values(), *sleeping])) - math.log(BETS)
        return self._log_e

    def see(self, place: Place, at: int, measure: bool = False) -> None:
        """Settles all bets on the token at index `at` of the place's ids.

        Args:
            place: what was known before.
            at: where the token is in the place's laws.
            measure: also note how fast each bet on a bug would grow if that bug were there.
        """
        found = [bug.outcome(place) for bug in BUG_LAWS]
        outcomes = [each if each is not None and each.total > 0.0 else None for each in found]
        gains = self.blocks.note(place, at, outcomes)
        if self.closed:
            return
        self.tokens += 1
        charge = math.log1p(self.allowance)
        p = place.p
        for bug, outcome, gain in zip(BUG_LAWS, outcomes, gains, strict=True):
            if outcome is None:
                continue
            for share in SHARES:
                self._add((bug.name, share), math.log1p(share * (gain - 1.0)) - charge)
            self._laid[bug.name] = self._laid.get(bug.name, 0) + 1
            if measure:
                weights, total = outcome.kept + outcome.ended, outcome.total
                real = self.acting * weights / total + (1.0 - self.acting) * p
                growths = [np.log1p(share * (weights / total / p - 1.0)) for share in SHARES]
                means = [float((real * growth).sum()) for growth in growths]
                spreads = [
                    float((real * growth**2).sum()) - mean**2 for growth, mean in zip(growths, means, strict=True)
                ]
                noted = [(mean - charge, spread) for mean, spread in zip(means, spreads, strict=True)]
                self._growth.setdefault(bug.name, []).append(noted)
        for name, score in _scores(place, at):
            for stake in STAKES:
                self._add((name, stake), math.log1p(stake * score) - charge)
        self.peak = max(self.peak, self.log_e)

    def see_edge(self, inside: bool, most: float) -> None:
        """Settles bets that tokens at the far end of a law, which are no other evidence, come too often.

        Args:
            inside: whether the token is one of them.
            most: the largest probability that noise allows them together; 0 if there are none.
        """
        if most > 0.0 and not self.closed:
            for stake in STAKES:
                if stake > 0.0:
                    self._add((EDGE, stake), math.log1p(stake * (float(inside) - most)))

    def see_unknown(self) -> None:
        """Settles all bets on a token that came but is not told: each that was laid before loses the most it may."""
        if self.closed:
            return
        for name, stake in list(self.wealth):
            # A share of a stake is all that a bet on a bug can lose; scores lie in [-2, 2].
            most = stake if name in self._laid else 2.0 * abs(stake)
            self._add((name, stake), math.log1p(-most))

    def telling(self, bug: str, count: int) -> list[tuple[int, float]]:
        """Returns the tokens that speak most for a bug, by number from 0, and by how much likelier it makes them."""
        number = next((i for i, each in enumerate(NAMES) if each.name == bug), None)
        if number is None or not len(self.blocks):
            return []
        gains = self.blocks.alone(number) if number < len(BUG_LAWS) else self.blocks.gains(number)
        most = np.argsort(-gains, kind="stable")[:count].tolist()
        return [(place, float(gains[place])) for place in most]

    def _add(self, bet: tuple[str, float], gain: float) -> None:
        self.wealth[bet] = self.wealth.get(bet, 0.0) + gain
        self._log_e = None

    def likeliest(self) -> KnownBug | None:
        """Returns the bug that explains the tokens best, in blocks or one by one; None if the target does."""
        fits = self.blocks.fits()
        best = int(np.argmax(fits))
        return NAMES[best] if fits[best] > 0.0 else None

    def power(self, alpha: float) -> dict[str, float]:
        """Returns, for each bug that changes anything here, P(1/alpha would have been reached by now), did it act."""
        from scipy.special import ndtr

        bar = math.log(BETS / alpha)
        found: dict[str, float] = {}
        for bug in BUG_LAWS:
            noted = np.array(self._growth.get(bug.name, []))
            if not len(noted) or not noted[:, :, 1].any():
                continue
            sums = self._laid[bug.name] * noted.mean(axis=0)
            found[bug.name] = max(
                float(ndtr((mean - bar) / math.sqrt(max(variance, 1e-300)))) for mean, variance in sums.tolist()
            )
        return found
