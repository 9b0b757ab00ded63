"""One request while it runs: its text so far, and everything that belongs to it alone."""

from __future__ import annotations

import time

import numpy as np
from jaxtyping import Float

from draftproof.errors import DraftError, RequestError
from draftproof.metrics import Counts, Timings
from draftproof.models.base import Model, Rows
from draftproof.noise import CounterNoise
from draftproof.policy import AcceptanceRate
from draftproof.request import Request
from draftproof.rules import Rule
from draftproof.sampling import BoundSampler, Sampler
from draftproof.text import TextStream
from draftproof.types import Completion, Draft, FinishReason, Step, TokenLogprob, Tokens, Usage, Verdict


class RunningRequest:
    """A request with its committed tokens, noise, text, counts and end.

    Tokens are only ever appended, so the views that sessions keep stay true.
    """

    def __init__(self, index: int, request: Request, model: Model, sampler: Sampler, rule: Rule) -> None:
        prompt = request.prompt_tokens(model)
        eos = frozenset() if request.ignore_eos else model.eos_ids
        self.index = index
        self.request = request
        self.model = model
        self.rule = rule
        self.ends = eos | frozenset(request.stop_token_ids or ())
        self.sampler: BoundSampler = (request.sampler or sampler).bind(len(prompt), self.ends, model.vocab_size)
        self.noise = CounterNoise(request.seed)
        self.slot = -1
        self.speculate = request.speculate
        self.draft_asked = False
        self.acceptance = AcceptanceRate()
        self.counts = Counts()
        self.timings = Timings()
        self.cached_tokens = 0
        self.drafter_error: DraftError | None = None
        self.error: RequestError | None = None
        self.finish_reason: FinishReason | None = None
        self._prompt_length = len(prompt)
        self._buffer = np.empty(max(64, 2 * len(prompt)), dtype=np.int32)
        self._buffer[: len(prompt)] = prompt
        self._length = len(prompt)
        room = model.context_length - len(prompt)
        self._most = room if request.max_tokens is None else min(request.max_tokens, room)
        self._text = TextStream(tuple(request.stop or ()), request.include_stop)
        self._logprobs: list[TokenLogprob] | None = None if request.logprobs is None else []
        self._began = time.perf_counter()
        if self._most == 0:
            self.finish_reason = "length"

    @property
    def tokens(self) -> Tokens:
        """The committed text: prompt and what was generated."""
        view = self._buffer[: self._length]
        view.flags.writeable = False  # drafters and processors see it
        return view

    @property
    def emitted(self) -> int:
        """How many tokens were generated."""
        return self._length - self._prompt_length

    @property
    def draft_room(self) -> int:
        """Most draft tokens that could be emitted together with the token after them."""
        return self._most - self.emitted - 1

    def survival(self, draft: Draft) -> Float[np.ndarray, "draft"]:
        """Returns the drafter's own estimates, or what this request's past drafts suggest, `[draft]`."""
        if draft.survival is not None:
            return draft.survival
        result: Float[np.ndarray, "draft"] = self.acceptance.rate ** np.arange(1, len(draft) + 1)
        return result

    def try_again(self, draft: Draft) -> bool:
        """Whether to verify one token of a draft without estimates although nothing seems to pay."""
        return len(draft) > 0 and draft.survival is None and self.acceptance.due

    def commit(self, draft: Draft, verdict: Verdict, rows: Rows) -> Step:
        """Emits what a pass gave, token by token as plain decoding would meet it; stops where that would stop.

        A verdict's token of -1 stands for none: the row after the accepted tokens was no law.
        """
        new = draft.tokens[: verdict.accepted].tolist() + ([verdict.token] if verdict.token >= 0 else [])
        emitted: list[int] = []
        entries: list[TokenLogprob] = []
        for i, token in enumerate(new):
            piece = self.model.tokenizer.token_bytes(token)
            self._append(token)
            emitted.append(token)
            if self.request.logprobs is not None:
                entries.append(token_logprob(rows[i], token, self.request.logprobs))
            self._end_after(token, piece)
            if self.finish_reason is not None:
                break
        if self._logprobs is not None:
            self._logprobs += entries
        if emitted and not self.counts.num_emitted_tokens:
            self.timings.time_to_first_token = time.perf_counter() - self._began
        accepted = min(verdict.accepted, len(emitted))
        if emitted:
            self.counts.add(len(draft), accepted, len(emitted))
        return self._step(emitted, len(draft), accepted, entries)

    def fail(self, error: RequestError) -> Step:
        """Ends the request with an error; what it produced before stays."""
        self.error = error
        self.finish_reason = "error"
        return self._step([], 0, 0, [])

    def empty_step(self) -> Step:
        """Returns the only step of a request that may not generate anything."""
        return self._step([], 0, 0, [])

    def drafter_failed(self, error: Exception) -> None:
        """Switches the drafter off for this request and remembers why."""
        self.speculate = False
        self.drafter_error = error if isinstance(error, DraftError) else DraftError(f"{type(error).__name__}: {error}")
        self.drafter_error.__cause__ = error if error is not self.drafter_error else None

    def _append(self, token: int) -> None:
        if self._length == len(self._buffer):
            larger = np.empty(2 * len(self._buffer), dtype=np.int32)
            larger[: self._length] = self._buffer
            self._buffer = larger
        self._buffer[self._length] = token
        self._length += 1

    def _end_after(self, token: int, piece: bytes) -> None:
        # The stop test comes before the length test, whatever the size of the block: a stop at the cap is a stop.
        if token in self.ends or self._text.add(piece):
            self.finish_reason = "stop"
        elif self.emitted >= self._most:
            self.finish_reason = "length"

    def _step(self, tokens: list[int], drafted: int, accepted: int, entries: list[TokenLogprob]) -> Step:
        finished = self.finish_reason is not None
        if finished:
            self._text.finish()
        text = self._text.take()
        if finished:
            self.timings.total = time.perf_counter() - self._began
        return Step(
            index=self.index,
            tokens=tokens,
            text=text,
            num_draft_tokens=drafted,
            num_accepted_tokens=accepted,
            logprobs=entries if self._logprobs is not None else None,
            finish_reason=self.finish_reason,
            completion=self._completion() if finished else None,
        )

    def _completion(self) -> Completion:
        assert self.finish_reason is not None
        completion = Completion(
            text=self._text.text,
            tokens=self.tokens[self._prompt_length :].tolist(),
            finish_reason=self.finish_reason,
            usage=Usage(self._prompt_length, self.emitted, self.cached_tokens),
            counts=self.counts,
            timings=self.timings,
            logprobs=self._logprobs,
            seed=self.noise.seed,
            rule=self.rule.name,
            error=self.error,
            drafter_error=self.drafter_error,
        )
        if self.error is not None:
            self.error.completion = completion
        return completion


def token_logprob(row: np.ndarray, token: int, top: int) -> TokenLogprob:
    """Returns the log-probability of an emitted token under raw logits `[vocab]`, with the `top` likeliest."""
    logits = row.astype(np.float64)
    largest = logits.max()
    logprobs = logits - (largest + np.log(np.exp(logits - largest).sum()))
    top = min(top, len(logprobs))
    best = np.argpartition(logprobs, len(logprobs) - top)[len(logprobs) - top :] if top else np.zeros(0, dtype=int)
    best = best[np.lexsort((best, -logprobs[best]))]
    return TokenLogprob(token, float(logprobs[token]), [(int(each), float(logprobs[each])) for each in best])
