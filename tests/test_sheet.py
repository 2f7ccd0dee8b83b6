"""The results sheet: what ``bench-lib micro`` keeps fills it, and no history breaks it."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, replace
from typing import Any

import pytest
from builders import (
    make_attempt,
    make_case,
    make_environment,
    make_fault,
    make_hardware,
    make_measurement,
    make_record,
    write_run,
)
from command import ran
from scripted import gpus, held_class

from bench_lib.engine.engine import opened
from bench_lib.engine.settings import Settings
from bench_lib.micro import session
from bench_lib.micro.ending import Ending
from bench_lib.micro.flags import read_options
from bench_lib.micro.places import RankPlace
from bench_lib.model import Device
from bench_lib.storage import history
from bench_lib.storage.archive.compaction import compact
from bench_lib.storage.history import Writer
from bench_lib.studies import sheet
from bench_lib.studies.figures import figures_of

(DEVICE,) = gpus(1)
ONE, TWO, THREE, FOUR, FIVE, SIX = range(6)


@pytest.fixture
def micro(tmp_path, monkeypatch):
    """Return what keeps a run as micro does, of steps that were not measured here.

    The batch is one rank's; ``fp32`` is what the device makes of it.
    """
    monkeypatch.setattr("bench_lib.engine.engine.HeldDevice", held_class({}, tmp_path / "locks"))
    monkeypatch.setattr("bench_lib.environment.fingerprint.collect", lambda **_: make_environment())
    monkeypatch.setattr("bench_lib.environment.caches.found", dict)

    def keep(
        network: str, batch: int, *words: str, ranks: int = 1, fp32: str = "fp32", **fields: Any
    ) -> None:
        place = RankPlace(ranks=ranks, share=ranks)
        flags = ["--network", network, "--batch-size", str(batch * ranks), *words]
        options = replace(read_options(flags), history=tmp_path / "history")
        case = session.case_from(options, place, fp32)
        seen = make_measurement(
            case_id=case.id,
            iteration_s=[1 / 64] * options.iterations,
            items_per_step=batch,
            device_uuid=DEVICE.uuid,
            **fields,
        )
        about = {"versions": {}, "cudnn": None, "threads": 1, "measurement": asdict(seen)}
        outcomes = [{"rank": n, "local_rank": n, "pid": n + 1, **about} for n in range(ranks)]
        device = Device("cuda", DEVICE.name)
        result = session.RankSeen(place, case, device, seen, [], [], outcomes)
        settings = Settings(
            history=tmp_path / "history", baselines=tmp_path, command="micro", judged=False
        )
        with opened(DEVICE, settings) as engine:
            Ending(options, DEVICE, engine, None, print).keep(result)

    return keep


def filled(folder, network="resnet50", task="infer", **options):
    """Return the sheet from all runs of a folder."""
    kept = sheet.kept_in(history.latest(folder, DEVICE.key, sheet.MOST_RUNS), network)
    return sheet.fill(kept, DEVICE.key, network, task, **options)


def places(section):
    """Return the labelled places of a section."""
    return dict(line for block in section.blocks for line in block.lines)


def blanks(section):
    """Return what is left blank: the label, or the first cell of the row."""
    lines = [label for block in section.blocks for label, value in block.lines if value is None]
    rows = [str(row[0]) for block in section.blocks for row in block.rows if None in row]
    return [*lines, *rows]


# ---- what micro keeps ---------------------------------------------------------------------


def guide(micro, network="resnet50", mode="inference", **options):
    """Have micro measure all that the guide asks of it; with a GPU's FP32 in ``fp32``."""
    named = ("--mode", mode)
    for batch in (8, 16, 64, 128, 256):
        micro(network, batch, *named, **options)
    micro(network, 32, *named, operations_s={f"aten::conv{n}": 0.002 for n in range(5)}, **options)
    half = (*named, "--fp16", "1")
    micro(network, 32, *half, operations_s={"aten::conv": 0.005}, **options)
    micro(network, 64, *half, **options)
    for ranks, batch in ((2, 64), (4, 64), (2, 32), (2, 128)):
        micro(network, batch, *named, ranks=ranks, **options)
    for name in ("default", "reduce-overhead", "max-autotune"):
        compiled = (*named, "--compile", "--compileContext", f"{{'mode': '{name}'}}")
        micro(network, 64, *compiled, **options)
        micro(network, 64, *compiled, "--fp16", "1", **options)
    for other in sheet.DEPTHS:
        micro(other, 64, *named, **options)
        micro(other, 64, *named, "--compile", **options)


