"""What the audit of engines finds: real engines with known bugs on toy pairs, and exact ones for false alarms.

python -m benchmarks.bench_audit                        # bugs: tokens until found, and whether the family is named
python -m benchmarks.bench_audit --pairs "tiny Llama"   # the same of two small models of transformers, made here
python -m benchmarks.bench_audit --exact                # exact engines: alarms of 300 audits at alpha 0.01

The engines are our own with one thing wrong; the auditor is given their tokens, and is told nothing of their blocks.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

import draftproof as dp
from benchmarks.record import print_table, write_csv
from draftproof.audit import Verdict, check_engine
from draftproof.audit.engine import NAMING, Generate
from draftproof.audit.faulty import FAULTY_DRAFTERS, FaultyRule, toy_pairs
from draftproof.audit.faulty_loop import FAULTS, FaultyLoop
from draftproof.audit.zoo import BUGS
from draftproof.truncation import own_law
from draftproof.types import Tokens, as_tokens

RESULTS = Path(__file__).parent / "results"
PROMPTS = [[1], [2, 3], [4, 5, 6]]
LENGTH = 4

MEDIANS: dict[str, int] = {
    "the bonus token comes from the row before": 60,
    "accepts if p >= q, without a coin": 56,
    "the first draft token is not checked": 73,
    "an argmax draft passes for a sample": 86,
    "accepts if u < p": 130,
    "block verification stops at the first no": 169,
    "unlikely draft tokens are dropped": 357,
    "the draft is drawn at a lower temperature than is told": 384,
    "the residual is p itself": 633,
    "the residual is p without the rejected token": 963,
    "accepts 1.2 times too often": 2205,
    "a truncated draft is told by its raw law": 4032,
}
"""Tokens until found that a first experiment gave, on a pair of its own, at alpha 1e-3 and four draft tokens."""


REPLACED = "drafts drawn without replacement are judged as drawn with it"

TINY = "tiny Llama"
"""The pair of `benchmarks.audit_engines`, in float32."""

TINY_NOISE = 0.06
"""On the draft model's weights, for a total variation of about .24."""

NOISE = {TINY: 1e-4}
"""Of log p, between passes of different widths, where it is not 0."""


def pair_named(name: str) -> tuple[dp.Model, dp.Model]:
    """Returns a target and a draft model."""
    if name != TINY:
        return toy_pairs()[name]
    import torch

    from benchmarks.audit_engines import pair

    torch.set_num_threads(1)  # on models this small a second thread only waits
    return pair(TINY_NOISE)


def bugs(target: dp.Model, draft: dp.Model) -> Iterator[tuple[str, str, dp.Engine | Generate, dp.Sampler]]:
    """Yields every engine with a bug: its name, its family, the engine, the law it claims."""
    plain = dp.Sampler()
    for bug in BUGS:
        drafter = dp.ModelDrafter(draft)
        rule = FaultyRule(bug, target.vocab_size)
        yield bug.name, bug.family, dp.Engine(target, drafter, rule, None, LENGTH), plain
    for name, (family, spoil) in FAULTY_DRAFTERS.items():
        yield name, family, dp.Engine(target, spoil(dp.ModelDrafter(draft)), "token", None, LENGTH), plain
    if isinstance(target, dp.ToyModel) and isinstance(draft, dp.ToyModel):
        for fault, (family, sampler) in FAULTS.items():
            yield fault, family, FaultyLoop(target, draft, fault, LENGTH), sampler
        yield REPLACED, "draft law", tree_engine(target, draft, "traversal", replacement=False, told=True), plain


