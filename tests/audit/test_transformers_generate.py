"""transformers' own generation under audit, on tiny models."""

from __future__ import annotations

import pytest

import draftproof as dp
from draftproof.audit import Verdict, check_backend, check_engine
from draftproof.audit.transformers_generate import TransformersGenerate
from draftproof.errors import UsageError
from tests.models.tiny_transformers import ids, model, nudged

TARGET = model("llama")
DRAFT = nudged(TARGET, 0.3)
PROMPTS = [ids(1, 8), ids(2, 5)]


@pytest.mark.parametrize("sampler", [dp.Sampler(), dp.Sampler(temperature=0.0)], ids=["sampled", "greedy"])
@pytest.mark.parametrize("options", [{"assistant_model": DRAFT.module}, {"prompt_lookup_num_tokens": 3}], ids=list)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_assisted_generation_is_run_and_judged(sampler: dp.Sampler, options: dict[str, object]) -> None:
    engine = TransformersGenerate(TARGET, sampler, **options)
    report = check_engine(
        engine, target=TARGET, drafter=DRAFT, sampler=sampler, prompts=PROMPTS, tokens=60, max_tokens=20
    )
    assert report.verdict is Verdict.NO_EVIDENCE, report
    # Greedy text is the same each time, so that each prompt is asked once.
    assert report.numbers["tokens"] == (len(PROMPTS) * 20 if sampler.greedy else 60)
    assert report.subject == "transformers generate"


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_another_law_than_claimed_is_found() -> None:
    engine = TransformersGenerate(TARGET, dp.Sampler(temperature=3.0))
    sampler = dp.Sampler(top_k=3)
    report = check_engine(engine, target=TARGET, sampler=sampler, prompts=PROMPTS, tokens=60, max_tokens=20)
    assert report.verdict is Verdict.NOT_EXACT


def test_what_generate_does_not_know_is_refused() -> None:
    with pytest.raises(UsageError, match="no counterpart"):
        TransformersGenerate(TARGET, dp.Sampler(logit_bias={1: 2.0}))


@pytest.mark.parametrize("kind", ["llama", "mistral", "mamba"])
def test_our_backend_gives_a_drafts_rows_as_single_ones(kind: str) -> None:
    report = check_backend(model(kind), prompts=PROMPTS[:1], tokens=24, widths=(2, 5))
    assert report.ok
    assert all(each["largest_total_variation"] < 1e-5 for each in report.numbers.values())
