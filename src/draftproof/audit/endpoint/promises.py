"""What an endpoint promises and can be held to for sure: counts, stops, seeds, logprobs, sampling parameters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from draftproof.audit.endpoint.answers import Answer, Key, nameable
from draftproof.audit.endpoint.completions import Endpoint, Prompt
from draftproof.audit.report import Progress, silent
from draftproof.errors import RefusedRequestError
from draftproof.sampling import Sampler

GREEDY = Sampler(temperature=0.0)
LENGTHS = (1, 2, 3, 5, 8, 13)
LONG = 32
LOOPING, LAP, LAPS = 64, 24, 8
PENALTY = 2.0

TIE = 0.15
"""Logits within which rounding may choose."""

APART = 0.5
"""Logits by which logprobs differ that are reported after a penalty of 2, and not by rounding."""

CERTAIN = -10.0
"""Logarithm of the probability of a text that three seeds give by chance."""

AMBIGUOUS = frozenset({"seeds", "repetition_penalty"})
"""Promises that rounding or a peaked law may seem to break: they count only if they are kept without speculation."""

WINDOW = 64
"""How far back llama.cpp's penalties look; they count the prompt too."""


class Outcome(StrEnum):
    """What became of a promise."""

    KEPT = "kept"
    BROKEN = "broken"
    REFUSED = "refused"
    UNKNOWN = "not known"


@dataclass(frozen=True)
class Check:
    """A promise that was looked at.

    Attributes:
        promise: what is promised.
        outcome: whether it is kept; "refused" is honest.
        told: what was seen, in words.
        witness: what was asked and what came, ready for JSON.
        baseline: the outcome without speculation, where it was looked at.
    """

    promise: str
    outcome: Outcome
    told: str
    witness: dict[str, Any] = field(default_factory=dict)
    baseline: Outcome | None = None

    @property
    def by_speculation(self) -> bool:
        """Whether it is broken, as far as is known with speculation only."""
        if self.baseline is None and self.promise in AMBIGUOUS:
            return False
        return self.outcome is Outcome.BROKEN and self.baseline in (None, Outcome.KEPT)

    def as_dict(self) -> dict[str, Any]:
        """Returns it, ready for JSON."""
        return asdict(self)


def check_promises(
    endpoint: Endpoint, prompt: Prompt, seed: int = 0, only: Sequence[str] | None = None, progress: Progress = silent
) -> Iterator[Check]:
    """Yields the outcome of each promise, or of those named, in some fifty requests of at most 64 tokens.

    Args:
        endpoint: the server, greeted.
        prompt: what to go on from.
        seed: of the first sampled text.
        only: names of promises; None: all.
        progress: told how far it is.

    Raises:
        EndpointError: if the server fails.
        UsageError: if it no longer takes the key or the model.
    """
    asked = _Asked(endpoint, prompt if isinstance(prompt, str) else list(prompt), seed)
    for done, (promise, look) in enumerate(_PROMISES.items()):
        if only is not None and promise not in only:
            continue
        progress(done / len(_PROMISES), f"promises: {promise}")
        try:
            outcome, told, witness = look(asked)
        except RefusedRequestError as error:
            outcome, told, witness = Outcome.REFUSED, error.told, {}
        yield Check(promise, outcome, told, witness)


_Found = tuple[Outcome, str, dict[str, Any]]


@dataclass
class _Asked:
    """A server and what it has said already."""

    endpoint: Endpoint
    prompt: str | list[int]
    seed: int

    def ask(self, max_tokens: int, sampler: Sampler = GREEDY, seed: int = 0, **more: Any) -> Answer:
        return self.endpoint.complete(self.prompt, max_tokens, sampler, self.seed + seed, **more)

    @cached_property
    def greedy(self) -> Answer:
        return self.ask(LONG)

    @cached_property
    def looping(self) -> Answer:
        """A greedy text that most models go round in circles in."""
        return self.loop(GREEDY)

    @property
    def laps(self) -> str | list[int]:
        return self.prompt[:LAP] * LAPS

    def loop(self, sampler: Sampler) -> Answer:
        return self.endpoint.complete(self.laps, LOOPING, sampler, self.seed)

    @cached_property
    def sampled(self) -> Answer:
        return self.ask(LONG, Sampler())


