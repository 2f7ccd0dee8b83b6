"""Hardware counters: which are asked for, and what they tell of kernels, in words."""

from __future__ import annotations

import string
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from builders import make_hardware
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from standins.rocm.profilers import COMPUTE, application, install
from standins.rocm.profilers.around import COUNTERS

from bench_lib.backends.amd import counters
from bench_lib.backends.amd.counters import (
    BANDWIDTH,
    BANK_CONFLICTS,
    L2_HITS,
    OCCUPANCY,
)
from bench_lib.backends.amd.profilers import RocmProfiler, require
from bench_lib.backends.profiler import CounterMetric, Counters, KernelCounters
from bench_lib.backends.tool import ToolError

LONG = (
    "Dispatch_Id,Process_Id,Kernel_Name,Counter_Name,Counter_Value,Start_Timestamp,End_Timestamp\n"
)


def kernel(tmp_path: Path, *rows: str, peak: float | None = None) -> KernelCounters:
    file = tmp_path / "case_7_counter_collection.csv"
    file.write_text(LONG + "".join(f"{row}\n" for row in rows))
    (found,) = counters.read([file], peak_gb_s=peak).kernels
    return found


def metric(found: KernelCounters, name: str) -> CounterMetric | None:
    return next((each for each in found.metrics if each.name == name), None)


def counted(folder: Path, profiler: RocmProfiler, environ: dict[str, str]) -> Counters:
    def run(_what: str, into: Path, asked: Sequence[str]) -> None:
        profiler.prepare(into, counters=asked)
        words = profiler.command(application(), into, counters=asked)
        subprocess.run(words, check=True, env=environ, timeout=60)

    run("", folder, ())
    device = make_hardware(arch="gfx942", peak_gb_per_s=5300)
    return profiler.counters(folder, device, run, lambda _line: None)


# --- asking ------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx942:sramecc+:xnack-"])
def test_every_pass_fits_and_all_that_is_told_is_asked_for(arch):
    size = {"FETCH_SIZE": 3, "WRITE_SIZE": 2, "TCC_HIT_sum": 1, "TCC_MISS_sum": 1}
    asked = counters.passes(arch)
    assert all(sum(size.get(name, 0) for name in each) <= 4 for each in asked)
    assert {name for each in asked for name in each} == set(COUNTERS)


def test_a_release_that_takes_no_counters_is_told(tmp_path):
    profiler = require("rocm", install(tmp_path / "rocm", "rocprofv3", version="6.2.4"))
    with pytest.raises(ToolError, match=r"since ROCm 6\.3"):
        profiler.counters(tmp_path, make_hardware(arch="gfx942"), None, None)


@pytest.mark.parametrize("arch", ["gfx1100", "sm_90", ""])
def test_of_an_unknown_architecture_no_counter_is_made_up(arch):
    with pytest.raises(ToolError, match="gfx90a, gfx942 and gfx950 are"):
        counters.passes(arch)


# --- whole runs --------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["6.3.0", "7.0.0"])
def test_every_release_collects_the_passes_and_they_are_read_together(tmp_path, version):
    environ = install(tmp_path / "rocm", "rocprofv3", version=version)
    found = counted(tmp_path / "out", require("rocm", environ), environ)
    assert found.problems == []
    gemm, add = found.kernels
    assert (gemm.calls, add.calls) == (5, 10)
    assert gemm.total_s == pytest.approx(1.8e-3)
    told = {metric.name: metric.value for metric in add.metrics}
    assert told == {
        OCCUPANCY: 25.0,
        BANDWIDTH: pytest.approx(1800 * 1024 / 5e-6 / 1e9),
        L2_HITS: 60.0,
        BANK_CONFLICTS: 1.5,
    }
    bandwidth = metric(add, BANDWIDTH)
    assert bandwidth.share == pytest.approx(368.64 / 5300)


@pytest.mark.parametrize("version", COMPUTE)
def test_rocprof_compute_s_report_is_read(tmp_path, version):
    environ = install(tmp_path / "rocm", "rocprof-compute", version=version)
    (whole,) = counted(tmp_path / "out", require("rocprof-compute", environ), environ).kernels
    assert [(m.name, m.value, m.unit, m.share) for m in whole.metrics] == [
        (OCCUPANCY, 25.0, "%", 0.25),
        (BANDWIDTH, 4770.0, "GB/s", pytest.approx(0.9)),
        (L2_HITS, 60.0, "%", 0.6),
        (BANK_CONFLICTS, 1.5, "conflicts an access", 1.5 / 32),
    ]
    assert whole.name == ""


# --- what they tell ----------------------------------------------------------------------


