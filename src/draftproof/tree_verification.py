"""The acceptance step for engines that draft trees: `verify_tree`."""

from __future__ import annotations

from typing import Any

import numpy as np

from draftproof.distribution import Distribution
from draftproof.errors import DraftError, UsageError, choice_error, whole
from draftproof.kernels.numpy import law_of_probs
from draftproof.kernels.problem import LAST_POSITION, Array, host, in_unit, sum_tolerance
from draftproof.kernels.rowwise import Coins, LazyLaws
from draftproof.noise import CounterNoise, Noise, Seed
from draftproof.rules import KSequentialRule, RecursiveRule, TraversalRule, TreeMatchRule, TreeRule
from draftproof.tree import ROOT, DraftTree, TreeVerdict, siblings
from draftproof.types import as_tokens

TREE_RULES: dict[str, type[TreeRule]] = {
    rule.name: rule for rule in (TraversalRule, RecursiveRule, KSequentialRule, TreeMatchRule)
}


def verify_tree(
    target_probs: Array,
    draft_tokens: Array,
    parents: Array,
    draft_probs: Array | None = None,
    *,
    uniforms: Array | None = None,
    seed: Seed | None = None,
    position: int = 0,
    replacement: bool = True,
    rule: str = "traversal",
) -> TreeVerdict:
    """Judges one drafted tree; several drafts of one place are a tree of depth 1.

    Arguments are arrays, lists or tensors on a CPU.

    Args:
        target_probs: p, `[node+1, vocab]`: row 0 after the text, row v + 1 after the path to node v.
        draft_tokens: `[node]`; parents before children, siblings in the order they were drawn.
        parents: index of each node's parent, `[node]`; -1 for those that follow the text.
        draft_probs: q, `[node, vocab]`: the law each token was drawn from; None for a deterministic tree.
        uniforms: `[node+1]`: entry v is the coin of node v, the last one draws the final token. Under "match" entry
            v + 1 draws the target's token after node v, entry 0 the first.
        seed: instead of uniforms.
        position: with a seed, the absolute position of the first drafted token.
        replacement: False: siblings were drawn without replacement from one law; `draft_probs` holds that law for each
            of them, and earlier siblings are taken out of it here.
        rule: "traversal", "recursive", "kseq" (independent drafts only) or "match".

    Returns:
        The accepted nodes from the root down, and the token that follows them.

    Raises:
        UsageError: if an argument is wrong.
        DraftError: if the drafts cannot have been drawn as said.
        RowError: if a law that the rule needs is none.
    """
    if not isinstance(rule, str) or rule not in TREE_RULES:
        raise choice_error("rule", rule, list(TREE_RULES))
    if not isinstance(replacement, bool):
        raise UsageError(f"replacement {replacement!r} is neither True nor False")
    p, tokens, above = host("target_probs", target_probs), host("draft_tokens", draft_tokens), host("parents", parents)
    for name, array in (("draft_tokens", tokens), ("parents", above)):
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise UsageError(f"{name} has shape {array.shape} and dtype {array.dtype}; give integers [node]")
    nodes = len(tokens)
    if p.ndim != 2 or len(p) != nodes + 1 or p.shape[1] < 1:
        raise UsageError(f"target_probs has shape {p.shape}; give [node+1, vocab] with {nodes + 1} rows")
    vocab = p.shape[1]
    if nodes and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab:
        raise UsageError(f"draft_tokens {tokens.tolist()} has ids outside the vocabulary 0..{vocab - 1}")
    skeleton = DraftTree(as_tokens(tokens), above if above.size else as_tokens(above))
    laws: list[Distribution] | None = None
    if draft_probs is not None and rule != TreeMatchRule.name:  # which needs no law of the drafts
        q = host("draft_probs", draft_probs)
        if q.shape != (nodes, vocab):
            raise UsageError(f"draft_probs has shape {q.shape}; give [node, vocab] = [{nodes}, {vocab}]")
        tolerance = sum_tolerance("draft_probs", q)
        laws = [law_of_probs(row, f"draft_probs[{node}]", tolerance) for node, row in enumerate(q)]
        groups = [] if replacement else [group for node in range(ROOT, nodes) if (group := skeleton.children(node))]
        for group in groups:
            for node, law in zip(group, siblings(laws[group[0]], tokens[group].tolist()), strict=True):
                laws[node] = law
        for node, law in enumerate(laws):
            if not law.prob(int(tokens[node])) > 0.0:
                raise DraftError(f"draft token {int(tokens[node])} of node {node} has probability 0 under its own law")
    start = whole("position", position)
    if uniforms is not None and start != 0:
        raise UsageError(f"position {position} belongs to a seed; leave it out beside uniforms")
    if abs(start) > LAST_POSITION:
        raise UsageError(f"position {position} must be an integer below 2**62")
    judged_by = sum_tolerance("target_probs", p)
    rows = LazyLaws(lambda _, place: law_of_probs(p[place], f"target_probs[{place}]", judged_by), 0, nodes + 1)
    tree = DraftTree(skeleton.tokens, skeleton.parents, laws)
    return TREE_RULES[rule]().verify(rows, tree, _noise(uniforms, seed, nodes, rule), start)


def _noise(uniforms: Any, seed: Seed | None, nodes: int, rule: str) -> Noise:
    if (uniforms is None) == (seed is None):
        raise UsageError("give either uniforms or a seed")
    if uniforms is None:
        return CounterNoise(seed)
    values = host("uniforms", uniforms)
    if values.dtype.kind != "f" or values.shape != (nodes + 1,) or not bool(in_unit(values).all()):
        raise UsageError(f"uniforms {values!r} must be {nodes + 1} numbers in [0, 1): one a node and one more")
    return Coins(values[:-1], values if rule == TreeMatchRule.name else np.repeat(values[-1:], nodes + 1))
