"""Which device measures which case: one per xdist worker, and the parts of ``--perf-share``.

``--perf-share K/N`` takes one of N parts of the cases, for jobs that have one device each.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from bench_lib.formats import many

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
    if workers > len(devices):
        raise pytest.UsageError(
            f"-n {workers}: a device measures one case at a time, and this machine has "
            f"{many(len(devices), 'device')} ({devices[0].key}); use -n {len(devices)}, or -n auto"
        )


ASSIGNMENT = pytest.StashKey[dict[str, int]]()
"""The index of each xdist worker's device; kept by the controller, since names change."""


def part_of(nodeid: str, count: int) -> int:
    """Return which of ``count`` parts a test is in, from 0, by a stable hash of its case's id.

    It stays there whatever else is selected.
    """
    _, bracket, parameters = nodeid.partition("[")
    name = parameters.rstrip("]") if bracket else nodeid
    return zlib.crc32(name.encode()) % count


def next_for(device: int, takes: Mapping[str, float], homes: Mapping[str, int]) -> str:
    """Return the case that a free device measures next, of those that wait, in their order.

    It is the first that was measured there last, or nowhere.  If there is none, the device helps
    the one that would be busy for longest.
    """
    left: dict[int, float] = defaultdict(float)
    for name, taken in takes.items():
        left[homes.get(name, device)] += taken
    queue = device if device in left else max(left, key=left.__getitem__)
    return next(name for name in takes if homes.get(name, device) == queue)


def scheduling(
    config: pytest.Config,
    log: Any,
    plan: Callable[[Sequence[str]], tuple[Mapping[str, float], Mapping[str, int]]],
) -> Any:
    """Return a scheduler for xdist by which devices end together.

    ``plan`` returns the seconds that each test may take, in the order of measuring, and the device
    that measured it last, where one of these did.
    """
    from xdist.scheduler.load import LoadScheduling  # noqa: PLC0415 - xdist is not always installed

    class DeviceScheduling(LoadScheduling):  # type: ignore[misc]  # xdist has no types
        """A worker is sent one test when it begins another: it has to know which one follows."""

        def schedule(self) -> None:
            self.maxschedchunk = 1
            ids = next(iter(self.node2collection.values()))
            self._takes, self._homes = plan(ids)
            # In the order of the devices, not in that in which workers were ready: so the first
            # cases are on the same ones in every run.
            for node in sorted(self.nodes, key=lambda node: node.workerinput[DEVICE]):
                self.node2pending[node] = self.node2pending.pop(node)
            super().schedule()

        def check_schedule(self, node: Any, duration: float = 0) -> None:
            super().check_schedule(node, max(duration, 1.0))  # else short tests bring several

        def _send_tests(self, node: Any, num: int) -> None:
            for _ in range(min(num, len(self.pending))):
                waiting = {self.collection[index]: index for index in self.pending}
                takes = {name: s for name, s in self._takes.items() if name in waiting}
                index = waiting[next_for(node.workerinput[DEVICE], takes, self._homes)]
                self.pending.remove(index)
                self.node2pending[node].append(index)
                node.send_runtest_some([index])

    return DeviceScheduling(config, log)


# --- shares --------------------------------------------------------------------------------


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
