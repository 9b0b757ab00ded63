"""The default drafter: what followed the longest suffix of the text that occurred before."""

from __future__ import annotations

from math import exp

import numpy as np
from jaxtyping import Int

from draftproof.draft.acceptance import Evidence, prior_logit
from draftproof.draft.automaton import ROOT, SuffixAutomaton
from draftproof.draft.base import Drafter, DraftSession, Proposal
from draftproof.draft.lookup import Found, LookupSession, TextIndex
from draftproof.draft.memory import TextMemory
from draftproof.errors import UsageError

FLOOR = 0.01
"""A draft ends where its estimated survival falls below this: such a token pays at no cost."""

STRANGERS = -0.5
"""What a match in the text of another request is worth, in logits, before this request has shown anything."""


class SuffixDrafter(Drafter):
    """Looks up the longest suffix of the text in the text itself and proposes what followed it most often.

    The index is a suffix automaton that grows with the text, so that neither reading a token nor a proposal depends
    on how long the text is. Every token of a draft comes with an estimate of its survival. The estimates start from a
    prior and follow the request's own text: each new token shows whether the index would have guessed it, whether
    or not a draft was verified there, so they stay current while drafting does not pay.

    Args:
        memory_tokens: also look in the outputs of earlier requests, up to this many tokens of them; 0 keeps requests
            apart. The text of a request never depends on it, but its speed then tells about earlier requests.

    Raises:
        UsageError: if memory_tokens is negative.
    """

    name = "suffix"
    stochastic = False

    def __init__(self, memory_tokens: int = 0) -> None:
        if memory_tokens < 0:
            raise UsageError(f"memory_tokens {memory_tokens} is negative; use 0 for none or a positive count")
        self.memory_tokens = memory_tokens
        self.remembers = memory_tokens > 0
        self._memory = TextMemory(memory_tokens) if memory_tokens else None

    def session(self, slots: int = 1) -> DraftSession:
        """See `Drafter.session`."""
        return LookupSession(SuffixIndex, slots) if self._memory is None else _RememberingSession(self._memory, slots)


class SuffixIndex(TextIndex):
    """Expects what followed the longest suffix of the text that occurred before.

    Attributes:
        automaton: the suffix automaton of the text.
    """

    __slots__ = ("automaton",)

    def __init__(self) -> None:
        self.automaton = SuffixAutomaton()

    def extend(self, token: int) -> None:
        """See `TextIndex.extend`."""
        self.automaton.extend(token)

    def guess(self) -> tuple[int, float] | None:
        """See `TextIndex.guess`."""
        automaton = self.automaton
        state = automaton.match
        return first(automaton, state, automaton.length[state])

    def follow(self, limit: int, evidence: Evidence) -> Found:
        """See `TextIndex.follow`."""
        automaton = self.automaton
        state = automaton.match
        return walk(automaton, state, automaton.length[state], limit, evidence)


def first(automaton: SuffixAutomaton, state: int, length: int) -> tuple[int, float] | None:
    """Returns the token expected after a match and its prior logit, or None after no match."""
    token = automaton.favourite[state]
    return None if state == ROOT or token < 0 else (token, prior_logit(automaton, state, length, token))


def walk(automaton: SuffixAutomaton, state: int, length: int, limit: int, evidence: Evidence) -> Found:
    """Follows an automaton along its favourite tokens.

    Args:
        automaton: where to walk.
        state: the state matched.
        length: how many tokens match.
        limit: most tokens to return.
        evidence: what the request has shown about such guesses.
    """
    tokens: list[int] = []
    survival: list[float] = []
    slope, shift = evidence.slope, evidence.shift
    alive = 1.0
    while state > ROOT and len(tokens) < limit:
        token = automaton.favourite[state]
        if token < 0:
            # The end of a text. It is its own longest suffix, so go on from where the next longest stood before.
            state = automaton.link[state]
            length = min(length, automaton.length[state])
            continue
        alive /= 1.0 + exp(-slope * prior_logit(automaton, state, length, token) - shift)
        if alive < FLOOR:
            break
        tokens.append(token)
        survival.append(alive)
        state = automaton.moves[state][token]
        length += 1
    return Found(tokens, survival)


class _RememberingSession(LookupSession):
    """Looks in the shared memory too, and keeps evidence about that apart from evidence about the request's own text.

    A guess from memory is judged at the next proposal, whether or not it was verified.
    """

    def __init__(self, memory: TextMemory, slots: int) -> None:
        super().__init__(SuffixIndex, slots)
        self._memory = memory
        self._evidence = [Evidence(False, STRANGERS) for _ in range(slots)]
        self._guess: list[tuple[int, int, float] | None] = [None] * slots

    def begin(self, slot: int, tokens: Int[np.ndarray, "n"], greedy: bool) -> None:
        super().begin(slot, tokens, greedy)
        self._evidence[slot] = Evidence(greedy, STRANGERS)
        self._guess[slot] = None

    def _find(self, proposal: Proposal) -> Found:
        slot, tokens = proposal.slot, proposal.tokens
        before = self._readers[slot].index
        own = super()._find(proposal)
        guess = self._guess[slot]
        if self._readers[slot].index is not before:
            self._guess[slot] = None  # it was about a text that has been cut or edited since
        elif guess is not None and guess[0] < len(tokens):
            self._evidence[slot].record(guess[2], int(tokens[guess[0]]) == guess[1])
            self._guess[slot] = None
        with self._memory.lock:
            match = self._memory.match(tokens[-TextMemory.REACH :].tolist())
            expected = first(*match)
            if expected is None:
                return own
            self._guess[slot] = len(tokens), *expected
            remembered = walk(*match, proposal.limit, self._evidence[slot])
        return remembered if remembered.survival[:1] > own.survival[:1] else own

    def end(self, slot: int, tokens: Int[np.ndarray, "n"]) -> None:
        self._memory.add(tokens[self._readers[slot].prompt_length or len(tokens) :].tolist())
        super().end(slot, tokens)
