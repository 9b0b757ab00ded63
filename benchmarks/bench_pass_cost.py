"""What a pass over n rows costs, in passes over one row, by context length: the curve that "auto" decides with.

python -m benchmarks.bench_pass_cost [--target FILE]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import draftproof as dp
from benchmarks.record import print_table, write_csv

RESULTS = Path(__file__).parent / "results" / "pass_cost.csv"
ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
CONTEXTS = (64, 512, 1500)
ROUNDS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="smollm2-135m")
    options = parser.parse_args()
    model = dp.load(options.target)
    text = np.random.default_rng(0).integers(0, model.vocab_size, max(CONTEXTS) + max(ROWS)).astype(np.int32)
    table: list[dict[str, Any]] = []
    with model.session() as session:
        for context in CONTEXTS:
            session.score([dp.Query(0, text[:context], text[:0])])
            times: dict[int, list[float]] = {rows: [] for rows in ROWS}
            for _ in range(ROUNDS):
                for rows in ROWS:
                    began = time.perf_counter()
                    session.score([dp.Query(0, text[:context], text[context : context + rows - 1])])
                    times[rows].append(time.perf_counter() - began)
            one = median(times[1])
            table += [
                {
                    "target": model.name,
                    "context": context,
                    "rows": rows,
                    "ms": round(1e3 * median(times[rows]), 2),
                    "ratio": round(median(times[rows]) / one, 2),
                }
                for rows in ROWS
            ]
    write_csv(RESULTS, table, f"python -m benchmarks.bench_pass_cost --target {options.target}")
    print_table(("target", "context", "rows", "ms", "in passes over one row"), table)


if __name__ == "__main__":
    main()
