"""What a pytest session measures: its options, devices and cases.

Pytest's options are read once, into one frozen object.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import pytest

from bench_lib import backends
from bench_lib.cases import matrix
from bench_lib.cases.axes import WorkloadAxes
from bench_lib.engine import settings as engine_settings
from bench_lib.engine.settings import PLANNED, REFERENCE, SAME, Settings, Side
from bench_lib.launch import environments
from bench_lib.launch.catalogue import network_sizes
from bench_lib.launch.started import ended_by
from bench_lib.model import Case, Hardware, MachineWarning, unknown
from bench_lib.plugin.declared import asked_for, at_least, root
from bench_lib.plugin.devices import DEVICE


@dataclass(frozen=True)
class PluginOptions:
    """The run's options; paths are absolute."""

    matrix: Path
    history: Path
    tier: str | None
    """None takes ``gate`` on a GPU and ``smoke`` on a CPU."""
    strict: bool
    asked_for: bool
    """Whether an option, or a path under the ini setting ``perf_paths``, asks for measuring."""
    settings: Settings
    """The engine's settings; the session adds its devices."""


def read_options(config: pytest.Config) -> PluginOptions:
    """Return the run's options."""

    def folder(option: str, default: str) -> Path:
        path = config.getoption(option)
        if path is None:
            return root(config) / default
        return Path(config.invocation_params.dir, path).absolute()

    processes, reference = config.getoption("perf_processes") or 1, _reference(config)
    planned = config.getoption("perf_pairs") or PLANNED
    history = folder("perf_history", "history")
    if reference is None:
        planned = 1 + int(_number(config, "perf_confirm", int))
    settings = Settings(
        baselines=folder("perf_baselines", "baselines"),
        history=history,
        processes=processes,
        planned=max(processes, planned),
        own_choices=_flag(config, "perf_own_choices"),
        lock_wait_s=_number(config, "perf_lock_wait"),
        kernels=_choice(config, "perf_kernels", ("auto", "all", "none")),
        over_nights=_choice(config, "perf_over_nights", ("fail", "tell", "off")),
        launcher=_launcher(config),
        sides={"": Side()} if reference is None else {"": Side(), REFERENCE: reference},
        reference_is_optional=config.getoption("perf_reference") is None,
        budget_s=_number(config, "perf_budget"),
    )
    return PluginOptions(
        matrix=folder("perf_matrix", _setting(config, "perf_matrix")),
        history=history,
        tier=config.getoption("perf_tier"),
        strict=config.getoption("perf_strict"),
        asked_for=asked_for(config),
        settings=settings,
    )


def _setting(config: pytest.Config, name: str) -> str:
    """Return a setting that is text; raises UsageError, as pyproject.toml may hold a list."""
    try:
        value = config.getini(name)
    except TypeError as error:  # of pytest 10, and of 9 in the table tool.pytest
        raise pytest.UsageError(f"{error}; write it in quotes") from error
    if not isinstance(value, str):
        raise pytest.UsageError(f"{name} is {value!r}; it must be a string")
    return value


def _number(config: pytest.Config, name: str, kind: Callable[[str], float] = float) -> float:
    """Return a setting that is a number of 0 or more; raises UsageError."""
    try:
        return at_least(kind, 0)(_setting(config, name))
    except argparse.ArgumentTypeError as error:
        raise pytest.UsageError(f"{name}: {error}") from error


def _choice(config: pytest.Config, name: str, choices: Sequence[str]) -> str:
    """Return a setting that is one of some choices; raises UsageError."""
    text = _setting(config, name)
    if text not in choices:
        raise pytest.UsageError(unknown(name, text, choices))
    return text


def _flag(config: pytest.Config, name: str) -> bool:
    """Return a setting that is true or false; raises UsageError."""
    try:
        return bool(config.getini(name))
    except (TypeError, ValueError, pytest.UsageError) as error:
        raise pytest.UsageError(f"{name} is neither true nor false: {error}") from error


def _launcher(config: pytest.Config) -> str | None:
    """Return the launcher's command, if one is set; raises UsageError."""
    text = _setting(config, "perf_launcher")
    if not text:
        return None
    from bench_lib.launch import launchers  # noqa: PLC0415 - only where one is set
    from bench_lib.launch.faults import LaunchError  # noqa: PLC0415

    try:
        launchers.read(text)
    except LaunchError as error:
        raise pytest.UsageError(f"perf_launcher: {error}") from error
    return text


def _reference(config: pytest.Config) -> Side | None:
    """Return the accepted environment, if one is named; raises UsageError."""
    pythons = config.getoption("perf_reference")
    if pythons is not None and len(pythons) > 1:
        raise pytest.UsageError(
            f"--perf-reference names {' and '.join(pythons)}; a run has one reference: make a run "
            "with each, or compare them with bench-lib ab"
        )
    python = _setting(config, "perf_reference") if pythons is None else pythons[0]
    if not python:
        if pythons is None:
            return None
        raise pytest.UsageError(
            "--perf-reference is empty; name an interpreter, or write -o perf_reference= for none"
        )
    if python == SAME:
        return Side(label="this environment itself")
    try:
        prefix = engine_settings.prefix(_setting(config, "perf_reference_prefix"))
        variables = dict(map(engine_settings.variable, config.getini("perf_reference_env")))
    except ValueError as error:
        raise pytest.UsageError(f"perf_reference: {error}") from error
    folder = root(config) if pythons is None else config.invocation_params.dir
    path = os.path.normpath(Path(folder, Path(python).expanduser()).absolute())
    # A bare name is looked up on the PATH, unless it is an environment's folder.
    if not prefix and (Path(path).is_dir() or Path(python).name != python):
        python = environments.interpreter(path)
    return Side(python, variables, prefix)


@dataclass
class Selection:
    """The devices and cases that one process of a pytest session measures."""

    config: pytest.Config
    options: PluginOptions
    failed: str | None = None
    """Why the run had to stop."""
    lacks_cases: bool = False
    """Whether a test asked the tier for cases of a kind that it does not have."""
    told_to_end: int | None = None
    """The exit status of a signal that ended the session."""

    @property
    def is_worker(self) -> bool:
        """Whether this process is one of xdist's workers."""
        return hasattr(self.config, "workerinput")

    @cached_property
    def devices(self) -> list[Hardware]:
        """The devices of this machine, in the order torch counts them."""
        with warnings.catch_warnings():
            # Warnings about the machine are no errors, even where Python turns all into errors.
            warnings.simplefilter("default", MachineWarning)
            return backends.detect()

    def leave(self, status: int) -> NoReturn:
        """End the session with the exit status of a signal."""
        self.told_to_end = status
        raise KeyboardInterrupt

    @cached_property
    def workloads(self) -> dict[str, WorkloadAxes]:
        """The workloads that a table of the matrix can name."""
        with ended_by(self.leave):  # a worker may be asked, in a folder of its own
            return matrix.tables(network_sizes())

    @cached_property
    def cases(self) -> dict[str, list[Case]]:
        """The matrix, by tier."""
        return matrix.read_matrix(self.options.matrix, self.workloads)

    @property
    def tier(self) -> str:
        """The tier to run: the one asked for, or what fits the machine."""
        return self.options.tier or matrix.usual_tier(self.devices[0])

    def device(self) -> Hardware:
        """Return the device of this process: under xdist the one the controller assigned."""
        if self.is_worker:
            index: int = self.config.workerinput.get(DEVICE, 0)  # type: ignore[attr-defined]  # xdist's
            return self.devices[index % len(self.devices)]
        return self.devices[0]


SELECTION = pytest.StashKey[Selection]()
