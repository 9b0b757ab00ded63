"""Attention for passes over a few rows: heads that share keys and values read them once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

NAME = "draftproof_grouped_sdpa"


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Returns what transformers' "sdpa" does, `[batch, width, heads, size]`.

    Under a mask that copies keys and values once for each head of a group; with a long text, a pass over a draft would
    take longer for that than for the draft's rows. Here the heads of a group become further rows of one head.

    Args:
        module: the attention layer.
        query: `[batch, heads, width, size]`.
        key: `[batch, groups, cells, size]`.
        value: like `key`.
        attention_mask: `[batch, 1, width, cells]`, or None.
        dropout: none while generating.
        scaling: of the products.
        **options: what else the layer gives; with a bias of its own it is left to transformers.
    """
    batch, heads, width, size = query.shape
    groups = key.shape[1]
    shared = attention_mask is not None and attention_mask.ndim == 4 and attention_mask.shape[1] == 1
    if not shared or width == 1 or groups == heads or options.get("position_bias") is not None:
        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    assert attention_mask is not None
    each = heads // groups
    out = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(batch, groups, each * width, size),
        key,
        value,
        attn_mask=attention_mask.repeat(1, 1, each, 1),
        scale=scaling,
    )
    return out.reshape(batch, heads, width, value.shape[-1]).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def grouped(config: Any) -> Iterator[None]:
    """Lets a model whose attention is "sdpa" compute it as above, for the time being: the model is the user's."""
    before = config._attn_implementation
    if before != "sdpa":
        yield
        return
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
