"""A fresh process: opens the device, then measures case after case until the runner hangs up."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from bench_lib.formulas.arithmetic import operations as operations_of
from bench_lib.launch.cache import NO_ROOM
from bench_lib.launch.wire import BEHIND_VARIABLE, ClosedError, connect, decode_case
from bench_lib.model import Bursts, Case
from bench_lib.worker import profiling
from bench_lib.worker.arithmetic import WrongArithmeticError, prove
from bench_lib.worker.bursts import calibrate
from bench_lib.worker.clock import clock_of
from bench_lib.worker.device import cudnn_version, libraries, open_device
from bench_lib.worker.host import leave_a_stack
from bench_lib.worker.launches import excess
from bench_lib.worker.measure import MeasuringContext, Steadiness, cleaned, measure, timed
from bench_lib.worker.workloads import Setting, UnsupportedError, build


def serve_cases(name: str) -> int:
    """Greet the runner with a description of the device, then answer its cases.

    Every answer is one message: ``measurement``, ``skipped`` or ``fault``.  After a fault the
    runner ends this process, since a broken context need not raise an error.
    """
    leave_a_stack()
    connection = connect(hello=name, pid=os.getpid())
    device, description = open_device()
    connection.send(
        {
            "device": dataclasses.asdict(description),
            "cudnn": cudnn_version(device),
            "threads": torch.get_num_threads(),
            "excess": excess(device),
            "libraries": libraries() if device.type == "cuda" else {},
        }
    )

    def give_way() -> None:
        connection.send({"give_way": True})
        connection.receive()

    context = MeasuringContext(
        setting=Setting(device),
        clock=clock_of(device),
        context_id=name,
        device_uuid=description.uuid,
        phase=lambda phase: connection.send({"phase": phase}),
        left=lambda left_s: connection.send({"left_s": left_s}),
        give_way=give_way,
    )
    try:
        while True:
            order = connection.receive()
            if "take_turn" in order:
                context.clock.take_turn()
                connection.send({"turn_taken": True})
            else:
                ordered = dataclasses.replace(
                    context,
                    bursts=Bursts(**order["bursts"]) if order.get("bursts") else None,
                    choices=order.get("choices"),
                    keeps=not order.get("discards"),
                    known=order.get("known", ()),
                )
                connection.send(answer(order, ordered))
    except ClosedError:
        return 0


PROFILED, PROFILED_ON_CPU = 5, 2
PROFILED_S = 1.0
"""Steps under the profiler; fewer if all of them would take longer than this.

On a CPU every operation is recorded, and a step of some networks has 60,000 of them."""
WARMUP_S = 0.3
"""Warm-up before those steps: GPU clocks take about that long to ramp up."""


def measured(case: Case, context: MeasuringContext, *, proves: bool) -> dict[str, Any]:
    """Return a case's measurement as a message.

    If it ``proves`` the device's arithmetic, raises WrongArithmeticError if that is not the case's.
    """
    measurement = measure(case, context)
    if BEHIND_VARIABLE in os.environ:
        measurement = dataclasses.replace(measurement, code=users_code())
    if proves:
        operations = operations_of(case.workload, case.params)
        with cleaned(context):
            context.phase("arithmetic")
            precision = str(case.params.get("precision", ""))
            errors = prove(precision, context.setting.device, operations)
        measurement = dataclasses.replace(measurement, arithmetic=errors)
    return {"measurement": dataclasses.asdict(measurement)}


def kernels_of(case: Case, context: MeasuringContext) -> dict[str, Any]:
    """Return the kernels of one of a case's steps as a message."""
    clock = context.clock
    with cleaned(context):
        context.phase("build")
        with contextlib.closing(build(case, context.setting)) as workload:
            context.phase("first step")
            first_step_s = timed(clock, workload.step, 1)
            workload.first_step_done()
            context.phase("warm-up")
            warm = Steadiness(WARMUP_S, WARMUP_S)
            warm.warm_up(context, workload.step, first_step_s)
            context.phase("profile")
            most = PROFILED if clock.asynchronous else PROFILED_ON_CPU
            steps = max(1, min(most, int(PROFILED_S * warm.steps / warm.elapsed_s)))
            table = profiling.kernels(workload.step, clock, steps)
    return {"kernels": dataclasses.asdict(table)}


