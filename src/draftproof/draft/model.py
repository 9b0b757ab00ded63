"""A small model drafts for a large one, of the same vocabulary or another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Int

from draftproof.distribution import Distribution
from draftproof.draft.base import Drafter, DraftSession, Proposal
from draftproof.draft.vocabulary import ENOUGH, SharedVocabulary, Translation, encode_continued
from draftproof.errors import DraftError, UsageError, choice_error
from draftproof.models.base import Model, Query, Rows
from draftproof.policy import AcceptanceRate
from draftproof.sampling import BoundSampler, Sampler
from draftproof.types import EMPTY_DRAFT, NO_TOKENS, Draft, Tokens, Verdict, as_tokens

VocabularyMode: TypeAlias = Literal["auto", "same", "intersection", "text"]

VOCABULARY_MODES: list[VocabularyMode] = ["auto", "same", "intersection", "text"]


class ModelDrafter(Drafter):
    """Drafts by running a small model.

    The nearer the draft's law is to the target's, the more is accepted, so the target's own sampling law is the right
    one unless measured otherwise.

    Where the two vocabularies differ there are two ways (Timor et al. 2025, arXiv 2502.05202). "intersection": the
    draft model's logits are cut to the pieces both have before they become a law, in the target's ids, and verified by
    the ratio rules. "text": the draft model's likeliest text is read again by the target's tokenizer, and each token
    proposed as a certainty. Both are exact.

    Args:
        model: the draft model.
        sampler: the law to draw drafts from; None uses the target's, and the likeliest token where drafting by text.
        vocabulary: "same" needs equal ids, up to padding at the end; "intersection" and "text" see above; "auto" takes
            the first of them that fits: the intersection if it holds at least half of the target's vocabulary,
            frequent pieces weighing more.

    Attributes:
        mode: the way that `check` chose.
    """

    stochastic = True

    def __init__(self, model: Model, sampler: Sampler | None = None, vocabulary: VocabularyMode = "auto") -> None:
        if vocabulary not in VOCABULARY_MODES:
            raise choice_error("vocabulary", vocabulary, list(VOCABULARY_MODES))
        self.model = model
        self.sampler = sampler
        self.name = f"model:{model.name}"
        self.mode: VocabularyMode = vocabulary
        self._asked = vocabulary
        self._target: Model | None = None
        self._shared: SharedVocabulary | None = None

    def session(self, slots: int = 1) -> DraftSession:
        """See `Drafter.session`; without a `check` before it, the target's ids are taken to be the draft model's."""
        return _ModelSession(self, slots, self._target, self._shared)

    def check(self, target: Model) -> None:
        """See `Drafter.check`: compares the vocabularies and chooses how to draft across them.

        Raises:
            UsageError: if the vocabularies differ and "same" was asked for, or share nothing and "intersection" was.
        """
        if self._target is target:
            return
        shared = SharedVocabulary.of(target, self.model)
        mode = self._asked
        if mode == "auto":
            fits = shared.coverage >= ENOUGH
            mode = "same" if fits and shared.first_difference is None else "intersection" if fits else "text"
        names = f"draft model {self.model.name} and target {target.name}"
        if mode == "same" and shared.first_difference is not None:
            token = shared.first_difference
            raise UsageError(
                f"the tokenizers of {names} differ: id {token} is {self.model.tokenizer.token_name(token)!r} to the "
                f"one and {target.tokenizer.token_name(token)!r} to the other; use vocabulary='auto', a draft model of "
                "the target's family, or drafter='suffix'"
            )
        if mode == "intersection" and not len(shared.target_ids):
            raise UsageError(
                f"the tokenizers of {names} share no id at all, from 0 on: {self.model.tokenizer.token_name(0)!r} "
                f"against {target.tokenizer.token_name(0)!r}; use vocabulary='text' or drafter='suffix'"
            )
        self.mode = mode
        self._target = target
        self._shared = shared

    def describe(self) -> str:
        """See `Drafter.describe`: how the two vocabularies go together."""
        if self._shared is not None and self.mode == "text":
            return f"{self.name}, by text that the target's tokenizer reads"
        if self._shared is None or self._shared.identical:
            return self.name
        shared, whole = len(self._shared.target_ids), self._shared.target_size
        return f"{self.name}, by the {shared:,} of {whole:,} ids that both vocabularies have"


class _Growing(ABC):
    """A draft while it is being drawn.

    Attributes:
        context: the draft model's text: the committed one and what was drawn, in its ids.
        drawn: how many of its tokens were drawn.
    """

    def __init__(self, proposal: Proposal, sampler: BoundSampler, context: Tokens, rate: float, room: int) -> None:
        self.proposal = proposal
        self.rate = rate
        self.drawn = 0
        self._sampler = sampler
        self._limit = max(min(proposal.limit, room - len(context) + 1), 0) if len(context) else 0
        self._text = np.empty(len(context) + self._limit, dtype=np.int32)
        self._text[: len(context)] = context
        self._start = len(context)

    @property
    def context(self) -> Tokens:
        return self._text[: self._start + self.drawn]

    def wants(self) -> bool:
        """Whether to draw one more: decided by what is known before the draw, or the rules would not be exact."""
        return self.drawn < self._limit and self.proposal.proceed(self.rate ** (self.drawn + 1), self.drawn)

    def _keep(self, token: int) -> None:
        self._text[self._start + self.drawn] = token
        self.drawn += 1

    @abstractmethod
    def draw(self, rows: Rows) -> bool:
        """Draws the next token from its row; returns whether the text may go on after it."""

    @abstractmethod
    def draft(self) -> Draft:
        """Returns what was drawn, in the target's ids."""

    def _survival(self, length: int) -> np.ndarray:
        survival: np.ndarray = self.rate ** np.arange(1.0, length + 1.0)
        return survival


