"""Speculation on transformers models against transformers' own generation: SmolLM2-135M in bfloat16.

Every contender decodes every prompt, in turn, in one process; the baseline, "plain", is transformers' own `generate`.
The batch table decodes eight prompts at once. The draft table is of a draft model of the user's own, such as
`examples/13_distill_a_draft.py` makes, with what its acceptance and the cost of passes predict (theory, "speed-up").

    python -m benchmarks.bench_transformers --prompts PATH/question.jsonl
    python -m benchmarks.bench_transformers --batch --prompts PATH/question.jsonl
    python -m benchmarks.bench_transformers --draft DIRECTORY --prompts PATH/question.jsonl
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
from scipy.optimize import brentq

import draftproof as dp
from benchmarks.contest import SAMPLERS, Contender, decode_in_turn, ours, questions, report
from benchmarks.record import print_table, provenance, ratio_interval, read_csv, write_csv
from benchmarks.transformers_peers import batched, flashspec, generating
from draftproof.models.transformers import TransformersModel
from draftproof.types import as_tokens

FIXED = (1, 2, 4)
"""Draft lengths of the draft table."""

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


def with_draft(target: TransformersModel, draft: TransformersModel) -> dict[str, Contender]:
    """Returns who can use a draft model; "k" stands for a fixed draft length."""
    drafter = dp.ModelDrafter(draft)
    return {
        "plain": generating(target),
        "draftproof plain": ours(target, "none", "auto"),
        "draftproof": ours(target, drafter, "auto", seeded=False),
        **{f"draftproof k={k}": ours(target, drafter, k, seeded=False) for k in FIXED},
        "transformers assisted": generating(target, assistant_model=draft.module),
        "flashspec": flashspec(target, draft),
    }


def pass_seconds(model: dp.Model, rows: int, length: int = 128, tries: int = 15) -> float:
    """Returns the median time of a pass over so many rows after `length` tokens of context."""
    context = as_tokens(np.arange(length) % 1000 + 1000)
    times = []
    with model.session() as session:
        for _ in range(tries + 2):
            began = time.perf_counter()
            found = session.score([dp.Query(0, context, context[: rows - 1])])[0]
            _ = found[0]
            times.append(time.perf_counter() - began)
    return median(times[2:])


def predicted(target: dp.Model, draft: dp.Model, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns S(k) = (1 + a + .. + a^k) / (k c + v(k + 1)) beside what was measured over plain decoding by draftproof.

    The acceptance a is the one at which a + .. + a^k is the mean number of draft tokens accepted.
    """
    one = pass_seconds(target, 1)
    c = pass_seconds(draft, 1) / one
    lines = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        plain = {row["prompt"]: row for row in rows if (row["mode"], row["contender"]) == (mode, "draftproof plain")}
        for k in FIXED:
            mine = [row for row in rows if (row["mode"], row["contender"]) == (mode, f"draftproof k={k}")]
            kept = sum(row["accepted"] for row in mine) / (sum(row["drafted"] for row in mine) / k)
            a = float(brentq(lambda a, k=k, kept=kept: sum(a**j for j in range(1, k + 1)) - kept, 0.0, 1.0))
            v = pass_seconds(target, k + 1) / one
            measured, low, high = ratio_interval(
                (plain[row["prompt"]]["ms_per_token"] for row in mine), (row["ms_per_token"] for row in mine)
            )
            lines.append(
                {
                    "mode": mode,
                    "k": k,
                    "acceptance": round(a, 3),
                    "c": round(c, 3),
                    "v(k+1)": round(v, 3),
                    "predicted": round((1.0 + kept) / (k * c + v), 3),
                    "measured": round(measured, 3),
                    "low": round(low, 3),
                    "high": round(high, 3),
                }
            )
    return lines


def predicted_of_copy(target: dp.Model, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the same for drafts by the GGUF file, at the mean draft length that "auto" chose and what it kept."""
    one = pass_seconds(target, 1)
    c = pass_seconds(dp.load("smollm2-135m"), 1) / one
    lines = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        mine = [row for row in rows if (row["mode"], row["contender"]) == (mode, GGUF)]
        passes, drafted, accepted = (sum(int(row[key]) for row in mine) for key in ("passes", "drafted", "accepted"))
        k = drafted / passes
        v = pass_seconds(target, round(k) + 1) / one
        plain = {row["prompt"]: row for row in rows if (row["mode"], row["contender"]) == (mode, "plain")}
        measured, low, high = ratio_interval(
            (float(plain[row["prompt"]]["ms_per_token"]) for row in mine), (float(row["ms_per_token"]) for row in mine)
        )
        lines.append(
            {
                "mode": mode,
                "mean_draft": round(k, 2),
                "tokens_a_pass": round(1.0 + accepted / passes, 2),
                "c": round(c, 3),
                "v": round(v, 3),
                "predicted": round((1.0 + accepted / passes) / (k * c + v), 3),
                "measured": round(measured, 3),
                "low": round(low, 3),
                "high": round(high, 3),
            }
        )
    return lines


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
    parser.add_argument("--predict", type=Path, help="what the theory says of an earlier run's drafts by the GGUF file")
    parser.add_argument("--draft", help="directory of a draft model")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the tables of an earlier run")
    arguments = parser.parse_args()
    name = "transformers_batch.csv" if arguments.batch else "transformers.csv"
    name = "transformers_draft.csv" if arguments.draft else name
    arguments.out = arguments.out or RESULTS / name
    if arguments.table:
        comments, rows = read_csv(arguments.table)
        print(report(rows, comments))
        return
    if arguments.predict:
        lines = predicted_of_copy(
            dp.load("transformers:smollm2-135m", dtype="bfloat16"), read_csv(arguments.predict)[1]
        )
        write_csv(
            RESULTS / "transformers_predicted.csv", lines, "python -m benchmarks.bench_transformers --predict FILE"
        )
        print_table(list(lines[0]), lines)
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
    if arguments.draft:
        draft = dp.load(f"transformers:{arguments.draft}", dtype="bfloat16")
        assert isinstance(draft, TransformersModel)
        command = "python -m benchmarks.bench_transformers --draft DIRECTORY --prompts FILE"
        measured = decode_in_turn(with_draft(target, draft), prompts, arguments, command)
        print(report(measured, [f"{key}: {value}" for key, value in provenance().items()]))
        lines = predicted(target, draft, measured)
        write_csv(arguments.out.with_stem(f"{arguments.out.stem}_predicted"), lines, command)
        print_table(list(lines[0]), lines)
        return
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
