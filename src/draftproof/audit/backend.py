"""Audits a backend: are the logits of a pass over several rows those of as many passes over one row?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from draftproof.audit.report import Bars, Finding, Progress, Report, Verdict, silent
from draftproof.errors import UsageError, whole
from draftproof.models.base import Model, Query
from draftproof.models.load import load
from draftproof.request import Prompt, Request
from draftproof.truncation import own_law
from draftproof.types import NO_TOKENS, Tokens, as_tokens

LAYER = "the logits of a backend: passes over several rows, with drafts kept and dropped, against passes over one"

WIDTHS = (2, 3, 5, 9, 17)

LIKELY = 1e-3
"""Tokens at least this likely are compared by the logarithms of their probabilities."""

ROUNDING = 0.06
"""Standard deviation of log p beyond which it is no matter of rounding in bfloat16 or in a quantised model."""

ERROR = 0.1
"""Total variation of one row beyond which it is an error, if other rows are a tenth as far from their own."""


@dataclass
class _Compared:
    """What passes of one width showed.

    Attributes:
        distances: the total variation of each row.
        logs: differences of log p of likely tokens.
        largest: the largest difference of logits.
        flips: (gap in the one-row pass, text, its choice, the other choice) where the largest logit differs.
        worst: the row that is furthest off.
        equal: whether all rows are the same bit for bit.
        broken: a row with NaN or infinities where the other has none, or the reverse.
    """

    distances: list[float] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)
    largest: float = 0.0
    flips: list[tuple[float, list[int], int, int]] = field(default_factory=list)
    worst: dict[str, Any] = field(default_factory=dict)
    equal: bool = True
    broken: dict[str, Any] = field(default_factory=dict)

    def see(self, text: Tokens, place: int, one: Float[np.ndarray, "vocab"], many: Float[np.ndarray, "vocab"]) -> None:
        if not np.array_equal(np.isfinite(one), np.isfinite(many)):
            self.broken = self.broken or {"after": text[-12:].tolist(), "row of the pass": place}
            return
        self.equal = self.equal and np.array_equal(one, many)
        p, q = own_law(one), own_law(many)
        distance = 0.5 * float(np.abs(p - q).sum())
        if not self.distances or distance > max(self.distances):
            self.worst = {"after": text[-12:].tolist(), "row of the pass": place, "total variation": distance}
        self.distances.append(distance)
        likely = p >= LIKELY
        self.logs += (np.log(np.maximum(q[likely], 1e-300)) - np.log(p[likely])).tolist()
        finite = np.isfinite(one) & np.isfinite(many)
        self.largest = max(self.largest, float(np.abs(one - many)[finite].max(initial=0.0)))
        best, other = int(np.argmax(one)), int(np.argmax(many))
        if best != other:
            self.flips.append((float(one[best] - one[other]), text[-12:].tolist(), best, other))


def check_backend(
    target: Model | str,
    *,
    prompts: Sequence[Prompt],
    tokens: int = 128,
    widths: Sequence[int] = WIDTHS,
    seed: int = 0,
    progress: Progress = silent,
) -> Report:
    """Returns whether a backend gives a draft's rows the logits that it gives them one at a time.

    For each prompt the target samples a text, one row a pass. The same text is then scored with drafts: half of them
    its true continuation, half of them wrong from a random place on, so that what was drafted must be dropped again.
    Rows up to the first wrong token are compared.

    Args:
        target: a model or a spec.
        prompts: what the texts begin with.
        tokens: of each text.
        widths: rows of a pass.
        seed: of the texts and of the wrong tokens.
        progress: told how far it is.

    Raises:
        UsageError: if an argument is wrong.
    """
    if isinstance(prompts, str) or not len(prompts):
        raise UsageError("prompts must be a list with at least one prompt")
    if not widths or any(whole("widths", width) < 2 for width in widths):
        raise UsageError(f"widths {list(widths)} must be 2 or more: a pass over one row is what they are compared with")
    if whole("tokens", tokens) < max(widths):
        raise UsageError(f"tokens {tokens} are fewer than the widest pass has rows; use {max(widths)} or more")
    if whole("seed", seed) < 0:
        raise UsageError(f"seed {seed} is negative; use 0 or more")
    began = time.perf_counter()
    model = load(target)
    rng = np.random.default_rng(seed)
    compared = {width: _Compared() for width in widths}
    for place, prompt in enumerate(prompts):
        progress(place / len(prompts), f"text {place + 1} of {len(prompts)}")
        start = Request(prompt).prompt_tokens(model)
        room = model.context_length - len(start) - 1
        if room < max(widths):
            raise UsageError(
                f"a context of {model.context_length} has no room for a pass over {max(widths)} rows after a prompt of "
                f"{len(start)} tokens; give shorter prompts or smaller widths"
            )
        text, rows = _written(model, start, min(tokens, room), rng)
        for width, seen in compared.items():
            _score(model, text, len(start), rows, width, seen, rng)
    return _report(model, compared, time.perf_counter() - began)


def _written(
    model: Model, start: Tokens, tokens: int, rng: np.random.Generator
) -> tuple[Tokens, list[Float[np.ndarray, "vocab"]]]:
    """Returns a text of the model's own and the logits after each of its prefixes, from passes over one row."""
    text, rows = start, []
    with model.session() as session:
        for _ in range(tokens):
            row = session.score([Query(0, text, NO_TOKENS)])[0][0].copy()
            rows.append(row)
            edges = np.cumsum(own_law(row))
            text = np.append(text, np.int32(np.searchsorted(edges, rng.random() * edges[-1], side="right")))
    return text, rows


