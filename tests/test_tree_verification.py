"""`verify_tree`: a tree from arrays is judged as its rule judges it; what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import draftproof as dp
from draftproof.distribution import Distribution
from draftproof.errors import DraftError, RowError, UsageError
from draftproof.noise import CounterNoise
from draftproof.tree import ROOT, DraftTree, siblings
from draftproof.tree_verification import TREE_RULES
from draftproof.types import as_tokens

P_TREE = np.array([[0.1, 0.6, 0.3], [0.5, 0.25, 0.25], [0.2, 0.2, 0.6], [0.3, 0.3, 0.4]])
Q_TREE = np.array([[0.6, 0.2, 0.2], [0.6, 0.2, 0.2], [0.2, 0.5, 0.3]])


@pytest.mark.parametrize("rule", ["traversal", "recursive", "match"])
@pytest.mark.parametrize("replacement", [True, False])
def test_a_tree_is_judged_as_its_rule_judges_it(rule: str, replacement: bool) -> None:
    tokens, parents = np.array([0, 1, 1]), np.array([ROOT, ROOT, 0])
    laws = [Distribution(row) for row in Q_TREE]
    if not replacement:
        laws[:2] = siblings(laws[0], [0, 1])
    tree = DraftTree(as_tokens(tokens), as_tokens(parents), laws)
    for seed in range(50):
        expected = TREE_RULES[rule]().verify([Distribution(row) for row in P_TREE], tree, CounterNoise(seed), 9)
        found = dp.verify_tree(
            P_TREE, tokens, parents, Q_TREE, seed=seed, position=9, rule=rule, replacement=replacement
        )
        assert found == expected


def test_a_trees_uniforms_are_read_by_node() -> None:
    tokens, parents = np.array([0, 1, 1]), np.array([ROOT, ROOT, 0])
    found = dp.verify_tree(P_TREE, tokens, parents, Q_TREE, uniforms=np.array([0.9, 0.9, 0.9, 0.5]), rule="recursive")
    assert found.path == (1,)  # node 0 stands with 1/6; the residual then prefers node 1's token
    assert found.token == 2
    matched = dp.verify_tree(P_TREE, tokens, parents, uniforms=np.array([0.05, 0.6, 0.0, 0.9]), rule="match")
    assert matched.path == (0, 2)
    assert matched.token == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rule": "tree"}, "rule 'tree' is unknown; use one of: traversal"),
        ({"target_probs": P_TREE[:2]}, "target_probs has shape"),
        ({"draft_tokens": np.array([0, 1, 3])}, "outside the vocabulary 0..2"),
        ({"draft_tokens": np.array([0.5, 1, 1])}, "draft_tokens has shape"),
        ({"parents": np.array([-1, -1, 2])}, "node 2 has parent 2"),
        ({"parents": np.array([-1, -1])}, "2 parents"),
        ({"draft_probs": Q_TREE[:2]}, "draft_probs has shape"),
        ({"uniforms": np.zeros(3)}, "must be 4 numbers"),
        ({"uniforms": None}, "either uniforms or a seed"),
        ({"uniforms": "abc"}, "uniforms 'abc' has dtype"),
        ({"parents": np.array([2**32 - 1, -1, 0])}, "node 0 has parent 4294967295"),
        ({"position": 5}, "position 5 belongs to a seed"),
        ({"uniforms": None, "seed": 1, "position": 2**63}, "position 9223372036854775808"),
        ({"uniforms": None, "seed": 1, "position": 1.5}, "position 1.5 is not an integer"),
        ({"replacement": "no"}, "replacement 'no'"),
        ({"rule": ["match"]}, "is unknown"),
    ],
)
def test_a_wrong_tree_is_refused_by_name(unchecked: None, change: dict[str, Any], said: str) -> None:
    good: dict[str, Any] = {
        "target_probs": P_TREE, "draft_tokens": np.array([0, 1, 1]), "parents": np.array([-1, -1, 0]),
        "draft_probs": Q_TREE, "uniforms": np.full(4, 0.5),
    }  # fmt: skip
    with pytest.raises(UsageError, match=said):
        dp.verify_tree(**(good | change))


def test_a_tree_with_a_broken_law_or_impossible_siblings() -> None:
    broken = P_TREE.copy()
    broken[0, 0] = np.nan
    with pytest.raises(RowError, match=r"target_probs\[0\] is no law"):
        dp.verify_tree(broken[:2], np.array([0]), np.array([-1]), uniforms=np.full(2, 0.5), rule="match")
    with pytest.raises(DraftError, match="without replacement"):
        dp.verify_tree(
            P_TREE[:3], np.array([0, 0]), np.array([-1, -1]), Q_TREE[:2], uniforms=np.full(3, 0.5), replacement=False
        )
    with pytest.raises(DraftError, match="node 0 has probability 0"):
        dp.verify_tree(P_TREE[:2], [0], [-1], np.array([[0.0, 0.5, 0.5]]), uniforms=[0.5, 0.5])


def test_tensors_lists_and_an_empty_tree_are_taken() -> None:
    import torch

    found = dp.verify_tree(
        torch.tensor(P_TREE, requires_grad=True), [0, 1, 1], [-1, -1, 0], torch.tensor(Q_TREE), uniforms=[0.5] * 4
    )
    assert found == dp.verify_tree(P_TREE, np.array([0, 1, 1]), np.array([-1, -1, 0]), Q_TREE, uniforms=np.full(4, 0.5))
    assert dp.verify_tree(P_TREE[:1], [], [], uniforms=[0.05]).token == 0


def test_a_tree_too_deep_to_traverse_is_refused() -> None:
    depth = 3000
    with pytest.raises(DraftError, match="3000 nodes is too deep"):
        dp.verify_tree(
            np.full((depth + 1, 2), 0.5), [0] * depth, np.arange(depth) - 1, np.full((depth, 2), 0.5), seed=1
        )
