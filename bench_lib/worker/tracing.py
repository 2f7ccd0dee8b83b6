"""Profiles a case in a process of its own: traces and tables, or ranges for another profiler."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, record_function, schedule

from bench_lib import files
from bench_lib.launch.launchers import Placement, who_am_i
from bench_lib.launch.started import die_with_parent
from bench_lib.launch.wire import MEASURED, ProfileRequest, decode_case, write_whole
from bench_lib.model import Case
from bench_lib.worker.clock import Clock
from bench_lib.worker.measure import Steadiness, timed
from bench_lib.worker.process import in_words, kind_of, short_traceback
from bench_lib.worker.profiling import activities, external_profiler
from bench_lib.worker.ranks import prepared
from bench_lib.worker.workloads import UnsupportedError, build
from bench_lib.worker.zygote import leave_at_once

ROWS = 30
"""Operations in each table."""
MOST_PLAIN_S = 1.0
"""Most seconds of steps without the profiler, to know its cost; at least one step runs."""
WARMUP_S, MOST_WARMUP_S = 0.5, 2.0


def main(order: Path, out: Path) -> int:
    """Profile the case of an order on this rank and write the results into a folder.

    ``result.json`` (``result_rank<N>.json`` with several ranks) names the other files; it is
    rewritten with each of them, and finally with the reason if the case was skipped or failed.  The
    process leaves at once, with status 0 after a profile or a skip and 1 after a fault; with ranges
    it returns 0.
    """
    fields = json.loads(order.read_text())
    case, request = decode_case(fields["case"]), ProfileRequest(**fields["asked"])
    die_with_parent()
    place = who_am_i(os.environ)
    result = _TraceFiles(out, "" if place.ranks == 1 else f"_rank{place.rank}")
    try:
        _profile(case, request, result, place)
    except UnsupportedError as reason:
        result.add(skipped=str(reason))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it becomes the result
        sys.stderr.write(short_traceback(error))
        fault = {"kind": kind_of(error), "message": in_words(error), "phase": result.phase}
        result.add(fault=fault, ended_s=time.time())
        leave_at_once(1)  # the other ranks may wait in a collective
    result.add(done=True)
    result.enter("done")
    if not request.ranges:  # a profiler outside writes when the process ends as it should
        leave_at_once(0)  # all is on the disk, and taking torch down takes a second
    return 0


class _TraceFiles:
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
        """Print the current phase for the process that waits."""
        self.phase = phase
        sys.stdout.write(f"phase{self._suffix}: {phase}\n")
        sys.stdout.flush()

    def add(self, **fields: Any) -> None:
        """Add fields to the result, and write it, whole or not at all."""
        self._result |= {**fields, "problems": self.problems}
        write_whole(self.path("result.json"), self._result)


def _profile(case: Case, request: ProfileRequest, result: _TraceFiles, place: Placement) -> None:
    if not request.ranges and (variable := external_profiler()):
        raise UnsupportedError(
            f"{variable} is set, so another profiler is attached, and a GPU supports only one at "
            "a time; run without it, or use --ranges"
        )
    context, facts = prepared(case.launch.ranks, result.folder, place, result.enter)
    if request.ranges and context.setting.device.type != "cuda":
        raise UnsupportedError("an external profiler needs a GPU, and torch sees none")
    result.add(steps=request.steps, **facts)

    clock = context.clock
    result.enter("build")
    with contextlib.closing(build(case, context.setting)) as workload:
        step = workload.step
        result.problems += workload.warnings
        result.enter("first step")
        first_step_s = timed(clock, step, 1)
        workload.first_step_done()
        result.add(first_step_s=first_step_s)
        result.enter("warm up")
        steady = Steadiness(WARMUP_S, MOST_WARMUP_S)
        steady.warm_up(context, step, first_step_s)

        result.enter("profile")
        clock.reset_peak()
        if request.ranges:
            _in_ranges(step, clock, request.steps)
            steps = 1 + steady.steps + request.steps
            result.add(peak_memory_bytes=clock.peak_bytes(), steps_in_all=steps)
        else:
            # As many as are profiled, unless they take long; the same number on all ranks.
            plain = max(1, min(request.steps, int(MOST_PLAIN_S / max(steady.blocks[-1], 1e-9))))
            result.add(plain_step_s=timed(clock, step, plain) / plain)
            _traced(step, clock, request, result)


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
    step: Callable[[], object], clock: Clock, request: ProfileRequest, result: _TraceFiles
) -> None:
    """Trace the steps without shapes, memory and stacks, which would slow the host several times.

    The timeline would show a device that waits for it.
    """
    with profile(
        activities=activities(),
        schedule=schedule(wait=0, warmup=1, active=request.steps, repeat=1),
        acc_events=True,
    ) as profiler:
        step()
        clock.synchronize()  # or the trace would begin with the rest of this one's work
        profiler.step()
        begin = clock.now()
        for i in range(request.steps):
            if i:
                profiler.step()
            with record_function(f"iteration {i}"):
                step()
        clock.synchronize()
        elapsed_s = clock.now() - begin
        profiler.step()
        result.add(profiled_step_s=elapsed_s / request.steps)
    result.add(peak_memory_bytes=clock.peak_bytes())
    result.enter("write the trace")
    path = result.path("trace.json.gz")
    with files.replacing(path) as partial:  # raises OSError if nothing was written
        profiler.export_chrome_trace(str(partial))
    result.add(trace=path.name)
    result.enter("tabulate")
    averages = profiler.key_averages()
    device = {"device time": "self_device_time_total"} if clock.asynchronous else {}
    columns = {**device, "cpu time": "self_cpu_time_total"}
    tables = {}
    for title, column in columns.items():
        path = result.path(f"by_{title.replace(' ', '_')}.txt")
        table = averages.table(sort_by=column, row_limit=ROWS, max_name_column_width=80)
        files.replace(path, table.encode())
        tables[title] = path.name
    result.add(tables=tables)
