"""Settings of every test: the same examples on every machine, and no time limit on a single one."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("draftproof", derandomize=True, deadline=None, max_examples=150)
settings.load_profile("draftproof")
