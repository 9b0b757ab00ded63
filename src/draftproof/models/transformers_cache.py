"""Keys and values of several sequences of unequal length, each written where its own text ends."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
)

from draftproof.errors import ModelLoadError

FIRST_CAPACITY = 256
"""Cells of a sequence at first; more come by doubling."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the rows of one pass lie in the cache.

    Attributes:
        slots: the sequence of each row, ascending, `[rows]`.
        starts: how many cells each row's sequence has before the pass, `[rows]`.
        width: new tokens of each row; short rows are filled up on the right.
        device: where the cache is.
    """

    slots: list[int]
    starts: list[int]
    width: int
    device: torch.device

    @cached_property
    def cells(self) -> torch.Tensor:
        """The cells of the new tokens, int64 `[rows, width]`."""
        starts = torch.tensor(self.starts, device=self.device)
        return starts[:, None] + torch.arange(self.width, device=self.device)

    @cached_property
    def index(self) -> torch.Tensor:
        """The slots, int64 `[rows]`."""
        return torch.tensor(self.slots, device=self.device)

    @cached_property
    def view(self) -> slice | None:
        """The slots as a slice, if they are neighbours: then nothing needs to be copied."""
        first, last = self.slots[0], self.slots[-1] + 1
        return slice(first, last) if last - first == len(self.slots) else None

    @cached_property
    def end(self) -> int:
        """How many cells the pass reads."""
        return max(self.starts) + self.width

    def low(self, window: int | None) -> int:
        """The first cell that some new token of a layer with this window still sees."""
        return 0 if window is None else max(min(self.starts) - window + 1, 0)


class SlotLayer(CacheLayerMixin):
    """One attention layer's keys and values: `[slots, heads, capacity, size]`, never moved and never cut.

    How far each sequence reaches is the session's business. Cells beyond that hold what a rejected draft or a row's
    filling left there: finite numbers that no mask lets through, until they are written again. A sliding window keeps
    its past too, or a rejected draft could not be taken back; a pass reads no more of it than the window shows.

    Args:
        slots: how many sequences.
        kind: "full_attention", "sliding_attention" or "chunked_attention".
        window: how many cells a token sees, itself included; None sees all.
    """

    is_compileable = False

    def __init__(self, slots: int, kind: str, window: int | None) -> None:
        super().__init__()
        self.slots = slots
        self.kind = kind
        self.window = window
        self.is_sliding = window is not None
        self.layout = Layout([0], [0], 0, torch.device("cpu"))

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Makes the buffers, like the first keys and values `[rows, heads, width, size]`."""
        self.device = key_states.device
        # Zeros, not whatever lies in memory: a masked cell's weight is 0, and 0 times NaN is NaN.
        self.keys, self.values = (
            each.new_zeros(self.slots, each.shape[1], FIRST_CAPACITY, each.shape[3])
            for each in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the new keys and values and returns all that the pass reads, `[rows, heads, cells, size]`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        layout = self.layout
        self._reserve(layout.end)
        return self._write(self.keys, key_states, layout), self._write(self.values, value_states, layout)

    def _write(self, buffer: torch.Tensor, new: torch.Tensor, layout: Layout) -> torch.Tensor:
        if len(layout.slots) == 1:
            start = layout.starts[0]
            buffer[layout.slots[0], :, start : start + layout.width] = new[0]
        else:
            buffer[layout.index[:, None], :, layout.cells] = new.transpose(1, 2)
        low, end, view = layout.low(self.window), layout.end, layout.view
        return buffer[view, :, low:end] if view is not None else buffer[layout.index, :, low:end]

    def _reserve(self, cells: int) -> None:
        capacity = self.keys.shape[2]
        if cells <= capacity:
            return
        while capacity < cells:
            capacity *= 2
        for name in ("keys", "values"):
            old = getattr(self, name)
            larger = old.new_zeros(old.shape[0], old.shape[1], capacity, old.shape[3])
            larger[:, :, : old.shape[2]] = old
            setattr(self, name, larger)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns how many cells a pass over one row reads, and the first; for the model's own masks."""
        low = self.layout.low(self.window)
        return self.layout.starts[0] + query_length - low, low

    def get_seq_length(self) -> int:
        """Returns how many cells come before the new tokens; of one row, for the model's own masks."""
        return self.layout.starts[0]

    def get_max_length(self) -> int:
        """Returns -1: there is no bound."""
        return -1

    def get_max_cache_shape(self) -> int:
        """The same by its older name."""
        return -1


class SlotCache(Cache):
    """A model's cache for `slots` sequences: attention layers of our own, any other layer as transformers makes it.

    Args:
        config: the model's.
        slots: how many sequences; 1 if a layer is recurrent.

    Raises:
        ModelLoadError: if a layer's cache can neither be cut back nor copied.
    """

    def __init__(self, config: Any, slots: int) -> None:
        text = config.get_text_config(decoder=True)
        layers = [_layer(layer, index, text, slots) for index, layer in enumerate(DynamicCache(config=config).layers)]
        super().__init__(layers=layers)
        self.kinds = {layer.kind: layer.window for layer in layers if isinstance(layer, SlotLayer)}
        self._stateful = [i for i, layer in enumerate(layers) if isinstance(layer, LinearAttentionCacheLayerMixin)]
        self.fresh = self.state()

    @property
    def recurrent(self) -> bool:
        """Whether a layer keeps a state that cannot be cut back."""
        return bool(self._stateful)

    def place(self, layout: Layout) -> None:
        """Tells all layers where the next pass reads and writes."""
        for layer in self.layers:
            if isinstance(layer, SlotLayer):
                layer.layout = layout

    def state(self) -> list[Any]:
        """Returns a copy of the layers that cannot be cut back."""
        return [copy.deepcopy(self.layers[i]) for i in self._stateful]

    def restore(self, state: list[Any]) -> None:
        """Puts a copy back, which stays good for further times."""
        for i, layer in zip(self._stateful, state, strict=True):
            self.layers[i] = copy.deepcopy(layer)


def _layer(layer: Any, index: int, config: Any, slots: int) -> Any:
    if type(layer) is DynamicLayer:
        return SlotLayer(slots, "full_attention", None)
    if type(layer) is DynamicSlidingWindowLayer:
        types = getattr(config, "layer_types", None)
        derived = "sliding_attention" if getattr(config, "sliding_window", None) is not None else "chunked_attention"
        return SlotLayer(slots, types[index] if types else derived, int(layer.sliding_window))
    if isinstance(layer, LinearAttentionCacheLayerMixin) or type(layer).__name__ == "DummyLayer":
        return layer
    raise ModelLoadError(
        f"layer {index} keeps a {type(layer).__name__}, which is not known to give a rejected draft back, so text "
        "could silently go wrong; use a model with plain, sliding-window or linear attention"
    )


def masks(cache: SlotCache, layout: Layout, additive: torch.dtype | None) -> Any:
    """Returns the attention masks of a pass over several rows: one tensor, or one for each kind of layer by name.

    A mask is `[rows, 1, width, cells]`: True, or 0, where a new token may look: at its own cell and before, inside its
    window, or its chunk. Fillings look too, at whatever lies before them, so that they stay finite.

    Args:
        cache: whose layers.
        layout: of the pass.
        additive: None for boolean masks, else the type in which "no" is the lowest number and "yes" is 0.
    """
    places = layout.cells[:, None, :, None]
    made: dict[str, torch.Tensor] = {}
    for kind, window in cache.kinds.items():
        cells = torch.arange(layout.low(window), layout.end, device=layout.device)
        allowed = cells <= places
        if kind == "chunked_attention" and window is not None:
            allowed &= cells // window == places // window
        elif window is not None:
            allowed &= cells > places - window
        if additive is not None:
            lowest = torch.finfo(additive).min
            allowed = torch.zeros(allowed.shape, dtype=additive, device=layout.device).masked_fill_(~allowed, lowest)
        made[kind] = allowed
    return made if len(made) > 1 else next(iter(made.values()))
