"""The exact law of a random procedure, by enumeration instead of by sampling.

A procedure that gets its randomness from a `Noise` is a deterministic function of its coins, and it is piecewise
constant in each of them. `enumerate_law` runs it once for every piece: a coin is an interval, not a number, and a
comparison with a threshold inside the interval splits it in two. Nothing is sampled and no threshold is guessed,
so the law is exact to float rounding, for the shipped rules and for any mutant alike. A key that is read twice is the
same coin with the same interval: a rule that re-reads one in the next block is seen to do so.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NoReturn, TypeAlias, TypeVar

import numpy as np
from jaxtyping import Float, Int, config
from scipy.stats import chi2

import draftproof.rules as shipped_rules
from draftproof.distribution import Distribution
from draftproof.noise import CounterNoise, Lane, Noise
from draftproof.rules import Rule
from draftproof.sampling import Sampler
from draftproof.types import Draft, as_tokens

Text: TypeAlias = tuple[int, ...]
Table: TypeAlias = Callable[[Text], Sequence[float]]
"""A model: the text so far -> probabilities of the next token."""

Step: TypeAlias = Callable[["Case", Text, Noise], Text]
"""One iteration of speculative decoding: (case, text so far, noise) -> the tokens it emits."""

StepFactory: TypeAlias = Callable[[], Step]
"""Makes a step with fresh state, for one text."""

Outcome = TypeVar("Outcome", bound=Hashable)

EXACT = 1e-12


class Races(Exception):
    """The procedure asked for exponentials: it is proven by identity with plain decoding, not by enumeration."""


class Coin(float):
    """A uniform of which only an interval is known, times a factor. It can be scaled and compared, nothing else.

    It is a float so that it passes for one, but its value is NaN, so that code which uses it as a number goes wrong
    in plain sight.
    """

    __array_ufunc__ = None
    _tree: BranchingNoise
    _key: Hashable
    _factor: float

    @classmethod
    def of(cls, tree: BranchingNoise, key: Hashable, factor: float = 1.0) -> Coin:
        self = cls("nan")
        self._tree, self._key, self._factor = tree, key, factor
        return self

    def _scaled(self, factor: float) -> Coin:
        if not 0.0 <= factor < math.inf:
            raise TypeError(f"a coin can be scaled by a non-negative number, not by {factor}")
        return Coin.of(self._tree, self._key, factor)

    def _below(self, threshold: object) -> Any:
        if isinstance(threshold, np.ndarray):
            return np.array([self._below(each) for each in threshold.ravel()], dtype=bool).reshape(threshold.shape)
        if isinstance(threshold, Coin) or not isinstance(threshold, int | float | np.number):
            raise TypeError(f"a coin can be compared with numbers, not with {threshold!r}")
        value = float(threshold)
        if math.isnan(value):
            return False
        if self._factor == 0.0:
            return value > 0.0
        return self._tree.decide(self._key, value / self._factor)

    def _above(self, threshold: object) -> Any:
        if isinstance(threshold, float | np.floating) and math.isnan(threshold):
            return False
        below = self._below(threshold)
        return ~below if isinstance(below, np.ndarray) else not below

    # "At a threshold" has measure zero, so that < and <= are one branch; injected noise tells them apart.
    __lt__ = __le__ = _below
    __gt__ = __ge__ = _above

    def __mul__(self, other: Any) -> Coin:
        return self._scaled(self._factor * float(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Coin:
        return self._scaled(self._factor / float(other))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> int:
        if function is not np.searchsorted or args[1] is not self:
            raise TypeError(f"a coin cannot go into {function.__name__}")
        edges = args[0].tolist()
        # The first edge above the coin, whichever the side: between two edges both agree.
        return next((place for place, edge in enumerate(edges) if self._below(edge)), len(edges))

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("a coin can be scaled and compared, nothing else")

    __add__ = __radd__ = __sub__ = __rsub__ = __neg__ = __abs__ = __pow__ = __rpow__ = __rtruediv__ = _refuse
    __floordiv__ = __mod__ = __float__ = __int__ = __bool__ = __round__ = __eq__ = __ne__ = _refuse
    __hash__ = float.__hash__


class BranchingNoise:
    """Noise of one run: follows a script of branch decisions, then takes the lower branch and notes the other."""

    def __init__(self, script: Sequence[bool] = ()) -> None:
        self._script = script
        self._trail: list[bool] = []
        self._intervals: dict[Hashable, tuple[float, float]] = {}
        self.weight = 1.0
        self.untried: list[tuple[bool, ...]] = []

    def uniform(self, start: int, offset: int, lane: Lane) -> float:
        return self.coin((start, offset, lane))

    def coin(self, key: Hashable) -> Coin:
        """Returns the coin with this key; the same key gives the same coin."""
        self._intervals.setdefault(key, (0.0, 1.0))
        return Coin.of(self, key)

    def exponentials(self, position: int, ids: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
        raise Races

    def decide(self, key: Hashable, threshold: float) -> bool:
        low, high = self._intervals[key]
        if not low < threshold < high:
            return threshold >= high
        place = len(self._trail)
        below = self._script[place] if place < len(self._script) else True
        if place >= len(self._script):
            self.untried.append((*self._trail, False))
        self._trail.append(below)
        share = (threshold - low) / (high - low)
        self.weight *= share if below else (high - threshold) / (high - low)
        self._intervals[key] = (low, threshold) if below else (threshold, high)
        return below


@contextmanager
def types_unchecked(unless: bool = False) -> Iterator[None]:
    """Turns the run-time type checks off, which take ten times as long as what they check, `unless` told not to.

    For loops whose first pass ran with the checks on.
    """
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", before or not unless)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", before)


def enumerate_law(run: Callable[[BranchingNoise], Outcome], most: int = 500_000) -> dict[Outcome, float]:
    """Returns the exact law of what `run` returns when its coins are independent uniforms on [0, 1).

    Args:
        run: the procedure; it must be a function of its coins alone.
        most: how many branches are too many.
    """
    law: defaultdict[Outcome, float] = defaultdict(float)
    untried: list[tuple[bool, ...]] = [()]
    leaves = 0
    while untried:
        noise = BranchingNoise(untried.pop())
        with types_unchecked(unless=leaves == 0):
            law[run(noise)] += noise.weight
        untried += noise.untried
        leaves += 1
        if leaves > most:
            raise RuntimeError(f"more than {most} branches; use a smaller vocabulary or draft")
    return dict(law)


@dataclass(frozen=True, eq=False)
class Case:
    """A target, a drafter, and how the user samples.

    Attributes:
        name: for the test's id.
        vocab: vocabulary size.
        k: draft length.
        target: the target's probabilities by text.
        draft: the drafter's.
        sampler: the user's parameters.
        draft_sampler: what the drafter samples with; None: the same.
        prompt: the text at the start.
        prompt_length: how much of it counts as prompt, for penalties; None: all.
        deterministic: whether the drafter proposes its likeliest token and reports no law.
    """

    name: str
    vocab: int
    k: int
    target: Table
    draft: Table
    sampler: Sampler = field(default_factory=Sampler)
    draft_sampler: Sampler | None = None
    prompt: Text = (0,)
    prompt_length: int | None = None
    deterministic: bool = False
    _laws: dict[tuple[str, int, Text], tuple[Distribution, Sampler]] = field(
        default_factory=dict, init=False, repr=False
    )

    def __str__(self) -> str:
        return f"{self.name}-V{self.vocab}-k{self.k}"

    def law(self, which: str, history: Text, sampler: Sampler) -> Distribution:
        """Returns the law that `sampler` makes of the "target"'s or the "draft"'s row after `history`."""
        key = (which, id(sampler), history)
        if key not in self._laws:
            with np.errstate(divide="ignore"):
                row = np.log(np.asarray((self.target if which == "target" else self.draft)(history), dtype=float))
            prompt_length = len(self.prompt) if self.prompt_length is None else self.prompt_length
            bound = sampler.bind(prompt_length, (), self.vocab)
            # The sampler is kept so that its id is not given to another one.
            self._laws[key] = bound.law(as_tokens(history), row), sampler
        return self._laws[key][0]

    def p(self, history: Text) -> Distribution:
        """Returns the target's law."""
        return self.law("target", history, self.sampler)

    def q(self, history: Text) -> Distribution:
        """Returns the drafter's law."""
        return self.law("draft", history, self.sampler if self.draft_sampler is None else self.draft_sampler)

    def of_length(self, k: int) -> Case:
        """Returns the case with another draft length."""
        return replace(self, k=k)


