"""What an acceptance rule is."""

from __future__ import annotations

from abc import ABC, abstractmethod

from draftproof.distribution import Distribution, LawSequence
from draftproof.noise import Noise
from draftproof.types import Draft, Verdict


class Rule(ABC):
    """Decides which draft tokens stand, and what follows them.

    Attributes:
        name: the spec users write.
        exact: whether the emitted text has exactly the target's law; every shipped rule is, and tests enumerate it.
        draft_invariant: whether the text is the same whatever was drafted, given the noise and the logits.
        reference: paper and algorithm.
    """

    name: str
    exact: bool
    draft_invariant: bool = False
    reference: str

    @abstractmethod
    def verify(self, p: LawSequence, draft: Draft, noise: Noise, start: int) -> Verdict:
        """Judges a draft.

        Args:
            p: the target's laws, len(draft) + 1 of them; p[i] given the text and draft[:i]. Computed when asked for.
            draft: the tokens and the laws they were drawn from.
            noise: the request's randomness.
            start: absolute position of the first draft token; keys the block's coins.
        """

    @abstractmethod
    def draw(self, law: Distribution, noise: Noise, start: int, offset: int) -> int:
        """Draws draft token `offset` of the block at `start` from `law`, as this rule needs it drawn."""
