"""Real bugs of speculative decoders, each as code, with the layer of tests that can see it.

Every one must be rejected there, and the faithful procedure must pass on the same case. `MUTANTS` is plain data, so
that other tests, of kernels or of an auditor, can run the same zoo.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from jaxtyping import Float, Int

from draftproof.distribution import Distribution
from draftproof.noise import CounterNoise, Lane, Noise
from draftproof.rules import BlockRule, CoupledRule, Rule, TokenRule
from draftproof.rules.coupled import race
from draftproof.sampling import Sampler
from draftproof.truncation import truncated_law
from draftproof.types import Draft, Verdict
from tests.laws import Case, Iteration, StepFactory, Text, of_rule
from tests.strategies import BLOCK_WITNESS, GREEDY, MASKED, NUCLEUS, PENALISED, TEMPERED, TRUNCATED, family

PLAIN = Sampler()
SHARP = Sampler(temperature=0.7)


class Layer(Enum):
    """Which test sees a bug."""

    LAW = "the law of one block, by enumeration"
    TWO_BLOCKS = "the law of two consecutive blocks, by enumeration; one block looks right"
    EDGE = "a coin of exactly 0; the law is right almost surely"
    IDENTITY = "identity with plain decoding under shared noise"
    COUPLING = "the probability that draft and target agree; the text is right"
    COUNT = "frequencies over many seeds: it shares a race's noise, which has no finite enumeration"
    REPLAY = "the same seed again, with other work in between; the law is right"


@dataclass(frozen=True)
class Mutant:
    """A bug.

    Attributes:
        name: what it does.
        layer: which test rejects it.
        step: makes one iteration that has it.
        cases: what it is visible on, at least on one of them.
        rule: the faulty rule, if the fault is in a rule.
        seen: a report of it, or of a sibling.
    """

    name: str
    layer: Layer
    step: StepFactory
    cases: tuple[Case, ...]
    rule: Rule | None = None
    seen: str = ""

    def __str__(self) -> str:
        return self.name


def _ordinary(vocab: int, k: int, *names: str) -> tuple[Case, ...]:
    return tuple(family(name, vocab, k) for name in names)


ORDINARY = _ordinary(3, 2, "far", "zeros", "near", "tiny")


class FaultyTokenRule(TokenRule):
    """The token rule, taken apart: a mutant overrides the piece it gets wrong."""

    exact = False

    def verify(self, p: Sequence[Distribution], draft: Draft, noise: Noise, start: int) -> Verdict:
        k = len(draft)
        for i, x in enumerate(draft.tokens.tolist()):
            q = draft.law(i)
            if not self.accepts(i, p[i].prob(x), q.prob(x), noise.uniform(start, i, Lane.ACCEPT), p[i], x):
                return self.rejected(p, q, i, noise, start)
        return Verdict(k, self.bonus(p, k).sample(noise.uniform(start, k, Lane.FINAL)))

    def accepts(self, i: int, p: float, q: float, u: float, law: Distribution, x: int) -> bool:
        return u * q < p

    def rejected(self, p: Sequence[Distribution], q: Distribution, i: int, noise: Noise, start: int) -> Verdict:
        return Verdict(i, self.recover(p[i], q).sample(self.final(noise, start, i)))

    def recover(self, p: Distribution, q: Distribution) -> Distribution:
        return p.residual(q)

    def final(self, noise: Noise, start: int, i: int) -> float:
        return noise.uniform(start, i, Lane.FINAL)

    def bonus(self, p: Sequence[Distribution], k: int) -> Distribution:
        return p[k]


class ResidualIsP(FaultyTokenRule):
    def recover(self, p: Distribution, q: Distribution) -> Distribution:
        return p


class AbsoluteResidual(FaultyTokenRule):
    def recover(self, p: Distribution, q: Distribution) -> Distribution:
        weights = np.abs(p.probs - q.prob_of(p.support()))
        return Distribution(weights, p.ids) if weights.sum() > 0.0 else p


class SoftmaxResidual(FaultyTokenRule):
    def recover(self, p: Distribution, q: Distribution) -> Distribution:
        return Distribution(np.exp(np.maximum(p.probs - q.prob_of(p.support()), 0.0)), p.ids)


class AcceptsBelowP(FaultyTokenRule):
    def accepts(self, i: int, p: float, q: float, u: float, law: Distribution, x: int) -> bool:
        return u < p


class NoCoin(FaultyTokenRule):
    def accepts(self, i: int, p: float, q: float, u: float, law: Distribution, x: int) -> bool:
        return p >= q


class AcceptsAtRatio(FaultyTokenRule):
    def accepts(self, i: int, p: float, q: float, u: float, law: Distribution, x: int) -> bool:
        return u <= p / q


class SwappedRatio(FaultyTokenRule):
    def accepts(self, i: int, p: float, q: float, u: float, law: Distribution, x: int) -> bool:
        return u * p < q


class Lenient(FaultyTokenRule):
    def accepts(self, i: int, p: float, q: float, u: float, law: Distribution, x: int) -> bool:
        return u * q < 1.2 * p


class AcceptsAll(FaultyTokenRule):
    def accepts(self, i: int, p: float, q: float, u: float, law: Distribution, x: int) -> bool:
        return True


class FirstDraftUnchecked(FaultyTokenRule):
    def accepts(self, i: int, p: float, q: float, u: float, law: Distribution, x: int) -> bool:
        return i == 0 or u * q < p


class GreedyBranch(FaultyTokenRule):
    def accepts(self, i: int, p: float, q: float, u: float, law: Distribution, x: int) -> bool:
        return x == int(law.support()[np.argmax(law.probs)])

    def recover(self, p: Distribution, q: Distribution) -> Distribution:
        return Distribution.one_hot(int(p.support()[np.argmax(p.probs)]))


class BonusFromRowBefore(FaultyTokenRule):
    def bonus(self, p: Sequence[Distribution], k: int) -> Distribution:
        return p[max(k - 1, 0)]


class RejectedTokenStays(FaultyTokenRule):
    def rejected(self, p: Sequence[Distribution], q: Distribution, i: int, noise: Noise, start: int) -> Verdict:
        return Verdict(i + 1, p[i].residual(q).sample(self.final(noise, start, i)))


class CorrectionFromNextRow(FaultyTokenRule):
    def rejected(self, p: Sequence[Distribution], q: Distribution, i: int, noise: Noise, start: int) -> Verdict:
        return Verdict(i, p[i + 1].residual(q).sample(self.final(noise, start, i)))


class ArgmaxDraftAsSample(FaultyTokenRule):
    def draw(self, law: Distribution, noise: Noise, start: int, offset: int) -> int:
        return int(law.support()[np.argmax(law.probs)])


class BestOfTwoDrafts(FaultyTokenRule):
    def draw(self, law: Distribution, noise: Noise, start: int, offset: int) -> int:
        both = [law.sample(noise.uniform(start, offset + beam, Lane.DRAFT)) for beam in (0, 1000)]
        return max(both, key=law.prob)


class FinalSharesDraftCoin(FaultyTokenRule):
    def final(self, noise: Noise, start: int, i: int) -> float:
        return noise.uniform(start, i, Lane.DRAFT)


class FinalSharesAcceptCoin(FaultyTokenRule):
    def final(self, noise: Noise, start: int, i: int) -> float:
        return noise.uniform(start, i, Lane.ACCEPT)


class AcceptSharesDraftCoin(FaultyTokenRule):
    def verify(self, p: Sequence[Distribution], draft: Draft, noise: Noise, start: int) -> Verdict:
        return super().verify(p, draft, _AcceptFromDraftLane(noise), start)


@dataclass(frozen=True)
class _AcceptFromDraftLane:
    noise: Noise

    def uniform(self, start: int, offset: int, lane: Lane) -> float:
        return self.noise.uniform(start, offset, Lane.DRAFT if lane is Lane.ACCEPT else lane)

    def exponentials(self, position: int, ids: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
        return self.noise.exponentials(position, ids)


class SharedRace(FaultyTokenRule):
    """Draft and residual race on the same exponentials, with a fresh accept coin."""

    def draw(self, law: Distribution, noise: Noise, start: int, offset: int) -> int:
        return race(law, noise, start + offset)

    def rejected(self, p: Sequence[Distribution], q: Distribution, i: int, noise: Noise, start: int) -> Verdict:
        return Verdict(i, race(p[i].residual(q), noise, start + i))


class FaultyBlockRule(BlockRule):
    """The block rule, taken apart: a mutant overrides the piece it gets wrong."""

    exact = False

    def verify(self, p: Sequence[Distribution], draft: Draft, noise: Noise, start: int) -> Verdict:
        k = len(draft)
        reach = [1.0]
        for i, x in enumerate(draft.tokens.tolist()):
            reach.append(self.capped(reach[i] * p[i].prob(x) / draft.law(i).prob(x), i, k))
        tau = 0
        for i in range(1, k + 1):
            if self.coin(noise, start, i - 1) < self.threshold(p, draft, reach, i):
                tau = i
            elif self.stops():
                break
        u = noise.uniform(start, tau, Lane.FINAL)
        if tau == k:
            return Verdict(k, p[k].sample(u))
        return Verdict(tau, p[tau].residual(draft.law(tau), self.scale(reach, tau)).sample(u))

    def threshold(self, p: Sequence[Distribution], draft: Draft, reach: Sequence[float], i: int) -> float:
        if i == len(draft):
            return reach[i]
        mass = float(np.maximum(reach[i] * p[i].probs - draft.law(i).prob_of(p[i].support()), 0.0).sum())
        return mass / (mass + 1.0 - reach[i]) if mass + 1.0 - reach[i] > 0.0 else 1.0

    def coin(self, noise: Noise, start: int, i: int) -> float:
        return noise.uniform(start, i, Lane.ACCEPT)

    def stops(self) -> bool:
        return False

    def capped(self, reach: float, i: int, k: int) -> float:
        return min(1.0, reach)

    def scale(self, reach: Sequence[float], tau: int) -> float:
        return reach[tau]


class BlockCoinsByPosition(FaultyBlockRule):
    """Coins keyed by absolute position: those beyond the cut come back in the next block."""

    def coin(self, noise: Noise, start: int, i: int) -> float:
        return noise.uniform(0, start + i, Lane.ACCEPT)


class BlockStopsAtFirst(FaultyBlockRule):
    def stops(self) -> bool:
        return True


class BlockWithTokenResidual(FaultyBlockRule):
    def scale(self, reach: Sequence[float], tau: int) -> float:
        return 1.0


class BlockUncapped(FaultyBlockRule):
    def capped(self, reach: float, i: int, k: int) -> float:
        return reach

    def threshold(self, p: Sequence[Distribution], draft: Draft, reach: Sequence[float], i: int) -> float:
        return min(1.0, max(0.0, super().threshold(p, draft, reach, i)))


class BlockLastRatioAlone(FaultyBlockRule):
    def threshold(self, p: Sequence[Distribution], draft: Draft, reach: Sequence[float], i: int) -> float:
        if i < len(draft):
            return super().threshold(p, draft, reach, i)
        x = int(draft.tokens[-1])
        return min(1.0, p[i - 1].prob(x) / draft.law(i - 1).prob(x))


class CoupledByOffset(CoupledRule):
    """Noise keyed by the place in the block, not in the text: another draft length gives another text."""

    exact = False

    def verify(self, p: Sequence[Distribution], draft: Draft, noise: Noise, start: int) -> Verdict:
        return super().verify(p, draft, noise, 0)

    def draw(self, law: Distribution, noise: Noise, start: int, offset: int) -> int:
        return race(law, noise, offset)


class CoupledRedraws(CoupledRule):
    """Draws again, with a coin of its own, where the draft was not matched."""

    exact = False

    def verify(self, p: Sequence[Distribution], draft: Draft, noise: Noise, start: int) -> Verdict:
        verdict = super().verify(p, draft, noise, start)
        if verdict.accepted == len(draft):
            return verdict
        return Verdict(verdict.accepted, p[verdict.accepted].sample(noise.uniform(start, verdict.accepted, Lane.FINAL)))


class CoupledOnDraftSupport(CoupledRule):
    """Races only over what the drafter could have proposed."""

    exact = False

    def verify(self, p: Sequence[Distribution], draft: Draft, noise: Noise, start: int) -> Verdict:
        cut = list(p)
        for i in range(len(draft)):
            probs = np.where(draft.law(i).prob_of(p[i].support()) > 0.0, p[i].probs, 0.0)
            cut[i] = Distribution(probs, p[i].ids) if probs.sum() > 0.0 else p[i]
        return super().verify(cut, draft, noise, start)


class CoupledLenient(CoupledRule):
    """Keeps a draft token that lost the race by little."""

    exact = False

    def verify(self, p: Sequence[Distribution], draft: Draft, noise: Noise, start: int) -> Verdict:
        for i, x in enumerate(draft.tokens.tolist()):
            times = noise.exponentials(start + i, p[i].support())
            y = p[i].race(times)
            if y != x and not times[x] * p[i].prob(y) < 1.2 * times[y] * p[i].prob(x):
                return Verdict(i, y)
        return Verdict(len(draft), race(p[len(draft)], noise, start + len(draft)))


class CoupledOwnNoise(CoupledRule):
    """The draft races on noise of its own: the text is right, and few drafts match."""

    exact = False

    def draw(self, law: Distribution, noise: Noise, start: int, offset: int) -> int:
        return race(law, noise, start + offset + 1_000_000)


class CoupledByRank(CoupledRule):
    """Exponentials handed out by place in the support, not by id: laws cut differently no longer agree."""

    exact = False

    def verify(self, p: Sequence[Distribution], draft: Draft, noise: Noise, start: int) -> Verdict:
        return super().verify(p, draft, _ByRank(noise), start)

    def draw(self, law: Distribution, noise: Noise, start: int, offset: int) -> int:
        return race(law, _ByRank(noise), start + offset)


@dataclass(frozen=True)
class _ByRank:
    noise: Noise

    def uniform(self, start: int, offset: int, lane: Lane) -> float:
        return self.noise.uniform(start, offset, lane)

    def exponentials(self, position: int, ids: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
        return self.noise.exponentials(position, np.arange(len(ids)))


def _sampled_again(probs: Float[np.ndarray, "n"], sampler: Sampler) -> Distribution:
    with np.errstate(divide="ignore"):
        logits = np.log(probs)
    return truncated_law(logits, float(logits.max()), sampler)


class RawDraftLaw(Iteration):
    """The verifier is told the draft's law before truncation."""

    def declared(self, case: Case, context: Text, q: Distribution) -> Distribution:
        return case.law("draft", context, PLAIN)


