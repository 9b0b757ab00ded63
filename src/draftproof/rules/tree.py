"""What a rule for trees is; traversal verification, the block rule of trees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

from draftproof.distribution import LawSequence
from draftproof.errors import DraftError
from draftproof.noise import Lane, Noise
from draftproof.tree import ROOT, DraftTree, TreeVerdict


class TreeRule(ABC):
    """Decides which path of a drafted tree stands, and what follows it.

    Attributes:
        name: what to call it.
        exact: whether the emitted text has exactly the target's law; every shipped rule is, and tests enumerate it.
        reference: paper and algorithm.
    """

    name: str
    exact: bool
    reference: str

    @abstractmethod
    def verify(self, p: LawSequence, tree: DraftTree, noise: Noise, start: int) -> TreeVerdict:
        """Judges a tree.

        Args:
            p: the target's laws, len(tree) + 1 of them: p[0] after the text, p[v + 1] after the path to node v.
                Computed when asked for.
            tree: the drafted tokens and the laws they were drawn from.
            noise: the request's randomness; a node's own coin has its index as offset, a final token's the index of p.
            start: absolute position of the first drafted token; keys the block's coins.

        Raises:
            DraftError: if the tree was not drafted as this rule needs it.
        """


def verify_traversal(p: LawSequence, tree: DraftTree, noise: Noise, start: int) -> TreeVerdict:
    """Leaves first: a path that fails lends what it leaves over to its siblings, and then to its parent.

    ```
    visit(v, a):                                            # the root has a = 1
        p, q = p_v, laws of the children of v
        for c in the order drawn:
            if visit(c, min(1, a * p[c] / q_c[c])) succeeds: return it
            R = max(a * p - q_c, 0);  Z = sum(R)
            if Z == 0: a = 0 if a < 1                       # p stays: where a == 1, p equals q_c
            else: a = Z / (Z + 1 - a);  p = R / Z
        if u_v < a: return the path to v, and y ~ p
    ```
    Each q_c is the law of that child given its earlier siblings, so that drafts with and without replacement are one
    case. On a chain this is block verification.
    """

    def visit(node: int, reach: float) -> TreeVerdict | None:
        if reach == 0.0:
            return None
        law = p[node + 1]
        for child in tree.children(node):
            q, x = tree.law(child), int(tree.tokens[child])
            found = visit(child, min(1.0, reach * law.prob(x) / q.prob(x)))
            if found is not None:
                return replace(found, path=(child, *found.path))
            excess = law.excess(q, reach)
            if excess > 0.0:
                law, reach = law.residual(q, reach), excess / (excess + (1.0 - reach))
            elif reach < 1.0:
                return None
        if reach < 1.0 and not noise.uniform(start, node, Lane.ACCEPT) < reach:
            return None
        return TreeVerdict((), law.sample(noise.uniform(start, node + 1, Lane.FINAL)))

    try:
        verdict = visit(ROOT, 1.0)
    except RecursionError:
        raise DraftError(f"a tree of {len(tree)} nodes is too deep to traverse; draft fewer tokens in a row") from None
    assert verdict is not None  # the root stands with certainty
    return verdict


class TraversalRule(TreeRule):
    """Keeps as much of a tree as is known how to; equal to the block rule on a chain."""

    name = "traversal"
    exact = True
    reference = "traversal verification (arXiv 2505.12398)"

    def verify(self, p: LawSequence, tree: DraftTree, noise: Noise, start: int) -> TreeVerdict:
        """See `TreeRule.verify` and `verify_traversal`."""
        return verify_traversal(p, tree, noise, start)