@pytest.mark.parametrize(
    ("network", "task", "fp32"),
    [
        ("resnet50", "infer", "fp32"),
        ("resnet50", "train", "tf32-conv"),
        ("efficientnet_b7", "infer", "tf32-conv"),
        ("efficientnet_b7", "train", "fp32"),
        ("inception_v3_no_aux", "infer", "fp32"),
    ],
)
def test_micro_alone_fills_all_but_the_largest_batches(micro, tmp_path, network, task, fp32):
    guide(micro, network, "training" if task == "train" else "inference", fp32=fp32)
    found = filled(tmp_path / "history", network, task)
    assert [blanks(section) for section in found.sections[:6]] == [
        [],
        ["FP32 max batch size", "FP16 max batch size", "Ratio"],
        [],
        [],
        [],
        [],
    ]


def test_a_section_says_what_micro_measured_otherwise(micro, tmp_path):
    guide(micro, "efficientnet_b7", fp32="tf32-conv")
    found = filled(tmp_path / "history", "efficientnet_b7")
    words = "As bench-lib micro measures: FP32 is tf32-conv"
    assert found.sections[ONE].title == (
        "Exercise 1: one GPU (efficientnet_b7, tf32-conv, batch 32)"
    )
    assert [section.note for section in found.sections[:6]] == [
        f"{words}, images have 224 pixels.",
        f"{words}, FP16 is fp16-bn32, images have 224 pixels.",
        f"{words}, FP16 is fp16-bn32, images have 224 pixels.",
        f"{words}, FP16 is fp16-bn32, images have 224 pixels.",
        "",
        f"{words}, FP16 is fp16-bn32, images have 224 pixels.",
    ]
    (fifth,) = found.sections[FIVE].blocks
    assert {row[2] for row in fifth.rows} == {"tf32-conv, 224 px"}
    modes, _ = found.sections[SIX].blocks
    assert {row[0] for row in modes.rows} == {"tf32-conv", "fp16-bn32"}
    _, half = found.sections[FOUR].blocks
    assert half.headings[0] == "batch, fp16-bn32"


def test_commands_ask_exercises_for_the_kind_that_the_section_is_of(micro, tmp_path):
    micro("efficientnet_b7", 32, "--mode", "inference", fp32="tf32-conv")
    micro("efficientnet_b7", 64, "--mode", "inference", fp32="tf32-conv")
    micro("resnet18", 64, "--mode", "inference", fp32="tf32-conv")
    of_one, of_both = "--precision tf32-conv", "--precisions tf32-conv,fp16"
    size, ours = "--image-size 224", "bench-lib exercise"
    found = [filled(tmp_path / "history", "efficientnet_b7").sections[n] for n in (ONE, TWO, SIX)]
    assert [section.fill for section in found] == [
        [f"{ours} batch-sweep efficientnet_b7 --batch-sizes 8,32,128,256 {of_one} {size}"],
        [
            f"{ours} precision efficientnet_b7 --batch-size 32 {of_both} {size}",
            f"{ours} largest-batch efficientnet_b7 {of_both} {size}",
        ],
        [
            f"{ours} compile efficientnet_b7 --batch-size 64 {of_both} {size}",
            f"{ours} depth --networks resnet18,resnet50,resnet152 --batch-size 64 {of_one}",
        ],
    ]


