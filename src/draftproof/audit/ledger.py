"""The books of an audit of tokens: what was bet, what it was won on, and how that is told."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from draftproof.audit.laws import BUG_LAWS, Place
from draftproof.audit.martingale import Evidence
from draftproof.audit.report import Bars, Finding, Line, Power, Verdict
from draftproof.errors import UsageError
from draftproof.request import Prompt

MEASURED_EVERY = 8
"""Every so many places it is also worked out how fast each bug would show."""

RANKS = ((0, 1), (1, 2), (2, 3), (3, 5), (5, 10), (10, 2**62))
"""Places in the target's order that a plot takes together."""

Where = Callable[[], dict[str, Any]]
"""Tells where a token was seen, when a witness is wanted."""


def check_claim(prompts: Sequence[Prompt], alpha: float, noise: float | None) -> None:
    """Raises UsageError if what an audit of tokens is to be made of is out of range."""
    if isinstance(prompts, str) or not len(prompts):
        raise UsageError("prompts must be a list with at least one prompt")
    if not isinstance(alpha, float) or not 0.0 < alpha < 1.0:
        raise UsageError(f"alpha {alpha!r} is not a probability of false alarm; use for example 1e-3")
    if noise is not None and not 0.0 <= noise < 1.0:
        raise UsageError(f"noise {noise} is out of range; use 0 or a small number such as 0.02")


@dataclass(eq=False)
class Ledger:
    """What the tokens of one engine have won against its target's laws.

    Attributes:
        alpha: P("not exact") for an exact engine.
        evidence: the bets.
        at_edge: tokens that are no evidence, but for their number.
        near_ties: greedy tokens that rounding decided.
        log_p: logarithm of the probability of all tokens.
    """

    alpha: float
    evidence: Evidence
    at_edge: int = 0
    near_ties: int = 0
    log_p: float = 0.0
    _seen: list[tuple[Where, float]] = field(default_factory=list)
    _curve: list[tuple[int, float]] = field(default_factory=list)
    _ranks: Float[np.ndarray, "two ranks"] = field(default_factory=lambda: np.zeros((2, len(RANKS))))

    def settle(self, place: Place, at: int, where: Where) -> None:
        """Settles all bets on the token at index `at` of a place's ids."""
        self.evidence.see(place, at, measure=len(self._seen) % MEASURED_EVERY == 0)
        p = float(place.p[at])
        self._seen.append((where, p))
        self.log_p += math.log(p)
        top = np.sort(place.p)[::-1][: RANKS[-2][1]]
        self._ranks[0] += [float(top[low:high].sum()) for low, high in RANKS[:-1]] + [1.0 - float(top.sum())]
        rank = int((place.p > p).sum())
        self._ranks[1][next(i for i, (low, high) in enumerate(RANKS) if low <= rank < high)] += 1.0

    def edge(self, outside: bool, most: float) -> None:
        """Settles bets that a token is none of those that are sure to be kept, which all others are at most `most`."""
        self.evidence.see_edge(outside, most)
        self.at_edge += outside

    @property
    def won(self) -> bool:
        """Whether more was won than an exact engine lets anyone win."""
        return self.evidence.log_e >= -math.log(self.alpha)

    def mark(self, looked: int) -> None:
        """Notes the e-value after so many tokens, for the plot."""
        self._curve.append((looked, self.evidence.log_e / math.log(10.0)))

    def finding(self) -> Finding:
        """Returns what was won, on which tokens, and the bug that explains it best."""
        bug = self.evidence.likeliest()
        bet = max(self.evidence.wealth, key=lambda each: self.evidence.wealth[each])[0]
        places = [] if bug is None else self.evidence.telling(bug.name, 5)
        shown = [
            where() | {"target's probability": p, "under the bug": p * gain}
            for (where, p), gain in ((self._seen[i], gain) for i, gain in places)
        ]
        return Finding(
            f"bets that an exact engine cannot win have won {number(self.evidence.log_e)} times their stake; most by: "
            f"{bet}",
            {"best bet": bet, "telling places": shown},
            e_value=math.exp(min(self.evidence.log_e, 700.0)),
            bug=None if bug is None else bug.name,
            family=None if bug is None else bug.family,
        )

    def powers(self) -> tuple[Power, ...]:
        """Returns, for each known bug that changes anything, P(it would have been found by now)."""
        found = self.evidence.power(self.alpha)
        return tuple(Power(bug.name, bug.family, found[bug.name]) for bug in BUG_LAWS if bug.name in found)

    def told(self, looked: int) -> str:
        """Returns what was found in so many tokens if nothing was, and what would have been, in words."""
        powers = self.powers()
        shown = sum(each.power >= 0.5 for each in powers)
        found = f"nothing found in {looked} tokens (e-value {number(self.evidence.log_e)})"
        return f"{found}, which would have shown {shown} of {len(powers)} known bugs"

    def verdict(self, looked: int, greedy: bool) -> tuple[Verdict, str]:
        """Returns the verdict on so many tokens if nothing was found, and what was seen, in words."""
        if greedy:
            seen = f"{looked} tokens are the target's choice, {self.near_ties} of them by rounding"
            return Verdict.NO_EVIDENCE, seen
        if max((each.power for each in self.powers()), default=0.0) < 0.5:
            return Verdict.INCONCLUSIVE, f"{self.told(looked)}: too few tokens"
        return Verdict.NO_EVIDENCE, self.told(looked)

    def numbers(self, greedy: bool) -> dict[str, Any]:
        """Returns what was won, and on what, for machines."""
        won, peak = (math.exp(min(each, 700.0)) for each in (self.evidence.log_e, self.evidence.peak))
        return {
            "e_value": None if greedy else won,
            "largest_e_value": None if greedy else peak,
            "tokens_at_the_edge": self.at_edge,
            "near_ties": self.near_ties,
            "share_of_tokens_a_bug_is_taken_to_act_on": self.evidence.acting,
        }

    def plots(self) -> tuple[Bars | Line, ...]:
        """Returns the e-value over tokens, and how often tokens took each place in the target's order."""
        plots: list[Bars | Line] = []
        if self._curve:
            x, y = zip(*self._curve, strict=True)
            plots.append(Line("evidence: log10 of the e-value, by tokens", list(x), list(y), -math.log10(self.alpha)))
        if self._ranks.any():
            total = max(float(self._ranks[1].sum()), 1.0)
            labels = [f"{low + 1}" if high == low + 1 else f"{low + 1}+" for low, high in RANKS]
            bars = [(row / total).tolist() for row in self._ranks]
            plots.append(Bars("place of the token in the target's order", labels, bars[0], bars[1]))
        return tuple(plots)


def number(log_e: float) -> str:
    """Returns an e-value in figures that can be read."""
    return f"{math.exp(log_e):.3g}" if log_e < 14.0 else f"10^{log_e / math.log(10.0):.1f}"
