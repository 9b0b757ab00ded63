"""What speculation did, under the names that vLLM and AIPerf use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass
class Counts:
    """Acceptance counts; only what was emitted counts.

    Attributes:
        num_passes: target passes that emitted at least one token.
        num_drafts: those of them that verified a draft.
        num_draft_tokens: draft tokens verified.
        num_accepted_tokens: draft tokens kept and emitted.
        num_accepted_tokens_per_pos: the same by place in the draft.
        num_emitted_tokens: tokens emitted by all passes.
        num_spec_tokens: tokens emitted by the passes that verified a draft.
        acceptance_histogram: entry j counts the drafts of which exactly j tokens were kept.
    """

    num_passes: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    num_emitted_tokens: int = 0
    num_spec_tokens: int = 0
    acceptance_histogram: list[int] = field(default_factory=list)

    def add(self, drafted: int, accepted: int, emitted: int) -> None:
        """Counts one pass that verified `drafted` tokens, kept `accepted` and emitted `emitted` in all."""
        self.num_passes += 1
        self.num_emitted_tokens += emitted
        if drafted == 0:
            return
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_accepted_tokens += accepted
        self.num_spec_tokens += emitted
        _widen(self.num_accepted_tokens_per_pos, drafted)
        _widen(self.acceptance_histogram, drafted + 1)
        for place in range(accepted):
            self.num_accepted_tokens_per_pos[place] += 1
        self.acceptance_histogram[accepted] += 1

    @classmethod
    def sum(cls, parts: Iterable[Counts]) -> Counts:
        """Returns the counts of several requests together."""
        total = cls()
        for part in parts:
            for each in fields(cls):
                ours, theirs = getattr(total, each.name), getattr(part, each.name)
                if isinstance(ours, list):
                    _widen(ours, len(theirs))
                    for place, count in enumerate(theirs):
                        ours[place] += count
                else:
                    setattr(total, each.name, ours + theirs)
        return total

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens; None if nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens emitted per pass that had a draft; None if there was none."""
        return self.num_spec_tokens / self.num_drafts if self.num_drafts else None

    @property
    def tokens_per_pass(self) -> float | None:
        """Tokens emitted per target pass, drafts or not; None before the first."""
        return self.num_emitted_tokens / self.num_passes if self.num_passes else None

    def as_dict(self) -> dict[str, Any]:
        """Returns the counts and the ratios, ready for JSON."""
        return asdict(self) | {
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "tokens_per_pass": self.tokens_per_pass,
        }


def _widen(values: list[int], length: int) -> None:
    values.extend([0] * (length - len(values)))


@dataclass
class Timings:
    """Where a request's time went, in seconds; in a batch, shared passes count in full for each request.

    Attributes:
        time_to_first_token: from the request's start to its first token.
        total: from the request's start to its end.
        target: in the target's forward passes.
        draft: in the drafter.
        prefill: in those passes that read the prompt.
        calibration: in measuring the cost of passes, which only an engine's first drafts need.
    """

    time_to_first_token: float = 0.0
    total: float = 0.0
    target: float = 0.0
    draft: float = 0.0
    prefill: float = 0.0
    calibration: float = 0.0

    @property
    def overhead(self) -> float:
        """The rest: sampling, verification, text, counting."""
        return max(0.0, self.total - self.target - self.draft - self.calibration)

    def as_dict(self) -> dict[str, float]:
        """Returns the timings and the overhead, ready for JSON."""
        return asdict(self) | {"overhead": self.overhead}
