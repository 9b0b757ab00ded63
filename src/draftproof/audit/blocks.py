"""Names a bug after the fact: which one explains a text best, if its tokens came in blocks of draft and correction.

Where a block begins is not known, nor how long drafts are. Both are summed over, as in a hidden Markov chain: the
state is how many tokens of a draft have been accepted so far. So a bug that acts at one place of a block only, as at
the bonus token, is told from one that acts at all. Nothing is bet on these names; they may use the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from draftproof.audit.laws import BUG_LAWS, KnownBug, Outcome, Place, judged
from draftproof.audit.zoo import residual

LENGTHS = (1, 2, 3, 4, 5, 6, 8)
"""Draft lengths that are tried."""

SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9, 0.99)
"""How often a bug may act where it can."""

SELDOM = 3.0
"""By how much a bug must explain a text better, in log likelihood, if it is to act only at times: few do."""

DRAFTED = 32
"""How many of the tokens that a drafter prefers stand for all it may draft next."""

LOST = 1e-9
"""Where a token is this much less likely than to the target, a chain begins anew: it has lost where blocks begin."""

SURE = 1e12
"""More than this much likelier no bug makes a token: products stay finite."""

REACHES = np.array([0.0, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0, 1.5, 2.5, 5.0])
"""Products of ratios for which block verification's chances are worked out; others lie between them."""

FIRST = KnownBug("the first draft token is not checked", "rows")
BONUS = KnownBug("the bonus token comes from the row before", "rows")
LATE = KnownBug("a rejection is handled one row late", "rows")
STAYS = KnownBug("a rejected token stays", "rows")
STOPS = KnownBug("block verification stops at the first no", "block")
UNSCALED = KnownBug("block verification recovers by the token rule", "block")
UNCAPPED = KnownBug("block verification without caps", "block")
LAST_ALONE = KnownBug("block verification judges the last token alone", "block")

BY_PLACE = (FIRST, BONUS, LATE, STAYS)
"""Bugs of the token rule that act at one place of a block."""

BY_BLOCK = (STOPS, UNSCALED, UNCAPPED, LAST_ALONE)
"""Bugs of block verification."""

NAMES: tuple[KnownBug, ...] = (*BUG_LAWS, *BY_PLACE, *BY_BLOCK)
"""Every bug that an audit of an engine may name."""

KEPT_FIRST, ENDED_FIRST, KEPT, ENDED, BONUS_LAW, STAYED, AFTER, BARE = range(8)
"""Columns of what a bug makes of a token, over the target's probability of it: accepted or ending the block at its
first place; the same at others; after a whole draft; rejected and kept; after such a one; where nothing is drafted."""


