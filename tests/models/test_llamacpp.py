from __future__ import annotations

import ctypes
import gc
import importlib
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftproof.errors import BackendError, MissingDependencyError, ModelLoadError, UsageError
from draftproof.models import llamacpp, llamacpp_library
from draftproof.models.base import Model, Query
from draftproof.models.llamacpp import LlamaCppModel
from draftproof.models.llamacpp_session import BATCH, ROWS, LlamaCppSession
from draftproof.types import NO_TOKENS, Tokens, as_tokens
from tests.models import gguf_file
from tests.models.session_conformance import SessionConformance, ask, copied


@pytest.fixture
def text() -> Tokens:
    return as_tokens(np.random.default_rng(8).integers(5, gguf_file.VOCABULARY, 700))


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
    model = LlamaCppModel(path, context_length=700)
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


class _Interposed:
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
        session._lib = _Interposed(lib, llama_decode=decode)
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
        session._lib = _Interposed(lib, llama_memory_seq_rm=seq_rm)
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


def test_what_is_closed_says_so(tiny_path: Path, text: Tokens) -> None:
    model = LlamaCppModel(tiny_path)
    session, other = model.session(), model.session()
    session.close()
    with pytest.raises(UsageError, match="session of tiny is closed"):
        ask(session, text[:3])
    ask(other, text[:3])
    name = model.tokenizer.token_bytes(270)
    model.close()
    model.close()
    with pytest.raises(UsageError, match="session of tiny is closed"):
        ask(other, text[:3])
    with pytest.raises(UsageError, match="model tiny is closed"):
        model.session()
    with pytest.raises(UsageError, match="model tiny is closed"):
        model.tokenizer.encode("a")
    assert model.tokenizer.token_bytes(270) == name


