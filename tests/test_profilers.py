"""rocprofv3: how it is started, and what it left read back.

The profiler is a stand-in (`standins.rocm.profilers`) that refuses flags which its release has not,
and really runs the application.
"""

from __future__ import annotations

import json
import string
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from standins.rocm.profilers import application, install

from bench_lib import model
from bench_lib.backends.amd import results
from bench_lib.backends.amd.profilers import RocmProfiler, find, require
from bench_lib.backends.profiler import Results
from bench_lib.backends.tool import ToolError

APP = ["python3", "train.py", "--lr", "0.1"]
HEADER = '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"\n'
TRACE = '"Kind","Kernel_Name","Start_Timestamp","End_Timestamp","Grid_Size_Z"\n'
MARKERS = "Domain,Function,Process_Id,Start_Timestamp,End_Timestamp\n"
GEMM_PLAIN = "Cijk_Ailk_Bljk_HHS_BH_MT64x64x16"
ADD_PLAIN = "void add<float>(float*, float const*, int)"
RELEASES = ["6.4.1", "7.13.0", "10.0.0"]


def run(folder: Path, version: str, *, processes: int = 1) -> RocmProfiler:
    environ = install(folder / "rocm", version=version)
    profiler = require(environ=environ)
    words = profiler.command(application(processes), folder / "out")
    subprocess.run(words, check=True, env=environ, timeout=60)
    return profiler


def kernels(found: Results) -> list[model.Kernel]:
    return [k for process in found.processes for k in process.kernels if k not in copies(found)]


def copies(found: Results) -> list[model.Kernel]:
    each = (kernel for process in found.processes for kernel in process.kernels)
    return [kernel for kernel in each if kernel.name.startswith("Memcpy ")]


# --- which -------------------------------------------------------------------------------


def test_a_profiler_that_is_not_installed_is_told_with_what_to_install(tmp_path):
    environ = {"PATH": str(tmp_path), "ROCM_PATH": str(tmp_path)}
    assert find(environ) is None
    words = "rocprofv3 is not on PATH, next to Python or in ROCm's folder; install ROCm's package"
    with pytest.raises(ToolError, match=f"{words} amdrocm-profiler-base"):
        require("rocm", environ)
    with pytest.raises(ToolError, match="no profiler 'nvprof'; choose rocprofv3"):
        require("nvprof", environ)


# --- how it is started -------------------------------------------------------------------


def test_rocprofv3_is_always_told_its_output_format():
    command = RocmProfiler("/r/rocprofv3").command(APP, Path("/out"))
    assert command == [
        *("/r/rocprofv3", "--stats", "--kernel-trace", "--marker-trace", "--memory-copy-trace"),
        *("--output-format", "csv", "-d", "/out", "-o", "case_%pid%", "--", *APP),
    ]


# --- whole runs --------------------------------------------------------------------------


@pytest.mark.parametrize("version", RELEASES)
def test_every_release_takes_its_command_and_its_kernels_are_read(tmp_path, version):
    profiler = run(tmp_path, version)
    found = profiler.results(tmp_path / "out")
    assert [(k.name, k.calls) for k in kernels(found)] == [(GEMM_PLAIN, 5), (ADD_PLAIN, 10)]
    assert kernels(found)[0].total_s == pytest.approx(5 * 300e-6 + 3 * 100e-6)
    assert kernels(found)[1].total_s == pytest.approx(10 * 5e-6)
    assert len([c for c in found.processes[0].calls if not c.name.startswith("Memcpy ")]) == 15
    assert found.problems == []


def test_warm_up_is_not_counted_where_a_range_is_named(tmp_path):
    found = run(tmp_path, "7.0.0").results(tmp_path / "out", "steps")
    assert [(k.name, k.calls) for k in kernels(found)] == [(GEMM_PLAIN, 2), (ADD_PLAIN, 4)]
    assert kernels(found)[0].total_s == pytest.approx(2 * 300e-6)
    assert [process.ranges for process in found.processes] == [1]
    calls = found.processes[0].calls
    assert calls[0].begin_s == 0.0
    assert next(c for c in calls if c.name == GEMM_PLAIN).end_s > 0.0
    assert found.problems == []


def test_copies_are_told_by_direction_and_only_those_of_the_range(tmp_path):
    found = run(tmp_path, "7.0.0").results(tmp_path / "out", "steps")
    assert copies(found) == [model.Kernel("Memcpy HtoD", 2, pytest.approx(100e-6))]


def test_every_rank_has_its_own_kernels(tmp_path):
    found = run(tmp_path, "6.4.0", processes=3).results(tmp_path / "out")
    assert [process.label for process in found.processes] == ["4000", "4001", "4002"]
    ns = [round(process.kernels[0].total_s * 1e9) for process in found.processes]
    assert ns == [1_800_000, 1_805_000, 1_810_000]
    assert copies(found) == [model.Kernel("Memcpy HtoD", 5, pytest.approx(5 * 50e-6))] * 3


# --- ranges ------------------------------------------------------------------------------


def write(folder: Path, **files: str) -> RocmProfiler:
    for name, text in files.items():
        (folder / f"case_{name}.csv").write_text(text)
    return RocmProfiler("rocprofv3")


def rows(*spans: tuple[str, int, int]) -> str:
    return TRACE + "".join(f'"KERNEL_DISPATCH","{n}",{b},{e},1\n' for n, b, e in spans)


def marked(*spans: tuple[str, int, int]) -> str:
    return MARKERS + "".join(f"MARKER_CORE_API,{n},7,{b},{e}\n" for n, b, e in spans)


