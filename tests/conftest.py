"""Settings of every test: the same examples on every machine, and no time limit on a single one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from jaxtyping import config

pytest_plugins = ["pytester"]

settings.register_profile("draftproof", derandomize=True, deadline=None, max_examples=150)
settings.load_profile("draftproof")


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switches the run-time type checker off: the test gives arguments that users may, and the code must refuse."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