def test_what_the_exercises_measure_comes_before_what_micro_does(micro, tmp_path):
    write_run(
        tmp_path / "history",
        [record_of("fp32", 1 / 2), record_of("fp16", 1 / 4)],
        hardware=DEVICE,
        now="2020-01-01T00:00:00Z",
    )
    micro("resnet50", 32, "--mode", "inference", fp32="tf32-conv")
    micro("resnet50", 32, "--mode", "inference", "--fp16", "1")
    second = filled(tmp_path / "history").sections[TWO]
    assert places(second)["FP32 throughput"] == "64 img/s"
    assert places(second)["FP16 throughput"] == "128 img/s"
    assert second.note == ""


def test_one_section_has_one_fp32_and_one_size_of_images(micro, tmp_path):
    write_run(tmp_path / "history", [record_of("fp32", 1 / 2, 64)], hardware=DEVICE)
    micro("resnet50", 64, "--mode", "inference", "--compile", fp32="tf32-conv")
    modes, depths = filled(tmp_path / "history").sections[SIX].blocks
    assert [row for row in modes.rows if row[4]] == [
        ("fp32", "eager", "-", "-", "128 img/s", "1.00x")
    ]
    assert depths.rows[1] == ("resnet50", "128 img/s", None, None)


def test_the_size_of_micros_images_is_micros(micro):
    assert sheet.MICRO_SIZE == session.SIZE


# ---- what else may be in a history --------------------------------------------------------


def record_of(precision="fp32", step_s=1 / 64, batch=32, **params):
    """Return a record of resnet50's inference."""
    usual = {
        "network": "resnet50",
        "batch_size": batch,
        "precision": precision,
        "memory_format": "nchw",
        "compile_mode": "eager",
        "task": "infer",
    }
    case = make_case(id=f"resnet50-b{batch}-{precision}-eager-infer", params={**usual, **params})
    seen = make_measurement(case_id=case.id, iteration_s=[step_s] * 20, items_per_step=batch)
    return make_record(case=case, attempts=[make_attempt(case_id=case.id, measurement=seen)])


@pytest.mark.parametrize("wrong", [None, "32", 32.5, {}])
def test_a_case_made_by_hand_fills_nothing_and_breaks_nothing(tmp_path, wrong):
    record = record_of()
    params = {**record.case.params, "batch_size": wrong}
    if wrong is None:
        del params["batch_size"]
    if wrong == {}:
        params = {"network": "resnet50"}
    case = replace(record.case, params=params)
    several = replace(case, id="several", launch=replace(case.launch, ranks=2))
    records = [
        replace(record, case=case, nodeid=f"bench-lib/largest-batch::{case.id}"),
        replace(record, case=several),
        replace(record, case=replace(case, id="none", params={})),
    ]
    write_run(tmp_path, records, hardware=DEVICE)
    found = filled(tmp_path)
    assert found.is_blank
    assert all(value is None for section in found.sections for value in places(section).values())


def test_only_the_network_is_read_and_figures_are_made_of_what_is_shown(tmp_path, monkeypatch):
    records = [record_of(batch=n) for n in (8, 32, 77)]
    other = [replace(r, case=replace(r.case, id=f"v{r.case.id}")) for r in records]
    other = [replace(r, case=replace(r.case, params={"network": "vgg16"})) for r in other]
    for hour in range(5):
        now = f"2026-01-02T0{hour}:00:00Z"
        write_run(tmp_path, [*records, *other], hardware=DEVICE, now=now)
    made = []
    monkeypatch.setattr(
        sheet, "figures_of", lambda r, h: (made.append(r.case.id), figures_of(r, h))[1]
    )
    kept = sheet.kept_in(history.latest(tmp_path, DEVICE.key, sheet.MOST_RUNS), "resnet50")
    assert len(kept) == 15
    sheet.fill(kept, DEVICE.key, "resnet50", "infer")
    assert sorted(made) == sorted(r.case.id for r in records[:2])


