"""The acceptance step from logits on a GPU, as a ratio to the time that copying the needed bytes takes.

Copy bandwidth is measured first. Baselines stand for what engines ship: "FlashInfer-style" takes probabilities made by
a softmax and draws by cumulative sums; "vLLM-style" makes probabilities, judges all drafts, and draws recovered
tokens for every place. Where the packages are installed their own kernels are not called: these are plain PyTorch.

    python -m benchmarks.gpu_verify --out verify_gpu.csv
    python -m benchmarks.gpu_verify --device cpu --small      # a dry run
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.record import print_table, write_csv
from benchmarks.verify_peers import PATTERNS, Inputs, contenders, count_accepted, make_inputs, ours, residual_at

VOCABULARIES = (32_000, 151_936)
LENGTHS = (1, 4, 8)
BATCHES = (1, 16, 64)


def flashinfer_style(inputs: Inputs) -> Any:
    """Chain sampling on probabilities, the residual drawn by inverse CDF of the first rejected place."""
    p, q = inputs.target.float().softmax(-1), inputs.draft.float().softmax(-1)
    n = count_accepted(inputs, p, q)
    edges = residual_at(p, q, n).cumsum(-1)
    return n, torch.searchsorted(edges, inputs.uniforms[:, -1:] * edges[:, -1:])


def vllm_style(inputs: Inputs) -> Any:
    """Recovered tokens for every place by a race on exponentials, and a bonus token, whether or not they are used."""
    p, q = inputs.target.float().softmax(-1), inputs.draft.float().softmax(-1)
    k = inputs.tokens.shape[1]
    race = torch.empty_like(p[:, 0]).exponential_()
    recovered = ((p[:, :k] - q).clamp(min=0.0) / race[:, None]).argmax(-1)
    bonus = (p[:, k] / race).argmax(-1)
    n = count_accepted(inputs, p, q)
    return n, torch.cat([recovered, bonus[:, None]], 1).gather(1, n[:, None])


def timed(run: Callable[[], Any], device: str) -> float:
    """Returns seconds, the device's own where there is one."""
    if device == "cpu":
        began = time.perf_counter()
        run()
        return time.perf_counter() - began
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1000.0


def bandwidth(device: str, size: int) -> float:
    """Returns bytes a second of copying, read and write together."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * size / median(timed(lambda: target.copy_(source), device) for _ in range(11))


def synchronisations(inputs: Inputs, run: Callable[[Inputs], Any]) -> bool:
    """Returns whether the step waits for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(inputs)
        return False
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="one small setting, to see that it runs")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = arguments.device
    per_second = bandwidth(device, 2**24 if arguments.small else 2**30)
    print(f"device: {torch.cuda.get_device_name() if device == 'cuda' else device}, copies {per_second / 1e9:.0f} GB/s")
    runs: dict[str, Callable[[Inputs], Any]] = {"draftproof": ours("torch", 1.0)}
    if not arguments.small:
        compiled = torch.compile(ours("torch", 1.0), dynamic=False)
        runs["draftproof, compiled"] = compiled
    runs |= {"FlashInfer-style": flashinfer_style, "vLLM-style": vllm_style}
    runs |= {name: run for name, run in contenders(1.0).items() if name in ("transformers", "flashspec")}
    rows: list[dict[str, Any]] = []
    settings = [
        (vocab, k, batch)
        for vocab in ((1000,) if arguments.small else VOCABULARIES)
        for k in ((2,) if arguments.small else LENGTHS)
        for batch in ((4,) if arguments.small else BATCHES)
    ]
    for vocab, k, batch in settings:
        for pattern in PATTERNS:
            inputs = make_inputs(batch, k, vocab, pattern, device)
            needed = sum(each.numel() * each.element_size() for each in inputs.needed_rows(pattern))
            times: dict[str, list[float]] = {name: [] for name in runs}
            for round_ in range(arguments.rounds + 3):
                for name, run in runs.items():
                    seconds = timed(lambda run=run, inputs=inputs: run(inputs), device)  # type: ignore[misc]
                    if round_ >= 3:
                        times[name].append(seconds)
            for name, taken in times.items():
                rows.append({
                    "vocab": vocab, "k": k, "batch": batch, "accepted": pattern, "contender": name,
                    "median_us": round(1e6 * median(taken), 1),
                    "over_reading_once": round(median(taken) * per_second / needed, 2),
                    "waits": synchronisations(inputs, runs[name]) if device == "cuda" and name == "draftproof" else "",
                })  # fmt: skip
            if arguments.out:
                write_csv(arguments.out, rows, "python -m benchmarks.gpu_verify --out FILE")
    print_table(list(rows[0]), rows)


if __name__ == "__main__":
    main()
