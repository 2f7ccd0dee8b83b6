"""Builders of nights for tests of what people read: each entry is one that a page has to show.

All of it is invented: no figure was measured on the hardware that it names.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import builders

from bench_lib.model import (
    Accepted,
    Baseline,
    Case,
    Fault,
    Finding,
    Hardware,
    Kernel,
    KernelTable,
    Launch,
    Quarantine,
    Record,
    Status,
    Verdict,
)
from bench_lib.report.night import Moved, Night, NightCase
from bench_lib.storage.archive import Point, RunLine
from bench_lib.verdict.statistics.levels import Change

NIGHT = dt.datetime(2026, 11, 20, 2, 0, 0, tzinfo=dt.timezone.utc)
"""When the night began."""
RUN = "0a1b2c3d"
ENVIRONMENT = "e1e1e1e1"
OLD_ENVIRONMENT = "e0e0e0e0"
UPGRADE = ["torch 2.9.0+rocm7.0 -> 2.10.0+rocm7.1", "rocm 7.0.1 -> 7.1.0"]
AFTER = builders.make_environment(torch="2.10.0+rocm7.1", rocm="7.1.0", hip="7.1.0")
"""What the upgrade made of the environment."""
INTENSITY = {"resnet50": 66.0, "vit_b_16": 182.0, "convnext_tiny": 41.0}
"""Invented FLOPs for each byte."""
NASTY = "<script>alert(1)</script>"
"""A name that has to stay text."""

MI300X = builders.make_hardware()
MI250X = builders.make_hardware(
    name="AMD Instinct MI250X",
    key="mi250x",
    arch="gfx90a",
    pci_device_id="740c",
    uuid="GPU-0250",
    compute_units=110,
    memory_bytes=64 * 2**30,
    compute_partition=None,
    memory_partition=None,
    power_cap_w=560.0,
    peak_tflops={"fp16": 191.5, "bf16": 191.5, "fp32": 23.9},
    peak_gb_per_s=1638.0,
)


@functools.cache
def stamp(nights_ago: int = 0, *, minutes: int = 0) -> str:
    """Return when a run of some nights ago began."""
    when = NIGHT - dt.timedelta(days=nights_ago) + dt.timedelta(minutes=minutes)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def make_case(
    network: str = "resnet50",
    batch_size: int = 64,
    precision: str = "fp16",
    compile_mode: str = "eager",
    task: str = "infer",
    *,
    ranks: int = 1,
    **fields: Any,
) -> Case:
    name = f"{network}-b{batch_size}-{precision}-{compile_mode}-{task}"
    return replace(
        Case(
            id=name if ranks == 1 else f"{name}-x{ranks}",
            workload="network",
            params={
                "network": network,
                "batch_size": batch_size,
                "precision": precision,
                "memory_format": "nchw",
                "compile_mode": compile_mode,
                "task": task,
            },
            tier="gate",
            launch=Launch(ranks=ranks),
        ),
        **fields,
    )


def make_run(**fields: Any) -> RunLine:
    """Return a finished run of this night; what no page looks at is 0."""
    about = {
        "run_id": RUN,
        "key": "mi300x",
        "started": stamp(),
        "ended": stamp(minutes=50),
        "exit_status": 0,
        "cases": 1,
        "counts": {"OK": 1},
        "path": f"history/20261120T020000Z_mi300x_{RUN}.jsonl",
        "name": f"20261120T020000Z_mi300x_{RUN}.jsonl",
    }
    unseen = {item.name: 0 for item in dataclasses.fields(RunLine)}
    return RunLine(**{**unseen, **about, **fields})


USUAL_POINT = {
    "run_id": RUN,
    "time": stamp(),
    "case_id": make_case().id,
    "key": "mi300x",
    "device_uuid": builders.UUID,
    "log_median": math.log(0.008),
    "status": Status.OK,
    "environment": ENVIRONMENT,
}


def make_point(**fields: Any) -> Point:
    """Return this night's point of a step of 8 ms."""
    return Point(**{**USUAL_POINT, **fields})


