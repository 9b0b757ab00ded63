"""The law of a token under each known bug of an engine, where the target's law and the drafter's are known.

A bug is told by what becomes of one place of a block: with which probability a token is drafted there and accepted,
and with which one the block ends with it. Their sum is the law of the token where something is drafted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from draftproof.audit.zoo import residual
from draftproof.distribution import Distribution
from draftproof.sampling import Sampler
from draftproof.truncation import truncated_law

Law: TypeAlias = Float[np.ndarray, "ids"]

DROPPED_BELOW = 0.3
LENIENCE = 1.2
COLDER = 0.7
HOTTER, COOLER = 1.15, 0.85

AGAIN = "the residual goes through the sampler again"
WITHOUT_DRAFT = "penalties do not count drafted tokens"
TWICE = "penalties count the last token twice"


@dataclass(frozen=True, eq=False, kw_only=True)
class Place:
    """What is known of a place in the text before its token is seen; all laws over the same ids.

    The ids are those the target may write here, beyond doubt by noise.

    Attributes:
        p: the target's law given that it writes one of them: positive, with sum 1, `[ids]`.
        q: the drafter's probabilities of them; None if nothing is drafted here.
        raw: the drafter's before truncation; None if the same.
        before: the target's law at the place before, over these ids; None at the first of a text.
        unprocessed: the target's without the user's parameters; None if they change nothing.
        drafted_before: the drafter's at the place before, over these ids; None if unknown.
        usual: the mean of the target's laws at other places, over these ids; None if unknown.
        again: the user's temperature and truncation, which made p; None if there are none.
        uncounted: the target's law if penalties did not count what was drafted; None if there are none.
        twice: the same if they counted the token before a draft twice.
    """

    p: Law
    q: Law | None = None
    raw: Law | None = None
    before: Law | None = None
    unprocessed: Law | None = None
    drafted_before: Law | None = None
    usual: Law | None = None
    again: Sampler | None = None
    uncounted: Law | None = None
    twice: Law | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """What becomes of a place of a block, by the token that is written there.

    Attributes:
        kept: P(this token is drafted and accepted), `[ids]`.
        ended: P(the block ends with this token), `[ids]`.
        bonus: the law of a token that follows a whole draft, or where nothing is drafted; None: the target's.
    """

    kept: Law
    ended: Law
    bonus: Law | None = None

    @cached_property
    def total(self) -> float:
        """What the two sum to: 1, or less where the draft's law has mass on other ids than the place's."""
        return float(np.add.reduce(self.kept + self.ended))


@dataclass(frozen=True)
class KnownBug:
    """A bug that has a name.

    Attributes:
        name: what it does.
        family: where in the code it sits.
    """

    name: str
    family: str


@dataclass(frozen=True)
class BugLaw(KnownBug):
    """A bug that changes the law of a token by itself, wherever one is drafted.

    Attributes:
        outcome: place -> what becomes of it; None where the bug does nothing.
    """

    outcome: Callable[[Place], Outcome | None]

    def law(self, place: Place) -> Law | None:
        """Returns weights over the place's ids; None where the bug does nothing."""
        found = self.outcome(place)
        return None if found is None else found.kept + found.ended


def ratio(p: Law, q: Law) -> Law:
    """Returns min(1, p/q) of each token."""
    found: Law = np.minimum(1.0, p / np.maximum(q, 1e-300))
    return found


def judged(
    p: Law,
    drawn: Law,
    told: Law | None = None,
    chance: Callable[[Law, Law], Law] = ratio,
    recovered: Callable[[Law, Law], Law] = residual,
) -> Outcome:
    """Returns what the token rule does at a place, or what is left of it with a piece replaced.

    Args:
        p: the target's law.
        drawn: what the draft is drawn from; what is missing to a sum of 1 is drawn elsewhere and never accepted.
        told: what the rule is told it is drawn from; None: the same.
        chance: (p, told) -> P(each token is accepted if it is drafted).
        recovered: (p, told) -> the law of what replaces a rejected token.
    """
    told = drawn if told is None else told
    kept: Law = drawn * chance(p, told)
    return Outcome(kept, max(1.0 - float(kept.sum()), 0.0) * recovered(p, told))


def _drafted(outcome: Callable[[Law, Law], Outcome]) -> Callable[[Place], Outcome | None]:
    """Returns an outcome by p and q, where there is a draft."""
    return lambda place: None if place.q is None else outcome(place.p, place.q)


def _chance(chance: Callable[[Law, Law], Law]) -> Callable[[Place], Outcome | None]:
    return _drafted(lambda p, q: judged(p, q, chance=chance))


def _recovered(recovered: Callable[[Law, Law], Law]) -> Callable[[Place], Outcome | None]:
    return _drafted(lambda p, q: judged(p, q, recovered=recovered))


def _drawn(drawn: Callable[[Law], Law]) -> Callable[[Place], Outcome | None]:
    """Returns the outcome of a draft that is drawn from another law than is told."""
    return _drafted(lambda p, q: judged(p, drawn(q), q))


