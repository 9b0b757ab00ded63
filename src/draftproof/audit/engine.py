"""Audits an engine by the tokens it emits: bets against the target's law, settled token by token."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from draftproof.audit.conventions import resolve, said
from draftproof.audit.edge import MARGIN, doubtful_edges
from draftproof.audit.laws import Place
from draftproof.audit.ledger import Ledger, check_claim, number
from draftproof.audit.martingale import Evidence
from draftproof.audit.report import Finding, Progress, Report, Verdict, silent
from draftproof.audit.shadow import Shadow, changes_nothing
from draftproof.audit.zoo import residual
from draftproof.distribution import Distribution
from draftproof.divergence import find_divergence
from draftproof.draft.base import Drafter
from draftproof.draft.load import load_drafter
from draftproof.draft.model import ModelDrafter
from draftproof.engine import Engine
from draftproof.errors import UsageError, whole
from draftproof.models.base import Model, Query
from draftproof.models.load import load
from draftproof.models.toy import ToyModel
from draftproof.request import Prompt, Request
from draftproof.sampling import BoundSampler, Sampler
from draftproof.truncation import own_law
from draftproof.types import NO_TOKENS, Tokens

Generate: TypeAlias = Callable[[Tokens, int, int], Sequence[int]]
"""(prompt ids, most tokens, seed) -> the ids it generates; an end-of-sequence id may be among them."""

LAYER = "the tokens it samples, against its own target's laws computed without drafts"

NOISE = 0.02
"""Of log p, in bfloat16 and in quantised models, between passes of different widths."""

ROUNDING = 1e-6
"""Noise that is always reckoned with at the edge of a nucleus: of single precision."""

FAR, MANY = 1e-5, 1000
"""Of more ids than so many, those less likely than this to target and drafter are no evidence, but for their number:
they are most of a large vocabulary, and few of the tokens."""

UNLIKELY = -20.0
"""log p of a text that does not come twice by chance."""

LAGS = 3
"""Tokens of a draft that penalties may miss, at most, for the bets on that."""

NAMING = 1000
"""Tokens that it takes to name most bugs; the verdict comes sooner."""


@dataclass(frozen=True, eq=False)
class _Truth:
    """The target's law at a place, as far as noise lets it be known.

    Attributes:
        law: the law.
        core: the ids it gives positive probability beyond doubt, and not next to none.
        allowed: the ids it may give any, with noise.
        doubtful: the most that noise allows the others of these together.
    """

    law: Distribution
    core: Int[np.ndarray, "core"]
    allowed: Int[np.ndarray, "allowed"]
    doubtful: float = 0.0


def check_engine(
    engine: Engine | Generate | str,
    *,
    target: Model | str | None = None,
    drafter: Drafter | Model | str | None = None,
    sampler: Sampler | None = None,
    prompts: Sequence[Prompt],
    max_tokens: int = 64,
    tokens: int = 5_000,
    alpha: float = 1e-3,
    noise: float | None = None,
    seed: int = 0,
    name: str | None = None,
    naming: int = NAMING,
    progress: Progress = silent,
) -> Report:
    """Returns whether an engine's tokens have the law of its target, as far as they tell.

    The engine generates from the prompts in turn; each token's law is computed by the target, one row a pass, without
    drafts. The audit stops as soon as the evidence suffices, and may be stopped at any time: the chance of "not exact"
    for an exact engine is at most `alpha` all the same.

    Args:
        engine: an `Engine`, or `generate(prompt, max_tokens, seed) -> ids` of any other, or "module:function". The
            prompt comes as ids; the new ids are returned, without the prompt; another seed must give another text.
        target: the model whose law is claimed; None: the engine's.
        drafter: what drafts, for evidence that only it gives: a drafter, a draft model or a spec; None: the engine's.
        sampler: the law that is claimed; None: the engine's, else temperature 1.
        prompts: what to generate from, in turn and again.
        max_tokens: most tokens of one text.
        tokens: how many to look at, at most; greedy text, the same each time, is looked at once for each prompt.
        alpha: P("not exact") for an exact engine.
        noise: standard deviation of log p between the engine's own arithmetic and the reference's: 0 if they are the
            same to rounding, about 0.02 for bfloat16; None: 0 for a toy target, 0.02 for others. Tokens that it may
            carry across the edge of a nucleus are no evidence, but for their number; nor are, of a large vocabulary,
            those that are all but never written.
        seed: seeds of the texts: seed, seed + 1, ...
        name: what to call it.
        naming: at most this many tokens more are looked at once bets have won, to tell which bug it is.
        progress: told how far it is.

    Raises:
        UsageError: if an argument is wrong.
    """
    check_claim(prompts, alpha, noise)
    if whole("tokens", tokens) < 1 or whole("max_tokens", max_tokens) < 1:
        raise UsageError(f"tokens {tokens} and max_tokens {max_tokens} must be positive")
    if whole("naming", naming) < 0:
        raise UsageError(f"naming {naming} is negative; use 0 to stop as soon as something is found")
    named = engine if isinstance(engine, str) else str(getattr(engine, "__name__", type(engine).__name__))
    engine = resolve(engine) if isinstance(engine, str) else engine
    if isinstance(engine, Engine):
        target, sampler = target or engine.target, sampler or engine.sampler
        drafter = engine.drafter if drafter is None else drafter
    if target is None:
        raise UsageError("target is missing; give the model whose law is claimed")
    model = load(target)
    noise = (0.0 if isinstance(model, ToyModel) else NOISE) if noise is None else noise
    audit = _Audit(
        name or named,
        engine,
        model,
        _drafter(drafter, model),
        sampler or Sampler(),
        noise,
        alpha,
        Ledger(alpha, Evidence(noise**2)),
        naming,
    )
    began = time.perf_counter()
    with closing(audit):
        report = audit.run(prompts, max_tokens, tokens, seed, progress)
    return replace(report, seconds=time.perf_counter() - began)


@dataclass(eq=False)
class _Audit:
    """One engine under audit."""

    subject: str
    engine: Engine | Generate
    model: Model
    drafter: Drafter | None
    sampler: Sampler
    noise: float
    alpha: float
    ledger: Ledger
    naming: int
    looked: int = 0
    won_at: int = 0
    texts: int = 0
    drafted: int = 0
    judged: int = 0
    written: int = 0
    before: set[tuple[bytes, tuple[int, ...]]] = field(default_factory=set)
    shadowed: int = 0
    generating: float = 0.0
    passes: float = 0.0

    def __post_init__(self) -> None:
        self.plain = changes_nothing(self.sampler)
        shape = _shape(self.sampler)
        self.again = None if changes_nothing(shape) else shape
        self.residuals, self.summed = np.zeros(self.model.vocab_size), 0
        self.session = self.model.session()
        # Greedy text is judged by the target's choice alone.
        drafter = None if self.sampler.greedy else self.drafter
        self.shadow = None if drafter is None else Shadow(drafter, self.sampler, self.model.vocab_size)

    def close(self) -> None:
        self.session.close()
        if self.shadow is not None:
            self.shadow.close()

    def run(self, prompts: Sequence[Prompt], max_tokens: int, tokens: int, seed: int, progress: Progress) -> Report:
        asked = [Request(prompt).prompt_tokens(self.model) for prompt in prompts]
        try:
            return self._run(asked, max_tokens, tokens, seed, progress)
        except KeyboardInterrupt:
            return self._report(Finding(f"interrupted; until then {self.ledger.told(self.looked)}"), failed=True)
        except Exception as error:
            return self._report(Finding(f"the reference failed: {said(error)}"), failed=True)

    def _run(self, asked: Sequence[Tokens], max_tokens: int, tokens: int, seed: int, progress: Progress) -> Report:
        began, empty = time.perf_counter(), 0
        # Greedy text is the same each time.
        while self.looked < tokens and not (self.sampler.greedy and self.texts >= len(asked)):
            prompt = asked[self.texts % len(asked)]
            start = time.perf_counter()
            try:
                emitted = self._emitted(prompt, max_tokens, seed + self.texts)
            except (Exception, SystemExit) as error:
                what = f"the engine failed at text {self.texts + 1}, seed {seed + self.texts}: {said(error)}"
                return self._report(Finding(what, {"prompt": prompt[-12:].tolist()}), failed=True)
            self.generating += time.perf_counter() - start
            self.texts += 1
            empty = 0 if len(emitted) else empty + 1
            if empty > len(asked):
                return self._report(Finding("the engine generates nothing from any prompt"), failed=True)
            emitted = self._ended(emitted, max_tokens)
            odd = self._odd(prompt, emitted, max_tokens)
            if odd is not None:
                return self._report(odd, failed=True)
            for finding in self._settled(prompt, emitted[: tokens - self.looked]):
                self.looked += 1
                if not self.won_at and (finding is not None or self.ledger.won):
                    self.ledger.mark(self.looked)
                if not self.won_at and finding is None and self.ledger.won:
                    self.won_at, self.ledger.evidence.closed = self.looked, True
                if finding is not None or (self.won_at and self.looked >= self._enough()):
                    return self._report(finding)
            if not self.won_at:
                self.ledger.mark(self.looked)
            spent = time.perf_counter() - began
            progress(
                self.looked / tokens,
                f"{self.looked} tokens in {spent:.0f} s, e-value {number(self.ledger.evidence.log_e)}",
            )
        return self._report(None)

    def _enough(self) -> int:
        """Returns how many tokens to look at for the name of a bug: subtle bugs are alike for longer."""
        return min(self.won_at + self.naming, max(self.naming, 2 * self.won_at))

    def _odd(self, prompt: Tokens, emitted: Sequence[int], max_tokens: int) -> Finding | None:
        """Returns why what an engine returned cannot be judged as a text of its own, or None."""
        shown = {"prompt": prompt[-12:].tolist(), "returned": list(emitted[:24])}
        if len(emitted) > max_tokens:
            if list(emitted[: len(prompt)]) == prompt.tolist():
                return Finding("what it returns begins with the prompt; return the new ids only", shown)
            return Finding(f"it returns {len(emitted)} ids where at most {max_tokens} were asked for", shown)
        key = (prompt.tobytes(), tuple(emitted))
        if key in self.before:
            return Finding(
                "it returned the same text for another seed, which is not fresh evidence and all but impossible by "
                "chance; let its randomness depend on the seed it is given",
                shown,
            )
        return None

    def _emitted(self, prompt: Tokens, max_tokens: int, seed: int) -> Sequence[int]:
        if isinstance(self.engine, Engine):
            done = self.engine.generate(prompt, max_tokens=max_tokens, sampler=self.sampler, seed=seed)
            self.drafted += done.counts.num_draft_tokens
            self.judged += done.counts.num_accepted_tokens + done.counts.num_drafts
            self.written += len(done.tokens)
            # What is judged at most: each accepted token, and one that follows each draft.
            if self.judged:
                self.ledger.evidence.acting = min(Evidence.acting, self.judged / max(self.written, 1))
            return done.tokens
        found = np.asarray(self.engine(prompt.copy(), max_tokens, seed)).reshape(-1)
        if len(found) and found.dtype.kind not in "iu":
            raise UsageError(f"it returned {found.tolist()!r:.100}, which are no ids; return whole numbers")
        return found.tolist()

    def _ended(self, emitted: Sequence[int], max_tokens: int) -> list[int]:
        """Returns the ids with the end of text that a shorter one stands for, if it was left out and is one id only.

        Without it, tokens would be seen on the condition that they are no end of text, and bets could be won on that.
        """
        ends = self.model.eos_ids
        if len(emitted) >= max_tokens or len(ends) != 1 or (len(emitted) and emitted[-1] in ends):
            return list(emitted)
        return [*emitted, *ends]

    def _settled(self, prompt: Tokens, emitted: Sequence[int]) -> Iterator[Finding | None]:
        """Yields, for each token in turn, what is wrong with it for sure; the bets on it are settled."""
        bound = self.sampler.bind(len(prompt), self.model.eos_ids, self.model.vocab_size)
        text, start_p = prompt, self.ledger.log_p
        before: tuple[Distribution, Distribution | None] | None = None
        if self.shadow is not None:
            self.shadow.begin(prompt)
        for token in emitted:
            start = time.perf_counter()
            row = self.session.score([Query(0, text, NO_TOKENS)])[0][0]
            drafted = None if self.shadow is None else self.shadow.laws(text, bound)
            self.shadowed += drafted is not None and drafted[0] is not None
            self.passes += time.perf_counter() - start
            if not 0 <= token < self.model.vocab_size:
                yield Finding(f"it emits id {token}, which the target's vocabulary lacks", self._where(text, token))
                return
            if self.sampler.greedy:
                yield self._greedy(bound, prompt, text, token, row)
            else:
                truth = self._truth(bound, text, row, None if drafted is None else drafted[0])
                yield self._sampled(truth, bound, text, token, row, before, drafted)
                before = truth.law, None if drafted is None else drafted[0]
            text = np.append(text, np.int32(token))
        if self.ledger.log_p - start_p < UNLIKELY:
            self.before.add((prompt.tobytes(), tuple(emitted)))

    def _greedy(
        self, bound: BoundSampler, prompt: Tokens, text: Tokens, token: int, row: Float[np.ndarray, "vocab"]
    ) -> Finding | None:
        scores = bound.scores(text, row)
        best = int(np.argmax(scores))
        if token == best:
            return None
        so_far = text[len(prompt) :].tolist()
        parted = find_divergence(self.model, bound, 0, prompt, [*so_far, best], [*so_far, token])
        assert parted is not None
        if parted.near_tie or parted.gap <= MARGIN * math.sqrt(2.0) * self.noise:
            self.ledger.near_ties += 1
            return None
        where = self._where(text, token) | {
            "the target's choice": best,
            "its lead, logits": parted.gap,
            "rounding, logits": parted.rounding,
        }
        return Finding(
            f"greedy text departs from the target's choice by {parted.gap:.3g} logits, where rounding changes "
            f"{parted.rounding:.2g}",
            where,
            p_value=0.0,
        )

    def _sampled(
        self,
        truth: _Truth,
        bound: BoundSampler,
        text: Tokens,
        token: int,
        row: Float[np.ndarray, "vocab"],
        before: tuple[Distribution, Distribution | None] | None,
        drafted: tuple[Distribution | None, Distribution | None] | None,
    ) -> Finding | None:
        """Settles the bets on a token; returns a finding if the target never writes it there."""
        if not _within(token, truth.allowed):
            where = self._where(text, token) | {"the target's ids there": len(truth.allowed)}
            return Finding("it emits a token to which the target's law gives probability 0", where, p_value=0.0)
        at = _place(token, truth.core)
        self.ledger.edge(at is None, truth.doubtful)
        if at is None:
            return None
        p = truth.law.prob_of(truth.core)
        q, raw = drafted or (None, None)
        uncounted, twice = self._miscounted(bound, text, row, truth)
        place = Place(
            p=p / p.sum(),
            q=None if q is None else q.prob_of(truth.core),
            raw=None if raw is None else raw.prob_of(truth.core),
            before=None if before is None else before[0].prob_of(truth.core),
            unprocessed=None if self.plain else own_law(row[truth.core]),
            drafted_before=None if before is None or before[1] is None else before[1].prob_of(truth.core),
            usual=self.residuals[truth.core] / self.summed if self.summed else None,
            again=self.again,
            uncounted=uncounted,
            twice=twice,
        )
        self.ledger.settle(place, at, lambda: self._where(text, token))
        self.residuals[truth.core] += place.p if place.q is None else residual(place.p, place.q)
        self.summed += 1
        return None

    def _miscounted(
        self, bound: BoundSampler, text: Tokens, row: Float[np.ndarray, "vocab"], truth: _Truth
    ) -> tuple[Float[np.ndarray, "core"] | None, Float[np.ndarray, "core"] | None]:
        """Returns the target's law of the core if penalties do not count a draft, or count a token before it twice.

        How long the draft is by now is not known: the mean over a few lengths. None where it does not matter.
        """
        own, written = self.sampler, len(text) - bound.prompt_length
        if own.repetition_penalty == 1.0 and own.frequency_penalty == 0.0 and own.presence_penalty == 0.0:
            return None, None
        if written < LAGS:
            return None, None

        def mean(*laws: Distribution) -> Float[np.ndarray, "core"]:
            found: Float[np.ndarray, "core"] = np.mean([law.prob_of(truth.core) for law in laws], axis=0)
            return found

        fewer = [bound.law(text[:-lag], row) for lag in range(1, LAGS)]
        more = [bound.law(np.append(text, text[-lag]), row) for lag in range(1, LAGS + 1)]
        return mean(truth.law, *fewer), mean(*more)

    def _truth(
        self, bound: BoundSampler, text: Tokens, row: Float[np.ndarray, "vocab"], drafted: Distribution | None
    ) -> _Truth:
        law = bound.law(text, row)
        ids = law.support()[law.probs > 0.0]
        own, noise = bound.sampler, max(self.noise, ROUNDING)
        if not own.truncates:
            if len(ids) <= MANY:
                return _Truth(law, ids, ids)
            likely = np.zeros(self.model.vocab_size, dtype=bool)
            for each in (law,) if drafted is None else (law, drafted):
                likely[each.support()[each.probs >= FAR]] = True
            core = ids[likely[ids]]
            rest = max(1.0 - float(law.prob_of(core).sum()), 0.0)
            return _Truth(law, core, ids, min(rest * (1.0 + MARGIN * noise), 1.0))
        scores = bound.scores(text, row)
        certain, possible = doubtful_edges(scores, own, MARGIN * noise, noise)
        core, allowed = np.intersect1d(certain, ids), np.union1d(possible, ids)
        # Of tokens in doubt, any may be kept: no more than all of them, over the fewest that are kept beside them.
        others = np.setdiff1d(allowed, core)
        return _Truth(law, core, allowed, _share(scores, others, core) if len(others) else 0.0)

    def _where(self, text: Tokens, token: int) -> dict[str, Any]:
        names = self.model.tokenizer.token_name
        tail = "".join(names(each) for each in text[-12:].tolist())
        inside = 0 <= token < self.model.vocab_size
        return {
            "after": text[-12:].tolist(),
            "which reads": tail,
            "token": token,
            "name": names(token) if inside else "?",
        }

    def _report(self, finding: Finding | None, failed: bool = False) -> Report:
        if self.won_at:
            finding, failed = self.ledger.finding(), False
        greedy, looked = self.sampler.greedy, self.won_at or self.looked
        powers = () if greedy else self.ledger.powers()
        numbers = {
            "tokens": looked,
            "tokens_for_the_name": self.looked,
            "texts": self.texts,
            "tokens_the_drafter_would_draft": None if self.shadow is None else self.shadowed,
            "draft_tokens": self.drafted if isinstance(self.engine, Engine) else None,
            "generation_seconds": self.generating,
            "reference_seconds": self.passes,
        } | self.ledger.numbers(greedy)
        if finding is None:
            verdict, summary = self.ledger.verdict(looked, greedy)
            if self.shadow is not None and self.drafter is not None and not self.shadowed:
                summary += f"; the drafter ({self.drafter.describe()}) would draft nothing here"
        else:
            verdict, summary = (Verdict.INCONCLUSIVE if failed else Verdict.NOT_EXACT), finding.what
        return Report(
            self.subject,
            "engine",
            LAYER,
            verdict,
            summary,
            self.alpha,
            f"{looked} tokens of {self.texts} texts",
            () if finding is None else (finding,),
            powers,
            numbers,
            () if greedy else self.ledger.plots(),
        )


def _drafter(drafter: Drafter | Model | str | None, model: Model) -> Drafter | None:
    if drafter is None:
        return None
    return load_drafter(ModelDrafter(drafter) if isinstance(drafter, Model) else drafter, model)


def _shape(sampler: Sampler) -> Sampler:
    """Returns a sampler's temperature and truncation alone."""
    return Sampler(temperature=sampler.temperature, top_k=sampler.top_k, top_p=sampler.top_p, min_p=sampler.min_p)


def _within(token: int, ids: Int[np.ndarray, "n"]) -> bool:
    return _place(token, ids) is not None


def _place(token: int, ids: Int[np.ndarray, "n"]) -> int | None:
    """Returns where a token is among sorted ids."""
    at = int(np.searchsorted(ids, token))
    return at if at < len(ids) and int(ids[at]) == token else None


def _share(scores: Float[np.ndarray, "vocab"], some: Int[np.ndarray, "n"], others: Int[np.ndarray, "m"]) -> float:
    """Returns the probability of some ids among them and others."""
    weights = np.exp(scores - scores[np.concatenate([some, others])].max())
    return float(weights[some].sum() / (weights[some].sum() + weights[others].sum()))