class DraftTemperature(Iteration):
    """The draft is drawn at another temperature than the law the verifier is told."""

    def draw(self, q: Distribution, noise: Noise, start: int, i: int) -> int:
        return self.rule.draw(_sampled_again(q.probs, SHARP), noise, start, i)


class DropsUnlikely(Iteration):
    """A token just drawn is dropped because it was unlikely."""

    def keep(self, token: int, q: Distribution, laws: list[Distribution], tokens: list[int]) -> bool:
        return q.prob(token) >= 0.3


class DropsByProduct(Iteration):
    """A token just drawn is dropped by a product of confidences that it is part of."""

    def keep(self, token: int, q: Distribution, laws: list[Distribution], tokens: list[int]) -> bool:
        past = np.prod([law.prob(each) for law, each in zip(laws, tokens, strict=True)])
        return float(past) * q.prob(token) >= 0.15


class AllOrNothing(Iteration):
    """The whole draft is thrown away because of its last token."""

    def propose(self, case: Case, text: Text, noise: Noise) -> Draft:
        draft = super().propose(case, text, noise)
        return draft.cut(0) if draft.law(len(draft) - 1).prob(int(draft.tokens[-1])) < 0.3 else draft


class ProcessorsOnBonusOnly(Iteration):
    """The user's parameters act on the bonus row; drafted rows are judged by the raw law."""

    def row(self, case: Case, text: Text, draft: Text, i: int) -> Distribution:
        sampler = case.sampler if i == len(draft) else PLAIN
        return case.law("target", (*text, *draft[:i]), sampler)


