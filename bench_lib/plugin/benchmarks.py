"""Measured samples in pytest-benchmark: its files, its comparison, its table if asked for.

When everything is judged, the process that has all records gives pytest-benchmark's session one
benchmark for each measured case, under pytest-xdist too.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Generator
from typing import Any

import pytest

from bench_lib import backends
from bench_lib.engine.suite import Suite
from bench_lib.plugin.measuring import SESSION
from bench_lib.report.benchmarks import TIMER, benchmarks, gpu

TABLE = tuple(
    f"--benchmark-{name}"
    for name in (
        *("columns", "compare", "group-by", "histogram", "name", "only", "sort", "time-unit"),
        "verbose",
    )
)
"""Options that are about pytest-benchmark's table; it is far wider than a terminal."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    """Fill pytest-benchmark's session before it writes, compares and groups."""
    perf_session = session.config.stash[SESSION]
    theirs, suite = _session(session.config), perf_session.suite
    if theirs is not None and perf_session.shows_benchmarks and suite is not None:
        try:
            _fill(theirs, suite)
        except Exception as error:  # noqa: BLE001 - of any kind: it only displays what was measured
            name = type(error).__name__
            perf_session.say(f"pytest-benchmark does not show every case: {name}: {error}")
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(config: pytest.Config) -> None:
    """Take measured cases out of pytest-benchmark's table, where no option asks for it."""
    session = _session(config)
    if session is None or not session.groups or _asks_for_table(config):
        return
    ours = {each.fullname for each in session.benchmarks if each.options.get("timer") == TIMER}
    kept = (
        (name, [b for b in group if b["fullname"] not in ours]) for name, group in session.groups
    )
    session.groups = [(name, group) for name, group in kept if group]


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    """Name the device in pytest-benchmark's machine info, which knows CPUs only."""
    device = config.stash[SESSION].device()
    if backends.is_gpu(device):
        machine_info["gpu"] = gpu(device)


def _session(config: pytest.Config) -> Any:
    """Return pytest-benchmark's session, by its own name: the plugin may have any; or None."""
    return config.pluginmanager.get_plugin("pytest-benchmark")


def _fill(session: Any, suite: Suite) -> None:
    """Give pytest-benchmark's session the first accepted samples of every case."""
    records = suite.records.values()
    session.benchmarks.extend(benchmarks([(each, suite.hardware_of(each)) for each in records]))


def _asks_for_table(config: pytest.Config) -> bool:
    """Whether an option on the command line, in the ini file or the environment is about it."""
    given = [*config.invocation_params.args, *config.getini("addopts")]
    given += shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    return any(str(word).startswith(TABLE) for word in given)
