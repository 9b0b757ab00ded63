"""What `verify_logits` is measured against: the acceptance steps of others, and plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

import draftproof as dp

PATTERNS = ("all", "half", "none")
"""Which draft tokens are accepted."""


@dataclass(frozen=True)
class Inputs:
    """One batch, with drafts whose acceptance is certain.

    Attributes:
        target: logits `[batch, draft+1, vocab]`.
        draft: logits `[batch, draft, vocab]`.
        tokens: `[batch, draft]`.
        uniforms: `[batch, draft+1]`.
    """

    target: Tensor
    draft: Tensor
    tokens: Tensor
    uniforms: Tensor

    def needed_rows(self, pattern: str) -> list[Tensor]:
        """Returns the rows that a verdict cannot do without."""
        k = self.tokens.shape[1]
        accepted = accepted_by(pattern, k)
        last = min(accepted + 1, k)
        return [self.target[:, : accepted + 1], self.draft[:, :last]]


def accepted_by(pattern: str, k: int) -> int:
    """Returns how many of k draft tokens a pattern accepts."""
    return {"all": k, "half": k // 2, "none": 0}[pattern]


def make_inputs(batch: int, k: int, vocab: int, pattern: str, device: str = "cpu", seed: int = 0) -> Inputs:
    """Returns logits like a language model's, and drafts that are accepted or rejected for certain.

    The id of rank r has a probability that falls as r**-1.5, with noise: 0.95 of the mass is on some hundred ids.
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    ranked = -1.5 * torch.arange(1, vocab + 1, device=device, dtype=torch.float32).log()
    ranked = ranked[torch.randperm(vocab, generator=generator, device=device)]
    shifts = torch.randint(0, vocab, (batch * (k + 1),), generator=generator, device=device).tolist()
    target = torch.stack([ranked.roll(shift) for shift in shifts]).view(batch, k + 1, vocab)
    target += 0.5 * torch.randn(batch, k + 1, vocab, generator=generator, device=device)
    draft = target[:, :k] + 0.5 * torch.randn(batch, k, vocab, generator=generator, device=device)
    tokens = torch.randint(0, vocab, (batch, k), generator=generator, device=device)
    accepted = torch.arange(k, device=device) < accepted_by(pattern, k)
    high, low = target.amax() + 4.0, target.amin() - 20.0
    # p/q far above 1 where accepted, far below where rejected.
    at = tokens[:, :, None]
    target[:, :k].scatter_(2, at, torch.where(accepted, high, low).expand(batch, k)[:, :, None])
    draft.scatter_(2, at, torch.where(accepted, low, high).expand(batch, k)[:, :, None])
    return Inputs(
        target, draft, tokens, torch.rand(batch, k + 1, generator=generator, device=device).clamp(1e-6, 0.999)
    )


Contender: TypeAlias = Callable[[Inputs], Any]


def ours(impl: str, top_p: float) -> Contender:
    """`verify_logits`."""

    def run(inputs: Inputs) -> Any:
        return dp.verify_logits(
            inputs.target, inputs.tokens, inputs.draft, uniforms=inputs.uniforms, top_p=top_p, impl=impl
        )  # fmt: skip

    return run


def count_accepted(inputs: Inputs, p: Tensor, q: Tensor) -> Tensor:
    """Returns how many draft tokens the acceptance criterion keeps, on whole tensors, `[batch]`."""
    k = inputs.tokens.shape[1]
    at = inputs.tokens[:, :, None]
    px, qx = p[:, :k].gather(2, at)[..., 0], q.gather(2, at)[..., 0]
    return (inputs.uniforms[:, :k] * qx < px).long().cumprod(1).sum(1)


def residual_at(p: Tensor, q: Tensor, accepted: Tensor) -> Tensor:
    """Returns the unnormalised law of the final token, the bonus's after a draft accepted whole, `[batch, vocab]`."""
    row = accepted[:, None, None]
    padded = torch.cat([q, torch.zeros_like(p[:, :1])], 1)
    return (torch.take_along_dim(p, row, 1) - torch.take_along_dim(padded, row, 1))[:, 0].clamp(min=0.0)


def plain_torch(top_p: float) -> Contender:
    """Softmax of everything, then the acceptance criterion on whole tensors; top-p by a sort."""

    def run(inputs: Inputs) -> Any:
        p, q = _law(inputs.target, top_p), _law(inputs.draft, top_p)
        accepted = count_accepted(inputs, p, q)
        return accepted, torch.multinomial(residual_at(p, q, accepted), 1)

    return run


def _law(logits: Tensor, top_p: float) -> Tensor:
    if top_p >= 1.0:
        return logits.softmax(-1)
    ordered, order = logits.sort(-1, descending=True)
    mass = ordered.softmax(-1)
    dropped = mass.cumsum(-1) - mass > top_p
    return logits.scatter(-1, order, ordered.masked_fill(dropped, -torch.inf)).softmax(-1)


def transformers_step(top_p: float) -> Contender:
    """Transformers' own step of assisted generation, with its own top-p; one request at a time, as it is."""
    from transformers.generation.logits_process import TopPLogitsWarper
    from transformers.generation.utils import _speculative_sampling

    warp = TopPLogitsWarper(top_p) if top_p < 1.0 else None

    def run(inputs: Inputs) -> Any:
        found = []
        k = inputs.tokens.shape[1]
        for row in range(len(inputs.tokens)):
            target, draft = inputs.target[row : row + 1], inputs.draft[row : row + 1]
            if warp is not None:
                ids = inputs.tokens[row : row + 1]
                target = torch.stack([warp(ids, target[:, i]) for i in range(k + 1)], 1)
                draft = torch.stack([warp(ids, draft[:, i]) for i in range(k)], 1)
            found.append(_speculative_sampling(inputs.tokens[row : row + 1], draft, k, target))
        return found

    return run


def flashspec_step(top_p: float) -> Contender:
    """Flashspec's step without a host synchronisation; it has no top-p."""
    from flashspec.sampling.rejection import rejection_step

    def run(inputs: Inputs) -> Any:
        return rejection_step(inputs.tokens, inputs.draft.log_softmax(-1), inputs.target.log_softmax(-1))

    return run


def contenders(top_p: float) -> dict[str, Contender]:
    """Returns what can be run here, by name; what cannot is left out."""
    makers: dict[str, Callable[[], Contender]] = {
        "draftproof torch": lambda: ours("torch", top_p),
        "draftproof numpy": lambda: ours("numpy", top_p),
        "plain PyTorch": lambda: plain_torch(top_p),
        "transformers": lambda: transformers_step(top_p),
        "flashspec": lambda: flashspec_step(top_p),
    }
    if top_p < 1.0:
        del makers["flashspec"]
    found = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except ImportError:
            continue
    return found
