"""llama.cpp's C functions: loaded when first needed, quiet, and their pointers freed once."""

from __future__ import annotations

import functools
import importlib
import logging
import re
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from draftproof.errors import MissingDependencyError, ModelLoadError
from draftproof.models.cpu import short_openmp_spin

INSTALL = 'pip install "draftproof[llamacpp]"'

logger = logging.getLogger("draftproof.llamacpp")
"""llama.cpp's own log, every line at DEBUG."""

_WARNING, _ERROR, _CONTINUED = 3, 4, 5


class Log:
    """llama.cpp's log, kept off the terminal; its last complaints serve our messages."""

    def __init__(self) -> None:
        self._complaints: deque[tuple[int, str]] = deque(maxlen=32)

    def write(self, level: int, text: bytes, _: object) -> None:
        """Takes one line from llama.cpp."""
        line = text.decode("utf-8", "replace").rstrip()
        if level in (_WARNING, _ERROR) and line:
            self._complaints.append((level, line))
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s", line)

    def clear(self) -> None:
        """Forgets what was said, before a call whose complaints matter."""
        self._complaints.clear()

    def reason(self) -> str:
        """Returns the first error since `clear`, the one nearest the cause, without the names of C functions."""
        errors = [line for level, line in self._complaints if level == _ERROR] or [line for _, line in self._complaints]
        if not errors:
            return "llama.cpp gave no reason"
        first = errors[0].splitlines()[0]
        return re.sub(r"^(\w+: +|error loading model: +)+", "", first) or first


LOG = Log()


@functools.cache
def library() -> Any:
    """Returns llama-cpp-python's module of C functions, its log redirected to `LOG`.

    Raises:
        MissingDependencyError: if llama-cpp-python is not installed.
        ModelLoadError: if it is installed and cannot be loaded.
    """
    try:
        with short_openmp_spin():
            lib = importlib.import_module("llama_cpp.llama_cpp")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"llama.cpp models need llama-cpp-python ({error}); run: {INSTALL}") from error
    except Exception as error:
        raise ModelLoadError(
            f"llama-cpp-python is installed but cannot be loaded ({error}); reinstall it: "
            "pip install --force-reinstall --no-cache-dir llama-cpp-python"
        ) from error
    lib.llama_backend_init()
    return lib


@functools.cache
def _log_callback() -> Any:
    return library().llama_log_callback(LOG.write)


def quiet() -> None:
    """Sends llama.cpp's log to `LOG` and forgets what was said before."""
    # Again at each load: other users of llama_cpp in the process set their own callback.
    library().llama_log_set(_log_callback(), None)
    LOG.clear()


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Holds an interrupt back until llama.cpp has returned: inside the log's callback Python would drop it."""
    ours = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if ours else None
    if before is not signal.default_int_handler:
        yield
        return
    held: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            raise KeyboardInterrupt


def set_field(struct: Any, name: str, value: object) -> None:
    """Sets a field of a C struct; ctypes would take a name the struct lacks without a word.

    Raises:
        ModelLoadError: if the installed llama-cpp-python has no such field.
    """
    if name not in {field for field, *_ in struct._fields_}:
        raise ModelLoadError(f"llama-cpp-python is too old ({name} is missing); run: pip install -U llama-cpp-python")
    setattr(struct, name, value)


class Pointer:
    """A pointer from llama.cpp, freed once: on `close`, when nobody holds it, or at exit; never during a pass.

    Attributes:
        lock: held during a pass.
        closed: whether it was freed.

    Args:
        address: the pointer.
        free: the C function that frees it.
        parent: what it depends on, which therefore outlives it.
    """

    def __init__(self, address: Any, free: Callable[[Any], None], parent: Pointer | None = None) -> None:
        self.address = address
        self.lock = threading.Lock()
        self.closed = False
        self._free = free
        self._parent = parent
        self._locks = [self.lock]
        if parent is not None:
            parent._locks.append(self.lock)
        self._finalizer = weakref.finalize(self, _free_unless_busy, free, address, self._locks, parent)

    def close(self) -> None:
        """Frees it once the pass that runs, if any, is over; closing twice is harmless."""
        with self.lock:
            self.closed = True
            if self._finalizer.detach() is not None:
                self._free(self.address)
                if self._parent is not None:
                    self._parent._locks.remove(self.lock)


def _free_unless_busy(
    free: Callable[[Any], None], address: Any, locks: list[threading.Lock], parent: Pointer | None
) -> None:
    # At exit a daemon thread may still be inside a pass; memory it uses is left to the operating system.
    if any(lock.locked() for lock in locks):
        return
    free(address)
    if parent is not None:
        parent._locks.remove(locks[0])
