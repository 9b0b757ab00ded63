"""Small instances on which a verification function is tried: laws of target and drafter that depend on the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

Text: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Witness:
    """A target and a drafter over a few ids, with a draft of k tokens.

    Attributes:
        name: what is particular about it.
        p: the target's laws: p[i] is `[vocab] * i + [vocab]`, the law at place i by the i tokens before it; k + 1 of
            them.
        q: the drafter's laws, alike; k of them.
    """

    name: str
    p: Sequence[Float[np.ndarray, "..."]]
    q: Sequence[Float[np.ndarray, "..."]]

    @property
    def vocab(self) -> int:
        """How many ids."""
        return int(self.p[0].shape[0])

    @property
    def length(self) -> int:
        """How many draft tokens: k."""
        return len(self.q)

    @classmethod
    def random(cls, name: str, vocab: int, length: int, distance: float, seed: int) -> Witness:
        """Returns laws drawn at random.

        Args:
            name: what to call it.
            vocab: how many ids.
            length: how many draft tokens.
            distance: mean total variation of the two models, as nearly as a mixture of the target's law and an
                unrelated one reaches it.
            seed: which laws.
        """
        rng = np.random.default_rng((seed, vocab, length))
        p = [rng.dirichlet([1.5] * vocab, size=(vocab,) * i) for i in range(length + 1)]
        other = [rng.dirichlet([1.5] * vocab, size=(vocab,) * i) for i in range(length)]
        apart = float(np.mean([0.5 * np.abs(a - b).sum(-1).mean() for a, b in zip(p, other, strict=False)]))
        share = min(distance / apart, 1.0)
        return cls(name, p, [(1 - share) * a + share * b for a, b in zip(p, other, strict=False)])

    @classmethod
    def same(cls, name: str, p: Sequence[float], q: Sequence[float], length: int) -> Witness:
        """Returns a witness whose laws are p and q after every text."""
        vocab = len(p)
        return cls(
            name,
            [np.broadcast_to(np.asarray(p, dtype=float), (vocab,) * (i + 1)) for i in range(length + 1)],
            [np.broadcast_to(np.asarray(q, dtype=float), (vocab,) * (i + 1)) for i in range(length)],
        )

    def rows(self, draft: Text) -> tuple[Float[np.ndarray, "places vocab"], Float[np.ndarray, "draft vocab"]]:
        """Returns what a rule is given for a draft: the target's laws and the drafter's along it."""
        return (
            np.array([self.p[i][draft[:i]] for i in range(self.length + 1)]),
            np.array([self.q[i][draft[:i]] for i in range(self.length)]),
        )

    @cached_property
    def drafts(self) -> dict[Text, float]:
        """Every draft that can be drawn, with its probability."""
        found: dict[Text, float] = {}
        for text in np.ndindex(*(self.vocab,) * self.length):
            mass = float(np.prod([self.q[i][text[: i + 1]] for i in range(self.length)]))
            if mass > 0.0:
                found[tuple(map(int, text))] = mass
        return found

    @cached_property
    def target(self) -> Float[np.ndarray, "..."]:
        """The law of the target's own first k + 1 tokens, `[vocab] * (k + 1)`."""
        law: Float[np.ndarray, "..."] = np.ones(())
        for rows in self.p:
            law = law[..., None] * rows
        return law

    def completed(self, law: Mapping[Text, float]) -> Float[np.ndarray, "..."]:
        """Returns the law of k + 1 tokens if what `law` says is emitted and the target writes the rest."""
        whole = np.zeros_like(self.target)
        for text, mass in law.items():
            rest: Float[np.ndarray, "..."] = np.full((), mass)
            for rows in self.p[len(text) :]:
                rest = rest[..., None] * rows[text]
            whole[text] += rest
        return whole

    def distance(self, law: Mapping[Text, float]) -> float:
        """Returns the total variation between the target's text and that of an engine whose blocks have this law."""
        return float(0.5 * np.abs(self.completed(law) - self.target).sum())


SEARCHED: tuple[Witness, ...] = (
    Witness.random("near", 3, 3, 0.1, 12),
    Witness.random("middle", 3, 3, 0.2, 25),
    Witness.random("far", 3, 3, 0.35, 13),
    Witness.random("apart", 3, 3, 0.5, 26),
)
"""Searched for: of thirty seeds at each distance, ones on which the bug that shows least shows most.

`benchmarks/search_witnesses.py` prints the search.
"""

EDGES: tuple[Witness, ...] = (
    Witness.same("the worked example", (0.5, 0.3, 0.2), (0.6, 0.25, 0.15), 1),
    Witness.same("equal laws", (0.5, 0.3, 0.2), (0.5, 0.3, 0.2), 2),
    Witness.same("nothing in common", (0.5, 0.5, 0.0, 0.0), (0.0, 0.0, 0.25, 0.75), 2),
    Witness.same("zeros in either", (0.7, 0.3, 0.0), (0.4, 0.0, 0.6), 2),
    Witness.same("one token is certain", (0.0, 1.0, 0.0), (0.3, 0.4, 0.3), 2),
    Witness.same("a deterministic draft", (0.5, 0.3, 0.2), (0.0, 1.0, 0.0), 2),
    Witness.same("a tiny probability", (1e-6, 0.6, 0.4 - 1e-6), (0.4, 0.4, 0.2), 2),
    Witness.random("four tokens", 4, 2, 0.3, 1),
    Witness.random("two tokens", 2, 3, 0.3, 1),
    Witness.random("eight tokens", 8, 1, 0.3, 1),
    Witness.random("four draft places", 2, 4, 0.3, 1),
)
"""Instances that clamp ratios, empty the residual or leave one choice: what random laws never show."""
