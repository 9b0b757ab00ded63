"""`draftproof explain`: how a draft token is accepted, with all numbers."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftproof.cli.prompt import check_utf8
from draftproof.distribution import Distribution
from draftproof.errors import UsageError
from draftproof.explain import Explanation, Simulation, TokenAccount, explain_laws, laws_after, simulate
from draftproof.sampling import Sampler

LAWS = "Two laws"
POSITION = "A position of a real text"
OUTPUT = "Output"

WORKED_P = "0.5,0.3,0.15,0.05"
WORKED_Q = "0.6,0.2,0.1,0.1"

SUM_TOLERANCE = 1e-6
BAR = 40
NAME = 24
NUMBERS = 70
"""Columns that the numbers of a line need; a name gets what the terminal has left."""


def explain(
    p: Annotated[
        str | None,
        typer.Option("--p", metavar="P,P,...", help="The target's probabilities.", rich_help_panel=LAWS),
    ] = None,
    q: Annotated[
        str | None,
        typer.Option("--q", metavar="Q,Q,...", help="The drafter's probabilities.", rich_help_panel=LAWS),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Names of the tokens.", rich_help_panel=LAWS)
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Divide p and q by their sums.", rich_help_panel=LAWS)
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="Explain what follows --prompt for this model.", rich_help_panel=POSITION),
    ] = None,
    drafter: Annotated[
        str,
        typer.Option(
            metavar="SPEC", help="suffix or ngram (one token is certain), or model:SPEC.", rich_help_panel=POSITION
        ),
    ] = "suffix",
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The text so far, as it stands.", rich_help_panel=POSITION)
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="0 is greedy; 1 is the model's own law.", rich_help_panel=POSITION)
    ] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest; 0 keeps all.", rich_help_panel=POSITION)] = 0,
    top_p: Annotated[
        float, typer.Option(help="Keep the likeliest with this much probability.", rich_help_panel=POSITION)
    ] = 1.0,
    top: Annotated[
        int, typer.Option(help="Tokens to show; the others are added up in one line.", rich_help_panel=OUTPUT)
    ] = 10,
    draws: Annotated[
        int | None,
        typer.Option(
            "--simulate", metavar="N", help="Run the procedure N times; compare with p.", rich_help_panel=OUTPUT
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the simulation.", rich_help_panel=OUTPUT)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Show how draft tokens are accepted or replaced so that what comes out has exactly the target's law.

    Without options: the worked example of the documentation. With --p and --q: two laws of your own. With --target
    and --prompt: the next token of a real text.

    Exit status: 0 done, 1 something failed, 2 wrong usage.
    """
    if draws is not None and draws < 1:
        raise UsageError(f"--simulate {draws} is not a count of draws; give a positive one, for example 10000")
    if top < 1:
        raise UsageError(f"--top {top} is not a count of tokens; give a positive one")
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 100
    sampling = {"--temperature": temperature != 1.0, "--top-k": top_k != 0, "--top-p": top_p != 1.0}
    if target is None and prompt is None:
        for option, changed in ({"--drafter": drafter != "suffix"} | sampling).items():
            if changed:
                raise UsageError(f"{option} acts on the laws of a model; add --target and --prompt, or leave it out")
        law_p, law_q, names = _given(p, q, labels, normalize)
        _report(console, law_p, law_q, explain_laws(law_p, law_q, names.__getitem__), top, draws, seed, as_json, {})
        return
    _refuse_mixture(p, q, labels, normalize, target, prompt)
    _explain_position(
        console,
        target or "",
        drafter,
        prompt or "",
        Sampler(temperature=temperature, top_k=top_k, top_p=top_p),
        top,
        draws,
        seed,
        as_json,
    )


def _given(
    p: str | None, q: str | None, labels: str | None, normalize: bool
) -> tuple[Distribution, Distribution, list[str]]:
    if (p is None) != (q is None):
        lacking, present = ("--q", "--p") if q is None else ("--p", "--q")
        raise UsageError(f"{present} {p if q is None else q} came without {lacking}; give both laws")
    law_p, law_q = (
        _law(text, option, normalize)
        for text, option in ((WORKED_P if p is None else p, "--p"), (WORKED_Q if q is None else q, "--q"))
    )
    if len(law_p) != len(law_q):
        raise UsageError(f"--p has {len(law_p)} numbers and --q has {len(law_q)}; give as many, 0 where one is lacking")
    names = [str(token) for token in range(len(law_p))] if labels is None else labels.split(",")
    if len(names) != len(law_p):
        raise UsageError(f"--labels {labels!r} has {len(names)} names for {len(law_p)} tokens; give one for each")
    return law_p, law_q, [_shown(name) for name in names]


