from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftproof.errors import BackendError, UsageError
from draftproof.models import llamacpp_library
from draftproof.models.base import Model, Query
from draftproof.models.llamacpp import LlamaCppModel
from draftproof.models.llamacpp_session import BATCH, ROWS, LlamaCppSession
from draftproof.types import NO_TOKENS, Tokens, as_tokens
from tests.models import gguf_file
from tests.models.session_conformance import SessionConformance, ask, copied


class _Conformance(SessionConformance):
    # Passes of different width add up in different order, and the cache rounds what comes out to half precision.
    tolerance = 0.05
    chunk = BATCH + 100


@pytest.fixture(scope="module")
def quantised(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCppModel]:
    path = tmp_path_factory.mktemp("gguf") / "q8_0.gguf"
    lib = llamacpp_library.library()
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.nthread = 7, 1
    llamacpp_library.quiet()
    assert lib.llama_model_quantize(bytes(tiny_path), bytes(path), ctypes.byref(params)) == 0
    model = LlamaCppModel(path, context_length=700, batch_invariant=True)
    yield model
    model.close()


@pytest.fixture(scope="module")
def one_pool(tiny_path: Path) -> Iterator[LlamaCppModel]:
    model = LlamaCppModel(tiny_path, context_length=700, batch_invariant=False)
    yield model
    model.close()


@pytest.fixture(scope="module")
def without_flash_attention(tiny_path: Path) -> Iterator[LlamaCppModel]:
    model = LlamaCppModel(tiny_path, context_length=700, flash_attention=False, threads=1)
    yield model
    model.close()


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCppModel]:
    path = gguf_file.write_gemma2(tmp_path_factory.mktemp("gguf") / "window.gguf", window=8)
    model = LlamaCppModel(path, context_length=700)
    yield model
    model.close()


class TestQuantised(_Conformance):
    """Weights whose kernels do not depend on the width of a pass: equal to the last bit."""

    tolerance = 0.0

    @pytest.fixture
    def model(self, quantised: LlamaCppModel) -> Model:
        return quantised


class TestFloats(_Conformance):
    @pytest.fixture
    def model(self, tiny: LlamaCppModel) -> Model:
        return tiny


class TestOnePoolOfCells(_Conformance):
    @pytest.fixture
    def model(self, one_pool: LlamaCppModel) -> Model:
        return one_pool


class TestWithoutFlashAttention(_Conformance):
    @pytest.fixture
    def model(self, without_flash_attention: LlamaCppModel) -> Model:
        return without_flash_attention


class TestSlidingWindow(_Conformance):
    @pytest.fixture
    def model(self, windowed: LlamaCppModel) -> Model:
        return windowed


def test_rows_of_the_embedded_model_do_not_depend_on_the_width_of_a_pass(smol: LlamaCppModel) -> None:
    tokens = as_tokens(np.random.default_rng(2).integers(100, 40000, 540))
    with smol.session() as session:
        # Over 512 tokens llama.cpp would use another attention kernel for one row than for several.
        wide = ask(session, tokens[:520], tokens[520:528])
        for i in range(9):
            np.testing.assert_array_equal(ask(session, tokens[: 520 + i])[0], wide[i])


def test_greedy_text_of_the_embedded_model_survives_bad_drafts(smol: LlamaCppModel) -> None:
    prompt = smol.tokenizer.encode("The capital of France is")
    plain = prompt.tolist()
    with smol.session() as session:
        for _ in range(12):
            plain.append(int(ask(session, plain)[0].argmax()))
    assert "Paris" in smol.tokenizer.decode(plain)
    drafted, step = prompt.tolist(), 0
    with smol.session() as session:
        while len(drafted) < len(plain):
            draft = plain[len(drafted) : len(drafted) + 3]
            draft[step % 3 :] = [7] * (len(draft) - step % 3)
            rows = ask(session, drafted, draft)
            for i in range(len(draft) + 1):
                drafted.append(int(rows[i].argmax()))
                if i < len(draft) and drafted[-1] != draft[i]:
                    break
            step += 1
    assert drafted[: len(plain)] == plain


def test_rows_are_views_that_cannot_be_written_and_do_not_go_stale_unnoticed(tiny: LlamaCppModel, text: Tokens) -> None:
    with tiny.session() as session:
        (rows,) = session.score([Query(0, text[:5], text[5:7])])
        assert rows[0].dtype == np.float32
        assert rows[1].base is not None
        with pytest.raises(ValueError, match="read-only"):
            rows[0][0] = 1.0
        session.score([Query(0, text[:6], NO_TOKENS)])
        with pytest.raises(UsageError, match="rows are gone"):
            rows[0]
        (rows,) = session.score([Query(0, text[:6], NO_TOKENS)])
    with pytest.raises(UsageError, match="rows are gone"):
        rows[0]


