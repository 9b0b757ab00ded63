"""Audits of servers: exact ones pass however their laws are told, faulty ones are found, failures keep the evidence."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

import draftproof as dp
from draftproof.audit import Report, Verdict, check_endpoint
from draftproof.audit.faulty import FaultyRule
from draftproof.audit.zoo import BUGS
from draftproof.errors import UsageError
from tests.audit.endpoint.completions_server import Hangup, Json, Rude, Served, serving

# Thousands of tokens a test: the run-time checks would take most of the time.
pytestmark = pytest.mark.usefixtures("unchecked")

VOCAB = 26
TARGET = dp.ToyModel.random(VOCAB, seed=7, order=2, spread=1.2)
DRAFT = dp.ToyModel.random(VOCAB, seed=7, order=2, spread=1.2, mix=0.4)
PROMPTS = ["abc", "hello", "zxy"]
RULES = {bug.name: bug for bug in BUGS}
UNCHECKED = "the first draft token is not checked"


def engine(rule: dp.Rule | str = "token", drafter: dp.Drafter | str | None = None) -> dp.Engine:
    return dp.Engine(TARGET, drafter or dp.ModelDrafter(DRAFT), rule, num_draft_tokens=4)


def faulty(name: str) -> dp.Engine:
    return engine(FaultyRule(RULES[name], VOCAB))


def audited(
    served: dp.Engine, way: str, tokens: int = 600, style: str = "vllm", server: Json | None = None, **options: Any
) -> Report:
    """Returns the report on a server whose laws are told in one of four ways."""
    with ExitStack() as stack:
        suspect = stack.enter_context(serving(Served(served, style, **(server or {}))))
        how: dict[str, Any] = {"prompts": PROMPTS, "promises": False, "drafter": DRAFT, "timeout": 20.0}
        if way == "target":
            how |= {"target": TARGET, "noise": 0.0}
        elif way in ("baseline", "texts"):
            refused: Json = {"spoil": no_logprobs} if way == "texts" else {}
            how["baseline_url"] = stack.enter_context(serving(Served(engine(drafter="none"), style, **refused))).url
            if way == "texts":
                suspect.spoil = no_logprobs
        return check_endpoint(suspect.url, tokens=tokens, **(how | options))


def no_logprobs(body: Json) -> Json:
    if "logprobs" in body:
        raise Rude(400, {"error": {"message": "no logprobs"}})
    return body


LAWS = {
    "T=1": dp.Sampler(),
    "T=0.7": dp.Sampler(temperature=0.7),
    "T=1.3": dp.Sampler(temperature=1.3),
    "top-k": dp.Sampler(top_k=5),
    "top-p": dp.Sampler(top_p=0.8),
}


@pytest.mark.parametrize("way", ["own", "target", "baseline", "texts"])
@pytest.mark.parametrize("law", LAWS)
def test_an_exact_server_passes(way: str, law: str) -> None:
    tokens = 80 if way == "baseline" else 300
    report = audited(engine(), way, tokens, sampler=LAWS[law], logprobs=10, max_tokens=32)
    assert report.verdict is not Verdict.NOT_EXACT, report
    assert report.level == "endpoint"
    assert tokens <= report.numbers["tokens"] < tokens + 64
    assert report.numbers["e_value"] < 1000


@pytest.mark.parametrize("style", ["llamacpp", "plain"])
@pytest.mark.parametrize("drafter", ["ngram", "suffix", None])
def test_other_styles_and_drafters_pass(style: str, drafter: str | None) -> None:
    report = audited(engine(), "own", 400, style, drafter=drafter)
    assert report.verdict is not Verdict.NOT_EXACT, report


@pytest.mark.parametrize(
    ("way", "bug"),
    [
        ("own", "accepts if u < p"),
        ("own", "the residual is p itself"),
        ("own", UNCHECKED),
        ("target", "the residual is p itself"),
        ("baseline", "accepts if u < p"),
    ],
)
def test_a_faulty_server_is_found(way: str, bug: str) -> None:
    report = audited(faulty(bug), way, tokens=6000, logprobs=12)
    assert report.verdict is Verdict.NOT_EXACT, report
    finding = report.findings[0]
    assert finding.e_value is not None
    assert finding.e_value >= 1000
    assert finding.witness["telling places"]


def processed(body: Json, answer: Json) -> Json:
    """Reports logprobs after temperature and top-k, as some servers do."""
    for told in answer["choices"][0]["logprobs"]["top_logprobs"]:
        kept = sorted(told, key=lambda key: -told[key])[: body.get("top_k") or None]
        weights = {key: math.exp(told[key] / body["temperature"]) for key in kept}
        for key in list(told):
            told[key] = math.log(weights[key] / sum(weights.values())) if key in weights else -9999.0
    return answer


@pytest.mark.parametrize("law", ["T=0.7", "T=1.3", "top-k"])
def test_logprobs_reported_after_temperature_and_truncation(law: str) -> None:
    how: Json = {"sampler": LAWS[law], "logprobs": VOCAB, "server": {"twist": processed, "most_logprobs": VOCAB}}
    assert audited(engine(), "own", 600, **how).verdict is not Verdict.NOT_EXACT
    how["server"]["spoil"] = lambda body: body | {"temperature": 1.0, "top_k": 0}
    how["server"]["twist"] = lambda body, answer: answer
    assert audited(engine(), "own", 6000, **how).verdict is Verdict.NOT_EXACT


ENDING = dp.ToyModel(TARGET.table, VOCAB, eos_ids=[16], name="ending")


@pytest.mark.parametrize("counted", [True, False])
def test_an_end_of_text_that_is_not_told_costs_evidence(counted: bool) -> None:
    def silent(_: Json, answer: Json) -> Json:
        choice = answer["choices"][0]
        if choice["finish_reason"] == "stop" and choice["logprobs"]:
            choice["logprobs"]["content"].pop()
            answer["usage"]["completion_tokens"] -= not counted
        return answer

    served = dp.Engine(ENDING, dp.ModelDrafter(DRAFT), "token", num_draft_tokens=4)
    told = audited(served, "own", 1000, "llamacpp")
    untold = audited(served, "own", 1000, "llamacpp", server={"twist": silent})
    assert told.verdict is Verdict.NO_EVIDENCE
    assert untold.verdict is Verdict.INCONCLUSIVE
    assert untold.numbers["tokens_without_a_law"] > 20
    assert untold.numbers["largest_e_value"] < 10.0


def test_too_few_texts_say_nothing() -> None:
    report = audited(engine(), "texts", 64)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "too few" in report.summary


def test_a_baseline_of_another_name_is_refused() -> None:
    with serving(Served(engine())) as server, serving(Served(engine(), name="other")) as other:
        how: Json = {"prompts": PROMPTS, "tokens": 40, "promises": False}
        with pytest.raises(UsageError, match=r"serves toy.*serves other; give baseline_model"):
            check_endpoint(server.url, baseline_url=other.url, **how)
        report = check_endpoint(server.url, baseline_url=other.url, baseline_model="other", **how)
        assert report.numbers["tokens"] == 40


def test_promises_seen_before_a_failure_are_told() -> None:
    report = audited(
        engine(), "own", 200, promises=True, server={"behave": from_the(30, Rude(500, b"died"))}, retries=0
    )
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.numbers["checks"][0]["outcome"] == "kept"


def test_a_drafter_that_cannot_follow_is_left_out() -> None:
    small = dp.ToyModel.random(4, seed=1, order=1)
    report = audited(engine(), "own", 300, drafter=dp.ModelDrafter(small))
    assert report.numbers["tokens"] == 300
    assert report.numbers["drafter_failed"]


def test_a_temperature_that_is_off_is_found() -> None:
    report = audited(engine(), "own", 6000, server={"spoil": lambda body: body | {"temperature": 0.8}})
    assert report.verdict is Verdict.NOT_EXACT
    assert report.family == "temperature"


def test_a_nucleus_that_is_not_applied_is_found_at_once() -> None:
    report = audited(
        engine(), "own", 2000, sampler=dp.Sampler(top_p=0.5), server={"spoil": lambda body: body | {"top_p": 1.0}}
    )
    assert report.verdict is Verdict.NOT_EXACT
    assert "probability 0" in report.summary
    assert report.findings[0].p_value == 0.0


def test_texts_alone_tell_of_a_draft_that_is_not_checked() -> None:
    report = audited(faulty(UNCHECKED), "texts", tokens=4000, max_tokens=12)
    assert report.verdict is Verdict.NOT_EXACT, report
    assert report.findings[0].p_value is not None
    assert report.findings[0].p_value < report.alpha
    assert "texts" in report.layer


GREEDY = dp.Sampler(temperature=0.0)


@pytest.mark.parametrize("way", ["own", "target", "baseline", "texts"])
def test_greedy_servers(way: str) -> None:
    assert audited(engine(), way, 90, sampler=GREEDY).verdict is Verdict.NO_EVIDENCE
    wrong = audited(faulty(UNCHECKED), way, 90, sampler=GREEDY)
    if way == "texts":
        # What is a near tie and what an error, texts alone do not tell.
        assert wrong.verdict is Verdict.INCONCLUSIVE
        assert wrong.findings[0].witness["text"] != wrong.findings[0].witness["baseline"]
    else:
        assert wrong.verdict is Verdict.NOT_EXACT
        assert "departs from the target's choice" in wrong.summary


def misreport(body: Json, answer: Json) -> Json:
    told = answer["choices"][0]["logprobs"]
    if told:
        told["token_logprobs"] = [value - 1.0 for value in told["token_logprobs"]]
    return answer


def test_logprobs_that_are_not_the_baselines_are_found() -> None:
    report = audited(engine(), "baseline", 100, server={"twist": misreport})
    assert report.verdict is Verdict.NOT_EXACT
    assert "the logprobs of" in report.summary
    assert report.numbers["largest_difference_of_logprobs"] == pytest.approx(1.0)


@pytest.mark.parametrize("way", ["own", "target", "baseline"])
def test_the_order_of_arrival_does_not_matter(way: str) -> None:
    def slow(number: int) -> None:
        time.sleep(0.02 if number % 3 == 0 else 0.0)

    one = audited(engine(), way, 60, concurrency=1, max_tokens=12)
    many = audited(engine(), way, 60, concurrency=5, max_tokens=12, server={"behave": slow})
    keys = ("tokens", "texts", "e_value", "largest_e_value")
    assert [one.numbers[key] for key in keys] == [many.numbers[key] for key in keys]


# Promises, with and without a baseline


def ignoring_min_p(body: Json) -> Json:
    return body | {"min_p": 0.0}


def test_a_broken_promise_is_a_finding() -> None:
    report = audited(engine(), "own", 200, promises=True, server={"spoil": ignoring_min_p})
    assert report.verdict is Verdict.NOT_EXACT
    assert "of 12 promises 1 broken (min_p); whether speculation is why, baseline_url would tell" in report.summary
    assert "Tokens: nothing found in 200 tokens" in report.summary
    assert report.findings[-1].what.startswith("min_p: token ")
    outcomes = {each["promise"]: each["outcome"] for each in report.numbers["checks"]}
    assert outcomes["min_p"] == "broken"
    assert outcomes["top_k"] == "kept"


@pytest.mark.parametrize("both", [True, False])
def test_what_is_broken_without_speculation_too_is_not_speculations_doing(both: bool) -> None:
    with ExitStack() as stack:
        suspect = stack.enter_context(serving(Served(engine(), spoil=ignoring_min_p)))
        without = Served(engine(drafter="none"))
        if both:
            without.spoil = ignoring_min_p
        plain = stack.enter_context(serving(without))
        report = check_endpoint(suspect.url, baseline_url=plain.url, prompts=PROMPTS, tokens=100, drafter=DRAFT)
    assert (report.verdict is Verdict.NOT_EXACT) is not both
    check = next(each for each in report.numbers["checks"] if each["promise"] == "min_p")
    assert check["outcome"] == "broken"
    assert check["baseline"] == ("broken" if both else "kept")


# Failures


def from_the(number: int, rude: Exception) -> Callable[[int], None]:
    def behave(asked: int) -> None:
        if asked >= number:
            raise rude

    return behave


FAILURES: Sequence[tuple[Exception, str]] = [
    (Hangup(), "broke the connection off"),
    (Rude(500, b"out of memory"), "answers 500: out of memory"),
    (Rude(401, {"error": "expired"}), "refuses to answer without a key: expired"),
    (Rude(200, b"<html>"), "instead of a JSON object"),
    (Rude(400, {"error": "no more"}), "refuses a request .*no more"),
]


@pytest.mark.parametrize(
    ("way", "rude", "message"),
    [("own", *each) for each in FAILURES] + [("target", *FAILURES[0]), ("baseline", *FAILURES[1])],
)
def test_a_server_that_fails_midway_keeps_the_evidence(way: str, rude: Exception, message: str) -> None:
    failing: Json = {"behave": from_the(5, rude)}
    report = audited(engine(), way, 5000, server=failing, retries=0, concurrency=2, max_tokens=16)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.numbers["tokens"] >= 16
    assert report.numbers["e_value"] > 0.0
    assert re.search(message, report.summary), report.summary


def test_a_server_that_is_not_there_leaves_nothing_known() -> None:
    with serving(Served(engine())) as server:
        url = server.url
    report = check_endpoint(url, prompts=PROMPTS, retries=0)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "cannot be reached" in report.summary


def test_a_server_that_writes_nothing() -> None:
    def nothing(_: Json, answer: Json) -> Json:
        if len(answer["choices"][0]["token_ids"]) > 1:
            answer["choices"][0] |= {"token_ids": [], "text": "", "logprobs": None}
        return answer

    report = audited(engine(), "own", 500, server={"twist": nothing})
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "generates nothing" in report.summary


@pytest.mark.parametrize("kept", [2, 4])
def test_a_server_that_tells_the_law_of_a_few_tokens_only(kept: int) -> None:
    def twist(_: Json, answer: Json) -> Json:
        told = answer["choices"][0]["logprobs"]
        if told and len(told["tokens"]) > 1:
            told["top_logprobs"][kept:] = [{} for _ in told["tokens"][kept:]]
        return answer

    report = audited(engine(), "own", 300, server={"twist": twist})
    assert report.verdict is Verdict.INCONCLUSIVE
    assert re.search("no law is told of .* give baseline_url or target", report.summary)
    assert report.numbers["tokens_without_a_law"] >= 280


def test_a_server_whose_seeds_do_nothing() -> None:
    report = audited(engine(), "own", 5000, server={"spoil": lambda body: body | {"seed": 1}})
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "the same text for another seed" in report.summary


def test_more_tokens_than_were_asked_for() -> None:
    report = audited(engine(), "own", 500, server={"spoil": lambda body: body | {"max_tokens": 70}})
    assert report.verdict is Verdict.NOT_EXACT
    assert "returns 70 tokens where at most 64" in report.summary


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 2.0}, "alpha"),
        ({"tokens": 0}, "tokens"),
        ({"concurrency": 0}, "concurrency"),
        ({"retries": -1}, "retries"),
        ({"timeout": 0.0}, "timeout"),
        ({"noise": -1.0}, "noise"),
        ({"prompts": []}, "prompts"),
        ({"prompts": "abc"}, "prompts"),
        ({"prompts": [[{"role": "user", "content": "hi"}]]}, "messages need target"),
        ({"sampler": dp.Sampler(repetition_penalty=1.2)}, "need target"),
        ({"sampler": dp.Sampler(logit_bias={1: 2.0})}, "need target"),
        ({"drafter": "self:layers=1"}, "copy of the target"),
        ({"drafter": "unknown"}, "drafter 'unknown'"),
        ({"target": TARGET, "baseline_url": "http://127.0.0.1:1/v1"}, "leave one out"),
        ({"model": "other"}, "'other' is not served"),
    ],
)
def test_wrong_use(options: Json, message: str) -> None:
    how: dict[str, Any] = {"prompts": PROMPTS} | options
    with serving(Served(engine())) as server, pytest.raises(UsageError, match=message):
        check_endpoint(server.url, **how)


def test_without_logprobs_something_to_compare_with_is_needed() -> None:
    with serving(Served(engine(), spoil=no_logprobs)) as server, pytest.raises(UsageError, match="gives no logprobs"):
        check_endpoint(server.url, prompts=PROMPTS)


def test_keys_go_to_their_own_server_only() -> None:
    with (
        serving(Served(engine(), key="one")) as server,
        serving(Served(engine(drafter="none"), key="two")) as plain,
    ):
        report = check_endpoint(
            server.url,
            baseline_url=plain.url,
            api_key="one",
            baseline_api_key="two",
            prompts=PROMPTS,
            tokens=40,
            promises=False,
        )
        assert report.numbers["tokens"] == 40
        with pytest.raises(UsageError, match=r"baseline_url .* refuses to answer without a key"):
            check_endpoint(server.url, baseline_url=plain.url, api_key="one", prompts=PROMPTS)
