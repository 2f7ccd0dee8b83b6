"""Builders of the project's types for tests: plain functions whose keywords override.

A test names only what it is about; everything else has a value that draws no remark from
any check.  Times are exact binary fractions where that keeps expectations exact.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_lib.model import (
    Accepted,
    Attempt,
    Baseline,
    Case,
    Device,
    Environment,
    Fault,
    Hardware,
    Limits,
    Measurement,
    ProcessSummary,
    Record,
    Status,
    Telemetry,
    Verdict,
)
from bench_lib.storage import baselines, history
from bench_lib.storage.history import Writer

TIME = "2026-01-02T03:04:05Z"
UUID = "GPU-0123"
ENVIRONMENT = "e0e0e0e0"
CASE_ID = "resnet18-b4-fp32-eager-infer"
TEN_MS = (-4.6062, -4.6052, -4.6047, -4.6057, -4.6042)
"""Logarithms of the medians, in seconds, of five processes that agree within 0.2%."""


def make_case(**fields: Any) -> Case:
    return replace(
        Case(
            id=CASE_ID,
            workload="network",
            params={
                "network": "resnet18",
                "batch_size": 4,
                "precision": "fp32",
                "memory_format": "nchw",
                "compile_mode": "eager",
                "task": "infer",
            },
        ),
        **fields,
    )


def cold(case: Case) -> Case:
    """Return a case as the matrix has it with cold caches."""
    return replace(case, id=f"{case.id}-cold", launch=replace(case.launch, cold=True))


def make_hardware(**fields: Any) -> Hardware:
    """Return one Instinct GPU, fully described."""
    return replace(
        Hardware(
            vendor="amd",
            name="AMD Instinct MI300X",
            key="mi300x",
            arch="gfx942",
            pci_device_id="74a1",
            bdf="0000:0c:00.0",
            uuid=UUID,
            compute_units=304,
            memory_bytes=192 * 2**30,
            compute_partition="SPX",
            memory_partition="NPS1",
            power_cap_w=750.0,
            peak_tflops={"fp16": 1307.4, "fp32": 163.4},
            peak_gb_per_s=5300.0,
        ),
        **fields,
    )


def make_hardware_cpu() -> Hardware:
    """Return this machine as one without GPUs."""
    return make_hardware(
        vendor="cpu",
        name="cpu",
        key="cpu-here",
        arch=None,
        uuid=None,
        bdf=None,
        memory_bytes=None,
        compute_units=None,  # so that nobody says how busy the other workers keep them
    )


def device_of(hardware: Hardware) -> Device:
    """Return what a context says of this device."""
    return Device(
        type="cpu" if hardware.vendor == "cpu" else "cuda",
        name=hardware.name,
        arch=hardware.arch,
        compute_units=hardware.compute_units,
        memory_bytes=hardware.memory_bytes,
        uuid=hardware.uuid,
        bdf=hardware.bdf,
    )


def make_environment(**fields: Any) -> Environment:
    """Return a ROCm host's software."""
    return replace(
        Environment(
            python="3.11.7",
            host="node-1",
            torch="2.9.0+rocm7.0",
            torchvision="0.24.0",
            hip="7.0.1",
            rocm="7.0.1",
            commit="c0ffee0",
            dirty=False,
        ),
        **fields,
    )


def make_measurement(**fields: Any) -> Measurement:
    """Return twenty steady iterations of 1/128 s, four images each.

    Other iterations bring their own wall clock and window.
    """
    samples: Sequence[float] = fields.get("iteration_s", [1 / 128] * 20)
    return replace(
        Measurement(
            case_id=CASE_ID,
            context_id="context-0",
            device_uuid=UUID,
            iteration_s=list(samples),
            window_s=(100.0, 100.0 + sum(samples)),
            wall_s=sum(samples),
            warmup_s=0.5,
            warmup_iterations=64,
            steady=True,
            first_step_s=0.25,
            enqueue_s=0.001,
            host_bound=False,
            items_per_step=4,
            item="img",
        ),
        **fields,
    )


def make_telemetry(**fields: Any) -> Telemetry:
    """Return a busy device that nothing slows down."""
    return replace(
        Telemetry(
            source="sysfs",
            samples=10,
            utilization=0.99,
            clock_mhz=2100.0,
            power_w=600.0,
            temperature_c=60.0,
        ),
        **fields,
    )


def make_fault(**fields: Any) -> Fault:
    """Return an out-of-memory in the first step."""
    return replace(
        Fault("out of memory", "tried to allocate 2.00 GiB", "first step", "the last words\n"),
        **fields,
    )


def make_attempt(**fields: Any) -> Attempt:
    """Return an accepted measurement, or what a fault, a skip or a discard leaves of it."""
    refused = {"fault", "skipped", "discarded"} & fields.keys()
    return replace(
        Attempt(
            case_id=CASE_ID,
            process=0,
            time=TIME,
            hardware_key="mi300x",
            device_uuid=UUID,
            environment=ENVIRONMENT,
            measurement=None if refused else make_measurement(),
            accepted=not refused,
        ),
        **fields,
    )


