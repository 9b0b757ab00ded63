"""Audits of engines of others, on a small pair of Llama models that is made here.

    python -m benchmarks.audit_engines
    python -m benchmarks.audit_engines --only "transformers assisted"    # what begins so
    python -m benchmarks.audit_engines --rules                           # verification functions instead

The target has random weights, and the draft model is the target with some noise on its own; vocabulary 48, float32, so
that what is found is the engine's doing and not rounding's. Each row of the CSV has the verdict, what it rests on
and, if something was found, a witness.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers

import draftproof as dp
from benchmarks.record import print_table, write_csv
from draftproof.audit import check_engine, check_rule
from draftproof.audit.transformers_generate import TransformersGenerate
from draftproof.models.transformers import TransformersModel
from draftproof.types import Tokens

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

Generate = Callable[[Tokens, int, int], Sequence[int]]


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
    made = [
        TransformersModel(module, transformers.PreTrainedTokenizerFast(tokenizer_object=pieces), name=name)
        for module, name in ((target, "tiny Llama"), (draft, "tiny Llama draft"))
    ]
    return made[0], made[1]


def flashspec_engine(target: TransformersModel, draft: TransformersModel, sampler: dp.Sampler) -> Generate:
    """Returns flashspec's engine with a draft model."""
    from flashspec import FlashSpecConfig, SamplingConfig, SpeculativeEngine
    from flashspec.engine.hf_drafter import HuggingFaceDrafter
    from flashspec.engine.verifier import TargetModel

    def generate(prompt: Tokens, max_tokens: int, seed: int) -> Sequence[int]:
        heat = 0.0 if sampler.greedy else sampler.temperature
        config = FlashSpecConfig(
            device="cpu",
            dtype="float32",
            sampling=SamplingConfig(temperature=heat, top_p=sampler.top_p, seed=seed),
        )
        drafter = HuggingFaceDrafter(draft.name, torch.device("cpu"), temperature=heat, model=draft.module)
        engine = SpeculativeEngine(config, [drafter], TargetModel(target.name, target.device, model=target.module))
        ids = torch.from_numpy(prompt.astype(np.int64))[None]
        done = engine.generate(ids, max_new_tokens=max_tokens, eos_token_ids=[])
        found: list[int] = done.output_ids[0].tolist()
        return found

    return generate


def suspects(
    target: TransformersModel, draft: TransformersModel
) -> Iterator[tuple[str, str, str, dp.Sampler, dp.Drafter | str, Generate]]:
    """Yields engines: name, package, law, sampler, what drafts, the engine."""
    assisted = dp.ModelDrafter(draft)
    for law, sampler in LAWS.items():
        yield (
            "transformers assisted generation",
            "transformers",
            law,
            sampler,
            assisted,
            TransformersGenerate(target, sampler, assistant_model=draft.module),
        )
        yield (
            "transformers prompt lookup",
            "transformers",
            law,
            sampler,
            "ngram",
            TransformersGenerate(target, sampler, prompt_lookup_num_tokens=4),
        )
        yield (
            "transformers early exit",
            "transformers",
            law,
            sampler,
            dp.draft.load_drafter("self:layers=1", target),
            TransformersGenerate(target, sampler, assistant_early_exit=1),
        )
        if law in ("T=1", "T=0.7", "top-p 0.8", "greedy"):
            yield "flashspec", "flashspec", law, sampler, assisted, flashspec_engine(target, draft, sampler)


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
    target, draft = pair()
    rows: list[dict[str, Any]] = []
    for name, package, law, sampler, drafter, generate in suspects(target, draft):
        if not name.startswith(arguments.only) or (arguments.laws and law not in arguments.laws.split(",")):
            continue
        report = check_engine(
            generate,
            target=target,
            drafter=drafter,
            sampler=sampler,
            prompts=PROMPTS,
            tokens=arguments.tokens,
            max_tokens=64,
            name=name,
        )
        finding = report.findings[0] if report.findings else None
        rows.append(
            {
                "engine": name,
                "version": version(package),
                "law": law,
                "verdict": report.verdict.value,
                "tokens": report.numbers["tokens"],
                "e_value": f"{report.numbers['e_value']:.3g}",
                "likeliest_bug": report.likeliest_bug or "",
                "found": "" if finding is None else finding.what,
                "witness": "" if finding is None else json.dumps(finding.witness),
                "seconds": round(report.seconds, 1),
                "own_share": round(
                    (report.seconds - report.numbers["generation_seconds"] - report.numbers["reference_seconds"])
                    / report.numbers["generation_seconds"],
                    3,
                ),
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        write_csv(arguments.out, rows, "python -m benchmarks.audit_engines")
    print_table([name for name in rows[0] if name not in ("witness", "found")], rows)


if __name__ == "__main__":
    main()
