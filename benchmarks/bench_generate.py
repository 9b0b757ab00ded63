"""Speculation against plain decoding, and against its peers, on the embedded model.

Every contender decodes every prompt, in turn, round after round in one process; what counts is the median over the
rounds of the seconds a token after the first. The time to the first token is taken in greedy mode, where the prompt is
read; the sampled mode finds it in the cache.

    python -m benchmarks.bench_generate --prompts PATH/question.jsonl
    python -m benchmarks.bench_generate --table benchmarks/results/generate.csv
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import draftproof as dp
from benchmarks.bare import BareLoop
from benchmarks.contest import Contender, RandomDrafter, Run, decode_in_turn, ours, questions, report
from benchmarks.record import provenance, read_csv
from draftproof.models.llamacpp import LlamaCppModel

RESULTS = Path(__file__).parent / "results" / "generate.csv"
LOOKUP = "llama-cpp-python lookup"


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
    return decode_in_turn(
        contenders,
        questions(arguments.prompts, model, arguments.every),
        arguments,
        f"python -m benchmarks.bench_generate --target {arguments.target} --prompts FILE",
        skipped=lambda mode, name: mode != "greedy" and name == "bare loop",
    )


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
