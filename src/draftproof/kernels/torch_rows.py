"""The batched acceptance step on tensors, all rows at once: no branch on a value, no wait for a device."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from draftproof.kernels.problem import Problem, Shaping, in_unit, rows_of
from draftproof.sampling import GREEDY_TEMPERATURE

Answer: TypeAlias = tuple[Tensor, Tensor, Tensor]

SHARE = 8
"""Working memory is kept to about one part in so many of the rows."""

ROWS = 6
"""So many rows of float64 one row of the batch needs while it is judged."""


def verify(problem: Problem) -> Answer:
    """See `Kernel.verify`; in groups of rows, so that the working memory stays a fraction of the input."""
    batch, places, _ = problem.target.shape
    size = batch
    if not torch.compiler.is_compiling():
        rows = (2 * places - 1 if problem.draft is not None else places) * problem.target.element_size()
        size = max(1, batch * rows // (SHARE * ROWS * 8))
    parts = [_judge(rows_of(problem, first, min(first + size, batch))) for first in range(0, batch, size)]
    if not parts:
        return _nothing(problem)
    accepted, emitted, failed = zip(*parts, strict=True)
    return torch.cat(accepted), torch.cat(emitted), torch.cat(failed)


def _nothing(problem: Problem) -> Answer:
    empty = problem.tokens.new_zeros(0)
    return empty, problem.tokens.new_zeros((0, problem.target.shape[1])), empty.bool()


def _judge(problem: Problem) -> Answer:
    _, places, vocab = problem.target.shape
    width = places - 1
    inside = (problem.tokens >= 0) & (problem.tokens < vocab)
    lengths = torch.minimum(problem.lengths, inside.long().cumprod(1).sum(1))
    ids = problem.tokens.clamp(0, vocab - 1)
    coins_bad = _outside(problem.accept) | _outside(problem.final) | (problem.lengths < 0) | (problem.lengths > width)
    judge = {"token": _token, "block": _block, "match": _match}[problem.rule]
    accepted, token, failed = judge(problem, ids, lengths.clamp(0, width))
    failed = failed | coins_bad
    accepted = torch.where(failed, 0, accepted)
    place = torch.arange(places, device=ids.device)
    drafts = torch.cat([ids, token[:, None]], 1)
    emitted = torch.where(
        place < accepted[:, None], drafts, torch.where(place == accepted[:, None], token[:, None], -1)
    )
    return accepted, torch.where(failed[:, None], -1, emitted), failed


def _outside(uniforms: Tensor) -> Tensor:
    inside: Tensor = in_unit(uniforms).all(1)
    return ~inside


def _token(problem: Problem, ids: Tensor, lengths: Tensor) -> Answer:
    width = ids.shape[1]
    going = torch.ones_like(lengths, dtype=torch.bool)
    accepted = torch.zeros_like(lengths)
    failed = torch.zeros_like(going)
    for i in range(width):
        read = going & (i < lengths)
        p, p_bad = _probs(problem.target[:, i], problem.shaping, problem.tolerances[0])
        q, q_bad = _draft_probs(problem, ids, i)
        px, qx = _at(p, ids[:, i]), _at(q, ids[:, i])
        failed = failed | (read & (p_bad | q_bad | ~(qx > 0.0)))
        going = read & (problem.accept[:, i] * qx < px)
        accepted = accepted + going.long()
    token, bad = _final(problem, ids, lengths, accepted, torch.ones_like(problem.final[:, 0]))
    return accepted, token, failed | bad


def _block(problem: Problem, ids: Tensor, lengths: Tensor) -> Answer:
    width = ids.shape[1]
    reach = torch.ones_like(problem.final[:, 0])
    accepted, scale = torch.zeros_like(lengths), reach
    failed = torch.zeros_like(lengths, dtype=torch.bool)
    for i in range(width):
        # The chance of the prefix before this place needs this place's laws.
        p, p_bad = _probs(problem.target[:, i], problem.shaping, problem.tolerances[0])
        q, q_bad = _draft_probs(problem, ids, i)
        if i > 0:
            excess = (reach[:, None] * p - q).clamp(min=0.0).sum(1)
            chance = torch.where(reach < 1.0, excess / (excess + (1.0 - reach)), 1.0)
            lands = (i < lengths) & (reach > 0.0) & (problem.accept[:, i - 1] < chance)
            accepted, scale = torch.where(lands, i, accepted), torch.where(lands, reach, scale)
        read = (i < lengths) & ~(reach == 0.0)
        px, qx = _at(p, ids[:, i]), _at(q, ids[:, i])
        failed = failed | (read & (p_bad | q_bad | ~(qx > 0.0)))
        reach = torch.where(read, (reach * px / torch.where(qx > 0.0, qx, 1.0)).clamp(max=1.0), reach)
        lands = (lengths == i + 1) & (problem.accept[:, i] < reach)
        accepted, scale = torch.where(lands, i + 1, accepted), torch.where(lands, reach, scale)
    token, bad = _final(problem, ids, lengths, accepted, scale)
    return accepted, token, failed | bad


def _match(problem: Problem, ids: Tensor, lengths: Tensor) -> Answer:
    width = ids.shape[1]
    going = torch.ones_like(lengths, dtype=torch.bool)
    accepted, token = torch.zeros_like(lengths), torch.zeros_like(lengths)
    failed = torch.zeros_like(going)
    for i in range(width + 1):
        p, bad = _probs(problem.target[:, i], problem.shaping, problem.tolerances[0])
        y = _search(p, problem.final[:, i])
        failed = failed | (going & bad)
        token = torch.where(going, y, token)
        if i < width:
            going = going & (i < lengths) & (y == ids[:, i])
            accepted = accepted + going.long()
    return accepted, token, failed


def _final(problem: Problem, ids: Tensor, lengths: Tensor, accepted: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the token after the accepted ones: from the residual, or the bonus; and where there is no law for it."""
    p, bad = _probs(_row(problem.target, accepted), problem.shaping, problem.tolerances[0])
    width = ids.shape[1]
    if width:
        cut = accepted < lengths
        place = accepted.clamp(max=width - 1)
        if problem.draft is None:
            q = torch.zeros_like(p).scatter_(1, ids.gather(1, place[:, None]), 1.0)
        else:
            q, _ = _probs(_row(problem.draft, place), problem.draft_shaping, problem.tolerances[1])
        left = torch.where(cut[:, None], (scale[:, None] * p - q).clamp(min=0.0), p)
        p = torch.where((left.amax(1) > 0.0)[:, None], left, p)
    coin = problem.final.gather(1, accepted[:, None])[:, 0]
    return _search(p, coin), bad


