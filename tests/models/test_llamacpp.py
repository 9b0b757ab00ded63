from __future__ import annotations

import gc
import importlib
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from draftproof.errors import MissingDependencyError, ModelLoadError, UsageError
from draftproof.models import llamacpp, llamacpp_library
from draftproof.models.base import Query
from draftproof.models.llamacpp import LlamaCppModel
from draftproof.types import NO_TOKENS, Tokens
from tests.models import gguf_file
from tests.models.session_conformance import ask
from tests.models.test_llamacpp_session import Interposed


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
    session._lib = Interposed(lib, llama_decode=slow)
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


def test_rows_are_batch_invariant_where_that_is_fast(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[bool, dict[str, Any], bool]] = [
        (True, {}, True),
        (True, {"flash_attention": True}, True),
        (True, {"flash_attention": False}, False),
        (True, {"gpu_layers": -1}, False),
        (True, {"batch_invariant": False}, False),
        (False, {}, False),
        (False, {"batch_invariant": True}, True),
    ]
    for fast, options, expected in cases:
        monkeypatch.setattr(llamacpp, "multiplies_bfloat16", lambda fast=fast: fast)
        with LlamaCppModel(tiny_path, **options) as model:
            assert isinstance(model, LlamaCppModel)
            assert model.batch_invariant is expected


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
