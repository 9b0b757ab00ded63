"""The decode loop: draft, score, verify, commit, for every running request at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from draftproof.distribution import Distribution
from draftproof.draft.base import Drafter, DraftSession, Proposal
from draftproof.draft.load import check_drafter, load_drafter
from draftproof.errors import BackendError, DraftError, RequestError, UsageError, whole
from draftproof.models.base import Model, Query, Rows, Session
from draftproof.models.load import load
from draftproof.noise import Seed
from draftproof.policy import DraftLengthPolicy, FixedLength, PayingLength
from draftproof.request import Prompt, Request
from draftproof.rules import Rule
from draftproof.rules.load import check_rule, resolve_rules
from draftproof.running import RunningRequest
from draftproof.sampling import Laws, Sampler
from draftproof.types import EMPTY_DRAFT, Completion, Draft, Step, Tokens, Verdict, as_tokens

PREFILL_CHUNK = 512
"""Tokens of a long prompt read in one pass."""

PREFILL_CHUNK_SHARED = 128
"""The same while other requests are decoding in the same pass and wait for it."""


@dataclass(frozen=True, eq=False)
class _Part:
    """One request's part in a pass.

    Attributes:
        run: the request.
        tokens: its text, or as much of a long prompt as this pass reads.
        draft: what the pass verifies.
        fresh: how many of `tokens` the session does not hold yet.
    """

    run: RunningRequest
    tokens: Tokens
    draft: Draft
    fresh: int

    @property
    def reading(self) -> bool:
        """Whether the pass only reads a part of the prompt."""
        return len(self.tokens) < len(self.run.tokens)


class Engine:
    """Generates text by draft-and-verify; the text has exactly the target's law.

    One loop serves every drafter, rule and model; plain decoding is the same loop with `NullDrafter`. An engine may
    be used from several threads, and several of its streams may be interleaved: passes are taken in turn.

    Args:
        target: a model, or a spec such as "smollm2-135m", "FILE.gguf", "transformers:DIRECTORY" or "toy:pair".
        drafter: a drafter, or a spec: "suffix", "ngram", "none", "model:SPEC", "self:q4_0", "self:layers=N".
        rule: a rule, or a spec. "auto": coupled for deterministic drafters and for requests with a seed, block for
            sampled drafts.
        sampler: the sampling law of requests that bring none.
        num_draft_tokens: how many tokens to draft, or "auto": as many as pay, by measured cost.
        max_batch_size: most requests in one pass; more wait their turn.

    Raises:
        UsageError: if an argument is wrong.
        ModelLoadError: if a spec names a model that cannot be loaded.
    """

    def __init__(
        self,
        target: Model | str,
        drafter: Drafter | str = "suffix",
        rule: Rule | str = "auto",
        sampler: Sampler | None = None,
        num_draft_tokens: int | Literal["auto"] = "auto",
        *,
        max_batch_size: int = 8,
    ) -> None:
        if whole("max_batch_size", max_batch_size) < 1:
            raise UsageError(f"max_batch_size {max_batch_size} is not positive; use 1 or more")
        if isinstance(num_draft_tokens, str) and num_draft_tokens != "auto":
            raise UsageError(f'num_draft_tokens {num_draft_tokens!r} is unknown; use a count or "auto"')
        if sampler is not None and not isinstance(sampler, Sampler):
            raise UsageError(f"sampler {sampler!r} is no Sampler; write for example Sampler(temperature=0.7)")
        check_drafter(drafter)
        check_rule(rule)
        self.target = load(target)
        self.drafter = load_drafter(drafter, self.target)
        self.rule, self.seeded_rule = resolve_rules(rule, self.drafter)
        self.sampler = sampler or Sampler()
        self.max_batch_size = max_batch_size
        self.policy: DraftLengthPolicy = (
            PayingLength() if num_draft_tokens == "auto" else FixedLength(whole("num_draft_tokens", num_draft_tokens))
        )
        self._lock = threading.RLock()
        self._session: Session | None = None
        self._draft_session: DraftSession | None = None
        self._running: list[RunningRequest | None] = []

    def stream(self, prompt: Prompt | Request, **options: Any) -> Iterator[Step]:
        """Yields a step for each target pass.

        Args:
            prompt: text, chat messages, token ids, or a whole `Request`.
            **options: fields of `Request`, such as max_tokens, seed, stop, logprobs, sampler.

        Raises:
            UsageError: if the prompt or an option is wrong, before anything is computed.
            RequestError: if the request fails; after the last step, and with what was produced in `.completion`.
        """
        run = self._admit(0, prompt, options)

        def steps() -> Iterator[Step]:
            yield from self._serve(iter([run]), 1)
            if run.error is not None:
                raise run.error

        return steps()

    def generate(self, prompt: Prompt | Request, **options: Any) -> Completion:
        """Returns the whole completion; arguments and errors as for `stream`."""
        completion = None
        for step in self.stream(prompt, **options):
            completion = step.completion
        assert completion is not None
        return completion

    def stream_batch(
        self, requests: Iterable[Prompt | Request], *, seed: Seed | None = None, **options: Any
    ) -> Iterator[Step]:
        """Yields the steps of many requests that share passes; `step.index` tells whose each is.

        Requests are taken from the iterable as places become free. One that fails ends with finish_reason "error" and
        the error in its completion; the others go on.

        Args:
            requests: prompts or `Request`s.
            seed: gives request i the seed (seed, i), unless it brings its own.
            **options: fields of `Request` for those that leave them at their default.
        """
        listed = requests if isinstance(requests, Sequence) and not isinstance(requests, str) else None
        if isinstance(requests, str | Request) or not isinstance(requests, Iterable):
            raise UsageError(
                f"requests {requests!r} is not a list of prompts; give one, or use generate() for one string"
            )

        def admitted() -> Iterator[RunningRequest]:
            for index, request in enumerate(requests):
                mine = {} if seed is None else {"seed": (*(seed if isinstance(seed, tuple) else (seed,)), index)}
                yield self._admit(index, request, options | mine)

        # A list is checked whole before anything is computed; an iterable can only be checked as it comes.
        runs = admitted() if listed is None else iter(list(admitted()))
        slots = self.max_batch_size if listed is None else min(self.max_batch_size, max(len(listed), 1))
        return self._serve(runs, slots)

    def generate_batch(
        self, requests: Iterable[Prompt | Request], *, seed: Seed | None = None, **options: Any
    ) -> list[Completion]:
        """Returns the completions in the order of the requests; arguments as for `stream_batch`."""
        done = {
            step.index: step.completion
            for step in self.stream_batch(requests, seed=seed, **options)
            if step.completion is not None
        }
        return [done[index] for index in sorted(done)]

    def prepare(self) -> None:
        """Measures what "auto" needs to know of the target now, not in the first request that has a draft."""
        with self._lock:
            session, _ = self._open(1)
            length = min(64, self.target.context_length - self.policy.limit - 1)
            if length > 0 and not any(self._running):
                self.policy.prepare(session, 0, as_tokens(np.arange(length, 0, -1) % self.target.vocab_size))

    def close(self) -> None:
        """Frees the sessions, not the models; the engine may be used again. Closing twice is harmless."""
        with self._lock:
            if self._session is not None:
                self._session.close()
            if self._draft_session is not None:
                self._draft_session.close()
            self._session = self._draft_session = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _admit(self, index: int, prompt: Prompt | Request, options: dict[str, Any]) -> RunningRequest:
        unknown = set(options) - set(Request.__dataclass_fields__) | ({"prompt"} & set(options))
        if unknown:
            known = sorted(set(Request.__dataclass_fields__) - {"prompt"})
            raise UsageError(f"option {sorted(unknown)[0]!r} is unknown; use one of: {', '.join(known)}")
        request = prompt.filled(options) if isinstance(prompt, Request) else Request(prompt, **options)
        rule = self.rule if request.seed is None else self.seeded_rule
        if request.seed is not None and self.drafter.remembers and not rule.draft_invariant:
            raise UsageError(
                f"a seed under rule {rule.name!r} with a drafter that remembers other requests is not exact: an "
                "earlier text of the same seed was drawn with the same coins; use rule 'coupled', or memory_tokens=0"
            )
        return RunningRequest(index, request, self.target, self.sampler, rule)

    def _serve(self, waiting: Iterator[RunningRequest], slots: int) -> Iterator[Step]:
        active: list[RunningRequest] = []
        pending: RunningRequest | None = None
        try:
            while True:
                while len(active) < slots and (pending := pending or next(waiting, None)) is not None:
                    if pending.finish_reason is not None:
                        step, pending = pending.empty_step(), None
                        yield step
                        continue
                    if not self._join(pending, slots, bool(active)):
                        break
                    active.append(pending)
                    pending = None
                if not active:
                    return
                yield from self._advance(active)
                for run in [each for each in active if each.finish_reason is not None]:
                    active.remove(run)
                    self._leave(run)
        finally:
            # Interrupted at any place, a request that was given a slot gives it back.
            for run in active if pending is None else [*active, pending]:
                self._leave(run)

    # Slots: a session of one sequence suffices until a second request runs beside the first. A session that grows
    # starts empty, which costs running requests a replay and nothing else: sessions are addressed by tokens.

    def _open(self, slots: int) -> tuple[Session, DraftSession]:
        # After `close`, or a growth that failed, requests still run in their places.
        slots = max(slots, *(slot + 1 for slot, run in enumerate(self._running) if run is not None), 1)
        if self._session is None or self._draft_session is None or self._session.slots < slots:
            self.close()
            self._session = self.target.session(slots)
            self._draft_session = self.drafter.session(slots)
            self._running += [None] * (slots - len(self._running))
            for run in self._running:
                if run is not None:
                    self._begin_draft(run)
        return self._session, self._draft_session

    def _join(self, run: RunningRequest, slots: int, may_wait: bool) -> bool:
        """Gives a request a place; returns whether there was one, if it may wait for one, else raises."""
        with self._lock:
            taken = sum(each is not None for each in self._running)
            session, _ = self._open(max(slots, min(taken + 1, self.max_batch_size)))
            free = [slot for slot in range(session.slots) if self._running[slot] is None]
            if not free and may_wait:
                return False
            if not free:
                raise UsageError(
                    f"all {session.slots} places are taken; finish or close a stream, or raise max_batch_size"
                )
            run.slot = max(free, key=lambda slot: session.prefix_length(slot, run.tokens))
            run.cached_tokens = min(session.prefix_length(run.slot, run.tokens), len(run.tokens) - 1)
            self._running[run.slot] = run
            self._begin_draft(run)
            return True

    def _leave(self, run: RunningRequest) -> None:
        with self._lock:
            if run.slot < 0 or self._running[run.slot] is not run:
                return
            self._running[run.slot] = None
            if self._draft_session is not None:
                try:
                    self._draft_session.end(run.slot, run.tokens)
                except Exception as error:
                    run.drafter_failed(error)

    def _begin_draft(self, run: RunningRequest) -> None:
        assert self._draft_session is not None
        if not run.speculate:
            return
        try:
            self._draft_session.begin(run.slot, run.tokens, run.sampler.sampler.greedy)
        except Exception as error:
            run.drafter_failed(error)

    def _advance(self, active: Sequence[RunningRequest]) -> list[Step]:
        """Runs one target pass for all active requests and returns what it gave to each."""
        with self._lock:
            session, _ = self._open(1)
            chunk = PREFILL_CHUNK if len(active) == 1 else PREFILL_CHUNK_SHARED
            held = [session.prefix_length(run.slot, run.tokens) for run in active]
            ready = [run for run, length in zip(active, held, strict=True) if len(run.tokens) - length <= chunk]
            drafts = dict(zip(map(id, ready), self._drafts(session, ready), strict=True))
            parts = [
                _Part(run, run.tokens, drafts[id(run)], len(run.tokens) - length)
                if id(run) in drafts
                else _Part(run, run.tokens[: length + chunk], EMPTY_DRAFT, chunk)
                for run, length in zip(active, held, strict=True)
            ]
            try:
                rows = self._score(session, parts)
            except Exception:
                return self._advance_apart(session, parts)
            return [self._judge_alone(each, its) for each, its in zip(parts, rows, strict=True) if not each.reading]

    def _judge_alone(self, part: _Part, rows: Rows) -> Step:
        """Judges one request's part; whatever a rule or a tokenizer raises there is that request's own failure."""
        try:
            return self._judge(part, rows)
        except Exception as error:
            failure = RequestError(f"position {len(part.run.tokens)}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            return part.run.fail(failure)

    def _advance_apart(self, session: Session, parts: Sequence[_Part]) -> list[Step]:
        """Repeats a failed pass request by request, so that only the ones at fault fail."""
        steps = []
        for part in parts:
            try:
                (rows,) = self._score(session, [part])
            except Exception as error:
                failure = error if isinstance(error, RequestError) else _backend_error(error, part.run)
                steps.append(part.run.fail(failure))
                continue
            if not part.reading:
                steps.append(self._judge_alone(part, rows))
        return steps

    def _score(self, session: Session, parts: Sequence[_Part]) -> list[Rows]:
        queries = [Query(each.run.slot, each.tokens, each.draft.tokens) for each in parts]
        began = time.perf_counter()
        scored = session.score(queries)
        seconds = time.perf_counter() - began
        # A decoding pass runs the last committed token and the draft; anything more is the reading of a prompt.
        if all(each.fresh <= 1 for each in parts):
            rows = [len(each.draft) + 1 for each in parts]
            count = len(rows) * max(rows) if session.rectangular else sum(rows)
            self.policy.observe_pass(count, sum(len(each.tokens) for each in parts) // len(parts), seconds)
        for each in parts:
            each.run.timings.target += seconds
            if each.fresh > 1:
                each.run.timings.prefill += seconds
        return scored

    def _drafts(self, session: Session, runs: Sequence[RunningRequest]) -> list[Draft]:
        """Returns the draft that each request's next pass verifies; a drafter that fails is switched off there."""
        asking = [run for run in runs if run.speculate and min(self.policy.limit, run.draft_room) > 0]
        if not asking:
            return [EMPTY_DRAFT] * len(runs)
        if self.drafter.stochastic and not self._prepared(session, asking):
            return [EMPTY_DRAFT] * len(runs)
        reading = not all(run.draft_asked for run in asking)
        began = time.perf_counter()
        proposed = dict(zip(map(id, asking), self._propose(asking), strict=True))
        seconds = time.perf_counter() - began
        for run in asking:
            run.timings.draft += seconds
            run.draft_asked = True
        drafts = [proposed.get(id(run), EMPTY_DRAFT) for run in runs]
        if self.drafter.stochastic:
            if not reading:
                self.policy.observe_draft(sum(map(len, drafts)), seconds)
            return drafts
        if not any(map(len, drafts)) or not self._prepared(session, asking):
            return [EMPTY_DRAFT] * len(runs)
        context = sum(len(run.tokens) for run in runs) // len(runs)
        survivals = [run.survival(draft) for run, draft in zip(runs, drafts, strict=True)]
        lengths = self.policy.choose(survivals, context, session.rectangular)
        return [
            draft.cut(length or int(run.try_again(draft)))
            for run, draft, length in zip(runs, drafts, lengths, strict=True)
        ]

    def _prepared(self, session: Session, runs: Sequence[RunningRequest]) -> bool:
        """Lets the policy measure the model behind the first request's text; False if the model failed at that."""
        began = time.perf_counter()
        try:
            self.policy.prepare(session, runs[0].slot, runs[0].tokens)
        except Exception:
            # Nothing is lost: this pass goes undrafted, and if the model is at fault it fails there, by request.
            return False
        finally:
            for run in runs:
                run.timings.calibration += time.perf_counter() - began
        return True

    def _propose(self, runs: Sequence[RunningRequest]) -> list[Draft]:
        assert self._draft_session is not None
        proposals = [self._proposal(run) for run in runs]
        try:
            drafts = self._draft_session.propose(proposals)
            if len(drafts) != len(proposals):
                raise DraftError(f"drafter {self.drafter.name} returned {len(drafts)} drafts for {len(proposals)}")
            for proposal, draft in zip(proposals, drafts, strict=True):
                _check(draft, proposal, self.target.vocab_size)
            return drafts
        except Exception as error:
            if len(runs) > 1:
                return [draft for run in runs for draft in self._propose([run])]
            runs[0].drafter_failed(error)
            return [EMPTY_DRAFT]

    def _proposal(self, run: RunningRequest) -> Proposal:
        start = len(run.tokens)
        return Proposal(
            slot=run.slot,
            tokens=run.tokens,
            limit=min(self.policy.limit, run.draft_room),
            sampler=run.sampler,
            draw=lambda law, offset: run.rule.draw(law, run.noise, start, offset),
            proceed=lambda survival, offset: (
                self.policy.proceed(survival, offset, start) or (offset == 0 and run.acceptance.due)
            ),
        )

    def _judge(self, part: _Part, rows: Rows) -> Step:
        """Verifies one request's draft and commits the outcome."""
        run, tokens, draft = part.run, part.tokens, part.draft
        laws = run.sampler.laws(tokens, draft.tokens, rows)
        error: RequestError | None = None
        try:
            verdict = run.rule.verify(laws, draft, run.noise, len(tokens))
        except RequestError as failure:
            error = failure
            verdict = self._judge_before(run, laws, draft)
        step = run.commit(draft, verdict, rows)
        run.acceptance.observe(len(draft), verdict.accepted)
        self._observe(run, tokens, draft, verdict)
        # A rule that reads rows beyond its cut may have met the fault where the text does not go.
        if error is not None and run.finish_reason is None and verdict.token < 0:
            failed = run.fail(error)
            return replace(
                step,
                text=step.text + failed.text,
                finish_reason=failed.finish_reason,
                completion=failed.completion,
            )
        return step

    @staticmethod
    def _judge_before(run: RunningRequest, laws: Laws, draft: Draft) -> Verdict:
        """Verifies the part of a draft before the row that is no law, with the same coins and no bonus token.

        Plain decoding would emit that part and fail at that row. The bonus law is one-hot at -1, "no token".
        """
        fault = laws.fault
        assert fault is not None
        sound = [*(laws[i] for i in range(fault)), Distribution.one_hot(-1)]
        return run.rule.verify(sound, draft.cut(fault), run.noise, len(run.tokens))

    def _observe(self, run: RunningRequest, tokens: np.ndarray, draft: Draft, verdict: Verdict) -> None:
        if not run.speculate or not len(draft):
            return
        assert self._draft_session is not None
        try:
            self._draft_session.observe(run.slot, tokens, draft, verdict)
        except Exception as error:
            run.drafter_failed(error)


def _check(draft: Draft, proposal: Proposal, vocab_size: int) -> None:
    if len(draft) > proposal.limit:
        raise DraftError(f"draft has {len(draft)} tokens; the limit was {proposal.limit}")
    draft.check(vocab_size)


def _backend_error(error: Exception, run: RunningRequest) -> RequestError:
    failure = BackendError(f"the target's pass failed at position {len(run.tokens)}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
