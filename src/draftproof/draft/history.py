"""The text a slot has indexed so far."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from draftproof.models.base import common_prefix
from draftproof.types import Tokens

WINDOW = 1024
"""How far back a longer text is compared with what was indexed; it bounds the cost of a step.

A change further back goes unnoticed as long as the text only grows. It costs acceptance, never exactness: a draft is a
guess whatever it was made from.
"""


class History:
    """A copy of the indexed tokens, so that a text which was cut or edited is noticed.

    Attributes:
        size: how many tokens there are.
    """

    __slots__ = ("_buffer", "size")

    def __init__(self) -> None:
        self._buffer = np.empty(256, dtype=np.int32)
        self.size = 0

    def update(self, tokens: Int[np.ndarray, "n"]) -> int:
        """Takes over `tokens` and returns how many of the leading ones are as before.

        The result is the previous `size` if the text only grew, in time that does not depend on its length.
        """
        before, length = self.size, len(tokens)
        start = max(0, before - WINDOW)
        if length >= before and common_prefix(tokens[start:before], self._buffer[start:before]) == before - start:
            kept = before
        else:
            kept = common_prefix(tokens, self.tokens)
        if length > len(self._buffer):
            grown = np.empty(max(length, 2 * len(self._buffer)), dtype=np.int32)
            grown[:kept] = self._buffer[:kept]
            self._buffer = grown
        self._buffer[kept:length] = tokens[kept:]
        self.size = length
        return kept

    @property
    def tokens(self) -> Tokens:
        """The tokens, a view, `[size]`."""
        return self._buffer[: self.size]
