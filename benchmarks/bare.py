"""The least that decoding with llama.cpp can be: llama_decode on one token and argmax, in a loop."""

from __future__ import annotations

import time
from typing import Any

import llama_cpp
import numpy as np

from draftproof.models.llamacpp import LlamaCppModel


class BareLoop:
    """One context with the fastest settings, used directly.

    Args:
        model: a loaded model, for its file, thread count and end-of-sequence ids.
    """

    def __init__(self, model: LlamaCppModel, context_length: int = 2048) -> None:
        self.path = str(model.path)
        self.threads = model.threads
        self._eos = model.eos_ids
        self._vocab_size = model.vocab_size
        self._model = llama_cpp.llama_model_load_from_file(self.path.encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = context_length
        params.n_threads = params.n_threads_batch = self.threads
        params.flash_attn_type = 1
        self._context = llama_cpp.llama_init_from_model(self._model, params)

    def decode(self, prompt: np.ndarray, max_tokens: int) -> tuple[float, float, int]:
        """Decodes greedily; returns seconds to the first token, seconds in all, and the number of tokens."""
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_seq_rm(memory, 0, -1, -1)
        ids = (llama_cpp.llama_token * len(prompt))(*prompt.tolist())
        began = time.perf_counter()
        llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(ids, len(prompt)))
        one = (llama_cpp.llama_token * 1)()
        first, count = 0.0, 0
        while True:
            logits: Any = llama_cpp.llama_get_logits_ith(self._context, -1)
            token = int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())
            count += 1
            if count == 1:
                first = time.perf_counter() - began
            if count == max_tokens or token in self._eos:
                return first, time.perf_counter() - began, count
            one[0] = token
            llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(one, 1))
