"""The one-shot form: every rank that a launcher starts measures one case and leaves."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench_lib.model import Device
from bench_lib.worker.clock import clock_of
from bench_lib.worker.context import answer
from bench_lib.worker.device import (
    compile_cache_state,
    cudnn_version,
    forget_compiled,
    open_device,
    versions,
)
from bench_lib.worker.launches import compare_streams
from bench_lib.worker.measure import Context
from bench_lib.worker.workloads import Setting
from bench_lib.worker.zygote import die_with_parent


def once(case_path: str, out: str) -> int:
    """Measure the case in ``case_path`` on this rank and write ``rank-N.json`` into ``out``.

    Rank, local rank and world size come from the launcher's variables (torchrun's names).
    The file appears whole or not at all.  Returns 0 where there is a measurement or a skip;
    with a fault the process leaves at once.
    """
    die_with_parent()
    rank = int(os.environ.get("RANK", "0"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    device, seen = open_device(local_rank)
    launches = compare_streams(device)
    group = joined(device, ranks)
    phases = ["start"]

    def enter(phase: str) -> None:
        phases.append(phase)
        sys.stdout.write(f"rank {rank}: {phase}\n")
        sys.stdout.flush()

    context = Context(
        setting=Setting(device, rank=rank, local_rank=local_rank, ranks=ranks),
        clock=clock_of(device),
        context_id=f"rank-{rank}",
        device_uuid=seen.uuid,
        launches=launches,
        phase=enter,
        agree=group.agree,
        cache_state=compile_cache_state,
        forget=forget_compiled,
    )
    outcome = answer(json.loads(Path(case_path).read_text()), context)
    outcome |= {"ended_s": time.time(), "phase": phases[-1], **about_rank(context.setting, seen)}
    target = Path(out, f"rank-{rank}.json")
    partial = target.with_suffix(".part")
    partial.write_text(json.dumps(outcome, allow_nan=False))
    partial.replace(target)
    if "fault" in outcome:
        # The other ranks may be in a collective that will not end now, and so may our device.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    group.leave()
    return 0


def about_rank(setting: Setting, seen: Device) -> dict[str, Any]:
    """Return what is said of a rank beside its measurement."""
    return {
        "rank": setting.rank,
        "local_rank": setting.local_rank,
        "ranks": setting.ranks,
        "pid": os.getpid(),
        "device": dataclasses.asdict(seen),
        "versions": versions(),
        "cudnn": cudnn_version(setting.device),
        "threads": torch.get_num_threads(),
    }


class Group:
    """The ranks of a launch, as one of them sees the others; alone it agrees with itself."""

    def __init__(self, host: Any = None) -> None:
        """``host`` is a process group over the host: one on the device would be timed too."""
        self._host = host

    def agree(self, value: float) -> float:
        """Return the largest of all ranks' values."""
        if self._host is None:
            return value
        largest = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self._host)
        return float(largest)

    def gathered(self, outcome: dict[str, Any]) -> list[dict[str, Any]]:
        """Return every rank's outcome, by rank, to every rank."""
        if self._host is None:
            return [outcome]
        outcomes: list[Any] = [None] * dist.get_world_size(self._host)
        dist.all_gather_object(outcomes, outcome, group=self._host)
        return outcomes

    def leave(self) -> None:
        """Leave the others; what is written already is not lost where that fails."""
        if self._host is not None:
            with contextlib.suppress(Exception):
                dist.destroy_process_group()


def joined(
    device: torch.device,
    ranks: int,
    *,
    backend: str | None = None,
    url: str | None = None,
    rank: int = -1,
) -> Group:
    """Join the ranks of a launch, by the launcher's variables or at a ``url``.

    Raises RuntimeError or ValueError where they cannot meet.
    """
    if ranks == 1:
        return Group()
    backend = backend or ("nccl" if device.type == "cuda" else "gloo")
    if url is None:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, init_method=url, rank=rank, world_size=ranks)
    return Group(dist.new_group(backend="gloo"))
