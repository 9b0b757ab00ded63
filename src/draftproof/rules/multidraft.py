"""Rules for several drafts of one place, from the root down: a tree is judged place by place."""

from __future__ import annotations

import math

import numpy as np

from draftproof.distribution import Distribution, LawSequence
from draftproof.errors import DraftError
from draftproof.noise import Lane, Noise
from draftproof.rules.tree import TreeRule
from draftproof.tree import ROOT, DraftTree, TreeVerdict


def verify_recursive(p: LawSequence, tree: DraftTree, noise: Noise, start: int) -> TreeVerdict:
    """Each sibling is judged against what the rejected ones before it left of the target's law.

    ```
    at each node, with law p:
        for c in the order drawn:
            if u_c * q_c[c] < p[c]: descend to c
            p = norm(max(p - q_c, 0))
        nobody was accepted: return the path, and y ~ p
    ```
    q_c is the law of c given its earlier siblings: drafts without replacement are judged by this very rule.
    """
    path: list[int] = []
    node = ROOT
    while True:
        law = p[node + 1]
        for child in tree.children(node):
            q, x = tree.law(child), int(tree.tokens[child])
            if noise.uniform(start, child, Lane.ACCEPT) * q.prob(x) < law.prob(x):
                path.append(child)
                break
            law = law.residual(q)
        else:
            return TreeVerdict(tuple(path), law.sample(noise.uniform(start, node + 1, Lane.FINAL)))
        node = path[-1]


def verify_k_sequential(p: LawSequence, tree: DraftTree, noise: Noise, start: int) -> TreeVerdict:
    """Independent drafts of one law are judged alike, each with a share of the target's law.

    ```
    at each node with n children drawn from one law q:
        rho solves 1 - (1 - b)^n = rho * b, where b = sum(min(q, p / rho)) is how often one draft is accepted
        for c in the order drawn:
            if u_c * rho * q[c] < p[c]: descend to c
        nobody was accepted: return the path, and y ~ norm(p - min(q, p / rho) * (1 - (1 - b)^n) / b)
    ```
    """
    path: list[int] = []
    node = ROOT
    while True:
        law, children = p[node + 1], tree.children(node)
        laws = [tree.law(child) for child in children]
        if any(q is not laws[0] and not _equal(q, laws[0]) for q in laws):
            raise DraftError("the drafts of one place have different laws; K-SEQ needs independent drafts of one law")
        rho = share(law, laws[0], len(laws)) if laws else 1.0
        for child in children:
            x = int(tree.tokens[child])
            if noise.uniform(start, child, Lane.ACCEPT) * rho * laws[0].prob(x) < law.prob(x):
                path.append(child)
                break
        else:
            left = _left_over(law, laws[0], len(laws), rho) if laws else law
            return TreeVerdict(tuple(path), left.sample(noise.uniform(start, node + 1, Lane.FINAL)))
        node = path[-1]


def share(p: Distribution, q: Distribution, n: int) -> float:
    """Returns K-SEQ's rho, 1 <= rho <= n, for n drafts from q: 1 - (1 - b)^n = rho * b, b = sum min(q, p / rho).

    A little beyond the root, so that rounding cannot make it smaller: with a larger rho no token is emitted too often.
    """
    from scipy.optimize import brentq  # takes longer to import than most rules run

    def surplus(rho: float) -> float:
        b = accepted_share(p, q, rho)
        return _any_accepted(b, n) - rho * b

    if surplus(1.0) <= 0.0:
        return 1.0
    if surplus(float(n)) >= 0.0:
        return float(n)
    return min(float(n), float(brentq(surplus, 1.0, float(n), xtol=1e-12, rtol=1e-12)) + 1e-11)


def accepted_share(p: Distribution, q: Distribution, rho: float) -> float:
    """Returns K-SEQ's b = sum min(q, p / rho): how often one draft is accepted."""
    return float(np.minimum(q.prob_of(p.support()), p.probs / rho).sum())


def _any_accepted(b: float, n: int) -> float:
    """Returns 1 - (1 - b)^n, to full precision for a small b too."""
    return -math.expm1(n * math.log1p(-b)) if b < 1.0 else 1.0


def _left_over(p: Distribution, q: Distribution, n: int, rho: float) -> Distribution:
    b = accepted_share(p, q, rho)
    if b == 0.0:
        return p
    emitted = np.minimum(q.prob_of(p.support()), p.probs / rho) * (_any_accepted(b, n) / b)
    weights = np.maximum(p.probs - emitted, 0.0)
    return Distribution(weights, p.ids) if float(weights.sum()) > 0.0 else p


def _equal(p: Distribution, q: Distribution) -> bool:
    return np.array_equal(p.support(), q.support()) and np.array_equal(p.probs, q.probs)


def verify_tree_match(p: LawSequence, tree: DraftTree, noise: Noise, start: int) -> TreeVerdict:
    """The target's own token is drawn at each node; whoever guessed it is descended to.

    ```
    at each node, with law p:
        y ~ p
        if a child c has the token y: descend to c
        else: return the path, and y
    ```
    A set C of deterministic drafts is hit with p(C), which no rule exceeds. No law of the drafts is needed.
    """
    path: list[int] = []
    node = ROOT
    while True:
        y = p[node + 1].sample(noise.uniform(start, node + 1, Lane.FINAL))
        hit = next((child for child in tree.children(node) if int(tree.tokens[child]) == y), None)
        if hit is None:
            return TreeVerdict(tuple(path), y)
        path.append(hit)
        node = hit


class RecursiveRule(TreeRule):
    """Recursive rejection: n drafts of one place, with or without replacement."""

    name = "recursive"
    exact = True
    reference = "SpecInfer (arXiv 2305.09781); without replacement, Sequoia (arXiv 2402.12374)"

    def verify(self, p: LawSequence, tree: DraftTree, noise: Noise, start: int) -> TreeVerdict:
        """See `TreeRule.verify` and `verify_recursive`."""
        return verify_recursive(p, tree, noise, start)


class KSequentialRule(TreeRule):
    """K-SEQ: n independent drafts of one law, at least 1 - 1/e times as good as the best rule for them."""

    name = "kseq"
    exact = True
    reference = "SpecTr (arXiv 2310.15141), K-SEQ"

    def verify(self, p: LawSequence, tree: DraftTree, noise: Noise, start: int) -> TreeVerdict:
        """See `TreeRule.verify` and `verify_k_sequential`."""
        return verify_k_sequential(p, tree, noise, start)


class TreeMatchRule(TreeRule):
    """Sample and match: the best rule for deterministic sets, and exact for any other tree."""

    name = "match"
    exact = True
    reference = "sample and match; exact by construction"

    def verify(self, p: LawSequence, tree: DraftTree, noise: Noise, start: int) -> TreeVerdict:
        """See `TreeRule.verify` and `verify_tree_match`."""
        return verify_tree_match(p, tree, noise, start)
