"""A fresh device context: opens the device, then measures case after case until hung up on."""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import resource
import sys
import traceback
from typing import Any

import torch

from bench_lib.wire import ClosedError, connect, decode_case
from bench_lib.worker.clock import clock_of
from bench_lib.worker.device import (
    compile_cache_state,
    cudnn_version,
    forget_compiled,
    open_device,
)
from bench_lib.worker.launches import compare_streams
from bench_lib.worker.measure import Context, measure
from bench_lib.worker.workloads import Setting, UnsupportedError


def serve_cases(name: str) -> int:
    """Greet the runner with what the device says of itself, then answer its cases.

    Every answer is one message: ``measurement``, ``skipped`` or ``fault``.  After a fault
    the runner ends this process, since a context may be broken without saying so.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    connection = connect(hello="context", context=name, pid=os.getpid())
    device, seen = open_device()
    launches = compare_streams(device)
    connection.send(
        {
            "device": dataclasses.asdict(seen),
            "cudnn": cudnn_version(device),
            "threads": torch.get_num_threads(),
            "excess": launches.excess,
        }
    )

    def give_way() -> None:
        connection.send({"give_way": True})
        connection.receive()

    context = Context(
        setting=Setting(device),
        clock=clock_of(device),
        context_id=name,
        device_uuid=seen.uuid,
        launches=launches,
        phase=lambda phase: connection.send({"phase": phase}),
        cache_state=compile_cache_state,
        give_way=give_way,
        forget=forget_compiled,
    )
    try:
        while True:
            order = connection.receive()
            if "take_turn" in order:
                context.clock.take_turn()
                connection.send({"turn_taken": True})
            else:
                connection.send(answer(order["measure"], context))
    except ClosedError:
        return 0


def answer(fields: dict[str, Any], context: Context) -> dict[str, Any]:
    """Measure the case that ``fields`` describe and put the outcome into a message."""
    try:
        measurement = dataclasses.asdict(measure(decode_case(fields), context))
        json.dumps(measurement, allow_nan=False)  # what a workload says of itself may not fit
    except UnsupportedError as reason:
        return {"skipped": str(reason)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it stays in its case
        traceback.print_exc()
        sys.stderr.flush()
        return {
            "fault": {
                "kind": kind_of(error),
                "message": in_words(error),
                "traceback": traceback.format_exc(),
            }
        }
    return {"measurement": measurement}


OUT_OF_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "STATUS_ALLOC_FAILED",
    "miopenStatusAllocFailed",
    "Memory not available to allocate buffer",
)
"""What the CPU's allocator, the GPU runtimes outside torch's allocator, BLAS and MIOpen say."""


def kind_of(error: BaseException) -> str:
    """Sort an exception into the kinds of fault that a reader acts on differently."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return "out of memory"
    if isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY):
        return "out of memory"
    return "exception"


def in_words(error: BaseException) -> str:
    """Return the exception's type and the first lines of what it says."""
    text = str(error).strip()
    lines = text.splitlines()[:6]
    return f"{type(error).__name__}: " + "\n".join(lines) if lines else type(error).__name__
