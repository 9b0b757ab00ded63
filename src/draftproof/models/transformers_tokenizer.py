"""Tokenizers of transformers: text to ids, and each id to the bytes it adds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from draftproof.errors import MissingDependencyError, UsageError
from draftproof.models.base import Message, Tokenizer, check_messages, template_refusal
from draftproof.types import NO_TOKENS, Tokens, as_tokens

_SPACE = "\u2581"
"""What SentencePiece writes for a space."""


class TransformersTokenizer(Tokenizer):
    """A `PreTrainedTokenizer` as the engine needs it.

    Args:
        tokenizer: the tokenizer.
        name: of the model, for messages.
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        self.tokenizer = tokenizer
        self._name = name
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        self._texts: dict[int, str] = {token: text for text, token in vocabulary.items()}
        self._added = {int(token): added for token, added in tokenizer.added_tokens_decoder.items()}
        self._texts |= {token: added.content for token, added in self._added.items()}
        self.size = max(self._texts, default=-1) + 1
        self._special = {token for token, added in self._added.items() if added.special}
        self._special |= {int(token) for token in tokenizer.all_special_ids}
        self._spell = _speller(tokenizer)
        self._bytes: dict[int, bytes] = {}
        self._start = self._starts_with()

    @property
    def bos(self) -> int | None:
        """The id a text starts with, if the tokenizer puts one in front."""
        return int(self._start[-1]) if len(self._start) else None

    @property
    def eos(self) -> int | None:
        """The id that ends a text, if there is one."""
        token = self.tokenizer.eos_token_id
        return None if token is None else int(token)

    def missing(self) -> Tokens:
        """Returns the ids below `size` that stand for nothing, `[n]`."""
        return as_tokens(sorted(set(range(self.size)) - set(self._texts)))

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> Tokens:
        """See `Tokenizer.encode`.

        Raises:
            UsageError: if `text` holds half a surrogate pair, which no text encoding can express.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"text has the lone surrogate {text[error.start]!a} at {error.start}; decode your input as UTF-8 "
                'with errors="replace"'
            ) from None
        ids = self._encode(text, parse_special) if text else NO_TOKENS
        # The tokenizer's own add_special_tokens writes a second one if the text spells one.
        if add_special and len(self._start) and not (len(ids) and int(ids[0]) == self.bos):
            ids = np.concatenate([self._start, ids])
        return ids

    def _encode(self, text: str, parse_special: bool) -> Tokens:
        ids = self.tokenizer(
            text,
            add_special_tokens=False,
            split_special_tokens=not parse_special,
            return_attention_mask=False,
            verbose=False,
        )["input_ids"]
        return as_tokens(ids)

    def _starts_with(self) -> Tokens:
        with_special = as_tokens(self.tokenizer("a", verbose=False)["input_ids"]).tolist()
        without = self._encode("a", parse_special=False).tolist()
        for place in range(len(with_special)):
            if with_special[place : place + len(without)] == without:
                return as_tokens(with_special[:place])
        return NO_TOKENS

    def token_bytes(self, token: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._piece(token)
        return known

    def _piece(self, token: int) -> bytes:
        if token in self._special or token not in self._texts:
            return b""
        if token in self._added:
            return self._texts[token].encode()
        return self._spell(self._texts[token])

    def token_name(self, token: int) -> str:
        """Returns a token for people to read; a special token by its name."""
        return self._texts[token] if token in self._special else super().token_name(token)

    @property
    def has_chat_template(self) -> bool:
        """See `Tokenizer.has_chat_template`."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def apply_chat_template(self, messages: Sequence[Message]) -> str:
        """See `Tokenizer.apply_chat_template`.

        Raises:
            UsageError: if the model has no template, a message is malformed or the template refuses the messages.
            MissingDependencyError: if jinja2 is not installed.
        """
        if not self.has_chat_template:
            return super().apply_chat_template(messages)
        check_messages(messages)
        try:
            text: str = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
            )
        except ImportError as error:
            raise MissingDependencyError("chat templates need jinja2; run: pip install jinja2") from error
        except Exception as error:
            raise template_refusal(self._name, error) from error
        return text


def _speller(tokenizer: Any) -> Callable[[str], bytes]:
    """Returns how this tokenizer's vocabulary spells bytes, by the decoder it declares."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = json.loads(backend.to_str()).get("decoder") if backend is not None else None
    steps = _steps(decoder)
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        return _spell_bytes(_byte_alphabet())
    if "WordPiece" in kinds:
        prefix = next(step.get("prefix", "##") for step in steps if step["type"] == "WordPiece")
        return lambda text: (text.removeprefix(prefix) if text.startswith(prefix) else " " + text).encode()
    suffix = next((step.get("suffix", "") for step in steps if step["type"] == "BPEDecoder"), "")
    space = next((step["replacement"] for step in steps if step["type"] == "Metaspace"), _SPACE)

    def spell(text: str) -> bytes:
        # Byte fallback: <0x0A> stands for one byte.
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return (text.replace(suffix, " ") if suffix else text.replace(space, " ")).encode()

    return spell


def _steps(decoder: Any) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for each in decoder["decoders"] for step in _steps(each)]
    return [decoder]


def _byte_alphabet() -> dict[str, int]:
    """Byte-level vocabularies write a byte as the character of its number, if that prints, else as one above 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _spell_bytes(alphabet: Mapping[str, int]) -> Callable[[str], bytes]:
    def spell(text: str) -> bytes:
        if all(character in alphabet for character in text):
            return bytes(alphabet[character] for character in text)
        return text.encode()

    return spell
