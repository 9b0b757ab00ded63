"""transformers' own `generate`, assisted or not, as an engine under audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftproof.errors import UsageError
from draftproof.models.transformers import TransformersModel
from draftproof.sampling import Sampler
from draftproof.types import Tokens


class TransformersGenerate:
    """Calls `generate` of a transformers model; see `check_engine` for what it is called with.

    Args:
        model: the target.
        sampler: temperature, top-k, top-p, min-p and repetition penalty; others have no counterpart.
        **options: further arguments of `generate`, such as assistant_model, prompt_lookup_num_tokens or
            assistant_early_exit.

    Raises:
        UsageError: if the sampler has what `generate` does not know.
    """

    def __init__(self, model: TransformersModel, sampler: Sampler, **options: Any) -> None:
        known = Sampler(
            temperature=sampler.temperature,
            top_k=sampler.top_k,
            top_p=sampler.top_p,
            min_p=sampler.min_p,
            repetition_penalty=sampler.repetition_penalty,
        )
        if sampler != known:
            raise UsageError(
                "transformers' generate has no counterpart of a part of this sampler; use temperature, top_k, top_p, "
                "min_p and repetition_penalty only"
            )
        self.__name__ = "transformers generate"
        self._model = model
        self._options: dict[str, Any] = options | {"repetition_penalty": sampler.repetition_penalty}
        if sampler.greedy:
            self._options |= {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        else:
            self._options |= {
                "do_sample": True,
                "temperature": sampler.temperature,
                "top_k": sampler.top_k,
                "top_p": sampler.top_p,
                "min_p": sampler.min_p or None,
            }

    def __call__(self, prompt: Tokens, max_tokens: int, seed: int) -> Sequence[int]:
        """Returns the generated ids."""
        import torch

        torch.manual_seed(seed)
        ids = torch.as_tensor(prompt.astype("int64"), device=self._model.device)[None]
        ends = sorted(self._model.eos_ids)
        out = self._model.module.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,
            **self._options,
        )
        found: list[int] = out[0, ids.shape[1] :].tolist()
        return found
