"""What an audit of a server has seen so far, and the report it makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from draftproof.audit.endpoint.answers import Answer
from draftproof.audit.endpoint.completions import Endpoint
from draftproof.audit.endpoint.promises import Check
from draftproof.audit.ledger import Ledger
from draftproof.audit.martingale import Evidence
from draftproof.audit.report import Finding, Report, Verdict
from draftproof.sampling import Sampler

Asked: TypeAlias = str | list[int]
"""A prompt as it is sent."""

Told = Callable[[float, str], None]


@dataclass(eq=False)
class Account:
    """One server under audit.

    Attributes:
        endpoint: the server.
        sampler: the law it is asked for.
        alpha: P("not exact") for an exact server.
        progress: told how far the texts are.
        layer: what the claim is about.
        ledger: what was bet.
        checks: the promises that were looked at.
        texts: how many were looked at.
        looked: tokens of them.
        unlisted: tokens of which no law was told.
        reported: logprobs that were compared with another server's.
        misreported: those that are wrong.
    """

    endpoint: Endpoint
    sampler: Sampler
    alpha: float
    progress: Told
    layer: str = "what the server answers"
    ledger: Ledger = field(init=False)
    checks: list[Check] = field(default_factory=list)
    texts: int = 0
    looked: int = 0
    unlisted: int = 0
    written: int = 0
    drafted: int = 0
    accepted: int = 0
    reported: int = 0
    misreported: int = 0
    furthest: float = 0.0
    drafter_failed: str | None = None

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.alpha, Evidence())

    def count(self, answer: Answer) -> None:
        """Notes an answer."""
        self.texts += 1
        self.written += answer.completion_tokens or len(answer.keys)
        self.drafted += answer.drafted or 0
        self.accepted += answer.accepted or 0
        if self.drafted:
            # No more tokens than were drafted can have been judged by a draft.
            self.ledger.evidence.acting = min(Evidence.acting, self.drafted / max(self.written, 1))

    def told(self) -> dict[str, Any]:
        """Returns the numbers that only a server has."""
        return {
            "model": self.endpoint.model,
            "logprobs": self.endpoint.logprobs,
            "draft_tokens": self.drafted or None,
            "accepted_draft_tokens": self.accepted or None,
            "drafter_failed": self.drafter_failed,
            "tokens_without_a_law": self.unlisted,
            "logprobs_compared": self.reported,
            "logprobs_off": self.misreported,
            "largest_difference_of_logprobs": self.furthest,
            "checks": [each.as_dict() for each in self.checks],
        }

    def report(self, finding: Finding | None, failed: bool = False, note: str | None = None) -> Report:
        """Returns the report.

        Args:
            finding: what is wrong, or why nothing is known.
            failed: it is the latter.
            note: what was found right, if it is not tokens by their laws.
        """
        greedy = self.sampler.greedy
        if finding is not None:
            verdict, summary = (Verdict.INCONCLUSIVE if failed else Verdict.NOT_EXACT), finding.what
        elif note is not None:
            verdict, summary = Verdict.NO_EVIDENCE, note
        else:
            verdict, summary = self.ledger.verdict(self.looked, greedy)
        numbers = {"tokens": self.looked, "texts": self.texts} | self.ledger.numbers(greedy)
        return self.completed(
            Report(
                self.endpoint.url,
                "endpoint",
                self.layer,
                verdict,
                summary,
                self.alpha,
                f"{self.looked} tokens of {self.texts} texts, {len(self.checks)} promises",
                () if finding is None else (finding,),
                () if greedy or note is not None else self.ledger.powers(),
                numbers | self.told(),
                () if greedy else self.ledger.plots(),
            )
        )

    @property
    def judged_by_baseline(self) -> bool:
        """Whether the promises that are not kept were looked at without speculation, too."""
        return any(each.baseline is not None for each in self.checks)

    def completed(self, report: Report) -> Report:
        """Returns a report with the promises that speculation breaks."""
        broken = [each for each in self.checks if each.by_speculation]
        if not broken:
            return report
        names = ", ".join(each.promise for each in broken)
        beside = "" if self.judged_by_baseline else "; whether speculation is why, baseline_url would tell"
        summary = f"of {len(self.checks)} promises {len(broken)} broken ({names}){beside}. Tokens: {report.summary}"
        found = [Finding(f"{each.promise}: {each.told}", each.witness) for each in broken]
        return replace(report, verdict=Verdict.NOT_EXACT, summary=summary, findings=(*report.findings, *found))
