"""The compiler's draw: read in the worker, compared kernel by kernel, replayed, kept."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import math
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
    make_fault,
    make_hardware,
    make_measurement,
    make_process,
    make_processes,
    make_record,
    the_run,
)
from standins.worker import Contexts, Watch, gpus, held

from bench_lib.engine import engine
from bench_lib.engine.device import REPLAYED, HeldDevice
from bench_lib.engine.devicelock import DeviceLock
from bench_lib.engine.outcome import Outcome
from bench_lib.engine.settings import Settings
from bench_lib.engine.suite import STALE, Baselines, Suite, fails
from bench_lib.launch.cache import cache_folder
from bench_lib.launch.faults import LaunchError
from bench_lib.model import (
    IN_BURSTS,
    Attempt,
    Baseline,
    Choice,
    Draw,
    Fault,
    ProcessSummary,
    Record,
    Status,
    Verdict,
)
from bench_lib.storage import acceptance, baselines
from bench_lib.storage.baselines import BaselineChange, BaselineError, BaselineFile
from bench_lib.verdict import draws as compared
from bench_lib.verdict.evidence import PINNED, REFERENCE, ROLLING, Evidence, Turns
from bench_lib.verdict.judge import is_suspicious, judge, overall, wants_turns
from bench_lib.worker import draws
from bench_lib.worker.workload import UnsupportedError

BIG = {"XBLOCK": 1024, "num_stages": 1, "num_warps": 4}
SMALL = {"XBLOCK": 512, "num_stages": 1, "num_warps": 8}
DEVICE = gpus(1)[0]
TODAY = dt.date(2026, 1, 2)


def make_draw(*chosen: dict[str, Any], sources: str = "abcdefgh") -> Draw:
    """Return the draw of a kernel for each configuration, named and hashed by its place."""
    return Draw(
        {
            f"triton_poi_fused_{i}": Choice(sources[i] * 64, config)
            for i, config in enumerate(chosen)
        }
    )


ACCEPTED = make_draw(BIG, BIG, BIG)
OTHER = make_draw(BIG, SMALL, BIG)
UNKNOWN = Draw({}, draws.NO_KERNEL)


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
    """Return what stands in a graph's module for a kernel, as torch's autotuner has it."""
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
    """Have these graphs been compiled in this process, each with its kernels by name."""
    modules = [SimpleNamespace(call=print, **graph) for graph in graphs]
    code = SimpleNamespace(PyCodeCache=SimpleNamespace(modules=modules))
    monkeypatch.setitem(sys.modules, draws.CODE, code)


def test_a_kernel_is_told_with_the_tiles_that_it_runs_with(monkeypatch):
    from torch._inductor.runtime.triton_heuristics import generate_lookup_hash_from_source_code

    compiled(monkeypatch, {"triton_poi_fused_relu_0": make_kernel(BIG), "torch": torch})
    key = generate_lookup_hash_from_source_code("{'x': 4096}", SOURCE)
    assert draws.drawn(since=0) == Draw({"triton_poi_fused_relu_0": Choice(key, BIG)})
    renamed = make_kernel(BIG, SOURCE.replace("relu_0", "relu_7"))
    compiled(monkeypatch, {"triton_poi_fused_relu_7": renamed})
    assert draws.drawn(since=0).table == {key: BIG}


def test_only_what_was_compiled_since_then_counts(monkeypatch):
    compiled(monkeypatch, {"a": make_kernel(BIG)}, {"b": make_kernel(SMALL)})
    assert draws.compiled_so_far() == 2
    assert list(draws.drawn(since=1).kernels) == ["b"]
    assert draws.drawn(since=2) == Draw({}, "the compiler is not Inductor")


def test_kernels_of_several_graphs_count_from_zero_in_each(monkeypatch):
    backward = make_kernel(SMALL, SOURCE.replace("xnumel", "rnumel"))
    compiled(monkeypatch, {"k": make_kernel(BIG)}, {"k": backward})
    assert {n: c.config for n, c in draws.drawn(since=0).kernels.items()} == {
        "k": BIG,
        "k.2": SMALL,
    }


def test_a_template_s_tiles_stand_in_its_source(monkeypatch):
    sources = [TEMPLATE.format(block=b, group=8) for b in (64, 128)]
    found = []
    for source in sources:
        kernel = make_kernel({"num_warps": 8, "num_stages": 3}, source, kind="TEMPLATE")
        compiled(monkeypatch, {"triton_tem_fused_mm_0": kernel})
        found.append(draws.drawn(since=0).kernels["triton_tem_fused_mm_0"])
    assert [choice.config["BLOCK_M"] for choice in found] == [64, 128]
    assert found[0].config["ALLOW_TF32"] == "False"
    assert found[0].source == found[1].source
    assert all(choice.template for choice in found)
    assert Draw({"k": found[0]}).table == {}


OTHERWISE = "this torch keeps them otherwise"


@pytest.mark.parametrize(
    ("graphs", "why"),
    [
        ([], "the compiler is not Inductor"),
        ([{"cpp_fused_relu_0": print}], "no kernel is Triton's"),
        ([{"k": make_kernel(BIG, launchers=0)}], "no kernel has decided"),
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
    assert draws.drawn(since=0) == Draw({}, why)


def test_a_process_that_compiled_nothing_has_no_graphs(monkeypatch):
    monkeypatch.delitem(sys.modules, draws.CODE, raising=False)
    assert draws.compiled_so_far() == 0
    assert draws.CODE not in sys.modules


@pytest.fixture
def user_s_cache(monkeypatch, tmp_path):
    """Have the user's cache folder be an empty one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache_folder()