def make_verdict(**fields: Any) -> Verdict:
    """Return an OK latency."""
    return replace(
        Verdict(Status.OK, "latency", "0.1% slower than 5 baseline processes", ratio=1.001),
        **fields,
    )


def make_record(**fields: Any) -> Record:
    """Return one case with one accepted attempt, not judged."""
    return replace(Record(make_case(), attempts=[make_attempt()]), **fields)


VALUES: dict[str, tuple[str, Callable[[float], float]]] = {
    "log_median": ("latency", math.exp),
    "log_throughput": ("throughput", math.exp),
    "log_device": ("device", math.exp),
    "peak_memory_bytes": ("memory", float),
    "compile_s": ("compile_time", float),
    "first_step_s": ("first_step", float),
    "spread": ("stability", float),
    "finite": ("finite", float),
    "cosine": ("cosine", lambda cosine: 1 - cosine),
    "loss_error": ("loss", float),
    "grad_norm_error": ("gradients", float),
    "energy": ("energy", float),
}
"""Values of metrics by what they are measured as."""
STATES = {"device_source": "device", "compile_cache": "compile_time"}


def make_process(**fields: Any) -> ProcessSummary:
    """Return one process of a median of one second, ln = 0; fields are also VALUES and STATES."""
    told = {"log_median": 0.0, "spread": 0.01} | fields
    values = {
        metric: read(told[name])
        for name, (metric, read) in VALUES.items()
        if told.get(name) is not None
    }
    states = {STATES[name]: told[name] for name in STATES if told.get(name) is not None}
    process = ProcessSummary(
        values=values,
        states=states,
        n=20,
        device_uuid=UUID,
        environment=ENVIRONMENT,
        time=TIME,
    )
    own = {k: v for k, v in fields.items() if k not in VALUES and k not in STATES}
    return replace(process, **own)


def make_processes(log_medians: Iterable[float], **fields: Any) -> list[ProcessSummary]:
    """Return a process for each logarithm of a median time."""
    return [make_process(log_median=value, **fields) for value in log_medians]


def make_baseline(log_medians: Iterable[float] = (0.0,) * 5, **fields: Any) -> Baseline:
    """Return an accepted baseline of a process for each logarithm of a median time."""
    return replace(
        Baseline(
            CASE_ID,
            make_processes(log_medians),
            Accepted("0a0a0a0a", "first values", "2026-01-01T00:00:00Z", "somebody"),
            Limits(),
        ),
        **fields,
    )


def write_run(
    folder: Path,
    records: Iterable[Record] = (),
    *,
    hardware: Hardware | None = None,
    environment: Environment | None = None,
    now: str | None = None,
    end: bool = True,
    packed: bool = False,
) -> Path:
    """Write a run as a session does, attempts first and then verdicts; returns its file.

    That is compressed only where it is to be ``packed``, so that tests can change its lines.
    """
    hardware = hardware or make_hardware()
    writer = Writer(folder, hardware.key, now=now)
    reference = writer.environment(environment or make_environment(), hardware)
    records = list(records)
    for record in records:
        for attempt in record.attempts:
            writer.attempt(record.case, record.nodeid, replace(attempt, environment=reference))
    for record in records:
        if record.kernels is not None:
            writer.kernels(record.case.id, record.kernels)
        if record.status is not None:
            writer.verdict(record)
    if end:
        writer.end({}, 0)
    writer.close()
    if packed or not end:
        return writer.path
    path = writer.path.with_suffix("")
    path.write_bytes(gzip.decompress(writer.path.read_bytes()))
    writer.path.unlink()
    return path


def night(day: int) -> str:
    """Return when the run of a January night began."""
    return f"2026-01-{day:02d}T02:00:00Z"


def run_id(path: Path) -> str:
    return path.name.partition(".")[0].rpartition("_")[2]


def the_run(folder: Path) -> history.Run:
    (path,) = history.files(folder / "history")
    return history.read(path)


def accept(
    folder: Path,
    hardware: Hardware,
    *case_ids: str,
    process: Any = None,
    environment: Environment | None = None,
    **fields: Any,
):
    """Write baselines of ten milliseconds as accepting would.

    ``process`` is what each of their processes has besides, as a dictionary.
    """
    about = {"device_uuid": hardware.uuid, **(process or {})}
    processes = [
        make_process(log_median=x, worker=f"0a0a0a0a/{i}", **about) for i, x in enumerate(TEN_MS)
    ]
    changes = [
        baselines.BaselineChange(
            id_, None, make_baseline(case_id=id_, processes=processes, **fields)
        )
        for id_ in case_ids
    ]
    file = baselines.load(folder, hardware.key)
    baselines.write(file, changes, hardware, {ENVIRONMENT: environment or make_environment()})
