"""The acceptance step from logits: draftproof, its peers, and the time to read the needed bytes once.

Every contender judges the same logits in turn, round after round; what counts is the median. The patterns say which
draft tokens are accepted: all, the first half, or none. Peers draw their own random numbers; where acceptance is
certain that makes no difference.

    python -m benchmarks.bench_verify
    python -m benchmarks.bench_verify --memory
    python -m benchmarks.bench_verify --table benchmarks/results/verify.csv
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.record import print_table, provenance, read_csv, write_csv
from benchmarks.verify_peers import PATTERNS, Contender, Inputs, accepted_by, contenders, make_inputs, ours

RESULTS = Path(__file__).parent / "results" / "verify.csv"
MEMORY = Path(__file__).parent / "results" / "verify_memory.csv"
VOCABULARIES = (32_000, 151_936)
LENGTHS = (1, 4, 8)
BATCHES = (1, 16, 64)
LARGEST = 400_000_000
"""Numbers of one batch's logits; larger ones do not fit beside the peers' copies."""


def floor(inputs: Inputs, pattern: str) -> float:
    """Returns the seconds it takes to read the needed rows once."""
    rows = inputs.needed_rows(pattern)
    began = time.perf_counter()
    for each in rows:
        each.amax()
    return time.perf_counter() - began


def timed(run: Contender, inputs: Inputs) -> float:
    began = time.perf_counter()
    run(inputs)
    return time.perf_counter() - began


def check(inputs: Inputs, pattern: str) -> None:
    """Makes sure that the pattern is what it says."""
    found = ours("torch", 1.0)(inputs).num_accepted
    assert (found == accepted_by(pattern, inputs.tokens.shape[1])).all(), found


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for vocab in VOCABULARIES:
        for k in LENGTHS:
            for batch in BATCHES:
                if (2 * k + 1) * batch * vocab > LARGEST:
                    continue
                # With top-p a large batch takes a sorting peer minutes.
                for top_p in (1.0, 0.95) if batch == 1 else (1.0,):
                    for pattern in PATTERNS:
                        if k == 1 and pattern == "half":
                            continue
                        rows += one(vocab, k, batch, top_p, pattern, arguments.rounds)
                        write_csv(arguments.out, rows, "python -m benchmarks.bench_verify")
                        print(f"{vocab}/{k}/{batch}/{top_p}/{pattern}", end=" ", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rows


def one(vocab: int, k: int, batch: int, top_p: float, pattern: str, rounds: int) -> list[dict[str, Any]]:
    inputs = make_inputs(batch, k, vocab, pattern)
    check(inputs, pattern)
    runs = contenders(top_p)
    # What takes long is repeated less: a round of the largest settings takes seconds.
    size = (2 * k + 1) * batch * vocab * (1 if top_p == 1.0 else 10)
    rounds = max(3, min(rounds, int(rounds * 4e6 / size)))
    times: dict[str, list[float]] = {name: [] for name in (*runs, "floor")}
    for round_ in range(rounds + 1):
        for name, run in runs.items():
            seconds = timed(run, inputs)
            if round_:
                times[name].append(seconds)
        if round_:
            times["floor"].append(floor(inputs, pattern))
    return [
        {
            "vocab": vocab, "k": k, "batch": batch, "top_p": top_p, "accepted": pattern, "contender": name,
            "rounds": rounds, "median_us": round(1e6 * median(taken), 1),
        }
        for name, taken in times.items()
    ]  # fmt: skip


def peak(vocab: int, k: int, batch: int, results: Any) -> None:
    """Puts the peak memory of a process that judges one batch, over that of its inputs."""
    inputs = make_inputs(batch, k, vocab, "half")
    small = make_inputs(1, k, 1000, "half")
    run = ours("torch", 1.0)
    run(small)
    size = inputs.target.nbytes + inputs.draft.nbytes
    # A fresh high-water mark: writing 5 resets it to what is resident now.
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    run(inputs)
    results.put((size, max(0, _status("VmHWM") - before)))


def _status(name: str) -> int:
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(name))
    return 1024 * int(line.split()[1])


def memory() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    context = multiprocessing.get_context("spawn")
    for vocab in VOCABULARIES:
        for k in LENGTHS:
            for batch in (16, 64):
                if (2 * k + 1) * batch * vocab > LARGEST:
                    continue
                results = context.Queue()
                process = context.Process(target=peak, args=(vocab, k, batch, results))
                process.start()
                size, extra = results.get()
                process.join()
                rows.append({
                    "vocab": vocab, "k": k, "batch": batch, "inputs_mb": round(size / 1e6, 1),
                    "peak_over_inputs": round(1 + extra / size, 3),
                })  # fmt: skip
    write_csv(MEMORY, rows, "python -m benchmarks.bench_verify --memory")
    return rows


def table(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a line for each setting: microseconds of draftproof, and others' time over it."""
    lines: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        key = tuple(str(row[name]) for name in ("vocab", "k", "batch", "top_p", "accepted"))
        lines.setdefault(key, {})[row["contender"]] = float(row["median_us"])
    names = list(dict.fromkeys(row["contender"] for row in rows if row["contender"] != "draftproof torch"))
    found = []
    for key, times in lines.items():
        mine = times["draftproof torch"]
        line: dict[str, Any] = dict(zip(("vocab", "k", "batch", "top_p", "accepted"), key, strict=True))
        line["draftproof torch, us"] = round(mine)
        for name in names:
            line[name] = f"{times[name] / mine:.2f}" if name in times else "-"
        found.append(line)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--memory", action="store_true", help="measure peak memory instead")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", type=Path, help="print the table of an earlier run")
    arguments = parser.parse_args()
    if arguments.memory:
        print_table(("vocab", "k", "batch", "inputs, MB", "peak over inputs"), memory())
        return
    if arguments.table:
        comments, rows = read_csv(arguments.table)
    else:
        rows = measure(arguments)
        comments = [f"{name}: {value}" for name, value in provenance().items()]
    print("\n".join(comments))
    print(f"threads: {torch.get_num_threads()}; time over draftproof's on tensors, above 1 is slower\n")
    lines = table(rows)
    print_table(list(lines[0]), lines)


if __name__ == "__main__":
    main()
