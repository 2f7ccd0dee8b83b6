"""Profiles a case in a process of its own: traces and tables, or ranges for another profiler."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from bench_lib import files
from bench_lib.launch.launchers import Placement, who_am_i
from bench_lib.launch.started import die_with_parent
from bench_lib.launch.wire import MEASURED, ProfileRequest, decode_case, write_whole
from bench_lib.model import Case, UserError
from bench_lib.worker.clock import Clock
from bench_lib.worker.context import in_words, kind_of
from bench_lib.worker.measure import MeasuringContext, Steadiness, timed
from bench_lib.worker.profiling import external_profiler
from bench_lib.worker.ranks import leave_at_once, prepared
from bench_lib.worker.workloads import UnsupportedError, Workload, build

ROWS = 30
"""Operations in each table."""
MOST_PLAIN_S = 1.0
"""Most seconds of steps without a profiler, to know its cost; one runs in any case."""
WARMUP_S, MOST_WARMUP_S = 0.5, 2.0


def main(order: Path, out: Path) -> int:
    """Profile the case of an order on this rank and write what came of it into a folder.

    ``result.json`` (``result_rank<N>.json`` of several ranks) says what else is there; it is
    written whenever something new is, and last with the reason if the case was skipped or
    failed.  The process leaves at once, with status 0 where there is a profile or a skip and 1 at a
    fault; with ranges it returns 0.
    """
    fields = json.loads(order.read_text())
    case, asked = decode_case(fields["case"]), ProfileRequest(**fields["asked"])
    die_with_parent()
    try:
        place = who_am_i(os.environ)
    except UserError as error:
        sys.stderr.write(f"bench-lib: {error}\n")
        return 2
    kept = TraceFiles(out, "" if place.ranks == 1 else f"_rank{place.rank}")
    try:
        _profile(case, asked, kept, place)
    except UnsupportedError as reason:
        kept.add(skipped=str(reason))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it becomes the result
        traceback.print_exc()
        fault = {"kind": kind_of(error), "message": in_words(error), "phase": kept.phase}
        kept.add(fault=fault, ended_s=time.time())
        leave_at_once(1)  # the other ranks may be in a collective that will not end now
    kept.add(done=True)
    kept.enter("done")
    if not asked.ranges:  # a profiler outside writes when the process ends as it should
        leave_at_once(0)  # all is on the disk, and taking torch down takes a second
    return 0


class TraceFiles:
    """The files of one rank, and the result that names them."""

    def __init__(self, folder: Path, suffix: str) -> None:
        """Write into ``folder``; ``suffix`` distinguishes the ranks."""
        self.phase = "start"
        self.problems: list[str] = []
        self.folder = folder
        self._suffix = suffix
        self._result: dict[str, Any] = {}

    def path(self, name: str) -> Path:
        """Return where this rank keeps a file: ``trace.json.gz``, ``trace_rank1.json.gz``."""
        stem, dot, ending = name.partition(".")
        return self.folder / f"{stem}{self._suffix}{dot}{ending}"

    def enter(self, phase: str) -> None:
        """Say where in the case we are, for whoever waits."""
        self.phase = phase
        sys.stdout.write(f"phase{self._suffix}: {phase}\n")
        sys.stdout.flush()

    def add(self, **fields: Any) -> None:
        """Put more into the result, and the result onto the disk: whole or not at all."""
        self._result |= {**fields, "problems": self.problems}
        write_whole(self.path("result.json"), self._result)


def _profile(case: Case, asked: ProfileRequest, kept: TraceFiles, place: Placement) -> None:
    if not asked.ranges and (variable := external_profiler()):
        raise UnsupportedError(
            f"{variable} is set, so a profiler outside is at work, and two cannot listen to one "
            "GPU; leave it out, or use --ranges"
        )
    context, about = prepared(case.launch.ranks, kept.folder, place, kept.enter)
    if asked.ranges and context.setting.device.type != "cuda":
        raise UnsupportedError("profilers outside look at GPUs, and torch sees none here")
    kept.add(steps=asked.steps, **about)

    kept.enter("build")
    with contextlib.closing(build(case, context.setting)) as workload:
        _profile_steps(workload, context, asked, kept)


def _profile_steps(
    workload: Workload, context: MeasuringContext, asked: ProfileRequest, kept: TraceFiles
) -> None:
    clock = context.clock
    kept.problems += workload.warnings
    kept.enter("first step")
    first_step_s = timed(clock, workload.step, 1)
    workload.first_step_done()
    kept.add(first_step_s=first_step_s)
    kept.enter("warm up")
    steady = Steadiness(WARMUP_S, MOST_WARMUP_S)
    steady.warm_up(clock, workload.step, first_step_s, context.agree)

    kept.enter("profile")
    clock.reset_peak()
    if asked.ranges:
        _in_ranges(workload.step, clock, asked.steps)
        kept.add(peak_memory_bytes=clock.peak_bytes(), steps_in_all=1 + steady.steps + asked.steps)
    else:
        # As many as are profiled, unless they take long: on all ranks alike.
        plain = max(1, min(asked.steps, int(MOST_PLAIN_S / max(steady.blocks[-1], 1e-9))))
        kept.add(plain_step_s=timed(clock, workload.step, plain) / plain)
        _traced(workload.step, clock, asked, kept)


def _in_ranges(step: Callable[[], object], clock: Clock, steps: int) -> None:
    """Run the steps with a range for each operation: NVTX's, on AMD ROCTX's."""
    mark: Any = torch.cuda.nvtx
    with torch.autograd.profiler.emit_nvtx():
        clock.synchronize()
        mark.range_push(MEASURED)
        for i in range(steps):
            mark.range_push(f"iteration {i}")
            step()
            mark.range_pop()
        clock.synchronize()
        mark.range_pop()


def _traced(
    step: Callable[[], object], clock: Clock, asked: ProfileRequest, kept: TraceFiles
) -> None:
    """Trace the steps as lightly as can be: shapes, memory and stacks slow the host several times.

    A timeline would show that as a device that waits.
    """
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] * clock.asynchronous)],
        schedule=schedule(wait=0, warmup=1, active=asked.steps, repeat=1),
        acc_events=True,
    ) as profiler:
        kept.add(profiled_step_s=_under(profiler, step, clock, asked.steps) / asked.steps)
    kept.add(peak_memory_bytes=clock.peak_bytes())
    kept.enter("write the trace")
    _export(profiler, kept)
    kept.enter("tabulate")
    device = {"device time": "self_device_time_total"} if clock.asynchronous else {}
    orders = {**device, "cpu time": "self_cpu_time_total"}
    kept.add(tables=_tabulate(profiler.key_averages(), orders, kept))


def _under(profiler: profile, step: Callable[[], object], clock: Clock, steps: int) -> float:
    """Run the steps under a profiler, one before them; returns the seconds that they took."""
    step()
    clock.synchronize()  # or the trace would begin with what this one left to do
    profiler.step()
    begin = clock.now()
    for i in range(steps):
        if i:
            profiler.step()
        with record_function(f"iteration {i}"):
            step()
    clock.synchronize()
    took = clock.now() - begin
    profiler.step()
    return took


def _export(profiler: Any, kept: TraceFiles) -> None:
    """Write the trace; raises OSError where it is not there then, as the profiler does not."""
    path = kept.path("trace.json.gz")
    with files.replacing(path) as partial:
        profiler.export_chrome_trace(str(partial))
    kept.add(trace=path.name)


def _tabulate(averages: Any, orders: Mapping[str, str], kept: TraceFiles) -> dict[str, str]:
    """Write a table for each column of ``orders``, by title; returns their files."""
    tables = {}
    for title, column in orders.items():
        path = kept.path(f"by_{title.replace(' ', '_')}.txt")
        table = averages.table(sort_by=column, row_limit=ROWS, max_name_column_width=80)
        files.replace(path, table.encode())
        tables[title] = path.name
    return tables
