"""The block rule: judge all draft tokens of a block together; no rule for one chain keeps more."""

from __future__ import annotations

from draftproof.distribution import Distribution, LawSequence
from draftproof.noise import Lane, Noise
from draftproof.rules.base import Rule
from draftproof.types import Draft, Verdict


def verify_block(p: LawSequence, draft: Draft, noise: Noise, start: int) -> Verdict:
    """The longest prefix whose own coin lands, not the prefix before the first failure.

    ```
    P_0 = 1;  P_i = min(1, P_{i-1} * p_i[x_i] / q_i[x_i])
    Z_i = sum(max(P_i * p_{i+1} - q_{i+1}, 0));  h_i = Z_i / (Z_i + 1 - P_i) for i < k;  h_k = P_k
    tau = the largest i with u_i < h_i, else 0             # every coin counts: no stop at the first failure
    return x[:tau] + [y],  y ~ p_{k+1} if tau == k else norm(max(P_tau * p_{tau+1} - q_{tau+1}, 0))
    ```
    A token that was too likely lends its surplus to the tokens after it: P is capped at 1 place by place.
    """
    k = len(draft)
    reach, accepted, scale = 1.0, 0, 1.0
    for i, x in enumerate(draft.tokens.tolist()):
        reach = min(1.0, reach * p[i].prob(x) / draft.law(i).prob(x))
        if reach == 0.0:  # and stays so: no later prefix can stand, and no later row is looked at
            break
        chance = reach
        if i + 1 < k and reach < 1.0:
            excess = p[i + 1].excess(draft.law(i + 1), reach)
            chance = excess / (excess + (1.0 - reach))
        if noise.uniform(start, i, Lane.ACCEPT) < chance:
            accepted, scale = i + 1, reach
    law = p[k] if accepted == k else p[accepted].residual(draft.law(accepted), scale)
    return Verdict(accepted, law.sample(noise.uniform(start, accepted, Lane.FINAL)))


class BlockRule(Rule):
    """Keeps at least as much of a sampled draft as the token rule, and as much as any rule for one chain can."""

    name = "block"
    exact = True
    reference = "Sun et al. 2024 (arXiv 2403.10444), algorithm 2 (block verification)"

    def verify(self, p: LawSequence, draft: Draft, noise: Noise, start: int) -> Verdict:
        """See `Rule.verify` and `verify_block`."""
        return verify_block(p, draft, noise, start)

    def draw(self, law: Distribution, noise: Noise, start: int, offset: int) -> int:
        """Draws with a coin of the draft's own lane: sharing one with the verdict would bias the text."""
        return law.sample(noise.uniform(start, offset, Lane.DRAFT))