def test_a_case_stands_under_the_ceilings_of_the_device_that_measured_it(tmp_path):
    first, second = gpus(2)
    second = replace(second, name="the second", peak_tflops={"fp32": 1.0})
    writer = Writer(tmp_path, DEVICE.key)
    for device in (first, second):
        reference = writer.environment(make_environment(), device)
    record = record_of(batch=16)
    (attempt,) = record.attempts
    seen = replace(attempt.measurement, flops_per_step=1e9, device_uuid=second.uuid)
    attempt = replace(attempt, measurement=seen, device_uuid=second.uuid, environment=reference)
    writer.attempt(record.case, None, attempt)
    writer.end({}, 0)
    found = filled(tmp_path)
    assert dict(found.head)["GPU"] == "the second (mi300x)"
    assert found.sections[FOUR].blocks[0].rows[0][3] == "6.4%"


def test_commands_can_be_pasted_whatever_the_folder_is_called(tmp_path):
    folder = tmp_path / "my runs; $(reboot)"
    blank = filled(folder, history=folder)
    lines = [line for section in blank.sections for line in section.fill]
    assert len(lines) == 10
    for line in lines:
        words = shlex.split(line)
        assert words[words.index("--history") + 1] == str(folder)


def test_tasks_are_those_that_a_network_was_measured_in(tmp_path):
    fault = make_attempt(fault=make_fault())
    failed = replace(record_of(task="train"), attempts=[fault])
    write_run(tmp_path, [record_of(), failed], hardware=make_hardware())
    kept = sheet.kept_in(history.latest(tmp_path, DEVICE.key, 9), "resnet50")
    assert sheet.tasks_of(kept, "resnet50") == {"infer"}
    assert sheet.tasks_of(kept, "resnet18") == set()