def folders_of(table: Mapping[str, Mapping[str, int | str]]) -> list[Path]:
    """Return where Inductor and Triton keep what they make while a table is replayed."""
    with draws.replayed(table):
        return [Path(os.environ[f"{x}_CACHE_DIR"]) for x in ("TORCHINDUCTOR", "TRITON")]


def test_a_replay_has_caches_of_its_own_and_torch_s_table(monkeypatch, user_s_cache):
    from torch._inductor import config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/kept")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/kept too")
    with draws.replayed(ACCEPTED.table):
        assert config.autotune_lookup_table == {"a" * 64: BIG, "b" * 64: BIG, "c" * 64: BIG}
    inductor, triton = folders_of(ACCEPTED.table)
    assert inductor != triton
    assert user_s_cache in inductor.parents
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/kept"
    assert os.environ["TRITON_CACHE_DIR"] == "/kept too"
    assert config.autotune_lookup_table == {}


def test_a_replay_that_keeps_nothing_has_caches_for_as_long_as_it_lasts(user_s_cache):
    with draws.replayed(ACCEPTED.table, keeps=False):
        folder = Path(os.environ["TRITON_CACHE_DIR"]).parent
        assert folder.is_dir()
    assert not folder.exists()
    assert not user_s_cache.exists()


@pytest.mark.usefixtures("user_s_cache")
def test_the_same_choices_are_compiled_once_and_others_by_themselves(monkeypatch):
    first = folders_of(ACCEPTED.table)
    assert folders_of(ACCEPTED.table) == first
    assert not set(folders_of(OTHER.table)) & set(first)
    monkeypatch.setattr("torch.__version__", "9.9")
    assert not set(folders_of(ACCEPTED.table)) & set(first)


def test_a_torch_that_cannot_be_told_is_a_skip(monkeypatch):
    monkeypatch.setattr("torch._inductor.config", SimpleNamespace())
    with pytest.raises(UnsupportedError, match="cannot be told what to choose"):
        draws.replayed(ACCEPTED.table).__enter__()


# ---- comparing, kernel by kernel ----------------------------------------------------------


def test_differences_name_the_kernel_and_what_is_other():
    renamed = Draw({f"{name}_new": choice for name, choice in OTHER.kernels.items()})
    assert compared.differences(ACCEPTED, renamed) == [
        "triton_poi_fused_1_new XBLOCK 1024 -> 512, num_warps 4 -> 8"
    ]
    assert compared.differences(ACCEPTED, ACCEPTED) == []


def test_real_draws_of_equal_speed_differ_in_some_kernels():
    lines = Path(__file__, "../../benchmarks/data/h200_draws.jsonl").resolve().read_text()
    seen = {line["process"]: line for line in map(json.loads, lines.splitlines())}
    drawn = {
        name: Draw({kernel: Choice(**choice) for kernel, choice in line["kernels"].items()})
        for name, line in seen.items()
    }
    a, b = drawn["a"], drawn["b"]
    assert len(compared.differences(a, b)) == 5
    for name, of in (("a by table", a), ("b by table", b), ("a by files", a), ("b by files", b)):
        assert drawn[name].chooses_as(of)
        origin = seen[name[0]]["median_ms"]
        assert abs(seen[name]["median_ms"] / origin - 1) < 0.004
    assert seen["b"]["median_ms"] / seen["a"]["median_ms"] > 1.04


SLOW, FAST = 0.03, 0.0
"""By which a process is slower than the baseline, as a logarithm."""


def of_draw(draw: Draw | None, *slower: float) -> list[ProcessSummary]:
    """Return processes that are slower than ``TEN_MS`` by so much, with what was chosen."""
    return make_processes([TEN_MS[1] + each for each in slower], draw=draw)


def accepted(draw: Draw | None = ACCEPTED) -> Baseline:
    """Return a baseline of five processes for which the compiler chose so."""
    return make_baseline(processes=make_processes(TEN_MS, draw=draw))


def evidence(
    drawn: Draw | None = OTHER,
    *replays: ProcessSummary,
    slower: float = SLOW,
    baseline: Baseline | None = None,
    **fields: Any,
) -> Evidence:
    """Return a case that is slower in its first process, and what was replayed since."""
    return Evidence(
        of_draw(drawn, slower), baseline or accepted(), planned=6, replays=replays, **fields
    )


def latency(of: Evidence) -> Verdict:
    """Return the verdict on its latency, by the pinned baseline."""
    return judge({CASE_ID: of})[CASE_ID][0]


def test_another_draw_is_measured_with_the_baseline_s_choices():
    case = evidence()
    verdicts = judge({CASE_ID: case})[CASE_ID]
    assert compared.to_replay(case) == ACCEPTED
    assert verdicts[0].status is Status.SUSPECT
    assert verdicts[0].reason.endswith(
        "; the compiler chose otherwise for 1 of 3 kernels: triton_poi_fused_1 XBLOCK 1024 -> 512, "
        "num_warps 4 -> 8"
    )


