"""The match rule: draw the target's own token at each place, and go on while the draft guessed it."""

from __future__ import annotations

from draftproof.distribution import Distribution, LawSequence
from draftproof.noise import Lane, Noise
from draftproof.rules.base import Rule
from draftproof.types import Draft, Verdict


def verify_match(p: LawSequence, draft: Draft, noise: Noise, start: int) -> Verdict:
    """Sample and compare: no draft law is needed, and any drafter will do.

    ```
    for i in 0..k:
        y ~ p_i                                          # by inverse CDF at the place's own uniform
        if i == k or y != x_i: return x[:i] + [y]
    ```
    What is emitted is y on both branches, so its law is p whatever the draft was.
    """
    for i, x in enumerate(draft.tokens.tolist()):
        y = p[i].sample(noise.uniform(start, i, Lane.FINAL))
        if y != x:
            return Verdict(i, y)
    k = len(draft)
    return Verdict(k, p[k].sample(noise.uniform(start, k, Lane.FINAL)))


class MatchRule(Rule):
    """Keeps a lookup token x with p(x), as every rule does; keeps less of a sampled draft than the others."""

    name = "match"
    exact = True
    reference = "sample and match, as in mlx-lm and llama.cpp; exact by construction"

    def verify(self, p: LawSequence, draft: Draft, noise: Noise, start: int) -> Verdict:
        """See `Rule.verify` and `verify_match`."""
        return verify_match(p, draft, noise, start)

    def draw(self, law: Distribution, noise: Noise, start: int, offset: int) -> int:
        """Draws with the verdict's own coin: the text stays exact, and the two agree more often."""
        return law.sample(noise.uniform(start, offset, Lane.FINAL))
