"""How long a year of nights takes to ask, and how much memory: JSON Lines, and Parquet.

    python benchmarks/history_size.py FOLDER [--layout keys|uuids] [--cases N] [--gpus N]
                                             [--nights N] [--repeats N] [--compacted-only]

Fills FOLDER, where it is empty, with invented nights: of every GPU a run with every case, each
case once, measured and judged.  The GPUs have a hardware key each (``keys``), or one key and
their own ids (``uuids``).  Then it asks, compacts, and asks again; every question is put by a
process of its own, whose time includes starting Python, and whose most memory is the kernel's
word.  Prints a table, and a line of JSON for each question.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from bench_lib.engine.suite import MOST_RUNS
from bench_lib.model import (
    SCHEMA,
    Attempt,
    Case,
    Environment,
    Hardware,
    Measurement,
    Numerics,
    Status,
    Telemetry,
    Verdict,
)
from bench_lib.storage.archive import Archive
from bench_lib.storage.archive.compaction import compact
from bench_lib.storage.history import reference

FIRST = dt.datetime(2025, 1, 1, 2, tzinfo=dt.timezone.utc)
ITERATIONS = 32
QUESTIONS = ("series", "nights", "year", "runs", "query")
"""One case on one hardware; every series of 90 days; every series; a line for each run; and a
case's series by ``bench-lib history query``."""


# ---- a year of nights -------------------------------------------------------------------


def cases(count: int) -> list[Case]:
    """Return cases with ids as long as real ones."""
    return [
        Case(
            f"network{n:03d}-b64-fp16-max-autotune-infer",
            "network",
            {
                "network": f"network{n:03d}",
                "batch_size": 64,
                "precision": "fp16",
                "memory_format": "nhwc",
                "compile_mode": "max-autotune",
                "task": "infer",
            },
            tier="nightly",
        )
        for n in range(count)
    ]


