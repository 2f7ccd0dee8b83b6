"""``bench-lib scaling``: what is measured, what it comes to, what is kept and what is refused."""

import math
import re
from dataclasses import replace

import pytest
from builders import make_fault, make_hardware, make_measurement, the_run
from command import Printed, ran
from standins.worker import gpus, held_class, ranks_that

from bench_lib.launch.faults import CaseFault
from bench_lib.model import Fault, RankSample
from bench_lib.storage import history

CPU = make_hardware(
    vendor="cpu", key="cpu-8c", uuid=None, bdf=None, compute_units=8, peak_tflops={}
)
GPUS = gpus(4)
SIZES = {"resnet18": 224, "resnet50": 224}
STEM = "mnist-cnn-b64-fp32-eager-loader-w0-e1"
NET = "resnet50-b64-fp32-eager-train"


class Answer(Printed):
    @property
    def rows(self):
        head, *body = self.lines[: self.lines.index("")]
        names = re.findall(r"\S+(?: \S+)*", head)
        ends = [head.index(name) + len(name) for name in names]
        starts = [head.index(name) for name in names]
        rows = []
        for line in body:
            cells = {}
            for found in re.finditer(r"\S+(?: \S+)*", line):
                near = [
                    i
                    for i in range(len(names))
                    if found.start() == starts[i] or found.end() == ends[i]
                ]
                cells[names[near[0]]] = found[0]
            rows.append(cells)
        return rows

    def said(self, begin):
        """Return the only line that begins so."""
        (line,) = [line for line in self.lines if line.startswith(begin)]
        return line


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*words, script=None, devices=(CPU,), per_rank=None):
        """Answer with steps of 10 ms and 4 images a rank, unless the script has others."""
        script = {**(script or {})}

        def run_ranks(case, *, environment, **_):
            run.environments[case.id] = environment
            answer = (script.get(case.id) or [[0.01] * 20])[0]
            if isinstance(answer, Fault):
                raise CaseFault(answer)
            ranks = case.launch.ranks
            share = 1 if case.launch.strong else ranks
            slower = per_rank or [1.0] * ranks
            return make_measurement(
                case_id=case.id,
                iteration_s=answer,
                items_per_step=4 * share,
                per_rank=[
                    RankSample(i, i, None, [s * slower[i] for s in answer], None)
                    for i in range(ranks)
                ],
            )

        hold = held_class(script, tmp_path / "locks")
        monkeypatch.setattr("bench_lib.backends.detect", lambda **_: list(devices))
        monkeypatch.setattr("bench_lib.backends.cpu.device", lambda _root: CPU)
        monkeypatch.setattr("bench_lib.launch.catalogue.network_sizes", lambda: SIZES)
        monkeypatch.setattr("bench_lib.engine.device.Ranks", ranks_that(run_ranks))
        # Kernels of several ranks are looked into by real ones.
        monkeypatch.setattr("bench_lib.engine.device.HeldDevice.profile", lambda *_: [])
        monkeypatch.setattr("bench_lib.engine.engine.HeldDevice", hold)
        return ran(["scaling", *words], monkeypatch, capsys, Answer)

    run.environments = {}
    return run


@pytest.fixture
def seen(monkeypatch):
    """Return a function that has every measurement in a context say this besides."""

    def say(**fields):
        usual = make_measurement(**fields)
        monkeypatch.setattr(
            "standins.worker.make_measurement", lambda **f: replace(usual, **_timed(f))
        )

    def _timed(fields):
        total = sum(fields["iteration_s"])
        return {**fields, "wall_s": total, "window_s": (100.0, 100.0 + total)}

    return say


def steps(seconds):
    """Return a script's answer of steps that all take so long."""
    return [[seconds] * 20]


def strong(over, serial, most=8, one_s=0.4):
    """Return the steps that Amdahl's law gives threads or processes."""
    script = {}
    for n in (1, 2, 4, 8):
        tail = f"-t{n}" if over == "threads" else f"-x{n}-strong-t1" if n > 1 else "-t1"
        if n <= most:
            script[STEM + tail] = steps(one_s * (serial + (1 - serial) / n))
    return script


# ---- mnist --------------------------------------------------------------------------------