class LastTokenTwice(Iteration):
    """Processors see the last committed token doubled."""

    def row(self, case: Case, text: Text, draft: Text, i: int) -> Distribution:
        return _law_with_history(case, (*text, *draft[:i]), (*text, text[-1], *draft[:i]))


class HistoryWithoutDraft(Iteration):
    """Processors see the committed text at every row of the block."""

    def row(self, case: Case, text: Text, draft: Text, i: int) -> Distribution:
        return _law_with_history(case, (*text, *draft[:i]), text)


class RejectedDraftsCounted(Iteration):
    """Processors go on seeing drafts that were rejected in earlier blocks."""

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self.rejected: Text = ()

    def row(self, case: Case, text: Text, draft: Text, i: int) -> Distribution:
        context = (*text, *draft[:i])
        return _law_with_history(case, context, (*context, *self.rejected))

    def propose(self, case: Case, text: Text, noise: Noise) -> Draft:
        self.proposed = super().propose(case, text, noise)
        return self.proposed

    def __call__(self, case: Case, text: Text, noise: Noise) -> Text:
        emitted = super().__call__(case, text, noise)
        self.rejected += tuple(self.proposed.tokens.tolist())[len(emitted) - 1 :]
        return emitted


def _law_with_history(case: Case, context: Text, history: Text) -> Distribution:
    """Returns the target's law after `context`, processed as if the text so far were `history`."""
    shown = Case("", case.vocab, case.k, lambda _: case.target(context), case.draft, case.sampler, prompt=case.prompt)
    return shown.p(history)


