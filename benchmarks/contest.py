"""Engines decode the same prompts in turn, round after round in one process; speed is a ratio to the plain one."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import draftproof as dp
from benchmarks.record import ratio_interval, write_csv

SAMPLERS = {
    "greedy": dp.Sampler(temperature=0),
    "sampled": dp.Sampler(temperature=0.8, top_p=0.95),
    "sampled T=1": dp.Sampler(),
}


@dataclass(frozen=True)
class Run:
    """One timed request."""

    tokens: int
    first_seconds: float
    seconds_per_token: float
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    own_share: float = 0.0


Contender = Callable[[np.ndarray, str, int, int], Run]
"""(prompt ids, mode, seed, max_tokens) -> what it took."""


class RandomDrafter(dp.Drafter):
    """Proposes random tokens and claims nothing about them: the worst drafter there is."""

    name = "random"
    stochastic = False

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def session(self, slots: int = 1) -> dp.DraftSession:
        return _RandomSession(self.vocab_size)


class _RandomSession(dp.DraftSession):
    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rng = np.random.default_rng(0)

    def propose(self, proposals: Sequence[dp.Proposal]) -> list[dp.Draft]:
        return [dp.Draft(self._rng.integers(0, self._vocab_size, each.limit).astype(np.int32)) for each in proposals]


def ours(model: dp.Model, drafter: dp.Drafter | str, length: Any, *, seeded: bool = True) -> Contender:
    """Returns an engine as a contender; `seeded` requests go by the coupled rule, others by the one for the drafter."""
    engine = dp.Engine(model, drafter, num_draft_tokens=length)
    engine.prepare()

    def run(prompt: np.ndarray, mode: str, seed: int, max_tokens: int) -> Run:
        first = None
        began = time.perf_counter()
        for step in engine.stream(prompt, sampler=SAMPLERS[mode], seed=seed if seeded else None, max_tokens=max_tokens):
            if first is None and step.tokens:
                first, head = time.perf_counter() - began, len(step.tokens)
            completion = step.completion
        total = time.perf_counter() - began
        assert completion is not None
        assert first is not None
        timings, counts, count = completion.timings, completion.counts, len(completion.tokens)
        return Run(
            tokens=count,
            first_seconds=first,
            seconds_per_token=(total - first) / (count - head) if count > head else float("nan"),
            passes=counts.num_passes,
            drafted=counts.num_draft_tokens,
            accepted=counts.num_accepted_tokens,
            own_share=(total - timings.target - timings.calibration) / total,
        )

    return run


def decode_in_turn(
    contenders: Mapping[str, Contender],
    prompts: Mapping[int, tuple[str, np.ndarray]],
    arguments: Any,
    command: str,
    skipped: Callable[[str, str], bool] = lambda mode, name: False,
) -> list[dict[str, Any]]:
    """Runs everything and returns a row for each (mode, prompt, contender).

    Args:
        contenders: by name; the one named "plain" is what the others are compared with.
        prompts: number -> (category, ids).
        arguments: rounds, modes (joined by commas), max_tokens, out.
        command: what makes the file again.
        skipped: skipped(mode, contender) -> whether it does not run in that mode.
    """
    modes = arguments.modes.split(",")
    runs: dict[tuple[str, int, str], list[Run]] = defaultdict(list)
    rows: list[dict[str, Any]] = []
    for round_ in range(arguments.rounds):
        for number, (_, prompt) in prompts.items():
            for mode in modes:
                names = [name for name in contenders if not skipped(mode, name)]
                # Each time another contender begins, so that none is always next to the same neighbour.
                for name in np.roll(names, -round_ - number):
                    runs[mode, number, str(name)].append(contenders[name](prompt, mode, number, arguments.max_tokens))
            print(f"{round_ + 1}:{number + 1}", end=" ", file=sys.stderr, flush=True)
            rows = [
                {
                    "mode": mode,
                    "prompt": each,
                    "category": prompts[each][0],
                    "contender": name,
                    "runs": len(timed),
                    "prompt_tokens": len(prompts[each][1]),
                    "tokens": timed[0].tokens,
                    # Only in the first mode: in the others the prompt is in the cache.
                    "first_token_ms": round(1000 * median(run.first_seconds for run in timed), 3)
                    if mode == modes[0]
                    else "",
                    "ms_per_token": round(1000 * median(run.seconds_per_token for run in timed), 5),
                    "passes": timed[0].passes,
                    "drafted": timed[0].drafted,
                    "accepted": timed[0].accepted,
                    "own_share": round(median(run.own_share for run in timed), 5),
                }
                for (mode, each, name), timed in runs.items()
            ]
            # After each prompt, so that an interrupted run keeps what it measured.
            write_csv(arguments.out, rows, command)
    print(file=sys.stderr)
    return rows


def table(rows: Sequence[dict[str, Any]], mode: str, parity: int | None = None) -> str:
    """Returns a Markdown table: speed over plain decoding by category, with 95 % intervals over prompts."""
    mine = [row for row in rows if row["mode"] == mode and (parity is None or int(row["prompt"]) % 2 == parity)]
    mine = [row for row in mine if float(row["ms_per_token"]) == float(row["ms_per_token"])]
    categories = sorted({row["category"] for row in mine})
    names = list(dict.fromkeys(row["contender"] for row in mine))
    lines = [
        "| contender | all | " + " | ".join(categories) + " | tokens/s | tokens a pass | first token, ms |",
        "|---" * (len(categories) + 5) + "|",
    ]
    for name in names:
        cells = []
        for category in [None, *categories]:
            chosen = [row for row in mine if category in (None, row["category"])]
            by_prompt = {row["prompt"]: float(row["ms_per_token"]) for row in chosen if row["contender"] == name}
            plain = {row["prompt"]: float(row["ms_per_token"]) for row in chosen if row["contender"] == "plain"}
            shared = sorted(set(by_prompt) & set(plain))
            value, low, high = ratio_interval((plain[p] for p in shared), (by_prompt[p] for p in shared))
            cells.append(f"{value:.2f}x ({low:.2f}-{high:.2f})")
        own = [row for row in mine if row["contender"] == name]
        speed = 1000 * len(own) / sum(float(row["ms_per_token"]) for row in own)
        passes = sum(int(row["passes"]) for row in own)
        tokens = sum(int(row["tokens"]) for row in own)
        per_pass = f"{tokens / passes:.2f}" if passes else "-"
        firsts = [float(row["first_token_ms"]) for row in own if row["first_token_ms"] != ""]
        first = f"{median(firsts):.0f}" if firsts else "-"
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {speed:.1f} | {per_pass} | {first} |")
    return "\n".join(lines)


def report(rows: Sequence[dict[str, Any]], comments: Sequence[str]) -> str:
    """Returns all tables."""
    parts = [*comments, ""]
    for mode in dict.fromkeys(row["mode"] for row in rows):
        for title, parity in (("all prompts", None), ("odd-numbered prompts, which nothing was tuned on", 1)):
            parts += [f"{mode}, {title}: speed over plain decoding (95 % interval over prompts)", ""]
            parts += [table(rows, mode, parity), ""]
        for name in dict.fromkeys(row["contender"] for row in rows):
            shares = [float(row["own_share"]) for row in rows if (row["mode"], row["contender"]) == (mode, name)]
            if not any(shares):
                continue
            parts.append(f"time outside the target's pass, {mode}, {name}: {100 * median(shares):.1f} % of the total")
        parts.append("")
    return "\n".join(parts)


def questions(path: str, model: dp.Model, every: int = 1) -> dict[int, tuple[str, np.ndarray]]:
    """Returns Spec-Bench's prompts as a model's ids: number -> (category, ids)."""
    listed = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return {
        number: (
            listed[number]["category"],
            dp.Request([{"role": "user", "content": listed[number]["turns"][0]}]).prompt_tokens(model),
        )
        for number in range(0, len(listed), every)
    }
