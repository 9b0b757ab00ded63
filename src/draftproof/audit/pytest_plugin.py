"""Law tests for any engine's test suite.

Put `pytest_plugins = ["draftproof.audit.pytest_plugin"]` into the top `conftest.py`; then

```python
def test_my_rule_is_lossless(lossless):
    lossless(my_verify)

def test_my_own_law_test_sees(known_bug):       # runs once for each bug of the zoo
    with pytest.raises(AssertionError):
        my_law_test(known_bug)
```
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from draftproof.audit.assertion import assert_lossless
from draftproof.audit.zoo import BUGS

if TYPE_CHECKING:
    from draftproof.audit.report import Report


@pytest.fixture
def lossless() -> Callable[..., Report]:
    """`assert_lossless`, to be called with a verification function."""
    return assert_lossless


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test that asks for `known_bug` once for each bug of the zoo, as a verification function."""
    if "known_bug" in metafunc.fixturenames:
        metafunc.parametrize("known_bug", BUGS, ids=[bug.name.replace(" ", "-") for bug in BUGS])
