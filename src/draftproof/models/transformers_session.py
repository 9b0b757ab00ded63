"""Forward passes of a transformers model over sequences of unequal length, drafts and acceptances included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float

from draftproof.errors import UsageError
from draftproof.models.base import Query, Rows, Session
from draftproof.models.transformers_attention import grouped
from draftproof.models.transformers_cache import Layout, SlotCache, masks
from draftproof.types import Tokens

if TYPE_CHECKING:
    from draftproof.models.transformers import TransformersModel

CHUNK = 512
"""Most new tokens of one sequence in one forward call; a longer query is run in several."""

SHORT = 64
"""Queries of up to this many new tokens share a call; a longer one would make the others' rows as long as its own."""

REPLAY = 8
"""Most committed tokens that a recurrent model runs again with each draft rather than in a call of their own."""

ANEW = 64
"""More new tokens than this a stepwise model reads together with all that comes before them, in one call."""


class TransformersSession(Session):
    """The caches of `slots` sequences of one model. Made by `TransformersModel.session`.

    How a pass is run is the model's `mode`. "together": all short queries in one call, ragged, each row at its own
    place of the cache, with explicit masks and positions. "apart": one sequence after the other, with the model's own
    masks. "stepwise": so too, and one token after the other, but for a text that is read from its start.

    The state of recurrent layers is copied before a draft is run and put back when the draft is rejected, and what was
    committed since is run again.
    """

    model: TransformersModel

    def __init__(self, model: TransformersModel, slots: int) -> None:
        super().__init__(model, slots)
        config = model.module.config
        self._shared = self.rectangular = model.mode == "together"
        self._caches = [SlotCache(config, slots)] if self._shared else [SlotCache(config, 1) for _ in range(slots)]
        self._states = [_State(cache) for cache in self._caches] if self._caches[0].recurrent else []
        self._closed = False

    def close(self) -> None:
        """See `Session.close`."""
        self._closed = True
        self._caches = []
        self._states = []

    def _forward(self, queries: Sequence[Query], keep: Sequence[int]) -> list[Rows]:
        if self._closed:
            raise UsageError(f"this session of {self.model.name} is closed; make a new one")
        with torch.inference_mode(), grouped(self.model.text_config):
            return self._run(queries, keep)

    def _run(self, queries: Sequence[Query], keep: Sequence[int]) -> list[Rows]:
        rows: dict[int, Rows] = {}
        together: list[tuple[Query, int]] = []
        for each, length in zip(queries, keep, strict=True):
            if self._shared and len(each.tokens) + len(each.draft) - length <= SHORT:
                together.append((each, length))
            else:
                rows[each.slot] = self._alone(each, length)
        if len(together) == 1:
            rows[together[0][0].slot] = self._alone(*together[0])
        elif together:
            together.sort(key=lambda pair: pair[0].slot)
            rows |= self._side_by_side([each for each, _ in together], [length for _, length in together])
        return [rows[each.slot] for each in queries]

    def _after_failure(self, slot: int, keep: int) -> int:
        # Attention layers were written at `keep` and beyond only.
        if self._closed:
            return 0
        if not self._states:
            return keep
        with torch.inference_mode():
            return self._states[slot].recover(keep)

    def _alone(self, query: Query, start: int) -> Rows:
        """Runs one query; the model makes its own masks, as it would for itself."""
        text = np.concatenate([query.tokens, query.draft])
        last = len(query.tokens) - 1
        cache, row = (self._caches[0], query.slot) if self._shared else (self._caches[query.slot], 0)
        if self._states:
            state = self._states[query.slot]
            start = state.rewind(start)
            if last - start > REPLAY:
                if self.model.mode == "stepwise" and last - start > ANEW:
                    start = state.rewind(0)
                self._run_text(cache, row, text[:last], start, last)
                start = last
            state.save(start)
        logits = self._run_text(cache, row, text, start, last)
        if self._states:
            self._states[query.slot].position = len(text)
        return _Rows(logits, self.model)

    def _run_text(self, cache: SlotCache, row: int, text: Tokens, start: int, first_row: int) -> torch.Tensor:
        """Runs text[start:] in chunks and returns the logits from position `first_row` on, `[rows, vocab]`."""
        parts = []
        size = CHUNK
        if self.model.mode == "stepwise":
            size = 1 if start else len(text)
        for begin in range(start, len(text), size):
            chunk = text[begin : begin + size]
            ids = torch.from_numpy(chunk.astype(np.int64))[None].to(self.model.device)
            positions = torch.arange(begin, begin + len(chunk), device=self.model.device)[None]
            cache.place(Layout([row], [begin], len(chunk), self.model.device))
            wanted = begin + len(chunk) - max(first_row, begin)
            logits = self.model.call(ids, positions, None, cache, max(wanted, 1))
            if wanted > 0:
                parts.append(logits[0])
        return parts[0] if len(parts) == 1 else torch.cat(parts) if parts else torch.empty(0)

    def _side_by_side(self, queries: Sequence[Query], keep: Sequence[int]) -> dict[int, Rows]:
        """Runs several queries, sorted by slot, in one call: a row each, short ones filled up on the right."""
        cache, device = self._caches[0], self.model.device
        new = {
            each.slot: np.concatenate([each.tokens[length:], each.draft])
            for each, length in zip(queries, keep, strict=True)
        }
        slots = self._dense(list(new))
        starts = dict(zip(new, keep, strict=True))
        width = max(map(len, new.values()))
        layout = Layout(slots, [starts.get(slot, len(self._held[slot])) for slot in slots], width, device)
        ids = np.zeros((len(slots), width), dtype=np.int64)
        for row, slot in enumerate(slots):
            if slot in new:
                ids[row, : len(new[slot])] = new[slot]
        positions = layout.cells.clamp(max=self.model.context_length - 1)
        cache.place(layout)
        mask = masks(cache, layout, self.model.additive_masks)
        first = min(len(new[each.slot]) - len(each.draft) - 1 for each in queries)
        logits = self.model.call(torch.from_numpy(ids).to(device), positions, mask, cache, width - first)
        rows: dict[int, Rows] = {}
        for each in queries:
            end = len(new[each.slot]) - first
            rows[each.slot] = _Rows(logits[slots.index(each.slot), end - len(each.draft) - 1 : end], self.model)
        return rows

    @staticmethod
    def _dense(slots: list[int]) -> list[int]:
        """Returns the slots, with those between them if few are missing: an idle row costs less than a copied cache."""
        between = list(range(slots[0], slots[-1] + 1))
        return between if 4 * len(slots) >= 3 * len(between) else slots


