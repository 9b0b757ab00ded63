"""Engines of others as audits call them: (prompt ids, most tokens, seed) -> new ids."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import draftproof as dp
from draftproof.audit.transformers_generate import TransformersGenerate
from draftproof.models.embedded import embedded_path
from draftproof.models.llamacpp import LlamaCppModel
from draftproof.models.transformers import TransformersModel
from draftproof.types import Tokens

Generate = Callable[[Tokens, int, int], Sequence[int]]

LENGTH = 4
"""Draft tokens."""

FOUR_BITS_NOISE = 0.1
"""Of log p in four bits, between llama.cpp's passes of one row and of several with its fastest kernels."""

SHIFT = 7
"""By how much the ids of a draft model of another vocabulary differ."""


def flashspec_engine(target: TransformersModel, draft: TransformersModel, sampler: dp.Sampler) -> Generate:
    """Returns flashspec's engine with a draft model."""
    from flashspec import FlashSpecConfig, SamplingConfig, SpeculativeEngine
    from flashspec.engine.hf_drafter import HuggingFaceDrafter
    from flashspec.engine.verifier import TargetModel

    def generate(prompt: Tokens, max_tokens: int, seed: int) -> Sequence[int]:
        heat = 0.0 if sampler.greedy else sampler.temperature
        config = FlashSpecConfig(
            device="cpu",
            dtype="float32",
            sampling=SamplingConfig(temperature=heat, top_p=sampler.top_p, seed=seed),
        )
        drafter = HuggingFaceDrafter(draft.name, torch.device("cpu"), temperature=heat, model=draft.module)
        engine = SpeculativeEngine(config, [drafter], TargetModel(target.name, target.device, model=target.module))
        ids = torch.from_numpy(prompt.astype(np.int64))[None]
        done = engine.generate(ids, max_new_tokens=max_tokens, eos_token_ids=[])
        found: list[int] = done.output_ids[0].tolist()
        return found

    return generate


def universal_engine(
    target: TransformersModel, draft: TransformersModel, sampler: dp.Sampler, ordered: bool = False
) -> Generate:
    """Returns transformers' assisted generation by a draft model of another vocabulary: the same words, other ids.

    Args:
        target: the target.
        draft: the draft model, of the target's vocabulary; its ids are moved.
        sampler: of the target.
        ordered: let the draft model's tokenizer list its vocabulary by id; left alone, the order is that of a hash.
    """
    import tokenizers
    import transformers

    size = target.vocab_size
    # Its id i is the word of id order[i], and one word more makes it another vocabulary in the eyes of `generate`.
    order = (torch.arange(size) + SHIFT) % size
    moved = copy.deepcopy(draft.module)
    moved.resize_token_embeddings(size + 1)
    with torch.no_grad():
        moved.model.embed_tokens.weight[:size] = draft.module.model.embed_tokens.weight[order]
        moved.lm_head.weight[:size] = draft.module.lm_head.weight[order]
    words = [*(target.tokenizer.token_name(int(i)) for i in order), "another"]
    pieces = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0])
    )
    pieces.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=pieces)
    if ordered:
        tokenizer.get_vocab = lambda: {word: i for i, word in enumerate(words)}
    return TransformersGenerate(
        target,
        sampler,
        assistant_model=moved,
        tokenizer=target.tokenizer.tokenizer,
        assistant_tokenizer=tokenizer,
    )


def litgpt_engine(target: TransformersModel, draft: TransformersModel, sampler: dp.Sampler, whole: bool) -> Generate:
    """Returns litgpt's speculative decoding.

    Args:
        target: a Llama.
        draft: a Llama.
        sampler: temperature, top-k and top-p.
        whole: by its `generate`; else by its `speculative_decoding`, step by step.
    """
    from litgpt.generate import base, speculative_decoding

    both = _litgpt(draft), _litgpt(target)
    law: dict[str, Any] = {
        "temperature": 0.0 if sampler.greedy else sampler.temperature,
        "top_k": sampler.top_k or None,
        "top_p": sampler.top_p,
    }

    def generate(prompt: Tokens, max_tokens: int, seed: int) -> Sequence[int]:
        torch.manual_seed(seed)
        ids = torch.from_numpy(prompt.astype(np.int64))
        if whole:
            found, _ = speculative_decoding.generate(
                *both, ids, len(ids) + max_tokens, include_prompt=False, speculative_k=LENGTH, **law
            )
            returned: list[int] = found.tolist()
            return returned[:max_tokens]
        places = torch.arange(len(ids))
        # Both caches take the prompt; the target draws the first token.
        first = [base.next_token(each, places, ids[None], input_pos_maxp1=len(ids), **law) for each in both]
        new = [first[1]]
        while len(new) < max_tokens:
            at = len(ids) + len(new) - 1
            got = speculative_decoding.speculative_decoding(
                *both, new[-1], torch.tensor([at]), at + 1, speculative_k=LENGTH, **law
            )
            new += [each.view(1) for each in got]
        return [int(each) for each in new[:max_tokens]]

    return torch.inference_mode()(generate)


def _litgpt(model: TransformersModel) -> Any:
    """Returns a Llama of transformers as litgpt's, and makes sure that it gives the same logits."""
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.scripts.convert_hf_checkpoint import copy_weights_hf_llama

    llama = model.module.config
    config = Config(
        name=model.name,
        block_size=llama.max_position_embeddings,
        vocab_size=llama.vocab_size,
        padded_vocab_size=llama.vocab_size,
        n_layer=llama.num_hidden_layers,
        n_embd=llama.hidden_size,
        n_head=llama.num_attention_heads,
        n_query_groups=llama.num_key_value_heads,
        intermediate_size=llama.intermediate_size,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        norm_eps=llama.rms_norm_eps,
        mlp_class_name="LLaMAMLP",
    )
    state: dict[str, Any] = {}
    copy_weights_hf_llama(config, {}, state, dict(model.module.state_dict()))
    gpt = GPT(config)
    gpt.load_state_dict(state)
    gpt.eval().float()
    ids = torch.arange(2, 12)[None]
    with torch.inference_mode():
        apart = float((gpt(ids) - model.module(ids).logits).abs().max())
    if apart > 1e-4:
        raise RuntimeError(f"litgpt's model differs from transformers' by {apart} logits; the audit would be of that")
    gpt.set_kv_cache(batch_size=1)
    return gpt


def llamacpp_python_engine(sampler: dp.Sampler, lookup: bool = True) -> Generate:
    """Returns llama-cpp-python's generation of the embedded model, by prompt lookup or plain."""
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    llama = Llama(
        str(embedded_path()),
        draft_model=LlamaPromptLookupDecoding(num_pred_tokens=LENGTH) if lookup else None,
        logits_all=True,
        n_ctx=1024,
        verbose=False,
    )
    law: dict[str, Any] = {"temp": sampler.temperature, "top_k": sampler.top_k, "top_p": sampler.top_p}
    law |= {"min_p": sampler.min_p, "typical_p": 1.0, "repeat_penalty": sampler.repetition_penalty}

    def generate(prompt: Tokens, max_tokens: int, seed: int) -> Sequence[int]:
        llama.set_seed(seed)
        llama.reset()
        new: list[int] = []
        for token in llama.generate(prompt.tolist(), **law):
            new.append(int(token))
            if len(new) >= max_tokens or token == llama.token_eos():
                break
        return new

    return generate


def llamacpp_target() -> LlamaCppModel:
    """Returns the embedded model, with the kernels that others use."""
    model = dp.load("smollm2-135m", batch_invariant=False)
    assert isinstance(model, LlamaCppModel)
    return model
