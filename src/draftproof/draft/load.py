"""From a drafter's name to the drafter."""

from __future__ import annotations

from draftproof.draft.base import Drafter
from draftproof.draft.model import ModelDrafter
from draftproof.draft.ngram import NgramDrafter
from draftproof.draft.null import NullDrafter
from draftproof.draft.suffix import SuffixDrafter
from draftproof.errors import choice_error
from draftproof.models.base import Model

_BY_NAME: dict[str, type[NullDrafter | NgramDrafter | SuffixDrafter]] = {
    each.name: each for each in (NullDrafter, NgramDrafter, SuffixDrafter)
}


def load_drafter(spec: str | Drafter, target: Model) -> Drafter:
    """Returns the drafter that a spec means, checked to serve `target`.

    Args:
        spec: `none`, `ngram`, `suffix`, or `model:SPEC` with the spec of a model; a drafter is returned as it is.
        target: the model to draft for.

    Raises:
        UsageError: if the spec is unknown, or the drafter cannot serve the target.
    """
    check_drafter(spec)
    drafter = spec if isinstance(spec, Drafter) else _make(spec)
    drafter.check(target.vocab_size)
    return drafter


def check_drafter(spec: str | Drafter) -> None:
    """Raises UsageError if a spec names no drafter; loads nothing."""
    if not isinstance(spec, str | Drafter):
        raise choice_error("drafter", spec, [*_BY_NAME, "model:SPEC", "a Drafter object"])
    if isinstance(spec, str) and spec not in _BY_NAME and not spec.startswith("model:"):
        raise choice_error("drafter", spec, [*_BY_NAME, "model:SPEC"])


def _make(spec: str) -> Drafter:
    if spec.startswith("model:"):
        from draftproof.models.load import load

        return ModelDrafter(load(spec.removeprefix("model:")))
    return _BY_NAME[spec]()