class _GrowingByIds(_Growing):
    """Draws from the target's ids that the draft model shares."""

    def __init__(
        self,
        proposal: Proposal,
        sampler: BoundSampler,
        context: Tokens,
        rate: float,
        room: int,
        shared: SharedVocabulary | None,
        ends: frozenset[int],
    ) -> None:
        super().__init__(proposal, sampler, context, rate, room)
        self._shared = shared
        self._ends = ends
        self._laws: list[Distribution] = []
        self._tokens: list[int] = []

    def draw(self, rows: Rows) -> bool:
        # The target's history, whose penalties count its own ids.
        history = self.context
        if self._shared is not None:
            history = np.concatenate([self.proposal.tokens, as_tokens(self._tokens)])
        mapped = rows if self._shared is None else self._shared.rows(rows)
        law = self._sampler.laws(history, NO_TOKENS, mapped)[0]
        token = self.proposal.draw(law, self.drawn)
        own = token if self._shared is None else int(self._shared.to_draft[token])
        self._laws.append(law)
        self._tokens.append(token)
        self._keep(own)
        return own not in self._ends

    def draft(self) -> Draft:
        if not self._laws:
            return EMPTY_DRAFT
        return Draft(as_tokens(self._tokens), self._laws, self._survival(len(self._laws)))