def make_points(
    count: int = 30,
    median_s: float = 0.008,
    *,
    steps: Sequence[tuple[int, float]] = (),
    noise: float = 0.002,
    seed: int = 1,
    case: Case | None = None,
    key: str = "mi300x",
    last: Status | None = Status.OK,
) -> list[Point]:
    """Return a point of each of ``count`` nights, the last one this night's.

    From each step's position on, times are its factor as long, and so is the environment another.
    """
    draw = random.Random(seed)
    case_id = (case or make_case()).id
    points = []
    for position in range(count):
        passed = [factor for at, factor in steps if position >= at]
        time_s = median_s * math.prod(passed) * math.exp(draw.gauss(0, noise))
        ago = count - 1 - position
        points.append(
            make_point(
                run_id=RUN if ago == 0 else f"{ago:08x}",
                time=stamp(ago),
                case_id=case_id,
                key=key,
                log_median=math.log(time_s),
                status=last if ago == 0 else Status.OK,
                environment=ENVIRONMENT if passed or not steps else OLD_ENVIRONMENT,
            )
        )
    return points


def make_moved(points: Sequence[Point], at: int, ratio: float = 1.05, **fields: Any) -> Moved:
    change = Change(at, 20.0, math.log(ratio), 0.0025, 58.0)
    return replace(Moved(change, points[at].run_id, points[at].time, list(UPGRADE)), **fields)


def make_baseline(median_s: float = 0.008, **fields: Any) -> Baseline:
    """Return five processes about a median, accepted 20 nights ago."""
    offsets = (-0.002, -0.001, 0.0, 0.001, 0.002)
    times = [math.log(median_s) + offset for offset in offsets]
    return replace(
        Baseline(
            case_id=make_case().id,
            processes=builders.make_processes(times, time=stamp(20), environment=OLD_ENVIRONMENT),
            accepted=Accepted("00000014", "after the upgrade", stamp(20), "somebody"),
        ),
        **fields,
    )


def make_kernels(gemm_s: float = 0.004, **fields: Any) -> KernelTable:
    """Return a step of three kernels."""
    return replace(
        KernelTable(
            source="torch.profiler",
            steps=5,
            kernels=[
                Kernel("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1", 53, gemm_s),
                Kernel("miopenSp3AsmConv_v30_3_1_gfx94x_fp16_dot2", 16, 0.0025),
                Kernel("batched_transpose_32x32_half", 20, 0.0008),
            ],
            busy_s=gemm_s + 0.0033,
        ),
        **fields,
    )


def make_entry(
    case: Case | None = None,
    *,
    status: Status | None = Status.OK,
    hardware: Hardware = MI300X,
    median_s: float = 0.008,
    ratio: float | None = 1.001,
    reason: str = "0.1% slower than 5 baseline processes",
    findings: Sequence[Finding] = (),
    points: Sequence[Point] | None = None,
    record: dict[str, Any] | None = None,
    **fields: Any,
) -> NightCase:
    """Return a case that was measured and judged, with 30 nights behind it."""
    case = case or make_case()
    batch = case.params.get("batch_size", 4)
    assert isinstance(batch, int)
    items = batch * case.launch.ranks
    network = str(case.params.get("network"))
    flops = {"vit_b_16": 3.5e10, "convnext_tiny": 8.9e9}.get(network, 8.2e9)
    measurement = builders.make_measurement(
        case_id=case.id,
        iteration_s=[median_s] * 20,
        device_uuid=hardware.uuid,
        items_per_step=items,
        peak_memory_bytes=2**30,
        flops_per_step=flops * items,
        traffic_bytes_per_step=flops / INTENSITY.get(network, 60) * items,
        least_bytes_per_step=10_000_000 * items,
    )
    attempt = builders.make_attempt(
        case_id=case.id,
        time=stamp(minutes=5),
        hardware_key=hardware.key,
        device_uuid=hardware.uuid,
        environment=ENVIRONMENT,
        measurement=measurement,
        telemetry=builders.make_telemetry(),
    )
    verdict = Verdict(
        status or Status.OK,
        "latency",
        reason,
        value=median_s,
        baseline=median_s / (ratio or 1),
        unit="s",
        ratio=ratio,
        interval=None if ratio is None else (ratio - 0.004, ratio + 0.004),
        tolerance=0.01,
        detectable_effect=0.013,
        findings=[*findings],
    )
    about: dict[str, Any] = {
        "nodeid": f"perf_tests/test_networks.py::test_network[{case.id}]",
        "attempts": [attempt],
        "status": status,
        "verdicts": [] if status is None else [verdict],
        **(record or {}),
    }
    known = make_points(case=case, key=hardware.key, median_s=median_s, last=status)
    return replace(
        NightCase(
            record=Record(case, **about),
            hardware=hardware,
            run_id=RUN,
            baseline=make_baseline(median_s / (ratio or 1), case_id=case.id),
            environment=AFTER,
            points=list(known if points is None else points),
        ),
        **fields,
    )


