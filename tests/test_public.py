"""The public face: names that exist and are sorted, and an import that loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import draftproof as dp


def test_the_public_names_are_sorted_and_exist() -> None:
    assert list(dp.__all__) == sorted(dp.__all__)
    for name in dp.__all__:
        assert getattr(dp, name) is not None


def test_importing_the_package_imports_no_model_library() -> None:
    code = (
        "import draftproof, sys;"
        "print([m for m in ('torch', 'transformers', 'llama_cpp', 'jinja2', 'scipy', 'typer') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
