"""Specs of drafters."""

from __future__ import annotations

import pytest

from draftproof.draft import (
    Drafter,
    ModelDrafter,
    NgramDrafter,
    NullDrafter,
    SuffixDrafter,
    load_drafter,
)
from draftproof.errors import UsageError
from draftproof.models.toy import ToyModel, ToyTokenizer

TARGET = ToyModel.random(26)
OTHER = ToyModel(ToyModel.random(2).table, 2, tokenizer=ToyTokenizer([b"0", b"1"]))


@pytest.mark.parametrize(("spec", "kind"), [("none", NullDrafter), ("ngram", NgramDrafter), ("suffix", SuffixDrafter)])
def test_names(spec: str, kind: type[Drafter]) -> None:
    drafter = load_drafter(spec, TARGET)
    assert type(drafter) is kind
    assert drafter.name == spec


def test_a_drafter_passes_through() -> None:
    drafter = NgramDrafter(5)
    assert load_drafter(drafter, TARGET) is drafter


def test_a_model_spec() -> None:
    drafter = load_drafter("model:toy:pair-draft", TARGET)
    assert isinstance(drafter, ModelDrafter)
    assert drafter.name == "model:toy:pair-draft"
    assert drafter.mode == "same"


def test_a_drafter_object_is_checked_too() -> None:
    with pytest.raises(UsageError, match="share no id at all"):
        load_drafter(ModelDrafter(OTHER, vocabulary="intersection"), TARGET)


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("self:layers=2", "needs a transformers target, and toy is none"),
        ("self:q4_0", "needs a GGUF target on llama.cpp, and toy is none"),
        ("self:q1", "drafter 'self:q1' is unknown; use one of: self:q2_k"),
    ],
)
def test_copies_need_a_backend_that_makes_them(spec: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        load_drafter(spec, TARGET)


@pytest.mark.parametrize("spec", ["", "Suffix", "prompt-lookup", "model"])
def test_an_unknown_spec_lists_the_known_ones(spec: str) -> None:
    with pytest.raises(UsageError, match="use one of: none, ngram, suffix, model:SPEC"):
        load_drafter(spec, TARGET)