class Iteration:
    """One iteration as the engine does it; a mutant overrides the part that it gets wrong."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def __call__(self, case: Case, text: Text, noise: Noise) -> Text:
        draft = self.propose(case, text, noise)
        tokens = tuple(draft.tokens.tolist())
        rows = [self.row(case, text, tokens, i) for i in range(len(tokens) + 1)]
        verdict = self.rule.verify(rows, draft, noise, len(text))
        return (*tokens[: verdict.accepted], verdict.token)

    def propose(self, case: Case, text: Text, noise: Noise) -> Draft:
        """Returns the draft that follows `text`."""
        tokens: list[int] = []
        laws: list[Distribution] = []
        for i in range(case.k):
            context = (*text, *tokens)
            q = case.q(context)
            if not self.proceed(i, q, laws, tokens):
                break
            token = int(np.argmax(q.dense(case.vocab))) if case.deterministic else self.draw(q, noise, len(text), i)
            declared = self.declared(case, context, q)
            if not self.keep(token, declared, laws, tokens):
                break
            tokens.append(token)
            laws.append(declared)
        return Draft(as_tokens(tokens), None if case.deterministic else laws)

    def draw(self, q: Distribution, noise: Noise, start: int, i: int) -> int:
        """Returns draft token i."""
        return self.rule.draw(q, noise, start, i)

    def declared(self, case: Case, context: Text, q: Distribution) -> Distribution:
        """Returns the law that the verifier is told a draft token was drawn from."""
        return q

    def proceed(self, i: int, q: Distribution, laws: list[Distribution], tokens: list[int]) -> bool:
        """Returns whether to draw draft token i, from q, after `tokens`."""
        return True

    def keep(self, token: int, q: Distribution, laws: list[Distribution], tokens: list[int]) -> bool:
        """Returns whether a token just drawn from q joins the draft: no exact policy may refuse it."""
        return True

    def row(self, case: Case, text: Text, draft: Text, i: int) -> Distribution:
        """Returns the target's law that judges draft token i, or the bonus."""
        return case.p((*text, *draft[:i]))


