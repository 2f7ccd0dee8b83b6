"""``bench-lib collectives``: nccl-tests' options, the table, and what is refused."""

import collections
import re
from pathlib import Path

import pytest
from builders import make_fault, make_hardware, make_measurement, the_run
from command import Printed, ran
from standins.worker import gpus, held_class, ranks_that

import bench_lib
from bench_lib.cases.collectives import collective_of
from bench_lib.formulas.collective import OPS
from bench_lib.launch.faults import CaseFault, CaseSkipped
from bench_lib.model import Fault, Numerics

CPU = make_hardware(vendor="cpu", key="cpu-2c", uuid=None, bdf=None, peak_tflops={})
PAGE = Path(bench_lib.__file__).parents[1] / "docs" / "collectives.md"
CALLS = 16


class Answer(Printed):
    @property
    def rows(self):
        lines = [line for line in self.lines if line.split(" ")[0] in OPS]
        return [re.split("  +", line.strip()) for line in lines]


def answer_of(case, wrong):
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
    monkeypatch.chdir(tmp_path)

    def run(*words, script=None, devices=None):
        def measure(case, **_):
            told = (script or {}).get(case.id, 0)
            if isinstance(told, Fault):
                raise CaseFault(told)
            if isinstance(told, str):
                raise CaseSkipped(told)
            return answer_of(case, told)

        monkeypatch.setattr("bench_lib.engine.device.Ranks", ranks_that(measure))
        monkeypatch.setattr("bench_lib.backends.detect", lambda **_: devices or gpus(4))
        monkeypatch.setattr("bench_lib.launch.catalogue.network_sizes", dict)
        hold = held_class({}, tmp_path / "locks")
        monkeypatch.setattr("bench_lib.engine.engine.HeldDevice", hold)
        return ran(["collectives", *words], monkeypatch, capsys, Answer)

    return run


# ---- the table -------------------------------------------------------------------------


def test_a_sweep_has_a_row_a_size(run, tmp_path):
    answer = run("--op", "all_reduce", "-b", "1M", "-e", "4M")
    assert answer.status == 0
    assert [row[:3] for row in answer.rows] == [
        ["all_reduce", size, "1 ms"] for size in ("1M", "2M", "4M")
    ]
    assert answer.rows[0][3:] == ["1.049", "1.573", "0"]
    assert answer.measured == [f"all_reduce-{n}M-float-x4" for n in (1, 2, 4)]
    record = the_run(tmp_path).records["all_reduce-1M-float-x4"]
    assert record.nodeid == "bench-lib/collectives::all_reduce-1M-float-x4"
    assert record.case.params == {"op": "all_reduce", "bytes": 2**20, "dtype": "float"}


def test_without_flags_it_is_three_operations_from_8_bytes_to_128_mib(run):
    answer = run()
    counts = collections.Counter(row[0] for row in answer.rows)
    assert counts == {"all_reduce": 25, "all_gather": 22, "reduce_scatter": 22}
    sizes = [row[1] for row in answer.rows]
    assert (sizes[0], sizes[24]) == ("8", "128M")
    assert "all_gather: sizes are rounded down to whole 16 bytes for each of 4 ranks" in answer.err
    assert "25 sizes became 22" in answer.err


def test_on_a_cpu_there_are_two_ranks(run):
    words = ("--op", "all_reduce", "-b", "8", "-e", "8")
    assert run(*words, devices=[CPU]).measured == ["all_reduce-8-float-x2"]
    assert run(*words, "--ranks", "3", devices=[CPU]).measured == ["all_reduce-8-float-x3"]


def test_json_has_the_rows_and_nothing_else(run):
    answer = run("--op", "all_reduce", "-b", "1M", "-e", "1M", "--json")
    told = answer.json
    assert told["command"] == "collectives"
    (row,) = told["rows"]
    assert (row["size_bytes"], row["count"]) == (2**20, 2**18)
    assert row["wrong"] == 0
    assert row["call_s"] == pytest.approx(0.001)
    assert row["bus_gb_per_s"] == pytest.approx(2**20 / 1e6 * 1.5)


# ---- what goes wrong --------------------------------------------------------------------


def test_wrong_elements_fail_the_command(run):
    answer = run(
        "--op", "all_reduce", "-b", "1K", "-e", "1K", script={"all_reduce-1K-float-x4": 3}
    )  # fmt: skip
    assert answer.status == 1
    assert answer.rows[0][-1] == "3"
    assert "WRONG elements, so these results are invalid: all_reduce-1K-float-x4 (3)" in answer.out


def test_a_fault_of_one_size_leaves_the_others(run):
    script = {"all_reduce-1K-float-x4": make_fault(), "all_reduce-2K-float-x4": "gloo cannot"}
    answer = run("--op", "all_reduce", "-b", "1K", "-e", "4K", script=script)
    assert answer.status == 0
    assert [row[2] for row in answer.rows] == ["ERROR", "skipped", "1 ms"]
    assert "all_reduce-1K-float-x4: ERROR: out of memory in first step" in answer.out
    assert "all_reduce-2K-float-x4: skipped: gloo cannot" in answer.out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--op all_redcue", "--op: unknown op 'all_redcue'; did you mean all_reduce"),
        ("--op=", "--op is empty; write a list as in all_reduce,all_to_all"),
        ("--op broadcast,broadcast", "--op names broadcast twice"),
        ("-d flaot", "unknown dtype 'flaot'; did you mean float"),
        ("-b 8x", "--minbytes: bytes is '8x'; write a number of bytes, or 64K"),
        ("-b 2M -e 1M", "--minbytes 2097152 is above --maxbytes 1048576"),
        ("-f 1", "--stepfactor is 1; it must be a whole number of 2 or more"),
        ("-b 1 -e 3", "the largest size, 2 bytes of float, is too small for 4 ranks"),
        ("-g 1", "--ranks is 1; it must be 2 to 1024"),
        ("-g 5", "--ranks is 5, but there are only 4 GPUs"),
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
    assert "a collective needs at least 2 GPUs, and there is 1 here" in answer.err


# ---- the page about it ------------------------------------------------------------------


def test_every_command_of_the_page_runs(run):
    commands = re.findall(
        r"^bench-lib collectives(.*?)(?:  +#.*)?$", PAGE.read_text(), re.MULTILINE
    )
    assert len(commands) >= 3
    for words in commands:
        assert run(*words.split()).status == 0, words
