"""Audits of verification functions: exact ones pass, each bug is found and named, odd ones are refused in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.utils import _speculative_sampling

import draftproof as dp
from draftproof.audit import Verdict, check_rule
from draftproof.audit.page import page
from draftproof.audit.witness import EDGES, SEARCHED, Witness
from draftproof.audit.zoo import BUGS, EXACT, Bug
from draftproof.errors import UsageError

FAR = (SEARCHED[2],)
SMALL = (Witness.random("small", 3, 2, 0.35, 13), EDGES[2], EDGES[3], EDGES[6])


def hidden(bug: Bug) -> Callable[..., Any]:
    """Returns a bug that draws its own coins."""
    rng = np.random.default_rng(5)

    def function(p: Any, x: Any, q: Any) -> tuple[int, list[int]]:
        return bug(p, x, q, rng.random(len(x) + 1))

    return function


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rule", ["token", "block", "match"])
def test_our_own_verify_is_exact(rule: str) -> None:
    def function(p: Any, x: Any, q: Any, u: Any) -> Any:
        return dp.verify(p, x, q, uniforms=u, rule=rule)

    report = check_rule(function, witnesses=SMALL)
    assert report.verdict is Verdict.EXACT, report
    assert max(report.numbers["total_variation"].values()) < 1e-12
    assert all(each.power == 1.0 for each in report.power if each.family != "block")


def test_uniforms_may_be_taken_by_name_only() -> None:
    assert check_rule(dp.verify, witnesses=SMALL[1:2]).verdict is Verdict.EXACT
    assert check_rule("draftproof:verify", witnesses=SMALL[1:2]).subject == "draftproof:verify"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("bug", BUGS, ids=lambda each: each.name)
def test_each_bug_is_found_and_named(bug: Bug) -> None:
    # A block of two draft tokens is cheapest, and shows all but this one.
    witnesses = FAR if bug.name == "block verification recovers by the token rule" else SMALL[:1]
    report = check_rule(bug, witnesses=witnesses)
    assert report.verdict is Verdict.NOT_EXACT
    assert report.likeliest_bug == bug.name
    assert report.family == bug.family
    shown = report.findings[0].witness["texts"][0]
    assert abs(shown["expected"] - shown["observed"]) > 1e-3


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("bug", BUGS, ids=lambda each: each.name)
def test_each_bug_is_found_by_frequencies(bug: Bug) -> None:
    report = check_rule(hidden(bug), witnesses=FAR, draws=20_000 if bug.family == "block" else 5_000)
    assert report.verdict is Verdict.NOT_EXACT
    assert report.family == bug.family
    assert report.findings[0].p_value is not None
    assert report.findings[0].p_value < 1e-4


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("procedure", EXACT, ids=lambda each: each.name)
def test_exact_ones_pass_by_frequencies_and_the_power_is_told(procedure: Bug) -> None:
    report = check_rule(hidden(procedure), witnesses=FAR, draws=20_000)
    assert report.verdict is Verdict.NO_EVIDENCE
    assert min(each.power for each in report.power) > 0.5
    assert sum(each.power > 0.99 for each in report.power) > len(BUGS) / 2
    few = check_rule(hidden(procedure), witnesses=FAR, draws=1000)
    assert "not looked at closely enough" in few.summary


def test_a_coin_of_exactly_zero_is_tried() -> None:
    def at_ratio(p: Any, x: Any, q: Any, u: Any) -> tuple[int, list[int]]:
        for i, token in enumerate(x):
            if not u[i] <= p[i][token] / q[i][token]:
                residual = np.maximum(p[i] - q[i], 0)
                edges = np.cumsum(residual if residual.sum() > 0 else p[i])
                return i, [*x[:i].tolist(), int(np.searchsorted(edges, u[-1] * edges[-1], side="right"))]
        edges = np.cumsum(p[-1])
        return len(x), [*x.tolist(), int(np.searchsorted(edges, u[-1] * edges[-1], side="right"))]

    report = check_rule(at_ratio, witnesses=[EDGES[2]])
    assert report.verdict is Verdict.NOT_EXACT
    assert report.likeliest_bug == "accepts if u <= p/q"
    assert report.findings[0].witness["uniforms"] == 0.0
    assert report.numbers["total_variation"]["nothing in common"] < 1e-12


@pytest.mark.usefixtures("unchecked")
def test_transformers_function_is_not_found_wrong() -> None:
    report = check_rule(_speculative_sampling, convention="transformers", draws=2000, witnesses=FAR)
    assert report.verdict is Verdict.NO_EVIDENCE


def _torch_token(p: torch.Tensor, x: torch.Tensor, q: torch.Tensor, u: torch.Tensor) -> tuple[Any, Any]:
    return dp.verify(p, x, q, uniforms=u)  # type: ignore[return-value]


def _logits(p: Any, x: Any, q: Any, u: Any) -> Any:
    return dp.verify(np.exp(p), x, np.exp(q), uniforms=u)


def _flashinfer(q: torch.Tensor, x: torch.Tensor, u: torch.Tensor, p: torch.Tensor) -> tuple[Any, Any, Any]:
    found = dp.verify(p, x, q, uniforms=u)
    return found.tokens, found.num_accepted, found.num_accepted


def _vllm(
    x: torch.Tensor,
    counts: list[int],
    k: int,
    ends: torch.Tensor,
    q: torch.Tensor,
    p: torch.Tensor,
    bonus: Any,
    how: Any,
) -> torch.Tensor:
    """Judges as vLLM's function does: k rows of logits, the bonus drawn beforehand."""
    assert how.all_random
    assert ends.tolist() == np.cumsum(counts).tolist()
    batch = len(counts)
    rows = torch.cat(
        [p.softmax(-1).reshape(batch, k, -1), torch.full((batch, 1, p.shape[-1]), 1.0 / p.shape[-1])], dim=1
    )
    found = dp.verify(rows, x.reshape(batch, k), q.reshape(batch, k, -1), uniforms=torch.rand(batch, k + 1))
    tokens: torch.Tensor = found.tokens
    tokens[:, -1] = torch.where(tokens[:, -1] >= 0, bonus[:, 0].long(), tokens[:, -1])
    return tokens


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("function", "convention", "verdict"),
    [
        (_torch_token, "torch", Verdict.EXACT),
        (_logits, "logits", Verdict.EXACT),
        (_flashinfer, "flashinfer", Verdict.EXACT),
        (_vllm, "vllm", Verdict.NO_EVIDENCE),
    ],
)
def test_conventions(function: Any, convention: str, verdict: Verdict) -> None:
    torch.manual_seed(0)
    report = check_rule(function, convention=convention, witnesses=SMALL[:1], draws=5000)
    assert report.verdict is verdict, report


