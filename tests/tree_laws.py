"""The exact law of one iteration over a drafted tree, by enumeration of every draft and every coin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

from draftproof.distribution import Distribution
from draftproof.noise import Noise
from draftproof.rules import TreeRule
from draftproof.tree import ROOT, DraftTree, siblings
from draftproof.types import as_tokens
from tests.laws import Case, Text, enumerate_law, types_unchecked

Shape = tuple[int, ...]
"""How many children a node has, by depth: (2, 1) is two drafts, each with one that follows."""


def skeleton(shape: Shape) -> tuple[list[int], list[list[int]]]:
    """Returns the parents of a tree's nodes, and its groups of siblings, breadth first."""
    parents: list[int] = []
    groups: list[list[int]] = []
    level = [ROOT]
    for width in shape:
        level = [node for parent in level for node in _grown(parents, groups, parent, width)]
    return parents, groups


def _grown(parents: list[int], groups: list[list[int]], parent: int, width: int) -> list[int]:
    group = list(range(len(parents), len(parents) + width))
    parents += [parent] * width
    groups.append(group)
    return group


def path_text(tokens: Sequence[int], parents: Sequence[int], node: int) -> Text:
    """Returns the drafted tokens from the root to a node."""
    text: list[int] = []
    while node != ROOT:
        text.append(int(tokens[node]))
        node = int(parents[node])
    return tuple(reversed(text))


def drafted_trees(
    case: Case, shape: Shape, *, replacement: bool, declared_replacement: bool | None = None
) -> Iterator[tuple[float, DraftTree]]:
    """Yields every tree that the case's drafter may propose, with its probability.

    Args:
        case: the pair of models.
        shape: of the tree.
        replacement: whether siblings are drawn with replacement.
        declared_replacement: what the laws in the tree say; None: the truth.
    """
    parents, groups = skeleton(shape)
    told = replacement if declared_replacement is None else declared_replacement

    def grow(place: int, tokens: list[int], laws: list[Distribution], mass: float) -> Iterator[tuple[float, DraftTree]]:
        if place == len(groups):
            yield mass, DraftTree(as_tokens(tokens), as_tokens(parents), laws)
            return
        group = groups[place]
        q = case.q((*case.prompt, *path_text(tokens, parents, parents[group[0]])))
        for drawn, chance in _draws(q, len(group), replacement):
            declared = [q] * len(drawn) if told else siblings(q, drawn)
            yield from grow(place + 1, [*tokens, *drawn], [*laws, *declared], mass * chance)

    return grow(0, [], [], 1.0)


def _draws(q: Distribution, n: int, replacement: bool) -> Iterator[tuple[Text, float]]:
    if n == 0:
        yield (), 1.0
        return
    for token in q.support().tolist():
        chance = q.prob(token)
        if chance == 0.0:
            continue
        rest = q if replacement else q.without(token)
        if rest is None and n > 1:
            continue
        for more, others in _draws(rest or q, n - 1, replacement):
            yield (token, *more), chance * others


def tree_law(rule: TreeRule, case: Case, trees: Iterator[tuple[float, DraftTree]]) -> dict[Text, float]:
    """Returns the exact law of what one iteration emits."""
    law: defaultdict[Text, float] = defaultdict(float)
    for mass, tree in _with_checks_at_first(trees):
        tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
        with types_unchecked(unless=not law):
            laws = [case.p((*case.prompt, *path_text(tokens, parents, node))) for node in range(-1, len(tree))]
            for text, chance in enumerate_law(partial(_emitted, rule, laws, tree)).items():
                law[text] += mass * chance
    return dict(law)


def _emitted(rule: TreeRule, laws: list[Distribution], tree: DraftTree, noise: Noise) -> Text:
    verdict = rule.verify(laws, tree, noise, 1)
    return (*(int(tree.tokens[node]) for node in verdict.path), verdict.token)


def can_draw(case: Case, shape: Shape) -> bool:
    """Returns whether the drafter's laws always have enough tokens to draw the siblings without replacement."""
    return sum(mass for mass, _ in _with_checks_at_first(drafted_trees(case, shape, replacement=False))) > 1.0 - 1e-9


def _with_checks_at_first(trees: Iterator[tuple[float, DraftTree]]) -> Iterator[tuple[float, DraftTree]]:
    first = True
    while True:
        with types_unchecked(unless=first):
            found = next(trees, None)
        if found is None:
            return
        yield found
        first = False