class _GrowingByText(_Growing):
    """Draws from the draft model's own ids, and proposes the text as the target's tokenizer reads it."""

    def __init__(
        self,
        proposal: Proposal,
        sampler: BoundSampler,
        context: Tokens,
        rate: float,
        room: int,
        target: Model,
        model: Model,
    ) -> None:
        super().__init__(proposal, sampler, context, rate, room)
        self._target = target
        self._model = model
        self._ended = False

    def draw(self, rows: Rows) -> bool:
        law = self._sampler.laws(self.context, NO_TOKENS, rows)[0]
        token = self.proposal.draw(law, self.drawn)
        self._keep(token)
        self._ended = token in self._model.eos_ids
        return not self._ended

    def draft(self) -> Draft:
        spell = self._model.tokenizer.token_bytes
        data = b"".join(spell(token) for token in self.context[self._start :].tolist())
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            text = data[: error.start].decode()
        try:
            tokens = encode_continued(self._target.tokenizer, text) if text else NO_TOKENS
        except UsageError:
            return EMPTY_DRAFT
        if self._ended and self._target.eos_ids:
            tokens = np.append(tokens, np.int32(min(self._target.eos_ids)))
        elif self.drawn:
            # What comes next may join the last piece into another.
            tokens = tokens[:-1]
        tokens = tokens[: self.proposal.limit]
        if not len(tokens):
            return EMPTY_DRAFT
        # A certainty, whatever law it came from: the rules then accept with p(x), and no coin was looked at.
        laws = [Distribution.one_hot(token) for token in tokens.tolist()]
        return Draft(as_tokens(tokens), laws, self._survival(len(tokens)))


class _ModelSession(DraftSession):
    def __init__(
        self, drafter: ModelDrafter, slots: int, target: Model | None, shared: SharedVocabulary | None
    ) -> None:
        self._drafter = drafter
        self._model = drafter.model
        self._target = target
        self._shared = None if shared is None or shared.identical else shared
        self._by_text = drafter.mode == "text" and target is not None
        self._session = drafter.model.session(slots)
        self._rates = [AcceptanceRate() for _ in range(slots)]
        self._failures: list[DraftError | None] = [None] * slots
        self._translations: list[Translation | None] = [None] * slots
        if target is not None and (self._by_text or (shared is not None and shared.first_difference is not None)):
            self._translations = [Translation(target.tokenizer, self._model.tokenizer) for _ in range(slots)]

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
        model, asked, own = self._model, proposal.sampler, self._drafter.sampler
        context = self._context(proposal)
        rate = self._rates[proposal.slot].rate
        if self._by_text:
            assert self._target is not None
            sampler = (own or Sampler(temperature=0.0)).bind(len(context), model.eos_ids, model.vocab_size)
            return _GrowingByText(proposal, sampler, context, rate, model.context_length, self._target, model)
        whose = self._target or model
        sampler = asked if own is None else own.bind(asked.prompt_length, whose.eos_ids, whose.vocab_size)
        return _GrowingByIds(proposal, sampler, context, rate, model.context_length, self._shared, model.eos_ids)

    def _context(self, proposal: Proposal) -> Tokens:
        """Returns the committed text in the draft model's ids."""
        translation = self._translations[proposal.slot]
        if translation is not None:
            return translation(proposal.tokens)
        if self._shared is None:
            return proposal.tokens
        # Padded vocabularies: the ids that only the target has stand for nothing, or for its own control tokens.
        return proposal.tokens[proposal.tokens < self._model.vocab_size]

    def _grow(self, active: Sequence[_Growing]) -> list[_Growing]:
        """Draws one token for each draft and returns those that may go on: not failed, and not at an end of text."""
        try:
            # Drafted tokens are asked about as text, not as a draft: a session runs a draft's tokens anew at each pass.
            rows = self._session.score([Query(each.proposal.slot, each.context, NO_TOKENS) for each in active])
        except Exception as error:
            if len(active) > 1:
                return [going for each in active for going in self._grow([each])]
            self._give_up(active[0], error)
            return []
        going = []
        for each, its in zip(active, rows, strict=True):
            try:
                if each.draw(its):
                    going.append(each)
            except Exception as error:
                self._give_up(each, error)
        return going

    def _give_up(self, growing: _Growing, error: Exception) -> None:
        failure = DraftError(f"draft model {self._model.name} failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        if not growing.drawn:
            raise failure
        self._failures[growing.proposal.slot] = failure

    def observe(self, slot: int, tokens: Int[np.ndarray, "n"], draft: Draft, verdict: Verdict) -> None:
        self._rates[slot].observe(len(draft), min(verdict.accepted, len(draft)))

    def close(self) -> None:
        self._session.close()