def _counts(asked: _Asked) -> _Found:
    """Tokens delivered, tokens counted and the limit agree."""
    for limit in LENGTHS:
        answer = asked.ask(limit)
        delivered, counted = _delivered(answer), answer.completion_tokens
        seen = {"max_tokens": limit, "delivered": delivered, "usage": counted, "finish_reason": answer.finish_reason}
        if counted is None and delivered is None:
            return Outcome.UNKNOWN, "the server tells neither tokens nor usage", seen
        for number, name in ((delivered, "delivers"), (counted, "counts")):
            if number is not None and number > limit:
                return Outcome.BROKEN, f"it {name} {number} tokens where at most {limit} were asked for", seen
            if number is not None and answer.finish_reason == "length" and number != limit:
                return Outcome.BROKEN, f"it stops for length at {limit}, but {name} {number} tokens", seen
        # Whether the end of text is delivered as a token differs between servers; it is counted.
        spare = 1 if answer.finish_reason == "stop" else 0
        if delivered is not None and counted is not None and not 0 <= counted - delivered <= spare:
            return Outcome.BROKEN, f"it delivers {delivered} tokens and counts {counted}", seen
    return Outcome.KEPT, f"max_tokens of {', '.join(map(str, LENGTHS))} are met, and counted right", {}


def _prefixes(asked: _Asked) -> _Found:
    """Greedy text that is cut shorter is the beginning of the longer one."""
    for limit in LENGTHS:
        answer = asked.ask(limit)
        if not asked.greedy.text.startswith(answer.text.rstrip("\ufffd")):
            seen = {"max_tokens": limit, "text": answer.text, "longer": asked.greedy.text}
            again = asked.ask(LONG)
            if again.text != asked.greedy.text or not asked.endpoint.logprobs:
                return Outcome.UNKNOWN, "greedy text differs, perhaps by a near tie", seen
            return _near_tie(answer, asked.greedy) or (
                Outcome.BROKEN,
                f"greedy text of {limit} tokens is not the beginning of that of {LONG}",
                seen,
            )
    return Outcome.KEPT, f"greedy texts of {', '.join(map(str, LENGTHS))} tokens begin the one of {LONG}", {}


def _near_tie(one: Answer, other: Answer) -> _Found | None:
    """Returns "not known" if two greedy texts part where the two likeliest tokens are nearly equal."""
    for mine, theirs in zip(one.tokens, other.tokens, strict=False):
        if mine.key != theirs.key:
            gap = _gap(mine.top, theirs.key) if mine.top else None
            if gap is not None and gap <= TIE:
                return Outcome.UNKNOWN, f"two greedy texts part at a near tie of {gap:.2g} logits", {}
            break
    return None


def _gap(top: dict[Key, float], key: Key) -> float:
    """Returns how far a token is below the likeliest; if it is not listed, at least so far; 0 if none can tell."""
    if not nameable(key):
        return 0.0
    return max(top.values()) - top.get(key, min(top.values()))


def _stops(asked: _Asked) -> _Found:
    """A stop string ends text, tokens and counts, inside a block too."""
    text = asked.greedy.text
    found = ((i, text[i : i + size]) for size in (5, 4, 3, 2) for i in range(2, len(text) - 8))
    place, stop = next(((i, part) for i, part in found if text.find(part) == i), (0, ""))
    if not stop:
        return Outcome.UNKNOWN, "the greedy text is too short or too uniform to choose a stop string from", {}
    whole = next((n for n in range(1, LONG + 1) if stop in asked.ask(n).text), None)
    answer = asked.ask(LONG, stop=[stop])
    delivered = _delivered(answer)
    seen = {
        "stop": stop,
        "text": answer.text,
        "without the stop": text,
        "delivered": delivered,
        "usage": answer.completion_tokens,
        "finish_reason": answer.finish_reason,
        "tokens that complete the stop": whole,
    }
    if answer.text not in (text[:place], text[:place] + stop):
        if asked.ask(LONG).text != text or whole is None:
            return Outcome.UNKNOWN, "greedy text differs from one request to the next", seen
        return _near_tie(answer, asked.greedy) or (Outcome.BROKEN, "the text does not end at the stop string", seen)
    if answer.finish_reason is None:
        return Outcome.UNKNOWN, "the server does not tell why a text ends", seen
    if answer.finish_reason != "stop":
        return Outcome.BROKEN, f"the stop string ends the text, but finish_reason is {answer.finish_reason!r}", seen
    for number, name in ((delivered, "delivers"), (answer.completion_tokens, "counts")):
        if number is not None and whole is not None and number > whole:
            return Outcome.BROKEN, f"it {name} {number} tokens where {whole} complete the stop string", seen
    if whole is not None and whole > 1 and asked.ask(whole - 1, stop=[stop]).finish_reason != "length":
        return Outcome.BROKEN, "a stop string that the limit cuts in two does not end for length", seen
    return Outcome.KEPT, "a stop string ends text, tokens and counts where it should", {}