@dataclass
class Blocks:
    """What each bug makes of each token, and which explains them best."""

    _rows: list[Float[np.ndarray, "bugs columns"]] = field(default_factory=list)
    _drafted: list[bool] = field(default_factory=list)
    _begins: list[bool] = field(default_factory=list)
    _tables: list[Float[np.ndarray, "reaches"]] = field(default_factory=list)
    _own: list[tuple[float, float]] = field(default_factory=list)
    _preferred: list[Float[np.ndarray, "two _"]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._rows)

    def note(self, place: Place, at: int, outcomes: Sequence[Outcome | None]) -> list[float]:
        """Notes the token at index `at` of a place, with what each of `BUG_LAWS` makes of the place.

        Returns how much likelier each makes the token, 1 where it does nothing.
        """
        p, q = place.p, place.q
        own = float(p[at])
        plain = judged(p, np.zeros_like(p) if q is None else q)
        usual = _row(plain, at, own)
        rows = [usual if each is None else _row(each, at, own) for each in outcomes]
        first, bonus, late, stays = (usual.copy() for _ in BY_PLACE)
        if q is not None:
            if float(q.sum()) > 0.0:
                first[KEPT_FIRST], first[ENDED_FIRST] = float(q[at] / q.sum()) / own, 0.0
            if place.usual is not None:
                rejected = max(1.0 - float(plain.kept.sum()), 0.0)
                late[[ENDED_FIRST, ENDED]] = rejected * float(place.usual[at]) / own
            stays[[ENDED_FIRST, ENDED]] = 0.0
            stays[STAYED] = float(q[at] - plain.kept[at]) / own
        if place.before is not None:
            bonus[BONUS_LAW] = place.before[at] / own
            if place.drafted_before is not None:
                stays[AFTER] = float(residual(place.before, place.drafted_before)[at]) / own
        self._rows.append(np.minimum([*rows, first, bonus, late, stays], SURE))
        self._drafted.append(q is not None)
        self._begins.append(place.before is None)
        self._own.append((max(own, 1.0 / SURE), 0.0 if q is None else float(q[at])))
        if q is None:
            self._tables.append(np.zeros(len(REACHES)))
            self._preferred.append(np.zeros((2, 1)))
        else:
            self._tables.append(np.array([float(np.maximum(reach * p - q, 0.0).sum()) for reach in REACHES.tolist()]))
            top = np.argpartition(q, -DRAFTED)[-DRAFTED:] if len(q) > DRAFTED else np.arange(len(q))
            self._preferred.append(np.stack([p[top], q[top]]))
        return [1.0 if each is None else row[KEPT] + row[ENDED] for each, row in zip(outcomes, rows, strict=True)]

    def alone(self, bug: int) -> Float[np.ndarray, "tokens"]:
        """Returns how much likelier a bug that is bet on makes each token, if it acts wherever something is drafted."""
        columns = np.array([(row[bug, KEPT] + row[bug, ENDED]) for row in self._rows])
        bare = np.array([row[bug, BARE] for row in self._rows])
        gains: Float[np.ndarray, "tokens"] = np.where(self._drafted, columns, bare)
        return gains

    def fits(self) -> list[float]:
        """Returns how well each of `NAMES` explains the tokens: log likelihood over the target's, at the best shape."""
        if not self._rows:
            return [0.0] * len(NAMES)
        chained = self._chained()
        found = [
            max(_fit(chained[:, bug]), _fit(self.alone(bug)[:, None]) if bug < len(BUG_LAWS) else 0.0)
            for bug in range(chained.shape[1])
        ]
        return found + [_fit(self._blocked(bug)) if any(self._drafted) else 0.0 for bug in BY_BLOCK]

    def gains(self, name: int) -> Float[np.ndarray, "tokens"]:
        """Returns how much likelier a bug, by its place in `NAMES`, makes each token, at the best draft length."""
        chains = len(NAMES) - len(BY_BLOCK)
        found = self._blocked(NAMES[name]) if name >= chains else self._chained()[:, name]
        best: Float[np.ndarray, "tokens"] = max(found.T, key=lambda each: _fit(each[:, None]))
        return best

    def _chained(self) -> Float[np.ndarray, "tokens bugs lengths"]:
        """Returns how much likelier each bug of the token rule makes each token, given those before it."""
        most = max(LENGTHS)
        states = np.arange(most + 1)
        drafting = (states < np.array(LENGTHS)[:, None]).astype(float)
        whole = (states == np.array(LENGTHS)[:, None]).astype(float)
        bugs = len(self._rows[0])
        begun = np.zeros((bugs, len(LENGTHS), most + 2))
        begun[..., 0] = 1.0
        at, gains = begun, np.ones((len(self._rows), bugs, len(LENGTHS)))
        for t, row in enumerate(self._rows):
            at = begun if self._begins[t] else at
            if not self._drafted[t]:
                gains[t], at = row[:, BARE, None], begun
                continue
            kept, ended = np.repeat(row[:, None, [KEPT, ENDED]].transpose(2, 0, 1), most + 1, axis=2)
            kept[:, 0], ended[:, 0] = row[:, KEPT_FIRST], row[:, ENDED_FIRST]
            here = at[..., :-1] * drafting
            new = np.empty_like(begun)
            new[..., 0] = (here * ended[:, None]).sum(-1) + (at[..., :-1] * whole).sum(-1) * row[:, BONUS_LAW, None]
            new[..., 0] += at[..., -1] * row[:, AFTER, None]
            new[..., 1:-1] = (here * kept[:, None])[..., :-1]
            new[..., -1] = here.sum(-1) * row[:, STAYED, None]
            gains[t] = new.sum(-1)
            at = np.where(gains[t][..., None] > LOST, new / np.maximum(gains[t][..., None], LOST), begun)
        return gains

    def _blocked(self, bug: KnownBug) -> Float[np.ndarray, "tokens lengths"]:
        """Returns how much likelier a bug of block verification makes each token, given those before it.

        What would have come of a draft's later tokens depends on laws after texts that were not written; the mean over
        the places of this text stands for them.
        """
        tables = _Tables(bug, np.array(self._tables), self._drafted, self._preferred)
        most, lengths = max(LENGTHS), np.array(LENGTHS)[:, None]
        states = np.arange(most + 1)
        drafting, whole = (states < lengths), (states == lengths)
        left = np.clip(lengths - states, 1, most) - 1
        begun = np.zeros((len(LENGTHS), most + 1))
        begun[:, 0] = 1.0
        weights, reach, last, gains = begun, np.ones(most + 1), 1.0, np.ones((len(self._rows), len(LENGTHS)))
        for t, (own, q) in enumerate(self._own):
            if self._begins[t] or not self._drafted[t]:
                weights, reach = begun, np.ones(most + 1)
            if not self._drafted[t]:
                continue
            chance, rest, mass = tables.at(t, reach, left)
            final = min(1.0, last) if bug is LAST_ALONE else np.minimum(1.0, reach)
            scale = np.ones_like(reach) if bug is UNSCALED else reach
            mass = np.full_like(reach, mass[0]) if bug is UNSCALED else mass
            recovered = np.where(mass > 1e-12, np.maximum(scale - q / own, 0.0) / np.maximum(mass, 1e-12), 1.0)
            new = np.zeros_like(begun)
            new[:, 0] = (weights * drafting * chance * rest * recovered).sum(1) + (weights * whole * final).sum(1)
            new[:, 1:] = (weights * drafting * (chance if bug is STOPS else 1.0))[:, :-1] * (q / own)
            last = own / max(q, 1e-300)
            reach = np.append(1.0, np.minimum(reach[:-1] * last, REACHES[-1] if bug is UNCAPPED else 1.0))
            chance, rest, _ = tables.at(None, reach, left)
            final = min(1.0, last) if bug is LAST_ALONE else np.minimum(1.0, reach)
            on = np.where(drafting, chance if bug is STOPS else 1.0 - (1.0 - chance) * rest, whole * final)
            on[:, 0] = 1.0
            # Chances may miss 0 by rounding, which much likelier tokens would make much of.
            gains[t] = (new * np.maximum(on, 0.0)).sum(1)
            weights = np.where(gains[t][:, None] > LOST, new / np.maximum(gains[t][:, None], LOST), begun)
        return gains


