"""Tabular models, exact and tiny: for tests, examples and for watching a rule work."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from draftproof.errors import UsageError, choice_error
from draftproof.models.base import Message, Model, Query, Rows, Session, Tokenizer
from draftproof.noise import CounterNoise
from draftproof.types import Tokens, as_tokens

Table = Callable[[Tokens], Float[np.ndarray, "vocab"]]
"""A rule of the model: committed tokens -> logits of the next, float64 `[vocab]`."""


class ToyTokenizer(Tokenizer):
    """One token a piece of text; by default the letters a, b, c, ... ; the last id may be an end-of-sequence.

    Args:
        pieces: the bytes of each token.
        chat: whether to offer a chat template that only joins the contents.
    """

    def __init__(self, pieces: Sequence[bytes], chat: bool = False) -> None:
        self.pieces = list(pieces)
        self._chat = chat
        self._longest = max((len(piece) for piece in pieces), default=0)
        self._ids = {piece: token for token, piece in reversed(list(enumerate(self.pieces))) if piece}

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> Tokens:
        """Splits greedily into the longest pieces; see `Tokenizer.encode`."""
        data, tokens, place = text.encode("utf-8", "surrogateescape"), [], 0
        while place < len(data):
            for length in range(self._longest, 0, -1):
                token = self._ids.get(data[place : place + length])
                if token is not None:
                    tokens.append(token)
                    place += length
                    break
            else:
                known = b" ".join(self.pieces).decode("utf-8", "replace")
                raise UsageError(
                    f"text {text!r} has {data[place : place + 1]!r}, which this toy lacks; it has: {known}"
                )
        return as_tokens(tokens)

    def token_bytes(self, token: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        return self.pieces[token]

    def apply_chat_template(self, messages: Sequence[Message]) -> str:
        """Joins the messages' contents; see `Tokenizer.apply_chat_template`."""
        if not self._chat:
            return super().apply_chat_template(messages)
        return "".join(message["content"] for message in messages)

    @property
    def has_chat_template(self) -> bool:
        """See `Tokenizer.has_chat_template`."""
        return self._chat