def _seeds(asked: _Asked) -> _Found:
    """The same seed gives the same text, another one another."""
    first, again = asked.sampled, asked.ask(LONG, Sampler())
    others = [asked.ask(LONG, Sampler(), seed).text for seed in (1, 2)]
    seen = {"text": first.text, "again": again.text, "other seeds": others}
    if set(others) == {first.text}:
        sure = [each.logprob for each in first.tokens if each.logprob is not None]
        if len(sure) < len(first.tokens) or not sure or sum(sure) > CERTAIN:
            return Outcome.UNKNOWN, "three seeds give one text, which may be all but certain", seen
        return Outcome.BROKEN, "three seeds give one text", seen
    if first.text != again.text:
        return Outcome.BROKEN, "one seed gives two texts", seen
    return Outcome.KEPT, "one seed gives one text, another one another", {}


def _logprobs(asked: _Asked) -> _Found:
    """Each token has a logprob of its own, which agrees with the list of the likeliest."""
    if not asked.endpoint.logprobs:
        return Outcome.REFUSED, "the server gives no logprobs", {}
    # The text that goes in circles is the one that is sure to be drafted.
    for answer in (asked.sampled, asked.looping):
        fault = _misreported(answer)
        if fault is not None:
            shown = [each.logprob for each in answer.tokens[:16]]
            return Outcome.BROKEN, fault, {"text": answer.text, "logprobs": shown, "usage": answer.completion_tokens}
    return Outcome.KEPT, f"{len(asked.sampled.tokens)} tokens and more have logprobs that agree with their lists", {}


def _misreported(answer: Answer) -> str | None:
    """Returns what is wrong with the logprobs of an answer, or None."""
    told = [each.logprob for each in answer.tokens]
    reals = [each for each in told if each is not None]
    unlisted = sum(each.top is None for each in answer.tokens)
    if len(reals) < len(told):
        return f"{len(told) - len(reals)} of {len(told)} tokens have no logprob"
    if unlisted:
        zeros = sum(each == 0.0 for each in reals)
        return f"{unlisted} of {len(told)} tokens have no list of the likeliest; {zeros} have logprob 0, as if certain"
    if max(reals, default=0.0) > 1e-3:
        return f"a logprob is {max(reals):.3g}, above 0"
    for number, each in enumerate(answer.tokens):
        assert each.top is not None
        assert each.logprob is not None
        mass, listed = sum(map(math.exp, each.top.values())), each.top.get(each.key)
        if mass > 1.0 + 1e-3:
            return f"the likeliest at token {number + 1} have probability {mass:.4f}"
        if listed is not None and abs(listed - each.logprob) > 1e-3:
            return f"token {number + 1} has logprob {each.logprob:.4f}, but {listed:.4f} in the list of the likeliest"
    return None


