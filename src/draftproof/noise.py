"""Randomness as an input: counter-based, with no state, so that no coin depends on what was drawn before."""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Mapping
from enum import IntEnum
from operator import index
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from draftproof.errors import UsageError

Seed: TypeAlias = int | tuple[int, ...]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


class Lane(IntEnum):
    """What a uniform is for; two purposes never share a coin."""

    DRAFT = 0
    ACCEPT = 1
    FINAL = 2
    RACE = 3


@runtime_checkable
class Noise(Protocol):
    """Where rules and drafters get their randomness."""

    def uniform(self, start: int, offset: int, lane: Lane) -> float:
        """Returns a uniform in [0, 1) for place `offset` of the block that begins at position `start`.

        Keyed by the block's start as well, so that a coin read beyond a block's cut never comes back in the next.
        """
        ...

    def exponentials(self, position: int, ids: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
        """Returns Exp(1) values, > 0, one for each token id at an absolute position; draft and target share them."""
        ...


class CounterNoise:
    """Noise as a pure function of (seed, position, purpose).

    Uniforms are 53 bits of BLAKE2b; exponentials are a SplitMix64 stream (Steele, Lea and Flood 2014) read at random
    places, one stream a position, keyed by BLAKE2b. The uniform under the logarithm lies in (0, 1), both ends
    excluded: an exponential of 0 would win any race.

    Args:
        seed: an integer or a tuple of integers; None draws 128 bits from the operating system.
    """

    __slots__ = ("_key", "seed")

    def __init__(self, seed: Seed | None = None) -> None:
        given = secrets.randbits(128) if seed is None else seed
        try:
            self.seed: Seed = tuple(map(index, given)) if isinstance(given, tuple) else index(given)
        except TypeError:
            raise UsageError(f"seed {seed!r} is not an integer or a tuple of integers") from None
        if isinstance(given, bool):
            raise UsageError(f"seed {seed!r} is not an integer or a tuple of integers")
        digits = ",".join(f"{part:x}" for part in (self.seed if isinstance(self.seed, tuple) else (self.seed,)))
        self._key = hashlib.blake2b(digits.encode(), digest_size=32).digest()

    def _bits(self, start: int, offset: int, lane: Lane) -> int:
        place = struct.pack("<qqB", start, offset, lane)
        return int.from_bytes(hashlib.blake2b(place, digest_size=8, key=self._key).digest(), "little")

    def uniform(self, start: int, offset: int, lane: Lane) -> float:
        """See `Noise.uniform`."""
        return (self._bits(start, offset, lane) >> 11) * 2.0**-53

    def exponentials(self, position: int, ids: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
        """See `Noise.exponentials`."""
        stream = np.uint64(self._bits(position, 0, Lane.RACE))
        z = ids.astype(np.uint64)
        z += np.uint64(1)
        z *= _GOLDEN
        z += stream
        z ^= z >> np.uint64(30)
        z *= _MIX1
        z ^= z >> np.uint64(27)
        z *= _MIX2
        z ^= z >> np.uint64(31)
        # 52 bits and a half: the largest is 1 - 2**-53, exactly representable, so that no logarithm is 0.
        z >>= np.uint64(12)
        values: Float[np.ndarray, "n"] = z.astype(np.float64)
        values += 0.5
        values *= 2.0**-52
        np.log(values, out=values)
        np.negative(values, out=values)
        return values


class ScriptedNoise:
    """A test double: the coins are what the test says; asking for one it did not script is an error.

    Args:
        uniforms: values by (start, offset, lane).
        exponentials: arrays over the vocabulary by absolute position.
    """

    def __init__(
        self,
        uniforms: Mapping[tuple[int, int, Lane], float] | None = None,
        exponentials: Mapping[int, Float[np.ndarray, "vocab"]] | None = None,
    ) -> None:
        self._uniforms = dict(uniforms or {})
        self._exponentials = dict(exponentials or {})

    def uniform(self, start: int, offset: int, lane: Lane) -> float:
        """See `Noise.uniform`."""
        key = (start, offset, lane)
        if key not in self._uniforms:
            raise UsageError(f"no uniform is scripted for start={start}, offset={offset}, lane={lane.name}")
        return self._uniforms[key]

    def exponentials(self, position: int, ids: Int[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
        """See `Noise.exponentials`."""
        if position not in self._exponentials:
            raise UsageError(f"no exponentials are scripted for position {position}")
        values: Float[np.ndarray, "n"] = self._exponentials[position][ids]
        return values
