"""What the user asked of this run, read once from pytest's options into one frozen object."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench_lib.engine.cooling import COOL_S
from bench_lib.engine.settings import KERNELS, PLANNED
from bench_lib.launch import launchers
from bench_lib.launch.faults import LaunchError
from bench_lib.model import TIERS
from bench_lib.plugin.shares import share

CONFIRM = PLANNED - 1
"""Fresh processes for a suspicious case; benchmarks/error_rates.py shows what that finds."""


@dataclass(frozen=True)
class PluginOptions:
    """The run's options; paths are absolute."""

    matrix: Path
    baselines: Path
    history: Path
    tier: str | None
    """None takes ``gate`` on a GPU and ``smoke`` on a CPU."""
    processes: int
    confirm: int
    strict: bool
    lock_wait_s: float
    cool_s: float
    """How long to wait for a device that was throttled or shared before measuring again."""
    kernels: str
    """Whose kernels are looked into, one of KERNELS."""
    cold: bool
    """Whether every case begins with cold caches, under a name of its own."""
    tune: bool
    """Whether MIOpen searches for a case's kernels before it is measured."""
    any_clock: bool
    """Whether a clock below the baseline's is taken as it is."""
    launcher: str | None
    """What starts cases of several ranks, with words of its own; None is BENCH_LIB_LAUNCHER's."""
    asked_for: bool
    """Whether an option, or a path under the ini setting ``perf_paths``, asks for measuring."""

    @property
    def planned(self) -> int:
        """How many processes a suspicious case is given in all."""
        return max(self.processes, 1 + self.confirm)


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

    given = [config.getoption(f"perf_{name}") for name in _NAMES]
    return PluginOptions(
        matrix=folder("perf_matrix", config.getini("perf_matrix")),
        baselines=folder("perf_baselines", "baselines"),
        history=folder("perf_history", "history"),
        tier=config.getoption("perf_tier"),
        processes=config.getoption("perf_processes") or 1,
        confirm=CONFIRM if (confirm := config.getoption("perf_confirm")) is None else confirm,
        strict=config.getoption("perf_strict"),
        lock_wait_s=600.0 if (wait := config.getoption("perf_lock_wait")) is None else wait,
        cool_s=COOL_S if (cool := config.getoption("perf_cool")) is None else cool,
        kernels=config.getoption("perf_kernels") or KERNELS[0],
        cold=config.getoption("perf_cold"),
        tune=config.getoption("perf_tune"),
        any_clock=config.getoption("perf_any_clock"),
        launcher=config.getoption("perf_launcher"),
        asked_for=any(value not in (None, False) for value in given) or _names_perf_path(config),
    )


_NAMES = (
    "tier",
    "matrix",
    "processes",
    "confirm",
    "baselines",
    "history",
    "strict",
    "lock_wait",
    "cool",
    "kernels",
    "cold",
    "tune",
    "any_clock",
    "launcher",
    "share",
)


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
