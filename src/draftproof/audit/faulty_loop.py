"""A loop with a fault between rule and sampler, which no verification function shows: for audits of engines."""

from __future__ import annotations

from dataclasses import dataclass

from draftproof.audit.laws import AGAIN, TWICE, WITHOUT_DRAFT, sampled_again
from draftproof.distribution import Distribution
from draftproof.models.toy import ToyModel
from draftproof.noise import CounterNoise, Lane, Noise
from draftproof.rules import verify_token
from draftproof.sampling import BoundSampler, Sampler
from draftproof.truncation import own_law
from draftproof.types import Draft, Tokens, Verdict, as_tokens

REJECTED = "penalties count rejected drafts"
BONUS_ONLY = "the sampling parameters act on the bonus row only"

PENALISED = Sampler(frequency_penalty=1.0)

FAULTS: dict[str, tuple[str, Sampler]] = {
    WITHOUT_DRAFT: ("processors", PENALISED),
    REJECTED: ("processors", PENALISED),
    TWICE: ("processors", PENALISED),
    BONUS_ONLY: ("processors", PENALISED),
    AGAIN: ("residual", Sampler(top_p=0.8)),
}
"""Each fault, its family, and a law under which it shows."""


@dataclass(frozen=True)
class FaultyLoop:
    """Generates as `check_engine` asks engines to.

    Attributes:
        target: the model whose law is claimed.
        draft: drafts, with the same sampler.
        fault: one of `FAULTS`, whose sampler is used.
        length: of drafts.
    """

    target: ToyModel
    draft: ToyModel
    fault: str
    length: int = 4

    def __call__(self, prompt: Tokens, max_tokens: int, seed: int) -> list[int]:
        """Returns the generated ids."""
        text: list[int] = prompt.tolist()
        bound = FAULTS[self.fault][1].bind(len(text), (), self.target.vocab_size)
        noise: Noise = CounterNoise(seed)
        rejected: list[int] = []
        while len(text) < len(prompt) + max_tokens:
            draft, laws = text.copy(), []
            for i in range(self.length):
                laws.append(bound.law(as_tokens(draft), self.draft.table(as_tokens(draft))))
                draft.append(laws[-1].sample(noise.uniform(len(text), i, Lane.DRAFT)))
            tokens = draft[len(text) :]
            p = [self._law(bound, text, tokens, i, rejected) for i in range(self.length + 1)]
            verdict = self._judged(p, Draft(as_tokens(tokens), laws), noise, len(text), bound.sampler)
            rejected += tokens[verdict.accepted :]
            text += [*tokens[: verdict.accepted], verdict.token]
        return text[len(prompt) :][:max_tokens]

    def _law(
        self, bound: BoundSampler, text: list[int], tokens: list[int], i: int, rejected: list[int]
    ) -> Distribution:
        """Returns what the loop takes for the target's law after the text and i draft tokens."""
        drafted = tokens[:i]
        row = self.target.table(as_tokens([*text, *drafted]))
        if self.fault == BONUS_ONLY and i < len(tokens):
            return Distribution(own_law(row))
        seen = {
            WITHOUT_DRAFT: text,
            REJECTED: [*text, *drafted, *rejected],
            TWICE: [*text, text[-1], *drafted],
        }
        return bound.law(as_tokens(seen.get(self.fault, [*text, *drafted])), row)

    def _judged(self, p: list[Distribution], draft: Draft, noise: Noise, start: int, sampler: Sampler) -> Verdict:
        found = verify_token(p, draft, noise, start)
        n = found.accepted
        if self.fault != AGAIN or n == len(draft):
            return found
        residual = p[n].residual(draft.law(n))
        again = sampled_again(residual.dense(self.target.vocab_size), sampler)
        return Verdict(n, again.sample(noise.uniform(start, n, Lane.FINAL)))
