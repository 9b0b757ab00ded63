"""Known bugs of verification functions, as exact laws: what an audit holds a suspect against.

A bug is told by what it does with one draft: the chance that each coin says yes, whether it keeps the longest prefix
whose coin does (block verification) or stops at the first that does not, and the law of the token that follows. From
this come both the exact law of what it emits and a function that does it. Bugs of one family are mended in one place
of the code; which of a family it is, is often told by luck only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int

from draftproof.audit.witness import Text, Witness

Law: TypeAlias = Float[np.ndarray, "vocab"]


@dataclass(frozen=True, eq=False)
class Choice:
    """What is done with one draft of k tokens.

    Attributes:
        chances: P(coin i says yes), `[k]`.
        finals: the law of the last token if n are accepted, `[k + 1, vocab]`.
        longest: whether the longest prefix whose coin says yes is kept, not the one before the first no.
        kept: how many rejected tokens are emitted none the less.
    """

    chances: Float[np.ndarray, "draft"]
    finals: Float[np.ndarray, "places vocab"]
    longest: bool = False
    kept: int = 0

    def accepted(self, uniforms: Float[np.ndarray, "coins"]) -> int:
        """Returns how many tokens are accepted with these coins."""
        yes = uniforms[: len(self.chances)] < self.chances
        if self.longest:
            return int(np.flatnonzero(yes)[-1]) + 1 if bool(yes.any()) else 0
        return len(yes) if bool(yes.all()) else int(np.argmin(yes))

    def lengths(self) -> Float[np.ndarray, "places"]:
        """Returns P(n tokens are accepted), n = 0..k."""
        chances: Float[np.ndarray, "places"]
        if self.longest:
            chances = np.append(1.0, self.chances) * np.append(np.cumprod(1.0 - self.chances[::-1])[::-1], 1.0)
        else:
            chances = np.append(1.0, np.cumprod(self.chances)) * np.append(1.0 - self.chances, 1.0)
        return chances

    def emitted(self, draft: Text, accepted: int, last: int) -> Text:
        """Returns what is emitted."""
        return (*draft[: accepted + self.kept if accepted < len(draft) else accepted], last)


Procedure: TypeAlias = Callable[[Float[np.ndarray, "places vocab"], Text, Float[np.ndarray, "draft vocab"]], Choice]
"""(p `[k + 1, vocab]`, draft, q `[k, vocab]`) -> what is done."""


@dataclass(frozen=True, eq=False)
class Bug:
    """A known bug.

    Attributes:
        name: what it does.
        family: where in the code it sits.
        procedure: what it does, exactly.
    """

    name: str
    family: str
    procedure: Procedure

    def __call__(
        self,
        target_probs: Float[np.ndarray, "places vocab"],
        draft_tokens: Int[np.ndarray, "draft"],
        draft_probs: Float[np.ndarray, "draft vocab"],
        uniforms: Float[np.ndarray, "places"],
    ) -> tuple[int, list[int]]:
        """Does it, as a verification function of one request."""
        draft = tuple(map(int, draft_tokens))
        choice = self.procedure(target_probs, draft, draft_probs)
        n = choice.accepted(uniforms)
        edges = np.cumsum(choice.finals[n])
        last = min(int(np.searchsorted(edges, uniforms[-1] * edges[-1], side="right")), len(edges) - 1)
        text = choice.emitted(draft, n, last)
        return len(text) - 1, list(text)

    def law(self, witness: Witness) -> dict[Text, float]:
        """Returns P(emitted text) on a witness."""
        law: defaultdict[Text, float] = defaultdict(float)
        for draft, mass in witness.drafts.items():
            p, q = witness.rows(draft)
            choice = self.procedure(p, draft, q)
            for n, chance in enumerate(choice.lengths().tolist()):
                for last, final in enumerate(choice.finals[n].tolist()):
                    law[choice.emitted(draft, n, last)] += mass * chance * final
        return {text: mass for text, mass in law.items() if mass > 0.0}


def residual(p: Law, q: Law, scale: float = 1.0) -> Law:
    """Returns norm(max(scale * p - q, 0)), p where that has no mass."""
    return normalised(np.maximum(scale * p - q, 0.0), p)


def normalised(weights: Law, otherwise: Law) -> Law:
    """Returns weights divided by their sum, another law if they have none."""
    total = float(weights.sum())
    return weights / total if total > 0.0 else otherwise


def ratio(p: Law, q: Law, x: int, i: int) -> float:
    """Returns min(1, p/q) of a token."""
    return min(1.0, float(p[x] / q[x]))


def token(
    chance: Callable[[Law, Law, int, int], float] = ratio,
    recovered: Callable[[Law, Law, int], Law] = lambda p, q, x: residual(p, q),
    bonus: int = 0,
    late: int = 0,
    kept: int = 0,
) -> Procedure:
    """Returns the token rule, or what is left of it with a piece replaced.

    Args:
        chance: (p, q, x, i) -> P(token x at place i is accepted).
        recovered: (p, q, x) -> the law of what replaces x.
        bonus: which row the bonus comes from, counted back from the last.
        late: by how many rows the target's law is late where something was rejected.
        kept: how many rejected tokens are kept.
    """

    def procedure(p: Float[np.ndarray, "places vocab"], draft: Text, q: Float[np.ndarray, "draft vocab"]) -> Choice:
        k = len(draft)
        chances = np.array([chance(p[i], q[i], x, i) for i, x in enumerate(draft)])
        finals = [recovered(p[min(i + late, k)], q[min(i + late, k - 1)], x) for i, x in enumerate(draft)]
        return Choice(chances, np.array([*finals, p[max(k - bonus, 0)]]), kept=kept)

    return procedure


def block(stops: bool = False, scaled: bool = True, capped: bool = True, last_alone: bool = False) -> Procedure:
    """Returns block verification, or what is left of it with a piece replaced.

    Args:
        stops: stop at the first coin that says no.
        scaled: recover from max(w p - q, 0), not from max(p - q, 0).
        capped: cap the product of ratios at 1 after each factor.
        last_alone: judge the last token by its own ratio.
    """

    def procedure(p: Float[np.ndarray, "places vocab"], draft: Text, q: Float[np.ndarray, "draft vocab"]) -> Choice:
        k, reach = len(draft), [1.0]
        for i, x in enumerate(draft):
            product = reach[i] * float(p[i][x] / q[i][x])
            reach.append(min(1.0, product) if capped else product)
        chances = []
        for i in range(1, k):
            mass = float(np.maximum(reach[i] * p[i] - q[i], 0.0).sum())
            below = mass + 1.0 - reach[i]
            chances.append(min(max(mass / below, 0.0), 1.0) if below > 0.0 else 1.0)
        chances.append(min(1.0, float(p[-2][draft[-1]] / q[-1][draft[-1]]) if last_alone else reach[k]))
        finals = [residual(p[i], q[i], reach[i] if scaled else 1.0) for i in range(k)]
        return Choice(np.array(chances), np.array([*finals, p[k]]), longest=not stops)

    return procedure


def _softmax(p: Law, q: Law, x: int) -> Law:
    return normalised(np.exp(np.maximum(p - q, 0.0)), p)


def _without(p: Law, q: Law, x: int) -> Law:
    return normalised(np.where(np.arange(len(p)) == x, 0.0, p), p)


def _likeliest(p: Law, q: Law, x: int) -> Law:
    law = np.zeros_like(p)
    law[int(np.argmax(p))] = 1.0
    return law


BUGS: tuple[Bug, ...] = (
    Bug("the residual is p itself", "residual", token(recovered=lambda p, q, x: p)),
    Bug("the residual is p without the rejected token", "residual", token(recovered=_without)),
    Bug("the residual is |p - q|", "residual", token(recovered=lambda p, q, x: normalised(np.abs(p - q), p))),
    Bug("the residual goes through a softmax", "residual", token(recovered=_softmax)),
    Bug("accepts if u < p", "acceptance", token(lambda p, q, x, i: float(p[x]))),
    Bug("accepts if p >= q, without a coin", "acceptance", token(lambda p, q, x, i: float(p[x] >= q[x]))),
    Bug("the ratio is upside down", "acceptance", token(lambda p, q, x, i: min(1.0, float(q[x] / max(p[x], 1e-300))))),
    Bug("accepts 1.2 times too often", "acceptance", token(lambda p, q, x, i: min(1.0, float(1.2 * p[x] / q[x])))),
    Bug("accepts everything", "acceptance", token(lambda p, q, x, i: 1.0)),
    Bug(
        "accepts the likeliest token only",
        "acceptance",
        token(lambda p, q, x, i: float(x == int(np.argmax(p))), recovered=_likeliest),
    ),
    Bug("the first draft token is not checked", "rows", token(lambda p, q, x, i: 1.0 if i == 0 else ratio(p, q, x, i))),
    Bug("the bonus token comes from the row before", "rows", token(bonus=1)),
    Bug("a rejection is handled one row late", "rows", token(late=1)),
    Bug("a rejected token stays", "rows", token(kept=1)),
    Bug("block verification stops at the first no", "block", block(stops=True)),
    Bug("block verification recovers by the token rule", "block", block(scaled=False)),
    Bug("block verification without caps", "block", block(capped=False)),
    Bug("block verification judges the last token alone", "block", block(last_alone=True)),
)
"""Every bug of a verification function that an audit knows by name."""

EXACT: tuple[Bug, ...] = (Bug("the token rule", "none", token()), Bug("the block rule", "none", block()))
"""Exact procedures in the same terms: what the zoo's own arithmetic is tried on."""
