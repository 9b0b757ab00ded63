"""How far to draft: acceptance estimates against measured cost, for all running requests jointly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from statistics import median

import numpy as np
from jaxtyping import Float, Int

from draftproof.cost import WINDOW, CostTable, measure
from draftproof.errors import UsageError
from draftproof.models.base import Session

MAX_DRAFT_TOKENS = 24
"""Longest draft that "auto" considers."""

FIRST_DRAFT = 4
"""Longest sampled draft while it is not known what drawing a token costs."""

MARGIN = 1.01
"""A draft must promise this much over drafting nothing: estimates are not exact, and plain decoding is safe."""


class AcceptanceRate:
    """One request's running estimate of P(a draft token is accepted), for drafters that give none.

    Outcomes are weighted down with age, so that the estimate follows the text. While it says that nothing pays, a
    single token is tried now and then (`due`), ever more rarely while that fails: a closed door is knocked at again.
    The first tries come late enough that a useless drafter costs a request of a hundred tokens a percent or two.
    """

    def __init__(self, prior: float = 0.6, weight: float = 2.0, memory: float = 0.9) -> None:
        self._accepted = prior * weight
        self._judged = weight
        self._prior = (prior, weight)
        self._memory = memory
        self._idle = 0
        self._patience = 32

    @property
    def rate(self) -> float:
        """The estimate, strictly between 0 and 1."""
        return self._accepted / self._judged

    def observe(self, drafted: int, accepted: int) -> None:
        """Learns from one pass: `accepted` of `drafted` tokens stood; only the first rejection was judged beyond."""
        if drafted == 0:
            self._idle += 1
            return
        self._idle = 0
        self._patience = 16 if accepted else min(2 * self._patience, 128)
        prior, weight = self._prior
        floor = 0.05 * weight
        self._accepted = self._memory * self._accepted + accepted + floor * prior
        self._judged = self._memory * self._judged + min(accepted + 1, drafted) + floor

    @property
    def due(self) -> bool:
        """Whether it is time to try a token although none seems to pay."""
        return self._idle >= self._patience


class DraftLengthPolicy(ABC):
    """Decides how many draft tokens each request's next pass verifies; it only ever looks back.

    Attributes:
        limit: the most tokens worth asking a drafter for.
    """

    limit: int

    @abstractmethod
    def choose(self, survivals: Sequence[Float[np.ndarray, "_"]], context: int, rectangular: bool = False) -> list[int]:
        """Returns how much of each (deterministic) draft to verify.

        Args:
            survivals: for each running request, P(first i+1 draft tokens are accepted), non-increasing; may be empty.
            context: how many tokens the requests' texts have, on average.
            rectangular: whether every request has as many rows in the pass as the one with the longest draft; see
                `Session.rectangular`.
        """

    @abstractmethod
    def proceed(self, survival: float, offset: int, context: int) -> bool:
        """Returns whether to draw sampled draft token `offset`, if all up to it stand with probability `survival`."""

    def prepare(self, session: Session, slot: int, tokens: Int[np.ndarray, "n"]) -> None:
        """Measures what the policy needs to know of the model, once; what `slot` holds of `tokens` stays."""

    def observe_pass(self, rows: int, context: int, seconds: float) -> None:
        """Learns what a decoding pass over `rows` rows behind `context` tokens cost."""

    def observe_draft(self, tokens: int, seconds: float) -> None:
        """Learns what drawing `tokens` sampled draft tokens cost, once the drafter had read the prompts."""


class FixedLength(DraftLengthPolicy):
    """Always as many tokens as the drafter has, up to k.

    Args:
        k: the draft length, 0 or more.
    """

    def __init__(self, k: int) -> None:
        if k < 0:
            raise UsageError(f'num_draft_tokens {k} is negative; use 0, a positive count or "auto"')
        self.limit = k

    def choose(self, survivals: Sequence[Float[np.ndarray, "_"]], context: int, rectangular: bool = False) -> list[int]:
        """See `DraftLengthPolicy.choose`."""
        return [min(self.limit, len(survival)) for survival in survivals]

    def proceed(self, survival: float, offset: int, context: int) -> bool:
        """See `DraftLengthPolicy.proceed`."""
        return offset < self.limit


class PayingLength(DraftLengthPolicy):
    """The length with the most expected tokens a second: (B + sum of survivals) / cost, over ALL lengths.

    A pass serves every running request, so its rows go to whichever request's next draft token is likeliest to
    stand. All totals are tried, not just the first that stops paying: measured costs have stairs, and the next
    stair may be worth climbing to.

    Args:
        costs: measured cost of a pass; an empty table is filled by `prepare` and kept up by `observe_pass`.
    """

    limit = MAX_DRAFT_TOKENS

    def __init__(self, costs: CostTable | None = None) -> None:
        self.costs = costs or CostTable()
        self._draft_costs: deque[float] = deque(maxlen=WINDOW)

    def prepare(self, session: Session, slot: int, tokens: Int[np.ndarray, "n"]) -> None:
        """See `DraftLengthPolicy.prepare`."""
        if not self.costs.measured_at(len(tokens)):
            measure(session, slot, tokens, self.costs, self.limit + 1)

    def observe_pass(self, rows: int, context: int, seconds: float) -> None:
        """See `DraftLengthPolicy.observe_pass`."""
        self.costs.observe(rows, context, seconds)

    def observe_draft(self, tokens: int, seconds: float) -> None:
        """See `DraftLengthPolicy.observe_draft`."""
        if tokens:
            self._draft_costs.append(seconds / tokens)

    def choose(self, survivals: Sequence[Float[np.ndarray, "_"]], context: int, rectangular: bool = False) -> list[int]:
        """See `DraftLengthPolicy.choose`."""
        requests = len(survivals)
        if rectangular:
            return self._choose_for_all(survivals, context)
        lengths = [0] * requests
        owners = np.concatenate([np.full(len(survival), r) for r, survival in enumerate(survivals)])
        if not len(owners):
            return lengths
        # Survivals never increase within a request, so taking tokens by survival takes a prefix of each draft.
        values = np.concatenate(survivals)
        order = np.argsort(-values, kind="stable")
        tokens = requests + np.concatenate([[0.0], np.cumsum(values[order])])
        speeds = tokens / self.costs.curve(requests + len(owners), context)[requests - 1 :]
        for r in owners[order[: _paying(speeds)]].tolist():
            lengths[r] += 1
        return lengths

    def _choose_for_all(self, survivals: Sequence[Float[np.ndarray, "_"]], context: int) -> list[int]:
        # One length for all: whoever drafts less has its rows filled up at the same cost.
        requests, longest = len(survivals), max(map(len, survivals))
        gains = np.zeros(longest)
        for survival in survivals:
            gains[: len(survival)] += survival
        tokens = requests + np.concatenate([[0.0], np.cumsum(gains)])
        rows = requests * np.arange(1, longest + 2)
        length = _paying(tokens / self.costs.curve(int(rows[-1]), context)[rows - 1])
        return [min(length, len(survival)) for survival in survivals]

    def proceed(self, survival: float, offset: int, context: int) -> bool:
        """See `DraftLengthPolicy.proceed`.

        The future is taken to be like the past: every further token survives with the geometric mean so far.
        """
        if offset >= (self.limit if self._draft_costs else FIRST_DRAFT):
            return False
        rate = survival ** (1.0 / (offset + 1))
        tokens = np.cumsum(rate ** np.arange(self.limit + 1))
        each = median(self._draft_costs) if self._draft_costs else 0.0
        costs = self.costs.curve(self.limit + 1, context) + each * np.arange(self.limit + 1)
        return offset < _paying(tokens / costs)


def _paying(speeds: Float[np.ndarray, "_"]) -> int:
    """Returns the place of the highest speed, but 0 (draft nothing) unless it is better than that by the margin."""
    best = int(np.argmax(speeds))
    return best if speeds[best] > speeds[0] * MARGIN else 0