def test_a_row_holds_on_to_the_memory_it_shows(tiny_path: Path, text: Tokens) -> None:
    model = LlamaCppModel(tiny_path)
    (rows,) = model.session().score([Query(0, text[:5], NO_TOKENS)])
    row = rows[0]
    expected = row.copy()
    pointer = model.pointer
    del model, rows
    gc.collect()
    np.testing.assert_array_equal(row, expected)
    assert not pointer.closed


class Interposed:
    """llama.cpp's functions, some replaced."""

    def __init__(self, lib: Any, **replaced: Callable[..., Any]) -> None:
        self._lib = lib
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)


@pytest.mark.parametrize("code", [1, 2, -1, -2, -3, -9])
@pytest.mark.parametrize("ran", [True, False])
@pytest.mark.parametrize("chunk", [0, 1])
def test_a_failed_decode_is_an_error_and_leaves_no_junk(
    tiny: LlamaCppModel, text: Tokens, code: int, ran: bool, chunk: int
) -> None:
    calls: list[int] = []

    def decode(context: Any, batch: Any) -> int:
        calls.append(batch.n_tokens)
        if len(calls) <= chunk:
            return int(lib.llama_decode(context, batch))
        if ran:
            lib.llama_decode(context, batch)
        return code

    with tiny.session(slots=2) as session:
        assert isinstance(session, LlamaCppSession)
        ask(session, text[:10], text[10:14])
        ask(session, text[5:9], slot=1)
        lib = session._lib
        session._lib = Interposed(lib, llama_decode=decode)
        with pytest.raises(BackendError, match=rf"returned {code}"):
            session.score([Query(0, text[:600], text[:3]), Query(1, text[5:30], text[:2])])
        session._lib = lib
        for slot, tokens in ((0, text[:15]), (1, text[5:18])):
            with tiny.session() as fresh:
                np.testing.assert_allclose(ask(session, tokens, slot=slot), ask(fresh, tokens), rtol=0, atol=0.05)


def test_a_cache_that_cannot_be_cut_back_is_an_error(tiny: LlamaCppModel, text: Tokens) -> None:
    def seq_rm(memory: Any, slot: int, start: int, end: int) -> bool:
        return start <= 0 and bool(lib.llama_memory_seq_rm(memory, slot, start, end))

    with tiny.session() as session:
        assert isinstance(session, LlamaCppSession)
        lib = session._lib
        session._lib = Interposed(lib, llama_memory_seq_rm=seq_rm)
        ask(session, text[:10], text[10:14])
        with pytest.raises(BackendError, match="cannot be cut back to 10 tokens"):
            ask(session, text[:11], text[:2])
        with tiny.session() as fresh:
            np.testing.assert_allclose(ask(session, text[:11]), ask(fresh, text[:11]), rtol=0, atol=0.05)


def test_a_pass_that_is_interrupted_while_it_is_put_together(
    tiny: LlamaCppModel, text: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tiny.session(slots=2) as session:
        assert isinstance(session, LlamaCppSession)
        add, calls = session._batch.add, 0

        def interrupted(slot: int, tokens: Tokens, positions: Tokens, wanted: int) -> None:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise KeyboardInterrupt
            add(slot, tokens, positions, wanted)

        ask(session, text[:10], text[10:14])
        with monkeypatch.context() as patch:
            patch.setattr(session._batch, "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.score([Query(0, text[:12], text[:3]), Query(1, text[:5], NO_TOKENS)])
        with tiny.session() as fresh:
            np.testing.assert_allclose(ask(session, text[:12]), ask(fresh, text[:12]), rtol=0, atol=0.05)


def test_a_sliding_window_can_be_cut_far_back(tmp_path: Path) -> None:
    tokens = as_tokens(np.random.default_rng(9).integers(5, gguf_file.VOCABULARY, 1900))
    # Long enough for a cache of the window alone to have dropped what the shorter text needs.
    model = LlamaCppModel(gguf_file.write_gemma2(tmp_path / "window.gguf", window=8))
    with model, model.session() as session, model.session() as fresh:
        ask(session, tokens)
        rows = ask(session, tokens[:900], tokens[:3])
        np.testing.assert_allclose(rows, ask(fresh, tokens[:900], tokens[:3]), rtol=0, atol=0.05)


def test_a_pass_of_more_rows_than_llamacpp_holds(tiny: LlamaCppModel, text: Tokens) -> None:
    with tiny.session(slots=3) as session:
        queries = [Query(slot, text[: 2 + slot], text[100 : 100 + ROWS // 2]) for slot in range(3)]
        for rows, query in zip(session.score(queries), queries, strict=True):
            with tiny.session() as fresh:
                np.testing.assert_allclose(copied(rows), ask(fresh, query.tokens, query.draft), rtol=0, atol=0.05)


def test_ids_that_would_wrap_around_are_refused(tiny: LlamaCppModel) -> None:
    with tiny.session() as session, pytest.raises(UsageError, match="vocabulary"):
        session.score([Query(0, np.array([2**32 + 5], dtype=np.int64), NO_TOKENS)])
