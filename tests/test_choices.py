"""Autotuning choices: read in the worker, handed to it, compared kernel by kernel, kept."""

from __future__ import annotations

import datetime as dt
import functools
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders import (
    CASE_ID,
    TEN_MS,
    accept,
    make_attempt,
    make_baseline,
    make_case,
    make_environment,
    make_hardware,
    make_measurement,
    make_processes,
    make_record,
    write_run,
)
from judging import verdicts_of
from standins.worker import Contexts, Watch, conclude, gpus, held, ranks_that

from bench_lib.engine import engine
from bench_lib.engine.device import HeldDevice
from bench_lib.engine.devicelock import DeviceLock
from bench_lib.engine.settings import Settings
from bench_lib.engine.suite import fails
from bench_lib.launch.cache import cache_folder
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.launchers import LaunchCommand
from bench_lib.model import Case, Choice, Choices, Fault, ProcessSummary, Record, Status, Verdict
from bench_lib.storage import acceptance, baselines, history
from bench_lib.storage.baselines import BaselineChange, BaselineError
from bench_lib.verdict import choices as compared
from bench_lib.verdict.evidence import PINNED, Evidence, Pairing
from bench_lib.worker import choices

BIG = {"XBLOCK": 1024, "num_stages": 1, "num_warps": 4}
SMALL = {"XBLOCK": 512, "num_stages": 1, "num_warps": 8}
DEVICE = gpus(1)[0]


def make_draw(*chosen: dict[str, Any], sources: str = "abcdefgh") -> Choices:
    return Choices(
        {
            f"triton_poi_fused_{i}": Choice(sources[i] * 64, config)
            for i, config in enumerate(chosen)
        }
    )


ACCEPTED = make_draw(BIG, BIG, BIG)
OTHER = make_draw(BIG, SMALL, BIG)
UNKNOWN = Choices({}, choices.NO_KERNEL)


# ---- reading what a compiler chose --------------------------------------------------------


SOURCE = "def triton_poi_fused_relu_0(in_ptr0, xnumel, XBLOCK : tl.constexpr):\n    pass\n"
TEMPLATE = """def triton_tem_fused_mm_0(arg_A, arg_B):
    GROUP_M : tl.constexpr = {group}
    ALLOW_TF32 : tl.constexpr = False
    BLOCK_M : tl.constexpr = {block}
    pass
"""


def make_kernel(
    config: dict[str, Any] | None,
    source: str = SOURCE,
    *,
    launchers: int = 1,
    kind: str = "POINTWISE",
) -> SimpleNamespace:
    kwargs = dict(config or {})
    told = SimpleNamespace(
        num_warps=kwargs.pop("num_warps", 4), num_stages=kwargs.pop("num_stages", 1), kwargs=kwargs
    )
    return SimpleNamespace(
        fn=SimpleNamespace(src=source, __name__="triton_poi_fused_relu_0"),
        configs=[told],
        launchers=[SimpleNamespace(config=told)] * launchers,
        size_hints={"x": 4096},
        heuristic_type=SimpleNamespace(name=kind),
    )


def compiled(monkeypatch: pytest.MonkeyPatch, *graphs: dict[str, Any]) -> None:
    modules = [SimpleNamespace(call=print, **graph) for graph in graphs]
    code = SimpleNamespace(PyCodeCache=SimpleNamespace(modules=modules))
    monkeypatch.setitem(sys.modules, choices.CODE, code)


def test_a_kernel_is_told_with_the_tiles_that_it_runs_with(monkeypatch):
    from torch._inductor.runtime.triton_heuristics import generate_lookup_hash_from_source_code

    compiled(monkeypatch, {"triton_poi_fused_relu_0": make_kernel(BIG), "torch": torch})
    key = generate_lookup_hash_from_source_code("{'x': 4096}", SOURCE)
    assert choices.made(since=0) == Choices({"triton_poi_fused_relu_0": Choice(key, BIG)})
    renamed = make_kernel(BIG, SOURCE.replace("relu_0", "relu_7"))
    compiled(monkeypatch, {"triton_poi_fused_relu_7": renamed})
    assert choices.made(since=0).table == {key: BIG}


