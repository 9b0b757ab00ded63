"""What rounding does to the audit of engines: no alarms at the tolerance, and the smallest error of temperature found.

    python -m benchmarks.bench_audit_noise

Targets whose passes differ from one another: a toy model with noise on its logits that depends on how many rows a pass
has, a small Llama in bfloat16, and the embedded model in four bits. Each engine is audited with the default tolerance,
at the temperature it claims and at others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import draftproof as dp
from benchmarks.record import print_table, write_csv
from draftproof.audit import Verdict, check_engine
from draftproof.audit.engine import NOISE
from draftproof.audit.faulty import toy_pairs
from draftproof.cli.audit import PROMPTS
from draftproof.models.transformers import TransformersModel
from draftproof.types import Tokens

RESULTS = Path(__file__).parent / "results"
TEMPERATURES = (1.0, 0.95, 1.05, 0.9, 1.1, 0.85, 1.15)
LENGTH = 4

Made = tuple[str, dp.Model, Callable[[dp.Sampler], dp.Engine], list[Any], int]
"""Name, the reference, an engine of a sampler, prompts, and how many audits at each temperature."""


def noisy_toy() -> Made:
    """Returns an engine whose logits have noise of the default tolerance, another for each text."""
    target, draft = toy_pairs()["TV 0.2"]

    def table(tokens: Tokens) -> np.ndarray:
        noise = np.random.default_rng([len(tokens), *tokens.tolist()]).normal(size=target.vocab_size)
        return target.table(tokens) + NOISE * noise

    moved = dp.ToyModel(table, target.vocab_size, name="toy with noise")
    return (
        f"toy, noise {NOISE}",
        target,
        lambda sampler: dp.Engine(moved, dp.ModelDrafter(draft), "token", sampler, LENGTH),
        [[1], [2, 3], [4, 5, 6]],
        10,
    )


def bfloat16() -> Made:
    """Returns a small Llama in bfloat16, whose passes of several rows round otherwise than those of one."""
    import torch

    from benchmarks.audit_engines import pair

    torch.set_num_threads(1)  # on models this small a second thread only waits
    target, _ = pair()
    model = TransformersModel(target.module.to(torch.bfloat16), target.tokenizer.tokenizer, name="bfloat16 Llama")
    return (
        "small Llama, bfloat16",
        model,
        lambda sampler: dp.Engine(model, "ngram", "token", sampler, LENGTH),
        [[1, 2, 3, 4, 1, 2, 3], [11, 12, 13, 11, 12]],
        5,
    )


def four_bits() -> Made:
    """Returns the embedded model: four bits, through llama.cpp with its fastest kernels."""
    model = dp.load("smollm2-135m", batch_invariant=False)
    return (
        "smollm2-135m, 4 bits",
        model,
        lambda sampler: dp.Engine(model, "ngram", "token", sampler, LENGTH),
        [model.tokenizer.encode(prompt) for prompt in PROMPTS],
        5,
    )


MADE = {"toy": noisy_toy, "bfloat16": bfloat16, "quantised": four_bits}


def audits(name: str, tokens: int) -> Iterator[dict[str, Any]]:
    """Yields a row for each temperature."""
    title, reference, make, prompts, rounds = MADE[name]()
    for temperature in TEMPERATURES:
        reports = []
        for round_ in range(rounds if temperature == 1.0 else max(rounds // 3, 1)):
            engine = make(dp.Sampler(temperature=temperature))

            def generate(prompt: Tokens, most: int, seed: int, engine: dp.Engine = engine) -> list[int]:
                return engine.generate(prompt, max_tokens=most, seed=seed).tokens

            reports.append(
                check_engine(
                    generate,
                    target=reference,
                    drafter=engine.drafter,
                    sampler=dp.Sampler(),
                    prompts=prompts,
                    tokens=tokens,
                    noise=NOISE,
                    seed=10_000 * round_,
                    naming=0,
                )
            )
        found = [report for report in reports if report.verdict is Verdict.NOT_EXACT]
        yield {
            "engine": title,
            "temperature": temperature,
            "audits": len(reports),
            "called_not_exact": len(found),
            "median_tokens": int(np.median([each.numbers["tokens"] for each in found])) if found else "",
            "tokens_at_most": tokens,
            "largest_e_value": f"{max(each.numbers['largest_e_value'] for each in reports):.3g}",
        }


def main() -> None:
    """Audits, prints the table and writes the CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--only", nargs="*", choices=[*MADE], default=[*MADE])
    parser.add_argument("--out", type=Path, default=RESULTS / "audit_noise.csv")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in arguments.only:
        for row in audits(name, arguments.tokens):
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
            write_csv(arguments.out, rows, f"python -m benchmarks.bench_audit_noise --tokens {arguments.tokens}")
    print_table(list(rows[0]), rows)


if __name__ == "__main__":
    main()
