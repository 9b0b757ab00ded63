"""`draftproof generate`: text by draft-and-verify, with what it was worth."""

from __future__ import annotations

import json
import math
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from enum import StrEnum
from typing import Annotated, Any, Literal, cast

import typer
from rich.console import Console

from draftproof.cli.prompt import read_prompt
from draftproof.comparison import Comparison, compare, decoding_speed
from draftproof.draft import Drafter, ModelDrafter, NullDrafter
from draftproof.draft.load import check_drafter
from draftproof.draft.model import VOCABULARY_MODES, VocabularyMode
from draftproof.engine import Engine
from draftproof.errors import RequestError, UsageError, choice_error
from draftproof.metrics import Counts, Timings
from draftproof.models.base import Model
from draftproof.models.load import load
from draftproof.request import Request
from draftproof.rules.load import check_rule
from draftproof.sampling import Sampler
from draftproof.types import Completion, Step, TokenLogprob, Usage

SAMPLING = "Sampling"
SPECULATION = "Speculation"
MODEL = "Model"
OUTPUT = "Output"


class Setting(StrEnum):
    """An option of the backend that can be left to it."""

    auto = "auto"
    on = "on"
    off = "off"


_FLASH: dict[Setting | None, bool | str | None] = {
    None: None,
    Setting.auto: "auto",
    Setting.on: True,
    Setting.off: False,
}
_INVARIANT = {None: None, Setting.auto: None, Setting.on: True, Setting.off: False}


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; - (or nothing, in a pipe) reads it from standard input.")
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            help="smollm2-135m (embedded), FILE.gguf, a transformers directory or hub name, or toy:NAME.",
            rich_help_panel=MODEL,
        ),
    ] = "smollm2-135m",
    threads: Annotated[
        int | None, typer.Option(help="Threads of a pass; default: the cores there are.", rich_help_panel=MODEL)
    ] = None,
    context_length: Annotated[
        int | None, typer.Option(help="Most tokens of prompt and text together.", rich_help_panel=MODEL)
    ] = None,
    flash_attention: Annotated[
        Setting | None, typer.Option(help="Fused attention; default: the fastest.", rich_help_panel=MODEL)
    ] = None,
    batch_invariant: Annotated[
        Setting | None,
        typer.Option(
            help="Rows that do not depend on what is computed with them; default: on, where llama.cpp can.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Of a transformers model's weights: auto, bfloat16, float32, ...", rich_help_panel=MODEL),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Of a transformers model: cpu, cuda, cuda:1; default: a GPU if any.", rich_help_panel=MODEL),
    ] = None,
    drafter: Annotated[
        str,
        typer.Option(
            help="suffix, ngram, none, model:SPEC, self:q4_0 (a copy in fewer bits) or self:layers=N.",
            rich_help_panel=SPECULATION,
        ),
    ] = "suffix",
    draft_vocabulary: Annotated[
        str,
        typer.Option(
            help="How a draft model of another vocabulary drafts: auto, same, intersection or text.",
            rich_help_panel=SPECULATION,
        ),
    ] = "auto",
    rule: Annotated[
        str,
        typer.Option(
            help="auto, token, block, match or coupled (same seed, same text, whatever the drafter).",
            rich_help_panel=SPECULATION,
        ),
    ] = "auto",
    num_draft_tokens: Annotated[
        str,
        typer.Option(help="Tokens to draft for each pass, or auto: as many as pay.", rich_help_panel=SPECULATION),
    ] = "auto",
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.", rich_help_panel=SAMPLING)] = 128,
    temperature: Annotated[
        float, typer.Option(help="0 is greedy, always the likeliest token.", rich_help_panel=SAMPLING)
    ] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest; 0 keeps all.", rich_help_panel=SAMPLING)] = 0,
    top_p: Annotated[
        float, typer.Option(help="Keep the likeliest with this much probability.", rich_help_panel=SAMPLING)
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Keep those this likely relative to the likeliest.", rich_help_panel=SAMPLING)
    ] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1 discourages what was in prompt or text.", rich_help_panel=SAMPLING)
    ] = 1.0,
    presence_penalty: Annotated[
        float, typer.Option(help="Subtracted once for what is in the text.", rich_help_panel=SAMPLING)
    ] = 0.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="Subtracted for each time it is in the text.", rich_help_panel=SAMPLING)
    ] = 0.0,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=BIAS", help="Add to an id's logit; repeat for more.", rich_help_panel=SAMPLING),
    ] = None,
    min_tokens: Annotated[
        int, typer.Option(help="No end of sequence before this many tokens.", rich_help_panel=SAMPLING)
    ] = 0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after an end of sequence.", rich_help_panel=SAMPLING)
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Same seed, same text (coupled rule, unless --rule says otherwise).", rich_help_panel=SAMPLING
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="End the text before this string; repeat for more.", rich_help_panel=SAMPLING),
    ] = None,
    raw: Annotated[
        bool | None,
        typer.Option(
            "--raw/--chat",
            help="Complete the prompt as it stands, or answer it as a chat message; "
            "default: chat if the model has a template.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    compare_plain: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Also decode plainly; print the measured speed-up and whether the texts agree.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of streaming.", rich_help_panel=OUTPUT)
    ] = False,
    logprobs: Annotated[
        int | None,
        typer.Option(
            help="With --json: log-probabilities, and this many likeliest tokens beside each.", rich_help_panel=OUTPUT
        ),
    ] = None,
) -> None:
    """Generate text by draft-and-verify: exactly the target model's text, in fewer passes.

    The text goes to standard output; one line of figures goes to standard error.

    Exit status: 0 done, 1 the generation failed (what was produced stays printed), 2 wrong usage, 130 interrupted.
    """
    sampler = Sampler(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=_biases(logit_bias or []),
        min_tokens=min_tokens,
    )
    if logprobs is not None and not as_json:
        raise UsageError(f"--logprobs {logprobs} needs --json: streamed text has no place for them")
    draft_length = _draft_length(num_draft_tokens)
    check_drafter(drafter)
    if draft_vocabulary not in VOCABULARY_MODES:
        raise choice_error("--draft-vocabulary", draft_vocabulary, [*VOCABULARY_MODES])
    if draft_vocabulary != "auto" and not drafter.startswith("model:"):
        raise UsageError(f"--draft-vocabulary {draft_vocabulary} is for draft models; use it with --drafter model:SPEC")
    check_rule(rule)
    text = read_prompt(prompt)
    request = Request(
        text, seed=seed, max_tokens=max_tokens, stop=tuple(stop or ()), ignore_eos=ignore_eos, logprobs=logprobs
    )
    options = {
        "context_length": context_length,
        "threads": threads,
        "flash_attention": _FLASH[flash_attention],
        "batch_invariant": _INVARIANT[batch_invariant],
        "dtype": dtype,
        "device": device,
    }
    console = Console(stderr=True, highlight=False)
    with progress(console, f"loading {target} ..."):
        model = load(target, **{name: value for name, value in options.items() if value is not None})
    chosen: Drafter | str = drafter
    if draft_vocabulary != "auto":
        chosen = ModelDrafter(load(drafter.removeprefix("model:")), vocabulary=cast(VocabularyMode, draft_vocabulary))
    with model, Engine(model, chosen, rule, sampler, draft_length) as engine:
        if engine.drafter.describe() != engine.drafter.name:
            console.print(f"drafting with {engine.drafter.describe()}", soft_wrap=True)
        if not raw and (raw is False or model.tokenizer.has_chat_template):
            request = replace(request, prompt=[{"role": "user", "content": text}])
        request.prompt_tokens(model)  # refuses a bad prompt before anything is measured
        if not isinstance(engine.drafter, NullDrafter):
            with progress(console, "measuring what a pass costs ..."):
                engine.prepare()
        completion = _stream(engine, request, show=not as_json)
        interrupted = False
        report = _as_dict(completion, engine)
        if not as_json:
            console.print(figures(completion), soft_wrap=True)
        if compare_plain and completion.finish_reason in ("stop", "length"):
            try:
                with progress(console, "decoding plainly, in turn with speculation ..."):
                    comparison = compare(engine, request, completion)
                report["comparison"] = comparison.as_dict()
                if not as_json:
                    console.print(verdict(comparison, model, completion.counts.num_draft_tokens), soft_wrap=True)
            except KeyboardInterrupt:
                interrupted = True
        if as_json:
            readable = sys.stdout.encoding.lower().replace("-", "") == "utf8"
            print(json.dumps(report, ensure_ascii=not readable, allow_nan=False))
    if interrupted or completion.finish_reason == "abort":
        raise typer.Exit(130)
    if completion.error is not None:
        raise completion.error


