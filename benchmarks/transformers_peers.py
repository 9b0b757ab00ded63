"""transformers' own ways of generating, as contenders."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.contest import Contender, Run
from draftproof.models.transformers import TransformersModel

OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False, "temperature": None, "top_p": None, "top_k": None},
    "sampled": {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "top_k": 0},
    "sampled T=1": {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0},
}


class _Clock(transformers.generation.streamers.BaseStreamer):  # type: ignore[misc]
    """Notes when tokens come, the prompt not counted."""

    def __init__(self) -> None:
        self.times: list[tuple[float, int]] = []
        self._prompt = True

    def put(self, value: torch.Tensor) -> None:
        if self._prompt:
            self._prompt = False
            return
        self.times.append((time.perf_counter(), int(value.numel())))

    def end(self) -> None:
        pass


def generating(model: TransformersModel, **options: Any) -> Contender:
    """Returns `model.generate` with these options as a contender."""
    end = sorted(model.eos_ids)

    def run(prompt: np.ndarray, mode: str, seed: int, max_tokens: int) -> Run:
        torch.manual_seed(seed)
        clock = _Clock()
        ids = torch.from_numpy(prompt.astype(np.int64))[None].to(model.device)
        began = time.perf_counter()
        out = model.module.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            eos_token_id=end or None,
            pad_token_id=end[0] if end else 0,
            streamer=clock,
            **OPTIONS[mode],
            **options,
        )
        total = time.perf_counter() - began
        count = out.shape[1] - len(prompt)
        first, head = clock.times[0][0] - began, clock.times[0][1]
        return Run(
            tokens=count,
            first_seconds=first,
            seconds_per_token=(total - first) / (count - head) if count > head else float("nan"),
            passes=len(clock.times),
        )

    return run


def batched(model: TransformersModel, prompts: Sequence[np.ndarray], mode: str, max_tokens: int) -> tuple[int, float]:
    """Decodes prompts in one batch, padded on the left; returns tokens and seconds."""
    end = sorted(model.eos_ids)
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), end[0])
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.from_numpy(prompt.astype(np.int64))
        mask[row, longest - len(prompt) :] = 1
    began = time.perf_counter()
    out = model.module.generate(
        ids, attention_mask=mask, max_new_tokens=max_tokens, eos_token_id=end, pad_token_id=end[0], **OPTIONS[mode]
    )
    seconds = time.perf_counter() - began
    new = out[:, longest:]
    stops = torch.isin(new, torch.tensor(end))
    counts = torch.where(stops.any(1), stops.int().argmax(1) + 1, new.shape[1])
    return int(counts.sum()), seconds


def flashspec(model: TransformersModel, draft: TransformersModel | None = None) -> Contender:
    """Returns flashspec's engine as a contender: with a draft model by its default strategy, or with prompt lookup."""
    from flashspec import FlashSpecConfig, SamplingConfig, SpeculativeEngine
    from flashspec.engine.hf_drafter import HuggingFaceDrafter
    from flashspec.engine.ngram import NgramDrafter
    from flashspec.engine.verifier import TargetModel

    end = sorted(model.eos_ids)

    def engine(mode: str, seed: int) -> Any:
        options = OPTIONS[mode]
        heat = options["temperature"] if options["do_sample"] else 0.0
        top_p = options["top_p"] if options["do_sample"] else 1.0
        drafter: Any = NgramDrafter()
        if draft is not None:
            drafter = HuggingFaceDrafter(draft.name, model.device, temperature=heat, model=draft.module)
        config = FlashSpecConfig(
            device=str(model.device),
            dtype="bfloat16",
            sampling=SamplingConfig(temperature=heat, top_p=top_p, seed=seed),
        )
        return SpeculativeEngine(config, [drafter], TargetModel(model.name, model.device, model=model.module))

    def run(prompt: np.ndarray, mode: str, seed: int, max_tokens: int) -> Run:
        ids = torch.from_numpy(prompt.astype(np.int64))[None]
        done = engine(mode, seed).generate(ids, max_new_tokens=max_tokens, eos_token_ids=end)
        # Its first step reads the prompt.
        steps = done.arm_steps
        count = sum(step.emitted for step in steps[1:])
        return Run(
            tokens=done.n_tokens_generated,
            first_seconds=steps[0].seconds,
            seconds_per_token=sum(step.seconds for step in steps[1:]) / count if count else float("nan"),
            passes=len(steps),
            drafted=sum(step.proposed for step in steps),
            accepted=sum(step.accepted for step in steps),
        )

    return run
