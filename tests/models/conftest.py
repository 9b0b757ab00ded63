from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from draftproof.models.embedded import embedded_path
from draftproof.models.llamacpp import LlamaCppModel
from draftproof.types import Tokens, as_tokens
from tests.models import gguf_file


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_file.write_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny(tiny_path: Path) -> Iterator[LlamaCppModel]:
    model = LlamaCppModel(tiny_path, context_length=700)
    yield model
    model.close()


@pytest.fixture(scope="session")
def smol() -> Iterator[LlamaCppModel]:
    model = LlamaCppModel(embedded_path(), context_length=640, batch_invariant=True)
    yield model
    model.close()


@pytest.fixture
def text() -> Tokens:
    """Ids of the tiny models, 700 of them."""
    return as_tokens(np.random.default_rng(8).integers(5, gguf_file.VOCABULARY, 700))