def test_as_fast_as_the_baseline_with_its_choices_is_redrawn():
    case = evidence(OTHER, *of_draw(ACCEPTED, FAST))
    verdicts = judge({CASE_ID: case})[CASE_ID]
    assert overall(verdicts) is Status.REDRAWN
    assert not is_suspicious(verdicts)
    found = verdicts[0]
    assert found.ratio == pytest.approx(math.exp(SLOW), rel=1e-3)
    assert found.reason == (
        "drawn anew: 3.0% slower as the compiler chose now, 0.0% faster with its choices of the "
        "baseline; the compiler chose otherwise for 1 of 3 kernels: triton_poi_fused_1 XBLOCK "
        "1024 -> 512, num_warps 4 -> 8"
    )


def test_slower_with_the_baseline_s_choices_is_the_software():
    once = evidence(OTHER, *of_draw(ACCEPTED, SLOW))
    assert latency(once).status is Status.SUSPECT
    assert is_suspicious(judge({CASE_ID: once})[CASE_ID])
    often = latency(evidence(OTHER, *of_draw(ACCEPTED, *[SLOW] * 5)))
    assert often.status is Status.REGRESSED
    assert often.reason.startswith(
        "with the compiler's choices of the baseline: 3.0% slower than 5"
    )


def test_a_draw_on_top_of_a_regression_excuses_nothing():
    case = evidence(OTHER, *of_draw(ACCEPTED, *[0.02] * 5), slower=0.05)
    assert latency(case).status is Status.REGRESSED
    assert latency(case).ratio == pytest.approx(math.exp(0.02), rel=1e-3)


UNLIKE = (
    "kernels are not the baseline's, so its choices cannot be replayed and another draw is not "
    "excluded"
)


@pytest.mark.parametrize(
    ("drawn", "baseline", "words"),
    [
        (UNKNOWN, ACCEPTED, "the compiler's draw is unknown: no kernel is Triton's"),
        (
            OTHER,
            None,
            "the compiler's draw is not known of the baseline; accept a run to keep it",
        ),
        (ACCEPTED, ACCEPTED, "the compiler chose as in the baseline"),
        (
            make_draw(BIG, SMALL, BIG, sources="abz"),
            ACCEPTED,
            f"the sources of 1 of 3 {UNLIKE}",
        ),
        (
            make_draw(BIG, BIG),
            ACCEPTED,
            f"the sources of 1 of 2 {UNLIKE}",
        ),
    ],
    ids=["unknown", "unknown of the baseline", "the same", "other sources", "fewer kernels"],
)
def test_what_cannot_be_replayed_says_why_and_excuses_nothing(drawn, baseline, words):
    case = evidence(drawn, baseline=accepted(baseline))
    verdicts = judge({CASE_ID: case})[CASE_ID]
    without = latency(evidence(None, baseline=accepted(None)))
    assert compared.to_replay(case) is None
    assert verdicts[0] == replace(without, reason=f"{without.reason}; {words}")


def test_a_template_s_tiles_are_told_and_not_replayed():
    tiles = [
        Draw({"triton_tem_fused_mm_0": Choice("a" * 64, {"BLOCK_M": m}, template=True)})
        for m in (64, 128)
    ]
    case = evidence(tiles[1], baseline=accepted(tiles[0]))
    assert compared.to_replay(case) is None
    assert latency(case).reason.endswith(
        "; tiles of a template cannot be replayed; the compiler chose otherwise for 1 of 1 "
        "kernels: triton_tem_fused_mm_0 BLOCK_M 64 -> 128"
    )


def test_a_replay_that_chose_otherwise_all_the_same_does_not_count():
    case = evidence(OTHER, *of_draw(OTHER, FAST))
    verdicts = judge({CASE_ID: case})[CASE_ID]
    assert compared.to_replay(case) is None
    assert verdicts[0].status is Status.SUSPECT
    assert verdicts[0].reason.endswith(
        "; the baseline's choices could not be replayed: triton_poi_fused_1 XBLOCK 1024 -> 512, "
        "num_warps 4 -> 8"
    )


def test_another_draw_that_is_as_fast_says_nothing():
    case = evidence(OTHER, *of_draw(ACCEPTED, FAST), slower=FAST)
    verdicts = judge({CASE_ID: case})[CASE_ID]
    without = replace(case, candidate=of_draw(None, FAST), replays=())
    assert verdicts == judge({CASE_ID: without})[CASE_ID]


def test_a_faster_draw_does_not_hide_a_slow_down():
    hidden = evidence(OTHER, slower=FAST)
    assert compared.to_replay(hidden) == ACCEPTED
    assert not is_suspicious(judge({CASE_ID: hidden})[CASE_ID])
    case = evidence(OTHER, *of_draw(ACCEPTED, *[SLOW] * 5), slower=FAST)
    assert latency(case).status is Status.REGRESSED


