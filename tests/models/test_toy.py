from __future__ import annotations

import numpy as np
import pytest

from draftproof.errors import UsageError
from draftproof.models.base import Model
from draftproof.models.toy import ToyModel, ToyTokenizer, load_toy
from tests.models.session_conformance import SessionConformance, ask


class TestToySession(SessionConformance):
    @pytest.fixture
    def model(self) -> Model:
        return ToyModel.random(40, order=3, context_length=700)


def test_from_laws_looks_up_the_whole_text_or_its_end() -> None:
    laws = {(0,): [0.25, 0.75], (1, 0): [1.0, 0.0]}
    whole = ToyModel.from_laws(laws, [0.5, 0.5])
    np.testing.assert_allclose(whole.law([0]), [0.25, 0.75])
    np.testing.assert_allclose(whole.law([1, 0]), [1.0, 0.0])
    np.testing.assert_allclose(whole.law([1, 1, 0]), [0.5, 0.5])
    ends = ToyModel.from_laws({(0,): [0.25, 0.75]}, [0.5, 0.5], order=1)
    np.testing.assert_allclose(ends.law([1, 1, 0]), [0.25, 0.75])


def test_a_random_model_is_a_function_of_its_last_tokens() -> None:
    model = ToyModel.random(7, seed=3, order=2)
    with model.session() as session:
        rows = ask(session, [6, 1, 2], [5, 1, 2])
        np.testing.assert_array_equal(rows[0], rows[3])
        assert not np.array_equal(rows[0], rows[1])
        np.testing.assert_array_equal(rows, ask(ToyModel.random(7, seed=3, order=2).session(), [6, 1, 2], [5, 1, 2]))


def test_mix_moves_a_draft_model_away_from_its_target() -> None:
    target, near, far = (ToyModel.random(50, seed=3, mix=mix).law([4, 4]) for mix in (0.0, 0.1, 1.0))
    assert np.minimum(target, far).sum() < np.minimum(target, near).sum() < 1.0


def test_the_toy_tokenizer_takes_the_longest_piece() -> None:
    tokenizer = ToyTokenizer([b"a", b"b", b"ab", b""])
    assert tokenizer.encode("abba").tolist() == [2, 1, 0]
    assert tokenizer.decode([2, 1, 0, 3]) == "abba"
    with pytest.raises(UsageError, match="'abc'"):
        tokenizer.encode("abc")


def test_the_toy_chat_template_joins_the_contents() -> None:
    messages = [{"role": "user", "content": "ab"}, {"role": "user", "content": "c"}]
    chatty = ToyTokenizer([b"a"], chat=True)
    assert chatty.has_chat_template
    assert chatty.apply_chat_template(messages) == "abc"
    plain = ToyTokenizer([b"a"])
    assert not plain.has_chat_template
    with pytest.raises(UsageError, match="chat template"):
        plain.apply_chat_template(messages)


def test_named_toys_load() -> None:
    assert load_toy("pair").name == "toy:pair"
    with pytest.raises(UsageError, match="pair"):
        load_toy("nobody")
