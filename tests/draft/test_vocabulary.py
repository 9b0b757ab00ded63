"""Two vocabularies: what they share, and one text in the other's ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from draftproof.draft import ModelDrafter
from draftproof.draft.vocabulary import TAIL, SharedVocabulary, Translation, encode_continued
from draftproof.engine import Engine
from draftproof.errors import UsageError
from draftproof.models.toy import ToyModel, ToyTokenizer
from draftproof.models.transformers_tokenizer import TransformersTokenizer
from draftproof.sampling import Sampler
from draftproof.types import Tokens, as_tokens
from tests.doubles import scripted_model
from tests.laws import types_unchecked
from tests.models import tiny_transformers
from tests.models.test_transformers_tokenizer import sentence_pieces, word_pieces


class Special(ToyTokenizer):
    """A toy tokenizer whose empty pieces are special tokens with names."""

    def __init__(self, pieces: Sequence[bytes], names: dict[int, str]) -> None:
        super().__init__(pieces)
        self.names = names

    def token_name(self, token: int) -> str:
        return self.names.get(token) or super().token_name(token)


def toy(
    pieces: Sequence[bytes], names: dict[int, str] | None = None, seed: int = 0, eos: Sequence[int] = ()
) -> ToyModel:
    return ToyModel(
        ToyModel.random(len(pieces), seed=seed).table,
        len(pieces),
        tokenizer=Special(pieces, names or {}),
        eos_ids=eos,
        name="".join(piece.decode("latin-1") for piece in pieces),
    )


def pairs(target: ToyModel, draft: ToyModel) -> list[tuple[int, int]]:
    shared = SharedVocabulary.of(target, draft)
    return list(zip(shared.target_ids.tolist(), shared.draft_ids.tolist(), strict=True))


def test_equal_vocabularies() -> None:
    shared = SharedVocabulary.of(toy([b"a", b"b"]), toy([b"a", b"b"], seed=1))
    assert shared.identical
    assert shared.first_difference is None
    assert shared.coverage == 1.0
    rows = np.arange(4.0).reshape(2, 2)
    assert shared.rows(rows) is rows


def test_padded_vocabularies_are_the_same_where_both_have_ids() -> None:
    wide, narrow = toy([b"a", b"b", b"c", b"d", b"e"]), toy([b"a", b"b", b"c", b"d"])
    for target, draft in ((wide, narrow), (narrow, wide)):
        drafter = ModelDrafter(draft)
        drafter.check(target)
        assert drafter.mode == "same"
        shared = SharedVocabulary.of(target, draft)
        row = np.arange(float(draft.vocab_size))
        mapped = shared.rows([row])[0]
        assert mapped[:4].tolist() == [0.0, 1.0, 2.0, 3.0]
        assert np.isneginf(mapped[4:]).all()
        assert len(mapped) == target.vocab_size


def test_swapped_ids_are_paired_by_what_they_mean_and_refused_as_the_same() -> None:
    target, draft = toy([b"a", b"b", b"c"]), toy([b"a", b"c", b"b"])
    assert pairs(target, draft) == [(0, 0), (1, 2), (2, 1)]
    drafter = ModelDrafter(draft)
    drafter.check(target)
    assert drafter.mode == "intersection"
    assert drafter.describe() == "model:acb, by the 3 of 3 ids that both vocabularies have"
    with pytest.raises(
        UsageError, match=r"draft model acb and target abc differ: id 1 is 'c' to the one and 'b' to the other"
    ):
        ModelDrafter(draft, vocabulary="same").check(target)


def test_special_tokens_are_paired_by_name() -> None:
    target = toy([b"", b"a", b"b", b""], {0: "<s>", 3: "</s>"})
    draft = toy([b"a", b"", b"b", b"", b""], {1: "<pad>", 3: "</s>", 4: "<s>"})
    assert pairs(target, draft) == [(0, 4), (1, 0), (2, 2), (3, 3)]


def test_pieces_that_come_twice_are_paired_once() -> None:
    target, draft = toy([b"a", b"b", b"b", b"x"]), toy([b"b", b"a", b"b", b"b"])
    found = pairs(target, draft)
    assert found == [(0, 1), (1, 0), (2, 2)]
    assert len({x for x, _ in found}) == len({y for _, y in found}) == len(found)


def test_little_in_common_goes_by_text() -> None:
    target = toy([bytes([97 + i]) for i in range(20)])
    draft = toy([b"a", b"b", b"AB", b"CD"])
    drafter = ModelDrafter(draft)
    drafter.check(target)
    assert drafter.mode == "text"
    assert "by text that the target's tokenizer reads" in drafter.describe()
    with pytest.raises(UsageError, match="share no id at all, from 0 on: 'Q' against 'a'"):
        ModelDrafter(toy([b"Q", b"R"]), vocabulary="intersection").check(target)
    with (
        types_unchecked(),
        pytest.raises(UsageError, match="vocabulary 'fuzzy' is unknown; use one of: auto, same, intersection, text"),
    ):
        ModelDrafter(draft, vocabulary="fuzzy")  # type: ignore[arg-type]


def test_coverage_weighs_frequent_pieces_more() -> None:
    target = toy([bytes([97 + i % 26, 97 + i // 26]) for i in range(400)])
    first = SharedVocabulary.of(target, toy([target.tokenizer.token_bytes(i) for i in range(100)]))
    last = SharedVocabulary.of(target, toy([target.tokenizer.token_bytes(i) for i in range(300, 400)]))
    assert last.coverage < 0.25 < first.coverage


SOURCES: dict[str, Callable[[], Any]] = {
    "byte level": tiny_transformers.tokenizer,
    "sentence pieces": sentence_pieces,
}


@pytest.mark.parametrize("goal", SOURCES)
@pytest.mark.parametrize("source", SOURCES)
def test_a_text_translated_as_it_grows(source: str, goal: str) -> None:
    """However the text comes and goes back, its translation spells it."""
    ours, theirs = (TransformersTokenizer(SOURCES[each](), each) for each in (source, goal))
    text = "hello the there, hello\nthe rest of it is the other he ll o " * 12 + "Grüße 世界"
    ids = ours.encode(text, add_special=False)
    translation = Translation(ours, theirs)
    for end in [*range(1, 40), len(ids) // 2, len(ids), len(ids) - 3, 60, len(ids)]:
        found = translation(ids[:end])
        known = b"".join(ours.token_bytes(int(token)) for token in ids[:end]).decode("utf-8", "ignore")
        assert theirs.decode(found).lstrip(" ") == known.lstrip(" ")
        start = theirs.encode("").tolist()
        assert found[: len(start)].tolist() == start


def test_the_translation_of_a_long_text_changes_at_its_end_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (TransformersTokenizer(make(), "tiny") for make in (tiny_transformers.tokenizer, sentence_pieces))
    ids = ours.encode("hello the rest " * 60)
    translation = Translation(ours, theirs)
    before = translation(ids[:-5])
    encoded: list[str] = []
    encode = theirs.encode

    def record(text: str, **options: Any) -> Tokens:
        encoded.append(text)
        return encode(text, **options)

    monkeypatch.setattr(theirs, "encode", record)
    after = translation(ids)
    assert max(map(len, encoded)) < 4 * TAIL
    shared = len(before) - 2 * TAIL
    assert after[:shared].tolist() == before[:shared].tolist()


def test_special_tokens_are_translated_by_name_or_left_out() -> None:
    source = Special([b"a", b"", b"b", b""], {1: "<turn>", 3: "<only here>"})

    class Goal(Special):
        def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> Tokens:
            if parse_special and text in self.names.values():
                return as_tokens([next(token for token, name in self.names.items() if name == text)])
            return super().encode(text)

    goal = Goal([b"b", b"a", b""], {2: "<turn>"})
    assert Translation(source, goal)(as_tokens([0, 1, 2, 3, 0])).tolist() == [1, 2, 0, 1]


def test_a_character_that_a_tokenizer_lacks_is_left_out() -> None:
    goal = ToyTokenizer([b"a", b"c"])
    assert Translation(ToyTokenizer([b"a", b"b", b"c"]), goal)(as_tokens([0, 1, 2, 0])).tolist() == [0, 1, 0]


def test_text_that_goes_on_gets_no_space_in_front() -> None:
    tokenizer = TransformersTokenizer(sentence_pieces(), "tiny")
    assert tokenizer.decode(encode_continued(tokenizer, "he")) == "he"
    assert tokenizer.decode(tokenizer.encode("he", add_special=False)) == " he"
    assert TransformersTokenizer(word_pieces(), "tiny").encode("").tolist() == []


def test_drafts_by_text_are_read_by_the_target_s_tokenizer() -> None:
    target = ToyModel(ToyModel.random(4).table, 4, tokenizer=ToyTokenizer([b"a", b"b", b"ab", b"c"]))
    # The draft model writes "abcabc...", a letter at a time; the target has a token for "ab".
    draft = scripted_model([0, 1, 2], 3, 3, pieces=[b"a", b"b", b"c"])
    drafter = ModelDrafter(draft, vocabulary="text")
    drafter.check(target)
    session = drafter.session()
    from tests.draft.drafter_conformance import proposal

    (found,) = session.propose([proposal([0, 1, 3], 6, sampler=Sampler())])
    # Six letters drawn, "abcabc"; the last token is dropped, for what comes next may join it.
    assert found.tokens.tolist() == [2, 3, 2]
    assert found.laws is not None
    assert [law.prob(token) for law, token in zip(found.laws, found.tokens.tolist(), strict=True)] == [1.0] * 3


@pytest.mark.parametrize("vocabulary", ["auto", "text"])
def test_greedy_text_is_the_target_s_whatever_the_other_vocabulary(vocabulary: str) -> None:
    pieces = [bytes([97 + i]) for i in range(8)]
    target = toy(pieces, seed=3)
    others = [
        toy(pieces[::-1], seed=3),
        toy([*pieces[2:], b"x", b"y"], seed=4),
        toy([b"ab", b"cd", *pieces[:5]], seed=5),
        toy([b"", *pieces], {0: "<s>"}, eos=[0]),
    ]
    greedy = Sampler(temperature=0.0)
    plain = Engine(target, "none", sampler=greedy).generate([1, 2, 3], max_tokens=40)
    for other in others:
        drafter = ModelDrafter(other, vocabulary=vocabulary)  # type: ignore[arg-type]
        out = Engine(target, drafter, sampler=greedy, num_draft_tokens=4).generate([1, 2, 3], max_tokens=40)
        assert out.tokens == plain.tokens
        assert out.drafter_error is None
        assert out.counts.num_draft_tokens > 0
