"""``bench-lib train``: the lines and the table, what is measured for them, what is refused."""

import re
from dataclasses import replace

import pytest
from builders import (
    make_attempt,
    make_case,
    make_hardware,
    make_hardware_cpu,
    make_measurement,
    make_record,
    the_run,
)
from command import ran
from standins.worker import gpus, held_class, ranks_that

from bench_lib.cli import train
from bench_lib.launch.faults import CaseSkipped
from bench_lib.model import Case, Launch, Training
from bench_lib.studies import training
from bench_lib.studies.figures import figures_of

DEVICE = gpus(1)[0]
TOGETHER = "cifar100-resnet50-b256-amp-fp16-eager-loader-w4"
FIXED = "cifar100-resnet50-b256-amp-fp16-eager-fixed"
INPUT = "cifar100-none-b256-fp32-eager-loader-w4"
LEARNT = Training(
    data="generated",
    samples=49_920,
    steps_per_epoch=195,
    losses=[5.0 - i / 10 for i in range(20)],
    accuracies=[i / 256 for i in range(20)],
)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    told = {}

    def run(words, *, script=None, learnt=LEARNT, device=DEVICE, **fields):
        def make(**usual):
            kept = {name: fields[name] for name in ("wall_s",) if name in fields}
            return make_measurement(**{**fields, "training": learnt, **usual, **kept})

        monkeypatch.setattr("standins.worker.make_measurement", make)
        devices = [device, *gpus(16)[1:]] if device == DEVICE else [device]
        monkeypatch.setattr("bench_lib.backends.detect", lambda **_: devices)
        monkeypatch.setattr("bench_lib.launch.catalogue.network_sizes", dict)
        scripted = held_class(script or {}, tmp_path / "locks")

        def of_ranks(case, **_):
            (answer, *_) = (script or {}).get(case.id, [[1 / 128] * 20])
            if isinstance(answer, str):
                raise CaseSkipped(answer)
            return make(case_id=case.id, iteration_s=answer)

        monkeypatch.setattr("bench_lib.engine.device.Ranks", ranks_that(of_ranks))

        def hold(device, settings, **options):
            told["variables"] = dict(settings.sides[""].environment)
            return scripted(device, settings, **options)

        monkeypatch.setattr("bench_lib.engine.engine.HeldDevice", hold)
        return ran(["train", *words.split()], monkeypatch, capsys)

    run.told = told
    return run


def record_of(measurement, **fields):
    return make_record(attempts=[make_attempt(measurement=measurement)], **fields)


# ---- CIFAR-100 ----------------------------------------------------------------------------


def test_a_line_a_step_and_three_figures_below(run, tmp_path):
    answer = run("cifar100", items_per_step=1024, iteration_s=[1 / 8] * 5)
    assert answer.status == 0
    assert answer.measured == [TOGETHER, FIXED, INPUT]
    assert len([line for line in answer.lines if " / " in line]) == 20
    assert answer.lines[0] == "0 / 0: loss 5.00, acc 0.00%, images / second / gpu: 102400.00."
    assert answer.lines[7] == "0 / 7: loss 4.30, acc 2.73%, images / second / gpu: 102400.00."
    table = {line[:17].strip(): line for line in answer.lines if "cifar100-" in line[:60]}
    assert list(table) == ["both together", "device step alone", "input alone"]
    assert {"5", "3.1"} <= {*table["both together"].split()}
    assert "data: generated" in answer.lines
    records = the_run(tmp_path).records
    assert set(records) == {TOGETHER, FIXED, INPUT}
    assert records[FIXED].nodeid == f"bench-lib/train-cifar100::{FIXED}"
    assert records[FIXED].case.sampling.max_iterations == 200
    assert run.told["variables"] == {}


def test_on_a_cpu_fp16_has_to_be_asked_for(run):
    assert run("cifar100", items_per_step=256, device=make_hardware_cpu()).measured == [
        name.replace("amp-fp16", "fp32") for name in (TOGETHER, FIXED, INPUT)
    ]


