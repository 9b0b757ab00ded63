"""The client of completions: what it understands, what it refuses, what it tries again, and whom it talks to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

import draftproof as dp
from draftproof.audit.endpoint.answers import nameable, parsed
from draftproof.audit.endpoint.completions import Endpoint, in_order
from draftproof.errors import EndpointError, RefusedRequestError, UsageError
from tests.audit.endpoint.completions_server import Hangup, Rude, Served, Trickle, serving

TARGET = dp.ToyModel.random(26, seed=3, order=2, spread=1.2)
GREEDY = dp.Sampler(temperature=0.0)


def served(**options: Any) -> Served:
    return Served(dp.Engine(TARGET, "none"), **options)


@contextmanager
def asked(server: Served, logprobs: int = 5, **options: Any) -> Iterator[Endpoint]:
    with closing(Endpoint(server.url, **({"timeout": 2.0, "retries": 0} | options))) as endpoint:
        endpoint.greet(logprobs)
        yield endpoint


def greeted(server: Served, **options: Any) -> int:
    with asked(server, **options) as endpoint:
        return endpoint.logprobs


@pytest.mark.parametrize("style", ["vllm", "llamacpp", "plain"])
def test_every_style_is_understood(style: str) -> None:
    with serving(served(style=style)) as server, asked(server) as endpoint:
        assert endpoint.model == "toy"
        assert endpoint.logprobs == 5
        answer = endpoint.complete([1, 2], 6, dp.Sampler(), seed=4)
        real = server.engine.generate([1, 2], max_tokens=6, seed=4, logprobs=5)
    names = [TARGET.tokenizer.token_name(token) for token in real.tokens]
    assert list(answer.keys) == (names if style == "plain" else real.tokens)
    assert answer.text == real.text
    assert answer.completion_tokens == 6
    assert answer.finish_reason == "length"
    assert real.logprobs is not None
    for emitted, each in zip(answer.tokens, real.logprobs, strict=True):
        assert emitted.logprob == pytest.approx(each.logprob)
        assert emitted.top is not None
        assert sorted(emitted.top.values()) == pytest.approx(sorted(value for _, value in each.top))


def test_a_token_beyond_the_list_is_no_part_of_it() -> None:
    choice = {
        "text": "c",
        "logprobs": {"tokens": ["c"], "token_logprobs": [-4.0], "top_logprobs": [{"a": -0.5, "b": -1.5, "c": -4.0}]},
    }
    assert parsed({"choices": [choice]}, 2).tokens[0].top == {"a": -0.5, "b": -1.5}


@pytest.mark.parametrize(
    "found", [{}, {"choices": []}, {"choices": [3]}, {"choices": [{"text": None}]}, {"choices": {"text": "a"}}]
)
def test_what_is_no_completion_is_named(found: dict[str, Any]) -> None:
    with pytest.raises(EndpointError, match="without a completion"):
        parsed(found, 2)


@pytest.mark.parametrize(
    "odd",
    [
        None,
        {"content": 3},
        {"content": [None, {"id": "x"}]},
        {"tokens": ["a"], "token_logprobs": None, "top_logprobs": [None]},
        {"tokens": ["a"], "token_logprobs": ["low"], "top_logprobs": [{"a": "low"}]},
        {"tokens": ["a"], "token_logprobs": [float("nan")], "top_logprobs": []},
    ],
)
def test_odd_logprobs_are_none(odd: Any) -> None:
    answer = parsed({"choices": [{"text": "a", "logprobs": odd}], "usage": 7, "timings": []}, 2)
    assert all(each.logprob is None and each.top is None for each in answer.tokens)
    assert answer.completion_tokens is None


def test_ids_written_as_tokens_are_ids() -> None:
    logprobs = {
        "tokens": ["token_id:7"],
        "token_logprobs": [-1.0],
        "top_logprobs": [{"token_id:7": -1.0, "token_id:x": -2.0}],
    }
    answer = parsed({"choices": [{"text": "h", "logprobs": logprobs}]}, 2)
    assert answer.ids == (7,)
    assert answer.tokens[0].top == {7: -1.0, "token_id:x": -2.0}


def tops(listed: Any, count: int) -> dict[int | str, float] | None:
    """Returns what is understood of the list of one token."""
    logprobs = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [listed]}
    return parsed({"choices": [{"text": "a", "logprobs": logprobs}]}, count).tokens[0].top


def test_texts_that_do_not_tell_a_token_keep_their_place_in_the_list_and_match_nothing() -> None:
    found = tops({"a": -1.0, "\ufffd": -1.5, "": -2.0, "b": -3.0}, 3)
    assert found is not None
    assert sorted(found.values()) == [-2.0, -1.5, -1.0]
    assert [key for key in found if nameable(key)] == ["a"]


def test_a_text_that_two_tokens_have_tells_neither() -> None:
    content = {"token": "a", "logprob": -1.0, "top_logprobs": [{"token": "a", "logprob": value} for value in (-1, -2)]}
    top = parsed({"choices": [{"text": "a", "logprobs": {"content": [content]}}]}, 2).tokens[0].top
    assert top is not None
    assert not any(map(nameable, top))
    # Where JSON has made one entry of two, the list is short.
    assert tops({"a": -1.0, "b": -2.0}, 3) is None


@pytest.mark.parametrize("odd", [-9999.0, -1e308, float("-inf"), None, True, "low", 10**400, float("nan")])
def test_what_is_no_logprob_is_left_out(odd: Any) -> None:
    assert tops({"a": -0.5, "b": -1.0, "c": odd, "d": -3.0}, 4) in (None, {"a": -0.5, "b": -1.0, "d": -3.0})


@pytest.mark.parametrize("odd", [1e308, 0.5])
def test_a_list_with_a_logprob_above_0_is_none(odd: float) -> None:
    assert tops({"a": odd, "b": -1.0}, 2) is None


def test_half_a_surrogate_and_huge_ids_do_no_harm() -> None:
    found = {"choices": [{"text": "a\ud800", "token_ids": [2**40], "logprobs": {"tokens": ["token_id:" + "9" * 5000]}}]}
    answer = parsed(found, 2)
    assert answer.text.encode()
    assert answer.ids is None


def test_a_host_that_no_name_can_have() -> None:
    with (
        closing(Endpoint(f"http://{'a' * 70}/v1", retries=0)) as endpoint,
        pytest.raises((UsageError, EndpointError), match=r"no host|cannot be reached"),
    ):
        endpoint.greet(5)


def test_a_deep_answer_is_no_answer() -> None:
    with serving(served(behave=answers(Rude(200, b"[" * 200_000)))) as server, pytest.raises(UsageError, match="JSON"):
        greeted(server)


def test_an_answer_that_cannot_be_unpacked() -> None:
    rude = Rude(200, b"no gzip", {"Content-Encoding": "gzip"})
    with serving(served(behave=answers(rude))) as server, pytest.raises(EndpointError, match="broke"):
        greeted(server)


def test_a_key_is_stripped_and_never_told() -> None:
    def echo(_: dict[str, Any]) -> dict[str, Any]:
        raise Rude(500, {"error": "you sent sk-SECRET"})

    with (
        serving(served(key="sk-SECRET", spoil=echo)) as server,
        pytest.raises(EndpointError, match="the key") as caught,
    ):
        greeted(server, api_key=" sk-SECRET ")
    assert "SECRET" not in str(caught.value)


def test_fewer_logprobs_are_asked_for_where_many_are_refused() -> None:
    with serving(served(most_logprobs=5)) as server:
        assert greeted(server, logprobs=20) == 5


def strict(body: dict[str, Any]) -> dict[str, Any]:
    known = {"model", "prompt", "max_tokens", "temperature", "top_p", "stream", "seed", "logprobs"}
    if set(body) - known:
        raise Rude(400, {"error": {"message": f"unknown: {sorted(set(body) - known)}"}})
    return body


def test_a_server_that_knows_the_plain_fields_only_is_asked_for_no_others() -> None:
    with serving(served(style="plain", spoil=strict)) as server, asked(server) as endpoint:
        assert endpoint.complete([1], 3, dp.Sampler(), 1).completion_tokens == 3
        # What the law needs is asked for all the same, and refused out loud.
        with pytest.raises(RefusedRequestError, match="top_k"):
            endpoint.complete([1], 3, dp.Sampler(top_k=4), 1)


def test_a_server_without_logprobs() -> None:
    def without(body: dict[str, Any]) -> dict[str, Any]:
        if "logprobs" in body:
            raise Rude(400, {"error": {"message": "logprobs are not supported"}})
        return body

    with serving(served(spoil=without)) as server:
        assert greeted(server) == 0


def refuse_all(_: dict[str, Any]) -> dict[str, Any]:
    raise Rude(422, {"detail": [{"msg": "no"}]})


@pytest.mark.parametrize(
    ("options", "url", "message"),
    [
        ({"key": "right"}, {}, "refuses to answer without a key.*invalid api key"),
        ({"key": "right"}, {"api_key": "wrong"}, "refuses the key: invalid api key"),
        ({}, {"model": "other"}, "'other' is not served .* it has: toy"),
        ({"spoil": refuse_all}, {}, "refuses the plainest completion.*no"),
    ],
)
def test_a_wrong_use_is_named(options: dict[str, Any], url: dict[str, Any], message: str) -> None:
    with serving(served(**options)) as server, pytest.raises(UsageError, match=message):
        greeted(server, **url)


def answers(rude: Exception) -> Callable[[int], None]:
    def behave(_: int) -> None:
        raise rude

    return behave


@pytest.mark.parametrize(
    ("rude", "kind", "message"),
    [
        (Rude(200, b"<html>hello</html>"), UsageError, "text/html instead of a JSON object .*usually ends in /v1"),
        (Rude(200, [1, 2]), UsageError, "instead of a JSON object"),
        (Rude(200, b""), UsageError, "instead of a JSON object"),
        (Rude(302, b"", {"Location": "http://elsewhere.invalid/"}), UsageError, "redirects to http://elsewhere.inv"),
        (Rude(404, b"not here"), UsageError, "404 to /v1/completions: not here"),
        (Rude(500, {"error": "out of memory"}), EndpointError, "answers 500: out of memory"),
        (Rude(503, b"busy"), EndpointError, "answers 503: busy"),
        (Hangup(), EndpointError, "broke the connection off"),
    ],
)
def test_what_is_no_answer_is_named(rude: Exception, kind: type[Exception], message: str) -> None:
    with serving(served(behave=answers(rude))) as server, pytest.raises(kind, match=message):
        greeted(server)


@pytest.mark.parametrize("rude", [Trickle(), None])
def test_a_hanging_request_ends_in_time(rude: Exception | None) -> None:
    def behave(_: int) -> None:
        if rude is not None:
            raise rude
        time.sleep(1.0)

    start = time.monotonic()
    with serving(served(behave=behave)) as server, pytest.raises(EndpointError, match=r"within 0\.2 s"):
        greeted(server, timeout=0.2)
    assert time.monotonic() - start < 20.0


def test_a_server_that_recovers_is_asked_again() -> None:
    def behave(number: int) -> None:
        if number in (1, 2):
            raise Rude(503, b"loading")

    with serving(served(behave=behave)) as server, asked(server, retries=2) as endpoint:
        assert endpoint.complete([1], 3, GREEDY).completion_tokens == 3


def test_retries_are_bounded() -> None:
    with serving(served(behave=answers(Rude(500, b"no")))) as server:
        with pytest.raises(EndpointError, match="tried 3 times"):
            greeted(server, retries=2)
        assert sum(path == "/v1/completions" for path, _ in server.seen) == 3


def test_an_address_where_nobody_listens() -> None:
    with serving(served()) as server:
        url = server.url
    with closing(Endpoint(url, retries=0)) as endpoint, pytest.raises(EndpointError, match="cannot be reached"):
        endpoint.greet(5)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:8000", "no address of a server"),
        ("", "no address"),
        ("ftp://127.0.0.1/v1", "no address"),
        ("http://", "no address|no URL"),
        ("http://[::1/v1", "is no URL"),
        ("http://127.0.0.1/v1?key=secret", "holds more than an address"),
        ("http://me:secret@127.0.0.1/v1", "holds more than an address"),
    ],
)
def test_a_wrong_address_is_refused_before_anything_is_sent(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Endpoint(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("key", ["a\nb", "clé"])
def test_a_key_that_no_header_carries(key: str) -> None:
    with pytest.raises(UsageError, match="no header") as caught:
        Endpoint("http://127.0.0.1/v1", api_key=key)
    assert key not in str(caught.value)


def test_nothing_is_sent_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(served()) as other, serving(served()) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, other.url)
        with asked(server) as endpoint:
            endpoint.complete([1], 3, GREEDY)
        server.behave = answers(Rude(307, b"", {"Location": f"{other.url}/completions"}))
        with pytest.raises(UsageError, match="redirects"):
            greeted(server)
        assert other.seen == []


def test_the_key_is_not_shown() -> None:
    with closing(Endpoint("http://127.0.0.1/v1", api_key="hidden")) as endpoint:
        assert "hidden" not in repr(endpoint)


def test_answers_come_in_the_order_of_asking() -> None:
    def ask(i: int) -> int:
        time.sleep(0.02 if i % 3 == 0 else 0.0)
        return i

    found = in_order(ask, 4)
    assert [next(found) for _ in range(9)] == list(range(9))
    found.close()


def test_an_error_comes_in_its_turn() -> None:
    def ask(i: int) -> int:
        if i == 2:
            raise EndpointError("gone")
        return i

    def until() -> Iterator[int]:
        yield from in_order(ask, 4)

    found = until()
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(EndpointError, match="gone"):
        next(found)
