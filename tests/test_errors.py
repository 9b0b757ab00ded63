"""The exception tree is what its drawing says."""

from __future__ import annotations

import inspect
import re

import pytest

from draftproof import errors

TREE = {
    "UsageError": "DraftproofError",
    "PromptTooLongError": "UsageError",
    "ModelLoadError": "DraftproofError",
    "MissingDependencyError": "ModelLoadError",
    "DraftError": "DraftproofError",
    "RequestError": "DraftproofError",
    "RowError": "RequestError",
    "ProcessorError": "RequestError",
    "BackendError": "RequestError",
}


def _drawn() -> dict[str, str]:
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^([│├└─ ]*)([A-Z]\w+Error)\b", line)
        if found:
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            if depth:
                parents[found[2]] = path[depth - 1]
    return parents


def _defined() -> dict[str, str]:
    return {
        name: each.__bases__[0].__name__
        for name, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, errors.DraftproofError) and each is not errors.DraftproofError
    }


def test_the_drawing_shows_every_class_under_its_parent() -> None:
    assert _drawn() == _defined()
    assert TREE.items() <= _defined().items()


@pytest.mark.parametrize("name", [*TREE, "DraftproofError"])
def test_everything_is_caught_by_the_root_and_says_what_it_is(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, errors.DraftproofError)
    assert kind.__doc__
    assert str(kind("what went wrong")) == "what went wrong"


def test_built_in_relatives() -> None:
    assert issubclass(errors.UsageError, ValueError)
    assert issubclass(errors.MissingDependencyError, ImportError)


def test_a_failed_request_may_hold_what_it_produced() -> None:
    assert errors.RowError("no law").completion is None


def test_unknown_choice_names_the_choices() -> None:
    error = errors.choice_error("rule", "tokn", ["token", "coupled"])
    assert isinstance(error, errors.UsageError)
    assert str(error) == "rule 'tokn' is unknown; use one of: token, coupled"