class _State:
    """How far a recurrent model's state has come, and the copy to which it can go back."""

    def __init__(self, cache: SlotCache) -> None:
        self._cache = cache
        self._saved: tuple[int, list[Any]] | None = None
        self.position = 0

    def rewind(self, keep: int) -> int:
        """Brings the state to the last place it can reach that is not beyond `keep`; returns that place."""
        if self.position > keep:
            if self._saved is not None and self._saved[0] <= keep:
                self.position = self._saved[0]
                self._cache.restore(self._saved[1])
            else:
                self._saved = None
                self.position = 0
                self._cache.restore(self._cache.fresh)
        return self.position

    def save(self, position: int) -> None:
        """Copies the state, which has come to `position`, unless that is the copy it came from."""
        if self._saved is None or self._saved[0] != position:
            self._saved = (position, self._cache.state())
        # Whatever interrupts the pass, the state itself is of no use until it has ended.
        self.position = _UNKNOWN

    def recover(self, keep: int) -> int:
        """Returns how many leading tokens are sound after a pass failed at any place."""
        self.position = _UNKNOWN
        return self.rewind(keep)


_UNKNOWN = 2**62


class _Rows:
    """Rows of logits on the model's device; one is fetched when it is asked for."""

    def __init__(self, logits: torch.Tensor, model: TransformersModel) -> None:
        self._logits = logits
        self._model = model
        self._fetched: dict[int, Float[np.ndarray, "vocab"]] = {}

    def __len__(self) -> int:
        return len(self._logits)

    def __getitem__(self, i: int, /) -> Float[np.ndarray, "vocab"]:
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} of a pass of {len(self)} rows")
        row = self._fetched.get(i)
        if row is None:
            row = self._fetched[i] = self._model.host_row(self._logits[i])
        return row