@pytest.mark.parametrize(
    ("words", "iterations"),
    [
        ("", 5),  # each a round of the loader's four processes
        ("--feed device", 20),
        ("--workers 0", 20),
        ("--max-steps 7 --workers 2", 4),
        ("--feed device --max-steps 900 --max-epochs 2", 390),
        ("--feed device --max-steps 900 --ranks 4", 48),
    ],
)
def test_steps_are_no_more_than_the_epochs_have(run, tmp_path, words, iterations):
    run(f"cifar100 {words}", items_per_step=256)
    cases = [record.case for record in the_run(tmp_path).records.values()]
    (together,) = (
        case.sampling
        for case in cases
        if case.params["feed"] != "fixed" and case.params["network"] != "none"
    )
    assert (together.iterations, together.max_iterations) == (iterations, iterations)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "--network swinv2 --precision automixed",
            [
                "cifar100-swin_v2_t-b256-amp-fp16-eager-loader-w4",
                "cifar100-swin_v2_t-b256-amp-fp16-eager-fixed",
                "cifar100-none-b256-fp32-eager-loader-w4",
            ],
        ),
        (
            "--network vit --precision bfloat16 --feed device",
            [
                "cifar100-vit_b_16-b256-bf16-eager-device",
                "cifar100-vit_b_16-b256-bf16-eager-fixed",
                "cifar100-none-b256-bf16-eager-device",
            ],
        ),
        (
            "--workers 8 --precision float32",
            [
                "cifar100-resnet50-b256-fp32-eager-loader-w8",
                "cifar100-resnet50-b256-fp32-eager-fixed",
                "cifar100-none-b256-fp32-eager-loader-w8",
            ],
        ),
        (
            "--network inception_v3 --batch-size 32 --feed device --precision float32",
            [
                "cifar100-inception_v3-b32-fp32-eager-device",
                "cifar100-inception_v3-b32-fp32-eager-fixed",
            ],
        ),
    ],
)
def test_the_three_differ_in_nothing_but_what_they_leave_out(run, words, expected):
    assert run(f"cifar100 {words}", items_per_step=256).measured == expected


@pytest.mark.parametrize(
    ("step_s", "input_s", "slower", "faster"),
    [
        (1 / 16, 1 / 8, "input alone", "device step alone"),
        (1 / 8, 1 / 16, "device step alone", "input alone"),
    ],
)
def test_what_holds_the_training_back_is_said(run, step_s, input_s, slower, faster):
    script = {TOGETHER: [[1 / 4] * 20], FIXED: [[step_s] * 20], INPUT: [[input_s] * 20]}
    assert (
        f"both together: 50% of the rate of the {slower}, the slower of the two; 25% of the rate "
        f"of the {faster}"
    ) in run("cifar100", items_per_step=1024, script=script).lines


def test_as_json_there_are_rows_and_no_lines(run):
    told = run("cifar100 --json", items_per_step=1024).json
    assert told["command"] == "train cifar100"
    assert [row["what"] for row in told["rows"]] == [
        training.TOGETHER,
        training.STEP_ALONE,
        training.INPUT,
    ]
    assert told["rows"][0]["training"]["data"] == "generated"


def test_a_case_that_is_skipped_says_why_and_the_others_go_on(run):
    id_ = "cifar100-resnet50-b256-amp-fp16-eager-device-x2"
    answer = run("cifar100 --feed device --ranks 2", script={id_: ["2 ranks, and there is 1 GPU"]})
    assert f"{id_}: skipped: 2 ranks, and there is 1 GPU" in answer.lines
    assert len(answer.measured) == 3


def test_batches_that_come_together_share_their_time():
    seen = make_measurement(items_per_step=512, iteration_s=[0.5, 0.25])
    learnt = replace(LEARNT, losses=[4.0, 3.0, 2.0, 1.0], accuracies=[0.0, 0.25, 0.5, 1.0])
    record = record_of(replace(seen, training=learnt))
    assert training.step_lines(record) == [
        "0 / 0: loss 4.00, acc 0.00%, images / second / gpu: 1024.00.",
        "0 / 1: loss 3.00, acc 25.00%, images / second / gpu: 1024.00.",
        "0 / 2: loss 2.00, acc 50.00%, images / second / gpu: 2048.00.",
        "0 / 3: loss 1.00, acc 100.00%, images / second / gpu: 2048.00.",
    ]


def test_many_steps_are_a_line_an_epoch():
    seen = make_measurement(items_per_step=64, iteration_s=[0.5] * 4 + [0.25] * 2)
    learnt = replace(
        LEARNT, samples=256, steps_per_epoch=4, losses=[3.0, 2.0], accuracies=[0.25, 0.5]
    )
    case = make_case(launch=Launch(ranks=2))
    record = record_of(replace(seen, training=learnt), case=case)
    assert training.step_lines(record) == [
        "0 / 3: loss 3.00, acc 25.00%, images / second / gpu: 64.00.",
        "1 / 1: loss 2.00, acc 50.00%, images / second / gpu: 128.00.",
    ]


