"""Tiny models in GGUF files, random weights, written by hand: a header, key-value pairs, tensors."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

_ALIGNMENT = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_NORMAL, _UNKNOWN, _CONTROL, _USER, _BYTE = 1, 2, 3, 4, 6

PIECES = ["<unk>", "<s>", "</s>", "<|end|>", "<tool>"]
"""Special tokens of the tiny tokenizer; ids 0 to 4. Then 256 bytes, then letters and words."""

WORDS = ["▁", *"abcdefghijklmnopqrstuvwxyz", "▁the", "he", "th", "▁t", "in", "▁in", "é", "."]
VOCABULARY = len(PIECES) + 256 + len(WORDS)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: object) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return _BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return _UINT32, struct.pack("<I", value)
    if isinstance(value, float):
        return _FLOAT32, struct.pack("<f", value)
    if isinstance(value, str):
        return _STRING, _string(value)
    assert isinstance(value, Sequence)
    items = [_value(item) for item in value]
    kind = _INT32 if items[0][0] == _UINT32 else items[0][0]
    return _ARRAY, struct.pack("<IQ", kind, len(items)) + b"".join(data for _, data in items)


def write_gguf(path: Path, metadata: Mapping[str, object], tensors: Mapping[str, np.ndarray]) -> Path:
    """Writes a GGUF file; an array of shape [rows, columns] is a matrix from `columns` inputs to `rows` outputs."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, data = _value(value)
        head += _string(key) + struct.pack("<I", kind) + data
    body = b""
    for name, array in tensors.items():
        sizes = struct.pack(f"<{array.ndim}Q", *reversed(array.shape))
        head += _string(name) + struct.pack("<I", array.ndim) + sizes + struct.pack("<IQ", 0, len(body))
        body += _padded(array.astype("<f4").tobytes())
    path.write_bytes(_padded(head) + body)
    return path


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _ALIGNMENT)


def tokenizer(**changes: object) -> dict[str, object]:
    """Returns the metadata of a sentencepiece-like tokenizer with bytes, a few words and five special tokens."""
    tokens = [*PIECES, *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, _CONTROL, _USER, *[_BYTE] * 256, *[_NORMAL] * len(WORDS)]
    values = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(PIECES) + [-100.0] * 256 + [float(len(word)) for word in WORDS],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
    }
    return values | changes


def write_llama(path: Path, changes: Mapping[str, object] | None = None, *, context_length: int = 2048) -> Path:
    """Writes a Llama of two layers, width 32."""
    metadata = {"llama.context_length": context_length, **(changes or {})}
    return _write_transformer(path, "llama", metadata, window=False)


def write_gemma2(path: Path, *, window: int, context_length: int = 2048) -> Path:
    """Writes a Gemma 2 of two layers, the first of which sees only the last `window` tokens."""
    settings = {
        "gemma2.context_length": context_length,
        "gemma2.attention.sliding_window": window,
        "gemma2.attention.key_length": 16,
        "gemma2.attention.value_length": 16,
        "gemma2.attn_logit_softcapping": 50.0,
        "gemma2.final_logit_softcapping": 30.0,
    }
    return _write_transformer(path, "gemma2", settings, window=True)


def _write_transformer(path: Path, kind: str, changes: Mapping[str, object], window: bool) -> Path:
    width, hidden, layers = 32, 64, 2
    rng = np.random.default_rng(5)

    def random(*shape: int, scale: float = 0.3) -> np.ndarray:
        return rng.normal(0.0, scale, shape)

    metadata: dict[str, object] = {
        "general.architecture": kind,
        f"{kind}.embedding_length": width,
        f"{kind}.block_count": layers,
        f"{kind}.feed_forward_length": hidden,
        f"{kind}.attention.head_count": 2,
        f"{kind}.attention.head_count_kv": 2,
        f"{kind}.attention.layer_norm_rms_epsilon": 1e-5,
        **tokenizer(),
        **changes,
    }
    tensors = {"token_embd.weight": random(VOCABULARY, width, scale=1.0), "output_norm.weight": 1 + random(width)}
    if kind == "llama":
        tensors["output.weight"] = random(VOCABULARY, width)
    for layer in range(layers):
        block = f"blk.{layer}."
        for norm in ["attn_norm", "ffn_norm", *(["post_attention_norm", "post_ffw_norm"] if window else [])]:
            tensors[f"{block}{norm}.weight"] = 1 + random(width)
        for matrix in ["attn_q", "attn_k", "attn_v", "attn_output"]:
            tensors[f"{block}{matrix}.weight"] = random(width, width)
        tensors[f"{block}ffn_gate.weight"] = random(hidden, width)
        tensors[f"{block}ffn_up.weight"] = random(hidden, width)
        tensors[f"{block}ffn_down.weight"] = random(width, hidden)
    return write_gguf(path, metadata, tensors)


def write_mamba(path: Path) -> Path:
    """Writes a Mamba of one layer: a recurrent model, whose state cannot be cut back."""
    width, inner, state, rank, kernel = 32, 64, 4, 2, 4
    rng = np.random.default_rng(6)
    metadata: dict[str, object] = {
        "general.architecture": "mamba",
        "mamba.context_length": 256,
        "mamba.embedding_length": width,
        "mamba.block_count": 1,
        "mamba.feed_forward_length": 0,
        "mamba.attention.head_count": 0,
        "mamba.attention.layer_norm_rms_epsilon": 1e-5,
        "mamba.ssm.conv_kernel": kernel,
        "mamba.ssm.inner_size": inner,
        "mamba.ssm.state_size": state,
        "mamba.ssm.time_step_rank": rank,
        **tokenizer(),
    }
    shapes = {
        "token_embd.weight": (VOCABULARY, width),
        "output_norm.weight": (width,),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.ssm_in.weight": (2 * inner, width),
        "blk.0.ssm_conv1d.weight": (inner, kernel),
        "blk.0.ssm_conv1d.bias": (inner,),
        "blk.0.ssm_x.weight": (rank + 2 * state, inner),
        "blk.0.ssm_dt.weight": (inner, rank),
        "blk.0.ssm_dt.bias": (inner,),
        "blk.0.ssm_a": (inner, state),
        "blk.0.ssm_d": (inner,),
        "blk.0.ssm_out.weight": (width, inner),
    }
    return write_gguf(path, metadata, {name: -abs(rng.normal(0.0, 0.1, shape)) for name, shape in shapes.items()})