def test_what_triton_tells_of_a_kernel_is_kept(monkeypatch):
    kernel = make_kernel(BIG)
    vars(kernel.launchers[0]).update(n_regs=32, n_spills=0, shared=None)
    compiled(monkeypatch, {"k": kernel})
    assert choices.made(since=0).kernels["k"].resources == {"registers": 32, "spills": 0}


def test_only_what_was_compiled_since_then_counts(monkeypatch):
    compiled(monkeypatch, {"a": make_kernel(BIG)}, {"b": make_kernel(SMALL)})
    assert choices.compiled_so_far() == 2
    assert list(choices.made(since=1).kernels) == ["b"]
    assert choices.made(since=2) == Choices({}, "the compiler is not Inductor")


def test_kernels_of_several_graphs_count_from_zero_in_each(monkeypatch):
    backward = make_kernel(SMALL, SOURCE.replace("xnumel", "rnumel"))
    compiled(monkeypatch, {"k": make_kernel(BIG)}, {"k": backward})
    assert {n: c.config for n, c in choices.made(since=0).kernels.items()} == {
        "k": BIG,
        "k.2": SMALL,
    }


def test_a_template_s_tiles_stand_in_its_source(monkeypatch):
    sources = [TEMPLATE.format(block=b, group=8) for b in (64, 128)]
    found = []
    for source in sources:
        kernel = make_kernel({"num_warps": 8, "num_stages": 3}, source, kind="TEMPLATE")
        compiled(monkeypatch, {"triton_tem_fused_mm_0": kernel})
        found.append(choices.made(since=0).kernels["triton_tem_fused_mm_0"])
    assert [choice.config["BLOCK_M"] for choice in found] == [64, 128]
    assert found[0].config["ALLOW_TF32"] == "False"
    assert found[0].source == found[1].source
    assert all(choice.template for choice in found)
    assert Choices({"k": found[0]}).table == {}


OTHERWISE = "this version of torch stores them differently"


@pytest.mark.parametrize(
    ("graphs", "why"),
    [
        ([], "the compiler is not Inductor"),
        ([{"cpp_fused_relu_0": print}], "no kernel is Triton's"),
        ([{"k": make_kernel(BIG, launchers=0)}], "no kernel has been tuned"),
        (
            [{"k": make_kernel(BIG, launchers=2)}],
            f"{OTHERWISE}: ValueError: triton_poi_fused_relu_0 still has 2 configurations",
        ),
        (
            [{"k": SimpleNamespace(launchers=[1], configs=[])}],
            f"{OTHERWISE}: AttributeError: 'int' object has no attribute 'config'",
        ),
    ],
)
def test_choices_that_cannot_be_told_say_why(monkeypatch, graphs, why):
    compiled(monkeypatch, *graphs)
    assert choices.made(since=0) == Choices({}, why)


@pytest.fixture
def user_s_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache_folder()


def folders_of(table: Mapping[str, Mapping[str, int | str]]) -> list[Path]:
    with choices.handed(table):
        return [Path(os.environ[f"{x}_CACHE_DIR"]) for x in ("TORCHINDUCTOR", "TRITON")]


def test_handed_choices_have_caches_of_its_own_and_torch_s_table(monkeypatch, user_s_cache):
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/kept")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/kept too")
    monkeypatch.setenv("MIOPEN_USER_DB_PATH", "/tuned")
    with choices.handed(ACCEPTED.table):
        assert config.autotune_lookup_table == {"a" * 64: BIG, "b" * 64: BIG, "c" * 64: BIG}
        assert os.environ["MIOPEN_USER_DB_PATH"] == "/tuned"
    with choices.handed(ACCEPTED.table, keeps=False):
        assert os.environ["MIOPEN_USER_DB_PATH"] == "/tuned"
    inductor, triton = folders_of(ACCEPTED.table)
    assert inductor != triton
    assert user_s_cache in inductor.parents
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/kept"
    assert os.environ["TRITON_CACHE_DIR"] == "/kept too"
    assert config.autotune_lookup_table == {}


