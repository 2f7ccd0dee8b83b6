"""Cases of several ranks: one torchrun per case, each rank's file folded into a measurement."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench_lib.launch.faults import CaseFault, CaseSkipped, how_it_ended, last_output
from bench_lib.launch.zygote import import_path
from bench_lib.model import Case, Fault, Measurement, RankSample

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
    torchrun on this host.  Raises CaseSkipped or CaseFault; no process is left behind.
    """
    ranks = case.launch.ranks
    words = launcher or (
        *(python, "-m", "torch.distributed.run", "--standalone"),
        f"--nproc-per-node={ranks}",
    )
    with tempfile.TemporaryDirectory(prefix="bench-lib-") as directory:
        folder = Path(directory)
        (folder / "case.json").write_text(json.dumps(dataclasses.asdict(case)))
        log = folder / "output.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*words, "-m", "bench_lib.worker", "once", str(folder / "case.json"), directory],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {}), "PYTHONPATH": import_path()},
                start_new_session=True,
            )
        try:
            code: int | None = process.wait(case.time_limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        outcomes = _outcomes(folder)
        if code is None:
            limit = f"not done within its time limit of {case.time_limit_s:g} s"
            raise CaseFault(Fault("time limit", limit, "ranks", last_output(log)))
        for outcome in outcomes:
            if "skipped" in outcome:
                raise CaseSkipped(outcome["skipped"])
        for outcome in outcomes:
            if "fault" in outcome:
                message = f"rank {outcome['rank']}: {outcome['fault']['message']}"
                raise CaseFault(
                    Fault(outcome["fault"]["kind"], message, "ranks", last_output(log))
                )
        if len(outcomes) != ranks:
            missing = sorted(set(range(ranks)) - {outcome["rank"] for outcome in outcomes})
            message = f"{how_it_ended(code)}; no result from rank {', '.join(map(str, missing))}"
            raise CaseFault(Fault("died", message, "ranks", last_output(log)))
        return fold(outcomes)


def fold(outcomes: Sequence[Mapping[str, Any]]) -> Measurement:
    """Fold the ranks' outcomes into one: a step takes as long as its slowest rank."""
    ordered = sorted(outcomes, key=lambda outcome: int(outcome["rank"]))
    parts = [msgspec.convert(outcome["measurement"], Measurement) for outcome in ordered]
    samples = [
        RankSample(
            rank=outcome["rank"],
            local_rank=outcome["local_rank"],
            device_uuid=part.device_uuid,
            iteration_s=part.iteration_s,
            peak_memory_bytes=part.peak_memory_bytes,
        )
        for outcome, part in zip(ordered, parts, strict=True)
    ]
    peaks = [part.peak_memory_bytes for part in parts if part.peak_memory_bytes is not None]
    flops = [part.flops_per_step for part in parts if part.flops_per_step is not None]
    return dataclasses.replace(
        parts[0],
        context_id="ranks",
        iteration_s=[max(step) for step in zip(*(p.iteration_s for p in parts), strict=True)],
        wall_s=max(part.wall_s for part in parts),
        first_step_s=max(part.first_step_s for part in parts),
        items_per_step=sum(part.items_per_step for part in parts),
        flops_per_step=sum(flops) if len(flops) == len(parts) else None,
        peak_memory_bytes=max(peaks) if peaks else None,
        host_bound=any(part.host_bound for part in parts),
        per_rank=samples,
        warnings=sorted({warning for part in parts for warning in part.warnings}),
    )


def _outcomes(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.glob("rank-*.json")]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the launcher, which ends its ranks; they end themselves if it cannot."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
