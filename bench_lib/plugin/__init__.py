"""The part of the pytest plugin that every pytest run of the environment loads.

It declares options and looks for tests that measure.  ``hooks`` does the rest, and is loaded when
an option, a setting or a test asks for it.  Until then a run pays for this module and for
``declared``: nothing is imported here but pytest.

Loaded by the entry point of the same name, or by a plain checkout's conftest.py.

PYTEST_DONT_REWRITE: there is no ``assert`` here, and a suite that turns warnings into errors would
not start where this module was imported before pytest could rewrite it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.compat import safe_getattr

from bench_lib.plugin.declared import add_options, asked_for, is_left_out, measures

if TYPE_CHECKING:
    from bench_lib.plugin.running import Perf

HOOKS = "bench_lib.hooks"
"""The rest, by its name as a plugin."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare our options."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Load the rest before collection where an option or a path asks for measuring."""
    config.addinivalue_line(
        "markers", "perf_cases(workload): parametrize `case` over a workload of the matrix"
    )
    if asked_for(config):
        load(config)


def load(config: pytest.Config) -> None:
    """Import and register the rest, the first time."""
    from bench_lib.plugin import hooks  # noqa: PLC0415 - not needed in a run without our tests

    if not config.pluginmanager.hasplugin(HOOKS):
        config.pluginmanager.register(hooks, HOOKS)  # pytest configures it at once


@pytest.hookimpl(optionalhook=True, tryfirst=True)  # or xdist counts CPUs, if it was loaded later
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """``-n auto`` in a session that measures means one worker a device."""
    if not asked_for(config):
        return None
    from bench_lib.plugin.session import Selection, read_options  # noqa: PLC0415 - as in `load`

    return len(Selection(config, read_options(config)).devices)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Have a bare ``pytest`` measure nothing: ``perf_paths`` are for runs that name them."""
    return True if is_left_out(collection_path, config) else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[Any] | None:
    """Collect nothing from a test whose workload has no case in this tier; that is no skip."""
    marks = safe_getattr(obj, "pytestmark", None)  # a module may hold objects of any kind
    if isinstance(marks, list):
        for mark in marks:
            if safe_getattr(mark, "name", None) == "perf_cases":
                load(collector.config)
                from bench_lib.plugin import hooks  # noqa: PLC0415 - as in `load`

                return hooks.collect(collector, mark)
    return None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Load the rest with the first test that measures."""
    if measures(item):
        load(item.config)


@pytest.fixture
def perf(request: pytest.FixtureRequest) -> Perf:
    """Measure cases: ``perf.measure(case)``."""
    load(request.config)
    from bench_lib.plugin.measuring import SESSION  # noqa: PLC0415 - as in `load`
    from bench_lib.plugin.running import Perf  # noqa: PLC0415

    return Perf(request, request.config.stash[SESSION])
