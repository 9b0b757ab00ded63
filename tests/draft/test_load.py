"""Specs of drafters."""

from __future__ import annotations

import sys
from types import ModuleType

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
from draftproof.models.toy import ToyModel, load_toy

TARGET = ToyModel.random(26)


@pytest.mark.parametrize(("spec", "kind"), [("none", NullDrafter), ("ngram", NgramDrafter), ("suffix", SuffixDrafter)])
def test_names(spec: str, kind: type[Drafter]) -> None:
    drafter = load_drafter(spec, TARGET)
    assert type(drafter) is kind
    assert drafter.name == spec


def test_a_drafter_passes_through() -> None:
    drafter = NgramDrafter(5)
    assert load_drafter(drafter, TARGET) is drafter


def test_a_model_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("draftproof.models.load")
    module.__dict__["load"] = lambda spec: load_toy(spec.removeprefix("toy:"))
    monkeypatch.setitem(sys.modules, "draftproof.models.load", module)
    drafter = load_drafter("model:toy:pair-draft", TARGET)
    assert isinstance(drafter, ModelDrafter)
    assert drafter.name == "model:toy:pair-draft"
    with pytest.raises(UsageError, match="vocabulary"):
        load_drafter("model:toy:pair-draft", ToyModel.random(27))


def test_a_drafter_object_is_checked_too() -> None:
    with pytest.raises(UsageError, match="26 ids and the target one of 5"):
        load_drafter(ModelDrafter(TARGET), ToyModel.random(5))


@pytest.mark.parametrize("spec", ["", "Suffix", "prompt-lookup", "model"])
def test_an_unknown_spec_lists_the_known_ones(spec: str) -> None:
    with pytest.raises(UsageError, match="use one of: none, ngram, suffix, model:SPEC"):
        load_drafter(spec, TARGET)
