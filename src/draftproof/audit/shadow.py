"""What a drafter would propose, computed beside an engine that is not asked."""

from __future__ import annotations

import numpy as np

from draftproof.distribution import Distribution
from draftproof.draft.base import Drafter, DraftSession, Proposal
from draftproof.sampling import BoundSampler, Sampler
from draftproof.types import Tokens


class Shadow:
    """Computes the law a drafter would draw the next token from.

    Args:
        drafter: what the engine is thought to draft with.
        sampler: the law that is claimed; drafts are made with it too.
        vocab_size: of the target.
    """

    def __init__(self, drafter: Drafter, sampler: Sampler, vocab_size: int) -> None:
        self._both = drafter.stochastic and not changes_nothing(sampler)
        self._vocab_size = vocab_size
        self._session: DraftSession = drafter.session(2 if self._both else 1)

    def begin(self, prompt: Tokens) -> None:
        """Starts a text."""
        for slot in range(2 if self._both else 1):
            self._session.begin(slot, prompt, False)

    def laws(self, text: Tokens, bound: BoundSampler) -> tuple[Distribution | None, Distribution | None]:
        """Returns q after a text and, if the sampler changes it, the drafter's law without the sampler."""
        plain = Sampler().bind(bound.prompt_length, (), self._vocab_size)
        samplers = [bound, plain] if self._both else [bound]
        drafts = self._session.propose(
            [
                Proposal(
                    slot, text, 1, sampler, lambda law, _: int(law.support()[np.argmax(law.probs)]), lambda *_: True
                )
                for slot, sampler in enumerate(samplers)
            ]
        )
        found = [draft.law(0) if len(draft) else None for draft in drafts]
        return found[0], found[1] if self._both else None

    def close(self) -> None:
        """Frees what the drafter holds."""
        self._session.close()


def changes_nothing(sampler: Sampler) -> bool:
    """Returns whether a sampler leaves a model's own law as it is."""
    return all(
        not isinstance(value, np.ndarray) and value == getattr(_PLAIN, name) for name, value in vars(sampler).items()
    )


_PLAIN = Sampler()