def of_rule(rule: Rule) -> StepFactory:
    """Returns the factory of the faithful iteration with a rule."""
    return lambda: Iteration(rule)


def emitted_law(make_step: StepFactory, case: Case, blocks: int = 1) -> dict[Text, float]:
    """Returns the exact law of what `blocks` consecutive iterations emit together."""

    def run(noise: Noise) -> Text:
        step, text = make_step(), case.prompt
        for _ in range(blocks):
            text += step(case, text, noise)
        return text[len(case.prompt) :]

    return enumerate_law(run)


def losslessness_error(law: Mapping[Text, float], case: Case, length: int) -> float:
    """Returns the largest |sum over outputs o that prefix s of P(o) * target(s | o) - target(s)| over s, |s| = length.

    Outputs longer than `length` count by their first `length` tokens.
    """
    ours: list[defaultdict[Text, float]] = [defaultdict(float) for _ in range(length + 1)]
    for output, mass in law.items():
        ours[min(len(output), length)][output[:length]] += mass
    target: dict[Text, float] = {(): 1.0}
    for place in range(length):
        for text, mass in ours[place].items():
            for token, p in enumerate(case.p((*case.prompt, *text)).dense(case.vocab).tolist()):
                ours[place + 1][(*text, token)] += mass * p
        target = {
            (*text, token): mass * p
            for text, mass in target.items()
            for token, p in enumerate(case.p((*case.prompt, *text)).dense(case.vocab).tolist())
        }
    assert set(ours[length]) <= set(target)
    return max(abs(ours[length].get(text, 0.0) - mass) for text, mass in target.items())


