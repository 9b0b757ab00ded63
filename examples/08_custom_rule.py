"""Write a rule: draw the target's own token at each place, keep the draft while it guessed right."""

from collections.abc import Sequence

import draftproof as dp
from draftproof.distribution import Distribution
from draftproof.noise import Lane, Noise
from draftproof.rules import Rule
from draftproof.types import Draft, Verdict


class MatchRule(Rule):
    """Emits y ~ p at each place and goes on while y equals the draft: exact, for y never depends on the draft.

    It is the coupled rule without the coupling: a sampled draft stands with probability sum p * q only.
    """

    name = "match"
    exact = True
    reference = "sample and compare, as mlx-lm and llama.cpp's server do"

    def verify(self, p: Sequence[Distribution], draft: Draft, noise: Noise, start: int) -> Verdict:
        for i, x in enumerate(draft.tokens.tolist()):
            y = p[i].sample(noise.uniform(start, i, Lane.FINAL))
            if y != x:
                return Verdict(i, y)
        k = len(draft.tokens)
        return Verdict(k, p[k].sample(noise.uniform(start, k, Lane.FINAL)))

    def draw(self, law: Distribution, noise: Noise, start: int, offset: int) -> int:
        return law.sample(noise.uniform(start, offset, Lane.DRAFT))  # a lane of its own: never share the verdict's


def main() -> None:
    rates = {}
    for rule in (MatchRule(), "coupled", "token"):
        engine = dp.Engine("toy:pair", drafter="model:toy:pair-draft", rule=rule, num_draft_tokens=1)
        counts = engine.generate("abc", max_tokens=1500, seed=1).counts
        name = rule if isinstance(rule, str) else rule.name
        rates[name] = counts.draft_acceptance_rate or 0.0
        print(f"{name:8} acceptance {rates[name]:.3f}, {counts.tokens_per_pass:.2f} tokens per pass")
    assert rates["match"] < min(rates["coupled"], rates["token"])


if __name__ == "__main__":
    main()
