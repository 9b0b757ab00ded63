"""Tiny models of the transformers library with random weights, and a tokenizer for them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import tokenizers
import torch
import transformers

from draftproof.models.transformers import TransformersModel

VOCABULARY = 300
CONTEXT = 720


@cache
def tokenizer(size: int = VOCABULARY, specials: tuple[str, ...] = ("<|end|>",)) -> Any:
    """Bytes, merges of them, and special tokens at the end: `size` ids in all."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges: list[tuple[str, str]] = []
    texts = list(alphabet)
    for left in "etaoinsh":
        for right in "etaoinshr":
            if len(texts) < size - len(specials):
                merges.append((left, right))
                texts.append(left + right)
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={text: i for i, text in enumerate(texts)}, merges=merges)
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(list(specials))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=specials[0] if specials else None)


class LetterTokenizer:
    """A tokenizer of letters, for vocabularies too small for a real one."""

    def __init__(self, letters: str) -> None:
        self._vocabulary = {letter: i for i, letter in enumerate(letters)}
        self.added_tokens_decoder: dict[int, Any] = {}
        self.all_special_ids: list[int] = []
        self.eos_token_id = None
        self.chat_template = None

    def get_vocab(self) -> dict[str, int]:
        return self._vocabulary

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [self._vocabulary[letter] for letter in text if letter in self._vocabulary]}


def _config(name: str, **fields: Any) -> Any:
    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.6,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return getattr(transformers, name)(**(common | fields))


WINDOW = 8

CONFIGS: dict[str, Callable[..., Any]] = {
    "llama": lambda **more: _config("LlamaConfig", **more),
    "gpt2": lambda **more: transformers.GPT2Config(
        **(
            {
                "vocab_size": VOCABULARY,
                "n_embd": 16,
                "n_layer": 2,
                "n_head": 4,
                "n_positions": CONTEXT,
                "initializer_range": 0.4,
                "bos_token_id": None,
                "eos_token_id": None,
            }
            | more
        )
    ),
    "gemma": lambda **more: _config(
        "Gemma3TextConfig",
        **{
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 4,
        }
        | more,
    ),
    "mistral": lambda **more: _config("MistralConfig", **{"sliding_window": WINDOW} | more),
    "qwen2": lambda **more: _config("Qwen2Config", **more),
    "mamba": lambda **more: transformers.MambaConfig(
        **(
            {
                "vocab_size": VOCABULARY,
                "hidden_size": 16,
                "state_size": 4,
                "num_hidden_layers": 2,
                "initializer_range": 0.5,
                "bos_token_id": None,
                "eos_token_id": None,
                "pad_token_id": None,
            }
            | more
        )
    ),
    "lfm2": lambda **more: _config(
        "Lfm2Config", **{"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 8} | more
    ),
    "qwen3_next": lambda **more: _config(
        "Qwen3NextConfig",
        **{
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 4,
            "linear_value_head_dim": 4,
            "num_experts": 0,
            "mlp_only_layers": [0, 1, 2],
        }
        | more,
    ),
}

ATTENTION = ["llama", "gpt2", "gemma", "mistral", "qwen2"]
RECURRENT = ["mamba", "lfm2", "qwen3_next"]


def module(kind: str, seed: int = 0, **fields: Any) -> Any:
    """A model with random weights that depend on the seed."""
    torch.manual_seed(seed)
    made = transformers.AutoModelForCausalLM.from_config(CONFIGS[kind](**fields), dtype=torch.float32)
    return made.eval()


def model(kind: str, seed: int = 0, **fields: Any) -> TransformersModel:
    """The same as the engine takes it."""
    return TransformersModel(module(kind, seed, **fields), tokenizer(), name=kind, context_length=CONTEXT)


def tiny_vocabulary(size: int, seed: int = 0, letters: str = "abcde") -> TransformersModel:
    """A llama over a handful of letters, for laws that can be enumerated."""
    made = module("llama", seed, vocab_size=size)
    return TransformersModel(made, LetterTokenizer(letters[:size]), name=f"llama-{letters[:size]}")


def nudged(target: TransformersModel, amount: float, seed: int = 0) -> TransformersModel:
    """A draft model: the target with some noise on its weights, good but not perfect."""
    made = copy.deepcopy(target.module)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in made.parameters():
            weight += amount * weight.std() * torch.randn(weight.shape, generator=generator)
    return TransformersModel(made, target.tokenizer.tokenizer, name=f"{target.name}-nudged")


def saved(target: TransformersModel, folder: Any) -> str:
    """Writes a model and its tokenizer as users have them, and returns where."""
    target.module.save_pretrained(folder)
    target.tokenizer.tokenizer.save_pretrained(folder)
    return str(folder)


def ids(seed: int, length: int, vocabulary: int = VOCABULARY - 1) -> Sequence[int]:
    """A random text."""
    generator = torch.Generator().manual_seed(seed)
    found: list[int] = torch.randint(0, vocabulary, (length,), generator=generator).tolist()
    return found
