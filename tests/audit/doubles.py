"""Stand-ins for audits."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from draftproof.audit.conventions import Suspect
from draftproof.audit.exact_law import Answers
from draftproof.audit.witness import Text, Witness


def answers_of(suspect: Suspect, witness: Witness) -> Answers:
    """Returns a suspect's answers on a witness."""
    rows = [witness.rows(draft) for draft in witness.drafts]
    p, q = np.array([each[0] for each in rows]), np.array([each[1] for each in rows])
    x = np.array(list(witness.drafts), dtype=np.int64)

    def answers(which: Int[np.ndarray, "n"], uniforms: Float[np.ndarray, "n coins"]) -> list[Text]:
        return suspect.answers(p[which], x[which], q[which], uniforms)

    return answers