def test_a_faster_draw_is_redrawn_and_no_improvement():
    case = evidence(OTHER, *of_draw(ACCEPTED, FAST), slower=-SLOW)
    verdicts = judge({CASE_ID: case})[CASE_ID]
    assert overall(verdicts) is Status.REDRAWN
    assert not is_suspicious(verdicts)
    assert verdicts[0].reason.startswith("drawn anew: 3.0% faster as the compiler chose now, ")


def test_faster_software_is_measured_as_often_as_any():
    once = evidence(OTHER, *of_draw(ACCEPTED, -SLOW), slower=-SLOW)
    assert is_suspicious(judge({CASE_ID: once})[CASE_ID])
    assert latency(once).status is Status.OK
    often = evidence(OTHER, *of_draw(ACCEPTED, *[-SLOW] * 5), slower=-SLOW)
    assert latency(often).status is Status.IMPROVED


def test_an_eager_case_says_nothing_of_a_compiler():
    assert "compiler" not in latency(evidence(None, baseline=accepted(None))).reason


def test_a_baseline_of_several_draws_is_held_against_its_commonest():
    mixed = [*of_draw(ACCEPTED, 0.0, 0.001, 0.0), *of_draw(OTHER, SLOW, SLOW)]
    third = make_draw(SMALL, BIG, BIG)
    case = evidence(
        third, *of_draw(ACCEPTED, 0.02), slower=0.06, baseline=make_baseline(processes=mixed)
    )
    assert compared.as_replayed(case).baseline.processes == mixed[:3]
    assert latency(case).status is Status.SUSPECT


def test_a_draw_that_one_process_had_is_not_replayed():
    lonely = make_baseline(
        processes=[
            make_process(log_median=TEN_MS[1], draw=make_draw(SMALL if i else BIG, {"XBLOCK": i}))
            for i in range(5)
        ]
    )
    case = evidence(baseline=lonely)
    assert compared.to_replay(case) is None


def test_nights_of_another_draw_tell_nothing():
    lucky = make_processes([x - 0.02 for x in TEN_MS], draw=OTHER)
    case = evidence(ACCEPTED, slower=FAST, rolling=lucky)
    assert set(case.references()) == {PINNED}
    unknown = make_processes(TEN_MS)
    assert set(replace(case, rolling=[*lucky, *unknown]).references()) == {PINNED, ROLLING}
    assert (
        replace(case, rolling=lucky, candidate=of_draw(OTHER, FAST)).references()[ROLLING] == lucky
    )


def test_other_cases_of_the_suite_are_judged_as_ever():
    quiet = Evidence(of_draw(None, FAST), accepted(None), planned=6)
    others = {f"quiet-{i}": quiet for i in range(5)}
    alone = judge(others)
    together = judge({**others, CASE_ID: evidence(OTHER, *of_draw(ACCEPTED, FAST))})
    assert {name: [v.status for v in together[name]] for name in others} == {
        name: [v.status for v in alone[name]] for name in others
    }


# ---- what is kept -------------------------------------------------------------------------


def test_a_replay_is_no_process_of_the_case():
    own = make_attempt(measurement=make_measurement(draw=OTHER))
    seen = make_measurement(draw=ACCEPTED, context_id="context-1")
    replay = make_attempt(
        process=1, measurement=seen, accepted=False, discarded=REPLAYED, replays=True
    )
    record = make_record(attempts=[own, replay])
    assert [p.draw for p in acceptance.processes_of(record)] == [OTHER]
    assert [p.draw for p in acceptance.replays_of(record)] == [ACCEPTED]
    assert [p.worker for p in acceptance.replays_of(record, "0a0a0a0a")] == ["0a0a0a0a/context-1"]
    assert acceptance.unreplayed(record) == ""
    spoilt = replace(replay, invalid=True)
    assert acceptance.replays_of(make_record(attempts=[own, spoilt])) == []
    failed = make_attempt(process=1, fault=make_fault(), replays=True)
    assert acceptance.unreplayed(make_record(attempts=[own, failed])) == (
        "out of memory in first step: tried to allocate 2.00 GiB"
    )


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
    with pytest.raises(BaselineError, match=f"a process has the draw '{name}', which draws lacks"):
        baselines.load(tmp_path, "mi300x")


# ---- measuring ----------------------------------------------------------------------------


def test_a_replay_has_a_process_of_its_own(tmp_path):
    workers = Contexts({}, DEVICE)
    cases = [make_case(id="plain"), make_case(id="redrawn"), make_case(id="next")]
    device = held(DEVICE, workers, tmp_path)
    outcomes = list(device.measure_again(cases, 1, replays={"redrawn": ACCEPTED}))
    device.close()
    (attempt,) = outcomes[1].attempts
    assert (attempt.replays, attempt.accepted, attempt.discarded) == (True, False, REPLAYED)
    assert attempt.measurement.draw == ACCEPTED
    assert [a.replays for each in (outcomes[0], outcomes[2]) for a in each.attempts] == [False] * 2
    assert [line for line in workers.log if " takes " not in line][:7] == [
        "fork context-1",
        "context-1 plain",
        "end context-1",
        "fork context-2",
        "context-2 redrawn replayed",
        "end context-2",
        "fork context-3",
    ]


