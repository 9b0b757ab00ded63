from __future__ import annotations

from pathlib import Path

import pytest

from draftproof.errors import ModelLoadError, UsageError
from draftproof.models.base import Model
from draftproof.models.llamacpp import LlamaCppModel
from draftproof.models.load import load
from draftproof.models.toy import ToyModel


def test_specs_of_llamacpp(tiny_path: Path) -> None:
    for spec in (f"llamacpp:{tiny_path}", str(tiny_path), tiny_path):
        with load(spec, context_length=99, threads=None) as model:
            assert isinstance(model, LlamaCppModel)
            assert (model.name, model.context_length) == ("tiny", 99)


def test_the_embedded_model() -> None:
    with load("smollm2-135m", context_length=32, flash_attention=True) as model:
        assert (model.name, model.context_length) == ("smollm2-135m", 32)


def test_toys_and_models() -> None:
    model = load("toy:pair")
    assert isinstance(model, ToyModel)
    assert load(model) is model


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("", "unknown"),
        ("llamacpp:", "names no file"),
        ("toy:nobody", "toy model 'nobody' is unknown"),
        ("vllm:thing", "unknown"),
    ],
)
def test_other_specs_are_refused(spec: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        load(spec)


def test_options_a_backend_lacks_are_refused(tiny_path: Path) -> None:
    toy: Model = load("toy:pair")
    for spec, remedy in (
        (tiny_path, "use one of: context_length, threads"),
        ("toy:pair", "leave it out"),
        (toy, "leave"),
    ):
        with pytest.raises(UsageError, match=rf"no option depth \(given 3\); {remedy}"):
            load(spec, depth=3)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"none\.gguf does not exist"):
        load(f"llamacpp:{tmp_path / 'none.gguf'}")