def _law(text: str, option: str, normalize: bool) -> Distribution:
    if not text.strip():
        raise UsageError(f"{option} is empty; give probabilities, for example {option} 0.5,0.3,0.2")
    values: list[float] = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not 0.0 <= value < math.inf:
            raise UsageError(
                f"{option} {text}: {part.strip()!r} is not a probability; give numbers from 0 to 1, separated by commas"
            )
        values.append(value)
    total = math.fsum(values)
    if total == 0.0:
        raise UsageError(f"{option} {text} sums to 0; at least one number must be positive")
    if abs(total - 1.0) > SUM_TOLERANCE and not normalize:
        raise UsageError(f"{option} {text} sums to {total:.9g}, not to 1; correct it, or add --normalize")
    return Distribution(np.array(values))


def _refuse_mixture(
    p: str | None, q: str | None, labels: str | None, normalize: bool, target: str | None, prompt: str | None
) -> None:
    if target is None:
        raise UsageError(f"--prompt {prompt!r} came without a model; add --target, for example --target smollm2-135m")
    if prompt is None:
        raise UsageError(f"--target {target} came without a text; add --prompt")
    if not prompt:
        raise UsageError("--prompt is empty; give at least one character")
    check_utf8(prompt)
    mixed = {"--p": p, "--q": q, "--labels": labels, "--normalize": normalize or None}
    for option, value in mixed.items():
        if value is not None:
            raise UsageError(f"{option} does not go with --target {target}, which has laws of its own; leave one out")


def _explain_position(
    console: Console,
    target: str,
    drafter: str,
    prompt: str,
    sampler: Sampler,
    top: int,
    draws: int | None,
    seed: int,
    as_json: bool,
) -> None:
    from draftproof.draft.load import load_drafter
    from draftproof.models.load import load

    with load(target) as model:
        proposer = load_drafter(drafter, model)
        law_p, law_q = laws_after(model, proposer, model.tokenizer.encode(prompt), sampler)

        def name(token: int) -> str:
            return _shown(model.tokenizer.token_name(token)) or f"<{token}>"

        about = {"target": model.name, "drafter": proposer.name, "prompt": prompt}
        if law_q is None:
            _report_no_draft(console, law_p, explain_laws(law_p, law_p, name), top, as_json, about)
        else:
            _report(console, law_p, law_q, explain_laws(law_p, law_q, name), top, draws, seed, as_json, about)


def _report(
    console: Console,
    p: Distribution,
    q: Distribution,
    full: Explanation,
    top: int,
    draws: int | None,
    seed: int,
    as_json: bool,
    about: dict[str, Any],
) -> None:
    explanation = full.top(top) if about else full
    simulation = None if draws is None else simulate(p, q, draws, seed)
    if as_json:
        found = None if simulation is None else simulation.as_dict()
        print(json.dumps(about | explanation.as_dict() | {"simulation": found}, ensure_ascii=False))
        return
    for key, value in about.items():
        console.print(Text(f"{key}: {value}"))
    ascii_only = console.options.ascii_only
    console.print(Text(_legend(ascii_only)), soft_wrap=True)
    console.print(_bars(explanation, ascii_only))
    console.print(_numbers(explanation, console.width))
    console.print(Text(_totals(explanation)), soft_wrap=True)
    if simulation is not None:
        console.print(Text(f"\n{draws} runs of the procedure, seed {seed}:"))
        console.print(_counts(explanation, simulation))
        console.print(Text(_verdict(explanation, simulation)), soft_wrap=True)


def _report_no_draft(
    console: Console, p: Distribution, full: Explanation, top: int, as_json: bool, about: dict[str, Any]
) -> None:
    tokens = [(each.token, each.name, each.p) for each in full.top(top).tokens]
    if as_json:
        shown = [{"token": token, "name": name, "p": chance} for token, name, chance in tokens]
        print(json.dumps(about | {"draft": None, "tokens": shown}, ensure_ascii=False))
        return
    for key, value in about.items():
        console.print(Text(f"{key}: {value}"))
    table = _table(NAME, "p")
    for _, name, chance in tokens:
        table.add_row(Text(name), _number(chance))
    console.print(table)
    console.print("the drafter proposes nothing here: the pass emits one token, drawn from p", soft_wrap=True)


