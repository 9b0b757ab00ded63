"""What each rule keeps of a draft, on n-gram models of real text: a pair whose laws depend on the context.

The target is a model of the last three characters, the drafter one of the last two (near), one (far), each smoothed
by the next shorter one. Tokens a pass are enumerated where that is feasible, else sampled with a fixed seed.

    python -m benchmarks.bench_rules --prompts PATH/question.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import draftproof as dp
from benchmarks.record import print_table, write_csv

RESULTS = Path(__file__).parent / "results" / "rules.csv"
RULES = ("token", "block", "coupled", "match")
LENGTHS = (1, 2, 4, 8)
DRAWS = 20_000
CONTEXTS = 40


class NGrams:
    """Characters by the last `order` ones, each order smoothed by the shorter one."""

    def __init__(self, text: str, alphabet: str, order: int) -> None:
        self.order = order
        self._size = len(alphabet)
        self._counts: list[defaultdict[tuple[int, ...], Counter[int]]] = [
            defaultdict(Counter) for _ in range(order + 1)
        ]
        self._laws: dict[tuple[int, ...], dp.Distribution] = {}
        ids = [alphabet.index(character) for character in text]
        for place in range(order, len(ids)):
            for length in range(order + 1):
                self._counts[length][tuple(ids[place - length : place])][ids[place]] += 1

    def law(self, text: tuple[int, ...]) -> dp.Distribution:
        """Returns the law of the next character."""
        context = text[max(0, len(text) - self.order) :]
        if context not in self._laws:
            probs = np.full(self._size, 1.0 / self._size)
            for length in range(len(context) + 1):
                counts = self._counts[length][context[len(context) - length :]]
                total = sum(counts.values())
                weights = np.array([counts[token] for token in range(self._size)])
                probs = (weights + 2.0 * probs) / (total + 2.0)
            self._laws[context] = dp.Distribution(probs)
        return self._laws[context]

    def after(self, start: tuple[int, ...], drafted: tuple[int, ...]) -> dp.Distribution:
        """Returns the law that follows `drafted` after `start`."""
        return self.law((*start, *drafted))


def corpus(path: Path) -> str:
    text = " ".join(json.loads(line)["turns"][0] for line in path.read_text().splitlines()).lower()
    return "".join(character if character.isalpha() and character.isascii() else " " for character in text)


def chains(pairs: dict[str, tuple[NGrams, NGrams]], starts: list[tuple[int, ...]]) -> list[dict[str, Any]]:
    rows = []
    for name, (target, drafter) in pairs.items():
        for k in LENGTHS:
            for rule in RULES:
                found = [
                    dp.expected_tokens(
                        partial(target.after, start),
                        partial(drafter.after, start),
                        rule,
                        draft_length=k,
                        draws=max(2, DRAWS // len(starts)),
                        method="enumerate" if k <= 2 else "sample",
                        seed=place,
                    )
                    for place, start in enumerate(starts)
                ]
                value = float(np.mean([each.value for each in found]))
                spread = float(np.sqrt(np.sum([(each.high - each.value) ** 2 for each in found]))) / len(found)
                rows.append(
                    {"pair": name, "drafts": "one chain", "n": k, "rule": rule, "value": round(value, 4),
                     "half_interval": round(spread, 4)}
                )  # fmt: skip
    return rows


def several(pairs: dict[str, tuple[NGrams, NGrams]], starts: list[tuple[int, ...]]) -> list[dict[str, Any]]:
    rows = []
    for name, (target, drafter) in pairs.items():
        laws = [(target.law(start), drafter.law(start)) for start in starts]
        for n in (1, 2, 3):
            ways: dict[str, Any] = {
                "match": lambda p, q, n: dp.draft_acceptance(p, q, n, "match"),
                "recursive": lambda p, q, n: dp.draft_acceptance(p, q, n),
                "kseq": lambda p, q, n: dp.draft_acceptance(p, q, n, "kseq"),
                "optimum": lambda p, q, n: dp.optimal_acceptance(p, q, n),
                "recursive, without replacement": lambda p, q, n: dp.draft_acceptance(p, q, n, replacement=False),
            }
            for rule, way in ways.items():
                value = float(np.mean([way(p, q, n) for p, q in laws]))
                rows.append(
                    {"pair": name, "drafts": "one place", "n": n, "rule": rule, "value": round(value, 4),
                     "half_interval": 0.0}
                )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with turns")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    text = corpus(arguments.prompts)
    alphabet = " abcdefghijklmnopqrstuvwxyz"
    target = NGrams(text, alphabet, 3)
    pairs = {"near": (target, NGrams(text, alphabet, 2)), "far": (target, NGrams(text, alphabet, 1))}
    places = np.random.default_rng(0).integers(3, len(text), CONTEXTS)
    starts = [tuple(alphabet.index(each) for each in text[place - 3 : place]) for place in places]
    rows = chains(pairs, starts) + several(pairs, starts)
    write_csv(arguments.out, rows, "python -m benchmarks.bench_rules --prompts FILE")
    print_table(list(rows[0]), rows)


if __name__ == "__main__":
    main()
