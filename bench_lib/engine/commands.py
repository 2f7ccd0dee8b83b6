"""Reads the times of an external program's step from the result that the program writes."""

from __future__ import annotations

import math
from dataclasses import replace

from bench_lib.launch.faults import CaseFault
from bench_lib.model import Case, Fault, Measurement
from bench_lib.storage.foreign import FORMATS
from bench_lib.storage.foreign.figures import FormatError

WORKLOADS = ("command", "bench_lib.worker.workloads.command:command")
"""The workload of an external program, by its name and as a matrix has it."""


def problem(case: Case) -> str:
    """Say why no result of a case could ever be read; empty where one could."""
    name = case.params.get("format", "")
    return "" if name in ("", *FORMATS) else f"format is {name!r}; choose from {', '.join(FORMATS)}"


def timed(case: Case, measurement: Measurement) -> Measurement:
    """Return a measurement with the times from its documents; raises CaseFault."""
    if not measurement.documents:
        return measurement
    try:
        seconds = [_seconds(case, document) for document in measurement.documents]
    except ValueError as error:
        message = f"the client's result cannot be read: {error}"
        raise CaseFault(Fault("exception", message, "measure")) from error
    return replace(measurement, iteration_s=seconds, documents=[])


def _seconds(case: Case, document: str) -> float:
    """Return the one figure that a case asks for, of a rate the time of one; raises ValueError."""
    form = FORMATS.get(str(case.params.get("format")))
    if form is None:
        raise FormatError(problem(case))
    figures = list(form.figures(document.encode()))
    metric, of = case.params.get("metric", ""), case.params.get("of", "")
    matches = [f for f in figures if metric in ("", f.metric.name) and of in ("", f.case)]
    if len(matches) != 1:
        names = ", ".join(dict.fromkeys(f"{f.metric.name} of {f.case}" for f in figures))
        raise FormatError(f"select one figure with metric and of; it has {names or 'none'}")
    figure = matches[0]
    if figure.problem:
        raise FormatError(figure.problem)
    if not (math.isfinite(figure.value) and figure.value > 0):
        raise FormatError(f"{figure.metric.label} is {figure.value:g}; it must be above zero")
    if figure.metric.more_is_better:
        return 1 / figure.value
    if figure.metric.unit != "s":
        raise FormatError(f"{figure.metric.name} is neither a time nor a rate")
    return figure.value