@pytest.mark.usefixtures("user_s_cache")
def test_the_same_choices_are_compiled_once_and_others_by_themselves(monkeypatch):
    first = folders_of(ACCEPTED.table)
    assert folders_of(ACCEPTED.table) == first
    assert not set(folders_of(OTHER.table)) & set(first)
    monkeypatch.setattr("torch.__version__", "9.9")
    assert not set(folders_of(ACCEPTED.table)) & set(first)


@pytest.mark.usefixtures("user_s_cache")
def test_a_handed_configuration_is_not_tuned_further(monkeypatch):
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    tuned = []
    monkeypatch.setattr(
        CachingAutotuner, choices.DESCENT, lambda _kernel, launcher: tuned.append(launcher)
    )
    known, other = make_kernel(BIG), make_kernel(BIG, SOURCE.replace("xnumel", "rnumel"))
    compiled(monkeypatch, {"known": known})
    with choices.handed(choices.made(since=0).table):
        for kernel in (known, other):
            CachingAutotuner.coordinate_descent_tuning(kernel, kernel.launchers[0])
    assert known.launchers[0].config.found_by_coordesc
    assert tuned == other.launchers
    CachingAutotuner.coordinate_descent_tuning(known, known.launchers[0])
    assert tuned == [*other.launchers, *known.launchers]


# ---- comparing, kernel by kernel ----------------------------------------------------------


SLOW, FAST = 0.03, 0.0
"""By which a process is slower than the baseline, as a logarithm."""
ELSEWHERE = make_draw(BIG, BIG, BIG, sources="abz")
ANOTHER = make_draw(BIG, SMALL, BIG, sources="abz")
LESS = "the sources of 1 kernel differ"
MORE = "the sources of 2 kernels differ"
CHANGED = "for triton_poi_fused_1"


def of_draw(draw: Choices | None, *slower: float) -> list[ProcessSummary]:
    return make_processes([TEN_MS[1] + each for each in slower], draw=draw)


BASELINE = make_baseline(processes=of_draw(ACCEPTED, FAST))


def evidence(
    candidate: list[ProcessSummary], draw: Choices | None = ACCEPTED, **fields: Any
) -> Evidence:
    baseline = make_baseline(processes=make_processes(TEN_MS, draw=draw))
    return Evidence(candidate, baseline, planned=6, **fields)


def latency(of: Evidence) -> Verdict:
    return verdicts_of({CASE_ID: of})[CASE_ID][0]


@pytest.mark.parametrize(
    ("drawn", "baseline", "words"),
    [
        (OTHER, ACCEPTED, CHANGED),
        (ELSEWHERE, ACCEPTED, MORE),
        (ANOTHER, ACCEPTED, f"{CHANGED}; {MORE}"),
        (make_draw(BIG, BIG), ACCEPTED, LESS),
        (OTHER, None, "the baseline's are not known"),
        (Choices({}, "why"), ACCEPTED, "they are not known: why"),
    ],
)
def test_no_case_is_regressed_by_one_tuning(drawn, baseline, words):
    slower = of_draw(drawn, *[SLOW] * 6)
    for tunings, status in ((1, Status.SUSPECT), (2, Status.SUSPECT), (3, Status.REGRESSED)):
        found = latency(evidence(slower, baseline, tunings=tunings))
        assert found.status is status
        assert f"; other autotuning choices: {words}; {tunings} tuning" in found.reason
        assert found.reason.endswith(", and 3 are needed") == (status is Status.SUSPECT)
    assert latency(evidence(slower, baseline)).status is Status.REGRESSED


