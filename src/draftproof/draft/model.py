"""A small model drafts for a large one of the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from draftproof.distribution import Distribution
from draftproof.draft.base import Drafter, DraftSession, Proposal
from draftproof.errors import DraftError, UsageError
from draftproof.models.base import Model, Query, Rows
from draftproof.policy import AcceptanceRate
from draftproof.sampling import BoundSampler, Sampler
from draftproof.types import EMPTY_DRAFT, NO_TOKENS, Draft, Tokens, Verdict


class ModelDrafter(Drafter):
    """Drafts by sampling a small model, whose ids must mean what the target's mean.

    The nearer the draft's law is to the target's, the more is accepted, so the target's own sampling law is the right
    one unless measured otherwise.

    Args:
        model: the draft model.
        sampler: the law to draw drafts from; None uses the target's.
    """

    stochastic = True

    def __init__(self, model: Model, sampler: Sampler | None = None) -> None:
        self.model = model
        self.sampler = sampler
        self.name = f"model:{model.name}"

    def session(self, slots: int = 1) -> DraftSession:
        """See `Drafter.session`."""
        return _ModelSession(self, slots)

    def check(self, vocab_size: int) -> None:
        """See `Drafter.check`: both vocabularies must be of one size."""
        if self.model.vocab_size != vocab_size:
            raise UsageError(
                f"draft model {self.model.name} has a vocabulary of {self.model.vocab_size} ids and the target one of "
                f"{vocab_size}; use a draft model of the target's family, or drafter='suffix'"
            )


class _Growing:
    """A draft while it is being drawn."""

    def __init__(self, proposal: Proposal, sampler: BoundSampler, limit: int, rate: float) -> None:
        self.proposal = proposal
        self.sampler = sampler
        self.limit = limit
        self.rate = rate
        self.start = len(proposal.tokens)
        self.laws: list[Distribution] = []
        self._text = np.concatenate([proposal.tokens, np.zeros(limit, dtype=np.int32)]).astype(np.int32, copy=False)

    @property
    def text(self) -> Tokens:
        return self._text[: self.start + len(self.laws)]

    def wants(self) -> bool:
        """Whether to draw one more: decided by what is known before the draw, or the rules would not be exact."""
        offset = len(self.laws)
        return offset < self.limit and self.proposal.proceed(self.rate ** (offset + 1), offset)

    def draw(self, rows: Rows) -> int:
        law = self.sampler.laws(self.text, NO_TOKENS, rows)[0]
        token = self.proposal.draw(law, len(self.laws))
        self._text[self.start + len(self.laws)] = token
        self.laws.append(law)
        return token

    def draft(self) -> Draft:
        if not self.laws:
            return EMPTY_DRAFT
        survival = self.rate ** np.arange(1.0, len(self.laws) + 1.0)
        return Draft(self.text[self.start :], self.laws, survival)


class _ModelSession(DraftSession):
    def __init__(self, drafter: ModelDrafter, slots: int) -> None:
        self._drafter = drafter
        self._session = drafter.model.session(slots)
        self._rates = [AcceptanceRate() for _ in range(slots)]
        self._failures: list[DraftError | None] = [None] * slots

    def begin(self, slot: int, tokens: Int[np.ndarray, "n"], greedy: bool) -> None:
        self._rates[slot] = AcceptanceRate()
        self._failures[slot] = None

    def propose(self, proposals: Sequence[Proposal]) -> list[Draft]:
        """Draws all drafts side by side, one pass of the draft model for each place.

        Raises:
            DraftError: if the model or a sampler fails; asking again, one proposal at a time, is harmless. A failure
                after tokens were drawn ends that draft and is raised the next time: it may be due to those very
                tokens, and to drop a token for its value would bias the text.
        """
        growing = [self._start(each) for each in proposals]
        active = [each for each in growing if each.wants()]
        while active:
            active = [each for each in self._grow(active) if each.wants()]
        return [each.draft() for each in growing]

    def _start(self, proposal: Proposal) -> _Growing:
        failure = self._failures[proposal.slot]
        if failure is not None:
            raise failure
        model, sampler = self._drafter.model, proposal.sampler
        if self._drafter.sampler is not None:
            sampler = self._drafter.sampler.bind(sampler.prompt_length, model.eos_ids, model.vocab_size)
        limit = min(proposal.limit, model.context_length - len(proposal.tokens) + 1) if len(proposal.tokens) else 0
        return _Growing(proposal, sampler, max(limit, 0), self._rates[proposal.slot].rate)

    def _grow(self, active: Sequence[_Growing]) -> list[_Growing]:
        """Draws one token for each draft and returns those that may go on: not failed, and not at an end of text."""
        try:
            # Drafted tokens are asked about as text, not as a draft: a session runs a draft's tokens anew at each pass.
            rows = self._session.score([Query(each.proposal.slot, each.text, NO_TOKENS) for each in active])
        except Exception as error:
            if len(active) > 1:
                return [going for each in active for going in self._grow([each])]
            self._give_up(active[0], error)
            return []
        going = []
        for each, its in zip(active, rows, strict=True):
            try:
                if each.draw(its) not in self._drafter.model.eos_ids:
                    going.append(each)
            except Exception as error:
                self._give_up(each, error)
        return going

    def _give_up(self, growing: _Growing, error: Exception) -> None:
        failure = DraftError(f"draft model {self._drafter.model.name} failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        if not growing.laws:
            raise failure
        self._failures[growing.proposal.slot] = failure

    def observe(self, slot: int, tokens: Int[np.ndarray, "n"], draft: Draft, verdict: Verdict) -> None:
        self._rates[slot].observe(len(draft), min(verdict.accepted, len(draft)))

    def close(self) -> None:
        self._session.close()
