"""Speculation against plain decoding, on one request: what it was worth, and whether the texts agree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from draftproof.divergence import Divergence, find_divergence
from draftproof.draft import NullDrafter
from draftproof.engine import Engine
from draftproof.request import Request
from draftproof.types import Completion


@dataclass(frozen=True)
class Comparison:
    """What alternating runs of one request showed.

    Attributes:
        plain: the completion of plain decoding.
        tokens_per_second: of speculation, reading the prompt left out; the median over the runs.
        plain_tokens_per_second: the same of plain decoding.
        same_text_expected: whether the law is greedy or the rule coupled, so that the texts must agree.
        agree: whether the tokens are the same.
        divergence: where they part, if they should agree and do not.
    """

    plain: Completion
    tokens_per_second: float
    plain_tokens_per_second: float
    same_text_expected: bool
    agree: bool
    divergence: Divergence | None

    @property
    def speedup(self) -> float | None:
        """Tokens a second of speculation over those of plain decoding; None if nothing was generated."""
        return self.tokens_per_second / self.plain_tokens_per_second if self.plain_tokens_per_second else None

    def as_dict(self) -> dict[str, Any]:
        """Returns the comparison, ready for JSON."""
        apart = self.divergence
        return {
            "speedup": self.speedup,
            "tokens_per_second": self.tokens_per_second,
            "plain_tokens_per_second": self.plain_tokens_per_second,
            "plain_text": self.plain.text,
            "plain_tokens": self.plain.tokens,
            "same_text_expected": self.same_text_expected,
            "agree": self.agree,
            "divergence": None
            if apart is None
            else {
                "index": apart.index,
                "plain_token": apart.expected,
                "token": apart.found,
                "gap": apart.gap,
                "rounding": apart.rounding,
                "near_tie": apart.near_tie,
            },
        }


def compare(engine: Engine, request: Request, completion: Completion, *, rounds: int = 3) -> Comparison:
    """Runs the request again, plainly and speculatively in turn, and compares.

    Args:
        engine: the engine that made `completion`.
        request: the request it answered.
        completion: its answer; its seed is used for every run.
        rounds: runs of each kind.
    """
    seeded = replace(request, seed=completion.seed)
    rule = engine.rule if request.seed is None else engine.seeded_rule
    law = (request.sampler or engine.sampler).greedy
    expected = law or rule.draft_invariant
    speeds: list[float] = []
    plain_speeds: list[float] = []
    plain = completion
    with Engine(engine.target, NullDrafter(), rule, engine.sampler) as other:
        # The first run of each reads the prompt and is not timed.
        other.generate(seeded)
        for _ in range(rounds):
            plain = other.generate(seeded)
            plain_speeds.append(decoding_speed(plain))
            speeds.append(decoding_speed(engine.generate(replace(seeded, speculate=True))))
    agree = plain.tokens == completion.tokens
    divergence = None
    if expected and not agree:
        prompt = request.prompt_tokens(engine.target)
        ends = (frozenset() if request.ignore_eos else engine.target.eos_ids) | frozenset(request.stop_token_ids or ())
        sampler = (request.sampler or engine.sampler).bind(len(prompt), ends, engine.target.vocab_size)
        assert completion.seed is not None
        divergence = find_divergence(engine.target, sampler, completion.seed, prompt, plain.tokens, completion.tokens)
    return Comparison(plain, median(speeds), median(plain_speeds), expected, agree, divergence)


def decoding_speed(completion: Completion) -> float:
    """Returns tokens a second, without the reading of the prompt and the measuring of costs."""
    timings = completion.timings
    seconds = timings.total - timings.prefill - timings.calibration
    return len(completion.tokens) / seconds if seconds > 0 else 0.0
