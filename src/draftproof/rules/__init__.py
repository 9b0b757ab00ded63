"""Acceptance rules, for chains and for trees: each exact, each a short readable reference and a class."""

from draftproof.rules.base import Rule
from draftproof.rules.block import BlockRule, verify_block
from draftproof.rules.coupled import CoupledRule, verify_coupled
from draftproof.rules.match import MatchRule, verify_match
from draftproof.rules.multidraft import (
    KSequentialRule,
    RecursiveRule,
    TreeMatchRule,
    verify_k_sequential,
    verify_recursive,
    verify_tree_match,
)
from draftproof.rules.token import TokenRule, verify_token
from draftproof.rules.tree import TraversalRule, TreeRule, verify_traversal

__all__ = [
    "BlockRule",
    "CoupledRule",
    "KSequentialRule",
    "MatchRule",
    "RecursiveRule",
    "Rule",
    "TokenRule",
    "TraversalRule",
    "TreeMatchRule",
    "TreeRule",
    "verify_block",
    "verify_coupled",
    "verify_k_sequential",
    "verify_match",
    "verify_recursive",
    "verify_token",
    "verify_traversal",
    "verify_tree_match",
]
