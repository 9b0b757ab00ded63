"""Names by place in a block: what a chain makes of a token is a law, and one that is told where blocks begin fits."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from draftproof.audit.blocks import BONUS, BY_BLOCK, FIRST, LENGTHS, NAMES, SELDOM, STAYS, Blocks
from draftproof.audit.laws import BUG_LAWS, Place
from tests.audit.test_martingale import a_place

VOCAB = 12


def a_text(tokens: int, drafted: bool = True) -> list[tuple[Place, int]]:
    """Returns places with a token of each: every fourth without a draft, and a text that begins at the first."""
    rng = np.random.default_rng(0)
    places = []
    for i in range(tokens):
        place = a_place(i, drafted=drafted and i % 4 != 3)
        place = Place(
            p=place.p,
            q=place.q,
            raw=place.raw,
            before=place.before if i else None,
            drafted_before=rng.dirichlet(np.ones(VOCAB)) if i and drafted else None,
            usual=rng.dirichlet(np.ones(VOCAB)),
        )
        places.append((place, int(rng.choice(VOCAB, p=place.p))))
    return places


def noted(text: list[tuple[Place, int]]) -> Blocks:
    blocks = Blocks()
    for place, at in text:
        blocks.note(place, at, [bug.outcome(place) for bug in BUG_LAWS])
    return blocks


def test_after_any_text_a_bug_makes_a_law_of_the_next_token() -> None:
    text = a_text(7)
    mean = np.zeros((len(NAMES) - len(BY_BLOCK), len(LENGTHS)))
    for at, chance in enumerate(text[-1][0].p.tolist()):
        mean += chance * noted([*text[:-1], (text[-1][0], at)])._chained()[-1]
    assert mean == pytest.approx(np.ones_like(mean), abs=1e-9)


def test_without_drafts_bugs_of_drafts_explain_nothing() -> None:
    fits = dict(zip((bug.name for bug in NAMES), noted(a_text(30, drafted=False)).fits(), strict=True))
    assert all(fits[bug.name] <= 0.0 for bug in (FIRST, BONUS, STAYS, *BY_BLOCK))


def test_what_was_noted_is_left_alone_by_a_look_at_it() -> None:
    blocks = noted(a_text(12))
    before = copy.deepcopy(blocks)
    assert blocks.fits() == blocks.fits() == before.fits()
    assert len(blocks) == 12
    assert SELDOM > 0.0
