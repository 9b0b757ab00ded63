"""Replays a drafter over recorded texts: are its estimates true, and what do they gain under a given cost of a pass?

A draft token counts as accepted if the text goes on with it. That is what the coupled rule does with the same seed, and
what greedy decoding does, so a simulation takes seconds where the measurement takes a model.

python -m benchmarks.simulate_policy TEXTS.json [--drafter suffix] [--memory-tokens 0] [--sampled] [--parity all]

TEXTS.json: a list of {"index": 0, "category": "qa", "prompt": [ids], "output": [ids]}.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftproof.draft import Drafter, NgramDrafter, Proposal, SuffixDrafter
from draftproof.sampling import Sampler
from draftproof.types import as_tokens

LIMIT = 15
ROWS = (1, 2, 4, 8, 16)
CURVES = {  # cost of a pass over ROWS rows, in passes over one row, measured on two CPU cores
    "SmolLM2-135M Q4_1": (1.0, 1.45, 2.05, 3.5, 6.3),
    "SmolLM2-135M Q4_1, AVX-512 without AMX": (1.0, 1.77, 2.66, 4.34, 7.5),
    "SmolLM2-135M Q4_0": (1.0, 1.7, 1.8, 2.65, 3.6),
    "gemma-3-270m Q4_K_M": (1.0, 1.03, 1.2, 1.47, 2.0),
    "flat": (1.0, 1.0, 1.0, 1.0, 1.0),
}


@dataclass(frozen=True)
class Place:
    """What the drafter proposed at one place of a text, and how much of it came true."""

    survival: list[float]
    accepted: int
    room: int


def replay(drafter: Drafter, texts: Sequence[dict[str, Any]], greedy: bool) -> Iterator[tuple[str, list[Place]]]:
    """Yields, for each text, its category and what was proposed at each place of its output."""
    sampler = Sampler().bind(1, (), 1)
    session = drafter.session()
    for text in texts:
        tokens, start = as_tokens([*text["prompt"], *text["output"]]), len(text["prompt"])
        session.begin(0, tokens[:start], greedy)
        places = []
        for end in range(start, len(tokens)):
            asked = Proposal(0, tokens[:end], LIMIT, sampler, lambda law, offset: 0, lambda survival, offset: False)
            (draft,) = session.propose([asked])
            room = min(len(draft), len(tokens) - end)
            wrong = np.flatnonzero(draft.tokens[:room] != tokens[end : end + room])
            survival = [] if draft.survival is None else draft.survival.tolist()
            places.append(Place(survival, int(wrong[0]) if len(wrong) else room, room))
        session.end(0, tokens)
        yield text["category"], places


def speedup(places: Sequence[Place], cost: Sequence[float], cheat: bool = False) -> tuple[int, float]:
    """Returns tokens, and their cost in plain passes, if each pass takes the draft length that promises most.

    Args:
        places: one text.
        cost: of a pass over 1, 2, ... rows.
        cheat: know the verdicts: a bound for every policy on these drafts.
    """
    at, spent = 0, 0.0
    while at < len(places):
        here = places[at]
        room = min(here.accepted if cheat else len(here.survival), len(places) - at - 1)
        expected = np.cumsum([1.0, *([1.0] * room if cheat else here.survival[:room])])
        k = int(np.argmax(expected / cost[: room + 1]))
        spent += cost[k]
        at += min(k, here.accepted) + 1
    return len(places), spent


def calibration(texts: Sequence[tuple[str, list[Place]]]) -> tuple[list[str], float]:
    """Returns lines "predicted, actual, how many" by tenths of the estimate, and the loss in nats a judged token."""
    tenths: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    losses = []
    for place in (place for _, places in texts for place in places):
        before = 1.0
        for i, survival in enumerate(place.survival[: place.room]):
            tenths[min(int(10 * survival), 9)].append((survival, i < place.accepted))
            if i <= place.accepted:
                alone = survival / before
                losses.append(-math.log(max(alone if i < place.accepted else 1.0 - alone, 1e-9)))
            before = survival
    lines = [
        f"| {np.mean([p for p, _ in x]):.2f} | {np.mean([y for _, y in x]):.2f} | {len(x)} |"
        for _, x in sorted(tenths.items())
    ]
    return lines, float(np.mean(losses))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("--drafter", choices=["suffix", "ngram"], default="suffix")
    parser.add_argument("--memory-tokens", type=int, default=0)
    parser.add_argument("--sampled", action="store_true", help="the texts were sampled, not decoded greedily")
    parser.add_argument("--parity", choices=["even", "odd", "all"], default="all", help="which prompts, by index")
    options = parser.parse_args()
    drafter = NgramDrafter() if options.drafter == "ngram" else SuffixDrafter(options.memory_tokens)
    wanted = {"even": (0,), "odd": (1,), "all": (0, 1)}[options.parity]
    texts = [text for text in json.loads(options.texts.read_text()) if text["index"] % 2 in wanted]
    played = list(replay(drafter, texts, not options.sampled))

    lines, loss = calibration(played)
    print("| predicted survival | actual | draft tokens |\n|---|---|---|", *lines, sep="\n")
    print(f"\nlog-loss {loss:.4f} nats a judged token\n")
    categories = sorted({category for category, _ in played})
    print("|", " | ".join(["cost of a pass", *categories, "all", "bound"]), "|")
    print("|" + "---|" * (len(categories) + 3))
    for name, values in CURVES.items():
        cost = np.interp(np.arange(1, LIMIT + 2), ROWS, values).tolist()
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for category, places in played:
            for key, cheat in ((category, False), ("all", False), ("bound", True)):
                tokens, spent = speedup(places, cost, cheat)
                sums[key][0] += tokens
                sums[key][1] += spent
        cells = [f"{sums[key][0] / sums[key][1]:.2f}" for key in (*categories, "all", "bound")]
        print("|", " | ".join([name, *cells]), "|")


if __name__ == "__main__":
    main()
