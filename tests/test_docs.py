"""What the documentation says in tables that the code knows better."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftproof.rules import Rule, TreeRule
from draftproof.rules.load import RULES
from draftproof.tree_verification import TREE_RULES

DOCS = Path(__file__).parent.parent / "docs"


def rule_table(rules: dict[str, type[Rule]] | dict[str, type[TreeRule]]) -> str:
    """Returns the table of some rules, from what their classes declare."""
    lines = ["| rule | spec | exact | from |", "|---|---|---|---|"]
    for name, rule in rules.items():
        lines.append(f'| `{rule.__name__}` | `"{name}"` | {"yes" if rule.exact else "no"} | {rule.reference} |')
    return "\n".join(lines)


@pytest.mark.parametrize(("marker", "rules"), [("chain-rules", RULES), ("tree-rules", TREE_RULES)])
def test_the_rule_tables_are_those_of_the_classes(
    marker: str, rules: dict[str, type[Rule]] | dict[str, type[TreeRule]]
) -> None:
    page = (DOCS / "choosing-a-rule.md").read_text()
    _, _, rest = page.partition(f"<!-- {marker} -->\n")
    shown, closing, _ = rest.partition(f"\n<!-- /{marker} -->")
    assert closing
    assert shown == rule_table(rules), f"the table must read:\n{rule_table(rules)}"
