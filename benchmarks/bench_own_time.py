"""Our own time outside the target's pass, by sampling law, on the embedded model (49,152 ids).

python -m benchmarks.bench_own_time
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import draftproof as dp
from benchmarks.record import print_table, write_csv

RESULTS = Path(__file__).parent / "results" / "own_time.csv"
SAMPLERS = {
    "greedy": dp.Sampler(temperature=0),
    "T=0.8, top-p 0.95": dp.Sampler(temperature=0.8, top_p=0.95),
    "T=0.8, min-p 0.05": dp.Sampler(temperature=0.8, min_p=0.05),
    "T=1, untruncated": dp.Sampler(),
}
PROMPTS = ("Write a story about a dog.", "Why is the sky blue?", "List the largest cities of Europe.")
ROUNDS = 3


def main() -> None:
    model = dp.load("smollm2-135m")
    engines = {drafter: dp.Engine(model, drafter) for drafter in ("none", "suffix")}
    measured: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for engine in engines.values():
        engine.prepare()
    for _ in range(ROUNDS):
        for text in PROMPTS:
            for name, sampler in SAMPLERS.items():
                for drafter, engine in engines.items():
                    done = engine.generate(
                        [{"role": "user", "content": text}], sampler=sampler, seed=1, max_tokens=128, ignore_eos=True
                    )
                    timings, passes = done.timings, done.counts.num_passes
                    own = timings.overhead + timings.draft
                    share = own / (own + timings.target)
                    measured.setdefault((name, drafter), []).append(
                        (share, 1e6 * own / passes, 1e3 * timings.target / passes)
                    )
    rows: list[dict[str, Any]] = [
        {
            "law": name,
            "drafter": drafter,
            "own_percent": round(100 * median(each[0] for each in runs), 1),
            "own_us_per_pass": round(median(each[1] for each in runs)),
            "target_ms_per_pass": round(median(each[2] for each in runs), 2),
        }
        for (name, drafter), runs in measured.items()
    ]
    write_csv(RESULTS, rows, "python -m benchmarks.bench_own_time")
    print_table(("law", "drafter", "own time, %", "own, us a pass", "target, ms a pass"), rows)


if __name__ == "__main__":
    main()
