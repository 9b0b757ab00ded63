"""What drafting costs by the length of the history: the same at 50,000 tokens as at 100.

python -m benchmarks.bench_drafting
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import draftproof as dp
from benchmarks.record import print_table, write_csv

RESULTS = Path(__file__).parent / "results" / "drafting.csv"
HISTORIES = (100, 1_000, 10_000, 50_000)
ROUNDS = 2_000


def text(length: int, seed: int) -> np.ndarray:
    """Returns ids with the repetitions of natural text: phrases of a small stock, now and then a new word."""
    rng = np.random.default_rng(seed)
    stock = [rng.integers(0, 49_152, rng.integers(2, 12)) for _ in range(300)]
    parts: list[np.ndarray] = []
    while sum(map(len, parts)) < length:
        parts.append(stock[int(rng.zipf(1.3)) % 300] if rng.random() < 0.8 else rng.integers(0, 49_152, 3))
    return np.concatenate(parts)[:length].astype(np.int32)


def microseconds(drafter: dp.Drafter, history: int) -> float:
    """Returns the median time of one proposal, the taking in of the tokens since the last one included."""
    tokens = text(history + ROUNDS, seed=1)
    sampler = dp.Sampler().bind(1, (), 49_152)
    session = drafter.session(1)
    session.begin(0, tokens[:history], True)
    times = []
    for length in range(history, history + ROUNDS):
        proposal = dp.Proposal(0, tokens[:length], 16, sampler, lambda law, offset: 0, lambda survival, offset: False)
        began = time.perf_counter()
        session.propose([proposal])
        times.append(time.perf_counter() - began)
    return 1e6 * median(times[1:])


def main() -> None:
    rows: list[dict[str, Any]] = []
    for name, drafter in (("suffix", dp.SuffixDrafter()), ("ngram", dp.NgramDrafter())):
        rows += [
            {"drafter": name, "history_tokens": history, "us_per_step": round(microseconds(drafter, history), 1)}
            for history in HISTORIES
        ]
    write_csv(RESULTS, rows, "python -m benchmarks.bench_drafting")
    print_table(("drafter", "history, tokens", "a proposal, microseconds"), rows)


if __name__ == "__main__":
    main()
