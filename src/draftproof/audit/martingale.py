"""Evidence that grows token by token: bets against the target's law that an exact engine cannot win.

Before a token is seen, each bet fixes a factor with mean at most 1 under the target's law; the product of the factors
is the bet's wealth, and the mean wealth of all bets reaches 1/alpha with probability at most alpha, however long one
looks and whenever one stops (Ville's inequality). Two kinds of bets are laid (docs/auditing.md has the reasons):

- on a known bug: `(1 - e) + e b(x) / p(x)`, where b is the law of the token under the bug and e how often it acts;
- on a score with mean 0 under p: `1 + l s(x)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int

from draftproof.audit.zoo import residual

Law: TypeAlias = Float[np.ndarray, "ids"]

SHARES = (0.2, 0.7)
"""How often a bug is taken to act."""

STAKES = (-0.4, -0.2, -0.1, -0.05, -0.02, 0.02, 0.05, 0.1, 0.2, 0.4)
"""What is laid on a score, which lies in [-2, 2]."""

EDGE = "tokens at the edge of the nucleus"

SCORES = 6
"""Scores that are bet on."""

DROPPED_BELOW = 0.3
LENIENCE = 1.2
COLDER = 0.7
HOTTER, COOLER = 1.15, 0.85


@dataclass(frozen=True, eq=False)
class Place:
    """What is known of a place in the text before its token is seen; all laws over the same ids.

    Attributes:
        ids: the ids the target may write here, ascending, beyond doubt by noise: `[ids]`.
        p: the target's law given that it writes one of them: positive, with sum 1.
        q: the drafter's probabilities of them; None if nothing is drafted here.
        raw: the drafter's before truncation; None if the same.
        before: the target's law at the place before, over these ids; None at the first.
        unprocessed: the target's without the user's parameters; None if they change nothing.
    """

    ids: Int[np.ndarray, "ids"]
    p: Law
    q: Law | None = None
    raw: Law | None = None
    before: Law | None = None
    unprocessed: Law | None = None


@dataclass(frozen=True)
class BugLaw:
    """The law of a token under a known bug, where the drafter proposed a token for this place.

    Attributes:
        name: what the bug does.
        family: where in the code it sits.
        law: place -> weights over its ids; None where the bug does nothing.
    """

    name: str
    family: str
    law: Callable[[Place], Law | None]


def _drafted(law: Callable[[Law, Law], Law]) -> Callable[[Place], Law | None]:
    """Returns a bug law of p and q, where there is a draft."""
    return lambda place: None if place.q is None else law(place.p, place.q)


def _judged(
    chance: Callable[[Law, Law], Law], residual: Callable[[Law, Law], Law] = residual
) -> Callable[[Law, Law], Law]:
    """Returns the law of a token that is accepted with a chance and else drawn from a residual."""

    def law(p: Law, q: Law) -> Law:
        kept: Law = q * chance(p, q)
        return kept + max(1.0 - float(kept.sum()), 0.0) * residual(p, q)

    return law


def _ratio(p: Law, q: Law) -> Law:
    ratio: Law = np.minimum(1.0, p / np.maximum(q, 1e-300))
    return ratio


def _without_rejected(p: Law, q: Law) -> Law:
    kept: Law = np.minimum(p, q)
    each = (q - kept) / np.maximum(1.0 - p, 1e-12)
    elsewhere = max(1.0 - float(q.sum()), 0.0)
    law: Law = kept + p * (float(each.sum()) + elsewhere - each)
    return law


def _argmax_draft(p: Law, q: Law) -> Law:
    place = int(np.argmax(q))
    chance = min(1.0, float(p[place] / q[place])) if q[place] > 0.0 else 0.0
    law = (1.0 - chance) * residual(p, q)
    law[place] += chance
    return law


def _colder_draft(p: Law, q: Law) -> Law:
    drawn = q ** (1.0 / COLDER)
    total = float(drawn.sum())
    return _judged(lambda a, b: drawn / total * _ratio(a, b) / np.maximum(b, 1e-300))(p, q) if total > 0.0 else p


def _dropped(p: Law, q: Law) -> Law:
    kept = np.where(q >= DROPPED_BELOW, q, 0.0)
    accepted: Law = np.minimum(p, kept)
    rejected = float((kept - accepted).sum())
    return accepted + rejected * residual(p, q) + max(1.0 - float(kept.sum()), 0.0) * p


def _raw_draft(place: Place) -> Law | None:
    if place.q is None or place.raw is None:
        return None
    kept: Law = place.q * _ratio(place.p, place.raw)
    return kept + max(1.0 - float(kept.sum()), 0.0) * residual(place.p, place.raw)


def _likeliest(place: Place) -> Law:
    law = np.zeros_like(place.p)
    law[int(np.argmax(place.p))] = 1.0
    return law


BUG_LAWS: tuple[BugLaw, ...] = (
    BugLaw("the residual is p itself", "residual", _drafted(_judged(_ratio, lambda p, q: p))),
    BugLaw("the residual is p without the rejected token", "residual", _drafted(_without_rejected)),
    BugLaw(
        "the residual is |p - q|",
        "residual",
        _drafted(_judged(_ratio, lambda p, q: np.abs(p - q) / max(float(np.abs(p - q).sum()), 1e-300))),
    ),
    BugLaw(
        "the residual goes through a softmax",
        "residual",
        _drafted(_judged(_ratio, lambda p, q: np.exp(np.maximum(p - q, 0.0)) / np.exp(np.maximum(p - q, 0.0)).sum())),
    ),
    BugLaw("accepts if u < p", "acceptance", _drafted(_judged(lambda p, q: p))),
    BugLaw("accepts if p >= q, without a coin", "acceptance", _drafted(_judged(lambda p, q: (p >= q).astype(float)))),
    BugLaw("the ratio is upside down", "acceptance", _drafted(_judged(lambda p, q: np.minimum(1.0, q / p)))),
    BugLaw(
        "accepts 1.2 times too often",
        "acceptance",
        _drafted(_judged(lambda p, q: np.minimum(1.0, LENIENCE * p / np.maximum(q, 1e-300)))),
    ),
    BugLaw("draft tokens are not checked", "acceptance", _drafted(lambda p, q: q)),
    BugLaw("accepts the likeliest token only", "acceptance", _likeliest),
    BugLaw("an argmax draft passes for a sample", "draft law", _drafted(_argmax_draft)),
    BugLaw("the draft is drawn at a lower temperature than is told", "draft law", _drafted(_colder_draft)),
    BugLaw("unlikely draft tokens are dropped", "draft law", _drafted(_dropped)),
    BugLaw("a truncated draft is told by its raw law", "draft law", _raw_draft),
    BugLaw("a token comes from the row before", "rows", lambda place: place.before),
    BugLaw("the sampling parameters are not applied", "processors", lambda place: place.unprocessed),
    BugLaw("sampled at a higher temperature than is claimed", "temperature", lambda place: place.p ** (1 / HOTTER)),
    BugLaw("sampled at a lower temperature than is claimed", "temperature", lambda place: place.p ** (1 / COOLER)),
)
"""Every bug of an engine that an audit bets on, with the family it is reported under."""


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
    """

    allowance: float = 0.0
    acting: float = 0.7
    tokens: int = 0
    wealth: dict[tuple[str, float], float] = field(default_factory=dict)
    peak: float = 0.0
    _bets: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    _growth: dict[str, list[list[tuple[float, float]]]] = field(default_factory=dict)

    @property
    def log_e(self) -> float:
        """The logarithm of the e-value: of the mean wealth of all bets."""
        return float(np.logaddexp.reduce([*self.wealth.values(), *[0.0] * (BETS - len(self.wealth))])) - math.log(BETS)

    def see(self, place: Place, at: int, measure: bool = False) -> None:
        """Settles all bets on the token at index `at` of the place's ids.

        Args:
            place: what was known before.
            at: where the token is among `place.ids`.
            measure: also note how fast each bet on a bug would grow if that bug were there.
        """
        self.tokens += 1
        charge = math.log1p(self.allowance)
        p = place.p
        for bug in BUG_LAWS:
            weights = bug.law(place)
            total = 0.0 if weights is None else float(weights.sum())
            if weights is None or total <= 0.0:
                continue
            gain = float(weights[at]) / total / float(p[at])
            for share in SHARES:
                self._add((bug.name, share), math.log1p(share * (gain - 1.0)) - charge)
            self._bets.setdefault(bug.name, []).append((self.tokens, gain))
            if measure:
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
        """Settles bets that tokens at the edge of a nucleus, which are no other evidence, come too often.

        Args:
            inside: whether the token is one of them.
            most: the largest probability that noise allows them together; 0 if there are none.
        """
        if most > 0.0:
            for stake in STAKES:
                if stake > 0.0:
                    self._add((EDGE, stake), math.log1p(stake * (float(inside) - most)))

    def telling(self, bug: str, count: int) -> list[tuple[int, float]]:
        """Returns the tokens that speak most for a bug, by number from 0, and by how much likelier it makes them."""
        gains = sorted(self._bets.get(bug, []), key=lambda each: -each[1])[:count]
        return [(number - 1, gain) for number, gain in gains]

    def _add(self, bet: tuple[str, float], gain: float) -> None:
        self.wealth[bet] = self.wealth.get(bet, 0.0) + gain

    def likeliest(self) -> BugLaw | None:
        """Returns the bug that explains the tokens best, at the best of several shares; None if the target does."""
        best, found = 0.0, None
        for bug in BUG_LAWS:
            gains = np.array([gain for _, gain in self._bets.get(bug.name, [])])
            if not len(gains):
                continue
            fit = max(float(np.log1p(share * (gains - 1.0)).sum()) for share in (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9))
            if fit > best:
                best, found = fit, bug
        return found

    def power(self, alpha: float) -> dict[str, float]:
        """Returns, for each bug that changes anything here, P(1/alpha would have been reached by now), did it act."""
        from scipy.stats import norm

        bar = math.log(BETS / alpha)
        found: dict[str, float] = {}
        for bug in BUG_LAWS:
            noted = np.array(self._growth.get(bug.name, []))
            if not len(noted) or not noted[:, :, 1].any():
                continue
            sums = len(self._bets[bug.name]) * noted.mean(axis=0)
            found[bug.name] = max(
                float(norm.sf((bar - mean) / math.sqrt(max(variance, 1e-300)))) for mean, variance in sums.tolist()
            )
        return found
