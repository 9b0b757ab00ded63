from __future__ import annotations

import os
from pathlib import Path

import pytest

from draftproof.models.cpu import (
    SPIN_COUNT,
    amx_on_virtual_machine,
    multiplies_bfloat16,
    short_openmp_spin,
    usable_cores,
)

CPUINFO = """processor\t: 0
model name\t: A processor
flags\t\t: fpu sse2 {flags} avx512_bf16
bugs\t\t: amx_tile hypervisor

processor\t: 1
"""


@pytest.mark.parametrize(
    ("flags", "unsafe"),
    [
        ("hypervisor amx_bf16 amx_tile amx_int8", True),
        ("amx_bf16 amx_tile amx_int8", False),
        ("hypervisor", False),
        ("hypervisor amx_tiles", False),
    ],
)
def test_amx_is_distrusted_on_virtual_machines_only(flags: str, unsafe: bool) -> None:
    assert amx_on_virtual_machine(CPUINFO.format(flags=flags)) is unsafe


def test_bfloat16_is_trusted_to_be_fast_on_x86_only() -> None:
    assert [multiplies_bfloat16(machine) for machine in ("x86_64", "AMD64", "aarch64", "arm64")] == [
        True,
        True,
        False,
        False,
    ]


def test_a_system_without_cpuinfo_has_no_amx_trouble() -> None:
    assert amx_on_virtual_machine("") is False
    assert amx_on_virtual_machine() in (True, False)


def _processors(root: Path, siblings: list[str]) -> None:
    for i, value in enumerate(siblings):
        folder = root / f"sys/devices/system/cpu/cpu{i}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(value + "\n")


def test_threads_of_a_core_count_once_and_a_quota_binds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    assert usable_cores(str(tmp_path)) == 4
    _processors(tmp_path, ["0,2", "1,3", "0,2", "1,3"])
    assert usable_cores(str(tmp_path)) == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2}, raising=False)
    assert usable_cores(str(tmp_path)) == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    limit = tmp_path / "sys/fs/cgroup/cpu.max"
    limit.parent.mkdir(parents=True)
    for text, cores in (("max 100000", 2), ("50000 100000", 1), ("150000 100000", 2), ("100000 100000", 1), ("", 2)):
        limit.write_text(text)
        assert usable_cores(str(tmp_path)) == cores


def test_systems_without_affinity_count_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert usable_cores(str(tmp_path)) == 3


def test_the_spin_setting_is_lent_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    with short_openmp_spin():
        assert os.environ["GOMP_SPINCOUNT"] == SPIN_COUNT
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    with short_openmp_spin():
        assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.setenv("GOMP_SPINCOUNT", "5")
    with short_openmp_spin():
        assert os.environ["GOMP_SPINCOUNT"] == "5"
    assert os.environ["GOMP_SPINCOUNT"] == "5"
