"""The zoo's own arithmetic: laws by enumeration, against the functions that do it, and against exactness."""

from __future__ import annotations

import pytest

from draftproof.audit.conventions import Suspect
from draftproof.audit.exact_law import exact_law
from draftproof.audit.witness import EDGES, SEARCHED, Witness
from draftproof.audit.zoo import BUGS, EXACT, Bug
from tests.audit.doubles import answers_of

SMALL = Witness.random("small", 3, 2, 0.35, 13)


@pytest.mark.parametrize("witness", [*EDGES, *SEARCHED], ids=lambda each: each.name)
@pytest.mark.parametrize("procedure", EXACT, ids=lambda each: each.name)
def test_exact_procedures_have_the_targets_law(procedure: Bug, witness: Witness) -> None:
    law = procedure.law(witness)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
    assert witness.distance(law) < 1e-14


@pytest.mark.parametrize("bug", BUGS, ids=lambda each: each.name)
def test_every_bug_shows_on_a_searched_witness(bug: Bug) -> None:
    assert sum(bug.law(SEARCHED[2]).values()) == pytest.approx(1.0, abs=1e-12)
    assert max(witness.distance(bug.law(witness)) for witness in SEARCHED) > 0.01


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("bug", [*EXACT, *BUGS], ids=lambda each: each.name)
def test_a_bug_does_what_its_law_says(bug: Bug) -> None:
    found, law = exact_law(answers_of(Suspect(bug), SMALL), SMALL), bug.law(SMALL)
    assert set(found) == {text for text, mass in law.items() if mass > 1e-15}
    assert all(found[text] == pytest.approx(law[text], abs=1e-12) for text in found)


def test_names_are_distinct() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS)


def test_distances_of_random_witnesses_are_as_asked() -> None:
    for witness, distance in zip(SEARCHED, (0.1, 0.2, 0.35, 0.5), strict=True):
        apart = [abs(p - q).sum(-1).mean() / 2 for p, q in zip(witness.p, witness.q, strict=False)]
        assert sum(apart) / len(apart) == pytest.approx(distance, abs=0.15)