@pytest.mark.parametrize(
    ("drawn", "baseline"),
    [(ACCEPTED, ACCEPTED), (None, ACCEPTED), (UNKNOWN, ACCEPTED), (UNKNOWN, None), (None, None)],
    ids=["the baseline's", "eager", "nothing to choose", "nothing known either", "eager both"],
)
def test_the_baselines_choices_and_nothing_to_choose_say_nothing(drawn, baseline):
    found = latency(evidence(of_draw(drawn, *[SLOW] * 6), baseline, tunings=1))
    assert found.status is Status.REGRESSED
    assert "autotuning" not in found.reason


def test_other_choices_that_are_as_fast_say_nothing():
    same = verdicts_of({CASE_ID: evidence(of_draw(OTHER, FAST), tunings=1)})[CASE_ID]
    eager = verdicts_of({CASE_ID: evidence(of_draw(None, FAST), tunings=1)})[CASE_ID]
    assert same == eager


def test_memory_needs_no_tunings():
    found = compared.weighed(
        Verdict(Status.REGRESSED, "memory", "more"), evidence(of_draw(OTHER, SLOW), tunings=1)
    )
    assert found.status is Status.REGRESSED


@pytest.mark.parametrize(("pairs", "status"), [(2, Status.SUSPECT), (3, Status.REGRESSED)])
def test_of_pairs_no_more_tunings_count_than_there_are_pairs(pairs, status):
    (ours,), (theirs,) = of_draw(OTHER, SLOW), of_draw(ACCEPTED, FAST)
    interleaved = Pairing("old", [(ours, theirs)] * pairs, 6)
    slower = Verdict(Status.REGRESSED, "latency", "slower", against="reference")
    found = compared.weighed(slower, evidence([ours], tunings=6, pairing=interleaved))
    assert found.status is status


def test_one_process_that_chose_otherwise_is_enough_to_doubt():
    mixed = [*of_draw(ACCEPTED, *[SLOW] * 5), *of_draw(OTHER, SLOW)]
    assert latency(evidence(mixed, tunings=1)).status is Status.SUSPECT


def test_a_baseline_of_several_draws_hands_out_its_commonest_and_is_held_against_that():
    mixed = [*of_draw(ACCEPTED, 0.0, 0.001, 0.0), *of_draw(OTHER, SLOW, SLOW)]
    baseline = make_baseline(processes=mixed)
    assert compared.commonest(mixed) == ACCEPTED
    assert compared.commonest(mixed[-1:]) == OTHER
    assert compared.commonest(make_processes(TEN_MS)) is None
    assert compared.commonest([]) is None
    case = Evidence(of_draw(ACCEPTED, FAST), baseline)
    assert case.references[PINNED] == mixed[:3]
    assert Evidence(of_draw(OTHER, FAST), baseline).references[PINNED] == mixed[3:]
    assert Evidence(of_draw(ELSEWHERE, FAST), baseline).references[PINNED] == mixed


def test_a_configuration_that_torch_cannot_look_up_is_not_handed():
    table = make_draw(BIG, {**BIG, "waves_per_eu": 1}).table
    assert table == {"a" * 64: BIG}


# ---- what is kept -------------------------------------------------------------------------


def test_a_replay_of_0_2_0_is_no_process_of_the_case():
    own = make_attempt(measurement=make_measurement(draw=OTHER))
    seen = make_measurement(draw=ACCEPTED, context_id="context-1")
    replay = make_attempt(process=1, measurement=seen, accepted=False, replays=True)
    record = make_record(attempts=[own, replay])
    assert [p.draw for p in acceptance.processes_of(record)] == [OTHER]


def test_a_run_of_0_2_0_that_was_redrawn_is_read_and_passes(tmp_path):
    own = make_attempt(measurement=make_measurement(draw=OTHER))
    replay = replace(own, process=1, accepted=False, discarded="replayed", replays=True)
    drawn = make_record(attempts=[own, replay], status=Status.REDRAWN)
    path = write_run(tmp_path, [drawn])
    (record,) = history.read(path).records.values()
    assert record.status is Status.REDRAWN
    assert [attempt.replays for attempt in record.attempts] == [False, True]
    assert not fails(record, strict=True, today=dt.date(2026, 1, 2))


