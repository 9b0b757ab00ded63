"""Audits a server's tokens against lists of the likeliest, as it reports them itself or its baseline does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from draftproof.audit.edge import MARGIN
from draftproof.audit.endpoint.account import Account, Asked
from draftproof.audit.endpoint.answers import ID_PREFIX, Answer, Emitted, Key, nameable
from draftproof.audit.endpoint.completions import Endpoint, in_order
from draftproof.audit.endpoint.top_law import TopLaw, top_law
from draftproof.audit.engine import NOISE, UNLIKELY
from draftproof.audit.laws import Law, Place
from draftproof.audit.ledger import Ledger, number
from draftproof.audit.martingale import Evidence
from draftproof.audit.report import Finding, Report
from draftproof.audit.shadow import Shadow, changes_nothing
from draftproof.draft.base import Drafter
from draftproof.errors import DraftproofError, EndpointError
from draftproof.sampling import BoundSampler, Sampler
from draftproof.types import Tokens, as_tokens

OWN_NOISE = 1e-4
"""Of the logprobs a server reports of the very pass that a token was drawn from: of printing."""

OFF, OFTEN, FEW = 0.25, 0.05, 20
"""A reported logprob that is off by more, in nats, is wrong; in more than this share of so many tokens or more that is
no rounding."""

UNLISTED = 0.02
"""The share of tokens without a law that says nothing yet."""

EMPTY = 8
"""Texts without a token, one after another, that show that none will come."""

ENDLESS = 2**24
"""A vocabulary that no id is outside of: a server does not tell how many there are."""


@dataclass(eq=False)
class _Text:
    """A text of the server, with what is told of the law at each place."""

    prompt: Asked
    answer: Answer
    tops: list[dict[Key, float] | None]


def against_lists(
    account: Account,
    baseline: Endpoint | None,
    drafter: Drafter | None,
    asked: Sequence[Asked],
    *,
    max_tokens: int,
    tokens: int,
    noise: float | None,
    seed: int,
    concurrency: int,
) -> Report:
    """Returns the report on a server whose laws are told in part: the likeliest tokens at each place.

    Args:
        account: of the server.
        baseline: tells the laws; None: the server itself.
        drafter: what is drafted with, or None.
        asked: prompts, in turn and again; a baseline needs them as ids.
        max_tokens: most tokens of one text.
        tokens: how many to look at, at most.
        noise: of log p; None: 0.02 against a baseline, 1e-4 against its own.
        seed: of the first text.
        concurrency: requests under way at a time.

    Raises:
        EndpointError: if a server fails.
        UsageError: if a server no longer takes the key or the model.
    """
    if noise is None:
        noise = OWN_NOISE if baseline is None else NOISE
    whose = "it reports itself" if baseline is None else "its baseline tells after the same prefixes"
    account.layer = f"the tokens the server samples, against the laws {whose}"
    account.ledger = Ledger(account.alpha, Evidence(noise**2))

    law = account.sampler
    if baseline is None and not law.greedy and _reports_processed(account.endpoint, asked[0], law):
        # What is told is the law that tokens are drawn from: nothing is left to be worked out.
        law = Sampler()

    def ask(i: int) -> _Text:
        prompt = asked[i % len(asked)]
        answer = account.endpoint.complete(prompt, max_tokens, account.sampler, seed + i)
        if baseline is None or len(answer.keys) > max_tokens:
            return _Text(prompt, answer, [each.top for each in answer.tokens])
        return _Text(prompt, answer, list(_tops(account.endpoint, baseline, prompt, answer)))

    asking = [account.endpoint] if baseline is None else [account.endpoint, baseline]
    with ExitStack() as stack:
        texts = stack.enter_context(closing(in_order(ask, concurrency, *asking)))
        shadow = None
        if drafter is not None and not account.sampler.greedy:
            shadow = stack.enter_context(closing(Shadow(drafter, account.sampler, ENDLESS)))
        compares = baseline is not None and not _reports_processed(account.endpoint, asked[0], account.sampler)
        return _ListAudit(account, law, noise, shadow, compares).run(texts, len(asked), max_tokens, tokens)


def _reports_processed(endpoint: Endpoint, prompt: Asked, sampler: Sampler) -> bool:
    """Returns whether a server reports logprobs after temperature and truncation, by those of one place told twice."""
    if sampler.greedy or changes_nothing(sampler):
        return False
    plain, told = (endpoint.complete(prompt, 1, each, 0).tokens for each in (Sampler(), sampler))
    if not plain or not told or plain[0].top is None or told[0].top is None:
        return False
    law = top_law(plain[0].top, sampler)
    processed = dict(zip(law.keys, np.log(law.probs).tolist(), strict=True))
    theirs = told[0].top
    both = [key for key in processed if key in theirs]
    if not both:
        return False
    # Of a law that is known up to a factor, differences count.
    first = both[0]

    def off(mine: dict[Key, float]) -> float:
        return max(abs((mine[key] - mine[first]) - (theirs[key] - theirs[first])) for key in both)

    return len(theirs) < len(plain[0].top) or off(processed) < off(plain[0].top)


def _tops(endpoint: Endpoint, baseline: Endpoint, prompt: Asked, answer: Answer) -> Iterator[dict[Key, float] | None]:
    """Yields what a baseline tells of the law at each place of a text: the first token of its own after each prefix."""
    if isinstance(prompt, str) or answer.ids is None:
        raise EndpointError(
            f"{endpoint.named} tells no token ids, so that its baseline cannot be asked what follows them; leave "
            "baseline_url out, or use a server that tells them (vLLM, llama.cpp)"
        )
    for i in range(len(answer.ids)):
        told = baseline.complete([*prompt, *answer.ids[:i]], 1, Sampler(), 0).tokens
        yield told[0].top if told else None


@dataclass(eq=False)
class _ListAudit:
    account: Account
    law: Sampler
    noise: float
    shadow: Shadow | None
    compares: bool
    example: dict[str, Any] = field(default_factory=dict)

    def run(self, texts: Iterator[_Text], prompts: int, max_tokens: int, tokens: int) -> Report:
        account, ledger = self.account, self.account.ledger
        empty, before = 0, set[tuple[Any, ...]]()
        # Greedy text is the same each time.
        while account.looked < tokens and not (account.sampler.greedy and account.texts >= prompts):
            text = next(texts)
            account.count(text.answer)
            keys = text.answer.keys
            empty = 0 if keys else empty + 1
            if empty > EMPTY:
                return account.report(Finding("the server generates nothing from any prompt"), failed=True)
            if len(keys) > max_tokens:
                what = f"it returns {len(keys)} tokens where at most {max_tokens} were asked for"
                return account.report(Finding(what, {"text": text.answer.text}))
            start = ledger.log_p
            for finding in self._settled(text, tokens):
                account.looked += 1
                finding = ledger.finding() if finding is None and ledger.won else finding
                if finding is not None:
                    ledger.mark(account.looked)
                    return account.report(finding)
            if len(keys) < max_tokens and account.looked < tokens and not _end_is_told(text.answer):
                # The end of text came and was not told: what follows from its absence must not be won.
                ledger.evidence.see_unknown()
                account.unlisted += 1
            ledger.mark(account.looked)
            told = (str(text.prompt), keys)
            if told in before:
                what = "it returned the same text for another seed, which is no fresh evidence; its seeds must count"
                return account.report(Finding(what, {"text": text.answer.text}), failed=True)
            if ledger.log_p - start < UNLIKELY:
                before.add(told)
            e_value = "" if account.sampler.greedy else f", e-value {number(ledger.evidence.log_e)}"
            account.progress(account.looked / tokens, f"{account.looked} tokens{e_value}")
        if account.unlisted > UNLISTED * account.looked:
            what = (
                f"no law is told of {account.unlisted} of {account.looked} tokens, which may be just those that were "
                f"drafted; give baseline_url or target. Of the others: {account.ledger.told(account.looked)}"
            )
            return account.report(Finding(what), failed=True)
        return account.report(self._wrongly_reported())

    def _settled(self, text: _Text, tokens: int) -> Iterator[Finding | None]:
        """Yields, for each token in turn, what is wrong with it for sure; the bets on it are settled."""
        account, answer = self.account, text.answer
        laws = self._drafted(text)
        previous: dict[Key, float] | None = None
        for i, (key, top) in enumerate(zip(answer.keys, text.tops, strict=False)):
            if account.looked >= tokens:
                return
            drafted = next(laws)
            if top is not None and i < len(answer.tokens) and not all(isinstance(each, int) for each in top):
                key = answer.tokens[i].key  # lists by text, beside ids
                drafted = None, None
            if top is None or (account.sampler.greedy and not nameable(key)):
                account.unlisted += 1
                yield None
            elif account.sampler.greedy:
                yield self._greedy(text, i, key, top)
            else:
                if self.compares and i < len(answer.tokens):
                    self._compare(text, i, answer.tokens[i], top)
                law = top_law(top, self.law, self.noise)
                q, raw = (None if each is None else each.prob_of(np.array(law.keys)) for each in drafted)
                yield self._sampled(text, i, key, law, q, raw, previous)
            previous = top

    def _drafted(self, text: _Text) -> Iterator[tuple[Any, Any]]:
        """Yields what would be drafted at each place and, if the sampler changes it, what without the sampler."""
        ids = text.answer.ids
        if self.shadow is None or ids is None or isinstance(text.prompt, str):
            while True:
                yield None, None
        history: Tokens = as_tokens([*text.prompt, *ids])
        bound = self.account.sampler.bind(len(text.prompt), (), ENDLESS)
        self.shadow.begin(history[: len(text.prompt)])
        for end in range(len(text.prompt), len(history)):
            yield self._laws(history[:end], bound)

    def _laws(self, history: Tokens, bound: BoundSampler) -> tuple[Any, Any]:
        """Returns what would be drafted; nothing from the first failure of the drafter on."""
        if self.shadow is None:
            return None, None
        try:
            return self.shadow.laws(history, bound)
        except DraftproofError as error:
            self.shadow, self.account.drafter_failed = None, str(error)
            return None, None

    def _sampled(
        self,
        text: _Text,
        i: int,
        key: Key,
        law: TopLaw,
        q: Law | None,
        raw: Law | None,
        previous: dict[Key, float] | None,
    ) -> Finding | None:
        ledger = self.account.ledger
        if law.allowed is not None and key not in law.allowed and nameable(key):
            where = _where(text, i) | {"the target's tokens there": len(law.allowed)}
            return Finding("it emits a token to which the target's law gives probability 0", where, p_value=0.0)
        at = law.place(key)
        ledger.edge(at is None, law.doubtful)
        if at is not None:
            place = Place(
                p=law.probs,
                q=q,
                raw=raw,
                before=None if previous is None else law.spread(previous),
                unprocessed=None if changes_nothing(self.law) else np.exp(law.logprobs),
            )
            ledger.settle(place, at, lambda: _where(text, i))
        return None

    def _greedy(self, text: _Text, i: int, key: Key, top: dict[Key, float]) -> Finding | None:
        best = max(top, key=lambda each: top[each])
        # A token that is not listed is at least so far below the likeliest as the last that is.
        gap = top[best] - top.get(key, min(top.values()))
        if key == best or gap == 0.0:
            return None
        if gap <= MARGIN * math.sqrt(2.0) * self.noise:
            self.account.ledger.near_ties += 1
            return None
        where = _where(text, i) | {"the target's choice": best, "its lead, logits": gap}
        return Finding(f"greedy text departs from the target's choice by {gap:.3g} logits", where, p_value=0.0)

    def _compare(self, text: _Text, i: int, own: Emitted, top: dict[Key, float]) -> None:
        """Notes how far the logprob that the server reports of a token is from its baseline's."""
        theirs = top.get(own.key)
        if own.logprob is None or own.top is None or theirs is None:
            return
        off = abs(own.logprob - theirs)
        self.account.reported += 1
        self.account.misreported += off > max(OFF, 10.0 * self.noise)
        if off > self.account.furthest:
            self.account.furthest = off
            self.example = _where(text, i) | {"reported": own.logprob, "without speculation": theirs}

    def _wrongly_reported(self) -> Finding | None:
        wrong, compared = self.account.misreported, self.account.reported
        if compared < FEW or wrong <= OFTEN * compared:
            return None
        what = f"the logprobs of {wrong} of {compared} tokens are not those of the server without speculation"
        return Finding(what, self.example)


def _end_is_told(answer: Answer) -> bool:
    """Returns whether the last token that is told is what ended a text; servers differ in that, and in counting it."""
    if answer.completion_tokens is not None and answer.completion_tokens > len(answer.keys):
        return False
    if not answer.tokens:
        return answer.completion_tokens is not None
    # The text does not hold what ended it.
    last = answer.tokens[-1].text
    return last == "" or last.startswith(ID_PREFIX) or not answer.text.endswith(last)


def _where(text: _Text, i: int) -> dict[str, Any]:
    keys = text.answer.keys
    return {
        "prompt": text.prompt if isinstance(text.prompt, str) else text.prompt[-12:],
        "after": list(keys[max(0, i - 12) : i]),
        "token": keys[i],
        "text": text.answer.text[:200],
    }
