"""`assert_lossless`: an audit of a verification function as an assertion."""

from __future__ import annotations

from typing import Any

from draftproof.audit.conventions import Function
from draftproof.audit.report import Report
from draftproof.audit.rule import check_rule


def assert_lossless(function: Function | str, *, least_power: float = 0.95, **options: Any) -> Report:
    """Asserts that a verification function emits exactly the target's law, and that the audit would have seen bugs.

    Args:
        function: as for `check_rule`.
        least_power: every bug of the zoo must be found with at least this probability by what the audit looked at.
        **options: as for `check_rule`.

    Returns:
        The report.

    Raises:
        AssertionError: with the witness, if the function is not exact; or if too little was looked at.
        UsageError: if an argument is wrong, or the function does not answer to its convention.
    """
    report = check_rule(function, **options)
    if not report.ok:
        raise AssertionError(explained(report))
    weak = [f"{each.bug} ({each.power:.2f})" for each in report.power if each.power < least_power]
    if weak:
        raise AssertionError(
            f"{report.subject}: nothing was found, but these bugs would be found with less than {least_power}: "
            f"{', '.join(weak)}; raise draws, {options.get('draws', 200_000)} here"
        )
    return report


def explained(report: Report) -> str:
    """Returns a report as lines of text."""
    lines = [f"{report.subject}: {report.verdict.value}: {report.summary}", f"looked at: {report.looked_at}"]
    for finding in report.findings:
        lines += finding.lines(report.alpha)
    return "\n".join(lines)