def test_calls_count_by_their_time_and_bytes_are_added_up(tmp_path):
    found = kernel(
        tmp_path,
        *("1,7,k,OccupancyPercent,80,0,3000", "2,7,k,OccupancyPercent,40,5000,6000"),
        *("1,7,k,FETCH_SIZE,1000,0,3000", "2,7,k,FETCH_SIZE,2000,5000,6000"),
    )
    assert (found.calls, found.total_s) == (2, pytest.approx(4e-6))
    assert [metric.value for metric in found.metrics] == [70.0, 3000 * 1024 / 4000]


def test_instances_of_a_counter_in_one_call_are_added_up(tmp_path):
    rows = ["1,7,k,TCC_HIT_sum,10,0,9", "1,7,k,TCC_HIT_sum,20,0,9", "1,7,k,TCC_MISS_sum,10,0,9"]
    others = ["1,8,k,TCC_HIT_sum,0,0,9", "1,8,k,TCC_MISS_sum,20,0,9"]
    found = kernel(tmp_path, *rows, *others)
    assert found.calls == 2
    assert [metric.value for metric in found.metrics] == [50.0]


def test_only_what_was_counted_is_told(tmp_path):
    found = kernel(tmp_path, "1,7,k,FETCH_SIZE,1000,0,100", "1,7,k,TCC_HIT_sum,7,0,100")
    (only,) = found.metrics
    assert only.reading.endswith("(only what it read)")
    assert metric(found, L2_HITS) is None


@pytest.mark.parametrize(
    ("stalled", "active", "conflicts"), [(0, 0, 0.0), (0, 50, 0.0), (25, 50, 1.0), (60, 50, None)]
)
def test_bank_conflicts_are_those_of_an_access(tmp_path, stalled, active, conflicts):
    found = kernel(
        tmp_path,
        f"1,7,k,SQ_LDS_BANK_CONFLICT,{stalled},0,9",
        f"1,7,k,SQ_LDS_IDX_ACTIVE,{active},0,9",
    )
    told = metric(found, BANK_CONFLICTS)
    assert (told.value if told else None) == conflicts


def test_a_pass_that_saw_more_calls_tells_how_many_there_were(tmp_path):
    rows = [f"{at},7,k,OccupancyPercent,50,0,9" for at in range(3)]
    found = kernel(tmp_path, *rows, "8,7,k,TCC_HIT_sum,0,0,9")
    assert (found.calls, found.total_s) == (3, pytest.approx(27e-9))


def test_without_times_there_is_no_bandwidth_and_that_is_told(tmp_path):
    file = tmp_path / "case_7_counter_collection.csv"
    file.write_text(
        "Dispatch_Id,Kernel_Name,Counter_Name,Counter_Value\n1,k,FETCH_SIZE,5\n"
        "1,k,OccupancyPercent,20\n2,k,OccupancyPercent,40\n"
    )
    found = counters.read([file])
    assert found.kernels[0].total_s is None
    assert [metric.value for metric in found.kernels[0].metrics] == [30.0]
    assert found.problems == [
        "case_7_counter_collection.csv does not tell when kernels ran, so no bandwidth"
    ]


@pytest.mark.parametrize(
    ("rows", "name", "words"),
    [
        (["OccupancyPercent,29.9"], OCCUPANCY, "poor kernel utilization"),
        (["OccupancyPercent,30"], OCCUPANCY, "enough waves"),
        (["FETCH_SIZE,801"], BANDWIDTH, "memory-bound"),
        (["FETCH_SIZE,800"], BANDWIDTH, "not bound by the memory"),
        (["TCC_HIT_sum,69", "TCC_MISS_sum,31"], L2_HITS, "poor access patterns"),
        (["TCC_HIT_sum,70", "TCC_MISS_sum,30"], L2_HITS, "most accesses find their data"),
        (
            ["SQ_LDS_BANK_CONFLICT,2", "SQ_LDS_IDX_ACTIVE,3"],
            *(BANK_CONFLICTS, "LDS take 3 times as long"),
        ),
        (
            ["SQ_LDS_BANK_CONFLICT,0", "SQ_LDS_IDX_ACTIVE,3"],
            *(BANK_CONFLICTS, "no access to LDS waits"),
        ),
    ],
)
def test_every_figure_has_the_guide_s_reading(tmp_path, rows, name, words):
    each = [f"1,7,k,{row},0,1024" for row in rows]
    found = metric(kernel(tmp_path, *each, peak=1000), name)
    assert words in found.reading


def test_a_bandwidth_of_which_the_peak_is_not_known_has_no_share(tmp_path):
    found = metric(kernel(tmp_path, "1,7,k,FETCH_SIZE,800,0,1024"), BANDWIDTH)
    assert (found.share, found.value) == (None, 800.0)
    assert "is not known" in found.reading


