from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftproof.errors import BackendError, MissingDependencyError, ModelLoadError, UsageError
from draftproof.models import llamacpp, llamacpp_library
from draftproof.models.base import Model, Query
from draftproof.models.embedded import load_embedded
from draftproof.models.llamacpp import LlamaCppModel
from draftproof.models.llamacpp_session import BATCH, ROWS, LlamaCppSession
from draftproof.types import NO_TOKENS, Tokens, as_tokens
from tests.models import gguf_file
from tests.models.session_conformance import SessionConformance, ask, copied


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_file.write_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> Iterator[LlamaCppModel]:
    with LlamaCppModel(tiny_path, context_length=700) as model:
        yield model


@pytest.fixture(scope="module")
def smol() -> Iterator[LlamaCppModel]:
    with load_embedded(context_length=256) as model:
        yield model


@pytest.fixture
def text() -> Tokens:
    return as_tokens(np.random.default_rng(8).integers(5, gguf_file.VOCABULARY, 700))


class _LlamaCppConformance(SessionConformance):
    # The cache holds keys and values in half precision, and passes of different width add up in different order.
    tolerance = 0.02
    chunk = BATCH + 100


class TestTinyLlama(_LlamaCppConformance):
    @pytest.fixture
    def model(self, tiny: LlamaCppModel) -> Model:
        return tiny


class TestWithoutFlashAttention(_LlamaCppConformance):
    @pytest.fixture(scope="class")
    def model(self, tiny_path: Path) -> Iterator[Model]:
        with LlamaCppModel(tiny_path, context_length=700, flash_attention=False, threads=1) as model:
            yield model


class TestSlidingWindow(_LlamaCppConformance):
    @pytest.fixture(scope="class")
    def model(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
        path = gguf_file.write_gemma2(tmp_path_factory.mktemp("gguf") / "window.gguf", window=8)
        with LlamaCppModel(path, context_length=700) as model:
            yield model