def test_a_kernel_belongs_to_the_range_in_which_it_began(tmp_path):
    kernels = [("k", moment, moment + 1) for moment in (9, 10, 20, 21, 29, 30, 35, 41)]
    ranges = [("step", 30, 40), ("step", 10, 20), ("step", 12, 15), ("other", 0, 100)]
    profiler = write(tmp_path, kernel_trace=rows(*kernels), marker_api_trace=marked(*ranges))
    (process,) = profiler.results(tmp_path, "step").processes
    assert process.kernels == [model.Kernel("k", 4, pytest.approx(4e-9))]
    assert process.ranges == 3


def test_where_no_range_has_the_name_everything_counts_and_that_is_told(tmp_path):
    files = {"kernel_trace": rows(("k", 1, 2)), "marker_api_trace": marked(("warm", 0, 9))}
    found = write(tmp_path, **files).results(tmp_path, "step")
    assert [kernel.calls for kernel in kernels(found)] == [1]
    (problem,) = found.problems
    assert (
        problem == "no range 'step', so all kernels count, even the warm-up's: the ranges are warm"
    )


def test_an_application_that_marks_nothing_is_told_apart(tmp_path):
    found = write(tmp_path, kernel_trace=rows(("k", 1, 2))).results(tmp_path, "step")
    assert found.problems[0].endswith(": the application marked none")


def test_a_process_without_the_range_is_left_out_where_another_has_it(tmp_path):
    write(tmp_path, **{"1_kernel_trace": rows(("launcher's", 1, 2))})
    files = {"2_kernel_trace": rows(("k", 1, 2)), "2_marker_api_trace": marked(("step", 0, 9))}
    found = write(tmp_path, **files).results(tmp_path, "step")
    assert [process.label for process in found.processes] == ["2"]


def test_a_range_in_which_nothing_ran_is_told(tmp_path):
    files = {"kernel_trace": rows(("k", 1, 2)), "marker_api_trace": marked(("step", 50, 90))}
    found = write(tmp_path, **files).results(tmp_path, "step")
    assert found.processes == []
    assert found.problems == ["rocprofv3 saw no kernel inside 'step': nothing ran on a GPU there"]


def test_of_very_many_kernels_all_are_counted_and_the_first_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "MOST_CALLS", 2)
    trace = rows(*[("k", moment, moment + 1) for moment in range(5)])
    found = write(tmp_path, kernel_trace=trace).results(tmp_path)
    assert kernels(found) == [model.Kernel("k", 5, pytest.approx(5e-9))]
    assert len(found.processes[0].calls) == 2
    assert found.problems == ["gaps and spread are computed from the first 2 kernels only"]


# --- files -------------------------------------------------------------------------------


def test_what_was_not_written_is_named_with_what_was(tmp_path):
    (tmp_path / "case_agent_info.csv").write_text("Node_Id\n")
    with pytest.raises(
        ToolError, match=r"wrote no trace of kernels .* contains case_agent_info\.csv"
    ):
        RocmProfiler("rocprofv3").results(tmp_path)


@pytest.mark.parametrize("missing", [1, 8, 20])
def test_a_trace_that_was_cut_off_is_refused(tmp_path, missing):
    profiler = write(
        tmp_path, kernel_trace=rows(("gemm", 1000, 1900), ("add", 2000, 2500))[:-missing]
    )
    with pytest.raises(ToolError, match=r"case_kernel_trace\.csv is cut off"):
        profiler.results(tmp_path)


def test_a_header_without_rows_says_that_nothing_ran(tmp_path):
    found = write(tmp_path, kernel_trace=TRACE).results(tmp_path)
    assert found == Results([], ["rocprofv3 saw no kernel: nothing ran on a GPU there"])


def test_a_database_is_told_with_how_to_get_csv(tmp_path):
    file = tmp_path / "case_kernel_trace.csv"
    file.write_bytes(results.DATABASE + b"\0" * 80)
    with pytest.raises(ToolError, match=r"is a database, not CSV; .*rocpd convert -i"):
        RocmProfiler("rocprofv3").results(tmp_path)


# --- anything at all ---------------------------------------------------------------------

CELL = st.one_of(
    st.sampled_from([*json.loads(f"[{HEADER.strip()}]"), "Kernel_Name", "Start_Timestamp"]),
    st.sampled_from(["End_Timestamp", "Function", "Message", "Timestamp", "Direction"]),
    st.text(st.sampled_from(string.printable + "\0é\ud800"), max_size=8).map(
        lambda text: text.encode("utf-8", "replace").decode()
    ),
    st.integers().map(str),
    st.floats().map(str),
)
LINES = st.lists(st.lists(CELL, max_size=6).map(",".join), max_size=6).map("\n".join)
ANYTHING = st.one_of(
    st.binary(max_size=300), LINES.map(str.encode), LINES.map(lambda text: (TRACE + text).encode())
)
QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def only_a_tool_error(ask: Callable[[], object]) -> None:
    with suppress(ToolError):
        ask()


@QUICK
@given(content=ANYTHING, markers=ANYTHING)
def test_whatever_is_in_a_csv_it_is_read_or_refused(tmp_path, content, markers):
    (tmp_path / "case_kernel_trace.csv").write_bytes(content)
    (tmp_path / "case_marker_api_trace.csv").write_bytes(markers)
    (tmp_path / "case_memory_copy_trace.csv").write_bytes(content)
    profiler = RocmProfiler("rocprofv3")
    only_a_tool_error(lambda: profiler.results(tmp_path))
    only_a_tool_error(lambda: profiler.results(tmp_path, "step"))
