"""From a rule's name to the rules an engine uses."""

from __future__ import annotations

from draftproof.draft.base import Drafter
from draftproof.errors import choice_error
from draftproof.rules.base import Rule
from draftproof.rules.coupled import CoupledRule
from draftproof.rules.token import TokenRule

RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (TokenRule, CoupledRule)}


def resolve_rules(rule: Rule | str, drafter: Drafter) -> tuple[Rule, Rule]:
    """Returns the rule for requests without a seed, and the one for requests with a seed.

    "auto" couples deterministic drafts, which costs no acceptance (both rules keep a one-hot draft with p(x)) and
    needs no residual; it verifies sampled drafts by the token rule, whose acceptance is the best possible. A request
    with a seed is always coupled under "auto": same seed, same text.
    """
    if isinstance(rule, Rule):
        return rule, rule
    if rule == "auto":
        return (TokenRule() if drafter.stochastic else CoupledRule()), CoupledRule()
    if rule not in RULES:
        raise choice_error("rule", rule, ["auto", *RULES])
    return RULES[rule](), RULES[rule]()
