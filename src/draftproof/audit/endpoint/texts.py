"""Audits a server's texts against those of its baseline, where neither tells any probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from draftproof.audit.endpoint.account import Account, Asked
from draftproof.audit.endpoint.completions import Endpoint, in_order
from draftproof.audit.endpoint.two_sample import least_p_value, two_sample_test
from draftproof.audit.report import Finding, Report

APART = 1_000_003
"""Between the seeds of the two samples, which must not share their randomness."""

LETTERS = 4
"""Characters that count for a token where a server does not count."""


def against_texts(
    account: Account,
    baseline: Endpoint,
    asked: Sequence[Asked],
    *,
    max_tokens: int,
    tokens: int,
    seed: int,
    concurrency: int,
) -> Report:
    """Returns the report on a server of which only texts are to be had; see `against_lists` for the arguments.

    Raises:
        EndpointError: if a server fails.
        UsageError: if a server no longer takes the key or the model.
    """
    greedy = account.sampler.greedy
    account.layer = "the texts the server writes, against those of its baseline"

    def ask(i: int) -> tuple[str, str, int]:
        prompt = asked[i % len(asked)]
        answer = account.endpoint.complete(prompt, max_tokens, account.sampler, seed + i)
        plain = baseline.complete(prompt, max_tokens, account.sampler, seed + i + (0 if greedy else APART))
        account.count(answer)
        counted = answer.completion_tokens or max(len(answer.text) // LETTERS, 1)
        return answer.text, plain.text, min(counted, max_tokens)

    samples: list[tuple[list[str], list[str]]] = [([], []) for _ in asked]
    # Greedy text is the same each time.
    wanted = len(asked) if greedy else 2**62
    with closing(in_order(ask, concurrency, account.endpoint, baseline)) as texts:
        done = 0
        while account.looked < tokens and done < wanted:
            one, other, counted = next(texts)
            mine, theirs = samples[done % len(asked)]
            mine.append(one)
            theirs.append(other)
            done += 1
            account.looked += counted
            account.progress(account.looked / tokens, f"{account.looked} tokens")
    account.texts = done
    if greedy:
        return _greedy(account, asked, samples)
    least = least_p_value(samples)
    if least >= account.alpha:
        what = f"{done} texts of each are too few: whatever they are, the p-value is at least {least:.2g}; raise tokens"
        return account.report(Finding(what), failed=True)
    p_value, distance = two_sample_test(samples, account.alpha, seed)
    if p_value >= account.alpha:
        told = f"{done} texts of each are as far apart as two samples of one law (p-value {p_value:.3g})"
        return account.report(None, note=told)
    shown = {"a text": samples[0][0][0], "a text of the baseline": samples[0][1][0], "distance": distance}
    return account.report(Finding("its texts are no sample of what its baseline writes", shown, p_value=p_value))


def _greedy(account: Account, asked: Sequence[Asked], samples: Sequence[tuple[list[str], list[str]]]) -> Report:
    compared = 0
    for prompt, (mine, theirs) in zip(asked, samples, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            compared += 1
            if one == other:
                continue
            both = min(len(one), len(other))
            at = next((i for i in range(both) if one[i] != other[i]), both)
            shown = {"prompt": prompt, "text": one, "baseline": other, "character": at}
            what = "greedy text departs from its baseline's; without logprobs a near tie cannot be told from an error"
            return account.report(Finding(what, shown), failed=True)
    return account.report(None, note=f"{compared} greedy texts are those of the baseline")
