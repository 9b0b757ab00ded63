"""The coupled rule: the seeded sample of the target, whatever the drafter proposed."""

from __future__ import annotations

from draftproof.distribution import Distribution, LawSequence
from draftproof.noise import Noise
from draftproof.rules.base import Rule
from draftproof.types import Draft, Verdict


def race(law: Distribution, noise: Noise, position: int) -> int:
    """Returns the sample of `law` that this noise gives at an absolute position."""
    if len(law) == 1:
        return int(law.support()[0])
    return law.race(noise.exponentials(position, law.support()))


def verify_coupled(p: LawSequence, draft: Draft, noise: Noise, start: int) -> Verdict:
    """Draws the target's own token at each place and goes on while the draft guessed it.

    ```
    for i in 0..k:
        y = argmin_v E[start + i, v] / p_i[v]       # the token that plain decoding with this seed would draw
        if i == k or y != x_i: return x[:i] + [y]
    ```
    What is emitted is y on both branches, so the text does not depend on the draft at all.
    """
    k = len(draft.tokens)
    for i in range(k):
        y = race(p[i], noise, start + i)
        if y != draft.tokens[i]:
            return Verdict(i, y)
    return Verdict(k, race(p[k], noise, start + k))


class CoupledRule(Rule):
    """Same seed, same text, for any drafter and draft length: draft and target race on shared exponentials."""

    name = "coupled"
    exact = True
    draft_invariant = True
    reference = "Daliri, Musco and Suresh 2024 (arXiv 2408.07978), algorithm 2 (Gumbel coupling)"

    def verify(self, p: LawSequence, draft: Draft, noise: Noise, start: int) -> Verdict:
        """See `Rule.verify` and `verify_coupled`."""
        return verify_coupled(p, draft, noise, start)

    def draw(self, law: Distribution, noise: Noise, start: int, offset: int) -> int:
        """Draws with the target's own exponentials: that is what makes the two agree."""
        return race(law, noise, start + offset)