def test_a_baseline_file_has_each_draw_once_with_a_line_for_each_kernel(tmp_path):
    new = make_baseline(
        processes=[
            *make_processes(TEN_MS[:2], draw=ACCEPTED),
            *make_processes(TEN_MS[2:], draw=OTHER),
        ]
    )
    file = baselines.load(tmp_path, "mi300x")
    baselines.write(
        file,
        [BaselineChange(CASE_ID, None, new)],
        make_hardware(),
        {"e0e0e0e0": make_environment()},
    )
    known = baselines.load(tmp_path, "mi300x")
    assert [p.draw for p in known.baselines[CASE_ID].processes] == [p.draw for p in new.processes]
    lines = file.path.read_text().splitlines()
    assert sum('"kernel": "triton_poi_fused_1"' in line for line in lines) == 2
    names = json.loads(file.path.read_text())["cases"][CASE_ID]["draws"]
    assert [len(name) for name in names] == [8, 8]
    forgotten = make_baseline(processes=make_processes(TEN_MS))
    baselines.write(known, [BaselineChange(CASE_ID, new, forgotten)], make_hardware(), {})
    assert "triton" not in file.path.read_text()


def test_an_unknown_draw_is_not_kept(tmp_path):
    new = make_baseline(processes=make_processes(TEN_MS, draw=UNKNOWN))
    file = baselines.load(tmp_path, "mi300x")
    baselines.write(file, [BaselineChange(CASE_ID, None, new)], make_hardware(), {})
    assert "draw" not in file.path.read_text()


def test_a_draw_that_a_baseline_file_lacks_is_named(tmp_path):
    new = make_baseline(processes=make_processes(TEN_MS, draw=ACCEPTED))
    file = baselines.load(tmp_path, "mi300x")
    baselines.write(file, [BaselineChange(CASE_ID, None, new)], make_hardware(), {})
    document = json.loads(file.path.read_text())
    (name,) = document["cases"][CASE_ID].pop("draws")
    file.path.write_text(json.dumps(document))
    with pytest.raises(BaselineError, match=f"a process has the draw '{name}', which is missing"):
        baselines.load(tmp_path, "mi300x")


# ---- a run --------------------------------------------------------------------------------

CASE = make_case(id="resnet50-b64-fp16-reduce-overhead-infer")
TEN, SLOWER = [0.01] * 20, [0.0103] * 20
HANDED, ANEW = " by choices", " by choices, anew"


@pytest.fixture
def judged(tmp_path, monkeypatch):
    monkeypatch.setattr("bench_lib.backends.amd.AMD.is_measured", True)

    def run(
        times: list[float],
        drawn: Choices | None,
        *cases: Case,
        accepted: Choices | None = ACCEPTED,
        **options: Any,
    ) -> tuple[Record, list[str]]:
        cases = cases or (CASE,)
        for case in cases:
            accept(tmp_path / "baselines", DEVICE, case.id, process={"draw": accepted})
        workers = Contexts({case.id: [times] for case in cases}, DEVICE)
        if drawn is not None:
            workers.drawn = {case.id: drawn for case in cases}
        hold = functools.partial(
            HeldDevice,
            start=lambda _side, _device: workers,
            watch=lambda _device: Watch(),
            lock_of=lambda device: DeviceLock(device, tmp_path / "locks"),
        )
        monkeypatch.setattr("bench_lib.engine.engine.HeldDevice", hold)
        folders = {"history": tmp_path / "history", "baselines": tmp_path / "baselines"}
        settings = Settings(**folders, command="ops", kernels="none", **options)
        with engine.opened(DEVICE, settings) as opened:
            for case in cases:
                opened.measure(case)
            conclude(opened)
            record = opened.suite.records[cases[0].id]
        measured = [line.partition(CASE.id)[2] for line in workers.log if CASE.id in line]
        return record, measured

    return run


def test_every_process_is_compiled_with_the_baselines_choices(judged):
    record, measured = judged(SLOWER, None)
    assert record.status is Status.REGRESSED
    assert measured == [HANDED] * 6
    assert "autotuning" not in record.verdicts[0].reason
    assert [a.measurement.draw for a in record.attempts] == [ACCEPTED] * 6


