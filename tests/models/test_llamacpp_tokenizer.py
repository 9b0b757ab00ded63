from __future__ import annotations

import ctypes
import datetime
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from draftproof.errors import MissingDependencyError, UsageError
from draftproof.models.llamacpp import LlamaCppModel
from tests.models import gguf_file


def _detokenized(model: LlamaCppModel, tokens: np.ndarray) -> bytes:
    tokenizer: Any = model.tokenizer
    ids = np.ascontiguousarray(tokens, dtype=np.int32)
    buffer = ctypes.create_string_buffer(65536)
    pointer = ids.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
    count = tokenizer._lib.llama_detokenize(tokenizer._vocab, pointer, len(ids), buffer, 65536, False, False)
    assert count >= 0
    return buffer.raw[:count]


@functools.cache
def _known_bytes(model: LlamaCppModel) -> set[int]:
    pieces = map(model.tokenizer.token_bytes, range(model.vocab_size))
    return {piece[0] for piece in pieces if len(piece) == 1}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
@example("")
@example("two  spaces\n\n\tand an end")
@example("<|im_start|>user\n😀 e\u0301 \u200d")
def test_any_text_comes_back(smol: LlamaCppModel, text: str) -> None:
    # A byte that the model's vocabulary lacks, such as some control codes, cannot come back.
    assume(set(text.encode()) <= _known_bytes(smol))
    tokens = smol.tokenizer.encode(text)
    assert tokens.dtype == np.int32
    assert smol.tokenizer.decode(tokens) == text
    assert b"".join(map(smol.tokenizer.token_bytes, tokens.tolist())) == _detokenized(smol, tokens)


def test_bytes_and_names_of_special_tokens(smol: LlamaCppModel) -> None:
    (start,) = smol.tokenizer.encode("<|im_start|>", parse_special=True)
    assert smol.tokenizer.token_bytes(int(start)) == b""
    assert smol.tokenizer.token_name(int(start)) == "<|im_start|>"
    assert len(smol.tokenizer.encode("<|im_start|>")) > 1
    assert smol.tokenizer.decode(smol.tokenizer.encode("<|im_start|>")) == "<|im_start|>"


def test_every_end_of_generation_ends(smol: LlamaCppModel, tiny: LlamaCppModel) -> None:
    names = {smol.tokenizer.token_name(token) for token in smol.eos_ids}
    assert {"<|im_end|>", "<|endoftext|>"} <= names
    assert {2, 3} <= tiny.eos_ids
    assert not tiny.eos_ids & set(range(5, tiny.vocab_size))


def test_a_zero_byte_does_not_end_a_text(tiny: LlamaCppModel) -> None:
    assert tiny.tokenizer.decode(tiny.tokenizer.encode("a\0b", add_special=False)) == " a\0b"


def test_half_characters_are_bytes_not_replacements(tiny: LlamaCppModel) -> None:
    tokens = tiny.tokenizer.encode("ö", add_special=False)[1:]
    assert [tiny.tokenizer.token_bytes(int(token)) for token in tokens] == [b"\xc3", b"\xb6"]
    assert tiny.tokenizer.decode(tokens) == "ö"
    assert tiny.tokenizer.decode(tokens[:1]) == "\ufffd"


def test_the_start_token_is_put_once(tiny: LlamaCppModel) -> None:
    encode = tiny.tokenizer.encode
    assert encode("the").tolist()[0] == 1
    assert encode("the", add_special=False).tolist() == encode("the").tolist()[1:]
    assert encode("").tolist() == [1]
    assert encode("", add_special=False).tolist() == []
    spelt = encode("<s>the", parse_special=True).tolist()
    assert spelt == encode("the").tolist()
    assert encode("<s>the", add_special=False, parse_special=True).tolist() == spelt
    assert encode("<s>the").tolist().count(1) == 1
    assert encode("the<tool>", parse_special=True).tolist()[-1] == 4