def _score(
    model: Model,
    text: Tokens,
    start: int,
    rows: Sequence[Float[np.ndarray, "vocab"]],
    width: int,
    seen: _Compared,
    rng: np.random.Generator,
) -> None:
    with model.session() as session:
        at = start
        while at + width - 1 < start + len(rows):
            draft = text[at : at + width - 1].copy()
            right = width - 1 if rng.random() < 0.5 else int(rng.integers(width - 1))
            draft[right:] = as_tokens(rng.integers(model.vocab_size, size=width - 1 - right))
            found = session.score([Query(0, text[:at], draft)])[0]
            for i in range(right + 1):
                seen.see(text[: at + i], i, rows[at + i - start], found[i])
            at += right + 1


def _report(model: Model, compared: dict[int, _Compared], seconds: float) -> Report:
    numbers: dict[str, Any] = {
        str(width): {
            "rows": len(seen.distances),
            "largest_logit_difference": seen.largest,
            "noise": float(np.std(seen.logs)) if seen.logs else 0.0,
            "mean_total_variation": float(np.mean(seen.distances or [0.0])),
            "largest_total_variation": max(seen.distances, default=0.0),
            "argmax_flips": len(seen.flips),
            "largest_flip_gap": max((gap for gap, *_ in seen.flips), default=0.0),
        }
        for width, seen in compared.items()
    }
    rows = sum(len(seen.distances) for seen in compared.values())
    noise = max(each["noise"] for each in numbers.values())
    findings = []
    for width, seen in compared.items():
        if seen.broken:
            what = f"in passes over {width} rows, a row has NaN or infinite logits where the pass over one row has not"
            findings.append(Finding(what, {"rows of a pass": width} | seen.broken, family="numbers"))
        if not seen.distances:
            continue
        typical = float(np.median(seen.distances))
        far = [each for each in seen.distances if each > ERROR and each > 10.0 * typical]
        if far or typical > ERROR:
            findings.append(
                Finding(
                    f"in passes over {width} rows, {len(far) or len(seen.distances)} of {len(seen.distances)} rows "
                    f"are not those of passes over one row: by up to {max(seen.distances):.2f} in total variation, "
                    "which no rounding explains",
                    {"rows of a pass": width} | seen.worst,
                    family="cache, mask or positions",
                )
            )
    flips = sum(len(seen.flips) for seen in compared.values())
    if findings:
        verdict, summary = Verdict.NOT_EXACT, findings[0].what
    elif all(seen.equal for seen in compared.values()):
        verdict, summary = Verdict.EXACT, "every row is bit for bit that of a pass over one row"
    else:
        gap = max(each["largest_flip_gap"] for each in numbers.values())
        verdict = Verdict.NO_EVIDENCE if noise <= ROUNDING else Verdict.INCONCLUSIVE
        much = "as rounding would have it" if noise <= ROUNDING else "by more than rounding usually is"
        summary = (
            f"rows differ, {much}: log p by {noise:.2g} (standard deviation, for `audit engine --noise`); {flips} "
            f"of {rows} largest logits change, at gaps up to {gap:.2g}"
        )
    bars = Bars(
        "total variation from passes over one row, by rows of a pass",
        list(numbers),
        [each["mean_total_variation"] for each in numbers.values()],
        [each["largest_total_variation"] for each in numbers.values()],
        ("mean", "largest"),
    )
    looked_at = f"{rows} rows in passes over {', '.join(map(str, compared))} rows"
    return Report(
        model.name, "backend", LAYER, verdict, summary, 0.0, looked_at, tuple(findings), (), numbers, (bars,), seconds
    )