def test_a_replay_whose_caches_find_no_room_is_repeated_in_caches_that_nobody_keeps(tmp_path):
    full = Fault("no room", "OSError: [Errno 122] Disk quota exceeded: '/home/a/.cache/x'\n...", "")
    workers = Contexts({"a replayed": [full, [0.01] * 20]}, DEVICE)
    said = []
    device = held(DEVICE, workers, tmp_path, say=said.append)
    cases = [make_case(id="a"), make_case(id="b")]
    replays = dict.fromkeys(("a", "b"), ACCEPTED)
    outcomes = list(device.measure_again(cases, 1, replays=replays))
    device.close()
    assert [each.attempts[0].discarded for each in outcomes] == [REPLAYED] * 2
    assert [line for line in workers.log if " replayed" in line] == [
        "context-1 a replayed",
        "context-2 a replayed, not kept",
        "context-3 b replayed, not kept",
    ]
    (sentence,) = said
    remedy = f"free some space in {cache_folder()}"
    assert sentence.endswith(f"Disk quota exceeded: '/home/a/.cache/x'; {remedy}")


def test_a_replay_that_finds_no_room_for_temporary_files_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    full = Fault("no room", f"OSError: [Errno 28] No space left on device: '{tmp_path}/a'", "")
    workers, said = Contexts({"a replayed": [full]}, DEVICE), []
    device = held(DEVICE, workers, tmp_path, say=said.append)
    with pytest.raises(LaunchError, match=f"cannot write temporary files to {tmp_path}"):
        list(device.measure_again([make_case(id="a")], 1, replays={"a": ACCEPTED}))
    device.close()
    assert ([line for line in workers.log if " replayed" in line], said) == (
        ["context-1 a replayed"],
        [],
    )


def in_turns(here: float, there: float, **fields: Any) -> Evidence:
    """Return a case with another draw, slower by ``here``, and two pairs with a reference."""
    (new,), (old,) = (of_draw(draw, x) for draw, x in ((OTHER, here), (ACCEPTED, there)))
    pairs = [(replace(new, worker=f"r/{i}"), replace(old, worker=f"s/{i}")) for i in range(2)]
    return evidence(OTHER, slower=here, turns=Turns("accepted", pairs, 6), **fields)


def test_replays_decide_where_turns_differ_by_draw():
    alone = judge({CASE_ID: in_turns(SLOW, 0.0)})[CASE_ID]
    told = next(v for v in alone if v.against == REFERENCE)
    assert told.status is Status.REGRESSED
    words = "; the compiler chose its kernels on each side by itself, which turns do not cancel"
    assert words in told.reason
    replayed = replace(in_turns(SLOW, 0.0), replays=of_draw(ACCEPTED, FAST, FAST))
    verdicts = judge({CASE_ID: replayed})[CASE_ID]
    answer = next(v for v in verdicts if v.against == REFERENCE and v.metric == "latency")
    assert answer.status is Status.SKIPPED
    assert answer.reason.endswith(
        "; turns do not cancel what the compiler chose, so replays decide"
    )
    assert overall(verdicts) is Status.REDRAWN


def test_pairs_of_replays_decide_whatever_the_pairs_of_draws_say():
    pairs = [
        (replace(new, worker=f"r/{i}"), replace(old, worker=f"s/{i}"))
        for i in range(5)
        for new, old in zip(of_draw(ACCEPTED, SLOW), of_draw(ACCEPTED, FAST), strict=True)
    ]
    case = in_turns(FAST, SLOW)
    case = replace(
        case,
        turns=replace(case.turns, replays=pairs),
        replays=of_draw(ACCEPTED, *[SLOW] * 5),
    )
    verdicts = judge({CASE_ID: case})[CASE_ID]
    (answer,) = (v for v in verdicts if v.against == REFERENCE and v.metric == "latency")
    assert answer.status is Status.REGRESSED
    assert answer.reason.startswith("with the compiler's choices of the baseline: 3.0% slower than")
    assert overall(verdicts) is Status.REGRESSED
    unlike = [(replace(new, draw=OTHER), old) for new, old in pairs]
    case = replace(case, turns=replace(case.turns, replays=unlike))
    verdicts = judge({CASE_ID: case})[CASE_ID]
    (answer,) = (v for v in verdicts if v.against == REFERENCE and v.metric == "latency")
    assert answer.status is Status.SKIPPED


def test_a_metric_that_a_side_lacks_keeps_its_ratio():
    (new,) = make_processes([TEN_MS[1] + SLOW], draw=ACCEPTED, log_device=-5.0)
    replayed = replace(evidence(), candidate=[new])
    verdicts = [Verdict(Status.OK, name, "", ratio=1.5) for name in ("latency", "device")]
    latency, device = compared.by_replays(verdicts, replayed)
    assert latency.ratio == pytest.approx(math.exp(SLOW), rel=1e-3)
    assert device.ratio == 1.5


def in_bursts(processes: list[ProcessSummary], sustained_s: float) -> list[ProcessSummary]:
    """Return processes that were measured in bursts, beside sustained work."""
    return [
        replace(p, values=p.values | {"sustained": sustained_s}, states={"latency": IN_BURSTS})
        for p in processes
    ]