def test_batched_and_single_functions_are_told_apart() -> None:
    from draftproof.audit.conventions import Suspect

    assert Suspect(dp.verify).batched
    assert not Suspect(BUGS[0]).batched


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ((5, [0, 0, 0, 0, 0, 0]), "num_accepted 5"),
        ((1, [2]), "tokens [2]"),
        ((0, [7]), "token 7"),
        ((1, [99, 0]), "not the draft's"),
    ],
)
def test_an_answer_that_is_none(answer: Any, what: str) -> None:
    with pytest.raises(UsageError, match="gave no answer") as raised:
        check_rule(lambda p, x, q, u: answer, batched=False)
    assert what in str(raised.value)


@pytest.mark.usefixtures("unchecked")
def test_an_answer_that_is_none_later_is_a_finding() -> None:
    calls = iter(range(10**9))

    def tires(p: Any, x: Any, q: Any, u: Any) -> Any:
        if next(calls) > 500:
            raise ZeroDivisionError("tired")
        return EXACT[0](p, x, q, u)

    report = check_rule(tires, witnesses=SMALL, batched=False)
    assert report.verdict is Verdict.NOT_EXACT
    assert "tired" in report.summary


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"function": "nowhere:f"}, "cannot be imported"),
        ({"function": "draftproof"}, "module:function"),
        ({"function": "draftproof:nothing"}, "has no nothing"),
        ({"function": "draftproof:__version__"}, "cannot be called"),
        ({"function": BUGS[0], "convention": "odd"}, "convention 'odd' is unknown"),
        ({"function": BUGS[0], "alpha": 0.0}, "alpha 0.0"),
        ({"function": BUGS[0], "draws": 10}, "draws 10"),
        ({"function": lambda: None}, "gave no answer"),
        ({"function": BUGS[0], "convention": "vllm", "hidden": False}, "no uniforms to inject"),
    ],
)
def test_wrong_usage(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_rule(**arguments)


@pytest.mark.usefixtures("unchecked")
def test_reports_are_json_and_pages() -> None:
    for bug in (EXACT[0], BUGS[0]):
        report = check_rule(bug, witnesses=SMALL[:1])
        assert json.loads(json.dumps(report.as_dict()))["verdict"] == report.verdict.value
        text = page(report)
        assert report.verdict.value in text
        assert "<svg" in text
        assert text.count("<") == text.count(">")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((float("nan"), [0]), "whole numbers"),
        ((0, [0.4]), "whole numbers"),
        ((None, [0]), "whole numbers"),
        ((np.zeros(2), [0]), "whole numbers"),
        (7, "not (num_accepted, tokens)"),
    ],
)
def test_answers_of_odd_types(answer: Any, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        check_rule(lambda p, x, q, u: answer, batched=False)
    assert message in str(raised.value)


@pytest.mark.usefixtures("unchecked")
def test_a_function_that_exits_or_remembers_is_no_way_out() -> None:
    def exits(p: Any, x: Any, q: Any, u: Any) -> Any:
        raise SystemExit(0)

    with pytest.raises(UsageError, match="SystemExit"):
        check_rule(exits, batched=False)
    own = np.random.default_rng(0)
    report = check_rule(lambda p, x, q, u: (0, [int(own.integers(2))]), witnesses=SMALL[:1], draws=1000, batched=False)
    assert report.verdict is Verdict.NOT_EXACT
    assert "not settled" in report.summary


@pytest.mark.parametrize(
    ("options", "message"),
    [({"seed": -1}, "seed -1"), ({"tolerance": float("nan")}, "tolerance nan"), ({"witnesses": []}, "witnesses")],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_rule(BUGS[0], **options)


@pytest.mark.usefixtures("unchecked")
def test_single_precision_is_rounding() -> None:
    def single(p: Any, x: Any, q: Any, u: Any) -> Any:
        return EXACT[0](p.astype("f4"), x, q.astype("f4"), u.astype("f4"))

    report = check_rule(single, witnesses=SMALL)
    assert report.verdict is Verdict.EXACT, report
