"""ROCm's profilers: which is chosen, how it is started, and its files read by column."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_lib.rocm.profilers import Kernel, Profiler, find, read
from bench_lib.rocm.tool import ToolError

APP = ["python3", "train.py", "--lr", "0.1"]
HEADER = '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"\n'


@pytest.fixture
def rocm(tmp_path: Path):
    """Install a ROCm of some version with some of its profilers; returns its environment."""

    def install(*tools: str, version: str | None = None) -> dict[str, str]:
        folder = tmp_path / "rocm"
        (folder / "bin").mkdir(parents=True)
        for tool in tools:
            (folder / "bin" / tool).write_text("#!/bin/sh\n")
            (folder / "bin" / tool).chmod(0o755)
        if version is not None:
            (folder / ".info").mkdir()
            (folder / ".info/version").write_text(version)
        return {"PATH": str(folder / "bin"), "ROCM_PATH": str(tmp_path / "nowhere")}

    return install


@pytest.mark.parametrize(
    ("version", "tool"),
    [
        ("6.1.2\n", "rocprofv2"),
        ("6.2.0-66\n", "rocprofv3"),
        ("6.13.0", "rocprofv3"),
        ("7.1.0", "rocprofv3"),
        ("10.0.0", "rocprofv3"),
        ("of my own", "rocprofv3"),
        (None, "rocprofv3"),
    ],
)
def test_the_newest_profiler_that_the_release_supports_is_chosen(rocm, version, tool):
    """Versions are compared as numbers; where there is none the tool itself says enough."""
    environ = rocm("rocprofv3", "rocprofv2", "rocprof", version=version)
    chosen = find(environ)
    assert chosen is not None
    assert (chosen.tool, chosen.path) == (tool, f"{environ['PATH']}/{tool}")


@pytest.mark.parametrize("tool", ["rocprofv2", "rocprof"])
def test_an_older_profiler_is_taken_where_it_is_the_only_one(rocm, tool):
    """A ROCm of any version may have left the newest out."""
    chosen = find(rocm(tool, version="6.4.1"))
    assert chosen is not None
    assert chosen.tool == tool


def test_without_a_profiler_there_is_none(rocm):
    """Nothing on PATH is None and no error; nor is a rocprofv3 from before its time taken."""
    assert find(rocm()) is None


def test_a_rocprofv3_of_too_old_a_release_alone_is_none(rocm):
    """It was a preview then."""
    assert find(rocm("rocprofv3", version="6.1.0")) is None


def test_rocprofv3_is_always_told_its_output_format():
    """Without it ROCm 7 writes a database and no CSV."""
    command = Profiler("rocprofv3", "/r/rocprofv3").command(APP, Path("/out"), "case")
    assert command == [
        *("/r/rocprofv3", "--stats", "--kernel-trace", "--output-format", "csv"),
        *("-d", "/out", "-o", "case", "--", *APP),
    ]


def test_older_profilers_take_the_application_without_a_border():
    """Neither knows ``--``."""
    v2 = Profiler("rocprofv2", "/r/rocprofv2").command(APP, Path("/out"), "case")
    v1 = Profiler("rocprof", "/r/rocprof").command(APP, Path("/out"), "case")
    assert v2 == [
        *("/r/rocprofv2", "--kernel-trace", "--plugin", "file"),
        *("-d", "/out", "-o", "case", *APP),
    ]
    assert v1 == ["/r/rocprof", "--stats", "-o", "/out/case.csv", *APP]


@pytest.mark.parametrize(
    ("tool", "file"), [("rocprofv3", "case_kernel_stats.csv"), ("rocprof", "case.stats.csv")]
)
def test_the_statistics_are_found_beside_other_files(tmp_path, tool, file):
    """Each version has its own name for them."""
    for name in (file, "case_agent_info.csv", "case_kernel_trace.csv", "other_kernel_stats.csv"):
        (tmp_path / name).write_text(HEADER)
    assert Profiler(tool, tool).kernel_stats(tmp_path, "case") == tmp_path / file


def test_a_trace_of_rocprofv2_is_found_by_its_columns(tmp_path):
    """Its names hold a number of its own."""
    (tmp_path / "case_17_agents.csv").write_text("Agent\n0\n")
    (tmp_path / "results_case.csv").write_text("Kernel_Name,Start_Timestamp,End_Timestamp\n")
    found = Profiler("rocprofv2", "rocprofv2").kernel_stats(tmp_path, "case")
    assert found == tmp_path / "results_case.csv"


@pytest.mark.parametrize("tool", ["rocprofv3", "rocprofv2", "rocprof"])
def test_what_was_not_written_is_named_with_what_was(tmp_path, tool):
    """An application that never used the device leaves no statistics."""
    (tmp_path / "case_agent_info.csv").write_text("Node_Id\n")
    with pytest.raises(ToolError, match=rf"{tool} left no statistics .*, but case_agent_info.csv"):
        Profiler(tool, tool).kernel_stats(tmp_path, "case")


def test_statistics_are_read_by_the_names_of_their_columns(tmp_path):
    """In any order, with columns nobody knows, and commas inside names."""
    file = tmp_path / "case_kernel_stats.csv"
    file.write_text(
        '"Percentage","New","Calls","Name","AverageNs","TotalDurationNs"\n'
        '25.00,x,4,"void add<float>(float*, int)",250.500000,1002\n'
        '7.500e+01,y,2,"gemm",1503.000000,3006\n'
    )
    assert read(file) == [
        Kernel("gemm", 2, 3006.0, 1503.0, 75.0),
        Kernel("void add<float>(float*, int)", 4, 1002.0, 250.5, 25.0),
    ]


def test_a_trace_is_summed_up_by_kernel(tmp_path):
    """A call a row, as rocprofv2 writes them."""
    file = tmp_path / "results_case.csv"
    file.write_text(
        "Dispatch_ID,Kernel_Name,Start_Timestamp,End_Timestamp\n"
        '1,"add(int, int)",1000,1100\n2,gemm,1100,1900\n3,"add(int, int)",1900,2000\n'
    )
    assert read(file) == [
        Kernel("gemm", 1, 800.0, 800.0, 80.0),
        Kernel("add(int, int)", 2, 200.0, 100.0, 20.0),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Name,Calls,AverageNs,Percentage\ngemm,1,2,3\n", "no column 'TotalDurationNs'"),
        ("Name,Calls,AverageNs,Percentage\ngemm,1,2,3\n", "are Name, Calls, AverageNs, Percent"),
        ("Kernel_Name,Start_Timestamp\ngemm,1\n", "no column 'End_Timestamp'"),
        ("", "no column 'Name'; its columns are none"),
        (HEADER + '"gemm",x,2,3,4,5,6,7\n', "cannot be read"),
        (HEADER + '"gemm",1\n', "cannot be read"),
    ],
)
def test_a_file_that_makes_no_sense_says_what_is_missing(tmp_path, text, words):
    """The missing column, and the columns that there are."""
    file = tmp_path / "case_kernel_stats.csv"
    file.write_text(text)
    with pytest.raises(ToolError, match=words):
        read(file)


def test_statistics_without_kernels_are_empty(tmp_path):
    """A header alone is an answer."""
    file = tmp_path / "case_kernel_stats.csv"
    file.write_text(HEADER)
    assert read(file) == []


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    """And no traceback of the csv module's."""
    with pytest.raises(ToolError, match=r"nothing\.csv cannot be read"):
        read(tmp_path / "nothing.csv")
