"""Every exception that draftproof raises.

```
DraftproofError
├── UsageError (ValueError)           an argument is wrong: names it, its value and the remedy
│   └── PromptTooLongError            the prompt does not fit the context
├── ModelLoadError                    a model cannot be loaded
│   └── MissingDependencyError        an optional package is absent: names the pip install line
├── DraftError                        a drafter failed or proposed what cannot be verified
├── EndpointError                     a server failed, or gave no answer
│   └── RefusedRequestError           it refuses a request as it is; .told holds what it says
└── RequestError                      a running request failed; .completion holds what it had produced
    ├── RowError                      the target's logits at a position are no law (NaN, all -inf, +inf)
    ├── ProcessorError                a user's logits processor raised or returned something unusable
    └── BackendError                  a forward pass failed
```
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftproof.types import Completion


class DraftproofError(Exception):
    """The root of the tree."""


class UsageError(DraftproofError, ValueError):
    """An argument is wrong; the message names the argument, its value and the remedy."""


class PromptTooLongError(UsageError):
    """The prompt leaves no room in the context for a single new token."""


class ModelLoadError(DraftproofError):
    """A model cannot be loaded, or cannot be used for speculation."""


class MissingDependencyError(ModelLoadError, ImportError):
    """An optional package is absent; the message holds the `pip install` line."""


class DraftError(DraftproofError):
    """A drafter failed, or proposed a draft that no rule can verify."""


class EndpointError(DraftproofError):
    """A server failed, or gave no answer in time, however often it was asked."""


class RefusedRequestError(EndpointError):
    """A server refuses a request as it is.

    Attributes:
        told: what the server says.
    """

    def __init__(self, message: str, told: str) -> None:
        super().__init__(message)
        self.told = told


class RequestError(DraftproofError):
    """A running request failed; its neighbours did not.

    Attributes:
        completion: what the request had produced before it failed, or None if it produced nothing.
    """

    completion: Completion | None = None


class RowError(RequestError):
    """The logits of one position are not a law: NaN, all -inf, or +inf."""


class ProcessorError(RequestError):
    """A user's logits processor raised, or returned an array that is not one row of logits."""


class BackendError(RequestError):
    """A forward pass of the target failed for this request alone."""


def whole(name: str, value: object) -> int:
    """Returns an argument that must be an integer, numpy's included.

    Raises:
        UsageError: if it is not one.
    """
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{name} {value!r} is not an integer") from None


def choice_error(argument: str, value: object, choices: list[str]) -> UsageError:
    """Returns the error for a name that is not one of the known ones."""
    return UsageError(f"{argument} {value!r} is unknown; use one of: {', '.join(choices)}")
