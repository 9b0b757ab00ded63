"""What the engine asks of a model: a tokenizer, and sessions that score drafts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from draftproof.errors import UsageError
from draftproof.types import NO_TOKENS, Tokens

Message: TypeAlias = Mapping[str, str]
"""A chat message: {"role": ..., "content": ...}."""


class Tokenizer(ABC):
    """Text to token ids and back."""

    @abstractmethod
    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> Tokens:
        """Returns the ids of `text`, `[n]`.

        Args:
            text: any string.
            add_special: put the model's own start token (BOS), if it uses one, in front: once.
            parse_special: read special tokens written out in the text, as chat templates need.
        """

    @abstractmethod
    def token_bytes(self, token: int) -> bytes:
        """Returns the bytes a token adds to the text: empty for special tokens, maybe half a character."""

    def token_name(self, token: int) -> str:
        """Returns a token for people to read."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Returns the text of `tokens`; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes(int(token)) for token in tokens).decode("utf-8", "replace")

    def apply_chat_template(self, messages: Sequence[Message]) -> str:
        """Returns the chat as the text the model was trained on, up to where its answer begins.

        Raises:
            UsageError: if the model has no chat template.
        """
        raise UsageError("this model has no chat template; give the prompt as plain text (--raw)")

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` works."""
        return False


def check_messages(messages: Sequence[Message]) -> None:
    """Raises UsageError if a chat is empty or a message is malformed."""
    if not messages:
        raise UsageError("messages [] are empty; give at least one message")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise UsageError(f'message {i} is {message!r}; give {{"role": "user", "content": "some text"}}')


def template_refusal(name: str, error: Exception) -> UsageError:
    """Returns the error for what a chat template raised: a template is a program, and that is its answer."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return UsageError(f"the chat template of {name} refuses these messages: {reason}")


@runtime_checkable
class Rows(Protocol):
    """The logits one query asked for, read lazily; valid until the session's next `score`."""

    def __len__(self) -> int: ...

    def __getitem__(self, i: int, /) -> Float[np.ndarray, "vocab"]:
        """Returns the logits after tokens + draft[:i]; a view that must not be written to."""
        ...


@dataclass(frozen=True, eq=False)
class Query:
    """One request's part of a forward pass.

    Attributes:
        slot: which of the session's sequences, 0 <= slot < slots.
        tokens: the committed text, at least one token.
        draft: the tokens to judge after it, `[draft]`.
    """

    slot: int
    tokens: Int[np.ndarray, "n"]
    draft: Int[np.ndarray, "draft"]


class Session(ABC):
    """A model's memory of `slots` sequences, addressed by tokens.

    A subclass implements `_forward`; the bookkeeping here finds the longest common prefix of what a slot holds and
    what is asked, so that there is no rollback anywhere else: whatever a cache holds beyond the prefix is dropped.

    Attributes:
        rectangular: whether a pass gives every query as many rows as the longest has, so that filled rows cost as
            others do; the draft length reckons with it.
    """

    rectangular: bool = False

    def __init__(self, model: Model, slots: int) -> None:
        if slots < 1:
            raise UsageError(f"slots {slots} is not positive; a session needs at least one")
        self.model = model
        self.slots = slots
        self._held: list[Tokens] = [NO_TOKENS] * slots

    def prefix_length(self, slot: int, tokens: Int[np.ndarray, "n"]) -> int:
        """Returns how many leading tokens the slot holds already."""
        return common_prefix(self._held[slot], tokens)

    def score(self, queries: Sequence[Query]) -> list[Rows]:
        """Runs one forward pass and returns, for each query, len(draft) + 1 rows of logits.

        Row i is the logits after tokens + draft[:i]. The last committed token is always run again, and what a slot
        holds is recorded only after the pass succeeded: after a failure every slot is as before or empty.

        Args:
            queries: at most one for each slot.

        Raises:
            UsageError: if a query is malformed: no tokens, a slot twice or out of range, ids outside the vocabulary,
                more tokens than the context holds.
        """
        self._check(queries)
        keep = [min(self.prefix_length(each.slot, each.tokens), len(each.tokens) - 1) for each in queries]
        for each, length in zip(queries, keep, strict=True):
            # What is held was checked when it came; what is new is a handful of ids, for which a list is fastest.
            new = each.tokens[length:].tolist() + each.draft.tolist()
            if min(new) < 0 or max(new) >= self.model.vocab_size:
                raise UsageError(f"a query has ids outside the vocabulary 0..{self.model.vocab_size - 1}")
        held = [self._held[each.slot] for each in queries]
        for each, length in zip(queries, keep, strict=True):
            self._held[each.slot] = self._held[each.slot][:length]
        try:
            rows = self._forward(queries, keep)
        except BaseException:
            for each, before, length in zip(queries, held, keep, strict=True):
                self._held[each.slot] = before[: self._after_failure(each.slot, length)]
            raise
        for each in queries:
            # A copy: the caller may write into its arrays.
            self._held[each.slot] = np.concatenate([each.tokens, each.draft]) if len(each.draft) else each.tokens.copy()
        return rows

    @abstractmethod
    def _forward(self, queries: Sequence[Query], keep: Sequence[int]) -> list[Rows]:
        """Drops what each slot holds beyond keep[i] tokens, runs the rest of tokens + draft, returns the rows."""

    def _after_failure(self, slot: int, keep: int) -> int:
        """Returns how many leading tokens of the slot's cache are sound after `_forward` failed."""
        return keep

    def close(self) -> None:
        """Frees the session's memory; closing twice is harmless."""

    def _check(self, queries: Sequence[Query]) -> None:
        seen: set[int] = set()
        for each in queries:
            if not 0 <= each.slot < self.slots or each.slot in seen:
                raise UsageError(f"slot {each.slot} is out of range 0..{self.slots - 1} or asked for twice in one pass")
            seen.add(each.slot)
            if len(each.tokens) == 0:
                raise UsageError("a query needs at least one committed token; give a non-empty prompt")
            if len(each.tokens) + len(each.draft) > self.model.context_length:
                raise UsageError(
                    f"{len(each.tokens)} tokens and a draft of {len(each.draft)} exceed the context of "
                    f"{self.model.context_length}"
                )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Model(ABC):
    """A language model; target and draft model are roles of this one type.

    Attributes:
        name: what to call it.
        vocab_size: length of a row of logits.
        context_length: most tokens a session's sequence may hold.
        eos_ids: ids that end a text.
        tokenizer: text to ids and back.
    """

    name: str
    vocab_size: int
    context_length: int
    eos_ids: frozenset[int]
    tokenizer: Tokenizer

    @abstractmethod
    def session(self, slots: int = 1) -> Session:
        """Returns a new session of `slots` sequences, each of up to `context_length` tokens."""

    def close(self) -> None:
        """Frees the model; closing twice is harmless."""

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def common_prefix(a: Int[np.ndarray, "n"], b: Int[np.ndarray, "m"]) -> int:
    """Returns how many leading ids two sequences share."""
    length = min(len(a), len(b))
    same = a[:length] == b[:length]
    return length if same.all() else int(np.argmin(same))
