"""The prompt of a command: an argument, or standard input."""

from __future__ import annotations

import sys

from draftproof.errors import UsageError


def read_prompt(prompt: str | None) -> str:
    """Returns the prompt from the argument, or from standard input for "-" or none in a pipe.

    Raises:
        UsageError: if there is none, it is empty, or it is not UTF-8.
    """
    if sys.stdin is None and prompt in (None, "-"):
        raise UsageError("standard input is closed; give the prompt as an argument")
    if prompt is None and sys.stdin.isatty():
        raise UsageError('no prompt; give one, as in: draftproof generate "Why is the sky blue?"')
    if prompt is None or prompt == "-":
        try:
            prompt = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise UsageError(
                f"standard input is not UTF-8: byte 0x{error.object[error.start]:02x} at {error.start}; "
                "convert it first, for example with iconv"
            ) from None
    if not prompt:
        raise UsageError("the prompt is empty; give at least one character")
    check_utf8(prompt)
    return prompt


def check_utf8(prompt: str) -> None:
    """Raises UsageError if an argument had bytes that are no UTF-8; Python keeps them as lone surrogates."""
    if any("\ud800" <= character <= "\udfff" for character in prompt):
        raise UsageError("the prompt is not UTF-8; convert it first, for example with iconv")
