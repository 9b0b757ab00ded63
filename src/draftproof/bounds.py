"""What a draft is worth: tokens a rule gives per pass, and what no rule can exceed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from draftproof.distribution import Distribution
from draftproof.errors import UsageError, choice_error, whole
from draftproof.noise import CounterNoise, Seed
from draftproof.rules import BlockRule, CoupledRule, MatchRule, Rule, TokenRule
from draftproof.rules.load import load_rule
from draftproof.rules.multidraft import accepted_share, share
from draftproof.types import Draft, as_tokens

Text: TypeAlias = tuple[int, ...]
LawsByText: TypeAlias = Distribution | Sequence[Distribution] | Callable[[Text], Distribution]
"""A model as seen from the text: one law for every place, a law for each place, or a law for each drafted prefix."""

MOST_PREFIXES = 200_000
"""So many prefixes are enumerated; beyond, `expected_tokens` samples."""

MOST_ASKED_FOR = 2_000_000
"""So many are enumerated where enumeration is asked for, or is the only way."""

MOST_DRAFTS = 1000
"""Most drafts of one place that are considered."""

LONGEST = 256
"""Longest draft that is considered."""

MOST_SUBSETS_OF = 16
"""Largest support for which all subsets are tried."""


@dataclass(frozen=True)
class Estimate:
    """A number, with the interval it lies in with 95 % confidence.

    Attributes:
        value: the number.
        low: lower end; equal to `value` if exact.
        high: upper end.
        exact: whether it was enumerated rather than sampled.
    """

    value: float
    low: float
    high: float
    exact: bool


def expected_tokens(
    p: LawsByText,
    q: LawsByText,
    rule: Rule | str = "token",
    *,
    draft_length: int,
    method: Literal["auto", "enumerate", "sample"] = "auto",
    draws: int = 100_000,
    seed: Seed = 0,
) -> Estimate:
    """Returns E[N], the tokens that one pass emits on average: 1 + sum_j P(the first j draft tokens are accepted).

    Args:
        p: the target.
        q: the drafter; drafts are drawn as the rule draws them.
        rule: a rule or its name.
        draft_length: tokens drafted, k.
        method: "enumerate" every draft, which the shipped rules have formulas for; "sample" with `rule` itself; "auto"
            enumerates where that is at most 200,000 prefixes.
        draws: how many blocks to sample.
        seed: of the sampling.

    Raises:
        UsageError: if an argument is wrong, or enumeration is asked of a rule without a formula.
    """
    if whole("draft_length", draft_length) < 0 or whole("draws", draws) < 2:
        raise UsageError(f"draft_length {draft_length} and draws {draws} must be at least 0 and 2")
    if draft_length > LONGEST:
        raise UsageError(f"draft_length {draft_length} exceeds {LONGEST}, beyond which nothing changes")
    if method not in ("auto", "enumerate", "sample"):
        raise choice_error("method", method, ["auto", "enumerate", "sample"])
    judged = load_rule(rule)
    formula = _FORMULAS.get(type(judged))
    if formula is None and method == "enumerate":
        raise UsageError(f'rule {judged.name!r} has no formula to enumerate; use method="sample"')
    if method == "enumerate" and not _few(q, draft_length, MOST_ASKED_FOR):
        raise UsageError(
            f"draft_length {draft_length} means more than {MOST_ASKED_FOR} prefixes; use expected_tokens with "
            'method="sample"'
        )
    if formula is not None and (method == "enumerate" or (method == "auto" and _few(q, draft_length, MOST_PREFIXES))):
        total = 1.0 + _tail(_by_text(p), _by_text(q), formula, draft_length, (), 1.0, 1.0)
        return Estimate(total, total, total, exact=True)
    return _sampled(_by_text(p), _by_text(q), judged, draft_length, draws, seed)


def block_optimum(p: LawsByText, q: LawsByText, *, draft_length: int) -> float:
    """Returns the most tokens a pass can give with one drafted chain, whatever the rule: what the block rule gives.

    Optimal: Sun et al. 2024 (arXiv 2403.10444), theorem 2. All drafts are enumerated.
    """
    return expected_tokens(p, q, "block", draft_length=draft_length, method="enumerate").value


def joint_overlap_bound(p: LawsByText, q: LawsByText, *, draft_length: int) -> float:
    """Returns 1 + sum_j (1 - TV of the joint laws of j tokens): no rule exceeds it, and usually none attains it.

    All texts that both models can give are enumerated.
    """
    if not 0 <= whole("draft_length", draft_length) <= LONGEST:
        raise UsageError(f"draft_length {draft_length} must lie in 0..{LONGEST}")
    target, drafter = _by_text(p), _by_text(q)
    level: dict[Text, tuple[float, float]] = {(): (1.0, 1.0)}
    total = 1.0
    for _ in range(draft_length):
        grown: dict[Text, tuple[float, float]] = {}
        for text, (a, b) in level.items():
            law, draft = target(text), drafter(text)
            for x in np.intersect1d(law.support(), draft.support()).tolist():
                if law.prob(x) > 0.0 and draft.prob(x) > 0.0:
                    grown[(*text, x)] = a * law.prob(x), b * draft.prob(x)
        level = grown
        if len(level) > MOST_ASKED_FOR // 10:
            raise UsageError(f"draft_length {draft_length} means too many texts to enumerate; use a shorter draft")
        total += math.fsum(min(a, b) for a, b in level.values())
    return total


def draft_acceptance(
    p: Distribution,
    q: Distribution,
    num_drafts: int,
    rule: Literal["recursive", "kseq", "match"] = "recursive",
    *,
    replacement: bool = True,
) -> float:
    """Returns P(one of n drafts of the next token is accepted).

    ```
    recursive, with replacement: 1 - prod(1 - a_j), a_j = the overlap of q with what the j-1 before left of p
    recursive, without: a + sum_x (q - min(p, q))(x) * the same with n - 1 drafts of q without x
    kseq: rho * b, see `rules.multidraft.share`
    match: sum_x p(x) * P(x is among the drafts)
    ```

    Args:
        p: the target's law.
        q: the law the drafts are drawn from.
        num_drafts: n, at least 1.
        rule: the rule for several drafts; `optimal_acceptance` is what none of them exceeds.
        replacement: whether drafts are independent, or drawn from what earlier ones left.

    Raises:
        UsageError: if an argument is wrong.
    """
    num_drafts = _check_drafts(p, q, num_drafts, replacement)
    if not replacement and num_drafts * math.log(len(q)) > math.log(MOST_ASKED_FOR):
        raise UsageError(f"num_drafts {num_drafts} without replacement from {len(q)} ids is too much to enumerate")
    if rule == "recursive":
        return _with_replacement(p, q, num_drafts) if replacement else _without_replacement(p, q, num_drafts)
    if rule == "kseq":
        if not replacement:
            raise UsageError("rule 'kseq' is for independent drafts; use replacement=True")
        rho = share(p, q, num_drafts)
        return rho * accepted_share(p, q, rho)
    if rule == "match":
        if replacement:
            return float((p.probs * (1.0 - (1.0 - q.prob_of(p.support())) ** num_drafts)).sum())
        ids = q.support()
        return math.fsum(p.prob(int(x)) * (1.0 - _all_within(q, ids[ids != x], num_drafts)) for x in ids)
    raise choice_error("rule", rule, ["recursive", "kseq", "match"])


def optimal_acceptance(p: Distribution, q: Distribution, num_drafts: int, *, replacement: bool = True) -> float:
    """Returns the largest P(one of n drafts of the next token is accepted) of any exact rule: optimal transport.

    It is 1 + min over sets H of p(H) - P(all drafts lie in H). For independent drafts H is a prefix in ascending p/q;
    without replacement all subsets are tried.

    Raises:
        UsageError: if an argument is wrong, or drafts without replacement come from a support of more than 16 ids.
    """
    num_drafts = _check_drafts(p, q, num_drafts, replacement)
    ids: Int[np.ndarray, "n"] = np.union1d(p.support(), q.support())
    target, drafted = p.prob_of(ids), q.prob_of(ids)
    if replacement:
        with np.errstate(divide="ignore", invalid="ignore"):
            order = np.argsort(np.where(drafted > 0.0, target / drafted, np.inf), kind="stable")
        gaps = np.cumsum(target[order]) - np.cumsum(drafted[order]) ** num_drafts
        return 1.0 + min(0.0, float(gaps.min()))
    support = [int(x) for x, mass in zip(ids, drafted, strict=True) if mass > 0.0]
    if len(support) > MOST_SUBSETS_OF:
        raise UsageError(f"q has {len(support)} ids; all subsets are tried, which is for {MOST_SUBSETS_OF} at most")
    least = 0.0
    for size in range(num_drafts, len(support) + 1):
        for chosen in combinations(support, size):
            within = _all_within(q, np.array(chosen), num_drafts)
            least = min(least, float(p.prob_of(np.array(chosen)).sum()) - within)
    return 1.0 + least


def _by_text(laws: LawsByText) -> Callable[[Text], Distribution]:
    if isinstance(laws, Distribution):
        return lambda text: laws
    if callable(laws):
        return lambda text: _law("law after a prefix", laws(text))
    if not isinstance(laws, Sequence) or isinstance(laws, str):
        raise UsageError(
            f"{laws!r} is no law; give a Distribution, a list of them, or a function of the drafted prefix"
        )

    def at_place(text: Text) -> Distribution:
        if len(text) >= len(laws):
            raise UsageError(f"{len(laws)} laws do not reach place {len(text)}; give one for each drafted place")
        return _law(f"law {len(text)}", laws[len(text)])

    return at_place


def _law(name: str, law: object) -> Distribution:
    if not isinstance(law, Distribution):
        raise UsageError(f"{name} is {law!r}, no Distribution; write Distribution(np.array([0.5, 0.5]))")
    return law


def _few(q: LawsByText, length: int, most: int) -> bool:
    # Only the first law is known without walking: its support stands for the others'.
    width = len(_by_text(q)(())) if length else 1
    return length * math.log(width) <= math.log(most)


_Pair: TypeAlias = tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]

Formula: TypeAlias = Callable[[Distribution, Distribution, Int[np.ndarray, "n"], float], _Pair]
"""(p, q, ids of q, what is carried) -> for each id the factor of the mass, and what is carried on."""


def _tail(
    p: Callable[[Text], Distribution],
    q: Callable[[Text], Distribution],
    formula: Formula,
    left: int,
    text: Text,
    mass: float,
    carried: float,
) -> float:
    if left == 0:
        return 0.0
    law, draft = p(text), q(text)
    ids = draft.support()
    factors, carries = formula(law, draft, ids, carried)
    total = mass * float((factors * carries).sum())
    for x, factor, carry in zip(ids.tolist(), factors.tolist(), carries.tolist(), strict=True):
        if factor * carry > 0.0:
            total += _tail(p, q, formula, left - 1, (*text, x), mass * factor, carry)
    return total


def _of_token(p: Distribution, q: Distribution, ids: Int[np.ndarray, "n"], carried: float) -> _Pair:
    return np.minimum(p.prob_of(ids), q.prob_of(ids)), np.ones(len(ids))


def _of_block(p: Distribution, q: Distribution, ids: Int[np.ndarray, "n"], carried: float) -> _Pair:
    # E_q[P_j]: the mass is the draft's own, P is carried along.
    drafted = q.prob_of(ids)
    ratio = np.divide(p.prob_of(ids), drafted, out=np.zeros(len(ids)), where=drafted > 0.0)
    return drafted, np.minimum(1.0, carried * ratio)


def _of_coupled(p: Distribution, q: Distribution, ids: Int[np.ndarray, "n"], carried: float) -> _Pair:
    # x wins both races with probability 1 / sum_y max(p_y / p_x, q_y / q_x).
    both = np.union1d(p.support(), q.support())
    target, drafted = p.prob_of(both), q.prob_of(both)
    chances = np.zeros(len(ids))
    for place, x in enumerate(ids.tolist()):
        a, b = p.prob(x), q.prob(x)
        if a > 0.0 and b > 0.0:
            chances[place] = 1.0 / float(np.maximum(target / a, drafted / b).sum())
    return chances, np.ones(len(ids))


def _of_match(p: Distribution, q: Distribution, ids: Int[np.ndarray, "n"], carried: float) -> _Pair:
    # One uniform draws both: x is drawn twice where its two intervals of the unit line overlap.
    target, drafted = np.cumsum(p.probs), np.cumsum(q.probs)
    chances = np.zeros(len(ids))
    for place, x in enumerate(ids.tolist()):
        at = int(np.searchsorted(p.support(), x))
        if p.prob(x) > 0.0:
            low = max(target[at] - p.probs[at], drafted[place] - q.probs[place])
            chances[place] = max(0.0, min(target[at], drafted[place]) - low)
    return chances, np.ones(len(ids))


_FORMULAS: dict[type[Rule], Formula] = {
    TokenRule: _of_token,
    BlockRule: _of_block,
    CoupledRule: _of_coupled,
    MatchRule: _of_match,
}


def _sampled(
    p: Callable[[Text], Distribution],
    q: Callable[[Text], Distribution],
    rule: Rule,
    length: int,
    draws: int,
    seed: Seed,
) -> Estimate:
    noise = CounterNoise(seed)
    emitted = np.empty(draws)
    for block in range(draws):
        start = block * (length + 1)  # blocks share no position: a race is keyed by position alone
        tokens: list[int] = []
        laws: list[Distribution] = []
        for offset in range(length):
            laws.append(q(tuple(tokens)))
            tokens.append(rule.draw(laws[-1], noise, start, offset))
        rows = [p(tuple(tokens[:i])) for i in range(length + 1)]
        emitted[block] = 1 + rule.verify(rows, Draft(as_tokens(tokens), laws), noise, start).accepted
    mean, spread = float(emitted.mean()), 1.96 * float(emitted.std(ddof=1)) / math.sqrt(draws)
    return Estimate(mean, mean - spread, mean + spread, exact=False)


def _check_drafts(p: object, q: object, num_drafts: int, replacement: bool) -> int:
    _law("p", p)
    possible = int((_law("q", q).probs > 0.0).sum())
    count = whole("num_drafts", num_drafts)
    if not 1 <= count <= MOST_DRAFTS:
        raise UsageError(f"num_drafts {num_drafts} must lie in 1..{MOST_DRAFTS}")
    if not isinstance(replacement, bool):
        raise UsageError(f"replacement {replacement!r} is neither True nor False")
    if not replacement and count > possible:
        raise UsageError(f"num_drafts {num_drafts} without replacement exceeds the {possible} ids that q can give")
    return count


def _with_replacement(p: Distribution, q: Distribution, n: int) -> float:
    rejected = 1.0
    for _ in range(n):
        rejected *= p.excess(q)
        p = p.residual(q)
    return 1.0 - rejected


def _without_replacement(p: Distribution, q: Distribution, n: int) -> float:
    total = p.overlap(q)
    if n == 1:
        return total
    residual = p.residual(q)
    for x in q.support().tolist():
        rejected = max(q.prob(x) - p.prob(x), 0.0)
        rest = q.without(x)
        if rejected > 0.0 and rest is not None:
            total += rejected * _without_replacement(residual, rest, n - 1)
    return total


def _all_within(q: Distribution, chosen: Int[np.ndarray, "n"], n: int) -> float:
    """Returns P(n drafts without replacement all lie in `chosen`)."""
    if n == 0:
        return 1.0
    total = 0.0
    for x in chosen.tolist():
        mass = q.prob(x)
        rest = q.without(x)
        if mass > 0.0 and (rest is not None or n == 1):
            total += mass * (1.0 if rest is None else _all_within(rest, chosen[chosen != x], n - 1))
    return total
