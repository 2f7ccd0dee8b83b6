"""``python -m bench_lib.engine.telemetry '<Hardware as JSON>' [once]``: print what one device does.

One JSON object a line, up to 20 a second, stamped on the machine's monotonic clock, or a single
one.  It ends when standard input closes, and so with its parent however that ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from bench_lib import backends
from bench_lib.backends.looks import PERIOD_S, PIDS_EVERY, Source, cause_of, kin, run_of, tells
from bench_lib.backends.sysfs import ROOT
from bench_lib.model import Hardware

RETRY_S = 10.0
"""Interval between two readings of a device that no longer reports anything."""
SILENT_LOOKS = 3
"""So many in a row without any figure mean that it no longer reports anything."""


def watch(
    choose_source: Callable[[], Source],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[dict[str, Any]]:
    """Look at a device for ever, each look with its time, its source and when the next is due.

    A device that fails or falls silent later has ``trouble`` instead of figures, and is looked at
    less often, in whichever way works then.  Raises what the first ``choose_source`` raises.
    """
    source = choose_source()
    pause_s = 0.0
    silent, is_known, looks = 0, False, 0
    while True:
        sleep(pause_s)
        begin = clock()
        reading: dict[str, Any] = {}
        trouble: str | None = None
        try:
            reading = source.look(with_pids=looks % PIDS_EVERY == 0)
        except Exception as error:  # noqa: BLE001 - a GPU that is gone fails in many ways
            trouble = f"{source.name}: {cause_of(error)}"
        end = clock()
        looks += 1
        is_known = is_known or tells(reading)
        silent = 0 if tells(reading) or not is_known else silent + 1
        if trouble is None and silent >= SILENT_LOOKS:
            trouble = f"{source.name} no longer reports anything about the device"
        pause_s = max(PERIOD_S - (end - begin), end - begin)
        if trouble is not None:
            pause_s = max(pause_s, RETRY_S)
            reading = {"trouble": trouble}
        yield {"t": (begin + end) / 2, "source": source.name, "due": end + pause_s, **reading}
        if trouble is not None:
            looks = 0
            # Numbers and handles may name something else now; a failure is reported already.
            with contextlib.suppress(Exception):
                source = choose_source()


def main(arguments: Sequence[str]) -> None:
    """Print samples of the device that the first argument describes, until stdin closes."""
    described, *mode = arguments
    out, ancestor = _own_stdout(), run_of(os.getppid(), os.environ)
    if not mode:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        device = Hardware(**json.loads(described))
        looks = watch(lambda: backends.of(device).telemetry(device, ROOT, ancestor))
        for look in looks if not mode else _once(looks):
            _say(out, {**look, "kin": kin(look.get("pids", ()), ancestor)})
    except BrokenPipeError:
        os._exit(0)
    except Exception as error:  # noqa: BLE001 - the parent hears the cause, not a traceback
        _say(out, {"t": time.monotonic(), "error": cause_of(error)})


def _once(looks: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one look; also the one before, if it needs one, as for a CPU's load."""
    first = next(looks)
    if first.get("utilization") is not None:
        return [first]
    second = next(looks)
    return [{**first, **{name: value for name, value in second.items() if value is not None}}]


def _own_stdout() -> TextIO:
    """Keep standard output for our own lines: libraries print to whatever is open."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return out


def _end_with_parent() -> None:
    """End this process, wherever it may be stuck, once nobody holds its standard input."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os._exit(0)


def _say(out: TextIO, values: dict[str, Any]) -> None:
    out.write(json.dumps(values) + "\n")
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
