"""Prompt lookup: what followed the latest occurrence of the text's last few tokens."""

from __future__ import annotations

from functools import partial
from math import exp

from draftproof.draft.acceptance import Evidence
from draftproof.draft.base import Drafter, DraftSession
from draftproof.draft.lookup import Found, LookupSession, TextIndex
from draftproof.errors import UsageError

BY_LENGTH = (-1.4, -1.4, -0.2, 0.9, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.7, 1.8, 1.8, 1.8, 1.9, 1.9)
"""Prior logits of acceptance by the number of tokens matched or accepted so far, fitted as those of `SuffixDrafter`."""


class NgramDrafter(Drafter):
    """Prompt lookup: finds the last n tokens earlier in the text and proposes what followed them there.

    The longest n from `max_ngram` down to `min_ngram` that is found counts, at its most recent occurrence. Where that
    overlaps the end of the text, the copy goes on through the draft itself, so that a short loop gives a full draft.

    Args:
        max_ngram: most tokens to match.
        min_ngram: fewest tokens to match.
        num_tokens: most tokens to propose; None leaves it to the engine's limit.

    Raises:
        UsageError: if not 1 <= min_ngram <= max_ngram, or num_tokens is negative.
    """

    name = "ngram"
    stochastic = False

    def __init__(self, max_ngram: int = 3, min_ngram: int = 1, num_tokens: int | None = None) -> None:
        if min_ngram < 1:
            raise UsageError(f"min_ngram {min_ngram} is not positive; match at least one token")
        if max_ngram < min_ngram:
            raise UsageError(f"max_ngram {max_ngram} is below min_ngram {min_ngram}; use at least that")
        if num_tokens is not None and num_tokens < 0:
            raise UsageError(f"num_tokens {num_tokens} is negative; use 0 or more, or None for no limit of its own")
        self.max_ngram = max_ngram
        self.min_ngram = min_ngram
        self.num_tokens = num_tokens

    def session(self, slots: int = 1) -> DraftSession:
        """See `Drafter.session`."""
        return LookupSession(partial(NgramIndex, self.max_ngram, self.min_ngram, self.num_tokens), slots)


class NgramIndex(TextIndex):
    """Expects what followed the latest occurrence of the longest known n-gram that ends the text."""

    __slots__ = ("_ends", "_num_tokens", "_sizes", "_text")

    def __init__(self, max_ngram: int, min_ngram: int, num_tokens: int | None) -> None:
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._num_tokens = num_tokens
        self._text: list[int] = []
        self._ends: list[dict[tuple[int, ...], int]] = [{} for _ in self._sizes]

    def extend(self, token: int) -> None:
        """See `TextIndex.extend`; only now that something follows them do the n-grams before it enter the index."""
        text, end = self._text, len(self._text)
        for size, ends in zip(self._sizes, self._ends, strict=True):
            if size <= end:
                ends[tuple(text[end - size :])] = end
        text.append(token)

    def _match(self) -> tuple[int, int]:
        """Returns the size of the longest n-gram found and where its latest occurrence ended; 0 if there is none."""
        text, length = self._text, len(self._text)
        for size, ends in zip(self._sizes, self._ends, strict=True):
            if size <= length:
                end = ends.get(tuple(text[length - size :]))
                if end is not None:
                    return size, end
        return 0, 0

    def guess(self) -> tuple[int, float] | None:
        """See `TextIndex.guess`."""
        size, end = self._match()
        return (self._text[end], BY_LENGTH[min(size, 16)]) if size else None

    def follow(self, limit: int, evidence: Evidence) -> Found:
        """See `TextIndex.follow`."""
        size, end = self._match()
        if self._num_tokens is not None:
            limit = min(limit, self._num_tokens)
        if size == 0 or limit <= 0:
            return Found()
        tokens = self._text[end : end + limit]
        while len(tokens) < limit:
            tokens += tokens[: limit - len(tokens)]
        survival: list[float] = []
        alive = 1.0
        for place in range(limit):
            alive /= 1.0 + exp(-evidence.slope * BY_LENGTH[min(size + place, 16)] - evidence.shift)
            survival.append(alive)
        return Found(tokens, survival)