def _bars(explanation: Explanation, ascii_only: bool) -> Table:
    shared, only_p, only_q = _marks(ascii_only)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(max_width=NAME, overflow="ellipsis", no_wrap=True)
    table.add_column(no_wrap=True)
    largest = max(max(each.p, each.q) for each in explanation.tokens)
    for each in explanation.tokens:
        both, p, q = (round(BAR * mass / largest) for mass in (each.accepted, each.p, each.q))
        both = min(both, p, q)
        bar = Text.assemble("p ", (shared * both, "green"), (only_p * (p - both), "yellow"), "\n")
        bar.append_text(Text.assemble("q ", (shared * both, "green"), (only_q * (q - both), "red")))
        table.add_row(Text(each.name), bar)
    return table


def _marks(ascii_only: bool) -> tuple[str, str, str]:
    return ("#", "+", "-") if ascii_only else ("█", "▒", "░")


def _legend(ascii_only: bool) -> str:
    shared, only_p, only_q = _marks(ascii_only)
    return (
        "p is the target's law, q the drafter's; a token drawn from q is accepted or\n"
        "replaced so that what comes out has law p\n"
        f"{shared} in both (accepted), {only_p} only in p (residual), {only_q} only in q (rejected)"
    )


def _table(width: int, *headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("token", max_width=width, overflow="ellipsis", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _numbers(explanation: Explanation, columns: int) -> Table:
    table = _table(
        max(5, min(NAME, columns - NUMBERS)),
        "p",
        "q",
        "accept\nmin(1,p/q)",
        "accepted\nmin(p,q)",
        "given\naccepted",
        "residual",
        "output",
    )
    for each in explanation.tokens:
        table.add_row(Text(each.name), *map(_number, _columns(each)))
    total = (1.0, 1.0, None, explanation.acceptance, *(_sums(explanation)))
    table.add_section()
    table.add_row("sum", *("" if value is None else _number(value) for value in total))
    return table


def _columns(each: TokenAccount) -> tuple[float | None, ...]:
    return (each.p, each.q, each.alpha, each.accepted, each.given_acceptance, each.residual, each.output)


def _sums(explanation: Explanation) -> list[float | None]:
    accepted = 1.0 if explanation.acceptance > 0.0 else None
    rejected = 1.0 if explanation.residual_mass > 0.0 else None
    return [accepted, rejected, math.fsum(each.output for each in explanation.tokens)]


def _totals(explanation: Explanation) -> str:
    a, z = explanation.acceptance, explanation.residual_mass
    return "\n".join(
        [
            f"a draft is accepted with probability {_number(a)}: the overlap, sum of min(p, q) = 1 - TV",
            f"it is rejected with probability {_number(z)} (TV, the distance of p and q); then the token is drawn",
            "  from the residual, max(p - q, 0) divided by its sum",
            f"output = accepted + {_number(z)} * residual = p (largest difference {explanation.largest_error:.1e})",
        ]
    )


def _counts(explanation: Explanation, simulation: Simulation) -> Table:
    table = _table(NAME, "p", "expected", "counted", "z")
    named = {each.token for each in explanation.tokens}
    others = sum(count for token, count in simulation.counts.items() if token not in named)
    for each in explanation.tokens:
        count = others if each.token is None else simulation.counts.get(each.token, 0)
        z = Simulation.z(count, simulation.draws, each.p)
        table.add_row(
            Text(each.name),
            _number(each.p),
            f"{simulation.draws * each.p:.1f}",
            str(count),
            "-" if z is None else f"{z:+.2f}",
        )
    return table


def _verdict(explanation: Explanation, simulation: Simulation) -> str:
    lines = [
        f"accepted {simulation.accepted} of {simulation.draws} drafts; expected "
        f"{simulation.draws * explanation.acceptance:.1f}",
        "z: by how many standard deviations a count differs from its expectation; beyond 3 is rare",
    ]
    if simulation.p_value < 1e-6:
        lines.append(
            f"these counts do NOT fit p: chance gives a difference this large less than once in a million simulations "
            f"(G = {simulation.g:.1f}, {simulation.degrees_of_freedom} degrees of freedom); please report this"
        )
    else:
        lines.append(
            f"these counts fit p: of simulations whose law is exactly p, {_share(simulation.p_value)} differ at least "
            f"this much (G = {simulation.g:.2f}, {simulation.degrees_of_freedom} degrees of freedom)"
        )
    return "\n".join(lines)


def _share(chance: float) -> str:
    return f"{100 * chance:.0f} in 100" if chance >= 0.01 else f"1 in {1 / chance:.0f}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if value == 0.0 or value >= 0.0001 else f"{value:.1e}"


def _shown(name: str) -> str:
    """Returns a name on one line: spaces and control characters made visible."""
    text = name.encode("unicode_escape").decode() if not name.isprintable() else name
    return repr(text) if text != text.strip() or not text else text