def test_a_time_that_replays_do_not_tell_asks_for_no_turns():
    baseline = accepted()
    baseline = replace(baseline, processes=in_bursts(list(baseline.processes), 0.01))
    replays = in_bursts(of_draw(ACCEPTED, FAST), 0.01)
    case = replace(in_turns(FAST, FAST), replays=replays, baseline=baseline)
    case = replace(
        case,
        candidate=in_bursts(list(case.candidate), 0.013),
        turns=Turns("accepted", (), 6),
    )
    verdicts = judge({CASE_ID: case})[CASE_ID]
    (sustained,) = (v for v in verdicts if v.metric == "sustained")
    assert sustained.status is Status.SUSPECT
    assert is_suspicious(verdicts)
    assert not wants_turns(verdicts, case)


def test_turns_do_not_excuse_what_replays_find_slower():
    replayed = replace(in_turns(SLOW, SLOW), replays=of_draw(ACCEPTED, *[SLOW] * 5))
    verdicts = judge({CASE_ID: replayed})[CASE_ID]
    assert overall(verdicts) is Status.REGRESSED
    assert next(v for v in verdicts if v.status is Status.REGRESSED).against == PINNED


def suite_of(folder: Path, *attempts: Attempt, **fields: Any) -> contextlib.closing[Suite]:
    """Return a suite that has measured one case, of which a baseline is accepted."""
    about = {"draw": ACCEPTED, "peak_memory_bytes": 1 << 30}
    accept(folder, DEVICE, CASE.id, process=about, **fields)
    suite = Suite(folder / "history", Baselines(folder), DEVICE, planned=6)
    suite.note(Outcome(CASE, list(attempts), make_environment(), DEVICE), None)
    return contextlib.closing(suite)


def drew(process: int, draw: Draw, **fields: Any) -> Attempt:
    """Return an attempt at the case, slower and with more memory than accepted."""
    seen = make_measurement(
        case_id=CASE.id, iteration_s=SLOWER, draw=draw, peak_memory_bytes=2 << 30
    )
    return make_attempt(case_id=CASE.id, process=process, measurement=seen, **fields)


def test_replays_confirm_nothing_that_they_do_not_measure(tmp_path):
    discarded = {"accepted": False, "discarded": REPLAYED, "replays": True}
    replays = [drew(i, ACCEPTED, **discarded) for i in range(1, 6)]
    for others, status in (
        (replays, Status.SUSPECT),
        ([drew(i, OTHER) for i in range(1, 6)], Status.REGRESSED),
    ):
        with suite_of(tmp_path, drew(0, OTHER), *others) as suite:
            (record,) = suite.judge()
        assert next(v for v in record.verdicts if v.metric == "memory").status is status


def test_a_case_that_cannot_be_judged_is_not_replayed(tmp_path):
    with suite_of(tmp_path, drew(0, OTHER), conditions={"power_cap_w": 500.0}) as suite:
        assert suite.suspicious() == []
        (record,) = suite.judge()
        assert record.status is Status.INCOMPARABLE
        assert suite.to_replay(record) is None


def test_replays_are_judged_by_the_draw_that_they_have():
    nights = of_draw(OTHER, *[0.0] * 5)
    replayed = compared.as_replayed(evidence(OTHER, *of_draw(ACCEPTED, FAST), rolling=nights))
    assert (replayed.rolling, replayed.replays, replayed.turns) == ((), (), None)
    assert replayed.planned == 5
    once = replace(evidence(OTHER, *of_draw(ACCEPTED, FAST)), planned=1)
    assert compared.as_replayed(once).planned == 1


def test_a_draw_that_two_processes_had_is_replayed():
    two = replace(accepted(), processes=of_draw(ACCEPTED, 0.0, 0.001))
    assert compared.to_replay(evidence(baseline=two)) == ACCEPTED


def test_a_reason_names_three_kernels_and_counts_the_others():
    all_big, all_small = make_draw(*[BIG] * 5), make_draw(*[SMALL] * 5)
    words = latency(evidence(all_small, baseline=accepted(all_big))).reason
    change = "XBLOCK 1024 -> 512, num_warps 4 -> 8"
    named = "; ".join(f"triton_poi_fused_{i} {change}" for i in range(3))
    assert words.endswith(f"the compiler chose otherwise for 5 of 5 kernels: {named} and 2 more")
    three, other = make_draw(*[BIG] * 3), make_draw(*[SMALL] * 3)
    assert latency(evidence(other, baseline=accepted(three))).reason.endswith(f": {named}")


def test_several_draws_of_one_run_are_no_draw_to_replay():
    for draws_of in ((OTHER, None), (OTHER, make_draw(SMALL, SMALL, BIG))):
        mixed = [of_draw(draw, SLOW)[0] for draw in draws_of]
        assert compared.to_replay(replace(evidence(), candidate=mixed)) is None
        reason = latency(replace(evidence(), candidate=mixed)).reason
        assert reason.endswith("the compiler's draw is unknown: several draws")


def test_a_redraw_of_several_draws_names_no_kernels():
    mixed = [of_draw(draw, SLOW)[0] for draw in (OTHER, make_draw(SMALL, SMALL, BIG))]
    found = latency(replace(evidence(OTHER, *of_draw(ACCEPTED, FAST)), candidate=mixed))
    assert found.status is Status.REDRAWN
    assert found.reason.endswith("with its choices of the baseline")


