"""The tokenizer and the chat template that a GGUF file carries."""

from __future__ import annotations

import ctypes
import datetime
import importlib
import json
from collections.abc import Callable, Sequence
from itertools import compress, repeat
from typing import Any, NoReturn

import numpy as np

from draftproof.errors import MissingDependencyError, ModelLoadError, UsageError
from draftproof.models.base import Message, Tokenizer, check_messages, template_refusal
from draftproof.models.llamacpp_library import INSTALL, Pointer, library
from draftproof.types import NO_TOKENS, Tokens

_NO_VOCABULARY = 0


class LlamaCppTokenizer(Tokenizer):
    """Text to ids as the model's GGUF file says.

    Args:
        model: llama.cpp's model; it must stay open while the tokenizer is used.
        name: of the model, for messages.

    Raises:
        ModelLoadError: if the file has no tokenizer.
    """

    def __init__(self, model: Pointer, name: str) -> None:
        lib = library()
        self._lib = lib
        self._model = model
        self._name = name
        self._vocab = lib.llama_model_get_vocab(model.address)
        if not self._vocab or lib.llama_vocab_type(self._vocab) == _NO_VOCABULARY:
            raise ModelLoadError(f"model {name} has no tokenizer; convert it again with its tokenizer files beside it")
        self.size: int = lib.llama_vocab_n_tokens(self._vocab)
        self.bos: int = lib.llama_vocab_bos(self._vocab)
        self.eos: int = lib.llama_vocab_eos(self._vocab)
        self.adds_bos = bool(lib.llama_vocab_get_add_bos(self._vocab)) and self.bos >= 0
        self._bytes: dict[int, bytes] = {}
        source = lib.llama_model_chat_template(model.address, None)
        self._template_source = source.decode("utf-8", "replace") if source else ""
        self._render: Callable[..., str] | None = None

    def end_ids(self) -> frozenset[int]:
        """Returns every id that ends a generation: end of text, of turn, of message."""
        is_end, vocab = self._lib.llama_vocab_is_eog, self._vocab
        ends = set(compress(range(self.size), map(is_end, repeat(vocab), range(self.size))))
        marked = {self.eos, self._lib.llama_vocab_eot(vocab)}
        return frozenset(ends | {token for token in marked if token >= 0})

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> Tokens:
        """See `Tokenizer.encode`.

        Raises:
            UsageError: if `text` holds half a surrogate pair, which no text encoding can express, or the model is
                closed.
        """
        self._need_open()
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"text has the lone surrogate {text[error.start]!a} at {error.start}; decode your input as UTF-8 "
                'with errors="replace"'
            ) from None
        ids = self._tokenize(data, parse_special) if data else NO_TOKENS
        # llama.cpp's own add_special writes a second BOS if the text spells one, and an EOS for some models.
        if add_special and self.adds_bos and not (len(ids) and int(ids[0]) == self.bos):
            ids = np.concatenate([np.array([self.bos], dtype=np.int32), ids])
        return ids

    def _tokenize(self, data: bytes, parse_special: bool) -> Tokens:
        room = len(data) + 8
        while True:
            ids = np.empty(room, dtype=np.int32)
            buffer = ids.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
            count = self._lib.llama_tokenize(self._vocab, data, len(data), buffer, room, False, parse_special)
            if count >= 0:
                return ids[:count].copy()
            if -count <= room:
                raise UsageError(f"text of {len(data)} bytes is too long for the tokenizer of {self._name}; shorten it")
            room = -count

    def token_bytes(self, token: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._piece(token, special=False)
        return known

    def token_name(self, token: int) -> str:
        """Returns a token for people to read; a special token by its name."""
        return self._piece(token, special=True).decode("utf-8", "replace")

    def _piece(self, token: int, special: bool) -> bytes:
        self._need_open()
        if not 0 <= token < self.size:
            raise UsageError(f"token {token} is outside the vocabulary 0..{self.size - 1} of {self._name}")
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            count = self._lib.llama_token_to_piece(self._vocab, token, buffer, room, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            room = -count

    def _need_open(self) -> None:
        if self._model.closed:
            raise UsageError(f"model {self._name} is closed; load it again")

    @property
    def has_chat_template(self) -> bool:
        """See `Tokenizer.has_chat_template`."""
        return bool(self._template_source)

    def apply_chat_template(self, messages: Sequence[Message]) -> str:
        """See `Tokenizer.apply_chat_template`; the template is the file's own, rendered as transformers does.

        Raises:
            UsageError: if the model has no template, a message is malformed or the template refuses the messages.
            MissingDependencyError: if jinja2 is not installed.
        """
        if not self._template_source:
            return super().apply_chat_template(messages)
        check_messages(messages)
        render = self._render or self._compile()
        try:
            return render(messages=[dict(message) for message in messages], add_generation_prompt=True)
        except Exception as error:
            raise template_refusal(self._name, error) from error

    def _compile(self) -> Callable[..., str]:
        try:
            jinja2 = importlib.import_module("jinja2")
            sandbox = importlib.import_module("jinja2.sandbox")
        except ModuleNotFoundError as error:
            raise MissingDependencyError(f"chat templates need jinja2; run: {INSTALL}") from error

        def refuse(message: str) -> NoReturn:
            raise UsageError(message)

        # These settings, names and extensions are what templates are written against: transformers' own.
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(
            raise_exception=refuse,
            strftime_now=lambda layout: datetime.datetime.now().strftime(layout),
            bos_token=self.token_name(self.bos) if self.bos >= 0 else "",
            eos_token=self.token_name(self.eos) if self.eos >= 0 else "",
            tools=None,
            documents=None,
        )
        try:
            render: Callable[..., str] = environment.from_string(self._template_source).render
        except jinja2.TemplateError as error:
            raise UsageError(
                f"the chat template of {self._name} cannot be read ({error}); give the prompt as plain text (--raw)"
            ) from error
        self._render = render
        return render


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, sort_keys: bool = False) -> str:
    # Jinja's own filter escapes for HTML, which would change the prompt.
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, sort_keys=sort_keys)
