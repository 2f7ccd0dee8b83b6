"""Which way of looking at a device works here, and looking that way again and again."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench_lib.engine.telemetry import amd_kernel, amd_package, amd_tools, cpu, nvml
from bench_lib.engine.telemetry.looks import NothingToldError, Source, tells
from bench_lib.hardware.sysfs import ROOT
from bench_lib.model import Hardware
from bench_lib.rocm.tool import ToolError

RETRY_S = 10.0
"""Between two looks at a device that tells nothing any more."""
SILENT_LOOKS = 3
"""So many in a row without any figure mean that it tells nothing any more."""

AMD_WAYS: Mapping[str, Callable[[Hardware, Path], Source]] = {
    "the amdsmi package": amd_package.source,
    "the kernel's files": amd_kernel.source,
    "amd-smi": amd_tools.amd_smi_source,
    "rocm-smi": amd_tools.rocm_smi_source,
}
"""From the cheapest and richest to the last resort."""


def choose(
    device: Hardware,
    root: Path = ROOT,
    amd_ways: Mapping[str, Callable[[Hardware, Path], Source]] = AMD_WAYS,
    *,
    ancestor: int = 0,
) -> Source:
    """Choose how to look at a device; raises with the causes where there is no way.

    What descends from `ancestor` is not asked whether it is busy.
    """
    if device.vendor == "nvidia":
        return nvml.source(device, importlib.import_module("pynvml"), ancestor)
    if device.vendor != "amd":
        return cpu.source(root)
    causes, poor = [], None
    for name, way in amd_ways.items():
        try:
            source = way(device, root)
            seen = source.look(with_pids=False)
        except Exception as error:  # noqa: BLE001 - a vendor's library fails in its own ways
            causes.append(f"{name}: {cause_of(error)}")
            continue
        if tells(seen, "clock_mhz", "power_w"):
            return source
        poor = poor or (source if tells(seen) else None)
        causes.append(f"{name}: neither a clock nor a power")
    if poor is None:
        raise NothingToldError("; ".join(causes))
    return poor


def cause_of(error: Exception) -> str:
    """Say what went wrong; an error of ours or a tool's speaks for itself."""
    is_ours = isinstance(error, (ToolError, NothingToldError))
    return str(error) if is_ours else f"{type(error).__name__}: {error}"


def watch(
    choose_source: Callable[[], Source],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[dict[str, Any]]:
    """Look at a device for ever, each look with its time, its source and when the next is due.

    A device that fails or falls silent later has ``trouble``, no figures, and is looked at
    more slowly, in whichever way works then.  Raises what choosing the first time raises.
    """
    begin = clock()
    source = choose_source()
    pause_s = source.pause_s(clock() - begin) if source.is_command else 0.0
    silent, is_known, looks = 0, False, 0
    while True:
        sleep(pause_s)
        begin = clock()
        seen, trouble = _attempt(source, with_pids=looks % source.pids_every == 0)
        end = clock()
        looks += 1
        is_known = is_known or tells(seen)
        silent = 0 if tells(seen) or not is_known else silent + 1
        if trouble is None and silent >= SILENT_LOOKS:
            trouble = f"{source.name} tells nothing of the device any more"
        pause_s = source.pause_s(end - begin)
        if trouble is not None:
            pause_s = max(pause_s, RETRY_S)
            seen = {"trouble": trouble}
        due = end + pause_s + source.patience_s
        yield {"t": (begin + end) / 2, "source": source.name, "due": due, **seen}
        if trouble is not None:
            source, looks = _again(choose_source, source), 0


def _attempt(source: Source, *, with_pids: bool) -> tuple[dict[str, Any], str | None]:
    try:
        return source.look(with_pids=with_pids), None
    except Exception as error:  # noqa: BLE001 - a GPU that is gone fails in many ways
        return {}, f"{source.name}: {cause_of(error)}"


def _again(choose_source: Callable[[], Source], before: Source) -> Source:
    """Choose anew, since numbers and handles may name something else now."""
    try:
        return choose_source()
    except Exception:  # noqa: BLE001 - named already, as trouble
        return before
