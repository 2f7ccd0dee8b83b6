"""``python -m bench_lib.telemetry '<Hardware as JSON>'``: print what one device does.

One JSON object a line, about 20 a second, stamped on the machine's monotonic clock, until
standard input closes, so that this process ends with its parent however that ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from bench_lib.model import Hardware
from bench_lib.telemetry import PERIOD_S
from bench_lib.telemetry.sources import look_at

PIDS_EVERY = 10
"""Samples between two looks for processes, which takes driver locks that launches need."""


def _end_with_parent() -> None:
    """End this process, wherever else it is stuck, once nobody holds its standard input."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os._exit(0)


def _say(values: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> None:
    """Print samples of the device that the only argument describes, until stdin closes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pids: list[int] = []
    try:
        look = look_at(Hardware(**json.loads(arguments[0])))
        due = time.monotonic()
        for count in range(sys.maxsize):
            t = time.monotonic()
            seen = look(with_pids=count % PIDS_EVERY == 0)
            pids = seen.get("pids", pids)
            _say({"t": t, **seen, "pids": pids})
            # Late is late: samples that were missed are not made up for.
            due = max(due + PERIOD_S, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
    except BrokenPipeError:
        os._exit(0)
    except Exception as error:  # noqa: BLE001 - the parent hears the cause, not a traceback
        _say({"t": time.monotonic(), "error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main(sys.argv[1:])