def test_no_end_token_is_put_after_a_prompt(tmp_path: Path) -> None:
    changes = {"tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.add_bos_token": False}
    with LlamaCppModel(gguf_file.write_llama(tmp_path / "eos.gguf", changes)) as model:
        assert not set(model.tokenizer.encode("the").tolist()) & {1, 2}


def test_text_that_no_encoding_can_express_is_refused(smol: LlamaCppModel) -> None:
    with pytest.raises(UsageError, match=r"'\\ud800' at 2"):
        smol.tokenizer.encode("ab\ud800c")


def test_ids_outside_the_vocabulary_are_refused(smol: LlamaCppModel) -> None:
    for token in (-1, smol.vocab_size):
        with pytest.raises(UsageError, match="outside the vocabulary"):
            smol.tokenizer.token_bytes(token)
        with pytest.raises(UsageError, match="outside the vocabulary"):
            smol.tokenizer.token_name(token)


def test_a_long_text_of_one_letter_is_no_trouble(smol: LlamaCppModel) -> None:
    for piece in ("a", " ", "\n", "1", "é"):
        text = piece * 30_000
        assert smol.tokenizer.decode(smol.tokenizer.encode(text)) == text


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <|im_end|> there"}]


def test_the_embedded_template(smol: LlamaCppModel) -> None:
    assert smol.tokenizer.has_chat_template
    text = smol.tokenizer.apply_chat_template(MESSAGES)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|> there<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.fixture
def templated(tmp_path: Path) -> Iterator[Any]:
    models: list[LlamaCppModel] = []

    def load(template: str) -> LlamaCppModel:
        path = gguf_file.write_llama(tmp_path / "chat.gguf", {"tokenizer.chat_template": template})
        models.append(LlamaCppModel(path))
        return models[-1]

    yield load
    for model in models:
        model.close()


def test_a_template_gets_what_transformers_gives_it(templated: Any) -> None:
    template = """{{ bos_token }}
    {%- for message in messages %}
    {% if message['role'] == 'system' %}{% continue %}{% endif %}
[{{ message.role }}] {{ message['content'] | trim }}{{ eos_token }}
    {%- endfor %}
{% if tools is none and not documents %}{{ {"é": "<"} | tojson }} {{ strftime_now("%Y") }}{% endif %}
{% if add_generation_prompt %}[assistant]{% endif %}"""
    text = templated(template).tokenizer.apply_chat_template(MESSAGES)
    year = datetime.datetime.now().year
    assert text == f'<s>[user] Hi <|im_end|> there</s>{{"é": "<"}} {year}[assistant]'


@pytest.mark.parametrize(
    ("template", "match"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses these messages: roles must alternate"),
        ("{{ messages[7].role.strip() }}", "refuses these messages"),
        ("{{ 1 / 0 }}", "refuses these messages: division by zero"),
        ("{{ ''.__class__.__mro__ }}", "refuses these messages"),
        ("{{ messages.append(1) }}", "refuses these messages"),
        ("{% for %}", "cannot be read"),
    ],
)
def test_what_a_template_refuses_is_a_usage_error(templated: Any, template: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        templated(template).tokenizer.apply_chat_template(MESSAGES)


def test_malformed_messages_are_refused(smol: LlamaCppModel) -> None:
    bad: list[list[dict[str, str]]] = [[], [{"role": "user"}], [{"content": "x"}]]
    for messages in bad:
        with pytest.raises(UsageError, match="message"):
            smol.tokenizer.apply_chat_template(messages)


def test_a_model_without_template_says_so(tiny: LlamaCppModel) -> None:
    assert not tiny.tokenizer.has_chat_template
    with pytest.raises(UsageError, match="no chat template"):
        tiny.tokenizer.apply_chat_template(MESSAGES)


def test_templates_need_jinja(templated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "draftproof\[llamacpp\]"'):
        templated("x").tokenizer.apply_chat_template(MESSAGES)
