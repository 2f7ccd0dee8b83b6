"""Other plugins of pytest: what pytest-benchmark is given, and how pytest-timeout is kept waiting.

When everything is judged, the process that has all records gives pytest-benchmark's session one
benchmark for each measured case, under pytest-xdist too.

The timeout of a test is the time limit of each case that it measures.  pytest-timeout interrupts a
test wherever it is, or ends the process: either would leave a worker in the middle of a case, and
the second would lose the verdicts of all cases before.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from bench_lib import backends
from bench_lib.engine.suite import Suite
from bench_lib.model import Case, Fault
from bench_lib.plugin.measuring import SESSION
from bench_lib.report.benchmarks import TIMER, benchmarks, gpu

# --- pytest-benchmark ----------------------------------------------------------------------

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


# --- pytest-timeout ------------------------------------------------------------------------

SETTINGS = pytest.StashKey[Any]()
"""Pytest-timeout's settings of a test, from when it sets the timer."""


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Note the timeout, and leave the timer to pytest-timeout."""
    item.stash[SETTINGS] = settings


def limited(item: pytest.Item, case: Case) -> Case:
    """Return a case with the test's timeout as its limit, if that is shorter."""
    settings = item.stash.get(SETTINGS, None)
    limit_s = case.time_limit_s if settings is None else float(settings.timeout)
    return replace(case, time_limit_s=min(case.time_limit_s, limit_s))


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


def remedy(case: Case, own: Case, fault: Fault) -> str:
    """Return what to do if a case reached a limit shorter than its ``own``; else nothing."""
    if fault.kind != "time limit" or case.time_limit_s == own.time_limit_s:
        return ""
    return (
        "\nthe limit is pytest-timeout's; "
        f"@pytest.mark.timeout({own.time_limit_s:g}) allows the test more"
    )
