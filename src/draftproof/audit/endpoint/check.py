"""Audits a server by what it answers: its tokens against the target's laws, and what it promises for sure."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import numpy as np

from draftproof.audit.endpoint.account import Account, Asked
from draftproof.audit.endpoint.answers import Answer
from draftproof.audit.endpoint.completions import Endpoint, in_order
from draftproof.audit.endpoint.lists import against_lists
from draftproof.audit.endpoint.promises import Outcome, check_promises
from draftproof.audit.endpoint.texts import against_texts
from draftproof.audit.engine import check_engine
from draftproof.audit.ledger import check_claim
from draftproof.audit.report import Finding, Progress, Report, Verdict, silent
from draftproof.draft.base import Drafter
from draftproof.draft.load import check_drafter, load_drafter
from draftproof.draft.model import ModelDrafter
from draftproof.errors import DraftproofError, EndpointError, UsageError, whole
from draftproof.models.base import Model
from draftproof.models.load import load
from draftproof.models.toy import ToyModel
from draftproof.request import Prompt, Request
from draftproof.sampling import Sampler
from draftproof.types import Tokens

MOST_AT_A_TIME = 256

PROMISES_SHARE = 0.2
"""Of the time that is shown as done when the promises have been looked at."""

TOLD_BY_LISTS = ("temperature", "top_k", "top_p", "min_p")
"""What of a sampler can be worked out from the likeliest tokens alone."""


def check_endpoint(
    url: str,
    *,
    baseline_url: str | None = None,
    target: Model | str | None = None,
    drafter: Drafter | Model | str | None = None,
    model: str | None = None,
    baseline_model: str | None = None,
    api_key: str | None = None,
    baseline_api_key: str | None = None,
    sampler: Sampler | None = None,
    prompts: Sequence[Prompt],
    max_tokens: int = 64,
    tokens: int = 5_000,
    alpha: float = 1e-3,
    noise: float | None = None,
    logprobs: int = 20,
    seed: int = 0,
    concurrency: int = 4,
    timeout: float = 60.0,
    retries: int = 2,
    promises: bool = True,
    progress: Progress = silent,
) -> Report:
    """Returns whether an OpenAI-compatible server with speculation is lossless, as far as its answers tell.

    The laws its tokens are held against come from `target`, a copy of the model on this machine; else from
    `baseline_url`, the same server without speculation, asked for one token after each prefix; else from the logprobs
    that the server itself reports. Where there are no logprobs, texts of both servers are compared as samples. Nothing
    is sent to any other address.

    Args:
        url: the API's root, such as `http://127.0.0.1:8000/v1`.
        baseline_url: of the same model without speculation.
        target: a copy of the model, or its spec.
        drafter: what the server drafts with, for evidence that only it gives: a drafter, a draft model or a spec.
        model: the name the server has for the model; None: the only one it serves.
        baseline_model: the name the baseline has for it; None: the same.
        api_key: for the server.
        baseline_api_key: for the baseline.
        sampler: the law to ask for and to hold it to: temperature, top-k, top-p, min-p; others need `target`.
        prompts: what to generate from, in turn and again: text, or ids.
        max_tokens: most tokens of one text.
        tokens: how many to look at, at most.
        alpha: P("not exact") for an exact server, its promises apart.
        noise: standard deviation of log p between the server's arithmetic and that of the laws; None: 0.02 against a
            baseline or a target, 1e-4 against its own report.
        logprobs: how many likeliest tokens to ask for at each place.
        seed: of the texts: seed, seed + 1, ...
        concurrency: requests under way at a time; the result does not depend on the order they are answered in.
        timeout: seconds for one answer.
        retries: how often a request without an answer is sent again.
        promises: also look at counts, stops, seeds, logprobs and sampling parameters.
        progress: told how far it is.

    Raises:
        UsageError: if an argument is wrong: the address, the key, the model's name or what is asked for.
        MissingDependencyError: if httpx2 is not installed.
    """
    began = time.perf_counter()
    check_claim(prompts, alpha, noise)
    for name, value in (("tokens", tokens), ("max_tokens", max_tokens), ("concurrency", concurrency)):
        if whole(name, value) < 1:
            raise UsageError(f"{name} {value} must be positive")
    if whole("retries", retries) < 0 or whole("logprobs", logprobs) < 0:
        raise UsageError(f"retries {retries} and logprobs {logprobs} must not be negative")
    if concurrency > MOST_AT_A_TIME:
        raise UsageError(f"concurrency {concurrency} is more than {MOST_AT_A_TIME} requests at a time")
    if not 0.0 < timeout < math.inf:
        raise UsageError(f"timeout {timeout} must be a positive number of seconds")
    sampler = sampler or Sampler()
    if target is None and sampler != Sampler(**{name: getattr(sampler, name) for name in TOLD_BY_LISTS}):
        raise UsageError(
            "penalties, bias and bans need target, a copy of the model: lists of the likeliest tell too little"
        )
    if target is not None and baseline_url is not None:
        raise UsageError("target and baseline_url both tell the law that is claimed; leave one out")
    local = None if target is None else load(target)
    proposer = _drafter(drafter, local)
    how: dict[str, Any] = {"max_tokens": max_tokens, "tokens": tokens, "seed": seed, "concurrency": concurrency}
    with ExitStack() as stack:
        endpoint = stack.enter_context(closing(Endpoint(url, model, api_key, timeout, retries)))
        baseline = None
        if baseline_url is not None:
            baseline = Endpoint(
                baseline_url, baseline_model or model, baseline_api_key, timeout, retries, "baseline_url"
            )
            stack.enter_context(closing(baseline))
        account = Account(endpoint, sampler, alpha, _part(progress, PROMISES_SHARE, 1.0))
        try:
            for each in [endpoint] if baseline is None else [endpoint, baseline]:
                each.greet(logprobs)
            if baseline is not None and baseline_model is None and baseline.model != endpoint.model:
                raise UsageError(
                    f"{endpoint.named} serves {endpoint.model}, {baseline.named} serves {baseline.model}; give "
                    "baseline_model if they are one model"
                )
            asked = [_asked(prompt, local, endpoint) for prompt in prompts]
            if local is None and baseline is None and not endpoint.logprobs:
                raise UsageError(
                    "the server gives no logprobs; give target, a copy of the model, or baseline_url, the same server "
                    "without speculation"
                )
        except EndpointError as error:
            report = account.report(Finding(str(error)), failed=True)
        else:
            report = _audited(account, baseline, local, proposer, asked, how, noise, promises, progress)
    return replace(report, seconds=time.perf_counter() - began)


def _audited(
    account: Account,
    baseline: Endpoint | None,
    local: Model | None,
    drafter: Drafter | None,
    asked: Sequence[Asked],
    how: dict[str, Any],
    noise: float | None,
    promises: bool,
    progress: Progress,
) -> Report:
    """Returns the report; what was seen before a server failed is in it."""
    try:
        if promises:
            _look_at_promises(account, baseline, asked[0], how["seed"], _part(progress, 0.0, PROMISES_SHARE))
        if local is not None:
            return _against_target(account, local, drafter, asked, noise=noise, **how)
        # A baseline can be asked what follows a text only by the ids of the text.
        by_ids = baseline is not None and baseline.logprobs > 0 and not any(isinstance(each, str) for each in asked)
        if baseline is not None and not by_ids:
            return against_texts(account, baseline, asked, **how)
        return against_lists(account, baseline, drafter, asked, noise=noise, **how)
    except KeyboardInterrupt:
        return account.report(Finding(f"interrupted; until then {account.ledger.told(account.looked)}"), failed=True)
    except DraftproofError as error:
        return account.report(Finding(str(error)), failed=True)


def _look_at_promises(
    account: Account, baseline: Endpoint | None, prompt: Asked, seed: int, progress: Progress
) -> None:
    for check in check_promises(account.endpoint, prompt, seed, progress=progress):
        account.checks.append(check)  # one by one: what is known is told even if the server fails at the next
    doubtful = [each.promise for each in account.checks if each.outcome in (Outcome.BROKEN, Outcome.REFUSED)]
    if baseline is not None and doubtful:
        plain = {each.promise: each.outcome for each in check_promises(baseline, prompt, seed, only=doubtful)}
        account.checks = [replace(each, baseline=plain.get(each.promise)) for each in account.checks]


def _against_target(
    account: Account,
    local: Model,
    drafter: Drafter | None,
    asked: Sequence[Asked],
    *,
    max_tokens: int,
    tokens: int,
    noise: float | None,
    seed: int,
    concurrency: int,
) -> Report:
    """Returns the report on a server whose laws a model on this machine tells."""
    account.layer = "the tokens the server samples, against the laws of a copy of the model on this machine"
    failed: list[DraftproofError] = []

    def ask(i: int) -> Answer:
        return account.endpoint.complete(asked[i % len(asked)], max_tokens, account.sampler, seed + i)

    with closing(in_order(ask, concurrency, account.endpoint)) as answers:

        def generate(_prompt: Tokens, _max_tokens: int, _seed: int) -> Sequence[int]:
            # The audit of an engine asks for the same texts in the same order.
            try:
                answer = next(answers)
                if answer.ids is None:
                    raise EndpointError(
                        f"{account.endpoint.named} tells no token ids, so that they cannot be held against a model on "
                        "this machine; leave target out, or use a server that tells them (vLLM, llama.cpp)"
                    )
            except DraftproofError as error:
                failed.append(error)
                raise
            account.count(answer)
            return answer.ids

        report = check_engine(
            generate,
            target=local,
            drafter=drafter,
            sampler=account.sampler,
            prompts=asked,
            max_tokens=max_tokens,
            tokens=tokens,
            alpha=account.alpha,
            noise=noise,
            seed=seed,
            name=account.endpoint.url,
            progress=account.progress,
        )
    report = replace(report, level="endpoint", layer=account.layer, numbers=report.numbers | account.told())
    if failed and report.verdict is Verdict.INCONCLUSIVE:
        report = replace(report, summary=str(failed[0]), findings=(Finding(str(failed[0])),))
    return account.completed(report)


def _part(progress: Progress, start: float, end: float) -> Progress:
    return lambda share, what: progress(start + (end - start) * share, what)


def _asked(prompt: Prompt, local: Model | None, endpoint: Endpoint) -> Asked:
    """Returns a prompt as ids if anyone tells them: the model on this machine, else the server."""
    if local is not None:
        return [int(each) for each in Request(prompt).prompt_tokens(local)]
    if isinstance(prompt, str):
        return endpoint.tokenize(prompt) or prompt
    found = np.asarray(prompt).tolist()
    if not isinstance(found, list) or not all(isinstance(each, int) for each in found):
        raise UsageError(f"prompt {prompt!r:.80} is neither text nor ids; messages need target, whose template it is")
    return found


def _drafter(drafter: Drafter | Model | str | None, local: Model | None) -> Drafter | None:
    if drafter is None or isinstance(drafter, Drafter):
        return drafter
    if isinstance(drafter, Model):
        return ModelDrafter(drafter)
    if local is not None:
        return load_drafter(drafter, local)
    check_drafter(drafter)
    if drafter.startswith("self:"):
        raise UsageError(f"drafter {drafter} is a copy of the target; give target, too")
    if drafter.startswith("model:"):
        return ModelDrafter(load(drafter.removeprefix("model:")))
    return load_drafter(drafter, ToyModel.random(2, seed=0))