def test_mnist_goes_over_threads_and_then_processes(run, tmp_path):
    answer = run("mnist", script=strong("threads", 0.25) | strong("processes", 0.1))
    assert answer.status == 0
    threads = [f"{STEM}-t{n}" for n in (1, 2, 4, 8)]
    assert answer.measured == [*threads, *(f"{STEM}-x{n}-strong-t1" for n in (2, 4, 8))]
    assert [(r["over"], r["workers"], r["speed-up"], r["efficiency"]) for r in answer.rows] == [
        ("threads", "1", "1.00x", "100.0%"),
        ("threads", "2", "1.60x", "80.0%"),
        ("threads", "4", "2.29x", "57.1%"),
        ("threads", "8", "2.91x", "36.4%"),
        ("processes", "1", "1.00x", "100.0%"),
        ("processes", "2", "1.82x", "90.9%"),
        ("processes", "4", "3.08x", "76.9%"),
        ("processes", "8", "4.71x", "58.8%"),
    ]
    records = the_run(tmp_path).records
    assert list(records) == answer.measured
    assert records[threads[0]].nodeid == f"bench-lib/scaling::{threads[0]}"


def test_the_law_is_fitted_and_asked_for_twice_as_many(run):
    answer = run("mnist", "--over", "threads", script=strong("threads", 0.25))
    assert answer.said("threads strong: ") == (
        "threads strong: Amdahl: serial fraction 25.00% (95% interval 25.00% to 25.00%, "
        "4 points); 16 threads would give 3.37x (3.37x to 3.37x), and no number of them more "
        "than 4.00x"
    )


def test_threads_that_each_have_a_batch_scale_weakly(run):
    script = {f"{STEM}-t1": steps(0.4)}
    for n in (2, 4, 8):  # four images a step in the script, so a step of so long
        case_id = f"{STEM.replace('b64', f'b{64 * n}')}-t{n}"
        script[case_id] = steps(0.4 / (0.2 + 0.8 * n))
    answer = run("mnist", "--over", "threads", "--weak", script=script)
    assert "mnist-cnn-b512-fp32-eager-loader-w0-e1-t8" in answer.measured
    assert answer.said("threads weak: ").startswith(
        "threads weak: Gustafson: serial fraction 20.00% (95% interval 20.00% to 20.00%, 4 points)"
    )
    assert [row["speed-up"] for row in answer.rows] == ["1.00x", "1.80x", "3.40x", "6.60x"]


def test_a_point_that_fails_does_not_spoil_the_fit(run):
    script = strong("threads", 0.25) | {f"{STEM}-t4": [make_fault()]}
    answer = run("mnist", "--over", "threads", script=script)
    assert answer.status == 0
    assert answer.rows[2] == {
        "over": "threads",
        "workers": "4",
        "scaling": "strong",
        "status": "ERROR",
    }
    assert answer.said(f"{STEM}-t4: ERROR: out of memory in first step")
    assert "25.00% (95% interval 25.00% to 25.00%, 3 points)" in answer.said("threads strong: ")


def test_two_points_make_no_law(run):
    answer = run("mnist", "--over", "threads", "--at-most", "2")
    why = "threads strong: Amdahl's law needs at least 3 points; 2 could be measured"
    assert answer.said("threads strong: ") == why


def test_more_workers_than_there_are_say_so_and_the_rest_is_measured(run):
    answer = run(
        "mnist", "--at-most", "16", "--batch-size", "4", "--over", "processes,threads,gpus"
    )
    assert answer.status == 0
    assert answer.said("16 threads, strong: ") == (
        "16 threads, strong: not measured: 16 threads were requested, but 8 can be used here"
    )
    assert answer.said("8 processes, strong: ") == (
        "8 processes, strong: not measured: batch_size 4 cannot be divided evenly among 8 ranks"
    )
    assert answer.said("1 GPUs, strong: ").endswith("1 GPUs were requested, but 0 can be used here")
    assert [row["status"] for row in answer.rows if "status" in row] == ["not measured"] * 8
    assert f"{STEM.replace('b64', 'b4')}-x4-strong-t1" in answer.measured


