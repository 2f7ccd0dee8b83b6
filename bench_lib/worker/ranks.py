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
    gpu = device.type == "cuda"
    if ranks > 1:
        dist.init_process_group("nccl" if gpu else "gloo")
    # Decisions travel over the host: a collective on the device would be part of the timing.
    host_group: Any = dist.new_group(backend="gloo") if ranks > 1 else None

    def agree(value: float) -> float:
        if host_group is None:
            return value
        largest = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=host_group)
        return float(largest)

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
        agree=agree,
        cache_state=compile_cache_state,
        forget=forget_compiled,
    )
    outcome = answer(json.loads(Path(case_path).read_text()), context)
    outcome |= {
        "ended_s": time.time(),
        "phase": phases[-1],
        "rank": rank,
        "local_rank": local_rank,
        "ranks": ranks,
        "pid": os.getpid(),
        "device": dataclasses.asdict(seen),
        "versions": versions(),
        "cudnn": cudnn_version(device),
        "threads": torch.get_num_threads(),
    }
    target = Path(out, f"rank-{rank}.json")
    partial = target.with_suffix(".part")
    partial.write_text(json.dumps(outcome, allow_nan=False))
    partial.replace(target)
    if "fault" in outcome:
        # The other ranks may be in a collective that will not end now, and so may our device.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    if ranks > 1:
        with contextlib.suppress(Exception):  # the result is written; leaving must not lose it
            dist.destroy_process_group()
    return 0