def test_kernels_are_ordered_by_their_time_and_named_plainly(tmp_path):
    file = tmp_path / "case_7_counter_collection.csv"
    rows = ("1,7,a.kd,TCC_HIT_sum,1,0,10", "2,7,b [clone .kd],TCC_HIT_sum,1,20,90")
    file.write_text(LONG + "".join(f"{row}\n" for row in rows))
    found = counters.read([file])
    assert [(each.name, each.calls) for each in found.kernels] == [("b", 1), ("a", 1)]


def test_old_reports_with_other_names_are_read(tmp_path):
    text = (
        "│ Index   │ Metric            │ Value   │ Unit             │ Peak │ PoP   │\n"
        "│ 2.1.14  │ LDS Bank Conflict │         │ Conflicts/access │ 32   │       │\n"
        "│ 2.1.22  │ L2-Fabric Read BW │ 419.5   │ Gb/s             │ 1638 │ 25.6% │\n"
        "│         │ L2 Cache Hit Rate │ 9       │                  │      │       │\n"
        "│ 2.1.26  │ Wave Occupancy    │ 1821.72 │ Wavefronts       │ 3328 │ 54.74 │\n"
    )
    (whole,) = counters.parse(text).kernels
    assert [(m.name, m.value) for m in whole.metrics] == [(OCCUPANCY, 54.74), (BANDWIDTH, 419.5)]
    assert whole.metrics[1].share == pytest.approx(0.256)
    assert whole.metrics[1].reading.endswith("(only what it read)")


def test_half_a_share_is_no_share():
    text = (
        "│ Metric_ID │ Metric             │ Avg   │ Pct of Peak │\n"
        "│ 2.1.22    │ L2-Fabric Read BW  │ 400.0 │ 50.0        │\n"
        "│ 2.1.23    │ L2-Fabric Write BW │ 100.0 │             │\n"
    )
    (metric,) = counters.parse(text).kernels[0].metrics
    assert (metric.value, metric.share) == (500.0, None)


# --- what makes no sense -----------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "Traceback (most recent call last):", "│ Metric │\n│ x │"])
def test_a_report_without_figures_is_an_error(text):
    with pytest.raises(ToolError, match="tells no occupancy, bandwidth, L2 hits or bank conflicts"):
        counters.parse(text)


def test_a_file_that_was_cut_off_keeps_its_other_rows(tmp_path):
    file = tmp_path / "counters.csv"
    file.write_text(LONG + "1,7,k,TCC_HIT_sum,3,0,9\n1,7,k,TCC_MISS_sum,1,0,9\n2,7,k,TCC_HIT_su")
    found = counters.read([file])
    assert [metric.value for metric in found.kernels[0].metrics] == [75.0]
    assert found.problems == ["counters.csv is cut off: its last row, 3, is left out"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LONG + "1,7,k,TCC_HIT_sum,many,0,9\n", "row 1: 'many' is no number"),
        ("Name,Calls\nk,1\n", "no column 'Kernel_Name'"),
        ("SQLite format 3\0", "is a database and no CSV"),
    ],
)
def test_a_file_that_makes_no_sense_is_an_error(tmp_path, text, words):
    file = tmp_path / "counters.csv"
    file.write_text(text)
    with pytest.raises(ToolError, match=words):
        counters.read([file])


def test_counters_that_tell_none_of_it_are_told(tmp_path):
    file = tmp_path / "counters.csv"
    file.write_text(LONG + "1,7,k,SQ_WAVES,3,0,9\n")
    assert counters.read([file]).problems == [
        "no counter that tells occupancy, bandwidth, L2 hits or bank conflicts"
    ]


def test_a_run_that_left_no_counters_says_what_it_left(tmp_path):
    environ = install(tmp_path / "rocm", "rocprofv3", version="7.0.0")

    def run(_what: str, into: Path, _asked: Sequence[str]) -> None:
        into.mkdir(parents=True)
        (into / "case_7_agent_info.csv").write_text("Node_Id\n")

    device = make_hardware(arch="gfx942")
    with pytest.raises(ToolError, match=r"left no counters in .*, but case_7_agent_info\.csv"):
        require("rocm", environ).counters(tmp_path, device, run, lambda _line: None)


QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
CELL = st.one_of(
    st.sampled_from(
        [
            *counters.passes("gfx942")[0],
            *LONG.strip().split(","),
            "KernelName",
            "BeginNs",
            "EndNs",
            "1",
        ]
    ),
    st.text(string.printable, max_size=6),
    st.floats().map(str),
    st.integers(0, 9).map(str),
)
LINES = st.lists(st.lists(CELL, max_size=8).map(",".join), max_size=6).map("\n".join)


@QUICK
@given(text=st.one_of(LINES, LINES.map(LONG.__add__)), rest=st.binary(max_size=40))
def test_whatever_is_in_a_file_it_is_read_or_refused(tmp_path, text, rest):
    file = tmp_path / "counters.csv"
    file.write_bytes(text.encode() + rest)
    with suppress(ToolError):
        counters.read([file], peak_gb_s=1.0)
