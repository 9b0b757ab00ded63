"""The copy of a text that tells whether it grew."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from draftproof.draft.history import WINDOW, History
from draftproof.types import as_tokens

lists = st.lists(st.integers(0, 1), max_size=12)


@given(st.lists(lists, max_size=6))
def test_reports_the_common_prefix(texts: list[list[int]]) -> None:
    history, before = History(), list[int]()
    for text in texts:
        shared = 0
        while shared < min(len(text), len(before)) and text[shared] == before[shared]:
            shared += 1
        assert history.update(as_tokens(text)) == shared
        assert history.tokens.tolist() == text
        assert history.size == len(text)
        before = text


def test_grows_beyond_its_buffer() -> None:
    history = History()
    text = np.arange(10_000, dtype=np.int32)
    assert history.update(text[:10]) == 0
    assert history.update(text) == 10
    assert history.update(text) == 10_000
    assert np.array_equal(history.tokens, text)


def test_a_change_of_the_callers_buffer_is_noticed() -> None:
    history, text = History(), as_tokens([1, 2, 3])
    history.update(text)
    text[1] = 9
    assert history.update(text) == 1


def test_looks_back_no_further_than_the_window_while_the_text_grows() -> None:
    history = History()
    text = np.zeros(WINDOW + 10, dtype=np.int32)
    history.update(text)
    edited = np.concatenate([text, text[:5]])
    edited[20] = 1
    assert history.update(edited) == 20
    edited = np.concatenate([edited, text[:5]])
    edited[2] = 1
    assert history.update(edited) == WINDOW + 15