def answer(order: dict[str, Any], context: MeasuringContext) -> dict[str, Any]:
    """Measure the case of an order, profile it, or calibrate; returns the message to send."""
    try:
        if "calibrate" in order:
            with cleaned(context):
                calibration = calibrate(context.clock, context.setting.device)
            message = {"calibrated": dataclasses.asdict(calibration)}
        elif "profile" in order:
            message = kernels_of(decode_case(order["profile"]), context)
        else:
            case = decode_case(order["measure"])
            message = measured(case, context, proves=order.get("prove", False))
        json.dumps(message, allow_nan=False)  # a workload's own figures may not be JSON
    except UnsupportedError as reason:
        return {"skipped": str(reason)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it becomes the case's fault
        fault = fault_of(error)
        sys.stderr.write(fault["traceback"])
        sys.stderr.flush()
        return {"fault": fault}
    return message


def fault_of(error: BaseException) -> dict[str, str]:
    """Return the fields of a fault's message for an exception."""
    kind, message = kind_of(error), in_words(error)
    return {"kind": kind, "message": message, "traceback": short_traceback(error)}


MOST_FRAMES = 3
"""With them, a traceback of one exception has eight lines."""
_OURS = str(Path(__file__).parent)
_LIBRARIES = tuple(f"{Path(f).parent}{os.sep}" for f in (os.__file__, torch.__file__, _OURS))
_INSTALLED = re.compile(r"^<|[/\\](?:site|dist)-packages[/\\]|torchinductor_")
"""Files that packages installed, or that Python or a compiler made."""


def is_users(file: str) -> bool:
    """Whether a file is of the user's own code."""
    return not (file.startswith(_LIBRARIES) or _INSTALLED.search(file))


def users_code() -> dict[str, str]:
    """Return the first file of each module or package of the user's own that is imported."""
    code: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")  # and wake no lazy module
        if isinstance(file, str) and is_users(file):
            code.setdefault(name.partition(".")[0], file)
    return code


def short_traceback(error: BaseException) -> str:
    """Return a traceback with the last frames of the user's own code, or of any if none is."""
    report: traceback.TracebackException | None
    report = first = traceback.TracebackException.from_exception(error)
    while report is not None:
        frames = ([f for f in report.stack if is_users(f.filename)] or report.stack)[-MOST_FRAMES:]
        # Frames made of tuples have no columns, so that no carets are printed.
        report.stack = traceback.StackSummary.from_list(map(tuple, frames))
        report = report.__cause__ or (None if report.__suppress_context__ else report.__context__)
    return "".join(first.format())


OUT_OF_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "STATUS_ALLOC_FAILED",
    "miopenStatusAllocFailed",
    "Memory not available to allocate buffer",
)
"""Messages of the CPU's allocator, the GPU runtimes outside torch's allocator, BLAS and MIOpen."""


def kind_of(error: BaseException) -> str:
    """Return an exception's kind of fault: each kind has its own remedy."""
    if isinstance(error, WrongArithmeticError):
        return "arithmetic"
    is_reported = isinstance(error, RuntimeError) and any(w in str(error) for w in OUT_OF_MEMORY)
    if is_reported or isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return "out of memory"
    return "no room" if _is_full_disk(error) else "exception"


def _is_full_disk(error: BaseException | None) -> bool:
    """Whether a disk was full, even if a compiler has wrapped that into an error of its own."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return True
        if any(os.strerror(code) in str(error) for code in NO_ROOM):
            return True
        error = error.__cause__ or error.__context__
    return False


def in_words(error: BaseException) -> str:
    """Return the exception's type and the first lines of its message; of ours, the message."""
    text = str(error).strip()
    if isinstance(error, WrongArithmeticError):
        return text
    lines = text.splitlines()[:6]
    return f"{type(error).__name__}: " + "\n".join(lines) if lines else type(error).__name__
