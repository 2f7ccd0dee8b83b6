"""allure-pytest: a second result for a test that passed before its verdict, and then did not.

allure-pytest writes a test's result when the test ends, before its verdict.  If a test has several
results, allure shows the latest and calls the others retries.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

import pytest


def remember(config: pytest.Config, held: pytest.TestReport) -> None:
    """Attach the result that allure is about to write to a held report."""
    listener: Any = config.pluginmanager.get_plugin("allure_listener")
    if listener is None:
        return
    from attr import asdict  # noqa: PLC0415 - comes with allure

    result = listener.allure_logger.get_test(None)
    known = asdict(result, filter=lambda _, value: value is not None)
    held.perf_allure = json.dumps(known)  # type: ignore[attr-defined]  # reports take what plugins add


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a second result where the published outcome is not ``passed``."""
    remembered = getattr(report, "perf_allure", None)
    if remembered is None or report.passed:
        return
    from allure_commons import plugin_manager  # noqa: PLC0415 - not always there
    from allure_commons.model2 import StatusDetails, TestResult  # noqa: PLC0415

    words = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    stop = time.time_ns() // 10**6
    result = TestResult(**json.loads(remembered))
    result.uuid, result.status = str(uuid.uuid4()), report.outcome
    result.statusDetails = StatusDetails(message=words.partition("\n")[0], trace=words)
    result.start, result.stop = stop - round(1000 * report.duration), stop
    plugin_manager.hook.report_result(result=result)