def test_a_redraw_without_a_ratio_says_none():
    drawn = Verdict(Status.SUSPECT, "latency", "", against=PINNED)
    (found,) = compared.settled(evidence(), [drawn], [replace(drawn, status=Status.OK)])
    assert found.reason.startswith(
        "drawn anew: as the compiler chose now, with its choices of the baseline; "
    )


@pytest.mark.parametrize(
    ("ratio", "tolerance", "has_moved"),
    [
        (0.985, 0.01, True),
        (0.995, 0.01, False),
        (0.99, None, True),
        (0.5, 1.0, False),
        (None, 0.01, False),
    ],
)
def test_a_time_that_looks_faster_has_moved(ratio, tolerance, has_moved):
    verdict = Verdict(Status.OK, "latency", "", ratio=ratio, tolerance=tolerance)
    assert compared._has_moved(verdict) is has_moved


def test_an_unfaithful_replay_names_what_it_chose():
    for chosen, words in (
        (make_draw(SMALL, SMALL, BIG), "triton_poi_fused_0 {0}; triton_poi_fused_1 {0}"),
        (make_draw(BIG, BIG), "other kernels"),
    ):
        case = evidence(OTHER, *of_draw(chosen, SLOW))
        expected = words.format("XBLOCK 1024 -> 512, num_warps 4 -> 8")
        assert latency(case).reason.endswith(f"could not be replayed: {expected}")


def test_a_replayed_verdict_says_what_it_was_against():
    nights = of_draw(OTHER, *[0.0] * 5)
    verdicts = judge({CASE_ID: evidence(OTHER, *of_draw(ACCEPTED, *[SLOW] * 5), rolling=nights)})
    found = {v.against for v in verdicts[CASE_ID] if v.metric == "latency"}
    assert found == {PINNED, ROLLING}


# ---- a run --------------------------------------------------------------------------------

CASE = make_case(id="resnet50-b64-fp16-reduce-overhead-infer")
TEN, SLOWER = [0.01] * 20, [0.0103] * 20
REPLAYED_CASE = f"{CASE.id} replayed"


@pytest.fixture(params=[True, False], ids=["at once", "last"])
def judged(request, tmp_path, monkeypatch):
    """Return what runs a suite of one case by a script, and gives its record and the log.

    As pytest does, which has a case replayed at once, and as commands do.
    """

    def run(script, *, drawn=OTHER, replay=None, **options: Any) -> tuple[Record, list[str]]:
        accept(tmp_path / "baselines", DEVICE, CASE.id, process={"draw": ACCEPTED})
        workers = Contexts(script, DEVICE)
        workers.drawn = {CASE.id: drawn} | ({} if replay is None else {REPLAYED_CASE: replay})
        hold = functools.partial(
            HeldDevice,
            start=lambda _side, _device: workers,
            watch=lambda _device: Watch(),
            lock_of=lambda device: DeviceLock(device, tmp_path / "locks"),
        )
        monkeypatch.setattr("bench_lib.engine.engine.HeldDevice", hold)
        folders = {"history": tmp_path / "history", "baselines": tmp_path / "baselines"}
        settings = Settings(**folders, command="ops", **options)
        settings = replace(settings, say=run.said.append)
        with engine.opened(DEVICE, settings) as opened:
            outcome = opened.attempt(CASE)
            opened.note(outcome)
            if request.param and (replayed := opened.replay(outcome)) is not None:
                opened.note(replayed)
            opened.conclude()
            record = opened.suite.records[CASE.id]
        measured = [line.partition(" ")[2] for line in workers.log if f" {CASE.id}" in line]
        return record, measured

    run.said = []
    return run


def test_a_slower_draw_is_replayed_once_and_passes(judged, tmp_path):
    record, measured = judged({CASE.id: [SLOWER], REPLAYED_CASE: [TEN]})
    assert record.status is Status.REDRAWN
    assert not fails(record, strict=True, today=TODAY)
    assert measured == [CASE.id, REPLAYED_CASE, f"profiles {CASE.id}"]
    kept = the_run(tmp_path).records[CASE.id]
    assert [(a.replays, a.measurement.draw) for a in kept.attempts] == [
        (False, OTHER),
        (True, ACCEPTED),
    ]
    assert kept.status is Status.REDRAWN


def test_slower_software_is_found_whatever_was_drawn(judged):
    record, measured = judged({CASE.id: [SLOWER], REPLAYED_CASE: [SLOWER]})
    assert record.status is Status.REGRESSED
    assert measured[:6] == [CASE.id, *[REPLAYED_CASE] * 5]


def test_a_run_of_many_processes_replays_as_often_as_any(judged):
    slower = {CASE.id: [SLOWER], REPLAYED_CASE: [SLOWER]}
    record, measured = judged(slower, processes=6)
    assert record.status is Status.REGRESSED
    assert measured[:11] == [*[CASE.id] * 6, *[REPLAYED_CASE] * 5]
    assert len(measured) == 12


def test_where_nobody_looks_again_nothing_is_replayed(judged):
    record, measured = judged({CASE.id: [SLOWER]}, planned=1)
    assert record.status is Status.SUSPECT
    assert measured == [CASE.id]


