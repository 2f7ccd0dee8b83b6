"""Cases of several ranks: one torchrun per case, each rank's file folded into a measurement."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from bench_lib.launch.faults import (
    CaseFault,
    CaseSkipped,
    LaunchError,
    how_it_ended,
    last_lines,
    last_output,
)
from bench_lib.launch.zygote import import_path
from bench_lib.model import Case, Fault, Measurement, Numerics, RankSample, Training

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GRACE_S = 10.0
"""torchrun ends its ranks when asked to; after this it is ended itself."""


def run_ranks(
    case: Case,
    *,
    launcher: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> Measurement:
    """Measure a case of several ranks.

    ``launcher`` are the words before ``-m bench_lib.worker once CASE OUT``; by default
    torchrun on this host.  Raises CaseSkipped, CaseFault, or LaunchError where there is no
    such launcher; no process is left behind.
    """
    ranks = case.launch.ranks
    words = launcher or torchrun(ranks, python)
    with tempfile.TemporaryDirectory(prefix="bench-lib-") as directory:
        folder = Path(directory)
        (folder / "case.json").write_text(json.dumps(dataclasses.asdict(case)))
        log = folder / "output.log"
        variables = {**os.environ, **(environment or {})}
        variables["PYTHONPATH"] = import_path(folder, variables)
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [*words, "-m", "bench_lib.worker", "once", f"{folder}/case.json", directory],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=variables,
                    start_new_session=True,
                )
        except OSError as error:
            raise LaunchError(f"cannot start ranks with {words[0]}: {error.strerror}") from error
        late: str | None = None
        try:
            process.wait(case.time_limit_s)
        except subprocess.TimeoutExpired:
            late = last_output(log)  # before the launcher adds how it was ended
        finally:
            end(process)
        outcomes = _outcomes(folder)
        for outcome in outcomes:
            if "skipped" in outcome:
                raise CaseSkipped(outcome["skipped"])
        if faults := [outcome for outcome in outcomes if "fault" in outcome]:
            first = min(faults, key=lambda outcome: float(outcome["ended_s"]))  # drags the others
            kind, message = first["fault"]["kind"], first["fault"]["message"]
            traceback = last_lines(first["fault"]["traceback"])
            message = f"rank {first['rank']}: {message}"
            raise CaseFault(Fault(kind, message, first["phase"], traceback))
        if len(outcomes) == ranks:
            return fold(outcomes)
        if late is not None:
            limit = f"not done within its time limit of {case.time_limit_s:g} s"
            raise CaseFault(Fault("time limit", limit, "ranks", late))
        missing = sorted(set(range(ranks)) - {outcome["rank"] for outcome in outcomes})
        ended = how_it_ended(process.returncode)
        message = f"{ended}; no result from rank {', '.join(map(str, missing))}"
        raise CaseFault(Fault("died", message, "ranks", last_output(log)))


def torchrun(ranks: int, python: str) -> tuple[str, ...]:
    """Return the words that start so many ranks of what follows them on this host."""
    return (python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")


def fold(outcomes: Sequence[Mapping[str, Any]]) -> Measurement:
    """Fold the ranks' outcomes into one: a step takes as long as its slowest rank.

    Numerics are those of the rank that is worst off.
    """
    ordered = sorted(outcomes, key=lambda outcome: int(outcome["rank"]))
    parts = [msgspec.convert(outcome["measurement"], Measurement) for outcome in ordered]
    samples = [
        RankSample(
            rank=outcome["rank"],
            local_rank=outcome["local_rank"],
            device_uuid=part.device_uuid,
            iteration_s=part.iteration_s,
            peak_memory_bytes=part.peak_memory_bytes,
            pid=outcome.get("pid"),
        )
        for outcome, part in zip(ordered, parts, strict=True)
    ]
    peaks = [part.peak_memory_bytes for part in parts if part.peak_memory_bytes is not None]
    compiles = [part.compile_s for part in parts if part.compile_s is not None]
    caches = {part.compile_cache for part in parts}
    enqueues = [part.enqueue_s for part in parts if part.enqueue_s is not None]
    numerics = [part.numerics for part in parts if part.numerics is not None]
    probed = set.intersection(*(set(part.probe) for part in parts))
    timed = [name for name in parts[0].portions_s if all(name in p.portions_s for p in parts)]
    return dataclasses.replace(
        parts[0],
        context_id="ranks",
        iteration_s=[max(step) for step in zip(*(p.iteration_s for p in parts), strict=True)],
        wall_s=max(part.wall_s for part in parts),
        first_step_s=max(part.first_step_s for part in parts),
        compile_s=max(compiles, default=None),
        compile_cache=caches.pop() if len(caches) == 1 else "mixed",
        enqueue_s=max(enqueues, default=None),
        items_per_step=sum(part.items_per_step for part in parts),
        flops_per_step=_sum([part.flops_per_step for part in parts]),
        traffic_bytes_per_step=_sum([part.traffic_bytes_per_step for part in parts]),
        peak_memory_bytes=max(peaks, default=None),
        host_bound=any(part.host_bound for part in parts),
        numerics=min(numerics, key=_soundness, default=None),
        per_rank=samples,
        portions_s={name: max(p.portions_s[name] for p in parts) for name in timed},
        training=_training([part.training for part in parts]),
        peak_host_bytes=_sum([part.peak_host_bytes for part in parts]),
        cpu_s=_sum([part.cpu_s for part in parts]),
        probe={name: max(part.probe[name] for part in parts) for name in sorted(probed)},
        warnings=sorted({warning for part in parts for warning in part.warnings}),
    )


Number = TypeVar("Number", int, float)


def _sum(values: Sequence[Number | None]) -> Number | None:
    """Return the sum of what all ranks know; None where one does not."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if len(known) == len(values) else None


def _training(parts: Sequence[Training | None]) -> Training | None:
    """Return what the ranks' training came to together: means of what each saw."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    tested = [part.test_accuracy for part in known if part.test_accuracy is not None]
    return dataclasses.replace(
        known[0],
        losses=[statistics.fmean(step) for step in zip(*(p.losses for p in known), strict=True)],
        accuracies=[
            statistics.fmean(step) for step in zip(*(p.accuracies for p in known), strict=True)
        ],
        test_accuracy=statistics.fmean(tested) if tested else None,
        test_samples=_sum([part.test_samples for part in known]),
    )


def _soundness(numerics: Numerics) -> tuple[bool, float]:
    return numerics.finite, 1.0 if numerics.cosine is None else numerics.cosine


def _outcomes(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.glob("rank-*.json")]


def end(process: subprocess.Popen[bytes]) -> None:
    """End the launcher, which ends its ranks; they end themselves if it cannot."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
