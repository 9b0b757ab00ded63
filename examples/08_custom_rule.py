"""Write a rule: draw the target's own token at each place, keep the draft while it guessed right."""

from collections.abc import Sequence

import draftproof as dp


class MatchRule(dp.Rule):
    """Emits y ~ p at each place and goes on while y equals the draft: exact, for y never depends on the draft.

    It is the coupled rule without the coupling: a sampled draft stands with probability sum p * q only.
    """

    name = "match"
    exact = True
    reference = "sample and compare, as mlx-lm and llama.cpp's server do"

    def verify(self, p: Sequence[dp.Distribution], draft: dp.Draft, noise: dp.Noise, start: int) -> dp.Verdict:
        for i, x in enumerate(draft.tokens.tolist()):
            y = p[i].sample(noise.uniform(start, i, dp.Lane.FINAL))
            if y != x:
                return dp.Verdict(i, y)
        k = len(draft.tokens)
        return dp.Verdict(k, p[k].sample(noise.uniform(start, k, dp.Lane.FINAL)))

    def draw(self, law: dp.Distribution, noise: dp.Noise, start: int, offset: int) -> int:
        return law.sample(noise.uniform(start, offset, dp.Lane.DRAFT))  # a lane of its own: never share the verdict's


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
