"""Acceptance rules: each exact, each one file."""

from draftproof.rules.base import Rule
from draftproof.rules.coupled import CoupledRule, verify_coupled
from draftproof.rules.token import TokenRule, verify_token

__all__ = ["CoupledRule", "Rule", "TokenRule", "verify_coupled", "verify_token"]
