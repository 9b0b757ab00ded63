"""Models and drafters that do what a test tells them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from draftproof.draft.base import Drafter, DraftSession, Proposal
from draftproof.models.base import Model, Query, Rows, Session, Tokenizer
from draftproof.models.toy import ToyModel, ToyTokenizer
from draftproof.noise import Lane
from draftproof.types import EMPTY_DRAFT, Draft, Tokens, Verdict, as_tokens


def scripted_model(
    text: Sequence[int],
    prompt_length: int,
    vocab_size: int,
    *,
    eos_ids: Sequence[int] = (),
    pieces: Sequence[bytes] | None = None,
    context_length: int = 4096,
) -> ToyModel:
    """A model whose likeliest continuation of any prompt of that length is `text`, over and over."""

    def table(tokens: Tokens) -> np.ndarray:
        logits = np.linspace(0.0, -1.0, vocab_size)
        logits[text[(len(tokens) - prompt_length) % len(text)]] = 9.0
        return logits

    return ToyModel(
        table,
        vocab_size,
        eos_ids=eos_ids,
        context_length=context_length,
        tokenizer=None if pieces is None else ToyTokenizer(pieces),
    )


class FunctionDrafter(Drafter):
    """Proposes what a function of the tokens so far says, cut to the limit."""

    name = "function"
    stochastic = False

    def __init__(self, propose: Callable[[Tokens], Sequence[int]]) -> None:
        self.propose = propose
        self.observed: list[tuple[int, int]] = []

    def session(self, slots: int = 1) -> DraftSession:
        return _FunctionSession(self)


class _FunctionSession(DraftSession):
    def __init__(self, drafter: FunctionDrafter) -> None:
        self._drafter = drafter

    def propose(self, proposals: Sequence[Proposal]) -> list[Draft]:
        return [Draft(as_tokens(list(self._drafter.propose(each.tokens))[: each.limit])) for each in proposals]

    def observe(self, slot: int, tokens: Tokens, draft: Draft, verdict: Verdict) -> None:
        self._drafter.observed.append((len(draft), verdict.accepted))


def constant_drafter(token: int) -> FunctionDrafter:
    """Always proposes the same token, many times."""
    return FunctionDrafter(lambda tokens: [token] * 64)


def random_drafter(vocab_size: int, seed: int = 0) -> FunctionDrafter:
    """Proposes tokens at random."""
    rng = np.random.default_rng(seed)

    def propose(tokens: Tokens) -> list[int]:
        guess: list[int] = rng.integers(0, vocab_size, 64).tolist()
        return guess

    return FunctionDrafter(propose)


def oracle_drafter(model: ToyModel, wrong_every: int = 0) -> FunctionDrafter:
    """Proposes the model's own greedy continuation; every so many positions a wrong token instead."""

    def propose(tokens: Tokens) -> list[int]:
        text = tokens.tolist()
        for _ in range(20):
            best = int(np.argmax(model.table(as_tokens(text))))
            if wrong_every and len(text) % wrong_every == 0:
                best = (best + 1) % model.vocab_size
            text.append(best)
        guess: list[int] = text[len(tokens) :]
        return guess

    return FunctionDrafter(propose)


class FlakyModel(Model):
    """A model whose sessions fail when `fails(queries)` says so, before anything is computed."""

    def __init__(self, inner: Model, fails: Callable[[Sequence[Query]], bool]) -> None:
        self.inner = inner
        self.fails = fails
        self.name = inner.name
        self.vocab_size = inner.vocab_size
        self.context_length = inner.context_length
        self.eos_ids = inner.eos_ids
        self.tokenizer: Tokenizer = inner.tokenizer
        self.passes = 0

    def session(self, slots: int = 1) -> Session:
        return _FlakySession(self, slots)


class _FlakySession(Session):
    model: FlakyModel

    def __init__(self, model: FlakyModel, slots: int) -> None:
        super().__init__(model, slots)
        self._inner = model.inner.session(slots)

    def _forward(self, queries: Sequence[Query], keep: Sequence[int]) -> list[Rows]:
        self.model.passes += 1
        if self.model.fails(queries):
            raise RuntimeError("the device fell over")
        return self._inner.score(queries)


class FailingDrafter(Drafter):
    """Drafts nothing and raises in the given hook, for the requests whose prompt starts with `token` (or all)."""

    name = "failing"
    stochastic = False

    def __init__(self, hook: str, token: int | None = None, after: int = 0) -> None:
        self.hook = hook
        self.token = token
        self.after = after
        self.calls = 0

    def session(self, slots: int = 1) -> DraftSession:
        return _FailingSession(self)


class _FailingSession(DraftSession):
    def __init__(self, drafter: FailingDrafter) -> None:
        self._drafter = drafter

    def _maybe(self, hook: str, tokens: Tokens) -> None:
        drafter = self._drafter
        if hook == drafter.hook and drafter.token in (None, int(tokens[0])):
            drafter.calls += 1
            if drafter.calls > drafter.after:
                raise ValueError(f"no luck in {hook}")

    def begin(self, slot: int, tokens: Tokens, greedy: bool) -> None:
        self._maybe("begin", tokens)

    def propose(self, proposals: Sequence[Proposal]) -> list[Draft]:
        for each in proposals:
            self._maybe("propose", each.tokens)
        return [Draft(as_tokens([1, 1])).cut(each.limit) if each.limit else EMPTY_DRAFT for each in proposals]

    def observe(self, slot: int, tokens: Tokens, draft: Draft, verdict: Verdict) -> None:
        self._maybe("observe", tokens)

    def end(self, slot: int, tokens: Tokens) -> None:
        self._maybe("end", tokens)


class SameCoin:
    """A noise of which every uniform has one value."""

    def __init__(self, u: float) -> None:
        self._u = u

    def uniform(self, start: int, offset: int, lane: Lane) -> float:
        return self._u

    def exponentials(self, position: int, ids: np.ndarray) -> np.ndarray:
        return np.ones(len(ids))