# ---- what the command says ----------------------------------------------------------------


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """Return what runs the command where the history is, and returns what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bench_lib.backends.detect", lambda: [DEVICE])
    monkeypatch.setattr("bench_lib.launch.catalogue.network_sizes", lambda: {"resnet50": 224})

    def run(*words: str) -> tuple[str, str]:
        answer = ran(["exercise", "sheet", *words], monkeypatch, capsys)
        assert not answer.status
        return answer.out, answer.err

    return run


def test_what_cannot_be_read_is_said_and_the_rest_fills_the_sheet(printed, tmp_path):
    folder = tmp_path / "history"
    torn = write_run(folder, [record_of()], hardware=DEVICE, now="2026-01-01T00:00:00Z")
    torn.write_bytes(torn.read_bytes() + b'{"schema"')
    newer = write_run(folder, [], hardware=DEVICE, now="2026-01-02T00:00:00Z")
    newer.write_text('{"schema": 99}\n')
    out, err = printed()
    assert "Throughput:               2048 img/s" in out
    first, second = err.splitlines()
    assert first.startswith("! history/20260102T000000Z_mi300x_")
    assert "line 1: schema 99 is newer than" in first
    assert second.startswith(f"! {torn.name}: line ")
    assert second.endswith("is torn: the run was killed while writing it")


def test_runs_that_cannot_be_read_are_runs_all_the_same(printed, tmp_path):
    newer = write_run(tmp_path / "history", [], hardware=DEVICE)
    newer.write_text('{"schema": 99}\n')
    _, err = printed("--hardware", "mi300x")
    assert err.endswith("\nnothing of resnet50 on mi300x in history; the sheet is blank\n")


def test_micro_trains_unless_told_and_a_blank_sheet_says_where_that_is(printed, micro):
    micro("resnet50", 32)
    out, err = printed()
    assert "Throughput:               __________" in out
    assert err == (
        "nothing of resnet50, infer, on mi300x in history, but with --task train; "
        "the sheet is blank\n"
    )
    out, err = printed("--task", "train")
    assert "Throughput:               2048 img/s" in out
    assert err == ""


def test_cases_that_the_guide_does_not_have_leave_the_sheet_blank(printed, micro):
    micro("resnet50", 31, "--mode", "inference")
    _, err = printed()
    assert err == (
        "none of the guide's cases of resnet50, infer, on mi300x in history; the sheet is blank\n"
    )


def test_only_the_newest_runs_are_looked_through(printed, tmp_path, monkeypatch):
    monkeypatch.setattr(sheet, "MOST_RUNS", 1)
    folder = tmp_path / "history"
    write_run(folder, [record_of(batch=8)], hardware=DEVICE, now="2026-01-01T00:00:00Z")
    write_run(folder, [record_of(batch=32)], hardware=DEVICE, now="2026-01-02T00:00:00Z")
    out, _ = printed("--json")
    first, table = json.loads(out)["sections"][ONE]["blocks"]
    assert first["lines"][0] == ["Throughput", "2048 img/s"]
    assert [row[0] for row in table["rows"] if row[1]] == ["32"]


# ---- what was compacted -------------------------------------------------------------------


def test_compacted_runs_fill_the_sheet_as_files_do(printed, tmp_path):
    folder = tmp_path / "history"
    for day, batch, step_s in ((1, 8, 1 / 16), (2, 32, 1 / 16), (3, 32, 1 / 64)):
        now = f"2026-01-0{day}T00:00:00Z"
        write_run(folder, [record_of(step_s=step_s, batch=batch)], hardware=DEVICE, now=now)
    other = replace(DEVICE, key="mi250x")
    write_run(folder, [record_of(batch=16)], hardware=other, now="2026-01-04T00:00:00Z")
    before = printed()
    assert "Throughput:               2048 img/s" in before[0]
    compact(folder, keep=1)
    assert len(history.files(folder)) == 2
    assert printed() == before
    compact(folder, keep=0)
    assert history.files(folder) == []
    assert printed() == before


def test_of_compacted_runs_too_only_the_newest_are_looked_through(printed, tmp_path, monkeypatch):
    monkeypatch.setattr(sheet, "MOST_RUNS", 1)
    folder = tmp_path / "history"
    write_run(folder, [record_of(batch=8)], hardware=DEVICE, now="2026-01-01T00:00:00Z")
    write_run(folder, [record_of(batch=32)], hardware=DEVICE, now="2026-01-02T00:00:00Z")
    compact(folder, keep=0)
    out, _ = printed("--json")
    _, table = json.loads(out)["sections"][ONE]["blocks"]
    assert [row[0] for row in table["rows"] if row[1]] == ["32"]


def test_of_compacted_runs_too_it_is_said_what_cannot_be_read(printed, tmp_path):
    folder = tmp_path / "history"
    torn = write_run(folder, [record_of()], hardware=DEVICE, now="2026-01-01T00:00:00Z")
    torn.write_bytes(torn.read_bytes() + b'{"schema"')
    newer = write_run(folder, [], hardware=DEVICE, now="2026-01-02T00:00:00Z")
    newer.write_text('{"schema": 99}\n')
    compact(folder, keep=0)
    assert history.files(folder) == [newer]
    out, err = printed()
    assert "Throughput:               2048 img/s" in out
    first, second = err.splitlines()
    assert first.startswith(f"! history/{newer.name}, line 1: schema 99 is newer than")
    assert second.startswith(f"! {torn.name}: line ")


def test_hardware_that_is_only_known_by_compacted_runs_is_known(
    printed, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "history"
    write_run(folder, [record_of()], hardware=DEVICE, now="2026-01-01T00:00:00Z")
    compact(folder, keep=0)
    out, _ = printed("--hardware", DEVICE.key)
    assert "Throughput:               2048 img/s" in out
    answer = ran(["exercise", "sheet", "--hardware", "mi9"], monkeypatch, capsys)
    words = "no runs on mi9 in history; there is mi300x"
    assert (answer.status, answer.err) == (2, f"bench-lib: error: {words}\n")
