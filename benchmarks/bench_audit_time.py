"""What the audit of an engine costs: the engine's generation, the reference's passes, and the auditor's own time.

    python -m benchmarks.bench_audit_time

The embedded model, 49,152 ids, and a Llama of two layers with 48: the smaller the model, the more the rest weighs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import draftproof as dp
from benchmarks.record import print_table, write_csv
from draftproof.audit import Verdict, check_engine
from draftproof.cli.audit import PROMPTS

RESULTS = Path(__file__).parent / "results"
NEVER = 1e-300
"""An alpha that no bet reaches: each audit goes on to its last token."""

LAWS = {
    "T=1": dp.Sampler(),
    "T=0.8, top-p 0.9": dp.Sampler(temperature=0.8, top_p=0.9),
    "top-k 20": dp.Sampler(top_k=20),
}


def engines() -> Iterator[tuple[str, str, dp.Engine, list[Any]]]:
    """Yields model and drafter by name, an engine and prompts."""
    import torch

    from benchmarks.audit_engines import pair

    model = dp.load("smollm2-135m")
    prompts = [model.tokenizer.encode(prompt) for prompt in PROMPTS]
    for drafter in ("none", "ngram"):
        yield "smollm2-135m", drafter, dp.Engine(model, drafter, "token", None, 4), prompts
    torch.set_num_threads(1)  # on models this small a second thread only waits
    target, draft = pair()
    yield "small Llama", "draft model", dp.Engine(target, dp.ModelDrafter(draft), "token", None, 4), [[1, 2, 3], [4, 5]]


def main() -> None:
    """Audits in turn, prints the table of medians and writes the CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "audit_time.csv")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for model, drafter, engine, prompts in engines():
        for law, sampler in LAWS.items():
            spent = []
            for round_ in range(arguments.rounds):
                report = check_engine(
                    engine,
                    sampler=sampler,
                    prompts=prompts,
                    tokens=arguments.tokens,
                    alpha=NEVER,
                    seed=10_000 * round_,
                    naming=0,
                )
                if report.verdict is Verdict.NOT_EXACT:
                    raise SystemExit(f"{model}, {drafter}, {law}: {report.summary}")
                passes = report.numbers["generation_seconds"], report.numbers["reference_seconds"]
                spent.append(
                    [1e3 * each / report.numbers["tokens"] for each in (*passes, report.seconds - sum(passes))]
                )
            generation, reference, own = np.median(spent, axis=0)
            shares = [100.0 * each[2] / each[0] for each in spent]
            rows.append(
                {
                    "model": model,
                    "drafter": drafter,
                    "law": law,
                    "generation_ms_a_token": f"{generation:.2f}",
                    "reference_ms_a_token": f"{reference:.2f}",
                    "own_ms_a_token": f"{own:.2f}",
                    "own_over_generation_percent": f"{np.median(shares):.0f}",
                    "range_percent": f"{min(shares):.0f}-{max(shares):.0f}",
                }
            )
            print(rows[-1], file=sys.stderr, flush=True)
    write_csv(arguments.out, rows, f"python -m benchmarks.bench_audit_time {' '.join(sys.argv[1:])}".rstrip())
    print_table(list(rows[0]), rows)


if __name__ == "__main__":
    main()
