"""A case's properties in JUnit's XML beside its outcome: docs/terminal.md lists the names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from _pytest.junitxml import xml_key

from bench_lib import formats
from bench_lib.model import Record
from bench_lib.report import console
from bench_lib.verdict import judge

Property = tuple[str, str]
MOST_REASON = 240
"""Characters of a reason in a property; a failure's text has all."""


def of_test(records: Sequence[Record], run_id: str) -> list[Property]:
    """Return a test's properties: its first case's, and by name those of others it measured."""
    found: list[Property] = []
    for number, record in enumerate(records):
        of = f"[{record.case.id}]" if number else ""
        found += [(f"{name}{of}", value) for name, value in of_case(record, run_id)]
    return found


def of_case(record: Record, run_id: str) -> list[Property]:
    """Return a case's properties; unknown ones are left out."""
    found: dict[str, str | float | None] = {
        "perf_status": console.standing(record),
        "perf_case": record.case.id,
        "perf_run": run_id,
    }
    if record.attempts:
        found["perf_hardware"] = record.attempts[-1].hardware_key
    if (timing := console.timing_of(record)) is not None:
        found["perf_ratio"] = timing.ratio
        if timing.interval is not None:
            found["perf_ratio_low"], found["perf_ratio_high"] = timing.interval
        found["perf_detectable_effect"] = timing.detectable_effect
    if (figures := console.figures(record)) is not None:
        found["perf_median_s"] = figures.median_s
        found["perf_rate"] = figures.rate
        found["perf_rate_unit"] = f"{figures.item}/s"
        found["perf_peak_memory_bytes"] = figures.peak_memory_bytes
    if record.verdicts:
        verdict = judge.leading(record.verdicts)
        found["perf_metric"] = verdict.metric
        found["perf_reason"] = formats.shortened(verdict.reason, MOST_REASON)
    return [
        (name, f"{value:.6g}" if isinstance(value, float) else str(value))
        for name, value in found.items()
        if value is not None
    ]


def of_suite(
    config: pytest.Config, records: Iterable[Record], run_id: str, torch: Iterable[str]
) -> None:
    """Have JUnit's XML, if one is written, name the suite's environment."""
    xml = config.stash.get(xml_key, None)
    if xml is None:
        return
    attempts = [attempt for record in records for attempt in record.attempts]
    for name, values in (
        ("perf_run", {run_id}),
        ("perf_hardware", {attempt.hardware_key for attempt in attempts}),
        ("perf_torch", set(torch)),
        ("perf_environment", {attempt.environment for attempt in attempts}),
    ):
        if values:
            xml.add_global_property(name, ", ".join(sorted(values)))