def regressed(case: Case | None = None, ratio: float = 1.08, **fields: Any) -> NightCase:
    """Return a case that got slower with an upgrade three nights ago, and the kernel to blame."""
    case = case or make_case(compile_mode="max-autotune")
    at = 27
    points = make_points(steps=[(at, ratio)], case=case, last=Status.REGRESSED)
    points[at:-1] = [replace(point, status=Status.SUSPECT) for point in points[at:-1]]
    blamed = f"; +{0.008 * (ratio - 1) * 1e6:.0f} us in kernels: matrix products 4 ms → 4.64 ms"
    entry = make_entry(
        case,
        status=Status.REGRESSED,
        median_s=0.008 * ratio,
        ratio=ratio,
        reason=f"{ratio - 1:.1%} slower than 5 baseline processes, beyond 1.0%{blamed}",
        points=points,
        moved=[make_moved(points, at, ratio)],
        record={
            "kernels": make_kernels(0.004 + 0.008 * (ratio - 1)),
            "changes": list(UPGRADE),
            "blamed": ["GEMM: MT128x128x32 → MT64x64x32"],
        },
    )
    return replace(entry, baseline=replace(entry.baseline, kernels=make_kernels()), **fields)


def improved(case: Case | None = None, **fields: Any) -> NightCase:
    return make_entry(
        case or make_case(precision="bf16"),
        status=Status.IMPROVED,
        ratio=0.95,
        reason="5.0% faster than 5 baseline processes",
        **fields,
    )


def error(case: Case | None = None, last_output: str | None = None, **fields: Any) -> NightCase:
    """Return a case that ended in a GPU's fault, with what its worker said last."""
    case = case or make_case("vit_b_16", precision="bf16", task="train")
    fault = Fault(
        kind="died",
        message="the worker was killed by signal 6",
        phase="warm-up",
        last_output=last_output
        or "Memory access fault by GPU node-1 (Agent handle: 0x1234) on address 0x7f0000000000.\n"
        f"Reason: Page not present or supervisor privilege. {NASTY}\n",
    )
    attempt = builders.make_attempt(case_id=case.id, fault=fault, environment=ENVIRONMENT)
    words = "died in warm-up: the worker was killed by signal 6"
    entry = make_entry(
        case,
        status=Status.ERROR,
        ratio=None,
        points=make_points(case=case)[:-1],
        record={"attempts": [attempt], "verdicts": [Verdict(Status.ERROR, "run", words)]},
    )
    return replace(entry, **fields)


def invalid(case: Case | None = None, **fields: Any) -> NightCase:
    """Return a case that was measured while the device was held back."""
    case = case or make_case("densenet121")
    words = "the device was held back (power cap) for 62% of the stretch"
    entry = make_entry(case, status=Status.INVALID, ratio=1.11, reason=words)
    attempt = replace(entry.record.attempts[0], accepted=False, discarded=words, invalid=True)
    points = make_points(case=case)[:-1]
    return replace(entry, record=replace(entry.record, attempts=[attempt]), points=points, **fields)


def no_baseline(case: Case | None = None, **fields: Any) -> NightCase:
    """Return a case that nobody has accepted yet, measured for the first time."""
    case = case or make_case("swin_t", 128)
    return make_entry(
        case,
        status=Status.NO_BASELINE,
        ratio=None,
        reason="no baseline; accept this run with bench-lib baseline accept",
        points=make_points(1, case=case, last=Status.NO_BASELINE),
        **{"baseline": None, **fields},
    )


def quarantined(case: Case | None = None, **fields: Any) -> NightCase:
    """Return a regression that is known and excused until a day to come."""
    held = Quarantine(
        "slow since driver 6.14, ticket 1234", dt.date(2026, 12, 31), stamp(10), "somebody"
    )
    entry = regressed(case or make_case("convnext_tiny", 128, "bf16"), 1.12)
    return replace(entry, record=replace(entry.record, quarantine=held), **fields)


