"""What a target pass costs, measured on the running model, by number of rows and context length."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from statistics import median

import numpy as np
from jaxtyping import Float, Int

from draftproof.models.base import Query, Session
from draftproof.types import as_tokens

WINDOW = 15
"""How many recent measurements of one kind are kept; their median is the cost."""

OFTEN = 5
"""Row counts up to this are timed three times at first, the others once."""

AGAIN = (1, 2, 3, 4, 6, 8)
"""Row counts timed when a text first reaches another context length."""

REFRESH = 16
"""After how many measurements the curves are drawn anew."""


class CostTable:
    """Seconds of a pass over n rows, kept as medians of recent measurements.

    Measured costs have stairs, so no law is fitted: between measured row counts the cost is interpolated, beyond them
    it goes on with the last slope. A cost above that of a wider pass is noise, or a stair that the wider pass avoids,
    and counts as the wider pass's. Context lengths are kept apart by doubling; one that lacks a row count takes over
    its ratio to one row from the nearest that has it.
    """

    def __init__(self) -> None:
        self._samples: dict[int, dict[int, deque[float]]] = {}
        self._curves: dict[int, Float[np.ndarray, "rows"]] = {}
        self._since_drawn = 0

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """Records one pass over `rows` rows behind `context` tokens."""
        kinds = self._samples.setdefault(_level(context), {})
        samples = kinds.get(rows)
        if samples is None:
            samples = kinds[rows] = deque(maxlen=WINDOW)
            self._curves.clear()
        samples.append(seconds)
        self._since_drawn += 1
        if self._since_drawn >= REFRESH:
            self._curves.clear()
            self._since_drawn = 0

    def curve(self, rows: int, context: int) -> Float[np.ndarray, "rows"]:
        """Returns the expected seconds of passes over 1 to `rows` rows, `[rows]`; ones while nothing is measured."""
        level = _level(context)
        curve = self._curves.get(level)
        if curve is None or len(curve) < rows:
            curve = self._curves[level] = self._draw(level, max(rows, 64))
        return curve[:rows]

    @property
    def measured(self) -> bool:
        """Whether passes over one row and over several have been timed, at any context length."""
        return any(len(kinds) > 1 for kinds in self._samples.values())

    def measured_at(self, context: int) -> bool:
        """Whether they have been timed at about this context length."""
        return len(self._samples.get(_level(context), {})) > 1

    def _draw(self, level: int, rows: int) -> Float[np.ndarray, "rows"]:
        known: dict[int, float] = {count: median(times) for count, times in self._samples.get(level, {}).items()}
        for other in sorted(self._samples, key=lambda each: abs(each - level)):
            theirs = {count: median(times) for count, times in self._samples[other].items()}
            if other == level or 1 not in theirs:
                continue
            one = known.setdefault(1, theirs[1])
            for count, time_there in theirs.items():
                known.setdefault(count, time_there / theirs[1] * one)
        if not known:
            return np.ones(rows)
        counts = np.array(sorted(known))
        seconds = np.array([known[int(count)] for count in counts])
        seconds = np.minimum.accumulate(seconds[::-1])[::-1]
        places = np.arange(1, rows + 1)
        curve: Float[np.ndarray, "rows"] = np.interp(places, counts, seconds)
        if len(counts) > 1:
            slope = max((seconds[-1] - seconds[-2]) / (counts[-1] - counts[-2]), 0.0)
            curve += slope * np.maximum(places - counts[-1], 0)
        return curve


def measure(session: Session, slot: int, tokens: Int[np.ndarray, "n"], costs: CostTable, max_rows: int) -> None:
    """Times passes of 1 to `max_rows` rows behind `tokens` and records them; what `slot` holds of them stays.

    At a second context length a few row counts suffice: the ratios of the others are near those known already.

    The row counts are visited in turn, so that a noisy moment spoils one sample of each and not all of one. Short
    drafts are the common ones and their costs the nearest to a decision, so they are visited oftener.
    """
    max_rows = min(max_rows, session.model.context_length - len(tokens))
    draft = as_tokens(np.arange(max_rows) % session.model.vocab_size)
    again = [rows for rows in AGAIN if rows <= max_rows]
    visits = [again] if costs.measured else [row_counts(max_rows), *[range(1, min(OFTEN, max_rows) + 1)] * 2]
    session.score([Query(slot, tokens, draft[:0])])
    for counts in visits:
        for rows in counts:
            began = time.perf_counter()
            session.score([Query(slot, tokens, draft[: rows - 1])])
            costs.observe(rows, len(tokens), time.perf_counter() - began)


def row_counts(largest: int) -> Sequence[int]:
    """Returns the row counts worth timing: all the small ones, then ever fewer."""
    return sorted({*range(1, min(largest, 9) + 1), *(rows for rows in (12, 16) if rows < largest), largest})


def _level(context: int) -> int:
    """Context lengths up to 512 are one level, then each doubling."""
    return max(0, (max(context, 1) - 1).bit_length() - 9)
