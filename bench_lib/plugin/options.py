"""The user's options of this run, read once from pytest's options into one frozen object."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench_lib.engine import settings as engine_settings
from bench_lib.engine.settings import PLANNED, Settings, Side
from bench_lib.launch import wheels
from bench_lib.plugin.declared import asked_for

CONFIRM = PLANNED - 1
"""Fresh processes for a suspicious case; benchmarks/error_rates.py shows what that finds."""


@dataclass(frozen=True)
class PluginOptions:
    """The run's options; paths are absolute."""

    matrix: Path
    history: Path
    tier: str | None
    """None takes ``gate`` on a GPU and ``smoke`` on a CPU."""
    strict: bool
    cold: bool
    """Whether every case begins with cold caches, under a name of its own."""
    asked_for: bool
    """Whether an option, or a path under the ini setting ``perf_paths``, asks for measuring."""
    settings: Settings
    """The engine's settings; the session adds its devices."""


def read_options(config: pytest.Config) -> PluginOptions:
    """Return the run's options."""

    def folder(option: str, default: str) -> Path:
        given = config.getoption(option)
        if given is None:
            return config.rootpath / default
        return Path(config.invocation_params.dir, given).absolute()

    def told(option: str, default: Any) -> Any:
        given = config.getoption(option)
        return default if given is None else given

    processes, confirm = told("perf_processes", 1), told("perf_confirm", CONFIRM)
    history = folder("perf_history", "history")
    settings = Settings(
        baselines=folder("perf_baselines", "baselines"),
        history=history,
        processes=processes,
        planned=max(processes, 1 + confirm),
        own_choices=config.getini("perf_own_choices"),
        lock_wait_s=told("perf_lock_wait", Settings.lock_wait_s),
        cool_s=told("perf_cool", Settings.cool_s),
        kernels=told("perf_kernels", Settings.kernels),
        over_nights=told("perf_over_nights", Settings.over_nights),
        tune=config.getoption("perf_tune"),
        any_clock=config.getoption("perf_any_clock"),
        launcher=config.getoption("perf_launcher"),
        reference=_reference(config),
    )
    return PluginOptions(
        matrix=folder("perf_matrix", _setting(config, "perf_matrix")),
        history=history,
        tier=config.getoption("perf_tier"),
        strict=config.getoption("perf_strict"),
        cold=config.getoption("perf_cold"),
        asked_for=asked_for(config),
        settings=settings,
    )


def _setting(config: pytest.Config, name: str) -> str:
    """Return a setting that is one text; raises UsageError, as pyproject.toml may hold a list."""
    try:
        value = config.getini(name)
    except TypeError as error:  # of pytest 10, and of 9 in the table tool.pytest
        raise pytest.UsageError(str(error)) from error
    if not isinstance(value, str):
        raise pytest.UsageError(f"{name} is {value!r}; it has to be text")
    return value


def _reference(config: pytest.Config) -> Side | None:
    """Return the accepted environment, if one is named; raises UsageError."""
    given = config.getoption("perf_reference")
    python = _setting(config, "perf_reference") if given is None else given
    if not python:
        return None
    try:
        words = engine_settings.prefix(_setting(config, "perf_reference_prefix"))
        variables = dict(map(engine_settings.variable, config.getini("perf_reference_env")))
    except ValueError as error:
        raise pytest.UsageError(f"perf_reference: {error}") from error
    # A bare name is looked for on the PATH, unless it is a list of wheels.
    if not words and (wheels.is_list(python) or Path(python).name != python):
        folder = config.rootpath if given is None else config.invocation_params.dir
        python = str(Path(folder, Path(python).expanduser()).absolute())
    return Side(python, variables, words)
