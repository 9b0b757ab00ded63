"""What an audit concludes, and what a person needs to check it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from enum import Enum, StrEnum
from typing import Any, TypeAlias

from draftproof.text import printable


class Verdict(StrEnum):
    """What an audit concludes."""

    EXACT = "exact"
    NO_EVIDENCE = "no evidence against"
    NOT_EXACT = "not exact"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> int:
        """0, 1 or 3, for the command line."""
        return {Verdict.NOT_EXACT: 1, Verdict.INCONCLUSIVE: 3}.get(self, 0)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, with what shows it.

    Attributes:
        what: a sentence.
        witness: where it was seen: input, expected and observed, by name, ready for JSON.
        p_value: P(evidence at least this strong) if nothing is wrong, or None.
        e_value: the evidence as a wager: at least this much is won with probability at most its inverse, or None.
        bug: the known bug whose law is nearest, or None.
        family: its family, or None.
    """

    what: str
    witness: dict[str, Any] = field(default_factory=dict)
    p_value: float | None = None
    e_value: float | None = None
    bug: str | None = None
    family: str | None = None

    def lines(self, alpha: float) -> list[str]:
        """Returns it as lines of text; `alpha` is the level that its p- or e-value is held against."""
        lines = [self.what]
        if self.bug:
            lines.append(f"  nearest known bug: {self.bug} (family: {self.family})")
        if self.p_value is not None:
            lines.append(f"  p-value {self.p_value:.3g}; not exact below {alpha:g}")
        if self.e_value is not None:
            lines.append(f"  e-value {self.e_value:.3g}; not exact from {1.0 / alpha:g} on")
        for name, value in self.witness.items():
            several = isinstance(value, list) and value and isinstance(value[0], dict)
            lines += [f"  {name}: {shown(each)}" for each in (value if several else [value])]
        return lines


def shown(value: Any) -> str:
    """Returns a value of a report as text, numbers to four digits."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(each)}" for name, each in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Power:
    """Whether an audit would have found a known bug.

    Attributes:
        bug: its name.
        family: its family.
        power: P(it would have been found) with what this audit looked at.
    """

    bug: str
    family: str
    power: float


@dataclass(frozen=True)
class Bars:
    """A plot: two laws side by side.

    Attributes:
        title: what is shown.
        labels: the outcomes.
        expected: the target's law.
        observed: what was seen.
        legend: what the two are.
    """

    title: str
    labels: list[str]
    expected: list[float]
    observed: list[float]
    legend: tuple[str, str] = ("the target's law", "what was seen")


@dataclass(frozen=True)
class Line:
    """A plot: a number over tokens.

    Attributes:
        title: what is shown.
        x: tokens.
        y: the number at each.
        threshold: where a verdict is reached.
    """

    title: str
    x: list[int]
    y: list[float]
    threshold: float


@dataclass(frozen=True)
class Report:
    """The result of an audit.

    Attributes:
        subject: what was audited.
        level: "rule", "engine", "backend" or "endpoint".
        layer: what the claim is about, and what it is not.
        verdict: the conclusion.
        summary: it, in a sentence.
        alpha: P("not exact") if nothing is wrong.
        looked_at: how much was looked at, in words.
        findings: what is wrong.
        power: what would have been found.
        numbers: measured values by name, ready for JSON.
        plots: for the page.
        seconds: wall time.
    """

    subject: str
    level: str
    layer: str
    verdict: Verdict
    summary: str
    alpha: float
    looked_at: str
    findings: tuple[Finding, ...] = ()
    power: tuple[Power, ...] = ()
    numbers: dict[str, Any] = field(default_factory=dict)
    plots: tuple[Bars | Line, ...] = ()
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing was found, and enough was looked at."""
        return self.verdict in (Verdict.EXACT, Verdict.NO_EVIDENCE)

    @property
    def likeliest_bug(self) -> str | None:
        """The first finding's nearest known bug."""
        return next((finding.bug for finding in self.findings if finding.bug), None)

    @property
    def family(self) -> str | None:
        """The first finding's family of bugs."""
        return next((finding.family for finding in self.findings if finding.family), None)

    def printable(self) -> Report:
        """Returns the report with control characters escaped in all its text, some of which an engine has written."""
        cleaned: Report = _printable(self)
        return cleaned

    def as_dict(self) -> dict[str, Any]:
        """Returns the report, ready for JSON: no infinities, verdict as its text."""
        found: dict[str, Any] = _finite(asdict(self) | {"verdict": self.verdict.value})
        del found["plots"]
        return found


Progress: TypeAlias = Callable[[float, str], None]
"""Told now and then: the share that is done, and what is being done."""


def silent(share: float, what: str) -> None:
    """Tells nobody."""


def _printable(value: Any) -> Any:
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_printable(key): _printable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_printable, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: _printable(getattr(value, each.name)) for each in fields(value)})
    return value


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
