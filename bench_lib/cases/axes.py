"""The values that a workload's parameters may take, and their part in a case's id."""

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
"""No count, size or time in a matrix is above this; a longer one is a slip of the keyboard."""


class MatrixError(UserError):
    """A matrix that cannot be meant; names the file and the place."""


@dataclass(frozen=True)
class Axis:
    """One parameter of a workload: its values, and how it shows in the case's id."""

    name: str
    check: Callable[[Any], str | None]
    """Says why a value is wrong, or returns None."""
    default: Param | None = None
    """Taken where a table does not name the axis; without one it has to."""
    in_id: Callable[[Any], str] = str
    """The value's part of the id; empty leaves it out."""
    told: bool = True
    """Whether the workload receives its default too; a later parameter's is not passed, so that
    earlier records stay the same case."""
    canonical: Callable[[Any], Any] = lambda value: value
    """Returns the one spelling of values that mean the same."""


def choice(name: str, allowed: Sequence[str], default: str | None = None) -> Axis:
    """Return an axis of words."""
    return Axis(name, one_of(name, allowed), default)


def quiet(
    name: str,
    check: Callable[[Any], str | None],
    default: Param | None,
    in_id: Callable[[Any], str] = str,
    *,
    told: bool = False,
) -> Axis:
    """Return an axis that an id names only where its value is not the default."""
    return Axis(
        name, check, default, lambda value: "" if value == default else in_id(value), told=told
    )


def optional(
    name: str, check: Callable[[Any], str | None], in_id: Callable[[Any], str] = str
) -> Axis:
    """Return an axis that may be empty, and is unless a table says otherwise."""
    return quiet(name, lambda value: None if value == "" else check(value), "", in_id)


def switch(name: str, word: str, *, default: bool = False) -> Axis:
    """Return an axis of true or false; an id has its word if the value is not the default."""
    return quiet(name, truth(name), default, lambda _value: word)


@dataclass(frozen=True)
class WorkloadAxes:
    """The axes of one workload, in the order of the id."""

    workload: str
    axes: tuple[Axis, ...]
    clash: Callable[[Mapping[str, Any]], str | None] = lambda _chosen: None
    """Says which of the values chosen, one for every axis, cannot go together, or returns None."""


def one_of(kind: str, allowed: Sequence[str]) -> Callable[[Any], str | None]:
    """Return a check that a value is one of ``allowed``, naming the nearest ones if not."""

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
        return f"{kind} is {value}; at most {LARGEST} is taken" if value > LARGEST else None

    return check


def truth(kind: str) -> Callable[[Any], str | None]:
    """Return a check that a value is true or false."""

    def check(value: Any) -> str | None:
        if isinstance(value, bool):
            return None
        return f"{kind} is {value!r}; it must be true or false"

    return check


def count(kind: str) -> Callable[[Any], str | None]:
    """Return a check that a value is a whole number of 0 or more."""
    return positive(kind, 0)


def refused(by: Callable[[Any], object]) -> Callable[[Any], str | None]:
    """Return a check of what a function refuses with a UserError."""

    def check(value: Any) -> str | None:
        try:
            by(value)
        except UserError as error:
            return str(error)
        return None

    return check


BATCH_SIZE = Axis("batch_size", positive("batch_size"), in_id="b{}".format)
MEMORY_FORMAT = quiet("memory_format", one_of("memory_format", MEMORY_FORMATS), "nchw", told=True)


def network_axes(sizes: Mapping[str, int]) -> WorkloadAxes:
    """Return the axes of ``networks`` for the networks at hand and their input sizes in pixels."""
    return WorkloadAxes(
        "network",
        (
            choice("network", sorted(sizes)),
            BATCH_SIZE,
            choice("precision", PRECISIONS, "fp32"),
            MEMORY_FORMAT,
            quiet("image_size", count("image_size"), 0, "{}px".format),
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
        return f"compile_options is {chosen['compile_options']!r}, and {mode} compiles nothing"
    if task == "train" and chosen["precision"] in QUANTIZED:
        return f"precision {chosen['precision']} is for inference, and the task is train"
    if task == "infer" and chosen["optimizer_every"] > 1:
        return f"optimizer_every is {chosen['optimizer_every']}, and inference has no optimizer"
    if mode == "graph" and chosen["optimizer_every"] > 1:
        return "compile_mode graph repeats one step, and optimizer_every asks for different ones"
    if mode == "graph" and chosen["ranks"] > 1:
        return f"compile_mode graph records one device's step, and ranks is {chosen['ranks']}"
    return None


_OPTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*(=[A-Za-z0-9_.+-]+)?")
LONGEST_OPTIONS = 40


def _options(value: Any) -> str | None:
    if value == "" or (isinstance(value, str) and all(map(_OPTION.fullmatch, value.split(",")))):
        return None
    example = "freezing,max_autotune_gemm=False"
    return f"compile_options is {value!r}; it must be names and values such as {example}"


def _options_in_id(value: str) -> str:
    """Return the options as they can stand in a file's name; long ones as their hash."""
    words = re.sub(r"[^A-Za-z0-9._-]+", ".", value.replace("=", "--"))
    if len(words) <= LONGEST_OPTIONS:
        return words
    return f"options.{hashlib.sha256(value.encode()).hexdigest()[:8]}"


def case_of(workload: WorkloadAxes, values: Mapping[str, Any], base: Case | None = None) -> Case:
    """Return the case that has these values, and the defaults of the axes they leave out.

    The axes of ``LAUNCH`` are every workload's; ``base`` has the settings that are no axis: tier,
    sampling, limits, time limit.  Raises UserError, naming the value.
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
    quiet("threads", count("threads"), 0, "t{}".format),
    switch("cold", "cold"),
)
"""Axes of every workload: how many processes measure together, whether they share one batch, on
how many threads each, and whether with cold caches."""


def clash(workload: WorkloadAxes, chosen: Mapping[str, Any]) -> str | None:
    """Say which of the values chosen, one for every axis, cannot go together, or return None."""
    return workload.clash(chosen) or _launch_clash(workload, chosen)


def _launch_clash(workload: WorkloadAxes, chosen: Mapping[str, Any]) -> str | None:
    ranks, batch = chosen["ranks"], chosen.get("batch_size")
    if not chosen["strong"]:
        return None
    if batch is None:
        return f"strong divides a batch among ranks, and {workload.workload} has no batch_size"
    if ranks == 1:
        return "strong divides a batch among ranks, and ranks is 1"
    if batch % ranks:
        return f"batch_size {batch} cannot be divided among {ranks} ranks evenly"
    return None


def named(workload: WorkloadAxes, chosen: Mapping[str, Any], base: Case) -> Case:
    """Return the case with these values, one for every axis and none that cannot be meant."""
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
            if axis.told or chosen[axis.name] != axis.default
        },
        launch=Launch(**{axis.name: chosen[axis.name] for axis in LAUNCH}),
    )
