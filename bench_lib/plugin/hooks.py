"""The part of the pytest plugin that is loaded when tests of ours are collected.

``running`` measures them and reports verdicts; it is not loaded where tests are only listed.
"""

from __future__ import annotations

from typing import Any

import pytest

from bench_lib.cases.axes import MatrixError
from bench_lib.cases.matrix import cases_of
from bench_lib.launch.faults import LaunchError
from bench_lib.model import Case
from bench_lib.plugin import devices
from bench_lib.plugin.devices import ASSIGNMENT
from bench_lib.plugin.session import SELECTION, Selection, read_options


def pytest_configure(config: pytest.Config) -> None:
    """Read the options; under xdist check that there is a device for every worker."""
    options = read_options(config)
    if config.option.collectonly:
        session = Selection(config, options)
    else:
        from bench_lib.plugin import running  # noqa: PLC0415 - not needed for collecting alone

        config.pluginmanager.register(running, "bench_lib.running")
        session = running.begin(config, options)
    config.stash[SELECTION] = session
    config.pluginmanager.register(devices, "bench_lib.devices")
    if session.options.asked_for and getattr(config.option, "tx", None):
        devices.refuse_too_many(config, session.devices)
        config.option.benchmark_disable = True  # or pytest-benchmark would warn that it is
        config.stash[ASSIGNMENT] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """End the session if cases cannot be read: every file would report the same error.

    In xdist's workers it stays an error of the file, which xdist reports once.
    """
    session = node.config.stash[SELECTION]
    if isinstance(node, pytest.Collector) and session.failed and not session.is_worker:
        raise pytest.UsageError(session.failed)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a starting xdist worker its device, and how to join the processes that measure there."""
    if (assigned := node.config.stash.get(ASSIGNMENT, None)) is not None:
        session = node.config.stash[SELECTION]
        count = len(session.devices)
        index = min(set(range(count)) - set(assigned.values()))
        node.workerinput[devices.DEVICE] = assigned[node.gateway.id] = index
        node.workerinput[devices.WORKERS] = session.share(index, count)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Free the device of an xdist worker that ended; its replacement takes it."""
    if (assigned := node.config.stash.get(ASSIGNMENT, None)) is not None:
        assigned.pop(node.gateway.id, None)


def collect(collector: pytest.Collector, mark: pytest.Mark) -> list[Any] | None:
    """Return None if pytest is to make tests of a function, and [] if it has no case."""
    try:
        cases = _cases(collector.config, mark)
    except (MatrixError, LaunchError) as error:
        raise pytest.Collector.CollectError(str(error)) from error
    collector.config.stash[SELECTION].lacks_cases |= not cases
    return None if cases else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize ``case`` over the matrix."""
    mark = metafunc.definition.get_closest_marker("perf_cases")
    if mark is None:
        return
    cases = _cases(metafunc.config, mark)
    parameters = [pytest.param(case, id=case.id) for case in cases]
    metafunc.parametrize("case", parameters)


def _cases(config: pytest.Config, mark: pytest.Mark) -> list[Case]:
    """Return the tier's cases of the table that the mark names: ``networks``, ``factory``."""
    session = config.stash[SELECTION]
    table = mark.args[0] if len(mark.args) == 1 else None
    try:
        cases = session.cases[session.tier]
    except (MatrixError, LaunchError) as error:
        session.failed = str(error)
        raise
    return cases_of(table, cases, session.workloads)


def _ranks(item: pytest.Item) -> int:
    callspec: Any = getattr(item, "callspec", None)
    case = None if callspec is None else callspec.params.get("case")
    return case.launch.ranks if isinstance(case, Case) else 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put cases of several ranks last, by number of ranks, as ranks stay for the next case."""
    items.sort(key=_ranks)