class ThroughSamplerAgain(FaultyTokenRule):
    """Truncates and tempers the residual with the user's parameters."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def recover(self, p: Distribution, q: Distribution) -> Distribution:
        residual = p.residual(q)
        law = _sampled_again(residual.probs, self.sampler)
        return Distribution(law.probs, residual.support()[law.support()])


class ResidualThroughSampler(Iteration):
    """The residual goes through the user's sampler once more."""

    def __call__(self, case: Case, text: Text, noise: Noise) -> Text:
        self.rule = ThroughSamplerAgain(case.sampler)
        return super().__call__(case, text, noise)


class SequentialNoise:
    """Coins in the order they are asked for: whatever else asks shifts all that follow."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def uniform(self, start: int, offset: int, lane: Lane) -> float:
        return self._random.random()

    def exponentials(self, position: int, ids: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
        return np.array([self._random.expovariate(1.0) for _ in ids])


NOISES: dict[str, Callable[[int], Noise]] = {"counter": CounterNoise, "sequential": SequentialNoise}
"""Ways to seed a request: the first is shipped; the second is the fault that only a replay shows."""


def _rule(
    rule: type[Rule], layer: Layer = Layer.LAW, cases: tuple[Case, ...] = ORDINARY, seen: str = "", name: str = ""
) -> Mutant:
    made = rule()
    return Mutant(name or rule.__name__, layer, of_rule(made), cases, made, seen)


def _step(step: type[Iteration], *cases: Case, layer: Layer = Layer.LAW, seen: str = "") -> Mutant:
    return Mutant(step.__name__, layer, lambda: step(TokenRule()), cases, None, seen)


_VLLM = "https://github.com/vllm-project/vllm"
_HF = "https://github.com/huggingface/transformers"

MUTANTS: list[Mutant] = [
    _rule(ResidualIsP),
    _rule(AbsoluteResidual),
    _rule(SoftmaxResidual, seen=f"{_HF}/pull/28508"),
    _rule(AcceptsBelowP),
    _rule(NoCoin),
    _rule(AcceptsAtRatio, Layer.EDGE),
    _rule(SwappedRatio),
    _rule(Lenient),
    _rule(AcceptsAll, seen=f"{_HF}/pull/28508"),
    _rule(FirstDraftUnchecked, seen="https://github.com/ohdearquant/lattice/issues/243"),
    _rule(GreedyBranch, seen="https://github.com/ROCm/ATOM/pull/2318"),
    _rule(BonusFromRowBefore),
    _rule(RejectedTokenStays),
    _rule(CorrectionFromNextRow),
    _rule(ArgmaxDraftAsSample, seen=f"{_HF}/issues/32867"),
    _rule(BestOfTwoDrafts),
    _rule(FinalSharesDraftCoin),
    _rule(FinalSharesAcceptCoin),
    _rule(AcceptSharesDraftCoin),
    _rule(SharedRace, Layer.COUNT),
    _rule(BlockCoinsByPosition, Layer.TWO_BLOCKS),
    _rule(BlockStopsAtFirst),
    _rule(BlockWithTokenResidual, cases=(BLOCK_WITNESS,)),
    _rule(BlockUncapped, cases=_ordinary(3, 3, "clamped", "far")),
    _rule(BlockLastRatioAlone),
    _rule(CoupledByOffset, Layer.IDENTITY),
    _rule(CoupledRedraws, Layer.IDENTITY),
    _rule(CoupledOnDraftSupport, Layer.IDENTITY),
    _rule(CoupledLenient, Layer.IDENTITY),
    _rule(CoupledOwnNoise, Layer.COUPLING),
    _rule(CoupledByRank, Layer.COUPLING),
    _step(ResidualThroughSampler, NUCLEUS),
    _step(RawDraftLaw, TRUNCATED, NUCLEUS, seen=f"{_HF}/issues/47932"),
    _step(DraftTemperature, *ORDINARY),
    _step(DropsUnlikely, *ORDINARY),
    _step(DropsByProduct, *ORDINARY),
    _step(AllOrNothing, *ORDINARY),
    _step(ProcessorsOnBonusOnly, MASKED, seen=f"{_VLLM}/issues/42744"),
    Mutant(
        "FixedTemperatureOnDraftedRows",
        Layer.LAW,
        lambda: ProcessorsOnBonusOnly(TokenRule()),
        (TEMPERED,),
        seen="https://github.com/ROCm/ATOM/pull/2318",
    ),
    Mutant("GreedyOnUntemperedLaws", Layer.LAW, lambda: ProcessorsOnBonusOnly(TokenRule()), (GREEDY,)),
    _step(LastTokenTwice, PENALISED, seen="https://github.com/osaurus-ai/vmlx-swift/issues/357"),
    _step(HistoryWithoutDraft, PENALISED, seen="https://github.com/osaurus-ai/vmlx-swift/issues/357"),
    _step(
        RejectedDraftsCounted,
        PENALISED.of_length(1),
        layer=Layer.TWO_BLOCKS,
        seen="https://github.com/osaurus-ai/vmlx-swift/issues/357",
    ),
    Mutant(
        "SeedConsumedByEmptyRounds",
        Layer.REPLAY,
        of_rule(TokenRule()),
        ORDINARY,
        seen="https://github.com/vllm-project/vllm-ascend/issues/13608",
    ),
]


def at(layer: Layer) -> list[Mutant]:
    """Returns the mutants that a layer must reject."""
    return [mutant for mutant in MUTANTS if mutant.layer is layer]
