"""Speculation on transformers models against transformers' own generation: SmolLM2-135M in bfloat16.

Every contender decodes every prompt, in turn, in one process; the baseline, "plain", is transformers' own `generate`.
The batch table decodes eight prompts at once.

    python -m benchmarks.bench_transformers --prompts PATH/question.jsonl
    python -m benchmarks.bench_transformers --batch --prompts PATH/question.jsonl
    python -m benchmarks.bench_transformers --table benchmarks/results/transformers.csv
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import draftproof as dp
from benchmarks.contest import SAMPLERS, Contender, decode_in_turn, ours, questions, report
from benchmarks.record import print_table, provenance, read_csv, write_csv
from benchmarks.transformers_peers import batched, flashspec, generating
from draftproof.models.transformers import TransformersModel

RESULTS = Path(__file__).parent / "results"
BATCH = 8
GGUF = "draftproof (GGUF on llama.cpp drafts)"


def contenders(target: TransformersModel, chosen: str | None) -> dict[str, Contender]:
    """Returns who takes part: lookups and the model's own drafts."""
    draft = dp.load("smollm2-135m")
    layers = dp.draft.load_drafter("self:layers=10", target)
    assert isinstance(layers, dp.ModelDrafter)
    assert isinstance(layers.model, TransformersModel)
    everyone: dict[str, Contender] = {
        "plain": generating(target),
        "draftproof plain": ours(target, "none", "auto"),
        "draftproof": ours(target, "suffix", "auto"),
        "transformers lookup 4": generating(target, prompt_lookup_num_tokens=4),
        "transformers lookup 10": generating(target, prompt_lookup_num_tokens=10),
        GGUF: ours(target, dp.ModelDrafter(draft), "auto", seeded=False),
        "draftproof (first 10 layers draft)": ours(target, layers, "auto", seeded=False),
        "transformers assisted (first 10 layers draft)": generating(target, assistant_model=layers.model.module),
        "flashspec lookup": flashspec(target),
        "flashspec (first 10 layers draft)": flashspec(target, layers.model),
    }
    if chosen is None:
        return everyone
    return {name: each for name, each in everyone.items() if name == "plain" or name in chosen.split(",")}


def in_batches(target: TransformersModel, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns tokens a second for batches of prompts."""
    prompts = [prompt for _, prompt in questions(arguments.prompts, target, arguments.every).values()]
    groups = [prompts[i : i + BATCH] for i in range(0, len(prompts) - BATCH + 1, BATCH)]
    engine = dp.Engine(target, "suffix", max_batch_size=BATCH)
    engine.prepare()
    lookup = generating(target, prompt_lookup_num_tokens=10)
    rows = []
    for number, group in enumerate(groups):
        for mode in ("greedy", "sampled"):
            speeds: dict[str, list[float]] = {"draftproof": [], "plain batch": [], "lookup, one after another": []}
            for round_ in range(arguments.rounds):
                for name in np.roll(list(speeds), round_ + number):
                    if name == "draftproof":
                        began = time.perf_counter()
                        done = engine.generate_batch(
                            group, sampler=SAMPLERS[mode], seed=number, max_tokens=arguments.max_tokens
                        )
                        tokens, seconds = sum(len(each.tokens) for each in done), time.perf_counter() - began
                        engine.close()
                    elif name == "plain batch":
                        tokens, seconds = batched(target, group, mode, arguments.max_tokens)
                    else:
                        began = time.perf_counter()
                        tokens = sum(lookup(prompt, mode, number, arguments.max_tokens).tokens for prompt in group)
                        seconds = time.perf_counter() - began
                    speeds[str(name)].append(tokens / seconds)
            rows.append(
                {"mode": mode, "group": number} | {name: round(median(each), 2) for name, each in speeds.items()}
            )
            print(number + 1, mode, rows[-1], file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", help="JSON lines with question_id, category, turns")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="take every n-th prompt only")
    parser.add_argument("--modes", default="greedy,sampled,sampled T=1")
    parser.add_argument("--only", help="contenders besides plain, joined by commas")
    parser.add_argument("--batch", action="store_true", help="eight prompts at a time")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the tables of an earlier run")
    arguments = parser.parse_args()
    name = "transformers_batch.csv" if arguments.batch else "transformers.csv"
    arguments.out = arguments.out or RESULTS / name
    if arguments.table:
        comments, rows = read_csv(arguments.table)
        print(report(rows, comments))
        return
    if not arguments.prompts:
        parser.error("give --prompts, or --table for the tables of an earlier run")
    target = dp.load("transformers:smollm2-135m", dtype="bfloat16")
    assert isinstance(target, TransformersModel)
    command = f"python -m benchmarks.bench_transformers {'--batch ' if arguments.batch else ''}--prompts FILE"
    if arguments.batch:
        lines = in_batches(target, arguments)
        write_csv(arguments.out, lines, command)
        print_table(list(lines[0]), lines)
        return
    prompts = questions(arguments.prompts, target, arguments.every)
    # At temperature 1 lookups have little to find: that mode is for drafts by the model's own quantised copy.
    measured = decode_in_turn(
        contenders(target, arguments.only),
        prompts,
        arguments,
        command,
        skipped=lambda mode, name: mode == "sampled T=1" and name not in ("plain", GGUF),
    )
    print(report(measured, [f"{key}: {value}" for key, value in provenance().items()]))


if __name__ == "__main__":
    main()