def _row(rows: Tensor, places: Tensor) -> Tensor:
    return torch.take_along_dim(rows, places[:, None, None], 1)[:, 0]


def _at(laws: Tensor, ids: Tensor) -> Tensor:
    return laws.gather(1, ids[:, None])[:, 0]


def _draft_probs(problem: Problem, ids: Tensor, place: int) -> tuple[Tensor, Tensor]:
    if problem.draft is not None:
        return _probs(problem.draft[:, place], problem.draft_shaping, problem.tolerances[1])
    batch, vocab = ids.shape[0], problem.target.shape[2]
    one_hot = torch.zeros((batch, vocab), dtype=torch.float64, device=ids.device)
    return one_hot.scatter_(1, ids[:, place : place + 1], 1.0), torch.zeros_like(ids[:, 0], dtype=torch.bool)


def _search(weights: Tensor, u: Tensor) -> Tensor:
    edges = weights.cumsum(1)
    aim = u[:, None] * edges[:, -1:]
    place = torch.searchsorted(edges, aim, right=True)
    # Where u times the total rounds up to the total itself: the last id with a weight.
    return torch.minimum(place, torch.searchsorted(edges, edges[:, -1:].contiguous()))[:, 0]


def _probs(rows: Tensor, shaping: Shaping | None, tolerance: float) -> tuple[Tensor, Tensor]:
    """Returns rows of probabilities, float64 `[batch, vocab]`, and which rows are no law."""
    if shaping is None:
        weights = rows.double()
        total = weights.sum(1, keepdim=True)
        bad = ~((weights.amin(1) >= 0.0) & ((total[:, 0] - 1.0).abs() <= tolerance))
        return weights / torch.where(total > 0.0, total, 1.0), bad
    top = rows.amax(1, keepdim=True).double()
    bad = ~top[:, 0].isfinite()
    temperature = shaping.temperature[:, None]
    greedy = temperature < GREEDY_TEMPERATURE
    scaled = (rows.double() - top) / torch.where(greedy, 1.0, temperature)
    weights = _truncated(scaled, shaping)
    weights = weights / weights.sum(1, keepdim=True)
    likeliest = torch.zeros_like(weights).scatter_(1, rows.argmax(1, keepdim=True), 1.0)
    return torch.where(greedy, likeliest, weights), bad


def _truncated(scaled: Tensor, shaping: Shaping) -> Tensor:
    """Returns the exponentials of scaled logits where top-k, top-p and min-p keep them, else 0."""
    weights = scaled.exp()
    by_count, by_mass, by_ratio = shaping.cuts
    if by_count:
        k = shaping.top_k[:, None].double()
        kept = _fewest(scaled, torch.ones_like(weights), k)
        weights = torch.where((k <= 0.0) | kept, weights, 0.0)
    if by_mass:
        share = shaping.top_p[:, None]
        kept = _fewest(torch.where(weights > 0.0, scaled, -torch.inf), weights, share * weights.sum(1, keepdim=True))
        weights = torch.where((share >= 1.0) | kept, weights, 0.0)
    if by_ratio:
        weights = torch.where(weights >= shaping.min_p[:, None], weights, 0.0)
    return weights


def _fewest(values: Tensor, weights: Tensor, mass: Tensor) -> Tensor:
    """Returns where the fewest largest values are whose weights reach `mass`, the lowest places on ties."""
    order = torch.sort(values, dim=1, descending=True, stable=True).indices
    reached = weights.gather(1, order).cumsum(1)
    # A value is kept while those before it do not reach the mass; the first always is.
    needed = torch.cat([torch.ones_like(reached[:, :1], dtype=torch.bool), reached[:, :-1] < mass], 1)
    return torch.zeros_like(needed).scatter_(1, order, needed)
