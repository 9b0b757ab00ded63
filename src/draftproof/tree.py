"""Drafts with several continuations: trees, and several tokens for one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from draftproof.distribution import Distribution, LawSequence
from draftproof.errors import DraftError, UsageError, whole

ROOT = -1
"""The parent of a tree's first nodes: the committed text."""


@dataclass(frozen=True, eq=False)
class DraftTree:
    """Several continuations of the text, as a tree: the children of a node are drafts for one place.

    Attributes:
        tokens: the proposed id of each node, `[node]`; parents come before children, siblings in the order drawn.
        parents: the index of each node's parent, `[node]`; `ROOT` (-1) for those that follow the text.
        laws: the law each token was actually drawn from, given the text, its ancestors and its earlier siblings; None
            for a deterministic tree (one-hot laws). See `siblings` for drafts without replacement.

    Raises:
        UsageError: if a parent does not come before its child, or the lengths differ.
    """

    tokens: Int[np.ndarray, "node"]
    parents: Int[np.ndarray, "node"]
    laws: LawSequence | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "parents"):
            array = np.asarray(getattr(self, name))
            if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
                raise UsageError(f"{name} {getattr(self, name)!r} must be a list of integers, one a node")
            object.__setattr__(self, name, array)
        if len(self.parents) != len(self.tokens) or (self.laws is not None and len(self.laws) != len(self.tokens)):
            raise UsageError(
                f"a tree of {len(self.tokens)} tokens has {len(self.parents)} parents"
                f"{'' if self.laws is None else f' and {len(self.laws)} laws'}; give one for each token"
            )
        children: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for node, parent in enumerate(self.parents.tolist()):
            if not ROOT <= parent < node:
                raise UsageError(
                    f"node {node} has parent {parent}; a parent comes before its children (the root is -1)"
                )
            children[parent + 1].append(node)
        object.__setattr__(self, "_children", children)

    def __len__(self) -> int:
        return len(self.tokens)

    def children(self, node: int) -> list[int]:
        """Returns the nodes that follow `node` (or `ROOT`), in the order they were drawn."""
        children: list[list[int]] = self.__dict__["_children"]
        return children[node + 1]

    def law(self, node: int) -> Distribution:
        """Returns q of a node: the law its token was drawn from."""
        return Distribution.one_hot(int(self.tokens[node])) if self.laws is None else self.laws[node]


@dataclass(frozen=True)
class TreeVerdict:
    """What a rule for trees decides.

    Attributes:
        path: the accepted nodes, from the root down; empty if none was.
        token: the token that follows them.
    """

    path: tuple[int, ...]
    token: int


def siblings(q: Distribution, tokens: Sequence[int]) -> list[Distribution]:
    """Returns the laws of tokens drawn one after another from q without replacement: each without those before it.

    Raises:
        DraftError: if they cannot have been drawn so: one twice, or one with probability 0.
    """
    laws: list[Distribution] = []
    left: Distribution | None = q
    for token in (whole("token", each) for each in tokens):
        if left is None or not left.prob(token) > 0.0:
            raise DraftError(f"tokens {list(tokens)} cannot be drawn without replacement: none of {token} is left")
        laws.append(left)
        left = left.without(token)
    return laws