def rule_error(make_step: StepFactory, case: Case, blocks: int = 1) -> float:
    """Returns how far `blocks` iterations are from lossless, over all strings as long as they can emit."""
    return losslessness_error(emitted_law(make_step, case, blocks), case, blocks * (case.k + 1))


def mean_length(law: Mapping[Text, float]) -> float:
    """Returns E[tokens emitted]."""
    return sum(mass * len(output) for output, mass in law.items())


def expected_length(case: Case) -> float:
    """Returns E[N] = 1 + sum_j sum_{x_1..x_j} prod_{i<=j} min(p_i, q_i)(x_i), what accepting by ratio earns."""
    total = 1.0
    for j in range(1, case.k + 1):
        for tokens in product(range(case.vocab), repeat=j):
            mass = 1.0
            for i, token in enumerate(tokens):
                context = (*case.prompt, *tokens[:i])
                q = case.q(context)
                drafted = float(token == np.argmax(q.dense(case.vocab))) if case.deterministic else q.prob(token)
                mass *= min(case.p(context).prob(token), drafted)
            total += mass
    return total


def exact_rules() -> list[type[Rule]]:
    """Returns every exported rule that declares itself exact, found by walking the subclasses of `Rule`."""

    def walk(cls: type[Rule]) -> Iterator[type[Rule]]:
        for sub in cls.__subclasses__():
            yield sub
            yield from walk(sub)

    root: type[Rule] = Rule  # type: ignore[type-abstract]
    exported = {getattr(shipped_rules, name) for name in shipped_rules.__all__}
    return sorted({each for each in walk(root) if each in exported and each.exact}, key=lambda each: each.name)


def races(rule: Rule) -> bool:
    """Returns whether a rule draws its tokens by racing on exponentials."""
    law = Distribution(np.array([0.5, 0.5]))
    try:
        enumerate_law(lambda noise: rule.verify([law], Draft(as_tokens([])), noise, 0).token)
    except Races:
        return True
    return False


def plain_text(case: Case, noise: Noise, length: int) -> Text:
    """Returns what plain decoding by race emits: the oracle of the coupled rules."""
    text = case.prompt
    for _ in range(length):
        law = case.p(text)
        text += (law.race(noise.exponentials(len(text), law.support())),)
    return text[len(case.prompt) :]


def speculated_text(make_step: StepFactory, case: Case, noise: Noise, length: int) -> Text:
    """Returns the first `length` tokens that iterating a step emits."""
    step, text = make_step(), case.prompt
    while len(text) - len(case.prompt) < length:
        text += step(case, text, noise)
    return text[len(case.prompt) :][:length]


def identity_failures(make_step: StepFactory, case: Case, seeds: Sequence[int], length: int) -> int:
    """Returns for how many seeds a step's text differs from plain decoding by race with the same noise."""
    failures = 0
    for place, seed in enumerate(seeds):
        with types_unchecked(unless=place == 0):
            plain = plain_text(case, CounterNoise(seed), length)
            failures += plain != speculated_text(make_step, case, CounterNoise(seed), length)
    return failures


def g_test(counts: Int[np.ndarray, "cells"], law: Float[np.ndarray, "cells"]) -> float:
    """Returns the p-value of the G-test that `counts` were drawn from `law`; 0 if an impossible cell was hit."""
    if counts[law == 0.0].any():
        return 0.0
    seen = counts > 0
    g = 2.0 * float((counts[seen] * np.log(counts[seen] / (counts.sum() * law[seen]))).sum())
    return float(chi2.sf(g, int((law > 0.0).sum()) - 1))