def test_a_session_keeps_its_model_alive_and_everything_is_freed_in_order(
    tiny_path: Path, text: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    lib = llamacpp_library.library()
    freed: list[str] = []

    def spy(name: str) -> None:
        free = getattr(lib, name)

        def noted(address: Any) -> None:
            freed.append(name)
            free(address)

        monkeypatch.setattr(lib, name, noted)

    spy("llama_free")
    spy("llama_model_free")
    model = LlamaCppModel(tiny_path)
    assert freed == ["llama_free"]
    session = model.session()
    del model
    gc.collect()
    ask(session, text[:4])
    assert freed == ["llama_free"]
    # Unreachable together, in a cycle: the order in which Python clears it must not matter.
    session.model.name = session  # type: ignore[assignment]
    del session
    gc.collect()
    assert freed == ["llama_free", "llama_free", "llama_model_free"]


def test_closing_waits_for_the_pass_of_another_thread(tiny: LlamaCppModel, text: Tokens) -> None:
    session = tiny.session()
    started, order = threading.Event(), []

    def slow(context: Any, batch: Any) -> int:
        started.set()
        closing.join(0.2)
        order.append("decoded")
        return int(lib.llama_decode(context, batch))

    def close() -> None:
        started.wait()
        session.close()
        order.append("closed")

    lib = session._lib
    session._lib = _Interposed(lib, llama_decode=slow)
    closing = threading.Thread(target=close)
    closing.start()
    session.score([Query(0, text[:3], NO_TOKENS)])
    closing.join()
    assert order == ["decoded", "closed"]


def test_leaving_everything_open_at_exit_is_harmless(tiny_path: Path) -> None:
    program = f"""
import threading
from draftproof.models.base import Query
from draftproof.models.llamacpp import LlamaCppModel
from draftproof.types import NO_TOKENS, as_tokens
model = LlamaCppModel({str(tiny_path)!r})
session, busy = model.session(), model.session()
rows = session.score([Query(0, as_tokens([5, 6]), NO_TOKENS)])
def run():
    while True:
        busy.score([Query(0, as_tokens([5] * 200), NO_TOKENS)])
threading.Thread(target=run, daemon=True).start()
model.cycle = [model, session]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_importing_does_not_import_llama_cpp() -> None:
    program = (
        "import sys, draftproof, draftproof.models.load, draftproof.models.embedded;"
        "sys.exit('llama_cpp' in sys.modules or 'jinja2' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


def _refused(path: Path, match: str, **options: Any) -> None:
    with pytest.raises(ModelLoadError, match=match) as caught:
        LlamaCppModel(path, **options)
    assert "\n" not in str(caught.value)
    assert path.stem in str(caught.value)


def test_files_that_are_no_model_are_refused_in_one_line(
    tmp_path: Path, tiny_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = tiny_path.read_bytes()
    path = tmp_path / "bad.gguf"
    _refused(path, "does not exist")
    _refused(tmp_path, "is a directory; give a .gguf file")
    for content, match in [
        (b"", "is empty"),
        (b"PK\3\4 whatever", "is no GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
        (b"GGUF", "failed to read header"),
        (b"GGUF" + bytes(range(200)), "cannot load"),
        (b"GGUF\x63\0\0\0" + whole[8:], "version 99"),
        (whole[:300], "exceeds remaining file size"),
        (whole[: len(whole) // 2], "not within the file bounds"),
        (whole[:-4096], "not within the file bounds"),
        (
            whole.replace(
                b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama",
                b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llamb",
            ),
            "unknown model architecture: 'llamb'",
        ),
    ]:
        path.write_bytes(content)
        _refused(path, match)
    (tmp_path / "other.gguf").touch()
    _refused(tmp_path, "bad.gguf, other.gguf")
    assert capfd.readouterr() == ("", "")


def test_an_unreadable_file_is_refused(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path, *args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    _refused(tiny_path, "Permission denied.*check its permissions")


def test_a_model_that_keeps_a_running_state_is_refused(tmp_path: Path) -> None:
    _refused(gguf_file.write_mamba(tmp_path / "mamba.gguf"), "mamba is recurrent: its state cannot be cut back")


def test_a_state_that_no_flag_admits_is_found_by_trying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llamacpp, "_refuse_unsuitable", lambda name, pointer: None)
    _refused(gguf_file.write_mamba(tmp_path / "mamba.gguf"), "cannot be cut back")


@pytest.mark.parametrize(
    ("function", "answer", "match"),
    [
        ("llama_model_has_encoder", True, "has an encoder"),
        ("llama_model_has_decoder", False, "has an encoder"),
        ("llama_model_is_hybrid", True, "is hybrid"),
        ("llama_model_is_diffusion", True, "diffusion"),
        ("llama_get_memory", None, "keeps no cache"),
        ("llama_init_from_model", None, "cannot hold 1 x"),
    ],
)
def test_models_that_cannot_verify_drafts_are_refused(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, answer: object, match: str
) -> None:
    monkeypatch.setattr(llamacpp_library.library(), function, lambda *arguments: answer)
    _refused(tiny_path, match)


def test_a_file_without_tokenizer_is_refused(tmp_path: Path) -> None:
    nothing = {"tokenizer.ggml.model": "no_vocab", "llama.vocab_size": gguf_file.VOCABULARY}
    _refused(gguf_file.write_llama(tmp_path / "mute.gguf", nothing), "has no tokenizer")


def test_options_out_of_range_are_refused(tiny_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"context_length": 0}, "context_length 0"),
        ({"context_length": 2049}, "exceeds the 2048 tokens"),
        ({"threads": -1}, "threads -1"),
        ({"flash_attention": False, "batch_invariant": True}, "batch_invariant"),
    ]
    for options, match in cases:
        with pytest.raises(UsageError, match=match):
            LlamaCppModel(tiny_path, **options)
    with LlamaCppModel(tiny_path) as model, pytest.raises(UsageError, match="slots 257"):
        model.session(257)


def test_a_parameter_the_installed_library_lacks_is_an_error(tiny: LlamaCppModel) -> None:
    params = llamacpp_library.library().llama_context_default_params()
    with pytest.raises(ModelLoadError, match=r"too old \(n_dreams is missing\)"):
        llamacpp_library.set_field(params, "n_dreams", 1)


def test_the_context_is_what_the_model_was_trained_for_up_to_4096(tmp_path: Path) -> None:
    for trained, given in ((2048, 2048), (8192, 4096)):
        with LlamaCppModel(gguf_file.write_llama(tmp_path / "a.gguf", context_length=trained)) as model:
            assert model.context_length == given
            assert model.name == "a"
    with LlamaCppModel(tmp_path / "a.gguf", context_length=8192, name="long") as model:
        assert (model.context_length, model.name) == (8192, "long")


def test_weights_are_not_repacked_where_amx_would_crash(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    lib = llamacpp_library.library()
    load = lib.llama_model_load_from_file

    def spy(path: bytes, params: Any) -> Any:
        seen.append(params.use_extra_bufts)
        return load(path, params)

    monkeypatch.setattr(lib, "llama_model_load_from_file", spy)
    for unsafe, given in ((True, None), (False, None), (True, True), (False, False)):
        monkeypatch.setattr(llamacpp, "amx_on_virtual_machine", lambda unsafe=unsafe: unsafe)
        LlamaCppModel(tiny_path, use_extra_bufts=given).close()
    assert seen == [False, True, True, False]


def test_llamacpp_says_nothing_unless_asked(
    tiny_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="draftproof.llamacpp"):
        LlamaCppModel(tiny_path).close()
    assert any("n_ctx_train" in line for line in caplog.messages)
    caplog.clear()
    LlamaCppModel(tiny_path).close()
    assert not caplog.messages
    assert capfd.readouterr() == ("", "")


def test_a_missing_package_is_named_with_its_remedy(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llamacpp_library.library.cache_clear()
    try:
        for module in [name for name in sys.modules if name.partition(".")[0] == "llama_cpp"]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, "llama_cpp", None)
        with pytest.raises(MissingDependencyError, match=r'pip install "draftproof\[llamacpp\]"'):
            LlamaCppModel(tiny_path)
        monkeypatch.setattr(importlib, "import_module", lambda name: (_ for _ in ()).throw(OSError("libgomp.so.1")))
        with pytest.raises(ModelLoadError, match=r"libgomp\.so\.1"):
            LlamaCppModel(tiny_path)
    finally:
        monkeypatch.undo()
        llamacpp_library.library()
