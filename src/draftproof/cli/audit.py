"""`draftproof audit`: is a verification function, an engine, a backend or a server really lossless?"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftproof.audit.report import Progress, Report, shown
from draftproof.errors import UsageError
from draftproof.models.base import Model
from draftproof.request import Prompt
from draftproof.text import printable

app = typer.Typer(
    help="Find out whether a verification function, an engine, a backend or a server is really lossless.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

LAW = "The law that is claimed"
ENGINE = "The engine"
SERVER = "The server"
EVIDENCE = "Evidence"
OUTPUT = "Output"

SELDOM = 20.0
"""Seconds between lines that tell how far an audit is, where there is no terminal."""

PROMPTS = (
    "Once upon a time",
    "The three most important things to know about rivers are",
    "Question: Why is the sky blue?\nAnswer:",
    "def fibonacci(n):\n",
    "Dear Sir or Madam,\n",
    "The recipe needs flour, sugar, eggs and",
    "one two three four, one two three four, one two three",
    "- red: #ff0000\n- green: #00ff00\n- blue: #0000ff\n- black: #000000\n- white:",
)
"""What engines are asked to go on from if the user has no prompts."""

Temperature = Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=LAW)]
TopK = Annotated[int, typer.Option(help="0 keeps all.", rich_help_panel=LAW)]
TopP = Annotated[float, typer.Option(help="1 keeps all.", rich_help_panel=LAW)]
MinP = Annotated[float, typer.Option(help="0 keeps all.", rich_help_panel=LAW)]
MostTokens = Annotated[int, typer.Option(help="How many to look at, at most.", rich_help_panel=EVIDENCE)]
TextTokens = Annotated[int, typer.Option(help="Most tokens of one text.", rich_help_panel=EVIDENCE)]
Alpha = Annotated[float, typer.Option(help="Chance of a false alarm.", rich_help_panel=EVIDENCE)]
FirstSeed = Annotated[int, typer.Option(help="Of the first text.", rich_help_panel=EVIDENCE)]
PromptsFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A prompt a line; default: a few short ones.", rich_help_panel=EVIDENCE),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=OUTPUT)]
AsPage = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Also write a page with plots.", rich_help_panel=OUTPUT)
]


@app.command()
def rule(
    function: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="The verification function.")],
    convention: Annotated[
        str, typer.Option(help="How it is called: probs, logits, torch, transformers, flashinfer or vllm.")
    ] = "probs",
    hidden: Annotated[
        bool, typer.Option("--hidden", help="It draws its own randomness, though it might be given uniforms.")
    ] = False,
    draws: Annotated[int, typer.Option(help="Drafts for each pair of laws, if its randomness is hidden.")] = 200_000,
    alpha: Annotated[float, typer.Option(help="Chance of a false alarm, if its randomness is hidden.")] = 1e-4,
    seed: Annotated[int, typer.Option(help="Of drafts and of completions.")] = 0,
    as_json: AsJson = False,
    html: AsPage = None,
) -> None:
    """Audit a function (target_probs, draft_tokens, draft_probs, uniforms) -> (num_accepted, tokens).

    Where uniforms can be injected its exact law is computed; where not, its frequencies are tested.

    Exit status: 0 exact, or no evidence against it; 1 not exact; 2 wrong usage; 3 inconclusive.
    """
    from draftproof.audit.rule import check_rule

    _check_page(html)
    sys.path.insert(0, "")
    _finish(
        check_rule(
            function,
            convention=convention,
            hidden=hidden or None,
            draws=draws,
            alpha=alpha,
            seed=seed,
            progress=_progress(),
        ),
        as_json,
        html,
    )


@app.command()
def engine(
    target: Annotated[
        str, typer.Option(metavar="SPEC", help="The model whose law is claimed.", rich_help_panel=ENGINE)
    ] = "smollm2-135m",
    drafter: Annotated[
        str, typer.Option(metavar="SPEC", help="What drafts: suffix, ngram, none, model:SPEC.", rich_help_panel=ENGINE)
    ] = "suffix",
    rule: Annotated[
        str, typer.Option(help="Of our own engine: auto, token, block, match, coupled.", rich_help_panel=ENGINE)
    ] = "auto",
    draft_length: Annotated[
        str, typer.Option("--num-draft-tokens", help="A count, or auto.", rich_help_panel=ENGINE)
    ] = "auto",
    library: Annotated[
        str,
        typer.Option(
            help="Whose engine: draftproof, or transformers (assisted by a model:SPEC drafter, else prompt lookup).",
            rich_help_panel=ENGINE,
        ),
    ] = "draftproof",
    call: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION", help="Any engine: (prompt ids, max_tokens, seed) -> ids.", rich_help_panel=ENGINE
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of a transformers model's weights.", rich_help_panel=ENGINE)
    ] = None,
    temperature: Temperature = 1.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="1 is none.", rich_help_panel=LAW)] = 1.0,
    prompts: PromptsFile = None,
    tokens: MostTokens = 5_000,
    max_tokens: TextTokens = 64,
    alpha: Alpha = 1e-3,
    noise: Annotated[
        float | None,
        typer.Option(
            help="Standard deviation of log p by rounding, as `audit backend` tells; default: 0.02, none for toys.",
            rich_help_panel=EVIDENCE,
        ),
    ] = None,
    naming: Annotated[
        int, typer.Option(help="Tokens more, at most, to name the bug that was found.", rich_help_panel=EVIDENCE)
    ] = 1_000,
    seed: FirstSeed = 0,
    as_json: AsJson = False,
    html: AsPage = None,
) -> None:
    """Audit the tokens of an engine against its target's law, until it is known or the tokens are used up.

    Exit status: 0 no evidence against it; 1 not exact; 2 wrong usage; 3 inconclusive.
    """
    from draftproof.audit.conventions import resolve
    from draftproof.audit.engine import check_engine
    from draftproof.draft.load import check_drafter, load_drafter
    from draftproof.draft.model import ModelDrafter
    from draftproof.engine import Engine
    from draftproof.models.load import load
    from draftproof.rules.load import check_rule
    from draftproof.sampling import Sampler

    if library not in ("draftproof", "transformers"):
        raise UsageError(f"--library {library!r} is unknown; use draftproof or transformers, or --call MODULE:FUNCTION")
    if call is not None and library != "draftproof":
        raise UsageError(f"--call {call} and --library {library} name two engines; leave one out")
    check_drafter(drafter)
    check_rule(rule)
    _check_page(html)
    sampler = Sampler(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty
    )
    listed = None if prompts is None else _lines(prompts)
    length = "auto" if draft_length == "auto" else _count(draft_length, "--num-draft-tokens")
    sys.path.insert(0, "")
    function = None if call is None else resolve(call)
    with load(target, **({} if dtype is None else {"dtype": dtype})) as model:
        proposer = load_drafter(drafter, model)
        suspect: Any
        if function is not None:
            suspect = function
        elif library == "transformers":
            from draftproof.audit.transformers_generate import TransformersGenerate
            from draftproof.models.transformers import TransformersModel

            if not isinstance(model, TransformersModel):
                raise UsageError(f"--library transformers needs a target of transformers; {target} is none")
            assistant: dict[str, Any] = {"prompt_lookup_num_tokens": 10}
            if isinstance(proposer, ModelDrafter):
                if not isinstance(proposer.model, TransformersModel):
                    raise UsageError(f"--library transformers needs a drafter of transformers; {drafter} is none")
                assistant = {"assistant_model": proposer.model.module}
            suspect = TransformersGenerate(model, sampler, **assistant)
        else:
            suspect = Engine(model, proposer, rule, sampler, length)  # type: ignore[arg-type]
        report = check_engine(
            suspect,
            target=model,
            drafter=proposer,
            sampler=sampler,
            prompts=_asked(model) if listed is None else listed,
            max_tokens=max_tokens,
            tokens=tokens,
            alpha=alpha,
            noise=noise,
            naming=naming,
            seed=seed,
            name=call or f"{library} ({model.name}, {drafter})",
            progress=_progress(),
        )
    _finish(report, as_json, html)


@app.command()
def backend(
    target: Annotated[str, typer.Option(metavar="SPEC", help="The model.")] = "smollm2-135m",
    dtype: Annotated[str | None, typer.Option(help="Of a transformers model's weights.")] = None,
    device: Annotated[str | None, typer.Option(help="Of a transformers model.")] = None,
    widths: Annotated[str, typer.Option(metavar="N,N,...", help="Rows of a pass.")] = "2,3,5,9,17",
    tokens: Annotated[int, typer.Option(help="Of each text.")] = 128,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A prompt a line; default: a few short ones.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the texts.")] = 0,
    as_json: AsJson = False,
    html: AsPage = None,
) -> None:
    """Audit a backend: are the logits of a pass over several rows those of passes over one row?

    Exit status: 0 exact, or as near as rounding; 1 not exact; 2 wrong usage; 3 inconclusive.
    """
    from draftproof.audit.backend import check_backend
    from draftproof.models.load import load

    rows = [_count(part, "--widths") for part in widths.split(",")]
    listed = None if prompts is None else _lines(prompts)
    _check_page(html)
    options = {name: value for name, value in (("dtype", dtype), ("device", device)) if value is not None}
    with load(target, **options) as model:
        report = check_backend(
            model,
            prompts=_asked(model) if listed is None else listed,
            tokens=tokens,
            widths=rows,
            seed=seed,
            progress=_progress(),
        )
    _finish(report, as_json, html)


@app.command()
def endpoint(
    url: Annotated[str, typer.Option(help="The API's root, such as http://127.0.0.1:8000/v1.", rich_help_panel=SERVER)],
    baseline_url: Annotated[
        str | None, typer.Option(help="The same model served without speculation.", rich_help_panel=SERVER)
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="Or a copy of the model on this machine.", rich_help_panel=SERVER),
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="What it drafts with, as far as known: ngram, suffix, model:SPEC.",
            rich_help_panel=SERVER,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model's name there; default: the only one.", rich_help_panel=SERVER)
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="DRAFTPROOF_API_KEY", show_envvar=True, help="For --url.", rich_help_panel=SERVER),
    ] = None,
    baseline_model: Annotated[
        str | None, typer.Option(help="Its name at --baseline-url; default: the same.", rich_help_panel=SERVER)
    ] = None,
    baseline_api_key: Annotated[
        str | None,
        typer.Option(
            envvar="DRAFTPROOF_BASELINE_API_KEY", show_envvar=True, help="For --baseline-url.", rich_help_panel=SERVER
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one answer.", rich_help_panel=SERVER)] = 60.0,
    retries: Annotated[
        int, typer.Option(help="How often a request without an answer is sent again.", rich_help_panel=SERVER)
    ] = 2,
    concurrency: Annotated[int, typer.Option(help="Requests under way at a time.", rich_help_panel=SERVER)] = 4,
    temperature: Temperature = 1.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    prompts: PromptsFile = None,
    tokens: MostTokens = 5_000,
    max_tokens: TextTokens = 64,
    logprobs: Annotated[
        int, typer.Option(help="Likeliest tokens to ask for at each place.", rich_help_panel=EVIDENCE)
    ] = 20,
    promises: Annotated[
        bool,
        typer.Option(help="Also look at counts, stops, seeds, logprobs and parameters.", rich_help_panel=EVIDENCE),
    ] = True,
    alpha: Alpha = 1e-3,
    noise: Annotated[
        float | None,
        typer.Option(
            help="Standard deviation of log p by rounding; default: 0.02, or 1e-4 against its own report.",
            rich_help_panel=EVIDENCE,
        ),
    ] = None,
    seed: FirstSeed = 0,
    as_json: AsJson = False,
    html: AsPage = None,
) -> None:
    """Audit a server with the OpenAI completions API: vLLM, llama.cpp, SGLang, ours.

    Its tokens are held against the laws of a copy of the model, else those its baseline tells, else those it reports
    itself. Nothing is sent to any other address.

    Exit status: 0 no evidence against it; 1 not exact; 2 wrong usage; 3 inconclusive.
    """
    from draftproof.audit.endpoint import check_endpoint
    from draftproof.sampling import Sampler

    _check_page(html)
    _finish(
        check_endpoint(
            url,
            baseline_url=baseline_url,
            target=target,
            drafter=drafter,
            model=model,
            baseline_model=baseline_model,
            api_key=api_key,
            baseline_api_key=baseline_api_key,
            sampler=Sampler(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p),
            prompts=PROMPTS if prompts is None else _lines(prompts),
            max_tokens=max_tokens,
            tokens=tokens,
            alpha=alpha,
            noise=noise,
            logprobs=logprobs,
            seed=seed,
            concurrency=concurrency,
            timeout=timeout,
            retries=retries,
            promises=promises,
            progress=_progress(),
        ),
        as_json,
        html,
    )


def _asked(model: Model) -> list[Prompt]:
    """Returns the prompts above, or ids where the model's tokenizer cannot write them."""
    try:
        return [model.tokenizer.encode(prompt) for prompt in PROMPTS]
    except UsageError:
        return [[token % model.vocab_size for token in range(first, first + 4)] for first in range(0, 15, 3)]


