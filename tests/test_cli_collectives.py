"""``bench-lib collectives``: nccl-tests' flags and lines, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from builders import (
    make_fault,
    make_hardware,
    make_measurement,
    the_run,
)
from command import Printed, ran
from documents import document_in
from scripted import gpus, held_class

import bench_lib
from bench_lib.cases.collectives import collective_of
from bench_lib.launch.faults import CaseFault, CaseSkipped
from bench_lib.model import Fault, Numerics
from bench_lib.studies.collectives import HEADER

CPU = make_hardware(vendor="cpu", key="cpu-2c", uuid=None, bdf=None, peak_tflops={})
PAGE = Path(bench_lib.__file__).parents[1] / "docs" / "collectives.md"
CALLS = 16


class Answer(Printed):
    """How the command ended and what it printed."""

    @property
    def rows(self) -> list[list[str]]:
        """The cells of nccl-tests' lines."""
        lines = self.out.splitlines()
        return [line.split() for line in lines if re.match(r" +[0-9]+ +[0-9]+ +[a-z]", line)]


def answer_of(case, wrong):
    """Return what ranks measured: 16 calls in 16 ms, steadily."""
    call = collective_of(case.params, case.launch.ranks)
    elements = call.got * call.ranks
    return make_measurement(
        case_id=case.id,
        iteration_s=[0.016] * 20,
        items_per_step=CALLS,
        item="call",
        numerics=Numerics(
            finite=not wrong, loss=float(elements - wrong), reference_loss=float(elements)
        ),
    )


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function that runs the command in an empty folder, on ranks with a script."""
    monkeypatch.chdir(tmp_path)

    def run(*words, script=None, devices=None) -> Answer:
        def together(cases, **_):
            answers = []
            for case in cases:
                told = (script or {}).get(case.id, 0)
                if isinstance(told, Fault):
                    return [*answers, CaseFault(told)]
                skipped = isinstance(told, str)
                answers.append(CaseSkipped(told) if skipped else answer_of(case, told))
            batches.append(len(answers))
            return answers

        batches.clear()
        monkeypatch.setattr("bench_lib.engine.device.measure_together", together)
        monkeypatch.setattr("bench_lib.backends.detect", lambda: devices or gpus(4))
        monkeypatch.setattr("bench_lib.launch.catalogue.network_sizes", dict)
        hold = held_class({}, tmp_path / "locks")
        monkeypatch.setattr("bench_lib.engine.engine.HeldDevice", hold)
        return ran(["collectives", *words], monkeypatch, capsys, Answer)

    return run


batches: list[int] = []
"""How many cases each launch of the last command measured, but for those that ended in a fault."""


# ---- nccl-tests' lines ------------------------------------------------------------------


def test_a_sweep_has_a_line_a_size_and_a_mean_at_its_end(run, tmp_path):
    answer = run("--op", "all_reduce", "-b", "1M", "-e", "4M")
    assert answer.status == 0
    begin = answer.out.index("# Collective: all_reduce, ranks: 4")
    assert "\n".join(HEADER) in answer.out[begin:]
    assert [row[0] for row in answer.rows] == ["1048576", "2097152", "4194304"]
    assert answer.rows[0] == [
        *("1048576", "262144", "float", "sum", "-1"),
        *("N/A", "N/A", "N/A", "N/A"),
        *("1000.00", "1.05", "1.57", "0"),
    ]
    mean = 7 * 2**20 / 3 / 1e6 * 1.5
    assert f"# Avg bus bandwidth    : {mean:g} \n" in answer.out
    assert "# Out of bounds values : 0 OK\n" in answer.out
    assert answer.measured == [f"all_reduce-{n}M-float-x4" for n in (1, 2, 4)]
    record = the_run(tmp_path).records["all_reduce-1M-float-x4"]
    assert record.nodeid == "bench-lib/collectives::all_reduce-1M-float-x4"
    assert record.case.params == {"op": "all_reduce", "bytes": 2**20, "dtype": "float"}


def test_both_forms_are_measured_where_there_are_two(run):
    words = ("--op", "all_gather", "-b", "1K", "-e", "1K", "-d", "half")
    both = run(*words)
    assert both.measured == ["all_gather-1K-half-x4", "all_gather-1K-half-inplace-x4"]
    (row,) = both.rows
    assert (row[1], row[5], row[9]) == ("128", "1000.00", "1000.00")
    one = run(*words, "--in-place")
    assert one.measured == ["all_gather-1K-half-inplace-x4"]
    assert one.rows[0][5:9] == ["N/A"] * 4


def test_operations_follow_each_other_with_a_header_each(run):
    answer = run("--op", "broadcast,all_to_all,broadcast", "-b", "1K", "-e", "2K", "-g", "2")
    assert answer.out.count(HEADER[1]) == answer.out.count("# Avg bus bandwidth") == 2
    assert [row[3:5] for row in answer.rows] == [["none", "0"]] * 2 + [["none", "-1"]] * 2
    assert [name.partition("-")[0] for name in answer.measured] == [
        "broadcast", "broadcast", "all_to_all", "all_to_all",
    ]  # fmt: skip


def test_without_flags_it_is_three_operations_from_8_bytes_to_128_mib(run):
    answer = run()
    sizes = [int(row[0]) for row in answer.rows]
    assert sizes[:25] == [8 * 2**i for i in range(25)]
    assert sizes[25:47] == [64 * 2**i for i in range(22)]
    assert "all_gather: sizes are rounded down to whole 16 bytes for each of 4 ranks" in answer.err
    assert "25 became 22" in answer.err


def test_sizes_may_go_by_steps(run):
    answer = run("--op", "all_reduce", "-b", "4", "-e", "12", "-i", "4")
    assert [row[0] for row in answer.rows] == ["4", "8", "12"]


def test_ranks_are_started_once(run):
    run("--op", "all_reduce,all_gather", "-b", "1K", "-e", "4K")
    assert batches == [9]


def test_calls_may_be_issued_one_by_one(run):
    answer = run("--op", "all_reduce", "-b", "8", "-e", "8", "--no-graph")
    assert answer.measured == ["all_reduce-8-float-eager-x4"]


def test_on_a_cpu_there_are_two_ranks(run):
    words = ("--op", "all_reduce", "-b", "8", "-e", "8")
    assert run(*words, devices=[CPU]).measured == ["all_reduce-8-float-x2"]
    assert run(*words, "--ranks", "3", devices=[CPU]).measured == ["all_reduce-8-float-x3"]


def test_a_summary_tells_latency_and_bandwidth(run):
    answer = run("--op", "all_reduce", "-b", "1M", "-e", "2M")
    heading = answer.out.index("collective ")
    line = answer.out[heading:].splitlines()[1]
    cells = re.split("  +", line.strip())
    assert cells[:5] == ["all_reduce", "in place", "4", "1 ms", "1M"]
    assert cells[5:] == ["3.146 GB/s", "2M", "1M"]


def test_json_has_the_rows_and_nothing_else(run):
    answer = run("--op", "all_reduce", "-b", "1M", "-e", "1M", "--json")
    told = document_in(answer.out)
    assert told["command"] == "collectives"
    (row,) = told["rows"]
    assert (row["size_bytes"], row["count"]) == (2**20, 2**18)
    assert (row["in_place"], row["wrong"]) == (True, 0)
    assert row["call_s"] == pytest.approx(0.001)
    assert row["bus_gb_per_s"] == pytest.approx(2**20 / 1e6 * 1.5)


# ---- what goes wrong --------------------------------------------------------------------


def test_wrong_elements_fail_the_command(run):
    answer = run(
        "--op", "all_reduce", "-b", "1K", "-e", "1K", script={"all_reduce-1K-float-x4": 3}
    )  # fmt: skip
    assert answer.status == 1
    assert answer.rows[0][-1] == "3"
    assert "# Out of bounds values : 3 FAILED" in answer.out
    assert "WRONG elements, so that nothing of it counts: all_reduce-1K-float-x4 (3)" in answer.out


def test_a_fault_of_one_size_leaves_the_others(run):
    script = {"all_reduce-1K-float-x4": make_fault(), "all_reduce-2K-float-x4": "gloo cannot"}
    answer = run("--op", "all_reduce", "-b", "1K", "-e", "4K", script=script)
    assert answer.status == 0
    assert [row[9] for row in answer.rows] == ["N/A", "N/A", "1000.00"]
    assert "all_reduce-1K-float-x4: ERROR: out of memory in first step" in answer.out
    assert "all_reduce-2K-float-x4: skipped: gloo cannot" in answer.out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--op all_redcue", "--op: unknown op 'all_redcue'; did you mean all_reduce"),
        ("--op=", "--op: unknown op ''"),
        ("-d fp32", "unknown dtype 'fp32'; there is int8"),
        ("-d flaot", "unknown dtype 'flaot'; did you mean float"),
        ("-b 8x", "--minbytes: bytes is '8x'; write a number of bytes, or 64K"),
        ("-b 0", "--minbytes: bytes is 0; it has to be 1 to"),
        ("-e -1", "--maxbytes: bytes is '-1'; write a number"),
        ("-b 2M -e 1M", "--minbytes 2097152 is above --maxbytes 1048576"),
        ("-f 1", "--stepfactor is 1; it has to be a whole number of 2 or more"),
        ("-f 2 -i 8", "--stepfactor and --stepbytes are two ways; choose one"),
        ("-i 8", "more than 1000 sizes from 8 to 134217728; step further"),
        ("-b 1 -e 3", "--maxbytes: 2 bytes of float leave 4 ranks nothing"),
        ("-g 1", "--ranks is 1; a collective is of 2 to 1024"),
        ("-g 5", "--ranks is 5, and there are 4 GPUs"),
        ("--op all_to_all --in-place", "--in-place: torch's all_to_all has no such form"),
        ("--judge --matrix no.toml", "no.toml: No such file"),
    ],
)  # fmt: skip
def test_a_question_put_wrongly_is_one_line_and_measures_nothing(run, tmp_path, words, error):
    answer = run(*words.split())
    assert answer.status == 2
    last = answer.err.splitlines()[-1]
    assert last.startswith(f"bench-lib: error: {error}")
    assert answer.measured == []
    assert not (tmp_path / "history").exists()


def test_one_gpu_is_no_group(run):
    answer = run(devices=gpus(1))
    assert answer.status == 2
    assert "a collective is of 2 GPUs or more, and there is 1 here" in answer.err


# ---- the page about it ------------------------------------------------------------------


def test_every_command_of_the_page_runs(run):
    commands = re.findall(
        r"^bench-lib collectives(.*?)(?:  +#.*)?$", PAGE.read_text(), re.MULTILINE
    )
    assert len(commands) >= 3
    for words in commands:
        assert run(*words.split()).status == 0, words


def test_the_page_names_every_flag(run):
    flags = set(re.findall(r"--[a-z0-9-]+", run("--help").out)) - {"--help"}
    text = PAGE.read_text()
    assert {flag for flag in flags if f"`{flag}`" not in text} == set()
