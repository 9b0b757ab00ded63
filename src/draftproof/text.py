"""Text from tokens as they come: half characters, stop strings, nothing lost at the end."""

from __future__ import annotations

import codecs
import unicodedata
from collections.abc import Sequence


def printable(text: str) -> str:
    """Returns text that does nothing to a terminal: control characters and marks of direction as their escapes."""
    return "".join(
        each if each in "\n\t" or unicodedata.category(each) not in ("Cc", "Cf", "Cs") else f"\\u{ord(each):04x}"
        for each in text
    )


class TextStream:
    """Turns token bytes into text, one token at a time, in constant time a token.

    Text is held back only while it may be the beginning of a stop string, or half a UTF-8 character. Bytes that can
    be no character become U+FFFD at once.

    Args:
        stop: strings that end the text.
        include_stop: keep the stop string in the text.
    """

    def __init__(self, stop: Sequence[str] = (), include_stop: bool = False) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._held = ""
        self._ready = ""
        self._shown: list[str] = []
        self.stopped = False

    def add(self, token_bytes: bytes) -> bool:
        """Adds one token's bytes; returns whether a stop string is now complete."""
        self._held += self._decoder.decode(token_bytes)
        found = [(place, text) for text in self._stop if (place := self._held.find(text)) >= 0]
        if found:
            place, text = min(found)
            self._ready += self._held[: place + len(text) if self._include_stop else place]
            self._held = ""
            self.stopped = True
            return True
        keep = max((_overlap(self._held, text) for text in self._stop), default=0)
        self._ready += self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return False

    def finish(self) -> None:
        """Releases what is held back: no more tokens will come."""
        if not self.stopped:
            self._ready += self._held + self._decoder.decode(b"", final=True)
            self._held = ""

    def take(self) -> str:
        """Returns the text that became certain since the last call."""
        text, self._ready = self._ready, ""
        self._shown.append(text)
        return text

    @property
    def text(self) -> str:
        """All the text taken so far."""
        return "".join(self._shown)


def _overlap(text: str, stop: str) -> int:
    """Returns the length of the longest proper prefix of `stop` that ends `text`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