def make_night(entries: Sequence[NightCase] | None = None, **fields: Any) -> Night:
    """Return a night with one entry of each kind, on one kind of hardware, failing first."""
    if entries is None:
        entries = [
            error(),
            regressed(),
            invalid(),
            quarantined(),
            no_baseline(),
            improved(),
            make_entry(make_case("resnet18", precision="fp32")),
            make_entry(make_case("mobilenet_v2"), status=Status.SUSPECT, ratio=1.03),
            make_entry(make_case("regnet_y_8gf"), status=Status.NOISY, ratio=1.02),
        ]
    return replace(
        Night(
            runs=[make_run(cases=len(entries))],
            entries=list(entries),
        ),
        **fields,
    )


def unfinished_night() -> Night:
    """Return a night whose second run, on other hardware, did not finish."""
    other = make_entry(make_case("resnet18"), hardware=MI250X, run_id="0d0d0d0d")
    torn = make_run(run_id="0d0d0d0d", key="mi250x", ended=None, exit_status=129)
    return make_night(
        [regressed(), make_entry(), other],
        runs=[make_run(cases=2), torn],
        left_out=["0d0d0d0d: line 7 is incomplete: the run was killed while writing it"],
        missing=["mi210"],
    )


def year_night() -> Night:
    """Return a night of one case with a year behind it, slower by 5% from day 300 on."""
    points = make_points(365, steps=[(300, 1.05)])
    return make_night([make_entry(points=points, moved=[make_moved(points, 300)])])


def empty_night() -> Night:
    return make_night([], runs=[], left_out=["no runs in history"])


def nasty_night() -> Night:
    """Return a night whose case is named like a script, as only a file can name it."""
    case = make_case(id=NASTY, params={"network": NASTY, "precision": "fp16"})
    return make_night([make_entry(case, median_s=0.004)])


def example_night() -> Night:
    """Return a night as a laboratory may have it: two kinds of hardware, 90 nights behind it."""
    cases = [
        make_case(network, batch, precision, mode)
        for network, batch in (("resnet50", 64), ("vit_b_16", 32), ("convnext_tiny", 128))
        for precision in ("fp32", "bf16", "fp16")
        for mode in ("eager", "default", "max-autotune")
    ]
    cases += [make_case("resnet50", batch, "fp16") for batch in (1, 4, 16, 256)]
    cases += [make_case("vit_b_16", batch, "fp16") for batch in (1, 4, 8, 128)]
    cases += [make_case("resnet50", 64, "bf16", task="train", ranks=n) for n in (1, 2, 4, 8)]
    cases += [make_case("vit_b_16", 32, "bf16", task="train", ranks=n) for n in (1, 2, 4, 8)]
    gpus = ((MI300X, RUN, 1.0), (MI250X, "0d0d0d0d", 2.7))
    entries = []
    for hardware, run_id, slower in gpus:
        for number, case in enumerate(cases):
            entry = _example(case, hardware, _example_time(case) * slower, number)
            entries.append(replace(entry, run_id=run_id))
    failing = [
        _example_error(),
        _example_regression(1.083, "max-autotune"),
        _example_regression(1.034, "default", "vit_b_16"),
    ]
    replaced = {(entry.record.case.id, entry.hardware.key) for entry in failing}
    rest = [e for e in entries if (e.record.case.id, e.hardware.key) not in replaced]
    runs = [
        make_run(cases=len(cases)),
        make_run(
            run_id="0d0d0d0d",
            key="mi250x",
            started=stamp(minutes=4),
            ended=stamp(minutes=71),
            cases=len(cases),
        ),
    ]
    return make_night(
        [*failing, *rest],
        runs=runs,
        left_out=[
            "mi250x: in the previous run, but not in this one: resnet50-b64-tf32-eager-infer"
        ],
        environments={
            ENVIRONMENT: AFTER,
            OLD_ENVIRONMENT: builders.make_environment(),
        },
    )


def _example_time(case: Case) -> float:
    """Return a time that makes the invented night look like one."""
    batch = int(case.params["batch_size"])
    each = {"resnet50": 6.5e-5, "vit_b_16": 1.9e-4, "convnext_tiny": 7e-5}[
        str(case.params["network"])
    ]
    precision = {"fp32": 3.4, "bf16": 1.04, "fp16": 1.0}[str(case.params["precision"])]
    mode = {"eager": 1.0, "default": 0.84, "max-autotune": 0.76}[str(case.params["compile_mode"])]
    task = 3.1 if case.params["task"] == "train" else 1.0
    ranks = 1 + 0.022 * (case.launch.ranks - 1)
    return (4e-4 + each * batch * precision * mode) * task * ranks