def test_a_line_an_epoch_has_the_times_of_the_rounds_that_were_in_it():
    seen = make_measurement(items_per_step=128, iteration_s=[0.5, 0.5, 1.0, 0.25])
    learnt = replace(
        LEARNT,
        samples=192,
        steps_per_epoch=3,
        losses=[3.0, 2.0, 1.0],
        accuracies=[0.25, 0.5, 0.75],
    )
    assert training.step_lines(record_of(replace(seen, training=learnt))) == [
        "0 / 2: loss 3.00, acc 25.00%, images / second / gpu: 256.00.",
        "1 / 2: loss 2.00, acc 50.00%, images / second / gpu: 153.60.",
        "2 / 1: loss 1.00, acc 75.00%, images / second / gpu: 512.00.",
    ]


def test_the_scripts_own_options_are_taken(run, tmp_path):
    (tmp_path / "sets").mkdir()
    words = "-bs 64 --num-workers 2 --data-path sets --model vit -ms 6 --precision float32"
    answer = run(f"cifar100 {words}", items_per_step=128)
    assert answer.measured[0] == "cifar100-vit_b_16-b64-fp32-eager-loader-w2-files"
    assert the_run(tmp_path).records[answer.measured[0]].case.sampling.iterations == 3
    assert run.told["variables"] == {"BENCH_LIB_DATA": str(tmp_path / "sets")}


@pytest.mark.parametrize(("words", "ranks"), [("", 4), (" --ranks 2", 2)])
def test_the_ranks_of_a_launch_are_those_of_the_case(run, monkeypatch, words, ranks):
    monkeypatch.setattr(train, "ranks_launched", lambda: 4)
    answer = run(f"cifar100{words}", items_per_step=1024)
    assert {id_.rpartition("-x")[2] for id_ in answer.measured} == {str(ranks)}


# ---- CIFAR-10's table ---------------------------------------------------------------------


def id_of(ranks):
    return "cifar10-resnet50-b32-fp32-eager-device-e10" + (f"-x{ranks}" if ranks > 1 else "")


def test_the_table_has_a_column_for_each_number_of_gpus(run):
    learnt = replace(LEARNT, steps_per_epoch=1562, accuracies=[0.5, 0.75], test_accuracy=0.625)
    answer = run(
        "cifar10-table --ranks 1,2,4",
        learnt=learnt,
        items_per_step=32,
        peak_memory_bytes=512 * 2**20,
        wall_s=40.0,
        script={id_of(4): ["4 ranks, and there are 2 GPUs"]},
    )
    rows = [re.split("  +", line.strip()) for line in answer.lines[:10]]
    assert rows == [
        ["GPUs", "1", "2", "4"],
        ["status", "skipped"],
        ["Training time", "40 s", "40 s"],
        ["Average time per epoch", "4 s", "4 s"],
        ["Images processed per sec", "16", "16"],
        ["Training accuracy", "75.0%", "75.0%"],
        ["Test accuracy", "62.5%", "62.5%"],
        ["Maximum memory consumption", "512.0 MiB", "512.0 MiB"],
        ["Speed-up", "1.00x", "1.00x"],
        ["Efficiency", "100.0%", "50.0%"],
    ]
    assert f"{id_of(4)}: skipped: 4 ranks, and there are 2 GPUs" in answer.lines
    assert answer.measured == [id_of(1), id_of(2), id_of(4)]


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("", id_of(1)),
        ("--network inception_v3", "cifar10-inception_v3-b32-fp32-eager-device-e5"),
        ("--epochs 100", "cifar10-resnet50-b32-fp32-eager-device-e100"),
        (
            "--feed loader --workers 2 --precision amp-bf16",
            "cifar10-resnet50-b32-amp-bf16-eager-loader-w2-e10",
        ),
    ],
)
def test_a_network_has_its_own_number_of_epochs_unless_others_are_asked_for(run, words, first):
    answer = run(f"cifar10-table {words}", items_per_step=32)
    assert answer.measured[0] == first
    assert [id_.rpartition("-x")[2] for id_ in answer.measured[1:]] == ["2", "4", "8", "16"]


def test_a_table_can_be_shortened_to_some_steps(run, tmp_path):
    answer = run("cifar10-table --ranks 1,2 --steps 7", items_per_step=64)
    id_ = "cifar10-resnet50-b32-fp32-eager-device"
    assert answer.measured == [id_, f"{id_}-x2"]
    assert the_run(tmp_path).records[id_].case.sampling.iterations == 7
    assert "times of whole epochs are extrapolated from 7 steps" in answer.lines
    (line,) = (line for line in answer.lines if line.startswith("Average time per epoch"))
    assert float(line.split()[-2]) == pytest.approx(LEARNT.samples / (64 * 128), rel=0.01)


