"""From a drafter's name to the drafter."""

from __future__ import annotations

from draftproof.draft.base import Drafter
from draftproof.draft.copies import load_copy
from draftproof.draft.model import ModelDrafter
from draftproof.draft.ngram import NgramDrafter
from draftproof.draft.null import NullDrafter
from draftproof.draft.suffix import SuffixDrafter
from draftproof.errors import choice_error
from draftproof.models.base import Model
from draftproof.models.load import load

_BY_NAME: dict[str, type[NullDrafter | NgramDrafter | SuffixDrafter]] = {
    each.name: each for each in (NullDrafter, NgramDrafter, SuffixDrafter)
}

_SPECS = [*_BY_NAME, "model:SPEC", "self:q4_0", "self:layers=N"]


def load_drafter(spec: str | Drafter, target: Model) -> Drafter:
    """Returns the drafter that a spec means, checked to serve `target`.

    Args:
        spec: `none`, `ngram`, `suffix`, `model:SPEC` with the spec of a model, `self:q4_0` for a copy of the target in
            fewer bits (llama.cpp), `self:layers=N` for its first layers (transformers); a drafter is returned as it is.
        target: the model to draft for.

    Raises:
        UsageError: if the spec is unknown, or the drafter cannot serve the target.
    """
    check_drafter(spec)
    drafter = spec if isinstance(spec, Drafter) else _make(spec, target)
    drafter.check(target)
    return drafter


def check_drafter(spec: str | Drafter) -> None:
    """Raises UsageError if a spec names no drafter; loads nothing."""
    if not isinstance(spec, str | Drafter):
        raise choice_error("drafter", spec, [*_SPECS, "a Drafter object"])
    if isinstance(spec, str) and spec not in _BY_NAME and not spec.startswith(("model:", "self:")):
        raise choice_error("drafter", spec, _SPECS)


def _make(spec: str, target: Model) -> Drafter:
    kind, _, rest = spec.partition(":")
    if kind == "model":
        return ModelDrafter(load(rest))
    if kind == "self":
        return ModelDrafter(load_copy(rest, target))
    return _BY_NAME[spec]()
