"""Memory beyond the model's weights and its cache, each case in a process of its own.

python -m benchmarks.bench_memory
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import draftproof as dp
from benchmarks.record import print_table, write_csv
from draftproof.models.llamacpp import LlamaCppModel
from draftproof.models.llamacpp_library import library

RESULTS = Path(__file__).parent / "results" / "memory.csv"
CASES = {"plain": "none", "suffix, auto": "suffix", "ngram, auto": "ngram"}


def peak(drafter: str) -> tuple[float, float, float]:
    """Returns peak resident memory, weights and cache, MB, of one generation in this process."""
    model = dp.load("smollm2-135m")
    assert isinstance(model, LlamaCppModel)
    engine = dp.Engine(model, drafter, sampler=dp.Sampler(temperature=0.8, top_p=0.95))
    engine.generate("Once upon a time, " * 100, max_tokens=256, ignore_eos=True, seed=1)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    lib, address = library(), model.pointer.address
    width = lib.llama_model_n_embd(address) * lib.llama_model_n_head_kv(address) // lib.llama_model_n_head(address)
    # Keys and values, half precision.
    cache = model.context_length * lib.llama_model_n_layer(address) * width * 2 * 2
    return used, model.path.stat().st_size / 1e6, cache / 1e6


def main() -> None:
    if len(sys.argv) > 1:
        print(*peak(sys.argv[1]))
        return
    rows = []
    for name, drafter in CASES.items():
        command = [sys.executable, "-m", "benchmarks.bench_memory", drafter]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        used, weights, cache = map(float, output.split())
        rows.append(
            {
                "case": name,
                "peak_mb": round(used, 1),
                "weights_mb": round(weights, 1),
                "cache_mb": round(cache, 1),
                "beyond_mb": round(used - weights - cache, 1),
            }
        )
    write_csv(RESULTS, rows, "python -m benchmarks.bench_memory")
    print_table(("case", "peak, MB", "weights, MB", "cache, MB", "beyond, MB"), rows)


if __name__ == "__main__":
    main()