def test_where_nothing_can_be_measured_nothing_is(run, tmp_path):
    answer = run("mnist", "--over", "gpus")
    assert answer.status == 2
    assert "nothing can be measured: 1 GPUs were requested, but 0 can be used here" in answer.err
    assert not history.files(tmp_path / "history")


def test_the_serial_run_says_where_its_time_goes(run, seen):
    seen(portions_s={"load": 0.1, "forward": 0.1, "backward": 0.15, "optimizer": 0.05})
    answer = run("mnist", "--over", "threads", "--at-most", "1", script={f"{STEM}-t1": steps(0.4)})
    assert answer.said("serial time") == "serial time (1 thread, 1 process): 8 s for 1 epoch"
    begin = answer.lines.index(answer.said("part of a step"))
    assert [re.split("  +", line) for line in answer.lines[begin + 1 : begin + 5]] == [
        ["load", "100 ms", "25.0%"],
        ["forward", "100 ms", "25.0%"],
        ["backward", "150 ms", "37.5%"],
        ["optimizer", "50 ms", "12.5%"],
    ]


def test_whether_the_gpu_is_worth_it_is_a_ratio(run, tmp_path):
    script = strong("threads", 1.0) | strong("processes", 0.0) | {STEM: steps(0.004)}
    answer = run("mnist", "--at-most", "2", script=script, devices=GPUS)
    assert answer.said("one GPU does ") == (
        "one GPU does 1000 img/s, 50 times the CPU's best (2 processes, 20 img/s): "
        "worth using if an hour of it costs less than 50 times as much"
    )
    assert answer.measured[-2:] == [STEM, f"{STEM}-x2-strong"]
    keys = {path.name.split("_")[1] for path in history.files(tmp_path / "history")}
    assert keys == {"cpu-8c", "mi300x"}


def test_ranks_of_the_cpu_do_not_open_the_gpus_beside_it(run):
    run("mnist", "--over", "processes,gpus", "--at-most", "2", devices=GPUS)
    assert run.environments[f"{STEM}-x2-strong-t1"]["HIP_VISIBLE_DEVICES"] == "-1"
    assert "HIP_VISIBLE_DEVICES" not in run.environments[f"{STEM}-x2-strong"]


def test_a_gpu_that_is_slower_is_not_worth_it(run):
    script = strong("threads", 0.0, most=1) | {STEM: steps(1.0)}
    answer = run("mnist", "--over", "threads,gpus", "--at-most", "1", script=script, devices=GPUS)
    assert answer.said("one GPU does ").endswith("the GPU is not worth using")


def test_ranks_beyond_the_gpus_are_skipped_with_the_launchers_reason(run):
    answer = run("mnist", "--over", "gpus", "--at-most", "8", devices=GPUS)
    assert answer.status == 0
    assert answer.rows[-1]["status"] == "skipped"
    assert answer.said(f"{STEM}-x8-strong: skipped: 8 ranks need 8 GPUs; 4 are visible")


# ---- networks -------------------------------------------------------------------


def test_a_network_scales_weakly_over_all_gpus(run):
    script = {f"{NET}-x2": steps(0.0105), f"{NET}-x4": steps(0.011)}
    answer = run("network", "--network", "resnet50", script=script, devices=GPUS)
    assert answer.measured == [NET, f"{NET}-x2", f"{NET}-x4"]
    assert [(r["throughput"], r["speed-up"], r["efficiency"]) for r in answer.rows] == [
        ("400 img/s", "1.00x", "100.0%"),
        ("761.9 img/s", "1.90x", "95.2%"),
        ("1455 img/s", "3.64x", "90.9%"),
    ]
    assert answer.said("GPUs weak: Gustafson: serial fraction ")


def test_ranks_are_as_asked_for_and_one_besides(run):
    words = "network --network resnet50 --ranks 4,2 --strong --batch-size 32"
    answer = run(*words.split(), devices=GPUS)
    stem = NET.replace("b64", "b32")
    assert answer.measured == [stem, f"{stem}-x2-strong", f"{stem}-x4-strong"]


def test_on_a_cpu_ranks_are_processes_on_its_cores(run):
    answer = run("network", "--network", "resnet50", "--ranks", "8,9")
    assert answer.measured == [NET, f"{NET}-x8"]
    said = answer.said("9 ranks, weak: ")
    assert said.endswith("9 ranks were requested, but 8 can be used here")