def fill(folder: Path, *, layout: str, count: int, gpus: int, nights: int) -> None:
    """Write every run's file."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    for night in range(nights):
        environment = Environment(
            "3.11.7", "node-1", torch=f"2.{9 + night // 120}.0+rocm7.0", hip="7.0.1", rocm="7.0.1"
        )
        for gpu in range(gpus):
            key = f"mi300x-{gpu:02d}" if layout == "keys" else "mi300x"
            hardware = Hardware("amd", "AMD Instinct MI300X", key, uuid=f"GPU-{gpu:016x}")
            began = FIRST + dt.timedelta(days=night, minutes=gpu)
            run = f"{night * gpus + gpu:08x}"
            name = f"{began:%Y%m%dT%H%M%SZ}_{key}_{run}.jsonl"
            lines = run_lines(
                cases(count),
                run,
                began,
                environment=environment,
                hardware=hardware,
                chance=chance,
            )
            (folder / name).write_bytes(b"".join(lines))


def run_lines(
    of: list[Case],
    run: str,
    began: dt.datetime,
    *,
    environment: Environment,
    hardware: Hardware,
    chance: np.random.Generator,
) -> Iterator[bytes]:
    """Yield the lines of one run."""
    encode = msgspec.json.Encoder().encode
    when = f"{began:%Y-%m-%dT%H:%M:%SZ}"
    ref = reference(environment)

    def line(kind: str, **body: object) -> bytes:
        return encode({"schema": SCHEMA, "kind": kind, "run": run, "time": when, **body}) + b"\n"

    yield line("environment", ref=ref, environment=environment, hardware=hardware)
    level = chance.normal(0, 0.002, len(of))
    noise = chance.normal(0, 0.01, (len(of), ITERATIONS))
    for number, case in enumerate(of):
        step_s = 0.002 * (1 + number % 40) * np.exp(level[number] + noise[number])
        attempt = attempt_at(case, [round(s, 9) for s in step_s.tolist()], when, hardware, ref)
        nodeid = f"perf_tests/test_networks.py::test_network[{case.id}]"
        yield line("attempt", case=case, nodeid=nodeid, attempt=attempt)
    for number, case in enumerate(of):
        ratio = 1 + float(level[number])
        verdicts = [
            Verdict(
                Status.OK,
                metric,
                f"{ratio - 1:+.1%} against 5 baseline processes",
                value=0.002 * ratio,
                baseline=0.002,
                unit="s",
                ratio=ratio,
                interval=(ratio - 0.004, ratio + 0.004),
                tolerance=0.01,
                detectable_effect=0.012,
            )
            for metric in ("latency", "throughput", "memory")
        ]
        yield line(
            "verdict",
            case_id=case.id,
            nodeid=f"perf_tests/test_networks.py::test_network[{case.id}]",
            status=Status.OK,
            verdicts=verdicts,
            changes=[],
            quarantine=None,
        )
    yield line("end", counts={"OK": len(of)}, exit_status=0, caches={})


def attempt_at(
    case: Case, samples: list[float], when: str, hardware: Hardware, ref: str
) -> Attempt:
    """Return an accepted attempt with everything that a real one has."""
    wall_s = sum(samples)
    return Attempt(
        case.id,
        0,
        when,
        hardware.key,
        hardware.uuid,
        ref,
        Measurement(
            case.id,
            "0a0a0a0a-context-0",
            hardware.uuid,
            samples,
            (100.0, 100.0 + wall_s),
            wall_s,
            0.5,
            64,
            steady=True,
            first_step_s=0.25,
            enqueue_s=0.001,
            host_bound=False,
            items_per_step=64,
            item="img",
            compile_s=12.5,
            compile_cache="cold",
            peak_memory_bytes=3 * 2**30,
            parameters=25_557_032,
            flops_per_step=5.2e11,
            least_bytes_per_step=10**8,
            numerics=Numerics(finite=True, max_abs_diff=0.01, cosine=0.99999, reference_batch=64),
            probe={"launch_us": 1.83, "launch_ratio": 1.01, "host_us": 270.1},
        ),
        telemetry=Telemetry("sysfs", 10, 0.99, 2100.0, 2090.0, 1300.0, 600.0, 60.0),
        accepted=True,
        took_s=10.7,
    )


# ---- questions --------------------------------------------------------------------------


def ask(folder: Path, question: str) -> int:
    """Put one question; returns how many values came back."""
    if question == "query":
        return ask_program(folder)
    with Archive(folder) as archive:
        newest = archive.runs()[-1]
        if question == "runs":
            return len(archive.runs())
        if question == "series":
            return len(archive.series("network100-b64-fp16-max-autotune-infer", newest.key))
        since = None
        if question == "nights":
            end = dt.datetime.fromisoformat(newest.started.rstrip("Z"))
            since = f"{end - dt.timedelta(days=90):%Y-%m-%dT%H:%M:%SZ}"
        return sum(len(points) for _, _, points in archive.all_series(since=since))


def ask_program(folder: Path) -> int:
    """Ask as somebody at a terminal does; returns how many lines were printed."""
    sql = (
        "SELECT started, median_s FROM points WHERE hardware_key IN ('mi300x', 'mi300x-03') "
        "AND case_id = 'network100-b64-fp16-max-autotune-infer' ORDER BY started"
    )
    words = [sys.executable, "-m", "bench_lib.cli", "history", "query", sql, "--csv"]
    done = subprocess.run(
        [*words, "--history", str(folder)], capture_output=True, text=True, check=True
    )
    return len(done.stdout.splitlines()) - 1


def child(folder: Path, question: str) -> None:
    """Put one question, or compact, and print what it took."""
    if question == "compact":
        answers = compact(folder, keep=MOST_RUNS).written
    else:
        answers = ask(folder, question)
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(
        json.dumps(
            {
                "answers": answers,
                "cpu_s": round(sum(u.ru_utime + u.ru_stime for u in usage), 3),
                "peak_mib": round(max(u.ru_maxrss for u in usage) / 1024, 1),
            }
        )
    )


def measured(folder: Path, question: str, repeats: int) -> dict[str, object]:
    """Return the medians of a question that is put several times."""
    seen = []
    for _ in range(repeats):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, __file__, str(folder), "--child", question],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        seen.append({**json.loads(done.stdout), "wall_s": round(time.perf_counter() - began, 3)})
    medians = {
        name: statistics.median(float(one[name]) for one in seen)
        for name in ("wall_s", "cpu_s", "peak_mib")
    }
    return {"question": question, "answers": seen[0]["answers"], **medians, "repeats": repeats}


def size_of(folder: Path) -> dict[str, object]:
    """Return how many files there are of each kind, and how large they are together."""
    kinds: dict[str, list[int]] = {"jsonl": [], "parquet": []}
    for path in folder.iterdir():
        if path.suffix[1:] in kinds:
            kinds[path.suffix[1:]].append(path.stat().st_size)
    return {k: {"files": len(s), "mb": round(sum(s) / 1e6, 1)} for k, s in kinds.items()}


def show(state: str, folder: Path, repeats: int) -> None:
    """Ask everything and print it."""
    print(json.dumps({"state": state, **size_of(folder)}))
    for question in QUESTIONS:
        found = measured(folder, question, repeats)
        print(json.dumps({"state": state, "load": round(os.getloadavg()[0], 1), **found}))
        sys.stdout.flush()


def main() -> None:
    """Fill, ask, compact, ask."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layout", choices=("keys", "uuids"), default="keys")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=14)
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compacted-only", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.folder, given.child)
        return
    if not any(given.folder.glob("*")):
        fill(
            given.folder,
            layout=given.layout,
            count=given.cases,
            gpus=given.gpus,
            nights=given.nights,
        )
    if not given.compacted_only:
        show("JSON Lines", given.folder, max(1, given.repeats // 2))
    print(json.dumps({"state": "compacting", **measured(given.folder, "compact", 1)}))
    show("compacted", given.folder, given.repeats)


if __name__ == "__main__":
    main()
