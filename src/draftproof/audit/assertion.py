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


def _shown(value: Any) -> str:
    """Returns a value of a witness, numbers to four digits, one line for each part of a list of them."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "".join(f"\n    {_shown(each)}" for each in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(each)}" for key, each in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def explained(report: Report) -> str:
    """Returns a report as lines of text."""
    lines = [f"{report.subject}: {report.verdict.value}: {report.summary}", f"looked at: {report.looked_at}"]
    for finding in report.findings:
        lines.append(f"- {finding.what}")
        if finding.bug:
            lines.append(f"  nearest known bug: {finding.bug} (family: {finding.family})")
        if finding.p_value is not None:
            lines.append(f"  p-value {finding.p_value:.3g} (alarm below {report.alpha:g})")
        if finding.e_value is not None:
            lines.append(f"  e-value {finding.e_value:.3g} (alarm from {1.0 / report.alpha:g})")
        lines += [f"  {key}: {_shown(value)}" for key, value in finding.witness.items()]
    return "\n".join(lines)
