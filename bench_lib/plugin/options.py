"""What the user asked of this run, read once from pytest's options into one frozen object."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench_lib.engine import settings as engine_settings
from bench_lib.engine.settings import KERNELS, PLANNED, Settings, Side
from bench_lib.launch import launchers
from bench_lib.launch.faults import LaunchError
from bench_lib.model import TIERS
from bench_lib.plugin.devices import share

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
    """What the engine is told; the session adds its devices."""


def add_options(parser: pytest.Parser) -> None:
    """Declare the options and ini settings."""
    group = parser.getgroup("perf", "performance regression testing")
    group.addoption(
        "--perf-tier",
        choices=TIERS,
        help="which cases of the matrix to run (default: gate on a GPU, smoke on a CPU)",
    )
    group.addoption(
        "--perf-matrix", metavar="FILE", help="matrix to take cases from (ini: perf_matrix)"
    )
    group.addoption(
        "--perf-processes",
        type=_at_least(int, 1),
        default=None,
        metavar="N",
        help="measure every case in N fresh processes; a baseline needs five (default: 1)",
    )
    group.addoption(
        "--perf-confirm",
        type=_at_least(int, 0),
        default=None,
        metavar="N",
        help="measure what looks slower or faster again in up to N fresh processes; with 0 "
        "nothing is called slower on one process's word (default: 5)",
    )
    group.addoption(
        "--perf-baselines", metavar="DIR", help="folder of baselines (default: baselines)"
    )
    group.addoption(
        "--perf-history", metavar="DIR", help="folder that runs are kept in (default: history)"
    )
    group.addoption(
        "--perf-strict",
        action="store_true",
        help="fail on everything but OK, IMPROVED and REDRAWN, a missing baseline included",
    )
    group.addoption(
        "--perf-lock-wait",
        type=_at_least(float, 0),
        default=None,
        metavar="SECONDS",
        help="how long to wait for a device that another run holds (default: 600)",
    )
    group.addoption(
        "--perf-cool",
        type=_at_least(float, 0),
        default=None,
        metavar="SECONDS",
        help="how long a device that was throttled, slow or shared is given before its case is "
        "measured again; ten times that in all (default: 30)",
    )
    group.addoption(
        "--perf-any-clock",
        action="store_true",
        help="take a clock below the baseline's as it is, to record a new baseline where clocks "
        "are lower for good",
    )
    group.addoption(
        "--perf-kernels",
        choices=KERNELS,
        default=None,
        help="whose kernels to look into, once at the end: of what changed and of what has no "
        "baseline yet, of all, or of none (default: auto)",
    )
    group.addoption(
        "--perf-cold",
        action="store_true",
        help="measure every case in a process of its own with empty caches of Inductor, Triton "
        "and MIOpen, and judge the time to its first step; its id ends in -cold",
    )
    group.addoption(
        "--perf-tune",
        action="store_true",
        help="AMD: have MIOpen search for each case's kernels before it is measured, and keep what "
        "became of its database",
    )
    group.addoption(
        "--perf-share",
        type=share,
        metavar="K/N",
        help="take the K-th of N parts of the cases, each case always in the same; for jobs that "
        "have one device each",
    )
    group.addoption(
        "--perf-launcher",
        type=_launcher,
        default=None,
        metavar="WORDS",
        help="what starts cases of several ranks: torchrun, mpirun or srun, and perhaps words of "
        'its own, such as "srun -p gpu" (default: BENCH_LIB_LAUNCHER, or torchrun)',
    )
    group.addoption(
        "--perf-reference",
        metavar="PYTHON",
        default=None,
        help="interpreter of the accepted environment: what looks different is measured again in "
        "turns with it, so that the device and the night cancel (ini: perf_reference)",
    )
    parser.addini("perf_reference", "interpreter of the accepted environment", default="")
    parser.addini(
        "perf_reference_prefix",
        "words that run that interpreter in a container: docker run --rm ...",
        default="",
    )
    parser.addini(
        "perf_reference_env",
        "environment variables of that interpreter, NAME=VALUE, one a line",
        type="linelist",
    )
    parser.addini("perf_matrix", "matrix to take cases from", default="perf_tests/matrix.toml")
    parser.addini(
        "perf_paths",
        "folders whose tests measure; a run of one of them under pytest-xdist is given one "
        "worker a device",
        type="args",
    )


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
        replays=confirm,
        lock_wait_s=told("perf_lock_wait", Settings.lock_wait_s),
        cool_s=told("perf_cool", Settings.cool_s),
        kernels=told("perf_kernels", Settings.kernels),
        tune=config.getoption("perf_tune"),
        any_clock=config.getoption("perf_any_clock"),
        launcher=config.getoption("perf_launcher"),
        reference=_reference(config),
    )
    given = [value for name, value in vars(config.option).items() if name.startswith("perf_")]
    return PluginOptions(
        matrix=folder("perf_matrix", config.getini("perf_matrix")),
        history=history,
        tier=config.getoption("perf_tier"),
        strict=config.getoption("perf_strict"),
        cold=config.getoption("perf_cold"),
        asked_for=any(value not in (None, False) for value in given) or _names_perf_path(config),
        settings=settings,
    )


def _reference(config: pytest.Config) -> Side | None:
    """Return the accepted environment, if one is named; raises UsageError."""
    given = config.getoption("perf_reference")
    python = config.getini("perf_reference") if given is None else given
    if not python:
        return None
    try:
        words = engine_settings.prefix(config.getini("perf_reference_prefix"))
        variables = dict(map(engine_settings.variable, config.getini("perf_reference_env")))
    except ValueError as error:
        raise pytest.UsageError(f"perf_reference: {error}") from error
    if not words and Path(python).name != python:  # a bare name is looked for on the PATH
        folder = config.rootpath if given is None else config.invocation_params.dir
        python = str(Path(folder, Path(python).expanduser()).absolute())
    return Side(python, variables, words)


def _names_perf_path(config: pytest.Config) -> bool:
    folders = [(config.rootpath / path).resolve() for path in config.getini("perf_paths")]
    for argument in config.args:
        path = (config.invocation_params.dir / argument.partition("::")[0]).resolve()
        if any(folder == path or folder in path.parents for folder in folders):
            return True
    return False


def _launcher(text: str) -> str:
    try:
        launchers.read(text)
    except LaunchError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _at_least(kind: Callable[[str], float], least: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = float("nan")
        if not value >= least:
            number = "whole number" if kind is int else "number"
            raise argparse.ArgumentTypeError(f"{text!r} is not a {number} of {least} or more")
        return value

    return parse
