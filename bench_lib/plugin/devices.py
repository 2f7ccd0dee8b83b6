"""Which device measures which case: one per xdist worker, and the parts of ``--perf-share``.

``--perf-share K/N`` takes one of N parts of the cases, for jobs that have one device each.
"""

from __future__ import annotations

import argparse
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from bench_lib import backends

if TYPE_CHECKING:
    from bench_lib.model import Hardware

DEVICE = "perf_device"
"""Key in a worker's input: the index of its device."""
WORKERS = "perf_workers"
"""Key there: how to join the workers that the controller has started for that device."""
_OTHERS = pytest.StashKey[int]()
"""How many tests are in other shares."""


def refuse_too_many(config: pytest.Config, devices: Sequence[Hardware]) -> None:
    """Raise UsageError if more workers were asked for than there are devices."""
    workers = len(getattr(config.option, "tx", None) or [])
    if workers <= len(devices):
        return
    if not backends.is_gpu(devices[0]):
        raise pytest.UsageError(
            f"-n {workers}: this machine has no GPU, and {workers} workers on one CPU would "
            "take its cores from each other and make every timing wrong; use -n 1, or leave "
            "-n out"
        )
    raise pytest.UsageError(
        f"-n {workers}: there are {len(devices)} devices ({devices[0].key}) and a device "
        f"measures one case at a time; use -n {len(devices)}, or -n auto"
    )


class Assignment:
    """The device of each xdist worker; kept by the controller, since names change."""

    def __init__(self, count: int) -> None:
        """Hand out devices 0 to ``count`` - 1."""
        self.count = count
        self._held: dict[str, int] = {}

    def take(self, worker: str) -> int:
        """Return a free device for a worker that starts."""
        free = sorted(set(range(self.count)) - set(self._held.values()))
        self._held[worker] = free[0]
        return free[0]

    def give_back(self, worker: str) -> None:
        """Free the device of a worker that ended; its replacement takes it."""
        self._held.pop(worker, None)


ASSIGNMENT = pytest.StashKey[Assignment]()


def part_of(nodeid: str, count: int) -> int:
    """Return which of ``count`` parts a test is in, from 0, by a stable hash of its case's id.

    It stays there whatever else is selected.
    """
    _, bracket, parameters = nodeid.partition("[")
    name = parameters.rstrip("]") if bracket else nodeid
    return zlib.crc32(name.encode()) % count


def scheduling(
    config: pytest.Config, log: Any, plan: Callable[[Sequence[str], int], Mapping[str, int]]
) -> Any:
    """Return a scheduler for xdist that sends each test to its device's worker.

    ``plan`` returns which of so many devices measures each test, in the order of measuring.
    """
    from xdist.scheduler.each import EachScheduling  # noqa: PLC0415 - xdist is not always installed

    class DeviceScheduling(EachScheduling):  # type: ignore[misc]  # xdist has no types
        """Every worker collects everything and runs only its device's tests."""

        def schedule(self) -> None:
            assert self.collection_is_completed
            for node, pending in self.node2pending.items():
                if node in self._started:
                    continue
                if not pending:
                    device, ids = node.workerinput[DEVICE], self.node2collection[node]
                    places = plan(ids, self.numnodes)
                    order = {nodeid: n for n, nodeid in enumerate(places)}
                    ours = (i for i, nodeid in enumerate(ids) if places[nodeid] == device)
                    pending[:] = sorted(ours, key=lambda i: order[ids[i]])
                node.send_runtest_some(pending)
                node.shutdown()
                self._started.append(node)

    return DeviceScheduling(config, log)


# --- shares --------------------------------------------------------------------------------


def share(text: str) -> tuple[int, int]:
    """Read ``2/4``; raises ArgumentTypeError."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a share; write 2/4 for the second of four parts of the cases"
        )
    return int(match[1]), int(match[2])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of this share: a case is in the same one whatever else is selected."""
    if (chosen := config.getoption("perf_share")) is None:
        return
    number, count = chosen
    ours: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (ours if part_of(item.nodeid, count) == number - 1 else others).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = ours
        config.stash[_OTHERS] = len(others)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Let a share without tests pass where other shares have some."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.stash.get(_OTHERS, 0):
        session.exitstatus = pytest.ExitCode.OK
