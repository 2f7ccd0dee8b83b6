"""pytest-timeout: the timeout of a test is the time limit of each case that it measures.

pytest-timeout interrupts a test wherever it is, or ends the process.  Either would leave a worker
in the middle of a case, and the second would lose the verdicts of all cases before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from bench_lib.model import Case, Fault

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
