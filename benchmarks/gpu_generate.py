"""The loop on a GPU: a target of the shape of real models with random weights, and drafts of a chosen acceptance.

The greedy text of the target is recorded first; a drafter then proposes that text with each token right with the given
probability. What speculation gains is held against (1 - a^(k+1)) / (1 - a) tokens a pass over the measured cost of a
pass over k + 1 rows. transformers' own generation is in the table too.

    python -m benchmarks.gpu_generate --shape 8b --out generate_gpu.csv
    python -m benchmarks.gpu_generate --device cpu --shape tiny      # a dry run
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import transformers

import draftproof as dp
from benchmarks.contest import Run, ours
from benchmarks.record import print_table, write_csv
from benchmarks.transformers_peers import generating
from draftproof.models.transformers import TransformersModel
from draftproof.types import as_tokens

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 512,
    },
    "1b": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128_256,
    },
    "8b": {
        "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128_256,
    },
}  # fmt: skip
LENGTHS = (1, 4, 8)
RATES = (0.5, 0.8, 1.0)
PROMPT = 128


class Ids:
    """A tokenizer of bare ids, as random weights know no text."""

    def __init__(self, size: int) -> None:
        self._vocabulary = {f"<{i}>": i for i in range(size)}
        self.added_tokens_decoder: dict[int, Any] = {}
        self.all_special_ids: list[int] = []
        self.eos_token_id = None
        self.chat_template = None

    def get_vocab(self) -> dict[str, int]:
        return self._vocabulary

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [0]}


class RecordedDrafter(dp.Drafter):
    """Proposes a recorded text, each token right with probability `rate`."""

    name = "recorded"
    stochastic = False

    def __init__(self, text: np.ndarray, rate: float) -> None:
        self.text = text
        self.rate = rate

    def session(self, slots: int = 1) -> dp.DraftSession:
        return _RecordedSession(self)


class _RecordedSession(dp.DraftSession):
    def __init__(self, drafter: RecordedDrafter) -> None:
        self._drafter = drafter
        self._rng = np.random.default_rng(0)

    def propose(self, proposals: Sequence[dp.Proposal]) -> list[dp.Draft]:
        drafts = []
        for each in proposals:
            guess = self._drafter.text[len(each.tokens) : len(each.tokens) + each.limit].copy()
            wrong = self._rng.random(len(guess)) >= self._drafter.rate
            guess[wrong] = (guess[wrong] + 1) % self._drafter.text.max()
            drafts.append(dp.Draft(guess))
        return drafts


def pass_costs(model: TransformersModel, text: np.ndarray, rounds: int = 15) -> dict[int, float]:
    """Returns the seconds of a pass over n rows, with the greedy choice of each row taken to the host."""
    costs: dict[int, list[float]] = {n: [] for n in (1, *(k + 1 for k in LENGTHS))}
    with model.session() as session:
        for _ in range(rounds + 2):
            for rows, times in costs.items():
                began = time.perf_counter()
                (found,) = session.score([dp.Query(0, text[:PROMPT], text[PROMPT : PROMPT + rows - 1])])
                for i in range(rows):
                    found[i].argmax()
                times.append(time.perf_counter() - began)
    return {rows: median(times[2:]) for rows, times in costs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    config = transformers.LlamaConfig(
        **SHAPES[arguments.shape], max_position_embeddings=2048, bos_token_id=None, eos_token_id=None, pad_token_id=0
    )
    torch.manual_seed(0)
    with torch.device(arguments.device):
        module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model = TransformersModel(module, Ids(config.vocab_size), name=arguments.shape)
    prompt = as_tokens(np.random.default_rng(1).integers(0, config.vocab_size, PROMPT))
    plain = ours(model, "none", 0)
    recorded = dp.Engine(model, "none", sampler=dp.Sampler(temperature=0)).generate(
        prompt, max_tokens=arguments.max_tokens + max(LENGTHS)
    )
    text = np.concatenate([prompt, as_tokens(recorded.tokens)])
    costs = pass_costs(model, text)
    runs = {("transformers", 0, 0.0): generating(model), ("draftproof plain", 0, 0.0): plain}
    for rate in RATES:
        for k in LENGTHS:
            runs["draftproof", k, rate] = ours(model, RecordedDrafter(text, rate), k)
    times: dict[Any, list[Run]] = {key: [] for key in runs}
    for round_ in range(arguments.rounds + 1):
        for key, run in runs.items():
            done = run(prompt, "greedy", 0, arguments.max_tokens)
            if round_:
                times[key].append(done)
    base = median(each.seconds_per_token for each in times["draftproof plain", 0, 0.0])
    rows = []
    for (name, k, rate), taken in times.items():
        seconds = median(each.seconds_per_token for each in taken)
        expected = sum(rate**i for i in range(k + 1))
        drafted = sum(each.drafted for each in taken)
        rows.append({
            "contender": name,
            "k": k,
            "acceptance asked": rate,
            "acceptance found": round(sum(each.accepted for each in taken) / drafted, 3) if drafted else "",
            "ms a token": round(1000 * seconds, 3),
            "over plain": round(base / seconds, 3),
            "predicted": round(expected * costs[1] / costs[k + 1], 3) if name == "draftproof" else "",
        })  # fmt: skip
    if arguments.out:
        write_csv(arguments.out, rows, f"python -m benchmarks.gpu_generate --shape {arguments.shape} --out FILE")
    place = torch.cuda.get_device_name() if arguments.device == "cuda" else arguments.device
    print(f"device: {place}; ms of a pass by rows: { {n: round(1000 * s, 3) for n, s in costs.items()} }")
    print_table(list(rows[0]), rows)


if __name__ == "__main__":
    main()