def _check_page(html: Path | None) -> None:
    """Refuses a page that cannot be written before anything is computed."""
    if html is not None and (html.is_dir() or not html.absolute().parent.is_dir()):
        raise UsageError(f"--html {html} cannot be written; give a file in a directory that exists")


def _lines(path: Path) -> list[str]:
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prompts {path} cannot be read ({error}); give a text file with a prompt a line") from None
    if not lines:
        raise UsageError(f"--prompts {path} has no prompt; write one a line")
    return lines


def _count(text: str, option: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"{option} {text!r} is no count; use a whole number")
    return int(text)


def _progress() -> Progress:
    """Returns what shows how far an audit is: one line that changes on a terminal, one now and then elsewhere."""
    console = Console(stderr=True, highlight=False)
    began = time.monotonic()
    last = began

    def tell(share: float, what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < (0.5 if console.is_terminal else SELDOM):
            return
        last = now
        left = f", {(now - began) * (1.0 - share) / share:.0f} s left at most" if share > 0.01 else ""
        line = Text(f"{100 * share:3.0f} %  {printable(what)}{left}")
        if console.is_terminal:
            console.print(line.append("\033[K"), end="\r", soft_wrap=True)
        else:
            console.print(line, soft_wrap=True)

    return tell


def _finish(report: Report, as_json: bool, html: Path | None) -> None:
    """Prints a report, writes its page and ends with its exit status."""
    if as_json:
        print(json.dumps(report.as_dict(), ensure_ascii=False))
    else:
        _print(report.printable())
    if html is not None:
        from draftproof.audit.page import page

        try:
            html.write_text(page(report.printable()), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--html {html} cannot be written ({error.strerror}); choose another place") from None
    raise typer.Exit(report.verdict.exit_code)


def _print(report: Report) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 100
    style = "bold green" if report.ok else "bold red" if report.verdict.exit_code == 1 else "bold yellow"
    console.print(Text.assemble(f"{report.subject}: ", (report.verdict.value, style)))
    console.print(Text(report.summary), soft_wrap=True)
    console.print(Text(f"about: {report.layer}"), soft_wrap=True)
    console.print(Text(f"looked at: {report.looked_at}, in {report.seconds:.1f} s"), soft_wrap=True)
    for finding in report.findings:
        lines = finding.lines(report.alpha)
        told = lines[1:] if lines[0] == report.summary else ["", *lines]
        if told:
            console.print(Text("\n".join(told)), soft_wrap=True)
    if report.level == "backend":
        _print_widths(console, report)
    if report.numbers.get("checks"):
        _print_checks(console, report)
    if report.power and not any(finding.e_value for finding in report.findings):
        acting = report.numbers.get("share_of_tokens_a_bug_is_taken_to_act_on")
        share = "" if acting is None else f", if it acts on {100 * acting:.0f} % of tokens"
        table = Table("bug", "family", f"would be found{share}", box=box.SIMPLE_HEAD, pad_edge=False)
        for each in report.power:
            table.add_row(each.bug, each.family, f"{100.0 * each.power:.0f} %")
        console.print(table)


def _print_widths(console: Console, report: Report) -> None:
    names = list(next(iter(report.numbers.values())))
    table = Table("rows a pass", *(name.replace("_", " ") for name in names), box=box.SIMPLE_HEAD, pad_edge=False)
    for width, row in report.numbers.items():
        table.add_row(width, *(shown(row[name]) for name in names))
    console.print(table)


def _print_checks(console: Console, report: Report) -> None:
    beside = any(each["baseline"] for each in report.numbers["checks"])
    columns = ["promise", "outcome", *(["without speculation"] if beside else []), "seen"]
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for each in report.numbers["checks"]:
        middle = [Text(str(each["baseline"] or ""))] if beside else []
        table.add_row(Text(each["promise"]), Text(str(each["outcome"])), *middle, Text(each["told"]))
    console.print(table)