class _Tables:
    """What block verification does at each place, by the product of ratios so far; and its mean over places."""

    def __init__(
        self,
        bug: KnownBug,
        masses: Float[np.ndarray, "tokens reaches"],
        drafted: list[bool],
        preferred: list[Float[np.ndarray, "two _"]],
    ) -> None:
        most = max(LENGTHS)
        self._masses = masses
        self._usual_masses = masses[drafted].mean(axis=0)
        chances = self._usual_chances = _chance(masses[drafted], REACHES).mean(axis=0)
        widest = max(each.shape[1] for each in preferred)
        both = np.zeros((2, len(preferred), widest))
        for t, each in enumerate(preferred):
            both[:, t, : each.shape[1]] = each
        p, q = both
        odds = np.divide(p, q, out=np.zeros_like(p), where=q > 0.0)
        q = q / np.maximum(q.sum(axis=1, keepdims=True), 1e-300)
        rests = np.zeros((len(preferred), most, len(REACHES)))
        self._usual_rests = np.zeros((most, len(REACHES)))
        for m in range(most):
            for g, reach in enumerate(REACHES.tolist()):
                product = reach * odds if bug is UNCAPPED else np.minimum(reach * odds, 1.0)
                if m == 0:
                    no = 1.0 - np.minimum(odds if bug is LAST_ALONE else product, 1.0)
                else:
                    no = 1.0 - np.interp(product, REACHES, chances)
                    no = no if bug is STOPS else no * np.interp(product, REACHES, self._usual_rests[m - 1])
                rests[:, m, g] = (q * no).sum(axis=1)
            self._usual_rests[m] = rests[drafted, m].mean(axis=0)
        self._rests = rests

    def at(
        self, t: int | None, reach: Float[np.ndarray, "states"], left: np.ndarray
    ) -> tuple[Float[np.ndarray, "states"], Float[np.ndarray, "lengths states"], Float[np.ndarray, "states"]]:
        """Returns, at a place (None: as usual), for each product of ratios: the chance of its coin, P(no later coin
        says yes, or stopping at the first no: the next one says no), and the mass of the residual.
        """
        masses = self._usual_masses if t is None else self._masses[t]
        rests = self._usual_rests if t is None else self._rests[t]
        low = np.clip(np.searchsorted(REACHES, reach, side="right") - 1, 0, len(REACHES) - 2)
        part = (reach - REACHES[low]) / (REACHES[low + 1] - REACHES[low])
        mass = masses[low] * (1.0 - part) + masses[low + 1] * part
        between = rests[:, low] * (1.0 - part) + rests[:, low + 1] * part
        if t is None:
            chance = self._usual_chances[low] * (1.0 - part) + self._usual_chances[low + 1] * part
        else:
            chance = _chance(mass, reach)
        return chance, between[left, np.arange(len(reach))], mass


def _chance(mass: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """Returns P(block verification's coin says yes), which is 1 where a product of ratios is."""
    below = mass + 1.0 - reach
    return np.where(reach >= 1.0, 1.0, mass / np.maximum(below, 1e-300))


def _row(outcome: Outcome, at: int, own: float) -> Float[np.ndarray, "columns"]:
    over = own * outcome.total
    kept, ended = float(outcome.kept[at]) / over, float(outcome.ended[at]) / over
    other = 1.0 if outcome.bonus is None else float(outcome.bonus[at]) / own
    return np.array([kept, ended, kept, ended, other, 0.0, 0.0, other])


def _fit(gains: Float[np.ndarray, "tokens lengths"]) -> float:
    """Returns the log likelihood over the target's at the best draft length and share."""
    fits = [float(np.log1p(share * (gains - 1.0)).sum(axis=0).max()) for share in SHARES]
    return max(fits[-1], max(fits[:-1]) - SELDOM)