def test_without_a_column_of_one_gpu_there_is_no_speed_up(run):
    answer = run("cifar10-table --ranks 2", items_per_step=64)
    assert not any(line.startswith("Speed-up") for line in answer.lines)


def test_as_json_the_table_has_a_row_for_each_number_of_gpus(run):
    told = run("cifar10-table --ranks 1,2 --json", items_per_step=32).json
    assert told["command"] == "train cifar10-table"
    assert [row["ranks"] for row in told["rows"]] == [1, 2]


@pytest.mark.parametrize(
    ("steps", "per_epoch", "accuracies", "last"),
    [
        (4, 2, [0.0, 0.25, 0.5, 1.0], 0.75),
        (4, 4, [0.0, 0.5, 0.5, 1.0], 0.5),
        (1200, 600, [0.25, 0.5], 0.5),
        (4, 1560, [0.0, 0.5, 0.5, 1.0], 0.5),  # a part of an epoch, as with --steps
        (4, 4, [], None),
    ],
)
def test_accuracy_is_the_last_epochs_whether_told_by_step_or_by_epoch(
    steps, per_epoch, accuracies, last
):
    learnt = replace(LEARNT, steps_per_epoch=per_epoch, accuracies=accuracies)
    images = LEARNT.samples // per_epoch
    measured = make_measurement(training=learnt, iteration_s=[0.5] * steps, items_per_step=images)
    assert training.last_epoch(figures_of(record_of(measured))) == last


def test_a_batch_of_each_rank_is_timed():
    case = Case("it", "training", {"batch_size": 256}, launch=Launch(ranks=2))
    record = record_of(make_measurement(items_per_step=512), case=case)
    (row,) = training.CIFAR_100.rows([case], [figures_of(record)], make_hardware())
    told = {each.name: each.get(row) for each in training.CIFAR_100.table([row]).columns}
    assert told["batch_s"] == pytest.approx(1 / 128)
    assert told["images_per_s_per_rank"] == pytest.approx(256 * 128)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("cifar100 --feed hose", "unknown --feed 'hose'; choose from loader, device"),
        ("cifar100 --feed fixed", "unknown --feed 'fixed'; choose from loader, device"),
        ("cifar100 --network resnext", "unknown network 'resnext'; did you mean resnet50"),
        ("cifar100 --precision half", "unknown precision 'half'"),
        ("cifar100 --max-steps 0", "--max-steps / -ms: "),
        ("cifar100 --max-epochs 0", "--max-epochs: "),
        ("cifar100 --batch-size 0", "batch_size is 0; it must be a whole number of 1 or more"),
        ("cifar100 --batch-size 60000", "a step has 60000 images, but cifar100 has only 50000"),
        ("cifar100 --workers -1", "workers is -1; it must be a whole number of 0 or more"),
        ("cifar100 --time-limit 0", "--time-limit 0: it must be a time above 0"),
        ("cifar100 --data nowhere", "--data / --data-path / -dp: "),
        ("cifar10-table --ranks 1,two", "--ranks names 'two'; use whole numbers"),
        ("cifar10-table --epochs 0", "--epochs: "),
        (
            "cifar10-table --epochs 2 --steps 9",
            "--steps and --epochs cannot be combined; choose one",
        ),
        ("cifar10-table --feed fixed", "unknown --feed 'fixed'; choose from loader, device"),
        ("cifar10-table --network vgg", "unknown network 'vgg'"),
        ("cifar10-table --network none", "epochs is 10, but network none learns nothing"),
        ("cifar10-table --batch-size 4096", "a step has 65536 images, but cifar10 has only 50000"),
        ("mnist", "NAME: 'mnist' is not one of cifar100, cifar10-table"),
        ("cifar100 --epochs 3", "--epochs: train cifar100 does not use it; leave it out"),
        ("cifar10-table --max-steps 2", "--max-steps: train cifar10-table does not use it"),
        ("cifar100 --ranks 1,2", "--ranks: train cifar100 takes one number"),
    ],
)
def test_what_cannot_be_meant_is_one_line(run, tmp_path, words, error):
    answer = run(words)
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(f"bench-lib: error: {error}")
    assert answer.err.count("\n") == 1
    assert not (tmp_path / "history").exists()
