"""Defines the parameters of each workload: the valid values, and their part of a case's id."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench_lib.model import (
    COMPILE_MODES,
    MEMORY_FORMATS,
    PRECISIONS,
    QUANTIZED,
    TASKS,
    Case,
    Launch,
    Param,
    UserError,
    unknown,
)

LARGEST = 10**9
"""The largest count, size or time in a matrix; a larger one is a typing error."""


class MatrixError(UserError):
    """A matrix is invalid; the message has the file and the place."""


@dataclass(frozen=True)
class Axis:
    """One parameter of a workload: its valid values, and its part of the case's id."""

    name: str
    check: Callable[[Any], str | None]
    """Returns the reason that a value is invalid, or None."""
    default: Param | None = None
    """The value if a table does not have the axis; None makes the axis required."""
    in_id: Callable[[Any], str] = str
    """The value's part of the id; empty leaves it out."""
    passed: bool = True
    """Whether a case's parameters include the default; newer parameters leave it out, so that
    older records still belong to the same case."""
    canonical: Callable[[Any], Any] = lambda value: value
    """Returns one spelling for values that mean the same."""


def choice(name: str, allowed: Sequence[str], default: str | None = None) -> Axis:
    """Return an axis whose value is one of `allowed`."""
    return Axis(name, one_of(name, allowed), default)


def quiet(
    name: str,
    check: Callable[[Any], str | None],
    default: Param | None,
    in_id: Callable[[Any], str] = str,
    *,
    passed: bool = False,
) -> Axis:
    """Return an axis that is part of the id only if its value is not the default."""
    return Axis(
        name, check, default, lambda value: "" if value == default else in_id(value), passed=passed
    )


def optional(
    name: str, check: Callable[[Any], str | None], in_id: Callable[[Any], str] = str
) -> Axis:
    """Return an axis that is empty by default."""
    return quiet(name, lambda value: None if value == "" else check(value), "", in_id)


def switch(name: str, word: str) -> Axis:
    """Return a boolean axis, False by default; the id has `word` if it is True."""

    def check(value: Any) -> str | None:
        if isinstance(value, bool):
            return None
        return f"{name} is {value!r}; it must be true or false"

    return quiet(name, check, default=False, in_id=lambda _value: word)


@dataclass(frozen=True)
class WorkloadAxes:
    """The axes of a workload, in the order of the id."""

    workload: str
    axes: tuple[Axis, ...]
    clash: Callable[[Mapping[str, Any]], str | None] = lambda _chosen: None
    """Returns why values, one for each axis, are an invalid combination, or None."""


def one_of(kind: str, allowed: Sequence[str]) -> Callable[[Any], str | None]:
    """Return a check that a value is one of ``allowed``; the reason suggests similar values."""

    def check(value: Any) -> str | None:
        if value in allowed and isinstance(value, str):
            return None
        return unknown(kind, value, allowed)

    return check