def test_a_rank_that_lags_is_named(run):
    words = ("network", "--network", "resnet50", "--ranks", "4")
    answer = run(*words, per_rank=[1.0, 1.0, 1.1, 1.0], devices=GPUS)
    assert answer.said(f"{NET}-x4: ") == f"{NET}-x4: rank 2 takes 10.0% longer than the others"


# ---- repeats ------------------------------------------------------------


def test_repeats_are_processes_of_their_own_and_tell_the_interval(run, tmp_path):
    shaken = [[0.0104] * 20, [0.0100] * 20, [0.0102] * 20]
    script = {NET: shaken, f"{NET}-x2": steps(0.0106)}
    words = "network --network resnet50 --ranks 2 --processes 3 --json"
    answer = run(*words.split(), script=script, devices=GPUS)
    attempts = the_run(tmp_path).records[NET].attempts
    assert [a.process for a in attempts] == [0, 7, 8]
    assert not any(a.confirms for a in attempts)
    row = answer.json["rows"][1]
    assert row["processes"] == 3
    low, high = row["efficiency_interval"]
    assert low < row["efficiency"] < high
    # Two degrees of freedom: 4.303 standard errors of 2% / root 3 are 4.9%.
    assert high / low == pytest.approx(math.exp(2 * 4.3027 * 0.0196 / math.sqrt(3)), rel=0.01)


def test_a_machine_reads_the_same(run, tmp_path):
    answer = run("mnist", "--over", "threads", "--json", script=strong("threads", 0.25))
    told = answer.json
    assert told["command"] == "scaling"
    assert [row["workers"] for row in told["rows"]] == [1, 2, 4, 8]
    assert told["rows"][3]["speed_up"] == pytest.approx(8 / 2.75)
    (law,) = told["laws"]
    assert law["law"]["serial"] == pytest.approx(0.25)
    assert (law["over"], law["workers"], law["why"]) == ("threads", 8, None)
    (path,) = history.files(tmp_path / "history")
    kept = str(path.relative_to(tmp_path))
    assert told["written"] == [{"hardware_key": "cpu-8c", "history": kept}]


def test_json_has_the_same_keys_whatever_was_scaled(run):
    few = run("network", "--network", "resnet50", "--ranks", "2", "--json", devices=GPUS).json
    many = run("mnist", "--over", "threads", "--json").json
    assert few.keys() == many.keys()
    assert few["laws"][0].keys() == many["laws"][0].keys()
    assert few["laws"][0]["law"] is None


def test_each_device_says_where_its_run_is_kept(run, tmp_path):
    answer = run("mnist", "--over", "threads,gpus", "--at-most", "1", "--json", devices=GPUS)
    told = answer.json["written"]
    assert [each["hardware_key"] for each in told] == ["cpu-8c", "mi300x"]
    assert all((tmp_path / each["history"]).is_file() for each in told)


# ---- bad input ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["mnist", "--ranks", "2"], "--ranks: scaling mnist does not use it"),
        (
            ["network", "--epochs", "2", "--network", "resnet50"],
            "--epochs: scaling network does not",
        ),
        (["network"], "scaling network needs --network NAME"),
        (["network", "--network", "resnet51"], "did you mean resnet50"),
        (["network", "--network", "resnet50", "--ranks", "0"], "--ranks names '0'"),
        (["network", "--network", "resnet50", "--precision", "fp17"], "unknown precision 'fp17'"),
        (["mnist", "--over", "cores"], "--over: unknown kind of worker 'cores'"),
        (["mnist", "--at-most", "0"], "--at-most: "),
        (["mnist", "--batch-size", "70000"], "mnist has only 60000 images"),
        (["mnist", "--processes", "101"], "--processes: "),
        (["mnist", "--weak", "--strong"], "--weak and --strong cannot be combined; choose one"),
        (["mnist", "--time-limit", "0"], "--time-limit 0: "),
        (["nothing"], "'nothing' is not one of mnist, network"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(run, tmp_path, words, problem):
    answer = run(*words)
    assert answer.status == 2
    assert problem in answer.err
    assert len(answer.err.splitlines()) == 1
    assert not (tmp_path / "history").exists()