def test_a_case_that_is_redrawn_for_long_is_said_to_need_another_baseline(judged):
    def night(drawn: Draw = OTHER) -> Record:
        judged.said.clear()
        script = {CASE.id: [SLOWER if drawn is OTHER else TEN], REPLAYED_CASE: [TEN]}
        return judged(script, drawn=drawn)[0]

    assert night().status is Status.REDRAWN
    assert night(ACCEPTED).status is Status.OK
    for _ in range(STALE - 1):
        record = night()
        assert "in a row" not in record.verdicts[0].reason
        assert not any("baseline accept" in line for line in judged.said)
    record = night()
    assert record.status is Status.REDRAWN
    assert f"REDRAWN in {STALE} runs in a row; accept one" in record.verdicts[0].reason
    (said,) = (line for line in judged.said if "baseline accept" in line)
    assert f"drawn anew for {CASE.id}; bench-lib baseline accept --run " in said


def test_draws_that_are_accepted_one_after_the_other_add_up():
    step = math.log(1.006)
    old = replace(accepted(), began={"latency": math.exp(TEN_MS[1])})
    record = Record(make_case(id=CASE_ID), None, status=Status.REDRAWN)

    def change(slower: float) -> BaselineChange:
        seen = make_measurement(case_id=CASE_ID, iteration_s=[0.01 * math.exp(slower)] * 20)
        attempt = make_attempt(case_id=CASE_ID, measurement=seen)
        of_case = replace(record, attempts=[attempt])
        (found,) = acceptance.propose(
            BaselineFile(Path("none"), "mi300x", {CASE_ID: old}),
            {"run": [of_case]},
            DEVICE,
            old.accepted,
        )
        return found

    first = change(step)
    assert first.against is None
    old = first.new
    assert "have crept" in change(2 * step).against


@pytest.mark.parametrize("replays", [0, 1])
def test_a_replay_is_a_second_look(judged, replays):
    record, log = judged(
        {CASE.id: [TEN], REPLAYED_CASE: [TEN]}, processes=2, planned=2, replays=replays
    )
    assert log == [*[CASE.id] * 2, *[REPLAYED_CASE] * replays]
    assert record.status is Status.OK


@pytest.mark.parametrize(
    ("drawn", "why"),
    [
        (ACCEPTED, "the compiler chose as in the baseline"),
        (UNKNOWN, "the compiler's draw is unknown: no kernel is Triton's"),
    ],
)
def test_without_another_draw_nothing_is_replayed(judged, drawn, why):
    record, measured = judged({CASE.id: [SLOWER]}, drawn=drawn)
    assert record.status is Status.REGRESSED
    assert measured[:6] == [CASE.id] * 6
    assert why in record.verdicts[0].reason


@pytest.mark.parametrize(
    ("answer", "replay", "why"),
    [
        (make_fault(), None, "out of memory in first step: tried to allocate 2.00 GiB"),
        ("no table", None, "skipped: no table"),
        (TEN, OTHER, "triton_poi_fused_1 XBLOCK 1024 -> 512, num_warps 4 -> 8"),
    ],
    ids=["fault", "skip", "chose otherwise"],
)
def test_a_replay_that_fails_is_tried_once_and_excuses_nothing(judged, answer, replay, why):
    record, measured = judged({CASE.id: [SLOWER], REPLAYED_CASE: [answer]}, replay=replay)
    assert record.status is Status.REGRESSED
    assert measured[:6] == [CASE.id, REPLAYED_CASE, *[CASE.id] * 4]
    assert f"the baseline's choices could not be replayed: {why}" in record.verdicts[0].reason


@pytest.mark.parametrize("ending", [make_fault(), "no table"], ids=["fault", "skip"])
def test_a_case_that_a_later_process_cannot_measure_is_not_replayed(judged, ending):
    script = {CASE.id: [SLOWER, ending], REPLAYED_CASE: [TEN]}
    record, measured = judged(script, processes=2)
    assert record.status is (Status.SKIPPED if ending == "no table" else Status.ERROR)
    assert measured == [CASE.id] * 2


def test_a_draw_that_is_as_fast_is_replayed_once(judged):
    record, measured = judged({CASE.id: [TEN], REPLAYED_CASE: [TEN]})
    assert record.status is Status.OK
    assert measured == [CASE.id, REPLAYED_CASE]


@pytest.mark.parametrize("fields", [{"cold": True}, {"ranks": 2}], ids=["cold", "two ranks"])
def test_what_draws_in_each_process_is_not_replayed(tmp_path, fields):
    case = replace(CASE, launch=replace(CASE.launch, **fields))
    accept(tmp_path, DEVICE, case.id, process={"draw": ACCEPTED})
    with contextlib.closing(Suite(tmp_path / "history", Baselines(tmp_path), DEVICE)) as suite:
        seen = make_measurement(case_id=case.id, iteration_s=SLOWER, draw=OTHER)
        attempt = make_attempt(case_id=case.id, measurement=seen)
        suite.note(Outcome(case, [attempt], make_environment(), DEVICE), None)
        (record,) = suite.suspicious()
        plain = replace(record, case=CASE)
        assert suite.to_replay(record) is None
        suite.records[case.id] = plain
        assert suite.to_replay(plain) == ACCEPTED
