"""Engines with a known bug, made of the real loop: for finding out what an audit sees, and how soon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int

from draftproof.audit.laws import COLDER, DROPPED_BELOW
from draftproof.audit.zoo import Bug
from draftproof.distribution import Distribution, LawSequence
from draftproof.draft.base import Drafter, DraftSession, Proposal
from draftproof.models.base import Model
from draftproof.models.toy import ToyModel
from draftproof.noise import Lane, Noise
from draftproof.rules import TokenRule
from draftproof.types import Draft, Verdict

Draw = Callable[[Distribution], Distribution]
"""What a drafter says it draws from -> what it draws from."""


class FaultyRule(TokenRule):
    """A bug of a verification function, as a rule of the engine.

    Args:
        bug: which.
        vocab_size: of target and drafter.
    """

    exact = False

    def __init__(self, bug: Bug, vocab_size: int) -> None:
        self.bug = bug
        self.vocab_size = vocab_size

    def verify(self, p: LawSequence, draft: Draft, noise: Noise, start: int) -> Verdict:
        """See `Rule.verify`; a rejected token that stays counts as accepted."""
        k = len(draft)
        if k == 0:
            return Verdict(0, p[0].sample(noise.uniform(start, 0, Lane.FINAL)))
        coins = [noise.uniform(start, i, Lane.ACCEPT) for i in range(k)] + [noise.uniform(start, k, Lane.FINAL)]
        text = self.bug(
            np.array([law.dense(self.vocab_size) for law in p]),
            draft.tokens,
            np.array([draft.law(i).dense(self.vocab_size) for i in range(k)]),
            np.array(coins),
        )[1]
        return Verdict(len(text) - 1, text[-1])


@dataclass
class FaultyDrafter(Drafter):
    """A drafter that draws from another law than it says, or drops what it drew.

    Attributes:
        inner: the faithful drafter.
        drawn: the law it says -> the law it draws from.
        dropped_below: a token just drawn that was less likely than this ends the draft before it.
    """

    inner: Drafter
    drawn: Draw | None = None
    dropped_below: float = 0.0

    def __post_init__(self) -> None:
        self.name, self.stochastic = f"faulty {self.inner.name}", self.inner.stochastic

    def check(self, target: Model) -> None:
        """See `Drafter.check`."""
        self.inner.check(target)

    def session(self, slots: int = 1) -> DraftSession:
        """See `Drafter.session`."""
        return _FaultySession(self, self.inner.session(slots))


@dataclass
class _FaultySession(DraftSession):
    drafter: FaultyDrafter
    inner: DraftSession

    def begin(self, slot: int, tokens: Int[np.ndarray, "n"], greedy: bool) -> None:
        self.inner.begin(slot, tokens, greedy)

    def propose(self, proposals: Sequence[Proposal]) -> list[Draft]:
        asked = [replace(each, draw=self._drawing(each.draw)) for each in proposals]
        return [self._kept(draft) for draft in self.inner.propose(asked)]

    def _drawing(self, draw: Callable[[Distribution, int], int]) -> Callable[[Distribution, int], int]:
        drawn = self.drafter.drawn
        return draw if drawn is None else lambda law, offset: draw(drawn(law), offset)

    def _kept(self, draft: Draft) -> Draft:
        for i, token in enumerate(draft.tokens.tolist()):
            if draft.law(i).prob(token) < self.drafter.dropped_below:
                return draft.cut(i)
        return draft

    def observe(self, slot: int, tokens: Int[np.ndarray, "n"], draft: Draft, verdict: Verdict) -> None:
        self.inner.observe(slot, tokens, draft, verdict)

    def close(self) -> None:
        self.inner.close()


def argmax(law: Distribution) -> Distribution:
    """Returns the law that always gives the likeliest token."""
    return Distribution.one_hot(int(law.support()[np.argmax(law.probs)]))


def colder(law: Distribution) -> Distribution:
    """Returns the law at a lower temperature."""
    return Distribution(law.probs ** (1.0 / COLDER), law.ids)


def top_two(law: Distribution) -> Distribution:
    """Returns the law cut to its two likeliest tokens: as a truncated draft that is told by its raw law."""
    least = np.partition(law.probs, -2)[-2]
    return Distribution(np.where(law.probs >= least, law.probs, 0.0), law.ids)


FAULTY_DRAFTERS: dict[str, tuple[str, Callable[[Drafter], Drafter]]] = {
    "an argmax draft passes for a sample": ("draft law", lambda inner: FaultyDrafter(inner, argmax)),
    "the draft is drawn at a lower temperature than is told": ("draft law", lambda inner: FaultyDrafter(inner, colder)),
    "unlikely draft tokens are dropped": (
        "draft law",
        lambda inner: FaultyDrafter(inner, dropped_below=DROPPED_BELOW),
    ),
    "a truncated draft is told by its raw law": ("draft law", lambda inner: FaultyDrafter(inner, top_two)),
}
"""Bugs of drafters, with their family: the name of the bug law -> the faulty drafter around a faithful one."""


def toy_pairs() -> dict[str, tuple[ToyModel, ToyModel]]:
    """Returns small targets, each with a drafter at about the total variation its name says."""
    return {
        f"TV {distance}": (
            ToyModel.random(8, seed=seed, order=2, spread=1.2, name=f"toy target {seed}"),
            ToyModel.random(8, seed=seed, order=2, spread=1.2, mix=mix, name=f"toy draft {seed}"),
        )
        for distance, seed, mix in ((0.1, 11, 0.18), (0.2, 12, 0.36), (0.3, 13, 0.48), (0.4, 14, 0.68))
    }