def positive(kind: str, least: int = 1) -> Callable[[Any], str | None]:
    """Return a check that a value is a whole number of ``least`` or more."""

    def check(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            return f"{kind} is {value!r}; it must be a whole number of {least} or more"
        return f"{kind} is {value}; it must be at most {LARGEST}" if value > LARGEST else None

    return check


def refused(function: Callable[[Any], object]) -> Callable[[Any], str | None]:
    """Return a check that calls a function, whose UserError is the reason."""

    def check(value: Any) -> str | None:
        try:
            function(value)
        except UserError as error:
            return str(error)
        return None

    return check


BATCH_SIZE = Axis("batch_size", positive("batch_size"), in_id="b{}".format)
MEMORY_FORMAT = quiet("memory_format", one_of("memory_format", MEMORY_FORMATS), "nchw", passed=True)


def network_axes(sizes: Mapping[str, int]) -> WorkloadAxes:
    """Return the axes of ``networks``; `sizes` are the input sizes in pixels by network."""
    return WorkloadAxes(
        "network",
        (
            choice("network", sorted(sizes)),
            BATCH_SIZE,
            choice("precision", PRECISIONS, "fp32"),
            MEMORY_FORMAT,
            quiet("image_size", positive("image_size", 0), 0, "{}px".format),
            choice("compile_mode", COMPILE_MODES, "eager"),
            replace(
                quiet("compile_options", _options, "", _options_in_id),
                canonical=lambda value: ",".join(sorted(value.split(","))),
            ),
            choice("task", TASKS, "infer"),
            quiet("optimizer_every", positive("optimizer_every"), 1, "opt{}".format),
        ),
        _network_clash,
    )


def _network_clash(chosen: Mapping[str, Any]) -> str | None:
    mode, task = chosen["compile_mode"], chosen["task"]
    if chosen["compile_options"] and mode in ("eager", "graph"):
        return f"compile_options is {chosen['compile_options']!r}, but {mode} does not compile"
    if task == "train" and chosen["precision"] in QUANTIZED:
        return f"precision {chosen['precision']} is for inference, but the task is train"
    if task == "infer" and chosen["optimizer_every"] > 1:
        return f"optimizer_every is {chosen['optimizer_every']}, but inference has no optimizer"
    if mode == "graph" and chosen["optimizer_every"] > 1:
        return "compile_mode graph repeats one step, but optimizer_every needs different steps"
    return None


_OPTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*(=[A-Za-z0-9_.+-]+)?")
LONGEST_OPTIONS = 40


def _options(value: Any) -> str | None:
    if value == "" or (isinstance(value, str) and all(map(_OPTION.fullmatch, value.split(",")))):
        return None
    example = "freezing,max_autotune_gemm=False"
    return f"compile_options is {value!r}; it must be names and values such as {example}"


def _options_in_id(value: str) -> str:
    """Return options in a form that is safe in file names; long ones are replaced by a hash."""
    text = re.sub(r"[^A-Za-z0-9._-]+", ".", value.replace("=", "--"))
    if len(text) <= LONGEST_OPTIONS:
        return text
    return f"options.{hashlib.sha256(value.encode()).hexdigest()[:8]}"


def case_of(workload: WorkloadAxes, values: Mapping[str, Any], base: Case | None = None) -> Case:
    """Return the case with these values, and defaults for the other axes.

    Every workload also has the axes of ``LAUNCH``.  ``base`` has the settings that are not axes:
    tier, sampling, limits, time limit.  Raises UserError, which names an invalid value.
    """
    base = base or Case(id="", workload="")
    axes = (*workload.axes, *LAUNCH)
    if unknown := sorted(values.keys() - {axis.name for axis in axes}):
        raise UserError(f"{workload.workload} has no {', '.join(unknown)}")
    chosen = {axis.name: values.get(axis.name, axis.default) for axis in axes}
    problems = [axis.check(chosen[axis.name]) for axis in axes]
    if problem := next(filter(None, problems), None) or clash(workload, chosen):
        raise UserError(problem)
    return named(workload, chosen, base)


LAUNCH = (
    quiet("ranks", positive("ranks"), 1, "x{}".format),
    switch("strong", "strong"),
    quiet("threads", positive("threads", 0), 0, "t{}".format),
    switch("cold", "cold"),
)
"""The axes of every workload: the number of ranks, whether they share one batch, the number of
threads of each, and whether caches are cold."""


def clash(workload: WorkloadAxes, chosen: Mapping[str, Any]) -> str | None:
    """Return why values, one for each axis, are an invalid combination, or None."""
    if problem := workload.clash(chosen):
        return problem
    ranks, batch = chosen["ranks"], chosen.get("batch_size")
    if chosen.get("compile_mode") == "graph" and ranks > 1:
        return f"compile_mode graph records one device's step, but ranks is {ranks}"
    if not chosen["strong"]:
        return None
    if batch is None:
        return f"strong divides a batch among ranks, but {workload.workload} has no batch_size"
    if ranks == 1:
        return "strong divides a batch among ranks, but ranks is 1"
    if batch % ranks:
        return f"batch_size {batch} cannot be divided evenly among {ranks} ranks"
    return None


def named(workload: WorkloadAxes, chosen: Mapping[str, Any], base: Case) -> Case:
    """Return the case with these values, which are valid and one for each axis."""
    axes = (*workload.axes, *LAUNCH)
    chosen = {axis.name: axis.canonical(chosen[axis.name]) for axis in axes}
    parts = [axis.in_id(chosen[axis.name]) for axis in axes]
    return replace(
        base,
        id="-".join(part for part in parts if part),
        workload=workload.workload,
        params={
            axis.name: chosen[axis.name]
            for axis in workload.axes
            if axis.passed or chosen[axis.name] != axis.default
        },
        launch=Launch(**{axis.name: chosen[axis.name] for axis in LAUNCH}),
    )
