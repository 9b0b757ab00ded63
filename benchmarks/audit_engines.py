"""Audits of engines of others, on a small pair of Llama models that is made here.

    python -m benchmarks.audit_engines
    python -m benchmarks.audit_engines --only "transformers assisted"    # what begins so
    python -m benchmarks.audit_engines --only litgpt                     # in an environment of its own, with litgpt
    python -m benchmarks.audit_engines --rules                           # verification functions instead

llama-cpp-python is asked on the embedded model. For the others the target has random weights, and the draft model is
the target with some noise on its own; vocabulary 48, float32, so that what is found is the engine's doing and not
rounding's. Each row of the CSV has the verdict, what it rests on and, if something was found, a witness.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tokenizers
import torch
import transformers

import draftproof as dp
from benchmarks.audit_peers import (
    FOUR_BITS_NOISE,
    LENGTH,
    Generate,
    flashspec_engine,
    litgpt_engine,
    llamacpp_python_engine,
    llamacpp_target,
    universal_engine,
)
from benchmarks.record import print_table, read_csv, write_csv
from benchmarks.transformers_heads import dflash, gemma4, mtp
from draftproof.audit import check_engine, check_rule
from draftproof.audit.transformers_generate import TransformersGenerate
from draftproof.models.transformers import TransformersModel

RESULTS = Path(__file__).parent / "results"
VOCAB = 48
PROMPTS = [[1, 2, 3, 4, 5, 6, 7, 8], [11, 12, 13, 11, 12, 13, 11, 12], [20, 21, 22, 23, 40, 41, 42, 43]]

LAWS: dict[str, dp.Sampler] = {
    "T=1": dp.Sampler(),
    "T=0.7": dp.Sampler(temperature=0.7),
    "top-k 10": dp.Sampler(top_k=10),
    "top-p 0.8": dp.Sampler(top_p=0.8),
    "repetition penalty 1.3": dp.Sampler(repetition_penalty=1.3),
    "greedy": dp.Sampler(temperature=0.0),
}


def pair(noise: float = 0.35) -> tuple[TransformersModel, TransformersModel]:
    """Returns a target and a draft model."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.25,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    target = transformers.LlamaForCausalLM(config).eval()
    draft = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for mine, its in zip(draft.parameters(), target.parameters(), strict=True):
            mine.copy_(its + noise * its.std() * torch.randn_like(its) if its.dim() > 1 else its)
    pieces = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0"))
    pieces.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made = [
        TransformersModel(module, transformers.PreTrainedTokenizerFast(tokenizer_object=pieces), name=name)
        for module, name in ((target, "tiny Llama"), (draft, "tiny Llama draft"))
    ]
    return made[0], made[1]


@dataclass(frozen=True)
class Suspect:
    """An engine under one law.

    Attributes:
        name: of the engine.
        package: whose version counts.
        law: its name.
        target: tells the law.
        drafter: what drafts, as far as a drafter of ours comes near.
        make: makes the engine of its sampler.
        noise: of log p, between its arithmetic and the target's here.
    """

    name: str
    package: str
    law: str
    target: dp.Model
    drafter: dp.Drafter | str | None
    make: Callable[[dp.Sampler], Generate]
    noise: float | None = None


def suspects(target: TransformersModel, draft: TransformersModel, folder: Path) -> Iterator[Suspect]:
    """Yields engines under each law they know; a folder is for models that are made here."""
    assisted = dp.ModelDrafter(draft)
    early = dp.draft.load_drafter("self:layers=1", target)

    def generate(**options: Any) -> Callable[[dp.Sampler], Generate]:
        return lambda sampler: TransformersGenerate(target, sampler, **options)

    engines: list[tuple[str, str, dp.Drafter | str, Callable[[dp.Sampler], Generate], set[str]]] = [
        ("transformers assisted generation", "transformers", assisted, generate(assistant_model=draft.module), set()),
        ("transformers prompt lookup", "transformers", "ngram", generate(prompt_lookup_num_tokens=LENGTH), set()),
        ("transformers early exit", "transformers", early, generate(assistant_early_exit=1), set()),
        (
            "transformers universal assisted",
            "transformers",
            assisted,
            lambda sampler: universal_engine(target, draft, sampler),
            set(),
        ),
        (
            "transformers universal assisted, vocabulary listed by id",
            "transformers",
            assisted,
            lambda sampler: universal_engine(target, draft, sampler, ordered=True),
            set(),
        ),
        (
            "flashspec",
            "flashspec",
            assisted,
            lambda sampler: flashspec_engine(target, draft, sampler),
            {"top-k 10", "repetition penalty 1.3"},
        ),
        (
            "litgpt generate",
            "litgpt",
            assisted,
            lambda sampler: litgpt_engine(target, draft, sampler, whole=True),
            {"repetition penalty 1.3"},
        ),
        (
            "litgpt speculative_decoding",
            "litgpt",
            assisted,
            lambda sampler: litgpt_engine(target, draft, sampler, whole=False),
            {"repetition penalty 1.3"},
        ),
    ]
    for law in LAWS:
        for name, package, drafter, make, unknown in engines:
            if law not in unknown:
                yield Suspect(name, package, law, target, drafter, make)
    tokenizer = target.tokenizer.tokenizer
    heads = {
        "MTP": mtp(tokenizer, VOCAB, folder),
        "Gemma 4's assistant": gemma4(tokenizer, VOCAB),
        "DFlash": dflash(target),
    }
    for head, headed in heads.items():
        drafter = dp.ModelDrafter(headed.head)
        # The second is a control: the same model without its head.
        for beside, options, laws in (("", headed.options, [*LAWS]), (", without it", {}, ["T=1"])):
            make = partial(TransformersGenerate, headed.target, **options)
            for law in laws:
                yield Suspect(f"transformers {head}{beside}", "transformers", law, headed.target, drafter, make)
    for law in ("T=1", "top-p 0.8", "greedy"):
        yield Suspect(
            "llama-cpp-python prompt lookup",
            "llama-cpp-python",
            law,
            llamacpp_target(),
            "ngram",
            llamacpp_python_engine,
            FOUR_BITS_NOISE,
        )


