"""Audits a verification function: its exact law where its coins can be chosen, a test of frequencies where not."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from draftproof.audit.conventions import Function, MalformedAnswer, Suspect, resolve
from draftproof.audit.exact_law import LARGEST, NotBoxes, exact_law
from draftproof.audit.report import Bars, Finding, Power, Progress, Report, Verdict, silent
from draftproof.audit.witness import EDGES, SEARCHED, Text, Witness
from draftproof.audit.zoo import BUGS, Bug
from draftproof.errors import UsageError, whole
from draftproof.goodness import g_test, power

TOLERANCE = 1e-6
"""Total variation of the law over one block that rounding in single precision may cause."""

CHUNK = 20_000
"""Requests given to a batched function at once."""

LEAST = 20.0
"""Outcomes that expect fewer draws than this share a cell: the chi-square limit is good far out in the tail then."""

AT_RATIO = "accepts if u <= p/q"
"""The bug that only a coin of exactly 0 shows."""

LAYER = "the verification function alone: not the laws an engine gives it, nor how drafts are drawn"


Calls: TypeAlias = Callable[[Int[np.ndarray, "n"], Float[np.ndarray, "n coins"] | None], list[Text]]
"""(which draft, uniforms, or None for coins of the function's own) a request a row -> what is emitted."""


@dataclass(frozen=True, eq=False)
class _Seen:
    """What a witness showed: the law of k + 1 tokens, computed or counted."""

    witness: Witness
    law: Float[np.ndarray, "..."]


def check_rule(
    function: Function | str,
    *,
    convention: str = "probs",
    hidden: bool | None = None,
    batched: bool | None = None,
    draws: int = 200_000,
    alpha: float = 1e-4,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    witnesses: Sequence[Witness] | None = None,
    progress: Progress = silent,
) -> Report:
    """Returns whether a verification function emits exactly the target's law.

    With uniforms injected, each threshold is recovered by bisection and the law of a block is computed to rounding.
    With randomness of its own, the function is run on drafts drawn from q, the target completes what it emits to k + 1
    tokens, and these are held against the target's law by a G-test; the level is shared out over the witnesses.

    Args:
        function: `f(target_probs, draft_tokens, draft_probs, uniforms) -> (num_accepted, tokens)` for one request
            (`[k+1, vocab]`, `[k]`, `[k, vocab]`, `[k+1]`) or a batch of them, or "module:function".
        convention: how it is called: "probs", "logits", "torch", "transformers", "flashinfer", "vllm".
        hidden: whether it draws its own randomness; None: by its convention and signature.
        batched: whether it takes a batch; None: tried.
        draws: how many drafts for each witness, if the randomness is hidden.
        alpha: P("not exact") for an exact function with hidden randomness.
        tolerance: total variation that counts as rounding, if the law is computed.
        seed: of drafts and of completions.
        witnesses: the instances; None: the searched ones, and for computed laws the edge cases.
        progress: told how far it is.

    Raises:
        UsageError: if an argument is wrong, or the function does not answer to its convention.
    """
    if not isinstance(alpha, float) or not 0.0 < alpha < 1.0:
        raise UsageError(f"alpha {alpha!r} is not a probability of false alarm; use for example 1e-4")
    if whole("draws", draws) < 1000:
        raise UsageError(f"draws {draws} are too few to see anything; use 1000 or more, 200000 by default")
    if whole("seed", seed) < 0:
        raise UsageError(f"seed {seed} is negative; use 0 or more")
    if not 0.0 <= tolerance < 1.0:
        raise UsageError(f"tolerance {tolerance} is out of range; use a small number such as 1e-6")
    if witnesses is not None and not len(witnesses):
        raise UsageError("witnesses are an empty list; give at least one, or None for those that are shipped")
    began = time.perf_counter()
    named = function if isinstance(function, str) else ""
    suspect = Suspect(resolve(function) if isinstance(function, str) else function, convention, hidden, batched)
    audit = _Audit(suspect, named or suspect.name, draws, alpha, tolerance, seed, progress)
    try:
        found = audit.by_law(witnesses) if not suspect.hidden else None
        report = audit.by_counts(witnesses) if found is None else found
        if found is None and not suspect.hidden:
            note = (
                "; its answers are not settled, in boxes, by the uniforms it is given, so it was tested by frequencies"
            )
            report = replace(report, summary=report.summary + note)
    except KeyboardInterrupt:
        report = audit.report(Verdict.INCONCLUSIVE, "interrupted before anything was known", "a part only")
    except MalformedAnswer as error:
        finding = Finding(f"it gives what is no answer: {error}", {"answer": str(error)})
        report = audit.report(Verdict.NOT_EXACT, finding.what, "answers until the first that was none", [finding])
    return replace(report, seconds=time.perf_counter() - began)


@dataclass
class _Audit:
    """One function under audit."""

    suspect: Suspect
    subject: str
    draws: int
    alpha: float
    tolerance: float
    seed: int
    progress: Progress

    def report(
        self, verdict: Verdict, summary: str, looked_at: str, findings: Sequence[Finding] = (), **more: Any
    ) -> Report:
        return Report(self.subject, "rule", LAYER, verdict, summary, self.alpha, looked_at, tuple(findings), **more)

    # Uniforms injected: the law itself.

    def by_law(self, witnesses: Sequence[Witness] | None) -> Report | None:
        """Returns the report on the computed law; None if the answers are no function of the uniforms' boxes."""
        chosen = (*EDGES, *SEARCHED) if witnesses is None else tuple(witnesses)
        seen: list[_Seen] = []
        findings: list[Finding] = []
        distances: dict[str, float] = {}
        for place, witness in enumerate(chosen):
            self.progress(place / len(chosen), f"the law on '{witness.name}'")
            if any(distance > self.tolerance for distance in distances.values()) and witness is not SEARCHED[2]:
                continue  # something is wrong: one more witness, on which bugs look different, tells what
            try:
                law = exact_law(self._answers(witness), witness, self.seed)
            except NotBoxes:
                return None
            seen.append(_Seen(witness, witness.completed(law)))
            distances[witness.name] = witness.distance(law)
            findings += self._at_the_ends(witness)
        worst = max(seen, key=lambda each: distances[each.witness.name])
        error = distances[worst.witness.name]
        if error > self.tolerance:
            bug = nearest(seen)
            findings.insert(0, self._law_finding(worst, error, bug))
        looked_at = f"{len(seen)} pairs of laws, every draft, thresholds by bisection"
        numbers = {"total_variation": distances}
        plots = (_bars(worst),)
        if findings:
            return self.report(Verdict.NOT_EXACT, findings[0].what, looked_at, findings, numbers=numbers, plots=plots)
        powers = tuple(
            Power(each.name, each.family, float(any(w.distance(each.law(w)) > self.tolerance for w in chosen)))
            for each in BUGS
        )
        summary = f"the law of a block differs from the target's by at most {error:.1e} in total variation"
        return self.report(Verdict.EXACT, summary, looked_at, (), power=powers, numbers=numbers, plots=plots)

    def _answers(self, witness: Witness) -> Calls:
        rows = [witness.rows(draft) for draft in witness.drafts]
        p, q = np.array([each[0] for each in rows]), np.array([each[1] for each in rows])
        x = np.array(list(witness.drafts), dtype=np.int64)

        def answers(which: Int[np.ndarray, "n"], uniforms: Float[np.ndarray, "n coins"] | None) -> list[Text]:
            return self.suspect.answers(p[which], x[which], q[which], uniforms)

        return answers

    def _law_finding(self, seen: _Seen, error: float, bug: Bug | None) -> Finding:
        texts = _furthest(seen.law - seen.witness.target)
        draft = max(seen.witness.drafts, key=lambda each: seen.witness.drafts[each])
        p, q = seen.witness.rows(draft)
        return Finding(
            f"on '{seen.witness.name}' its law is {error:.3g} from the target's in total variation",
            {
                "witness": seen.witness.name,
                "a draft": list(draft),
                "target_probs along it": np.round(p, 6).tolist(),
                "draft_probs along it": np.round(q, 6).tolist(),
                "texts": [
                    {
                        "text": list(text),
                        "expected": float(seen.witness.target[text]),
                        "observed": float(seen.law[text]),
                    }
                    for text in texts
                ],
            },
            bug=None if bug is None else bug.name,
            family=None if bug is None else bug.family,
        )

    def _at_the_ends(self, witness: Witness) -> list[Finding]:
        """Returns what goes wrong with coins of exactly 0 and just under 1: they have no volume, and yet they come."""
        drafts, answers = list(witness.drafts), self._answers(witness)
        for coin in (0.0, LARGEST):
            texts = answers(np.arange(len(drafts)), np.full((len(drafts), witness.length + 1), coin))
            for draft, text in zip(drafts, texts, strict=True):
                if witness.target[text].sum() <= 0.0:
                    end = "0" if coin == 0.0 else "1 - 2**-24"
                    seen = {"witness": witness.name, "draft": list(draft), "uniforms": coin, "text": list(text)}
                    what = f"with all coins at {end} it emits a text that the target never writes"
                    return [Finding(what, seen, bug=AT_RATIO if coin == 0.0 else None, family="coins")]
        return []

    # Randomness of its own: frequencies.

    def by_counts(self, witnesses: Sequence[Witness] | None) -> Report:
        """Returns the report on frequencies."""
        chosen = SEARCHED if witnesses is None else tuple(witnesses)
        rng = np.random.default_rng(self.seed)
        seen: list[_Seen] = []
        findings: list[Finding] = []
        p_values: dict[str, float] = {}
        level = self.alpha / len(chosen)
        for place, witness in enumerate(chosen):
            counts = self._counts(witness, rng, place / len(chosen), 1.0 / len(chosen))
            seen.append(_Seen(witness, counts / self.draws))
            test = g_test(witness.target.ravel(), counts.ravel(), LEAST)
            p_values[witness.name] = test.p_value
            if test.p_value < level:
                findings.append(self._count_finding(seen[-1], test.p_value, test.g))
        looked_at = f"{self.draws} drafts on each of {len(chosen)} pairs of laws"
        numbers = {"p_values": p_values}
        if findings:
            bug = nearest(seen)
            named = [replace(each, bug=bug.name, family=bug.family) if bug else each for each in findings]
            worst = min(seen, key=lambda each: p_values[each.witness.name])
            return self.report(
                Verdict.NOT_EXACT, named[0].what, looked_at, named, numbers=numbers, plots=(_bars(worst),)
            )
        powers = tuple(self._power(each, chosen, level) for each in BUGS)
        weak = [each.bug for each in powers if each.power < 0.95]
        summary = "its frequencies fit the target's law" + (
            f"; it was not looked at closely enough for: {', '.join(weak)}" if weak else ""
        )
        return self.report(
            Verdict.NO_EVIDENCE, summary, looked_at, (), power=powers, numbers=numbers, plots=tuple(map(_bars, seen))
        )

    def _counts(
        self, witness: Witness, rng: np.random.Generator, before: float, share: float
    ) -> Float[np.ndarray, "..."]:
        """Returns how often each text of k + 1 tokens came, completed by the target where a block is shorter."""
        answers = self._answers(witness)
        chances = np.array(list(witness.drafts.values()))
        emitted: Counter[Text] = Counter()
        done = 0
        while done < self.draws:
            n = min(CHUNK, self.draws - done)
            which = rng.choice(len(chances), size=n, p=chances / chances.sum())
            u = None if self.suspect.hidden else rng.random((n, witness.length + 1))
            emitted.update(answers(which, u))
            done += n
            self.progress(before + share * done / self.draws, f"drafts on '{witness.name}'")
        counts = np.zeros_like(witness.target)
        for text, number in emitted.items():
            rest = witness.target[text] / max(float(witness.target[text].sum()), 1e-300)
            counts[text] += rng.multinomial(number, rest.ravel()).reshape(rest.shape) if rest.ndim else number
            if rest.ndim and float(witness.target[text].sum()) == 0.0:
                counts[text].flat[0] += number  # the target never writes this; where it is counted does not matter
        return counts

    def _count_finding(self, seen: _Seen, p_value: float, g: float) -> Finding:
        target = seen.witness.target
        with np.errstate(divide="ignore", invalid="ignore"):
            z = (seen.law - target) * np.sqrt(self.draws / target)
        z = np.nan_to_num(z, nan=0.0, posinf=1e9)
        texts = _furthest(z)
        return Finding(
            f"on '{seen.witness.name}' the frequencies of its first {seen.witness.length + 1} tokens do not fit the "
            f"target's law (G = {g:.1f})",
            {
                "witness": seen.witness.name,
                "draws": self.draws,
                "texts": [
                    {
                        "text": list(text),
                        "expected": float(target[text] * self.draws),
                        "observed": float(seen.law[text] * self.draws),
                        "z": float(z[text]),
                    }
                    for text in texts
                ],
            },
            p_value,
        )

    def _power(self, bug: Bug, witnesses: Sequence[Witness], level: float) -> Power:
        missed = 1.0
        for witness in witnesses:
            other = witness.completed(bug.law(witness)).ravel()
            missed *= 1.0 - power(witness.target.ravel(), other, self.draws, level, LEAST)
        return Power(bug.name, bug.family, 1.0 - missed)


def nearest(seen: Sequence[_Seen]) -> Bug | None:
    """Returns the known bug whose laws are nearest to those seen, over all witnesses.

    Nearness is the sum of (observed - bug)^2 / target. None if the target itself is about as near: then it is nothing
    known.
    """

    def misfit(laws: Callable[[Witness], Float[np.ndarray, "..."]]) -> float:
        return sum(
            float(((each.law - laws(each.witness)) ** 2 / np.maximum(each.witness.target, 1e-3)).sum()) for each in seen
        )

    fits = [misfit(lambda witness, bug=bug: witness.completed(bug.law(witness))) for bug in BUGS]  # type: ignore[misc]
    best = int(np.argmin(fits))
    return BUGS[best] if fits[best] < 0.5 * misfit(lambda witness: witness.target) else None


def _furthest(apart: Float[np.ndarray, "..."]) -> list[Text]:
    """Returns the five texts that are furthest apart."""
    places = np.argsort(-np.abs(apart), axis=None)[:5]
    return [tuple(map(int, np.unravel_index(place, apart.shape))) for place in places]


def _bars(seen: _Seen) -> Bars:
    places = min(2, seen.witness.target.ndim)
    shape = (*(seen.witness.vocab,) * places, -1)
    expected, observed = (law.reshape(shape).sum(-1) for law in (seen.witness.target, seen.law))
    labels = [" ".join(map(str, place)) for place in np.ndindex(expected.shape)]
    title = f"the first {places} tokens on '{seen.witness.name}'"
    return Bars(title, labels, expected.ravel().tolist(), observed.ravel().tolist())
