"""Speculation against plain decoding, and against its peers, on the embedded model.

Every contender decodes every prompt, in turn, round after round in one process; what counts is the median over the
rounds of the seconds a token after the first. The time to the first token is taken in greedy mode, where the prompt is
read; the sampled mode finds it in the cache.

    python -m benchmarks.bench_generate --prompts PATH/question.jsonl
    python -m benchmarks.bench_generate --table benchmarks/results/generate.csv
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import draftproof as dp
from benchmarks.bare import BareLoop
from benchmarks.record import provenance, ratio_interval, read_csv, write_csv
from draftproof.models.llamacpp import LlamaCppModel

RESULTS = Path(__file__).parent / "results" / "generate.csv"
LOOKUP = "llama-cpp-python lookup"
SAMPLERS = {"greedy": dp.Sampler(temperature=0), "sampled": dp.Sampler(temperature=0.8, top_p=0.95)}


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


def ours(model: dp.Model, drafter: dp.Drafter | str, length: Any) -> Contender:
    """Returns an engine as a contender."""
    engine = dp.Engine(model, drafter, num_draft_tokens=length)
    engine.prepare()

    def run(prompt: np.ndarray, mode: str, seed: int, max_tokens: int) -> Run:
        first = None
        began = time.perf_counter()
        for step in engine.stream(prompt, sampler=SAMPLERS[mode], seed=seed, max_tokens=max_tokens):
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


def llama_cpp_lookup(model: dp.Model, path: str, threads: int) -> Contender:
    """llama-cpp-python's own prompt lookup, in its own engine."""
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    llama = Llama(
        model_path=path,
        n_ctx=2048,
        n_threads=threads,
        n_threads_batch=threads,
        draft_model=LlamaPromptLookupDecoding(num_pred_tokens=10),
        logits_all=True,
        flash_attn=True,
        verbose=False,
    )

    def run(prompt: np.ndarray, mode: str, seed: int, max_tokens: int) -> Run:
        options: dict[str, Any] = {"temp": 0.0} if mode == "greedy" else {"temp": 0.8, "top_p": 0.95}
        llama.set_seed(seed)
        times: list[float] = []
        began = time.perf_counter()
        for token in llama.generate(prompt.tolist(), top_k=0, min_p=0.0, repeat_penalty=1.0, **options):
            times.append(time.perf_counter() - began)
            if token in model.eos_ids or len(times) == max_tokens:
                break
        count = len(times)
        return Run(count, times[0], (times[-1] - times[0]) / (count - 1) if count > 1 else float("nan"))

    return run


def bare(loop: BareLoop) -> Contender:
    """A loop of llama_decode and argmax, with nothing around it."""

    def run(prompt: np.ndarray, mode: str, seed: int, max_tokens: int) -> Run:
        first, total, count = loop.decode(prompt, max_tokens)
        return Run(count, first, (total - first) / (count - 1) if count > 1 else float("nan"))

    return run


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs everything and returns a row for each (mode, prompt, contender)."""
    model = dp.load(arguments.target)
    assert isinstance(model, LlamaCppModel)
    loop = BareLoop(model)
    contenders: dict[str, Contender] = {
        "plain": ours(model, "none", "auto"),
        "auto": ours(model, "suffix", "auto"),
        "fixed k=2": ours(model, "suffix", 2),
        "fixed k=4": ours(model, "suffix", 4),
        "fixed k=8": ours(model, "suffix", 8),
        "random drafts": ours(model, RandomDrafter(model.vocab_size), "auto"),
        LOOKUP: llama_cpp_lookup(model, loop.path, loop.threads),
        "bare loop": bare(loop),
    }
    questions = [json.loads(line) for line in Path(arguments.prompts).read_text().splitlines()]
    numbers = range(0, len(questions), arguments.every)
    modes = arguments.modes.split(",")
    command = f"python -m benchmarks.bench_generate --target {arguments.target} --prompts FILE"
    runs: dict[tuple[str, int, str], list[Run]] = defaultdict(list)
    lengths: dict[int, int] = {}
    rows: list[dict[str, Any]] = []
    for round_ in range(arguments.rounds):
        for number in numbers:
            messages = [{"role": "user", "content": questions[number]["turns"][0]}]
            prompt = dp.Request(messages).prompt_tokens(model)
            lengths[number] = len(prompt)
            for mode in modes:
                names = [name for name in contenders if mode == "greedy" or name != "bare loop"]
                # Each time another contender begins, so that none is always next to the same neighbour.
                for name in np.roll(names, -round_ - number):
                    runs[mode, number, str(name)].append(contenders[name](prompt, mode, number, arguments.max_tokens))
            print(f"{round_ + 1}:{number + 1}", end=" ", file=sys.stderr, flush=True)
            rows = [
                {
                    "mode": mode,
                    "prompt": each,
                    "category": questions[each]["category"],
                    "contender": name,
                    "runs": len(timed),
                    "prompt_tokens": lengths[each],
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
        for name in ("plain", "auto"):
            shares = [float(row["own_share"]) for row in rows if (row["mode"], row["contender"]) == (mode, name)]
            parts.append(f"time outside the target's pass, {mode}, {name}: {100 * median(shares):.1f} % of the total")
        parts.append("")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", help="JSON lines with question_id, category, turns")
    parser.add_argument("--target", default="smollm2-135m", help="a GGUF file, or the embedded model")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", type=int, default=1, help="take every n-th prompt only")
    parser.add_argument("--modes", default="greedy,sampled")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", type=Path, help="print the tables of an earlier run")
    arguments = parser.parse_args()
    if arguments.table:
        comments, rows = read_csv(arguments.table)
    elif arguments.prompts:
        rows = measure(arguments)
        comments = [f"{name}: {value}" for name, value in provenance().items()]
    else:
        parser.error("give --prompts, or --table for the tables of an earlier run")
    print(report(rows, comments))


if __name__ == "__main__":
    main()