RULES = {
    "draftproof:verify": ("draftproof", "probs"),
    "transformers.generation.utils:_speculative_sampling": ("transformers", "transformers"),
}
"""Verification functions, each with its package and how it is called."""


def audit_rules() -> list[dict[str, Any]]:
    """Returns a row for each verification function."""
    rows = []
    for function, (package, convention) in RULES.items():
        report = check_rule(function, convention=convention)
        rows.append(
            {
                "function": function,
                "version": version(package),
                "verdict": report.verdict.value,
                "summary": report.summary,
                "looked_at": report.looked_at,
                "least_power": min((each.power for each in report.power), default=""),
                "seconds": round(report.seconds, 1),
            }
        )
    return rows


def audit_engines(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Returns a row for each engine and law, and writes each at once."""
    # Rows of other engines that are there already stay; each engine's command has its own `--only`.
    command = f"python -m benchmarks.audit_engines --only ENGINE --tokens {arguments.tokens}"
    rows: list[dict[str, Any]] = []
    kept = read_csv(arguments.out)[1] if arguments.out.exists() else []
    for suspect in suspects(*pair(), folder):
        name, law = suspect.name, suspect.law
        if not name.startswith(arguments.only) or (arguments.laws and law not in arguments.laws.split(",")):
            continue
        try:
            of_package = version(suspect.package)
        except PackageNotFoundError:
            print(f"{name}: left out, {suspect.package} is not installed", file=sys.stderr)
            continue
        report = check_engine(
            suspect.make(LAWS[law]),
            target=suspect.target,
            drafter=suspect.drafter,
            sampler=LAWS[law],
            prompts=PROMPTS,
            tokens=arguments.tokens,
            max_tokens=64,
            noise=suspect.noise,
            name=name,
        )
        finding = report.findings[0] if report.findings else None
        rows.append(
            {
                "engine": name,
                "version": of_package,
                "law": law,
                "verdict": report.verdict.value,
                "tokens": report.numbers["tokens"],
                "e_value": "" if report.numbers["e_value"] is None else f"{report.numbers['e_value']:.3g}",
                "noise": suspect.noise,
                "likeliest_bug": report.likeliest_bug or "",
                "found": "" if finding is None else finding.what,
                "witness": "" if finding is None else json.dumps(finding.witness),
                "seconds": round(report.seconds, 1),
                "own_share": round(
                    (report.seconds - report.numbers["generation_seconds"] - report.numbers["reference_seconds"])
                    / max(report.numbers["generation_seconds"], 1e-9),
                    3,
                ),
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        made = {(row["engine"], row["law"]) for row in rows}
        others = [row for row in kept if (row["engine"], row["law"]) not in made]
        write_csv(arguments.out, others + rows, command)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--only", default="", help="engines whose name begins so")
    parser.add_argument("--laws", help="joined by commas")
    parser.add_argument("--rules", action="store_true", help="verification functions")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    arguments.out = arguments.out or RESULTS / ("audit_rules.csv" if arguments.rules else "audits.csv")
    if arguments.rules:
        found = audit_rules()
        write_csv(arguments.out, found, "python -m benchmarks.audit_engines --rules")
        print_table(list(found[0]), found)
        return
    torch.set_num_threads(1)  # on models this small a second thread only waits
    with TemporaryDirectory() as folder:
        rows = audit_engines(arguments, Path(folder))
    shown = [name for name in rows[0] if name not in ("witness", "found")]
    print_table(shown, [{name: row[name] for name in shown} for row in rows])


if __name__ == "__main__":
    main()
