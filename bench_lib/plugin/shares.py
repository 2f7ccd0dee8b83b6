"""``--perf-share K/N``: one of N parts of the cases, for jobs that have one device each."""

from __future__ import annotations

import argparse
import re

import pytest

from bench_lib.plugin.devices import device_of


def share(text: str) -> tuple[int, int]:
    """Read ``2/4``; raises ArgumentTypeError."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no share; 2/4 is the second of four parts of the cases"
        )
    return int(match[1]), int(match[2])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of this share: a case is in the same one whatever else is selected."""
    if (chosen := config.getoption("perf_share")) is None:
        return
    number, count = chosen
    ours: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (ours if device_of(item.nodeid, count) == number - 1 else others).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = ours
        config.stash[_OTHERS] = len(others)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Call a share without a test no failure, where other shares have some."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.stash.get(_OTHERS, 0):
        session.exitstatus = pytest.ExitCode.OK


_OTHERS = pytest.StashKey[int]()
