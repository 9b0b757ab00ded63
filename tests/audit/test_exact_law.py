"""Laws recovered from answers to chosen uniforms."""

from __future__ import annotations

import numpy as np
import pytest
from jaxtyping import Float, Int

from draftproof.audit.exact_law import NotBoxes, exact_law
from draftproof.audit.witness import Text, Witness

ONE = Witness.same("one draft", (0.5, 0.3, 0.2), (0.0, 1.0, 0.0), 1)


def law_of(emit: object, witness: Witness = ONE) -> dict[Text, float]:
    def answers(which: Int[np.ndarray, "n"], uniforms: Float[np.ndarray, "n coins"]) -> list[Text]:
        return [emit(*point) for point in uniforms.tolist()]  # type: ignore[operator]

    return exact_law(answers, witness)


def test_thresholds_are_found_to_rounding() -> None:
    law = law_of(lambda a, u: (1, 0) if a < 1 / 3 else (2,) if u < 0.1 else (0,))
    assert law[1, 0] == pytest.approx(1 / 3, abs=1e-15)
    assert law[2,] == pytest.approx(2 / 30, abs=1e-15)
    assert law[0,] == pytest.approx(18 / 30, abs=1e-15)


def test_changes_between_two_grid_places_are_all_found() -> None:
    edges = [0.50001, 0.50002, 0.50003]
    law = law_of(
        lambda a, u: (int(np.searchsorted(edges, u, side="right")),), Witness.same("", (0.25,) * 4, (0, 1, 0, 0), 1)
    )
    assert law == {
        (0,): pytest.approx(0.50001),
        (1,): pytest.approx(1e-5),
        (2,): pytest.approx(1e-5),
        (3,): pytest.approx(1 - 0.50003),
    }


def test_a_coin_that_matters_only_after_another() -> None:
    law = law_of(
        lambda a, b, u: ((1, 1, 0) if b < 0.7 else (1, 2)) if a < 0.4 else (0,),
        Witness.same("", (0.5, 0.3, 0.2), (0.0, 1.0, 0.0), 2),
    )
    assert law == {(1, 1, 0): pytest.approx(0.28), (1, 2): pytest.approx(0.12), (0,): pytest.approx(0.6)}


def test_a_change_at_zero_alone_takes_no_room() -> None:
    assert law_of(lambda a, u: (1, 0) if a <= 0.0 else (0,)) == {(0,): pytest.approx(1.0)}


@pytest.mark.parametrize(
    "emit",
    [
        lambda a, u: (0,) if a + u < 1.0 else (1, 2),
        lambda a, u: (0,) if np.random.default_rng().random() < 0.5 else (2,),
    ],
    ids=["a slanted edge", "randomness of its own"],
)
def test_answers_that_are_no_boxes_are_told(emit: object) -> None:
    with pytest.raises(NotBoxes):
        law_of(emit)
