"""What a server of completions answers, in the forms that vLLM, SGLang, OpenAI and llama.cpp give it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from draftproof.errors import EndpointError

Key: TypeAlias = int | str
"""A token by its id or, where a server tells none, by its text."""

ID_PREFIX = "token_id:"

UNKNOWN = "\ufffd"
"""Begins the key of a token whose text does not tell which one it is: a part of a character, or a text of several."""

IMPOSSIBLE = -100.0
"""A logprob below this stands for a token that cannot come; some servers write -9999."""

LARGEST_ID = 2**31


@dataclass(frozen=True)
class Emitted:
    """A token of an answer.

    Attributes:
        key: its id, else its text.
        text: its text, as far as the server tells.
        logprob: as the server reports it, or None.
        top: the likeliest tokens there, by the server's report: key -> logprob; at most as many as were asked for.
    """

    key: Key
    text: str
    logprob: float | None = None
    top: dict[Key, float] | None = None


@dataclass(frozen=True)
class Answer:
    """What a server returned.

    Attributes:
        text: of the completion.
        tokens: one by one, if the server tells.
        ids: the ids of the completion, if the server tells.
        prompt_ids: of the prompt, if the server tells.
        finish_reason: "stop", "length" or what the server says.
        completion_tokens: as usage has it.
        drafted: draft tokens that were tried, if the server tells.
        accepted: draft tokens that were kept, if the server tells.
    """

    text: str
    tokens: tuple[Emitted, ...] = ()
    ids: tuple[int, ...] | None = None
    prompt_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    completion_tokens: int | None = None
    drafted: int | None = None
    accepted: int | None = None

    @property
    def keys(self) -> tuple[Key, ...]:
        """The tokens: ids if the server tells them, else their texts, else nothing."""
        return self.ids if self.ids is not None else tuple(each.key for each in self.tokens)


def parsed(found: dict[str, Any], count: int, named: str = "the server") -> Answer:
    """Returns an answer from the JSON of vLLM, SGLang, OpenAI or llama.cpp.

    Args:
        found: the JSON object.
        count: how many likeliest tokens were asked for; the emitted one, if it is not among them, is no part of them.
        named: what errors call the server.

    Raises:
        EndpointError: if it is no completion.
    """
    choices = listed(found.get("choices"))
    choice = choices[0] if choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("text"), str):
        raise EndpointError(f"{named} answers without a completion: {json.dumps(found)[:200]}")
    usage, timings = _object(found.get("usage")), _object(found.get("timings"))
    tokens = tuple(_tokens(_object(choice.get("logprobs")), count))
    ids = _ids(choice.get("token_ids"))
    if ids is None and tokens and all(isinstance(each.key, int) for each in tokens):
        ids = tuple(each.key for each in tokens if isinstance(each.key, int))
    return Answer(
        sendable(choice["text"]),
        tokens,
        ids,
        _ids(choice.get("prompt_token_ids")) or _ids(found.get("prompt_token_ids")),
        choice.get("finish_reason") if isinstance(choice.get("finish_reason"), str) else None,
        _count(usage.get("completion_tokens")),
        _count(timings.get("draft_n")),
        _count(timings.get("draft_n_accepted")),
    )


def _tokens(told: dict[str, Any], count: int) -> Iterator[Emitted]:
    content = told.get("content")
    if isinstance(content, list):  # as chat completions have it; so does llama.cpp, with ids
        for each in map(_object, content):
            tops = [
                (_key(top.get("id"), sendable(str(top.get("token")))), top.get("logprob"))
                for top in map(_object, listed(each.get("top_logprobs")))
            ]
            text = sendable(str(each.get("token", "")))
            yield Emitted(_key(each.get("id"), text), text, _real(each.get("logprob")), _likeliest(tops, count))
        return
    texts, logprobs = listed(told.get("tokens")), listed(told.get("token_logprobs"))
    tops = listed(told.get("top_logprobs"))
    for i, text in enumerate(sendable(str(each)) for each in texts):
        top = _object(tops[i]) if i < len(tops) else {}
        yield Emitted(
            _key(None, text),
            text,
            _real(logprobs[i]) if i < len(logprobs) else None,
            _likeliest([(_key(None, sendable(name)), value) for name, value in top.items()], count, merged=True),
        )


def _likeliest(tops: Sequence[tuple[Key, Any]], count: int, merged: bool = False) -> dict[Key, float] | None:
    """Returns the likeliest tokens; None if the list cannot be told from a wrong one.

    Args:
        tops: keys with their logprobs.
        count: how many were asked for; the emitted token is listed beside them by some servers.
        merged: whether the list comes by text, so that two tokens of one text are one entry.
    """
    reals = [(key, real) for key, value in tops if (real := _real(value)) is not None and real > IMPOSSIBLE]
    if any(real > 1e-3 for _, real in reals):
        return None
    told = sorted(reals, key=lambda each: -each[1])[:count]
    by_text = [key for key, _ in told if isinstance(key, str)]
    if merged and by_text and len(reals) < count and sum(math.exp(real) for _, real in told) < 1.0 - 1e-6:
        return None
    found: dict[Key, float] = {}
    for i, (key, real) in enumerate(told):
        known = isinstance(key, int) or (by_text.count(key) == 1 and nameable(key))
        found[key if known else f"{UNKNOWN}{i}"] = real
    return found or None


def nameable(key: Key) -> bool:
    """Returns whether a key tells which token it is: an id does, a text unless it is empty or a part of a character."""
    return isinstance(key, int) or (key != "" and UNKNOWN not in key)


def _key(number: Any, text: Any) -> Key:
    if _is_id(number):
        return int(number)
    text = str(text)
    rest = text.removeprefix(ID_PREFIX)
    return int(rest) if rest != text and rest.isdecimal() and len(rest) < 10 else text


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_ID


def _ids(value: Any) -> tuple[int, ...] | None:
    return tuple(value) if isinstance(value, list) and all(map(_is_id, value)) else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """Returns a list of JSON; an empty one if it is none."""
    return value if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    return value if _is_id(value) else None


def _real(value: Any) -> float | None:
    """Returns a finite number, or None."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        real = float(value)
    except OverflowError:
        return None
    return real if math.isfinite(real) else None


def sendable(text: str) -> str:
    """Returns text without halves of surrogates, which JSON may hold and nothing can write."""
    return text.encode("utf-8", "replace").decode()
