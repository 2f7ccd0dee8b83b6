"""Make-believe Chrome traces of torch's profiler, as CUDA and as ROCm have them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def kernel(name: str, ts: float, dur: float, correlation: int = 0, **args: Any) -> Event:
    """Return a kernel on the device; times in microseconds."""
    return on_device("kernel", name, ts, dur, correlation, **args)


def copy(direction: str, ts: float, dur: float, correlation: int = 0, **args: Any) -> Event:
    """Return a copy, ``HtoD (Pinned -> Device)`` for example."""
    return on_device("gpu_memcpy", f"Memcpy {direction}", ts, dur, correlation, **args)


def on_device(
    cat: str,
    name: str,
    ts: float,
    dur: float,
    correlation: int = 0,
    *,
    stream: int = 7,
    **args: Any,
) -> Event:
    """Return anything that a device did."""
    about = {"External id": correlation, "device": 0, "stream": stream, "correlation": correlation}
    return span(cat, name, ts, dur, pid=0, tid=stream, args={**about, **args})


def launch(ts: float, dur: float, correlation: int, name: str = "cudaLaunchKernel") -> Event:
    """Return the host's call that put something onto the device."""
    args = {"External id": correlation, "cbid": 211, "correlation": correlation}
    return span("cuda_runtime", name, ts, dur, args=args)


def wait(ts: float, dur: float, name: str = "cudaDeviceSynchronize") -> Event:
    """Return a call in which the host waits for the device."""
    return span("cuda_runtime", name, ts, dur, args={"cbid": 165, "correlation": 999})


def operation(name: str, ts: float, dur: float, external: int = 0, tid: int = 1) -> Event:
    """Return one of torch's operations; ``external`` names it among launches."""
    args = {"External id": external, "Input Dims": [[2, 3], []], "Concrete Inputs": ["", "1"]}
    return span("cpu_op", name, ts, dur, tid=tid, args=args)


def iteration(i: int, ts: float, dur: float) -> Event:
    """Return the range of a step on the host."""
    return span("user_annotation", f"iteration {i}", ts, dur)


def iteration_on_device(i: int, ts: float, dur: float) -> Event:
    """Return the range of a step on the device."""
    return span("gpu_user_annotation", f"iteration {i}", ts, dur, pid=0, tid=7)


def span(cat: str, name: str, ts: float, dur: float, **about: Any) -> Event:
    """Return any event with a begin and a duration."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, **about}


def on_rocm(events: list[Event]) -> list[Event]:
    """Return the events as ROCm's tracer has them: other calls, devices counted from 2."""
    told = []
    for event in events:
        args = dict(event.get("args", {}))
        if "device" in args:
            args["device"] += 2
        name = event["name"].replace("cuda", "hip")
        told.append({**event, "name": name, "args": args})
    return told


def write(folder: Path, events: list[Event], name: str = "trace.json") -> Path:
    """Write a trace with what is around its events, compressed where its name says so."""
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "Some GPU"}],
        "displayTimeUnit": "ms",
        "traceEvents": [
            {
                "name": "process_name",
                "ph": "M",
                "ts": 1.5,
                "pid": 1,
                "tid": 0,
                "args": {"name": "p"},
            },
            {"ph": "s", "id": 6, "pid": 1, "tid": 1, "ts": 2.5, "cat": "ac2g", "name": "ac2g"},
            {"name": "Iteration Start", "ph": "i", "s": "g", "pid": "Traces", "tid": "T", "ts": 1},
            {"ph": "X", "cat": "Trace", "ts": 1, "dur": 9, "pid": "Spans", "tid": "P", "name": "P"},
            *events,
        ],
        "traceName": "trace.json",
    }
    text = json.dumps(document).encode()
    path = folder / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path