def find_bugs(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for each bug and pair."""
    rows: list[dict[str, Any]] = []
    for pair in arguments.pairs.split(",") if arguments.pairs else list(toy_pairs()):
        target, draft = pair_named(pair)
        for name, family, engine, sampler in bugs(target, draft):
            if arguments.only and name not in arguments.only and family not in arguments.only:
                continue
            reports = [
                check_engine(
                    engine,
                    target=target,
                    sampler=sampler,
                    drafter=dp.ModelDrafter(draft),
                    prompts=PROMPTS,
                    tokens=arguments.tokens,
                    noise=NOISE.get(pair, 0.0),
                    seed=10_000 * seed,
                    naming=arguments.naming,
                )
                for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds)
            ]
            found = [each for each in reports if each.verdict is Verdict.NOT_EXACT]
            tokens = [each.numbers["tokens"] for each in reports]
            rows.append(
                {
                    "pair": pair,
                    "bug": name,
                    "family": family,
                    "found": len(found),
                    "of": len(reports),
                    "median_tokens": int(np.median(tokens)),
                    "q90_tokens": int(np.quantile(tokens, 0.9)),
                    "median_tokens_for_name": int(np.median([each.numbers["tokens_for_the_name"] for each in reports])),
                    "first_experiment": MEDIANS.get(name, ""),
                    "bug_named": sum(each.likeliest_bug == name for each in found),
                    "family_named": sum(each.family == family for each in found),
                    "mostly_named": max(
                        {each.likeliest_bug for each in found},
                        key=lambda bug: sum(each.likeliest_bug == bug for each in found),
                        default="",
                    ),
                }
            )
            print(rows[-1], file=sys.stderr, flush=True)
            write_csv(arguments.out, rows, arguments.command)
    return rows


def tree_engine(
    target: dp.ToyModel, draft: dp.ToyModel, rule: str, replacement: bool, told: bool | None = None
) -> Generate:
    """Returns a loop around `verify_tree`: two drafts for each of two places, drawn from a draft model.

    They are drawn with or without replacement, and told to be drawn so; or, for a bug, the other way.
    """
    told = replacement if told is None else told

    def generate(prompt: Tokens, most: int, seed: int) -> list[int]:
        random = np.random.default_rng(seed)
        text: list[int] = prompt.tolist()
        while len(text) < len(prompt) + most:
            ids: list[int] = []
            laws: list[Float[np.ndarray, "vocab"]] = []
            parents = [-1, -1, 0, 0, 1, 1]
            paths: list[list[int]] = [[]]
            for node, parent in enumerate(parents):
                q = own_law(draft.table(as_tokens([*text, *paths[parent + 1]])))
                left = q.copy()
                if node % 2 and not replacement:
                    left[ids[-1]] = 0.0
                ids.append(int(random.choice(len(q), p=left / left.sum())))
                laws.append(q)
                paths.append([*paths[parent + 1], ids[-1]])
            rows = np.array([own_law(target.table(as_tokens([*text, *path]))) for path in paths])
            verdict = dp.verify_tree(
                rows, ids, parents, np.array(laws), seed=seed, position=len(text), replacement=told, rule=rule
            )
            text += [*(ids[node] for node in verdict.path), verdict.token]
        return text[len(prompt) : len(prompt) + most]

    return generate


def exact_engines(target: dp.ToyModel, draft: dp.ToyModel) -> dict[str, tuple[dp.Engine | Generate, Any]]:
    """Returns engines that are lossless, by rule and drafter, and what to tell the auditor of their drafter."""
    model, sampler = dp.ModelDrafter(draft), dp.Sampler(temperature=0.8, top_p=0.9)
    found: dict[str, tuple[dp.Engine | Generate, Any]] = {}
    for rule in ("token", "block", "coupled", "match"):
        found[f"{rule}, draft model"] = dp.Engine(target, model, rule, None, LENGTH), model
    for drafter in ("suffix", "ngram"):
        found[f"coupled, {drafter}"] = dp.Engine(target, drafter, "coupled", None, LENGTH), drafter
        found[f"token, {drafter}, T=0.8, top-p 0.9"] = dp.Engine(target, drafter, "token", sampler, LENGTH), drafter
    found["block, draft model, T=0.8, top-p 0.9"] = dp.Engine(target, model, "block", sampler, LENGTH), model
    found["no drafter"] = dp.Engine(target, "none", "token", None, LENGTH), model
    for rule in ("traversal", "recursive", "kseq", "match"):
        without = rule in ("traversal", "recursive")
        found[f"{rule}, trees of a draft model"] = tree_engine(target, draft, rule, not without), model
    return found


def find_alarms(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for each exact engine: alarms of audits that may stop at every token."""
    rows: list[dict[str, Any]] = []
    pairs = toy_pairs()
    names = list(exact_engines(*pairs["TV 0.2"]))
    runs = -(-arguments.runs // len(names))
    for place, name in enumerate(names):
        alarms, peaks = 0, []
        for run in range(runs):
            target, draft = pairs[list(pairs)[run % len(pairs)]]
            engine, drafter = exact_engines(target, draft)[name]
            report = check_engine(
                engine,
                target=target,
                drafter=drafter,
                prompts=PROMPTS,
                tokens=arguments.tokens,
                alpha=0.01,
                seed=10_000 * (place * runs + run),
                naming=0,
            )
            if report.verdict not in (Verdict.NOT_EXACT, Verdict.NO_EVIDENCE):
                raise SystemExit(f"{name}: {report.verdict.value}, {report.summary}")
            alarms += report.verdict is Verdict.NOT_EXACT
            peaks.append(report.numbers["largest_e_value"])
        rows.append({"engine": name, "audits": runs, "alarms": alarms, "largest_e_value": round(max(peaks), 2)})
        print(rows[-1], file=sys.stderr, flush=True)
        write_csv(arguments.out, rows, arguments.command)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exact", action="store_true", help="exact engines")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--pairs", help="names of pairs, joined by commas; default: all")
    parser.add_argument("--only", nargs="*", help="bugs or families")
    parser.add_argument("--naming", type=int, default=NAMING, help="at most this many tokens more for the name")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--tokens", type=int, help="at most; default 20000, 2000 for exact engines")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    arguments.tokens = arguments.tokens or (2000 if arguments.exact else 20_000)
    arguments.out = arguments.out or RESULTS / ("audit_exact.csv" if arguments.exact else "audit_bugs.csv")
    arguments.command = f"python -m benchmarks.bench_audit {shlex.join(sys.argv[1:])}".rstrip()
    rows = find_alarms(arguments) if arguments.exact else find_bugs(arguments)
    print_table(list(rows[0]), rows)


if __name__ == "__main__":
    main()
