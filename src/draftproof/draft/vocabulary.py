"""Two vocabularies: which ids mean the same, and one text in the other's ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from draftproof.errors import UsageError
from draftproof.models.base import Model, Rows, Tokenizer, common_prefix
from draftproof.types import NO_TOKENS, Tokens, as_tokens

ENOUGH = 0.5
"""Least share of the target's vocabulary, weighted by rank, for drafting by shared ids rather than by text."""

TAIL = 32
"""Tokens at the end of a text that are encoded anew each time: later ones may join with them."""


@dataclass(frozen=True, eq=False)
class SharedVocabulary:
    """The ids by which a draft model and a target mean the same piece of text.

    Attributes:
        target_ids: ids of the target, ascending, `[shared]`.
        draft_ids: the draft model's ids for the same pieces, `[shared]`.
        target_size: length of the target's rows.
        draft_size: length of the draft model's rows.
        first_difference: the lowest id that means different things to the two, or None.
    """

    target_ids: Int[np.ndarray, "shared"]
    draft_ids: Int[np.ndarray, "shared"]
    target_size: int
    draft_size: int
    first_difference: int | None

    @classmethod
    def of(cls, target: Model, draft: Model) -> SharedVocabulary:
        """Compares two models' vocabularies piece by piece: by the bytes of an id, or by the name of a special one."""
        ours = _pieces(target)
        theirs = ours if draft.tokenizer is target.tokenizer else _pieces(draft)
        same = [token for token, (our, their) in enumerate(zip(ours, theirs, strict=False)) if our == their]
        alike = set(same)
        pairs = [(token, token) for token in same]
        # Several ids may spell the same bytes; each is paired once.
        free = {their: token for token, their in reversed(list(enumerate(theirs))) if token not in alike}
        pairs += [(token, free.pop(our)) for token, our in enumerate(ours) if token not in alike and our in free]
        columns = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
        first = next((i for i, (our, their) in enumerate(zip(ours, theirs, strict=False)) if our != their), None)
        return cls(columns[:, 0], columns[:, 1], len(ours), len(theirs), first)

    @cached_property
    def identical(self) -> bool:
        """Whether every id of either is the same id of the other."""
        return self.first_difference is None and self.target_size == self.draft_size

    @cached_property
    def coverage(self) -> float:
        """Share of the target's ids that are shared, low ids weighing more: vocabularies list frequent pieces first."""
        weights = 1.0 / (np.arange(self.target_size) + 100.0)
        return float(weights[self.target_ids].sum() / weights.sum())

    @cached_property
    def to_draft(self) -> Int[np.ndarray, "target"]:
        """The draft model's id for each id of the target, -1 where there is none, `[target_size]`."""
        ids = np.full(self.target_size, -1, dtype=np.int64)
        ids[self.target_ids] = self.draft_ids
        return ids

    def rows(self, rows: Rows) -> Rows:
        """Returns the draft model's rows in the target's ids; what only the target has is impossible."""
        return rows if self.identical else _TargetRows(rows, self)


class _TargetRows:
    def __init__(self, rows: Rows, vocabulary: SharedVocabulary) -> None:
        self._rows = rows
        self._vocabulary = vocabulary

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int, /) -> Float[np.ndarray, "vocab"]:
        row = self._rows[i]
        mapped = np.full(self._vocabulary.target_size, -np.inf, dtype=row.dtype)
        mapped[self._vocabulary.target_ids] = row[self._vocabulary.draft_ids]
        return mapped


class Translation:
    """One text in another tokenizer's ids, kept up as the text grows.

    All but the end is encoded once, up to a place before a space; the end is encoded anew each time, so that pieces
    join as the other model learnt them. Where the text goes back, so does the translation.

    Args:
        source: the tokenizer of the text.
        goal: the tokenizer to express it in.
    """

    def __init__(self, source: Tokenizer, goal: Tokenizer) -> None:
        self._source = source
        self._goal = goal
        self._start = goal.encode("")
        self._specials = {goal.token_name(int(token)): int(token) for token in self._start}
        self._settled = NO_TOKENS
        self._ids = NO_TOKENS

    def __call__(self, tokens: Tokens) -> Tokens:
        """Returns `tokens` of the source in the goal's ids."""
        if common_prefix(self._settled, tokens) < len(self._settled):
            self._settled = self._ids = NO_TOKENS
        rest = tokens[len(self._settled) :]
        place = self._settling_place(rest)
        if place:
            self._ids = np.concatenate([self._ids, self._encode(rest[:place])])
            self._settled = np.concatenate([self._settled, rest[:place]])
            rest = rest[place:]
        ids = np.concatenate([self._ids, self._encode(rest)])
        if len(self._start) and not (len(ids) and int(ids[0]) == int(self._start[0])):
            ids = np.concatenate([self._start, ids])
        return ids

    def _settling_place(self, rest: Tokens) -> int:
        if len(rest) < 2 * TAIL:
            return 0
        for place in range(len(rest) - TAIL, 0, -1):
            if self._source.token_bytes(int(rest[place]))[:1] in (b" ", b"\n"):
                return place
        return 0

    def _encode(self, tokens: Tokens) -> Tokens:
        """Special tokens by name, those the goal lacks left out; what lies between them as text."""
        parts: list[Tokens] = []
        pending: list[int] = []
        for token in tokens.tolist():
            if self._source.token_bytes(token):
                pending.append(token)
                continue
            parts.append(self._text(pending))
            pending = []
            parts.append(self._special(self._source.token_name(token)))
        parts.append(self._text(pending))
        return np.concatenate(parts)

    def _special(self, name: str) -> Tokens:
        if name not in self._specials:
            try:
                ids = self._goal.encode(name, add_special=False, parse_special=True) if name else NO_TOKENS
            except UsageError:
                ids = NO_TOKENS
            self._specials[name] = int(ids[0]) if len(ids) == 1 and not self._goal.token_bytes(int(ids[0])) else -1
        token = self._specials[name]
        return as_tokens([token]) if token >= 0 else NO_TOKENS

    def _text(self, tokens: list[int]) -> Tokens:
        if not tokens:
            return NO_TOKENS
        try:
            return encode_continued(self._goal, _whole_text(self._source, tokens))
        except UsageError:
            # A tokenizer without fallback lacks some character: what it can express is better than nothing.
            return NO_TOKENS if len(tokens) == 1 else np.concatenate([self._text([token]) for token in tokens])


def encode_continued(tokenizer: Tokenizer, text: str) -> Tokens:
    """Returns the ids of a text that continues another: without the space that some tokenizers put in front."""
    try:
        anchor = tokenizer.encode("\n", add_special=False)
        both = tokenizer.encode("\n" + text, add_special=False)
        if common_prefix(anchor, both) == len(anchor):
            return both[len(anchor) :]
    except UsageError:
        pass  # a tokenizer without a line break
    return tokenizer.encode(text, add_special=False)


def _whole_text(tokenizer: Tokenizer, tokens: Iterable[int]) -> str:
    """Returns the text of tokens; a character that is not whole yet is left out."""
    return b"".join(map(tokenizer.token_bytes, tokens)).decode("utf-8", "ignore")


def _pieces(model: Model) -> list[bytes | str]:
    """Returns what each id of a model stands for: its bytes, or the name of a special one."""
    tokenizer = model.tokenizer
    return [tokenizer.token_bytes(token) or tokenizer.token_name(token) for token in range(model.vocab_size)]
