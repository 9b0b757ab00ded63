"""Text from tokens: half characters, invalid bytes, stop strings over any cut, nothing lost at the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.text import TextStream


def stream(pieces: list[bytes], stop: tuple[str, ...] = (), include_stop: bool = False) -> tuple[str, list[str], int]:
    """Feeds the pieces; returns the text, the deltas and how many pieces were taken."""
    text = TextStream(stop, include_stop)
    deltas = []
    taken = 0
    for piece in pieces:
        taken += 1
        stopped = text.add(piece)
        deltas.append(text.take())
        if stopped:
            break
    text.finish()
    deltas.append(text.take())
    assert text.text == "".join(deltas)
    return text.text, deltas, taken


def cuts(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def test_a_character_split_between_tokens_arrives_whole() -> None:
    text, deltas, _ = stream(cuts("a😀b".encode(), 1))
    assert text == "a😀b"
    assert "�" not in "".join(deltas)
    assert deltas[1:4] == ["", "", ""]


def test_a_lone_invalid_byte_gives_one_replacement_at_once() -> None:
    text, deltas, _ = stream([b"\xff", b"ok"])
    assert text == "�ok"
    assert deltas[:2] == ["�", "ok"]


def test_many_invalid_bytes_keep_flowing() -> None:
    text, deltas, _ = stream([b"\xff"] * 500)
    assert text == "�" * 500
    assert all(delta == "�" for delta in deltas[:500])


def test_half_a_character_at_the_end_becomes_one_replacement() -> None:
    text, deltas, _ = stream([b"ab", "é".encode()[:1]])
    assert text == "ab�"
    assert deltas == ["ab", "", "�"]


def test_a_true_replacement_character_is_text_like_any_other() -> None:
    assert stream(["x�".encode(), b"y"])[0] == "x�y"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16])
def test_a_stop_string_is_found_whatever_the_cut(size: int) -> None:
    text, deltas, _ = stream(cuts(b"one two STOP three", size), ("STOP",))
    assert text == "one two "
    assert "S" not in "".join(deltas)


def test_a_stop_that_ends_inside_a_token_counts_that_token() -> None:
    text, _, taken = stream([b"a", b"b", b"cSTOPd", b"e"], ("STOP",))
    assert (text, taken) == ("abc", 3)


def test_the_stop_may_be_kept() -> None:
    assert stream([b"a", b"STOPx"], ("STOP",), include_stop=True)[0] == "aSTOP"


def test_a_false_start_of_a_stop_is_released() -> None:
    text, deltas, _ = stream([b"ST", b"ST", b"OX"], ("STOP",))
    assert text == "STSTOX"
    assert deltas == ["", "ST", "STOX", ""]


def test_a_held_back_start_is_released_at_the_end() -> None:
    assert stream([b"a ST"], ("STOP",))[0] == "a ST"


def test_the_earliest_of_several_stops_wins() -> None:
    assert stream([b"abcdef"], ("ef", "cd"))[0] == "ab"


@given(st.lists(st.binary(max_size=4), max_size=30))
def test_text_is_the_decoding_of_all_bytes(pieces: list[bytes]) -> None:
    assert stream(pieces)[0] == b"".join(pieces).decode("utf-8", "replace")


@given(st.text(alphabet="ab", max_size=40), st.text(alphabet="ab", min_size=1, max_size=4), st.integers(1, 7))
def test_the_cut_never_matters(data: str, stop: str, size: int) -> None:
    text, deltas, taken = stream(cuts(data.encode(), size), (stop,))
    if stop in data:
        assert text == data[: data.index(stop)]
        assert taken == -(-(data.index(stop) + len(stop)) // size)
    else:
        assert text == data
    shown = ""
    for delta in deltas:
        shown += delta
        assert data.startswith(shown)
