"""How long cases should take, judging by earlier runs, and in which order; reports long ones."""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench_lib.engine.processes import FORK
from bench_lib.engine.settings import Settings
from bench_lib.model import COMPILE_MODES, Case
from bench_lib.storage.lines import HistoryError
from bench_lib.storage.runs import Runs

RUNS = 5
"""So many of the last runs are searched for the newest that measured a case."""


def name_of(nodeid: str) -> str:
    """Return a short name of a test: its case's id, or its function's name."""
    _, bracket, parameters = nodeid.partition("[")
    return parameters.rstrip("]") if bracket else nodeid.rpartition("::")[2]


@dataclass(frozen=True)
class Pace:
    """What the last runs know about cases, by case id and by node id."""

    seconds: Mapping[str, float]
    """What one process takes, without the start of workers, which may fall to any case."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """The id of the device that measured it last."""

    def of(self, nodeid: str) -> float | None:
        """Return the seconds that a test, or a case by its id, may take; None if not known."""
        return self.seconds.get(nodeid, self.seconds.get(name_of(nodeid)))

    def device_of(self, nodeid: str) -> str:
        """Return the id of the device that measured a test last; empty if unknown."""
        return self.devices.get(nodeid) or self.devices.get(name_of(nodeid), "")


def read(folder: Path, key: str, *, but: str = "") -> Pace:
    """Return what the last runs on a kind of hardware know, without the run ``but``.

    Files and lines that cannot be read are skipped.
    """
    seconds: dict[str, float] = {}
    devices: dict[str, str] = {}
    with contextlib.suppress(HistoryError):
        for run in Runs(folder).latest(key, RUNS, but=but):
            took: dict[str, float] = defaultdict(float)
            for record in run.records.values():
                first = [a for a in record.attempts if not a.replays and not a.confirms]
                if not first:
                    continue
                total_s = sum(max(0.0, a.took_s - a.phases_s.get(FORK, 0.0)) for a in first)
                names = {record.case.id, record.nodeid or record.case.id}
                for name in names:
                    took[name] += total_s / len({a.process for a in first})
                if (uuid := first[-1].device_uuid) is not None:
                    devices = dict.fromkeys(names, uuid) | devices
            seconds = took | seconds
    return Pace(seconds, devices)


_COMPILED = re.compile(
    rf"-({'|'.join(mode for mode in COMPILE_MODES if mode not in ('eager', 'graph'))})(-|$)"
)


def is_compiled(nodeid: str) -> bool:
    """Whether the id of a test's case, or of a case, has a mode that compiles."""
    return _COMPILED.search(name_of(nodeid)) is not None


def in_order(names: Iterable[str], pace: Pace) -> dict[str, float]:
    """Return the seconds that each case may take, in the order of measuring.

    Compiled ones come first, so that devices compile at the same time, and not while another one
    measures; then the longest, so that devices end together.  An unknown time is the median.
    """
    known = {name: pace.of(name) for name in names}
    usual = statistics.median([taken for taken in known.values() if taken is not None] or [1.0])
    takes = {name: usual if taken is None else taken for name, taken in known.items()}
    return dict(sorted(takes.items(), key=lambda item: (not is_compiled(item[0]), -item[1])))


LONG_S = 10.0
"""A case that takes longer is reported."""
MOST_SILENT_S = 30.0
"""Nobody waits longer for the next line about it."""


@contextlib.contextmanager
def spoken(
    settings: Settings, case: Case, phase: str = "starting a process"
) -> Iterator[Callable[[str, float | None], None]]:
    """Say in which phase a case is after 10, 20 and 40 seconds, and then every 30 seconds.

    Say so at once where a process still takes ten seconds or more.  Yields the function that learns
    of each later phase, and of the seconds left, which are infinite where a process begins.
    """
    is_over, began_s = threading.Event(), time.monotonic()
    told_s, told_at_s, said_s = math.inf, began_s, -math.inf
    is_alone = settings.processes == len(settings.sides) == 1

    def say() -> None:
        nonlocal said_s
        said_s = now_s = time.monotonic()
        line = f"{case.id}: {now_s - began_s:.0f} s so far ({phase})"
        if 1 <= (left_s := told_at_s + told_s - now_s) < math.inf:
            line += f", about {left_s:.0f} s left{'' if is_alone else ' of this process'}"
            if told_s > case.time_limit_s:
                line += f", but the limit is {case.time_limit_s:g} s"
        settings.say(line)

    def enter(name: str, left_s: float | None = None) -> None:
        nonlocal phase, told_s, told_at_s
        phase = name
        if left_s is None:
            return
        is_news, told_s, told_at_s = math.isinf(told_s), left_s, time.monotonic()
        if is_news and LONG_S <= left_s < math.inf:
            say()

    def watch() -> None:
        while not is_over.wait(min(max(LONG_S, time.monotonic() - began_s), MOST_SILENT_S)):
            if time.monotonic() - said_s >= LONG_S / 2:
                say()

    watcher = threading.Thread(target=watch, daemon=True)
    try:
        watcher.start()  # where Ctrl-C may come, too
        yield enter
    finally:
        is_over.set()
        if watcher.is_alive():
            watcher.join()
