"""Forward passes of llama.cpp: many sequences in one batch, rows read where llama.cpp left them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from draftproof.errors import BackendError, ModelLoadError, UsageError
from draftproof.models.base import Query, Rows, Session
from draftproof.models.llamacpp_library import LOG, Pointer, interrupts_held, library, quiet, set_field
from draftproof.types import Tokens

if TYPE_CHECKING:
    from draftproof.models.llamacpp import LlamaCppModel

BATCH = 512
"""Most tokens of one llama_decode; a longer query is run in chunks."""

ROWS = 256
"""Most rows of logits of one llama_decode; llama.cpp sizes its buffers for that many."""

_UNKNOWN = -1
_FLOAT16, _BFLOAT16 = 1, 30
_FAILURES = {
    1: "no room in the cache",
    2: "aborted",
    -1: "invalid batch",
    -2: "out of memory",
    -3: "computation failed",
}


class LlamaCppSession(Session):
    """One llama.cpp context: the cache of `slots` sequences. Made by `LlamaCppModel.session`.

    Args:
        model: an open model.
        slots: how many sequences.
        context_length: most tokens of each; None takes the model's.

    Raises:
        UsageError: for more slots than llama.cpp can hold apart.
        ModelLoadError: if there is no memory for them, or the model has no cache.
    """

    model: LlamaCppModel

    def __init__(self, model: LlamaCppModel, slots: int, context_length: int | None = None) -> None:
        super().__init__(model, slots)
        self._lib = library()
        length = model.context_length if context_length is None else context_length
        self.pointer = _context(model, slots, length)
        self._memory = self._lib.llama_get_memory(self.pointer.address)
        if not self._memory:
            self.close()
            raise ModelLoadError(f"model {model.name} keeps no cache: it is no text generator; use a decoder model")
        self._batch = _Batch(min(BATCH, int(self._lib.llama_n_batch(self.pointer.address))))
        self._positions = np.arange(length, dtype=np.int32)
        self._cached = [0] * slots
        # As a number: a ctypes pointer to each pass's rows would cost as much as all the rest.
        function = ctypes.cast(self._lib.llama_get_logits, ctypes.c_void_p).value
        self._get_logits = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(function or 0)
        self._views: dict[int, Float[np.ndarray, "rows vocab"]] = {}
        self._address = 0
        self.passes = 0

    def close(self) -> None:
        """See `Session.close`; waits for a pass that another thread runs."""
        self.pointer.close()
        # Rows given out before must not be read any more.
        self.passes = _UNKNOWN

    def _forward(self, queries: Sequence[Query], keep: Sequence[int]) -> list[Rows]:
        with self.pointer.lock:
            if self.pointer.closed:
                raise UsageError(f"this session of {self.model.name} is closed; make a new one")
            self.passes += 1
            for each, length in zip(queries, keep, strict=True):
                self._truncate(each.slot, length)
            logits = self._run(queries, keep)
            rows: list[Rows] = []
            first = 0
            for each in queries:
                last = first + len(each.draft) + 1
                rows.append(_Rows(self, logits[first:last]))
                self._cached[each.slot] = len(each.tokens) + len(each.draft)
                first = last
            return rows

    def _truncate(self, slot: int, keep: int) -> None:
        cached = self._cached[slot]
        # Whatever interrupts the pass, the next one must not trust the old count.
        self._cached[slot] = _UNKNOWN
        if cached != keep and not self._lib.llama_memory_seq_rm(self._memory, slot, keep, -1):
            raise BackendError(
                f"the cache of {self.model.name} cannot be cut back to {keep} tokens, so no draft can be taken back; "
                "use a model with plain attention"
            )

    def _after_failure(self, slot: int, keep: int) -> int:
        if self.pointer.closed:
            return 0
        lib, memory = self._lib, self._memory
        if not lib.llama_memory_seq_rm(memory, slot, keep, -1):
            lib.llama_memory_seq_rm(memory, slot, -1, -1)
        sound = min(keep, int(lib.llama_memory_seq_pos_max(memory, slot)) + 1)
        self._cached[slot] = sound
        return sound

    def _run(self, queries: Sequence[Query], keep: Sequence[int]) -> Float[np.ndarray, "rows vocab"]:
        # All tokens that need no row go first: then the rows of a pass lie together in the last chunk.
        batch, positions = self._batch, self._positions
        batch.count = 0
        for each, length in zip(queries, keep, strict=True):
            end = len(each.tokens) - 1
            while length < end:
                if batch.count == batch.size:
                    self._decode()
                step = min(end - length, batch.size - batch.count)
                batch.add(each.slot, each.tokens[length : length + step], positions[length : length + step], 0)
                length += step
        wanted = sum(len(each.draft) for each in queries) + len(queries)
        most = min(batch.size, ROWS)
        if wanted > most or batch.count + wanted > batch.size:
            self._decode()
        if wanted > most:
            return self._run_in_parts(queries, wanted, most)
        for each in queries:
            end = len(each.tokens) - 1
            batch.add(each.slot, each.tokens[end:], positions[end : end + 1], 1)
            if len(each.draft):
                batch.add(each.slot, each.draft, positions[end + 1 : end + 1 + len(each.draft)], 1)
        self._decode()
        return self._logits(wanted)

    def _run_in_parts(self, queries: Sequence[Query], wanted: int, most: int) -> Float[np.ndarray, "rows vocab"]:
        # Each decode overwrites the rows of the one before, so they are copied.
        logits = np.empty((wanted, self.model.vocab_size), dtype=np.float32)
        batch, done = self._batch, 0
        for each in queries:
            end = len(each.tokens) - 1
            ids = np.concatenate([each.tokens[end:], each.draft])
            start = 0
            while start < len(ids):
                step = min(len(ids) - start, most - batch.count)
                batch.add(each.slot, ids[start : start + step], self._positions[end + start : end + start + step], 1)
                start += step
                if batch.count == most or done + batch.count == wanted:
                    count = batch.count
                    self._decode()
                    logits[done : done + count] = self._logits(count)
                    done += count
        return logits

    def _decode(self) -> None:
        batch = self._batch
        if batch.count == 0:
            return
        batch.struct.n_tokens, batch.count = batch.count, 0
        LOG.clear()
        code = self._lib.llama_decode(self.pointer.address, batch.struct)
        if code != 0:
            raise BackendError(
                f"llama.cpp could not run {batch.struct.n_tokens} tokens of {self.model.name}: "
                f"{_FAILURES.get(code, 'failed')} (llama_decode returned {code}; {LOG.reason()})"
            )

    def _logits(self, count: int) -> Float[np.ndarray, "rows vocab"]:
        # Asking for the rows waits for the computation, so that the time of `score` is the time of the pass.
        address = self._get_logits(self.pointer.address)
        if not address:
            raise BackendError(f"llama.cpp returned no logits for {self.model.name} ({LOG.reason()})")
        if address != self._address:
            self._address = address
            self._views.clear()
        view = self._views.get(count)
        if view is None:
            memory = (ctypes.c_float * (count * self.model.vocab_size)).from_address(address)
            # An array a caller kept holds on to the context whose memory it shows.
            memory.owner = self.pointer  # type: ignore[attr-defined]
            view = np.ctypeslib.as_array(memory).reshape(count, self.model.vocab_size)
            view.flags.writeable = False
            self._views[count] = view
        return view


class _Rows:
    """Rows of the last pass, read where llama.cpp left them."""

    __slots__ = ("_logits", "_pass", "_session")

    def __init__(self, session: LlamaCppSession, logits: Float[np.ndarray, "rows vocab"]) -> None:
        self._session = session
        self._pass = session.passes
        self._logits = logits

    def __len__(self) -> int:
        return len(self._logits)

    def __getitem__(self, i: int, /) -> Float[np.ndarray, "vocab"]:
        if not 0 <= i < len(self._logits):
            raise IndexError(f"row {i} of {len(self._logits)}")
        if self._session.passes != self._pass:
            raise UsageError(
                "these rows are gone: a session's next pass, or its end, takes them; copy rows to keep them"
            )
        row: Float[np.ndarray, "vocab"] = self._logits[i]
        return row


class _Batch:
    """A llama_batch whose arrays are numpy's, filled by slices.

    Attributes:
        size: most tokens.
        count: tokens in it.
        struct: what llama_decode takes.
    """

    def __init__(self, size: int) -> None:
        lib = library()
        self.size = size
        self.count = 0
        self._tokens = np.zeros(size, dtype=np.int32)
        self._positions = np.zeros(size, dtype=np.int32)
        self._slots = np.zeros(size, dtype=np.int32)
        self._wanted = np.zeros(size, dtype=np.int8)
        self._ones = np.ones(size, dtype=np.int32)
        self._slot_pointers = (self._slots.ctypes.data + 4 * np.arange(size, dtype=np.uintp)).astype(np.uintp)
        fields: dict[str, np.ndarray] = {
            "token": self._tokens,
            "pos": self._positions,
            "n_seq_id": self._ones,
            "seq_id": self._slot_pointers,
            "logits": self._wanted,
        }
        self.struct = lib.llama_batch()
        for name, kind in self.struct._fields_:
            if name in fields:
                setattr(self.struct, name, ctypes.cast(fields[name].ctypes.data, kind))

    def add(self, slot: int, tokens: Tokens, positions: Tokens, wanted: int) -> None:
        first = self.count
        self.count = last = first + len(tokens)
        self._tokens[first:last] = tokens
        self._positions[first:last] = positions
        self._slots[first:last] = slot
        self._wanted[first:last] = wanted


def _context(model: LlamaCppModel, slots: int, length: int) -> Pointer:
    lib = library()
    most = int(lib.llama_max_parallel_sequences())
    if slots > most:
        raise UsageError(f"slots {slots} exceed the {most} sequences llama.cpp can hold apart")
    params = lib.llama_context_default_params()
    flash = {
        True: lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
        False: lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
    }
    settings = {
        "n_ctx": slots * length,
        "n_seq_max": slots,
        # With one pool of cells for all slots, drafts of unequal length are one pass inside llama.cpp; but a slot's
        # cells then change order when others take theirs back, and with it the order of sums.
        "kv_unified": slots > 1 and not model.batch_invariant,
        "n_batch": BATCH,
        "n_ubatch": BATCH,
        "n_outputs_max": ROWS,
        "n_outputs_max_per_seq": ROWS,
        "n_threads": model.threads,
        "n_threads_batch": model.threads,
        "flash_attn_type": flash[model.flash_attention],
        # Of one row over 512 tokens or more, and of 64 rows, llama.cpp computes attention by kernels of their own when
        # keys and values are of one type, which adds up in another order.
        "type_k": _BFLOAT16 if model.batch_invariant else _FLOAT16,
        "type_v": _FLOAT16,
        # A window's cache that forgets old tokens could not be cut back.
        "swa_full": True,
        "offload_kqv": model.gpu_layers != 0,
        "op_offload": model.gpu_layers != 0,
        "no_perf": True,
    }
    for name, value in settings.items():
        set_field(params, name, value)
    quiet()
    address = None
    try:
        with interrupts_held():
            address = lib.llama_init_from_model(model.pointer.address, params)
    except KeyboardInterrupt:
        if address:
            lib.llama_free(address)
        raise
    if not address:
        raise ModelLoadError(
            f"llama.cpp cannot hold {slots} x {length} tokens of {model.name} ({LOG.reason()}); "
            "use a smaller context_length or fewer slots"
        )
    return Pointer(address, lib.llama_free, model.pointer)
