"""Our pytest options and ini settings, and whether a run or a test asks for measuring.

Every pytest run of the environment imports this module: it needs pytest and the standard library
alone.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

USUAL = "perf_tests"
"""The folder that measures without being named, if it has a matrix."""


def add_options(parser: pytest.Parser) -> None:
    """Declare the options and ini settings."""
    group = parser.getgroup("perf", "performance regression testing")
    group.addoption(
        "--perf-tier",
        choices=("smoke", "gate", "nightly"),
        help="cases of the matrix to run (default: gate on a GPU, smoke on a CPU)",
    )
    group.addoption("--perf-matrix", metavar="FILE", help="matrix of cases (ini: perf_matrix)")
    group.addoption(
        "--perf-processes",
        type=at_least(int, 1),
        default=None,
        metavar="N",
        help="measure every case in N fresh processes; a baseline needs five (default: 1)",
    )
    group.addoption(
        "--perf-baselines", metavar="DIR", help="folder of baselines (default: baselines)"
    )
    group.addoption("--perf-history", metavar="DIR", help="folder of runs (default: history)")
    group.addoption(
        "--perf-strict",
        action="store_true",
        help="fail on every status other than OK and IMPROVED, including a missing baseline",
    )
    group.addoption(
        "--perf-share",
        type=share,
        metavar="K/N",
        help="measure only the K-th of N parts of the cases, which are the same in every run; for "
        "CI jobs with one device each",
    )
    group.addoption(
        "--perf-reference",
        metavar="PYTHON",
        action="append",
        default=None,
        help="interpreter of the accepted environment, or of a pull request's target branch: each "
        "case is measured in both, interleaved, so that differences between devices and nights "
        "cancel out (ini: perf_reference); `same` compares this environment with itself",
    )
    group.addoption(
        "--perf-pairs",
        type=at_least(int, 1),
        default=None,
        metavar="N",
        help="with a reference, maximum number of pairs for a case (default: 6)",
    )
    _add_settings(parser)


def _add_settings(parser: pytest.Parser) -> None:
    """Declare what a project sets once, and what a single run rarely does (``-o NAME=VALUE``)."""
    parser.addini("perf_reference", "interpreter of the accepted environment", default="")
    parser.addini(
        "perf_reference_prefix",
        "command that runs that interpreter in a container: docker run --rm ...",
        default="",
    )
    parser.addini(
        "perf_reference_env",
        "environment variables of that interpreter, NAME=VALUE, one per line",
        type="linelist",
    )
    parser.addini(
        "perf_confirm",
        "re-measure a case that looks slower or faster in up to this many fresh processes; with 0, "
        "a case measured once is never called slower",
        default="5",
    )
    parser.addini(
        "perf_budget",
        "stop re-measuring after this many seconds (default: no limit)",
        default="inf",
    )
    parser.addini(
        "perf_kernels",
        "cases whose kernels are profiled at the end: all, none, or auto, which takes those that "
        "changed and those without a baseline",
        default="auto",
    )
    parser.addini(
        "perf_over_nights",
        "slowdowns that are detected only over several nights: fail (the first night that finds "
        "one), tell (report them) or off",
        default="fail",
    )
    parser.addini(
        "perf_launcher",
        "program that starts cases of several ranks: torchrun, mpirun or srun, with options such "
        "as srun -p gpu (default: BENCH_LIB_LAUNCHER, or torchrun)",
        default="",
    )
    parser.addini(
        "perf_lock_wait",
        "seconds to wait for a device that another run holds",
        default="600",
    )
    parser.addini(
        "perf_own_choices",
        "let compilers autotune instead of reusing the baseline's choices",
        type="bool",
        default=False,
    )
    parser.addini("perf_matrix", "matrix of cases", default="perf_tests/matrix.toml")
    parser.addini(
        "perf_paths",
        "folders of performance tests (perf_tests is one if it has a matrix): they are collected "
        "only if a run names one of them or a perf option, and pytest-xdist then uses one worker "
        "per device",
        type="args",
    )


def asked_for(config: pytest.Config) -> bool:
    """Whether an option, or a path under the ini setting ``perf_paths``, asks for measuring."""
    values = (value for name, value in vars(config.option).items() if name.startswith("perf_"))
    if any(value not in (None, False) for value in values):
        return True
    overridden = config.option.override_ini or []
    return any(setting.startswith("perf_") for setting in overridden) or _names_perf_path(config)


def measures(item: pytest.Item) -> bool:
    """Whether a test uses our fixture, and not another fixture or a parameter called ``perf``."""
    info: Any = getattr(item, "_fixtureinfo", None)
    if info is None or "perf" not in info.names_closure:
        return False
    for definition in reversed(info.name2fixturedefs.get("perf", ())):
        if definition.func.__module__ == __package__:
            return True
        if "perf" not in definition.argnames:  # it replaces ours, and does not build on it
            return False
    return False


def is_left_out(path: Path, config: pytest.Config) -> bool:
    """Whether a path is under ``perf_paths``, and the run does not ask for measuring."""
    return path.resolve() in _perf_paths(config) and not asked_for(config)


def root(config: pytest.Config) -> Path:
    """Return the folder that settings and default paths are relative to.

    Where no configuration file shows the root, pytest takes the value of ``--perf-reference PATH``
    for an argument, and a folder above it for the root.
    """
    if config.inipath is None and config.getoption("rootdir") is None:
        return config.invocation_params.dir
    return config.rootpath


def _perf_paths(config: pytest.Config) -> list[Path]:
    folders = config.getini("perf_paths")
    if (root(config) / USUAL / "matrix.toml").is_file():
        folders = [*folders, USUAL]
    return [(root(config) / path).resolve() for path in folders]


def _names_perf_path(config: pytest.Config) -> bool:
    folders = _perf_paths(config)
    for argument in config.args:
        path = (config.invocation_params.dir / argument.partition("::")[0]).resolve()
        if any(folder == path or folder in path.parents for folder in folders):
            return True
    return False


def share(text: str) -> tuple[int, int]:
    """Read ``2/4``; raises ArgumentTypeError."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a share; write 2/4 for the second of four parts of the cases"
        )
    return int(match[1]), int(match[2])


def at_least(kind: Callable[[str], float], least: float) -> Callable[[str], float]:
    """Return a parser of numbers that are ``least`` or more; it raises ArgumentTypeError."""

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