@pytest.mark.parametrize("drawn", [ELSEWHERE, OTHER], ids=["other sources", "not taken"])
def test_a_case_that_chose_otherwise_is_tuned_anew_before_it_is_regressed(judged, drawn):
    record, measured = judged(SLOWER, drawn)
    assert record.status is Status.REGRESSED
    assert measured == [HANDED, *[ANEW] * 5]
    assert "; 6 tunings" in record.verdicts[0].reason


@pytest.mark.parametrize(("processes", "planned"), [(1, 1), (1, 2), (6, 6)])
def test_until_it_was_tuned_three_times_it_is_suspect(judged, processes, planned):
    record, measured = judged(SLOWER, ELSEWHERE, processes=processes, planned=planned)
    assert record.status is Status.SUSPECT
    assert measured == [*[HANDED] * processes, *[ANEW] * (planned - processes)]


def test_a_baseline_of_unknown_choices_has_the_case_tuned_anew(judged):
    record, measured = judged(SLOWER, OTHER, accepted=None)
    assert record.status is Status.REGRESSED
    assert measured == ["", *[", anew"] * 5]
    assert "the baseline's are not known" in record.verdicts[0].reason


def test_with_own_choices_nothing_is_handed(judged):
    record, measured = judged(SLOWER, OTHER, own_choices=True)
    assert record.status is Status.REGRESSED
    assert measured == ["", *[", anew"] * 5]


def test_what_is_as_fast_is_measured_once(judged):
    _, measured = judged(TEN, ELSEWHERE)
    assert measured == [HANDED]


def test_with_cold_caches_nothing_is_handed(judged):
    cold = replace(CASE, launch=replace(CASE.launch, cold=True))
    _, measured = judged(TEN, ELSEWHERE, cold)
    assert measured == [""]


def test_a_case_with_handed_choices_has_a_process_of_its_own(tmp_path):
    workers = Contexts({}, DEVICE)
    cases = [make_case(id="plain"), make_case(id="compiled"), make_case(id="next")]
    device = held(
        DEVICE,
        workers,
        tmp_path,
        accepted=lambda case: BASELINE if case.id == "compiled" else None,
    )
    outcomes = [outcome for (outcome,) in device.measure_again(cases, 1)]
    device.close()
    assert [outcome.attempts[0].accepted for outcome in outcomes] == [True] * 3
    assert [line for line in workers.log if " takes " not in line][:7] == [
        "fork context-1",
        "context-1 plain",
        "end context-1",
        "fork context-2",
        "context-2 compiled by choices",
        "end context-2",
        "fork context-3",
    ]


def test_no_room_for_temporary_files_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    full = Fault("no room", f"OSError: [Errno 28] No space left on device: '{tmp_path}/a'", "")
    workers = Contexts({"a": [full]}, DEVICE)
    device = held(DEVICE, workers, tmp_path, accepted=lambda _case: BASELINE)
    with pytest.raises(LaunchError, match=f"cannot write temporary files to {tmp_path}"):
        list(device.measure_again([make_case(id="a")], 1))
    device.close()


TWO = LaunchCommand("torchrun", (), 2)


def test_ranks_that_are_tuned_anew_keep_nothing_of_it(judged, monkeypatch):
    found = []

    def run_ranks(case, *, asked, **_):
        found.append(asked.keeps)
        return make_measurement(case_id=case.id, iteration_s=SLOWER, draw=ELSEWHERE)

    monkeypatch.setattr("bench_lib.engine.device.Ranks", ranks_that(run_ranks))
    monkeypatch.setattr(HeldDevice, "_command_for", lambda *_: TWO)
    monkeypatch.setattr(HeldDevice, "_used_by", lambda *_: [])
    record, _ = judged(SLOWER, None, replace(CASE, launch=replace(CASE.launch, ranks=2)))
    assert record.status is Status.REGRESSED
    assert found == [True, *[False] * 5]
