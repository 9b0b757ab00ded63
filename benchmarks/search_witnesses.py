"""Searches for the instances on which verification functions are audited: where the bug that shows least shows most.

    python -m benchmarks.search_witnesses

For each distance between drafter and target it prints the best of thirty seeds, with what a draft tells there of each
bug: sum (b - p)^2 / p over texts of four tokens, whose product with the number of drafts is the noncentrality of the
G-test. `draftproof.audit.witness.SEARCHED` holds the choice.
"""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table

from draftproof.audit.witness import SEARCHED, Witness
from draftproof.audit.zoo import BUGS

DISTANCES = (0.1, 0.2, 0.35, 0.5)
SEEDS = 30
RAREST = 5e-6
"""Texts rarer than this are of no use to a test of frequencies."""


def told(witness: Witness) -> dict[str, float]:
    """Returns what one draft tells of each bug."""
    target = witness.target
    return {bug.name: float(((witness.completed(bug.law(witness)) - target) ** 2 / target).sum()) for bug in BUGS}


def main() -> None:
    console = Console(width=120)
    best = Table("distance", "seed", "least told by a draft", "of the bug", title="best seeds")
    for distance in DISTANCES:
        found = []
        for seed in range(SEEDS):
            witness = Witness.random("", 3, 3, distance, seed)
            if float(witness.target.min()) >= RAREST:
                each = told(witness)
                weakest = min(each, key=lambda bug, each=each: each[bug])  # type: ignore[misc]
                found.append((each[weakest], seed, weakest))
        for value, seed, name in sorted(found, reverse=True)[:3]:
            best.add_row(str(distance), str(seed), f"{value:.2e}", name)
    console.print(best)
    chosen = Table("bug", *(witness.name for witness in SEARCHED), title="what a draft tells on those chosen")
    rows = [told(witness) for witness in SEARCHED]
    for bug in BUGS:
        chosen.add_row(bug.name, *(f"{row[bug.name]:.2e}" for row in rows))
    console.print(chosen)
    console.print(f"drafts for power 0.99 at 1e-4 or so: {60 / np.max([min(r.values()) for r in rows]):.0f}, all bugs")


if __name__ == "__main__":
    main()
