"""What the kernel's files say of a process and those that it started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench_lib.worker import host

TICKS = os.sysconf("SC_CLK_TCK")


def process(
    proc: Path,
    pid: int,
    parent: int,
    *,
    user: int = 0,
    system: int = 0,
    ended: int = 0,
    kb: int = 0,
):
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    fields = ["R", str(parent), *["0"] * 9, str(user), str(system), str(ended), *["0"] * 29]
    (folder / "stat").write_text(f"{pid} (a) 1 (b) {' '.join(fields)}\n")
    (folder / "status").write_text(f"Name:\ta\nVmPeak:\t99 kB\nVmHWM:\t  {kb} kB\n")


@pytest.fixture
def proc(tmp_path):
    process(tmp_path, 10, 1, user=3 * TICKS, system=TICKS, kb=1000)
    process(tmp_path, 30, 20, user=TICKS, kb=10)
    process(tmp_path, 20, 10, system=2 * TICKS, kb=100)
    process(tmp_path, 40, 1, user=50 * TICKS, kb=5000)
    (tmp_path / "meminfo").write_text("")
    return tmp_path


def test_a_child_that_ended_counts_for_who_waited_for_it(tmp_path):
    process(tmp_path, 10, 1, user=TICKS, ended=2 * TICKS)
    assert host.cpu_s([10], tmp_path) == 3.0


def test_a_family_is_a_process_and_all_that_descend_from_it(proc):
    assert host.family(proc, 10) == [10, 20, 30]
    assert host.family(proc, 40) == [40]


def test_a_familys_figures_are_summed(proc):
    assert host.peak_bytes(host.family(proc, 10), proc) == 1110 * 1024
    assert host.cpu_s(host.family(proc, 10), proc) == 7.0


def test_each_thread_has_waited_for_a_cpu_of_its_own(tmp_path):
    for thread, counts in {"7": "900 1500000000 12", "8": "5 250000000 1", "9": ""}.items():
        folder = tmp_path / "self/task" / thread
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(counts)
    (tmp_path / "self/task/10").mkdir()
    assert host.waits_s(tmp_path) == {"7": 1.5, "8": 0.25}
    assert host.waits_s(tmp_path / "nothing") == {}


def test_this_process_has_figures_of_its_own():
    block = bytearray(b"x" * 2**26)
    high = host.peak_bytes(host.family())
    del block
    host.forget_peak()
    low = host.peak_bytes(host.family())
    assert high - low > 2**25, "the peak is counted anew"
    assert (host.cpu_s(host.family()) or 0) > 0
