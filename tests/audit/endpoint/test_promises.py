"""Each promise is found kept by a real server, and broken when an answer breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import draftproof as dp
from draftproof.audit.endpoint.completions import Endpoint
from draftproof.audit.endpoint.promises import Check, Outcome, check_promises
from tests.audit.endpoint.completions_server import Json, Rude, Served, serving

TARGET = dp.ToyModel.random(26, seed=3, order=2, spread=2.0)
ENGINE = dp.Engine(TARGET, dp.ModelDrafter(TARGET), num_draft_tokens=4)

pytestmark = pytest.mark.usefixtures("unchecked")


def looked(server: Served, only: list[str] | None = None, logprobs: int = 20) -> dict[str, Check]:
    endpoint = Endpoint(server.url)
    endpoint.greet(logprobs)
    try:
        return {check.promise: check for check in check_promises(endpoint, [1, 2, 3], only=only)}
    finally:
        endpoint.close()


@pytest.mark.parametrize("style", ["vllm", "llamacpp", "plain"])
def test_a_faithful_server_keeps_them_all(style: str) -> None:
    with serving(Served(ENGINE, style)) as server:
        checks = looked(server)
    assert len(checks) == 12
    outcomes = {name: check.outcome for name, check in checks.items()}
    if style == "plain":
        assert outcomes.pop("logit_bias") is Outcome.UNKNOWN
    assert set(outcomes.values()) == {Outcome.KEPT}, checks


def choice(answer: Json) -> Json:
    found: Json = answer["choices"][0]
    return found


def counts_the_whole_block(body: Json, answer: Json) -> Json:
    answer["usage"]["completion_tokens"] += 2
    return answer


def delivers_one_more(body: Json, answer: Json) -> Json:
    choice(answer)["token_ids"] = [*choice(answer)["token_ids"], 1]
    return answer


def depends_on_the_limit(body: Json, answer: Json) -> Json:
    if body["max_tokens"] == 5:
        choice(answer)["text"] = "z" + choice(answer)["text"]
    return answer


def goes_on_after_the_stop(body: Json, answer: Json) -> Json:
    if body.get("stop"):
        choice(answer)["text"] += "xyzzy"
    return answer


def leaks_tokens_after_the_stop(body: Json, answer: Json) -> Json:
    if body.get("stop"):
        choice(answer)["token_ids"] = [*choice(answer)["token_ids"], 1, 2, 3]
    return answer


def calls_a_stop_length(body: Json, answer: Json) -> Json:
    if body.get("stop"):
        choice(answer)["finish_reason"] = "length"
    return answer


def certain(body: Json, answer: Json) -> Json:
    told = choice(answer)["logprobs"]
    if told:
        told["token_logprobs"] = [0.0 for _ in told["tokens"]]
    return answer


def unlisted(body: Json, answer: Json) -> Json:
    """As a server whose passes of several rows report nothing."""
    told = choice(answer)["logprobs"]
    if told and body["max_tokens"] == 64:
        told["top_logprobs"][2:] = [{} for _ in told["tokens"][2:]]
        told["token_logprobs"][2:] = [0.0 for _ in told["tokens"][2:]]
    return answer


def one_missing(body: Json, answer: Json) -> Json:
    told = choice(answer)["logprobs"]
    if told and len(told["tokens"]) > 3:
        told["token_logprobs"][2] = None
    return answer


def of_the_row_before(body: Json, answer: Json) -> Json:
    told = choice(answer)["logprobs"]
    if told and len(told["tokens"]) > 3:
        told["token_logprobs"] = [-9.0, *told["token_logprobs"][:-1]]
    return answer


@pytest.mark.parametrize(
    ("twist", "promise", "told"),
    [
        (counts_the_whole_block, "max_tokens and usage", "counts 3 tokens where at most 1"),
        (delivers_one_more, "max_tokens and usage", "delivers 2 tokens where at most 1"),
        (depends_on_the_limit, "shorter greedy texts", "of 5 tokens is not the beginning"),
        (goes_on_after_the_stop, "stop strings", "does not end at the stop string"),
        (leaks_tokens_after_the_stop, "stop strings", "complete the stop string"),
        (calls_a_stop_length, "stop strings", "finish_reason is 'length'"),
        (certain, "logprobs", "but -"),
        (unlisted, "logprobs", "of 64 tokens have no list of the likeliest"),
        (one_missing, "logprobs", "1 of 32 tokens have no logprob"),
        (of_the_row_before, "logprobs", "in the list of the likeliest"),
    ],
)
def test_a_broken_answer_is_found(twist: Callable[[Json, Json], Json], promise: str, told: str) -> None:
    with serving(Served(ENGINE, twist=twist)) as server:
        check = looked(server, [promise])[promise]
    assert check.outcome is Outcome.BROKEN
    assert told in check.told
    assert check.witness
    assert check.by_speculation


def ignoring(*names: str) -> Callable[[Json], Json]:
    return lambda body: {name: value for name, value in body.items() if name not in names}


@pytest.mark.parametrize(
    "name", ["logit_bias", "top_k", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"]
)
def test_a_parameter_that_is_ignored_is_found(name: str) -> None:
    with serving(Served(ENGINE, spoil=ignoring(name))) as server:
        check = looked(server, [name])[name]
    assert check.outcome is Outcome.BROKEN, check


def test_a_bias_that_is_applied_to_some_tokens_only_is_found() -> None:
    def twist(body: Json, answer: Json) -> Json:
        if "logit_bias" in body:
            choice(answer)["token_ids"][3] = 7
        return answer

    with serving(Served(ENGINE, twist=twist)) as server:
        check = looked(server, ["logit_bias"])["logit_bias"]
    assert check.told == "a bias of 100 is not applied at 1 of 16 tokens"


def test_a_penalty_that_is_too_weak_is_found() -> None:
    def spoil(body: Json) -> Json:
        return body | {"frequency_penalty": 0.2 * body.get("frequency_penalty", 0.0)}

    with serving(Served(ENGINE, spoil=spoil)) as server:
        check = looked(server, ["frequency_penalty"])["frequency_penalty"]
    assert check.outcome is Outcome.BROKEN
    assert "is not the likeliest" in check.told


def test_seeds_that_do_nothing_are_found() -> None:
    with serving(Served(ENGINE, spoil=lambda body: body | {"seed": 3})) as server:
        assert looked(server, ["seeds"])["seeds"].told == "three seeds give one text"


def test_seeds_that_do_not_settle_the_text_are_found() -> None:
    with serving(Served(ENGINE, spoil=ignoring("seed"))) as server:
        assert looked(server, ["seeds"])["seeds"].told == "one seed gives two texts"


def test_a_refusal_is_honest() -> None:
    def spoil(body: Json) -> Json:
        if body.get("min_p", 0.0) > 0.0:
            raise Rude(400, {"error": {"message": "min_p is not supported with speculation"}})
        return body

    with serving(Served(ENGINE, spoil=spoil)) as server:
        check = looked(server, ["min_p"])["min_p"]
    assert check.outcome is Outcome.REFUSED
    assert check.told == "min_p is not supported with speculation"
    assert not check.by_speculation


def test_without_logprobs_a_narrow_parameter_shows_by_texts_that_differ() -> None:
    def spoil(body: Json) -> Json:
        if "logprobs" in body:
            raise Rude(400, {"error": {"message": "no logprobs"}})
        return ignoring("top_k")(body)

    with serving(Served(ENGINE, spoil=spoil)) as server:
        checks: dict[str, Any] = looked(server, ["top_k", "top_p", "logprobs"])
    assert checks["top_k"].outcome is Outcome.BROKEN
    assert checks["top_p"].outcome is Outcome.KEPT
    assert checks["logprobs"].outcome is Outcome.REFUSED
