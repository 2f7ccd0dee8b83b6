"""Other pytest plugins: pytest-benchmark is given the samples, pytest-timeout is paused.

A timeout interrupts a test wherever it is, or ends the process: either would leave a worker in the
middle of a case, and the second would lose the verdicts of all cases before.  A case has a time
limit of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from bench_lib import backends
from bench_lib.plugin.measuring import SESSION
from bench_lib.report.benchmarks import benchmarks, gpu

ASKS = ("autosave", "compare", "compare_fail", "histogram", "json", "save")
"""Options of pytest-benchmark that want its files or its table, which is wider than a terminal."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    """Give pytest-benchmark each case, also xdist's, before it writes, compares and groups."""
    config = session.config
    plugin, suite = config.pluginmanager.get_plugin("pytest-benchmark"), config.stash[SESSION].suite
    is_asked = any(config.getoption(f"benchmark_{name}", default=None) for name in ASKS)
    if plugin is not None and suite is not None and is_asked:
        pairs = [(record, suite.hardware_of(record)) for record in suite.records.values()]
        plugin.benchmarks.extend(benchmarks(pairs))
    return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    """Name the device in pytest-benchmark's machine info, which knows CPUs only."""
    device = config.stash[SESSION].device()
    if backends.is_gpu(device):
        machine_info["gpu"] = gpu(device)


SETTINGS = pytest.StashKey[Any]()
"""Pytest-timeout's settings of a test, from when it sets the timer."""


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Note the timeout, and leave the timer to pytest-timeout."""
    item.stash[SETTINGS] = settings


@contextlib.contextmanager
def held_off(item: pytest.Item) -> Iterator[None]:
    """Stop the test's timer while a case is measured, and start it anew afterwards."""
    settings = item.stash.get(SETTINGS, None)
    if settings is None:
        yield
        return
    item.config.hook.pytest_timeout_cancel_timer(item=item)
    try:
        yield
    finally:
        item.config.hook.pytest_timeout_set_timer(item=item, settings=settings)