def _bias(asked: _Asked) -> _Found:
    """logit_bias acts at every place: a forced token always comes, a banned one never."""
    ids = asked.greedy.ids
    if not ids:
        return Outcome.UNKNOWN, "the server tells no ids to force or ban", {}
    # One that the text holds already is surely no token that ends it.
    forced = ids[len(ids) // 2]
    answer = asked.ask(16, Sampler(logit_bias={forced: 100.0}))
    if answer.ids is None or not answer.ids:
        return Outcome.UNKNOWN, "nothing came of a forced token", {}
    others = [i for i, each in enumerate(answer.ids) if each != forced]
    if others:
        seen = {"forced id": forced, "ids": list(answer.ids)}
        return Outcome.BROKEN, f"a bias of 100 is not applied at {len(others)} of {len(answer.ids)} tokens", seen
    banned = Counter(ids).most_common(1)[0][0]
    answer = asked.ask(LONG, Sampler(temperature=0.0, logit_bias={banned: -100.0}))
    count = (answer.ids or ()).count(banned)
    if count:
        seen = {"banned id": banned, "ids": list(answer.ids or ())}
        return Outcome.BROKEN, f"a token with a bias of -100 comes {count} times", seen
    return Outcome.KEPT, "a bias of 100 forces a token at 16 places, one of -100 keeps one out", {}


def _narrowed(name: str, value: float) -> Callable[[_Asked], _Found]:
    """Returns a look at a parameter that leaves only the likeliest token when it is at its narrowest."""

    def look(asked: _Asked) -> _Found:
        sampler = Sampler(**{name: value})  # type: ignore[arg-type]
        answers = [asked.ask(16, sampler, seed) for seed in range(3)]
        for answer in answers:
            for number, each in enumerate(answer.tokens):
                gap = _gap(each.top, each.key) if each.top else None
                if gap is not None and gap > TIE:
                    what = f"token {number + 1} is {gap:.3g} logits below the likeliest, though only that one is left"
                    return Outcome.BROKEN, what, {name: value, "text": answer.text}
        texts = {answer.text for answer in answers}
        if not asked.endpoint.logprobs and len(texts) > 1:
            what = "texts differ by seed, though only the likeliest token is left"
            return Outcome.BROKEN, what, {name: value, "texts": sorted(texts)}
        return Outcome.KEPT, f"{name} {value:g} leaves the likeliest token, whatever the seed", {}

    return look


def _penalty(name: str) -> Callable[[_Asked], _Found]:
    """Returns a look at a penalty, on the greedy text, by what each token's list of the likeliest makes of it."""

    def look(asked: _Asked) -> _Found:
        plain = asked.looping
        counts = Counter(plain.keys)
        if max(counts.values(), default=0) < 6:
            return Outcome.UNKNOWN, "the greedy text repeats no token often enough", {}
        strength = PENALTY if name != "repetition_penalty" else 4.0
        answer = asked.loop(Sampler(temperature=0.0, **{name: strength}))  # type: ignore[arg-type]
        seen = {name: strength, "text": answer.text, "without it": plain.text}
        same = answer.keys == plain.keys
        if name == "repetition_penalty":
            if same:
                what = f"{name} {strength:g} changes nothing, though a token comes {max(counts.values())} times"
                return Outcome.BROKEN, what, seen
            return Outcome.KEPT, f"{name} {strength:g} changes the text", {}
        if not asked.endpoint.logprobs or any(each.top is None for each in answer.tokens):
            changes = "nothing" if same else "the text"
            return Outcome.UNKNOWN, f"{name} {strength:g} changes {changes}; without logprobs no more is known", seen
        # Logprobs may be reported before penalties or after, and penalties may count the prompt or not.
        prompt = list(answer.prompt_ids or (() if isinstance(asked.laps, str) else asked.laps))
        ways = [((), 0)] if _penalised(answer, plain) else [((), None), (prompt, None), (prompt, WINDOW)]
        wrong = [_unpenalised(answer, name, strength, *way) for way in ways]
        if all(each is not None for each in wrong):
            place, best, gap = max((each for each in wrong if each is not None), key=lambda each: each[0])
            seen |= {"prompt": asked.laps, "token": answer.tokens[place].key, "expected": best, "by, logits": gap}
            what = f"token {place + 1} is not the likeliest with {name} {strength:g} applied, by {gap:.2g} logits"
            return Outcome.BROKEN, what, seen
        return Outcome.KEPT, f"{name} {strength:g} decides every token of {len(answer.tokens)} as it should", {}

    return look


def _penalised(answer: Answer, plain: Answer) -> bool:
    """Returns whether the logprobs after the same tokens differ by a penalty: whether they are reported after it."""
    for one, other in zip(answer.tokens, plain.tokens, strict=False):
        mine, theirs = one.top or {}, other.top or {}
        if any(abs(mine[key] - theirs[key]) > APART for key in mine.keys() & theirs.keys()):
            return True
        if one.key != other.key:
            break
    return False


def _unpenalised(
    answer: Answer, name: str, strength: float, prompt: Sequence[int], window: int | None
) -> tuple[int, Key, float] | None:
    """Returns the place of the first token that a penalty should have kept out, what was due, and by how much; or None.

    Args:
        answer: greedy, with lists of the likeliest.
        name: presence_penalty or frequency_penalty.
        strength: of it.
        prompt: tokens that are counted too.
        window: how many of the last tokens are counted; None: all; 0: none, for logprobs that have it already.
    """
    history: list[Key] = list(prompt)
    for number, each in enumerate(answer.tokens):
        counted = history if window is None else history[-window:] if window else []
        counts = Counter(counted)
        top = each.top if each.top and nameable(each.key) else {}
        scores = {
            key: value - strength * (counts[key] if name == "frequency_penalty" else min(counts[key], 1))
            for key, value in top.items()
        }
        if scores:
            best = max(scores, key=lambda key: scores[key])
            gap = scores[best] - scores.get(each.key, min(top.values()))
            # A token that is not listed may come first once those that are have been penalised.
            if scores[best] > min(top.values()) + TIE and gap > TIE:
                return number, best, gap
        history.append(each.key)
    return None


def _delivered(answer: Answer) -> int | None:
    return len(answer.ids) if answer.ids is not None else len(answer.tokens) if answer.tokens else None


_PROMISES: dict[str, Callable[[_Asked], _Found]] = {
    "max_tokens and usage": _counts,
    "shorter greedy texts": _prefixes,
    "stop strings": _stops,
    "seeds": _seeds,
    "logprobs": _logprobs,
    "logit_bias": _bias,
    "top_k": _narrowed("top_k", 1),
    "top_p": _narrowed("top_p", 1e-6),
    "min_p": _narrowed("min_p", 1.0),
    "frequency_penalty": _penalty("frequency_penalty"),
    "presence_penalty": _penalty("presence_penalty"),
    "repetition_penalty": _penalty("repetition_penalty"),
}