class ToyModel(Model):
    """A model whose logits are a given function of the tokens so far.

    Args:
        table: tokens -> logits, float64 `[vocab_size]`; log-probabilities will do.
        vocab_size: how many ids.
        context_length: most tokens a sequence may hold.
        eos_ids: ids that end a text.
        tokenizer: pieces of text; letters by default, and nothing for eos_ids.
        name: what to call it.
    """

    def __init__(
        self,
        table: Table,
        vocab_size: int,
        *,
        context_length: int = 4096,
        eos_ids: Sequence[int] | frozenset[int] = (),
        tokenizer: Tokenizer | None = None,
        name: str = "toy",
    ) -> None:
        self.table = table
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.eos_ids = frozenset(eos_ids)
        self.name = name
        self.tokenizer = tokenizer or ToyTokenizer(
            [b"" if token in self.eos_ids else _letter(token) for token in range(vocab_size)]
        )

    @classmethod
    def from_laws(
        cls,
        laws: Mapping[tuple[int, ...], Sequence[float]],
        default: Sequence[float],
        *,
        order: int | None = None,
        context_length: int = 4096,
        eos_ids: Sequence[int] = (),
        name: str = "toy",
    ) -> ToyModel:
        """Returns a model from a table of probabilities.

        Args:
            laws: probabilities of the next token by the tokens before it.
            default: probabilities after anything not in `laws`.
            order: how many of the last tokens are looked up; None looks up the whole text.
            context_length: see the class.
            eos_ids: see the class.
            name: see the class.
        """
        with np.errstate(divide="ignore"):
            rows = {key: np.log(np.asarray(law, dtype=np.float64)) for key, law in laws.items()}
            other = np.log(np.asarray(default, dtype=np.float64))

        def table(tokens: Tokens) -> Float[np.ndarray, "vocab"]:
            key = tuple(tokens.tolist() if order is None else tokens[len(tokens) - order :].tolist() if order else ())
            return rows.get(key, other)

        return cls(table, len(default), context_length=context_length, eos_ids=eos_ids, name=name)

    @classmethod
    def random(
        cls,
        vocab_size: int,
        *,
        seed: int = 0,
        order: int = 2,
        spread: float = 2.0,
        mix: float = 0.0,
        context_length: int = 4096,
        eos_ids: Sequence[int] = (),
        name: str = "toy",
    ) -> ToyModel:
        """Returns a model whose logits are a fixed pseudo-random function of the last `order` tokens.

        Args:
            vocab_size: how many ids.
            seed: which function.
            order: how many of the last tokens matter.
            spread: standard deviation of the logits.
            mix: 0 to 1: how much of the logits comes from a second function, private to this value. A draft model
                with the target's seed and a small mix resembles it; with mix 1 it is unrelated.
            context_length: see the class.
            eos_ids: see the class.
            name: see the class.
        """
        ids = np.arange(vocab_size)
        ours, other = CounterNoise((seed, order)), CounterNoise((seed, order, 1))

        def gumbels(noise: CounterNoise, key: int) -> Float[np.ndarray, "vocab"]:
            # Minus the logarithm of an exponential is a Gumbel, of standard deviation pi / sqrt(6).
            logits: Float[np.ndarray, "vocab"] = -np.log(noise.exponentials(key, ids)) * (spread * 0.7797)
            return logits

        def table(tokens: Tokens) -> Float[np.ndarray, "vocab"]:
            key = 0
            for token in tokens[max(0, len(tokens) - order) :].tolist():
                key = key * (vocab_size + 1) + token + 1
            key %= 2**63
            return gumbels(ours, key) if mix == 0.0 else (1 - mix) * gumbels(ours, key) + mix * gumbels(other, key)

        return cls(table, vocab_size, context_length=context_length, eos_ids=eos_ids, name=name)

    def law(self, tokens: Sequence[int]) -> Float[np.ndarray, "vocab"]:
        """Returns the exact probabilities of the next token at temperature 1, `[vocab]`."""
        logits = self.table(as_tokens(tokens))
        weights = np.exp(logits - logits.max())
        result: Float[np.ndarray, "vocab"] = weights / weights.sum()
        return result

    def session(self, slots: int = 1) -> Session:
        """See `Model.session`."""
        return _ToySession(self, slots)


class _ToySession(Session):
    model: ToyModel

    def _forward(self, queries: Sequence[Query], keep: Sequence[int]) -> list[Rows]:
        return [_ToyRows(self.model.table, each) for each in queries]


class _ToyRows:
    def __init__(self, table: Table, query: Query) -> None:
        self._table = table
        self._text = np.concatenate([query.tokens, query.draft]).astype(np.int32)
        self._first = len(query.tokens)

    def __len__(self) -> int:
        return len(self._text) - self._first + 1

    def __getitem__(self, i: int, /) -> Float[np.ndarray, "vocab"]:
        if not 0 <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        return self._table(self._text[: self._first + i])


def _letter(token: int) -> bytes:
    return chr(ord("a") + token).encode() if token < 26 else f"<{token}>".encode()


def load_toy(name: str) -> ToyModel:
    """Returns the toy model that the spec `toy:NAME` means.

    `pair` is a 26-letter model, `pair-draft` one that resembles it; `loop` repeats a phrase, as small models do;
    `slow` is `pair` with a hundredth of a second for each row, for watching a stream.
    """
    pair = ToyModel.random(26, seed=7, order=2, name="toy:pair")
    toys = {
        "pair": pair,
        "pair-draft": ToyModel.random(26, seed=7, order=2, mix=0.2, name="toy:pair-draft"),
        "loop": ToyModel(_loop, 26, name="toy:loop"),
        "slow": ToyModel(_slowed(pair.table), 26, name="toy:slow"),
    }
    if name not in toys:
        raise choice_error("toy model", name, list(toys))
    return toys[name]


def _loop(tokens: Tokens) -> Float[np.ndarray, "vocab"]:
    logits = np.zeros(26)
    logits[(int(tokens[-1]) + 1) % 26 if len(tokens) % 7 else 0] = 6.0
    return logits


def _slowed(table: Table) -> Table:
    def slow(tokens: Tokens) -> Float[np.ndarray, "vocab"]:
        time.sleep(0.01)
        return table(tokens)

    return slow
