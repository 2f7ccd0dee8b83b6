"""pytest-timeout beside us: its timer rests while a case is measured.

It interrupts a test wherever it is, or ends the process: either would leave a worker in the middle
of a case, and the second would lose the verdicts of all cases before.  A case has a time limit of
its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

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