def _instead(other: Callable[[Place], Law | None]) -> Callable[[Place], Outcome | None]:
    """Returns the outcome of an exact engine with another target's law."""

    def outcome(place: Place) -> Outcome | None:
        law = other(place)
        total = 0.0 if law is None else float(law.sum())
        if law is None or total <= 0.0:
            return None
        law = law / total
        found = judged(law, np.zeros_like(law) if place.q is None else place.q)
        return Outcome(found.kept, found.ended, law)

    return outcome


def _without_rejected(p: Law, q: Law) -> Outcome:
    kept: Law = np.minimum(p, q)
    each = (q - kept) / np.maximum(1.0 - p, 1e-12)
    elsewhere = max(1.0 - float(q.sum()), 0.0)
    return Outcome(kept, p * (float(each.sum()) + elsewhere - each))


def _dropped(p: Law, q: Law) -> Outcome:
    drawn = np.where(q >= DROPPED_BELOW, q, 0.0)
    kept: Law = np.minimum(p, drawn)
    rejected = float((drawn - kept).sum())
    return Outcome(kept, rejected * residual(p, q) + max(1.0 - float(drawn.sum()), 0.0) * p)


def _argmax(q: Law) -> Law:
    law = np.zeros_like(q)
    place = int(np.argmax(q))
    law[place] = float(q[place] > 0.0)
    return law


def _colder(q: Law) -> Law:
    drawn: Law = q ** (1.0 / COLDER)
    return drawn / max(float(drawn.sum()), 1e-300)


def _raw_draft(place: Place) -> Outcome | None:
    return None if place.q is None or place.raw is None else judged(place.p, place.q, place.raw)


def sampled_again(law: Law, sampler: Sampler) -> Distribution:
    """Returns what temperature, top-k, top-p and min-p make of a law, as if it were a model's own."""
    with np.errstate(divide="ignore"):
        logits = np.log(law)
    return truncated_law(logits, float(logits.max()), sampler)


def _sampled_again(place: Place) -> Outcome | None:
    again = place.again
    if again is None or place.q is None:
        return None
    return judged(place.p, place.q, recovered=lambda p, q: sampled_again(residual(p, q), again).dense(len(p)))


def _likeliest(place: Place) -> Outcome:
    law = np.zeros_like(place.p)
    law[int(np.argmax(place.p))] = 1.0
    kept = law * (0.0 if place.q is None else place.q)
    return Outcome(kept, law - kept)


def _absolute(p: Law, q: Law) -> Law:
    apart: Law = np.abs(p - q)
    return apart / max(float(apart.sum()), 1e-300)


def _softmax(p: Law, q: Law) -> Law:
    weights: Law = np.exp(np.maximum(p - q, 0.0))
    found: Law = weights / weights.sum()
    return found


BUG_LAWS: tuple[BugLaw, ...] = (
    BugLaw("the residual is p itself", "residual", _recovered(lambda p, q: p)),
    BugLaw("the residual is p without the rejected token", "residual", _drafted(_without_rejected)),
    BugLaw("the residual is |p - q|", "residual", _recovered(_absolute)),
    BugLaw("the residual goes through a softmax", "residual", _recovered(_softmax)),
    BugLaw(AGAIN, "residual", _sampled_again),
    BugLaw("accepts if u < p", "acceptance", _chance(lambda p, q: p)),
    BugLaw("accepts if p >= q, without a coin", "acceptance", _chance(lambda p, q: (p >= q).astype(float))),
    BugLaw("the ratio is upside down", "acceptance", _chance(lambda p, q: np.minimum(1.0, q / p))),
    BugLaw("accepts 1.2 times too often", "acceptance", _chance(lambda p, q: ratio(LENIENCE * p, q))),
    BugLaw("draft tokens are not checked", "acceptance", _drafted(lambda p, q: Outcome(q, np.zeros_like(q)))),
    BugLaw("accepts the likeliest token only", "acceptance", _likeliest),
    BugLaw("an argmax draft passes for a sample", "draft law", _drawn(_argmax)),
    BugLaw("the draft is drawn at a lower temperature than is told", "draft law", _drawn(_colder)),
    BugLaw("unlikely draft tokens are dropped", "draft law", _drafted(_dropped)),
    BugLaw("a truncated draft is told by its raw law", "draft law", _raw_draft),
    BugLaw("a token comes from the row before", "rows", _instead(lambda place: place.before)),
    BugLaw("the sampling parameters are not applied", "processors", _instead(lambda place: place.unprocessed)),
    BugLaw(WITHOUT_DRAFT, "processors", _instead(lambda place: place.uncounted)),
    BugLaw(TWICE, "processors", _instead(lambda place: place.twice)),
    BugLaw(
        "sampled at a higher temperature than is claimed",
        "temperature",
        _instead(lambda place: place.p ** (1 / HOTTER)),
    ),
    BugLaw(
        "sampled at a lower temperature than is claimed", "temperature", _instead(lambda place: place.p ** (1 / COOLER))
    ),
)
"""Every bug of an engine that an audit bets on, with the family it is reported under."""
