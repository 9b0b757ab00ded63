"""Text to ids and bytes with tokenizers of every common kind."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from draftproof.errors import UsageError
from draftproof.models.transformers_tokenizer import TransformersTokenizer
from tests.laws import types_unchecked
from tests.models import tiny_transformers

TEXTS = ["hello there", " the rest", "a\nb\t c  d", "Grüße, 世界 🙂!", "1,000 × 2", "<|end|>", "\x00\x7f"]


def byte_level() -> Any:
    return tiny_transformers.tokenizer()


def sentence_pieces() -> Any:
    """Pieces with a mark for spaces, bytes for the rest, and a start token, as Llama 2 has them."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocabulary |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for piece in ("\u2581", "h", "e", "l", "o", "he", "ll", "hell", "hello", "\u2581t", "\u2581the", "r"):
        vocabulary.setdefault(piece, len(vocabulary))
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def word_pieces() -> Any:
    vocabulary = {"[UNK]": 0, "hello": 1, "the": 2, "##re": 3, "there": 4, "rest": 5, ",": 6}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("make", [byte_level, sentence_pieces])
def test_bytes_of_tokens_spell_the_text(make: Any, text: str) -> None:
    tokenizer = TransformersTokenizer(make(), "tiny")
    ids = tokenizer.encode(text, add_special=False)
    # SentencePiece puts a space in front of a text; between texts there is none.
    assert tokenizer.decode(ids).lstrip(" ") == text.lstrip(" ")
    assert b"".join(tokenizer.token_bytes(int(token)) for token in ids).decode().lstrip(" ") == text.lstrip(" ")


def test_words() -> None:
    tokenizer = TransformersTokenizer(word_pieces(), "tiny")
    assert tokenizer.decode([1, 2, 3, 5]) == " hello there rest"


def test_special_tokens_add_nothing_and_are_read_only_where_asked() -> None:
    tokenizer = TransformersTokenizer(byte_level(), "tiny")
    end = tokenizer.eos
    assert end is not None
    assert tokenizer.token_bytes(end) == b""
    assert tokenizer.token_name(end) == "<|end|>"
    assert tokenizer.encode("<|end|>", parse_special=True).tolist() == [end]
    assert end not in tokenizer.encode("<|end|>").tolist()


def test_a_start_token_comes_once() -> None:
    tokenizer = TransformersTokenizer(sentence_pieces(), "tiny")
    assert tokenizer.bos == 1
    assert tokenizer.encode("he")[0] == 1
    assert tokenizer.encode("<s>he", parse_special=True).tolist().count(1) == 1
    assert tokenizer.encode("").tolist() == [1]
    assert 1 not in tokenizer.encode("he", add_special=False).tolist()
    assert TransformersTokenizer(byte_level(), "tiny").bos is None


def test_ids_without_a_token_are_told() -> None:
    inner = word_pieces()
    inner.add_tokens([tokenizers.AddedToken("new", special=False)])
    tokenizer = TransformersTokenizer(inner, "tiny")
    assert tokenizer.size == 8
    assert tokenizer.token_bytes(7) == b"new"
    assert tokenizer.missing().tolist() == []
    letters = TransformersTokenizer(tiny_transformers.LetterTokenizer("ab"), "tiny")
    assert letters.missing().tolist() == []
    letters.tokenizer.get_vocab()["z"] = 4
    assert TransformersTokenizer(letters.tokenizer, "tiny").missing().tolist() == [2, 3]


def test_chat_templates() -> None:
    inner = byte_level()
    tokenizer = TransformersTokenizer(inner, "tiny")
    assert not tokenizer.has_chat_template
    with pytest.raises(UsageError, match="no chat template"):
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            inner,
            "chat_template",
            "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
            "[{{ m.role }}] {{ m.content }}{% endfor %}{% if add_generation_prompt %}[me] {% endif %}",
        )
        assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}]) == "[user] hi[me] "
        with pytest.raises(UsageError, match="refuses these messages: no tools"):
            tokenizer.apply_chat_template([{"role": "tool", "content": "x"}])
        for wrong in ([{"role": "user"}], ["hi"], [{"role": "user", "content": 3}]):
            with types_unchecked(), pytest.raises(UsageError, match="message 0 is"):
                tokenizer.apply_chat_template(wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="are empty"):
            tokenizer.apply_chat_template([])


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(UsageError, match="lone surrogate"):
        TransformersTokenizer(byte_level(), "tiny").encode("a\ud800b")
