"""Rules for trees: exact for every tree, by enumeration; what they accept, and what is wrong with the mutants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import draftproof.rules as shipped
from draftproof.distribution import Distribution
from draftproof.errors import DraftError, UsageError
from draftproof.noise import CounterNoise, Lane, Noise
from draftproof.rules import (
    BlockRule,
    KSequentialRule,
    RecursiveRule,
    TraversalRule,
    TreeMatchRule,
    TreeRule,
)
from draftproof.tree import ROOT, DraftTree, TreeVerdict, siblings
from draftproof.types import as_tokens
from tests.doubles import SameCoin
from tests.laws import EXACT, Case, emitted_law, losslessness_error, mean_length, of_rule
from tests.strategies import EDGE_UNIFORMS, families, family, grid
from tests.tree_laws import Shape, can_draw, drafted_trees, tree_law

SMALL: list[Shape] = [(), (2,), (3,), (1, 2)]
LARGE: list[Shape] = [(2, 2), (3, 1), (2, 1, 1)]
TREES = [
    *((name, shape) for shape in SMALL for name in ("rounded", "target-one-hot", "zeros", "tiny", "far", "clamped")),
    *((name, shape) for shape in LARGE for name in ("zeros", "far")),
]
RULES: list[type[TreeRule]] = sorted(
    (
        each
        for each in vars(shipped).values()
        if isinstance(each, type) and issubclass(each, TreeRule) and each is not TreeRule
    ),
    key=lambda each: each.name,
)


def takes(rule: type[TreeRule], replacement: bool) -> bool:
    """Returns whether a rule is for such drafts."""
    return replacement or rule is not KSequentialRule


def test_there_is_something_to_prove() -> None:
    assert {rule.name for rule in RULES} == {"traversal", "recursive", "kseq", "match"}
    assert all(rule.exact and rule.reference for rule in RULES)


@pytest.mark.parametrize(("name", "shape"), TREES, ids=str)
@pytest.mark.parametrize("replacement", [True, False], ids=["with", "without"])
@pytest.mark.parametrize("rule", RULES)
def test_a_tree_is_lossless(rule: type[TreeRule], replacement: bool, name: str, shape: Shape) -> None:
    case = family(name, 3, len(shape))
    if not takes(rule, replacement) or (not replacement and not can_draw(case, shape)):
        return
    if rule is KSequentialRule and shape in LARGE and name == "far":
        return  # solving for rho at each branch takes a quarter of a minute; "zeros" has the same trees
    law = tree_law(rule(), case, drafted_trees(case, shape, replacement=replacement))
    assert sum(law.values()) == pytest.approx(1.0, abs=EXACT)
    assert losslessness_error(law, case, len(shape) + 1) < EXACT


@pytest.mark.parametrize(("vocab", "count"), [(4, 2), (4, 3), (5, 2), (5, 3)])
@pytest.mark.parametrize("name", ["far", "zeros"])
@pytest.mark.parametrize("replacement", [True, False], ids=["with", "without"])
@pytest.mark.parametrize("rule", RULES)
def test_several_drafts_of_one_place_are_lossless(
    rule: type[TreeRule], replacement: bool, name: str, count: int, vocab: int
) -> None:
    case = family(name, vocab, 1)
    if not takes(rule, replacement):
        return
    law = tree_law(rule(), case, drafted_trees(case, (count,), replacement=replacement))
    assert losslessness_error(law, case, 2) < EXACT


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", grid(3, 1)[-3:], ids=str)
def test_deterministic_trees_are_lossless(rule: type[TreeRule], case: Case) -> None:
    if rule is KSequentialRule:  # its drafts are independent: two different certainties are not of one law
        return
    tree = DraftTree(as_tokens([2, 0, 1, 0]), as_tokens([ROOT, ROOT, 0, 1]))
    law = tree_law(rule(), case, iter([(1.0, tree)]))
    assert losslessness_error(law, case, 3) < EXACT
    # A set of certain drafts is hit with its probability, whatever the rule.
    first = case.p(case.prompt)
    assert sum(mass for text, mass in law.items() if len(text) > 1) == pytest.approx(first.prob(2) + first.prob(0))


@pytest.mark.parametrize("case", grid(3, 3), ids=str)
def test_traversal_of_a_chain_gives_what_the_block_rule_gives(case: Case) -> None:
    if case.deterministic:
        return
    chain = tree_law(TraversalRule(), case, drafted_trees(case, (1, 1, 1), replacement=True))
    block = emitted_law(of_rule(BlockRule()), case)
    assert set(chain) == {text for text, mass in block.items() if mass > 0.0 or text in chain}
    assert all(mass == pytest.approx(block[text], abs=EXACT) for text, mass in chain.items())


@pytest.mark.parametrize("shape", [(2,), (2, 2), (2, 1, 1), (1, 2)], ids=str)
@pytest.mark.parametrize("replacement", [True, False], ids=["with", "without"])
@pytest.mark.parametrize("name", ["far", "near", "zeros", "clamped"])
def test_traversal_gives_at_least_what_recursive_rejection_gives(name: str, replacement: bool, shape: Shape) -> None:
    case = family(name, 3, len(shape))
    given = {
        rule: mean_length(tree_law(rule(), case, drafted_trees(case, shape, replacement=replacement)))
        for rule in (TraversalRule, RecursiveRule)
    }
    assert given[TraversalRule] > given[RecursiveRule] - EXACT


def test_traversal_gains_somewhere() -> None:
    case = family("far", 3, 3)
    given = [
        mean_length(tree_law(rule, case, drafted_trees(case, (2, 1, 1), replacement=True)))
        for rule in (TraversalRule(), RecursiveRule())
    ]
    assert given[0] > given[1] + 0.01


class WithReplacementTaken(RecursiveRule):
    """Drafts without replacement, judged by the laws they would have had with it."""


class BestChildFirst(RecursiveRule):
    """Siblings are judged by falling probability, not as they were drawn."""

    def verify(self, p: Sequence[Distribution], tree: DraftTree, noise: Noise, start: int) -> TreeVerdict:
        first = sorted(tree.children(ROOT), key=lambda node: -p[0].prob(int(tree.tokens[node])))
        laws = tree.laws
        assert laws is not None
        order = [*first, *range(len(first), len(tree))]
        back = {node: place for place, node in enumerate(order)}
        parents = [back.get(int(tree.parents[node]), ROOT) for node in order]
        shuffled = DraftTree(tree.tokens[order], as_tokens(parents), [laws[node] for node in order])
        verdict = super().verify([p[0], *(p[node + 1] for node in order)], shuffled, noise, start)
        return TreeVerdict(tuple(order[node] for node in verdict.path), verdict.token)


class ResidualForgotten(TreeRule):
    """Every sibling is judged against p itself."""

    name, exact, reference = "forgotten", False, ""

    def verify(self, p: Sequence[Distribution], tree: DraftTree, noise: Noise, start: int) -> TreeVerdict:
        law = p[0]
        for child in tree.children(ROOT):
            x, q = int(tree.tokens[child]), tree.law(child)
            if noise.uniform(start, child, Lane.ACCEPT) * q.prob(x) < p[0].prob(x):
                return TreeVerdict((child,), p[child + 1].sample(noise.uniform(start, child + 1, Lane.FINAL)))
            law = p[0].residual(q)
        return TreeVerdict((), law.sample(noise.uniform(start, 0, Lane.FINAL)))


class ShareForgotten(TreeRule):
    """K-SEQ's acceptance with recursive rejection's residual."""

    name, exact, reference = "share", False, ""

    def verify(self, p: Sequence[Distribution], tree: DraftTree, noise: Noise, start: int) -> TreeVerdict:
        children = tree.children(ROOT)
        for child in children:
            x, q = int(tree.tokens[child]), tree.law(child)
            if noise.uniform(start, child, Lane.ACCEPT) * len(children) * q.prob(x) < p[0].prob(x):
                return TreeVerdict((child,), p[child + 1].sample(noise.uniform(start, child + 1, Lane.FINAL)))
        return TreeVerdict((), p[0].residual(tree.law(0)).sample(noise.uniform(start, 0, Lane.FINAL)))


class TraversalDropsEqualChildren(TraversalRule):
    """A second draft of one token is dropped instead of judged."""

    def verify(self, p: Sequence[Distribution], tree: DraftTree, noise: Noise, start: int) -> TreeVerdict:
        kept = [
            node
            for node in range(len(tree))
            if not any(int(tree.tokens[other]) == int(tree.tokens[node]) for other in range(node))
        ]
        laws = tree.laws
        assert laws is not None
        small = DraftTree(tree.tokens[kept], as_tokens([ROOT] * len(kept)), [laws[node] for node in kept])
        verdict = super().verify([p[0], *(p[node + 1] for node in kept)], small, noise, start)
        return TreeVerdict(tuple(kept[node] for node in verdict.path), verdict.token)


@pytest.mark.parametrize(
    ("rule", "replacement", "declared"),
    [
        (WithReplacementTaken(), False, True),
        (TraversalRule(), False, True),
        (BestChildFirst(), False, False),
        (BestChildFirst(), True, True),
        (ResidualForgotten(), True, True),
        (ShareForgotten(), True, True),
        (TraversalDropsEqualChildren(), True, True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TreeRule) else str(value),
)
def test_mutants_are_rejected(rule: TreeRule, replacement: bool, declared: bool) -> None:
    errors = []
    for name in ("far", "near", "zeros"):
        case = family(name, 3, 1)
        trees = drafted_trees(case, (2,), replacement=replacement, declared_replacement=declared)
        errors.append(losslessness_error(tree_law(rule, case, trees), case, 2))
    assert max(errors) > 1e-3


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("u", EDGE_UNIFORMS)
def test_no_coin_emits_the_impossible(rule: type[TreeRule], u: float) -> None:
    for target, draft in families(3).values():
        for p, q in zip(map(np.array, target), map(np.array, draft), strict=False):
            law = Distribution(q)
            for x in np.flatnonzero(q).tolist():
                for y in np.flatnonzero(q).tolist():
                    tree = DraftTree(as_tokens([x, y]), as_tokens([ROOT, ROOT]), [law, law])
                    verdict = rule().verify([Distribution(p)] * 3, tree, SameCoin(u), 0)
                    emitted = [*(int(tree.tokens[node]) for node in verdict.path), verdict.token]
                    assert all(p[token] > 0.0 for token in emitted)


def test_a_deep_chain_is_judged(unchecked: None) -> None:
    law = Distribution(np.array([0.5, 0.5]))
    depth = 200
    tree = DraftTree(as_tokens([0] * depth), as_tokens(np.arange(depth) - 1), [law] * depth)
    for rule in RULES:
        verdict = rule().verify([law] * (depth + 1), tree, CounterNoise(1), 0)
        assert verdict.path == tuple(range(len(verdict.path)))


def test_k_sequential_refuses_drafts_of_several_laws() -> None:
    p, q = Distribution(np.array([0.5, 0.3, 0.2])), Distribution(np.array([0.2, 0.3, 0.5]))
    tree = DraftTree(as_tokens([2, 1]), as_tokens([ROOT, ROOT]), siblings(q, [2, 1]))
    with pytest.raises(DraftError, match="independent drafts of one law"):
        KSequentialRule().verify([p, p, p], tree, CounterNoise(0), 0)


def test_a_tree_that_is_none_is_refused(unchecked: None) -> None:
    with pytest.raises(UsageError, match="node 1 has parent 1"):
        DraftTree(as_tokens([1, 2]), as_tokens([ROOT, 1]))
    with pytest.raises(UsageError, match="2 tokens has 1 parents"):
        DraftTree(as_tokens([1, 2]), as_tokens([ROOT]))
    with pytest.raises(UsageError, match="0 laws"):
        DraftTree(as_tokens([1]), as_tokens([ROOT]), [])


def test_siblings_lose_what_was_drawn_before_them() -> None:
    q = Distribution(np.array([0.5, 0.3, 0.2]))
    first, second, third = siblings(q, [0, 2, 1])
    assert first.probs.tolist() == q.probs.tolist()
    assert second.dense(3) == pytest.approx([0.0, 0.6, 0.4])
    assert third.dense(3) == pytest.approx([0.0, 1.0, 0.0])
    for impossible in ([0, 0], [0, 1, 2, 0]):
        with pytest.raises(DraftError, match="without replacement"):
            siblings(q, impossible)
    assert TreeMatchRule.exact
