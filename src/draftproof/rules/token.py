"""The token rule: accept each draft token with probability min(1, p/q), left to right."""

from __future__ import annotations

from draftproof.distribution import Distribution, LawSequence
from draftproof.noise import Lane, Noise
from draftproof.rules.base import Rule
from draftproof.types import Draft, Verdict


def verify_token(p: LawSequence, draft: Draft, noise: Noise, start: int) -> Verdict:
    """The acceptance criterion itself, place by place.

    ```
    for i in 0..k-1:
        if not u_i * q_i[x_i] < p_i[x_i]:           # strict: u may be 0, and p(x) = 0 must then still reject
            return x[:i] + [y ~ norm(max(p_i - q_i, 0))]
    return x + [y ~ p_k]                            # the bonus token
    ```
    Accepting leaves the mass min(p, q); the residual supplies exactly what is missing, so the output has law p.
    """
    for i, x in enumerate(draft.tokens.tolist()):
        q = draft.law(i)
        u = noise.uniform(start, i, Lane.ACCEPT)
        if not u * q.prob(x) < p[i].prob(x):
            return Verdict(i, p[i].residual(q).sample(noise.uniform(start, i, Lane.FINAL)))
    k = len(draft.tokens)
    return Verdict(k, p[k].sample(noise.uniform(start, k, Lane.FINAL)))


class TokenRule(Rule):
    """Accepts with min(1, p/q) and recovers from the residual: the rule of the founding papers."""

    name = "token"
    exact = True
    reference = "Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (2302.01318)"

    def verify(self, p: LawSequence, draft: Draft, noise: Noise, start: int) -> Verdict:
        """See `Rule.verify` and `verify_token`."""
        return verify_token(p, draft, noise, start)

    def draw(self, law: Distribution, noise: Noise, start: int, offset: int) -> int:
        """Draws with a coin of the draft's own lane: sharing one with the verdict would bias the text."""
        return law.sample(noise.uniform(start, offset, Lane.DRAFT))