def figures(completion: Completion) -> str:
    """Returns the one line that says what speculation did."""
    counts, usage = completion.counts, completion.usage
    parts = [f"{usage.completion_tokens} tokens ({completion.finish_reason})"]
    parts.append(f"{decoding_speed(completion):.1f} tokens/s")
    parts.append(f"first token after {1000 * completion.timings.time_to_first_token:.0f} ms")
    if counts.tokens_per_pass is not None:
        parts.append(f"{counts.tokens_per_pass:.2f} tokens a pass")
    if counts.draft_acceptance_rate is None:
        parts.append("nothing drafted")
    else:
        parts.append(
            f"{counts.num_accepted_tokens} of {counts.num_draft_tokens} draft tokens accepted "
            f"({100 * counts.draft_acceptance_rate:.0f} %)"
        )
    if completion.drafter_error is not None:
        parts.append(f"drafter switched off: {completion.drafter_error}")
    return "[" + ", ".join(parts) + "]"


def verdict(comparison: Comparison, model: Model, drafted: int) -> str:
    """Returns what a comparison with plain decoding showed, in words."""
    if comparison.speedup is None:
        return "nothing was generated, so there is nothing to compare"
    lines = [
        f"plain decoding: {comparison.plain_tokens_per_second:.1f} tokens/s; with speculation "
        f"{comparison.tokens_per_second:.1f} tokens/s: {comparison.speedup:.2f}x (medians of alternating runs)"
    ]
    if drafted == 0:
        lines.append("nothing was drafted, so both ways did the same work, and the ratio is noise")
    apart = comparison.divergence
    if comparison.agree:
        lines.append(f"the texts agree, all {len(comparison.plain.tokens)} tokens")
    elif not comparison.same_text_expected:
        lines.append(
            "the texts differ, as two samples do: this rule keeps the law, not the sample; "
            "use --rule coupled to get plain decoding's own text"
        )
    elif apart is None:
        lines.append("the texts agree as far as the shorter goes, but end at different places")
    else:
        names = [repr(model.tokenizer.token_name(token)) for token in (apart.expected, apart.found)]
        lines.append(
            f"the texts agree for {apart.index} tokens, then plain decoding has {names[0]}, speculation {names[1]}"
        )
        if apart.near_tie:
            lines.append(
                f"a near tie: the two are {abs(apart.gap):.2g} apart for the model, and the same row computed in a "
                f"pass over several tokens shifts by up to {apart.rounding:.2g} from rounding alone; "
                "both texts are the model's"
            )
        else:
            lines.append(
                f"NOT a near tie: the two are {abs(apart.gap):.2g} apart and rounding shifts that by at most "
                f"{apart.rounding:.2g}; please report this"
            )
    return "\n".join(lines)


