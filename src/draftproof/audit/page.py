"""A report as one HTML page that needs nothing else: numbers, witnesses and plots."""

from __future__ import annotations

import json
from html import escape

from draftproof.audit.report import Bars, Finding, Line, Report, Verdict
from draftproof.version import __version__

WIDTH, HEIGHT, LEFT, BELOW = 720, 260, 56, 40
_COLOURS = {
    Verdict.EXACT: "#1a7f37",
    Verdict.NO_EVIDENCE: "#1a7f37",
    Verdict.NOT_EXACT: "#b42318",
    Verdict.INCONCLUSIVE: "#9a6700",
}
_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#1f2328}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}.verdict{font-size:1.6rem;font-weight:600}
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #d0d7de;padding:.3rem .5rem;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}pre{background:#f6f8fa;padding:.75rem;overflow-x:auto}
svg{width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:#57606a}
"""


def page(report: Report) -> str:
    """Returns the report as an HTML document."""
    parts = [
        f"<h1>Is {escape(report.subject)} lossless?</h1>",
        f'<p class="verdict" style="color:{_COLOURS[report.verdict]}">{escape(report.verdict.value)}</p>',
        f"<p>{escape(report.summary)}</p>",
        f"<p>About: {escape(report.layer)}.<br>Looked at: {escape(report.looked_at)}, in {report.seconds:.1f} s."
        + (f"<br>Chance of a false alarm: {report.alpha:g}.</p>" if report.alpha else "</p>"),
        *map(_finding, report.findings),
        *map(_plot, report.plots),
    ]
    if report.power:
        rows = "".join(
            f'<tr><td>{escape(each.bug)}</td><td>{escape(each.family)}</td><td class="n">{each.power:.3f}</td></tr>'
            for each in report.power
        )
        parts.append(
            "<h2>What would have been found</h2><table><tr><th>bug</th><th>family</th><th>probability</th></tr>"
            f"{rows}</table>"
        )
    found = report.as_dict()["numbers"]
    checks = found.pop("checks", [])
    if checks:
        rows = "".join(
            f"<tr><td>{escape(each['promise'])}</td><td>{escape(each['outcome'])}</td>"
            f"<td>{escape(each['baseline'] or '')}</td><td>{escape(each['told'])}</td></tr>"
            for each in checks
        )
        parts.append(
            "<h2>Promises</h2><table><tr><th>promise</th><th>outcome</th><th>without speculation</th><th>seen</th></tr>"
            f"{rows}</table>"
        )
    numbers = json.dumps(found, indent=2, ensure_ascii=False)
    parts.append(f"<h2>Numbers</h2><pre>{escape(numbers)}</pre><p>draftproof {__version__}</p>")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(report.subject)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _finding(finding: Finding) -> str:
    facts = [f"<h2>Found</h2><p>{escape(finding.what)}</p>"]
    if finding.bug:
        facts.append(
            f"<p>Nearest known bug: <b>{escape(finding.bug)}</b> (family: {escape(finding.family or '')}).</p>"
        )
    for name, value in (("p-value", finding.p_value), ("e-value", finding.e_value)):
        if value is not None:
            facts.append(f"<p>{name}: {value:.3g}</p>")
    witness = json.dumps(finding.witness, indent=2, ensure_ascii=False, default=str)
    return "".join([*facts, f"<pre>{escape(witness)}</pre>"])


def _plot(plot: Bars | Line) -> str:
    drawing = _bars(plot) if isinstance(plot, Bars) else _line(plot)
    viewed = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(plot.title)}"'
    return f"<h2>{escape(plot.title[0].upper() + plot.title[1:])}</h2><svg {viewed}>{drawing}</svg>"


def _bars(plot: Bars) -> str:
    most = max([*plot.expected, *plot.observed, 1e-12])
    room, foot = (WIDTH - LEFT) / len(plot.labels), HEIGHT - BELOW
    legend = f"grey: {plot.legend[0]}; blue: {plot.legend[1]}"
    drawn = [_axis(foot), f'<text x="4" y="16">{most:.3g}</text>']
    for i, (label, expected, observed) in enumerate(zip(plot.labels, plot.expected, plot.observed, strict=True)):
        x = LEFT + i * room
        for offset, value, colour in ((0.1, expected, "#8c959f"), (0.5, observed, "#0969da")):
            tall = (foot - 10) * value / most
            drawn.append(
                f'<rect x="{x + offset * room:.1f}" y="{foot - tall:.1f}" width="{0.38 * room:.1f}" '
                f'height="{tall:.1f}" fill="{colour}"><title>{escape(label)}: {value:.4g}</title></rect>'
            )
        drawn.append(f'<text x="{x + 0.5 * room:.1f}" y="{foot + 16}" text-anchor="middle">{escape(label)}</text>')
    drawn.append(f'<text x="{LEFT}" y="{HEIGHT - 6}">{escape(legend)}</text>')
    return "".join(drawn)


def _line(plot: Line) -> str:
    low, high = min([*plot.y, 0.0]), max([*plot.y, plot.threshold, 1e-9])
    foot, last = HEIGHT - BELOW, max(plot.x[-1], 1)

    def place(x: float, y: float) -> str:
        return f"{LEFT + (WIDTH - LEFT - 8) * x / last:.1f},{foot - (foot - 10) * (y - low) / (high - low):.1f}"

    bar = place(0, plot.threshold), place(last, plot.threshold)
    points = " ".join(place(x, y) for x, y in zip(plot.x, plot.y, strict=True))
    return (
        f'{_axis(foot)}<polyline points="{bar[0]} {bar[1]}" fill="none" stroke="#b42318" stroke-dasharray="5 4"/>'
        f'<polyline points="{place(0, 0.0)} {points}" fill="none" stroke="#0969da" stroke-width="2"/>'
        f'<text x="4" y="16">{high:.2g}</text><text x="4" y="{foot}">{low:.2g}</text>'
        f'<text x="{WIDTH - 8}" y="{foot + 16}" text-anchor="end">{plot.x[-1]} tokens</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">dashed: where it is called not exact</text>'
    )


def _axis(foot: int) -> str:
    return f'<path d="M{LEFT} 6V{foot}H{WIDTH - 4}" fill="none" stroke="#8c959f"/>'
