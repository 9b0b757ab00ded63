"""How a draft token is accepted: the account of every token's probability, and the procedure itself, many times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Int

from draftproof.distribution import Distribution
from draftproof.draft.base import Drafter, Proposal
from draftproof.errors import UsageError
from draftproof.goodness import g_test
from draftproof.models.base import Model, Query
from draftproof.noise import CounterNoise, Seed
from draftproof.rules.token import TokenRule
from draftproof.sampling import Sampler
from draftproof.types import NO_TOKENS, Draft, Tokens, as_tokens


@dataclass(frozen=True)
class TokenAccount:
    """Where one token's probability comes from; masses, which add up over tokens.

    Attributes:
        token: the id, or None for all others together.
        name: the token for people to read.
        p: the target's probability.
        q: the drafter's probability: how often the token is drafted.
        alpha: P(accepted | drafted) = min(1, p/q); None if it is never drafted.
        accepted: P(drafted and accepted) = min(p, q).
        given_acceptance: P(this token | something was accepted); None if nothing ever is.
        residual: P(this token | the draft was rejected) = max(p - q, 0) / Z; None if nothing ever is rejected.
        output: P(emitted) = accepted + Z * residual, which is p.
    """

    token: int | None
    name: str
    p: float
    q: float
    alpha: float | None
    accepted: float
    given_acceptance: float | None
    residual: float | None
    output: float


@dataclass(frozen=True)
class Explanation:
    """One draft token, accepted or replaced.

    Attributes:
        tokens: the account of each token of either law, in id order.
        acceptance: a = sum min(p, q): how often a draft is accepted.
        residual_mass: Z = sum max(p - q, 0) = 1 - a: how often it is rejected.
        total_variation: the distance of the two laws, 1 - a.
        largest_error: max |output - p|: 0 but for rounding.
    """

    tokens: tuple[TokenAccount, ...]
    acceptance: float
    residual_mass: float
    total_variation: float
    largest_error: float

    def top(self, count: int) -> Explanation:
        """Returns the account of the `count` tokens with the largest p or q, by p, the others added up in one line."""
        ranked = sorted(self.tokens, key=lambda each: -max(each.p, each.q))
        kept, rest = ranked[:count], ranked[count:]
        kept.sort(key=lambda each: -each.p)
        if not rest:
            return replace(self, tokens=tuple(kept))
        drafted, accepted = math.fsum(each.q for each in rest), math.fsum(each.accepted for each in rest)
        others = TokenAccount(
            token=None,
            name=f"{len(rest)} others",
            p=math.fsum(each.p for each in rest),
            q=drafted,
            alpha=accepted / drafted if drafted > 0.0 else None,
            accepted=accepted,
            given_acceptance=_total([each.given_acceptance for each in rest]),
            residual=_total([each.residual for each in rest]),
            output=math.fsum(each.output for each in rest),
        )
        return replace(self, tokens=(*kept, others))

    def as_dict(self) -> dict[str, Any]:
        """Returns the explanation, ready for JSON."""
        return asdict(self) | {"tokens": [asdict(each) for each in self.tokens]}


def explain_laws(p: Distribution, q: Distribution, name: Callable[[int], str] = str) -> Explanation:
    """Returns how drafts from q are turned into tokens with law p.

    Args:
        p: the target's law.
        q: the drafter's law.
        name: a token id for people to read.
    """
    ids: Int[np.ndarray, "n"] = np.union1d(p.support(), q.support())
    target, drafted = p.prob_of(ids), q.prob_of(ids)
    accepted = np.minimum(target, drafted)
    missing = np.maximum(target - drafted, 0.0)
    acceptance, mass = float(accepted.sum()), float(missing.sum())
    residual = p.residual(q).prob_of(ids)
    output = accepted + mass * residual
    return Explanation(
        tokens=tuple(
            TokenAccount(
                token=int(ids[i]),
                name=name(int(ids[i])),
                p=float(target[i]),
                q=float(drafted[i]),
                alpha=min(1.0, float(target[i] / drafted[i])) if drafted[i] > 0.0 else None,
                accepted=float(accepted[i]),
                given_acceptance=float(accepted[i]) / acceptance if acceptance > 0.0 else None,
                residual=float(residual[i]) if mass > 0.0 else None,
                output=float(output[i]),
            )
            for i in range(len(ids))
        ),
        acceptance=acceptance,
        residual_mass=mass,
        total_variation=0.5 * float(np.abs(target - drafted).sum()),
        largest_error=float(np.abs(output - target).max()),
    )


@dataclass(frozen=True)
class Simulation:
    """What came out when the procedure was run many times.

    Attributes:
        draws: how many times.
        seed: of the noise.
        accepted: how many drafts were accepted.
        counts: how often each token was emitted, by id.
        g: the G statistic of the counts against p; cells that expect fewer than 5 are taken together.
        degrees_of_freedom: of g.
        p_value: P(a g at least this large) if the tokens have exactly the law p.
    """

    draws: int
    seed: Seed
    accepted: int
    counts: dict[int, int]
    g: float
    degrees_of_freedom: int
    p_value: float

    @staticmethod
    def z(count: int, draws: int, p: float) -> float | None:
        """Returns by how many standard deviations a count differs from draws * p; None if p is 0 or 1."""
        spread = math.sqrt(draws * p * (1.0 - p)) if 0.0 < p < 1.0 else 0.0
        return (count - draws * p) / spread if spread > 0.0 else None

    def as_dict(self) -> dict[str, Any]:
        """Returns the simulation, ready for JSON."""
        counts = {str(token): count for token, count in self.counts.items()}
        return asdict(self) | {"counts": counts, "g": self.g if math.isfinite(self.g) else None}


def simulate(p: Distribution, q: Distribution, draws: int, seed: Seed = 0) -> Simulation:
    """Returns what the token rule emits when it is run `draws` times: draft from q, judge, recover if rejected.

    Args:
        p: the target's law.
        q: the drafter's law.
        draws: how many times.
        seed: of the noise.

    Raises:
        UsageError: if `draws` is not positive.
    """
    if draws < 1:
        raise UsageError(f"simulate {draws} is not a count of draws; give a positive one, for example 10000")
    rule, noise = TokenRule(), CounterNoise(seed)
    counts: dict[int, int] = {}
    accepted = 0
    for start in range(draws):
        x = rule.draw(q, noise, start, 0)
        # The row after the draft is never looked at here: only the judged position counts.
        verdict = rule.verify([p, p], Draft(as_tokens([x]), [q]), noise, start)
        accepted += verdict.accepted
        token = x if verdict.accepted else verdict.token
        counts[token] = counts.get(token, 0) + 1
    ids = np.union1d(p.support(), np.array(list(counts), dtype=np.int64))
    test = g_test(p.prob_of(ids), np.array([float(counts.get(int(token), 0)) for token in ids]))
    return Simulation(
        draws, seed, accepted, dict(sorted(counts.items())), test.g, test.degrees_of_freedom, test.p_value
    )


def laws_after(
    target: Model, drafter: Drafter, tokens: Tokens, sampler: Sampler
) -> tuple[Distribution, Distribution | None]:
    """Returns p and q of the token that follows `tokens`; q is None where the drafter proposes nothing.

    Args:
        target: the target model.
        drafter: the drafter, which may look at `tokens` first.
        tokens: the text so far.
        sampler: how the target is sampled.
    """
    bound = sampler.bind(len(tokens), target.eos_ids, target.vocab_size)
    session = target.session()
    try:
        p = bound.law(tokens, session.score([Query(0, tokens, NO_TOKENS)])[0][0])
    finally:
        session.close()
    rule, noise = TokenRule(), CounterNoise(0)
    proposing = drafter.session()
    try:
        proposing.begin(0, tokens, sampler.greedy)
        proposal = Proposal(
            slot=0,
            tokens=tokens,
            limit=1,
            sampler=bound,
            draw=lambda law, offset: rule.draw(law, noise, len(tokens), offset),
            proceed=lambda survival, offset: True,
        )
        draft = proposing.propose([proposal])[0]
    finally:
        proposing.close()
    return p, draft.law(0) if len(draft) else None


def _total(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return math.fsum(known) if known else None
