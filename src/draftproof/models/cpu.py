"""What the machine's processor allows: how many threads, and whether its AMX kernels can be trusted."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SPIN_COUNT = "1000"
"""Rounds a waiting OpenMP thread spins before it sleeps, tens of microseconds; OpenMP's default is 300 times more."""


def usable_cores(root: str = "/") -> int:
    """Returns how many threads of work this process can run at once, at least 1.

    Counts the processors the process may be scheduled on, threads of one physical core once, and no more than a
    container's CPU quota allows.

    Args:
        root: where `sys` is mounted; for tests.
    """
    if hasattr(os, "sched_getaffinity"):
        processors = sorted(os.sched_getaffinity(0))
    else:
        processors = list(range(os.cpu_count() or 1))
    cores = {_core(Path(root), processor) for processor in processors}
    quota = _quota(_read(Path(root, "sys/fs/cgroup/cpu.max")))
    return max(1, len(cores) if quota is None else min(len(cores), quota))


def _core(root: Path, processor: int) -> str:
    siblings = _read(root / f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
    return siblings.strip() or f"cpu{processor}"


def _quota(limit: str) -> int | None:
    fields = limit.split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields) or int(fields[1]) == 0:
        return None
    return max(1, math.ceil(int(fields[0]) / int(fields[1])))


def amx_on_virtual_machine(cpuinfo: str | None = None) -> bool:
    """Returns whether the processor offers AMX through a hypervisor, where llama.cpp's AMX kernels crash the process.

    Args:
        cpuinfo: text of `/proc/cpuinfo`; None reads it, and a system without that file has no such trouble.
    """
    text = _read(Path("/proc/cpuinfo")) if cpuinfo is None else cpuinfo
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            return {"amx_tile", "hypervisor"} <= set(value.split())
    return False


def multiplies_bfloat16(machine: str | None = None) -> bool:
    """Returns whether llama.cpp has vector code for bfloat16 on this processor; elsewhere it is slow.

    Args:
        machine: the kind of processor as `platform.machine` spells it; None asks.
    """
    return (platform.machine() if machine is None else machine).lower() in ("x86_64", "amd64")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


@contextmanager
def short_openmp_spin() -> Iterator[None]:
    """Makes an OpenMP library that is loaded inside wait politely; a user's own setting wins.

    A pass has hundreds of barriers. When another process takes one of the cores, GNU OpenMP's default lets the thread
    that waits spin for milliseconds at each, on the very core the other one needs: a pass of 8 ms was seen to take
    1.8 s. The variable is read while the library loads, so it is taken back right after.
    """
    if "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    try:
        yield
    finally:
        os.environ.pop("GOMP_SPINCOUNT", None)
