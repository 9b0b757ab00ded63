"""Small models of transformers with the drafting heads that only some families have: MTP, Gemma 4's, DFlash's.

Weights are random, and each head drafts one token a pass, so that what it drafts from is known for any text: a table
from a text to the head's logits, which the auditor is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.cache_utils import DFlashCache, MtpCache
from transformers.modeling_layers import MtpModel

import draftproof as dp
from draftproof.models.transformers import TransformersModel
from draftproof.types import Tokens

WIDTH = 48
SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 256,
    "sliding_window": 128,
    "initializer_range": 0.25,
    "bos_token_id": None,
    "eos_token_id": None,
}


@dataclass(frozen=True)
class Headed:
    """A target and its head.

    Attributes:
        target: the model whose law is claimed.
        head: the law of the head's one draft token.
        options: arguments of `generate` that use the head.
    """

    target: TransformersModel
    head: dp.ToyModel
    options: dict[str, Any]


def headed(target: TransformersModel, logits: Callable[[torch.Tensor], Any], **options: Any) -> Headed:
    """Returns a target with its head, by the head's logits `[vocab]` after the ids of a text `[1, n]`."""

    @torch.no_grad()
    def table(tokens: Tokens) -> np.ndarray:
        return np.asarray(logits(torch.as_tensor(tokens.astype("int64"))[None]))

    return Headed(target, dp.ToyModel(table, target.vocab_size, tokenizer=target.tokenizer), options)


def mtp(tokenizer: Any, vocab: int, folder: Path) -> Headed:
    """Returns a Mellum model with one layer for multi-token prediction: its own last layer over again.

    Its weights are written to a folder, where `generate` looks for the head's each time.
    """
    torch.manual_seed(0)
    config = transformers.MellumConfig(
        vocab_size=vocab,
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        num_mtp_layers=1,
        mtp_layer_types=["full_attention"],
        **SIZES,
    )
    transformers.MellumForCausalLM(config).save_pretrained(folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    names = [name for name in weights if name.startswith("model.layers.1.")]
    added = {name.replace("model.layers.1.", "mtp.layers.0."): weights[name].clone() for name in names}
    added["mtp.fc.weight"] = torch.cat([0.5 * torch.eye(WIDTH), torch.eye(WIDTH)], dim=1)
    added |= {
        f"mtp.{norm}.weight": torch.ones(WIDTH) for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    }
    save_file(weights | added, file, metadata={"format": "pt"})
    model = transformers.MellumForCausalLM.from_pretrained(folder).eval()
    head = MtpModel.from_pretrained(model)

    def logits(ids: torch.Tensor) -> Any:
        hidden = model.model(ids[:, :-1]).last_hidden_state
        places = torch.arange(1, ids.shape[1])[None]
        cache = MtpCache(config=model.config.get_mtp_config())
        last = head.forward_layer(0, hidden, places, cache, input_ids=ids[:, 1:])
        return head._project_to_logits(last[:, -1:])[0, 0]

    return headed(TransformersModel(model, tokenizer, name="tiny Mellum"), logits, use_mtp=True)


def gemma4(tokenizer: Any, vocab: int) -> Headed:
    """Returns a Gemma 4 model and its assistant.

    What the assistant's attention finds is multiplied by 0: after a rejection it would find the rejected token's keys,
    which a text does not tell.
    """

    def config(**more: Any) -> Any:
        return transformers.Gemma4TextConfig(
            vocab_size=vocab,
            global_head_dim=SIZES["head_dim"],
            layer_types=["sliding_attention", "full_attention"],
            hidden_size_per_layer_input=0,
            vocab_size_per_layer_input=0,
            tie_word_embeddings=False,
            **SIZES,
            **more,
        )

    torch.manual_seed(0)
    model = transformers.Gemma4ForCausalLM(config()).eval()
    whole = transformers.Gemma4AssistantConfig(
        text_config=config(num_kv_shared_layers=SIZES["num_hidden_layers"]),
        backbone_hidden_size=WIDTH,
        tie_word_embeddings=False,
    )
    assistant = transformers.Gemma4AssistantForCausalLM(whole).eval()
    for layer in assistant.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    assistant.generation_config.num_assistant_tokens = 1

    def logits(ids: torch.Tensor) -> Any:
        seen = model(ids[:, :-1], output_hidden_states=True, return_shared_kv_states=True)
        last = torch.cat([model.get_input_embeddings()(ids[:, -1:]), seen.hidden_states[-1][:, -1:]], dim=-1)
        found = assistant(
            inputs_embeds=last,
            attention_mask=torch.ones_like(ids),
            position_ids=torch.tensor([[ids.shape[1] - 1]]),
            shared_kv_states=dict(seen.shared_kv_states.items()),
            use_cache=False,
        )
        return found.logits[0, 0]

    return headed(TransformersModel(model, tokenizer, name="tiny Gemma 4"), logits, assistant_model=assistant)


def dflash(target: TransformersModel) -> Headed:
    """Returns a model and an assistant that denoises a block of masks: here one."""
    model = target.module
    torch.manual_seed(5)
    sizes = SIZES | {"pad_token_id": None}
    config = transformers.MuseGlimmerAssistantConfig(
        block_size=2, mask_token_id=target.vocab_size - 1, target_layer_ids=[0, 1], **sizes
    )
    assistant = transformers.MuseGlimmerAssistantModel(config).eval()

    def logits(ids: torch.Tensor) -> Any:
        hidden = model(ids[:, :-1], output_hidden_states=True).hidden_states
        cache, n = DFlashCache(config=config), ids.shape[1] - 1
        cache.activate_past_recording()
        cache.set_previous_accepted_tokens(n)
        block = torch.cat([ids[:, -1:], torch.tensor([[config.mask_token_id]])], dim=-1)
        found = assistant(
            noise_embeds=model.get_input_embeddings()(block),
            context_hidden_states=torch.cat([hidden[i + 1] for i in config.target_layer_ids], dim=-1),
            position_ids=torch.arange(n + 2)[None],
            attention_mask=torch.ones(1, n + 2, dtype=torch.long),
            cache=cache,
        )
        return model.get_output_embeddings()(found.last_hidden_state[:, 1:])[0, 0]

    return headed(target, logits, assistant_model=assistant, speculation_type="dflash")
