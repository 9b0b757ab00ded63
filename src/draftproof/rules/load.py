"""From a rule's name to the rules an engine uses."""

from __future__ import annotations

from draftproof.draft.base import Drafter
from draftproof.errors import choice_error
from draftproof.rules import BlockRule, CoupledRule, MatchRule, Rule, TokenRule

RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (TokenRule, BlockRule, CoupledRule, MatchRule)}


def resolve_rules(rule: Rule | str, drafter: Drafter) -> tuple[Rule, Rule]:
    """Returns the rule for requests without a seed, and the one for requests with a seed.

    "auto" couples deterministic drafts, which costs no acceptance (every rule keeps a one-hot draft with p(x)) and
    needs no residual; it verifies sampled drafts by the block rule, which keeps at least what the token rule keeps. A
    request with a seed is always coupled under "auto": same seed, same text.
    """
    check_rule(rule)
    if rule == "auto":
        return (BlockRule() if drafter.stochastic else CoupledRule()), CoupledRule()
    return load_rule(rule), load_rule(rule)


def load_rule(rule: Rule | str) -> Rule:
    """Returns the rule a name means; a rule is returned as it is.

    Raises:
        UsageError: if it is unknown.
    """
    if isinstance(rule, Rule):
        return rule
    if rule not in RULES:
        raise choice_error("rule", rule, list(RULES))
    return RULES[rule]()


def check_rule(rule: Rule | str) -> None:
    """Raises UsageError if a spec names no rule."""
    if not isinstance(rule, Rule) and rule != "auto" and rule not in RULES:
        raise choice_error("rule", rule, ["auto", *RULES])