def progress(console: Console, message: str) -> AbstractContextManager[Any]:
    """Shows a message while something goes on: a spinner on a terminal, one plain line elsewhere."""
    if console.is_terminal:
        return console.status(message)
    print(message, file=sys.stderr, flush=True)
    return nullcontext()


def _stream(engine: Engine, request: Request, *, show: bool) -> Completion:
    """Streams a request to standard output; what was produced stays, whatever ends it."""
    steps: list[Step] = []
    began = time.perf_counter()
    stream = engine.stream(request)
    try:
        for step in stream:
            steps.append(step)
            if show:
                print(step.text, end="", flush=True)
    except KeyboardInterrupt:
        return _interrupted(engine, request, steps, time.perf_counter() - began)
    except RequestError:
        pass  # the last step holds it, beside what was produced
    finally:
        if show:
            print(flush=True)
    completion = steps[-1].completion
    assert completion is not None
    return completion


def _interrupted(engine: Engine, request: Request, steps: list[Step], seconds: float) -> Completion:
    tokens = [token for step in steps for token in step.tokens]
    counts = Counts()
    for step in steps:
        counts.add(step.num_draft_tokens, step.num_accepted_tokens, len(step.tokens))
    return Completion(
        text="".join(step.text for step in steps),
        tokens=tokens,
        finish_reason="abort",
        usage=Usage(len(request.prompt_tokens(engine.target)), len(tokens)),
        counts=counts,
        timings=Timings(total=seconds),
    )


def _as_dict(completion: Completion, engine: Engine) -> dict[str, Any]:
    return {
        "model": engine.target.name,
        "drafter": engine.drafter.name,
        "rule": completion.rule,
        "seed": completion.seed,
        "text": completion.text,
        "tokens": completion.tokens,
        "finish_reason": completion.finish_reason,
        "usage": asdict(completion.usage) | {"total_tokens": completion.usage.total_tokens},
        "counts": completion.counts.as_dict(),
        "timings": completion.timings.as_dict(),
        "logprobs": None if completion.logprobs is None else [_logprob_as_dict(each) for each in completion.logprobs],
        "error": None if completion.error is None else str(completion.error),
        "drafter_error": None if completion.drafter_error is None else str(completion.drafter_error),
    }


def _logprob_as_dict(entry: TokenLogprob) -> dict[str, Any]:
    # JSON has no -Infinity, the log-probability of what the model itself rules out.
    def number(logprob: float) -> float | None:
        return logprob if math.isfinite(logprob) else None

    return {
        "token": entry.token,
        "logprob": number(entry.logprob),
        "top": [(token, number(logprob)) for token, logprob in entry.top],
    }


def _draft_length(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--num-draft-tokens {text!r} is unknown; use a count or auto") from None


def _biases(pairs: list[str]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for pair in pairs:
        token, _, bias = pair.partition("=")
        try:
            biases[int(token)] = float(bias)
        except ValueError:
            raise UsageError(f"--logit-bias {pair!r} is not ID=BIAS; write for example --logit-bias 13=-100") from None
    return biases