def _example(case: Case, hardware: Hardware, time_s: float, number: int) -> NightCase:
    seed = number + (1000 if hardware is MI250X else 0)
    noise = random.Random(seed).uniform(0.0008, 0.003)
    steps = {5: [(52, 0.94)], 12: [(61, 0.955)], 20: [(30, 1.02), (66, 0.97)]}.get(seed % 29, [])
    status = Status.OK
    if number == 17:
        status = Status.IMPROVED
        steps = [(84, 0.957)]
    if number == 23 and hardware is MI250X:
        status = Status.NOISY
        noise = 0.02
    points = make_points(
        90,
        time_s / math.prod(f for _, f in steps),
        steps=steps,
        noise=noise,
        seed=seed,
        case=case,
        key=hardware.key,
        last=status,
    )
    points = _upgraded(points)
    now = math.exp(points[-1].log_median)
    held = math.exp(sum(p.log_median for p in points[68:73]) / 5)
    return make_entry(
        case,
        status=status,
        hardware=hardware,
        median_s=now,
        ratio=now / held,
        reason=f"{now / held - 1:+.1%} against 5 baseline processes",
        points=points,
        moved=[
            make_moved(points, at, factor, environment=UPGRADE if at == 84 else [])
            for at, factor in steps
        ],
    )


def _example_regression(ratio: float, mode: str, network: str = "resnet50") -> NightCase:
    case = make_case(network, 64 if network == "resnet50" else 32, "fp16", mode)
    time_s = _example_time(case)
    points = make_points(
        90, time_s, steps=[(84, ratio)], noise=0.0014, case=case, last=Status.REGRESSED
    )
    points[84:-1] = [replace(p, status=Status.REGRESSED) for p in points[84:-1]]
    points[41] = replace(
        points[41], status=Status.INVALID, log_median=points[41].log_median + 0.045
    )
    more = time_s * (ratio - 1)
    before = [
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1", 53, 0.46),
        ("igemm_fwd_gtcx3_nhwc_fp16_bx0_ex0_bt256x128x32", 37, 0.31),
        ("triton_poi_fused_add_relu_12", 16, 0.11),
        ("batched_transpose_32x32_half", 20, 0.04),
        ("MIOpenBatchNormFwdInferSpatialEst", 5, 0.02),
    ]
    table = KernelTable("torch.profiler", 5, [Kernel(n, c, s * time_s) for n, c, s in before])
    after = [
        Kernel("Cijk_Ailk_Bljk_HHS_BH_MT64x64x32_MI16x16x16x1", 53, 0.46 * time_s + 0.93 * more),
        *[
            replace(k, total_s=k.total_s + share * more)
            for k, share in zip(table.kernels[1:], (0.09, -0.04, 0.02, 0.0), strict=True)
        ],
    ]
    entry = make_entry(
        case,
        status=Status.REGRESSED,
        median_s=math.exp(points[-1].log_median),
        ratio=ratio,
        reason=f"{ratio - 1:.1%} slower than 5 baseline processes, confirmed in 3 fresh ones",
        points=points,
        moved=[make_moved(points, 84, ratio)],
        record={
            "blamed": ["GEMM: MT128x128x32 → MT64x64x32"],
            "kernels": replace(table, kernels=after),
            "changes": list(UPGRADE),
        },
    )
    return replace(entry, baseline=replace(entry.baseline, kernels=table))


def _example_error() -> NightCase:
    case = make_case("convnext_tiny", 128, "fp16", "max-autotune")
    time_s = _example_time(case)
    last_output = (
        "MIOpen(HIP): Warning [IsEnoughWorkspace] Solver <GemmFwdRest>, workspace required: 1204\n"
        "Memory access fault by GPU node-1 (Agent handle: 0x1234) on address 0x7f0000000000.\n"
        "Reason: Page not present or supervisor privilege.\n"
    )
    return replace(
        error(case, last_output=last_output),
        environment=AFTER,
        points=_upgraded(make_points(90, time_s, case=case, noise=0.0016))[:-1],
        baseline=make_baseline(time_s, case_id=case.id),
    )


def _upgraded(points: Sequence[Point]) -> list[Point]:
    """Return points of 90 nights, of which the last six saw the upgrade."""
    return [
        replace(point, environment=ENVIRONMENT if at >= 84 else OLD_ENVIRONMENT)
        for at, point in enumerate(points)
    ]
