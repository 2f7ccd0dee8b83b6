"""What a job is to run and to get, read from what a user typed."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from bench_lib.model import TIERS, UserError

ARRAYS = ("tiers", "gpus")
LAUNCHERS = ("torchrun", "srun")
MOST = 100_000
"""Of nodes, cores and GPUs: more is a slip of the keyboard."""

_TIME = (
    re.compile(r"(?P<minutes>\d+)(:(?P<seconds>\d+))?"),
    re.compile(r"(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)"),
    re.compile(r"(?P<days>\d+)-(?P<hours>\d+)(:(?P<minutes>\d+)(:(?P<seconds>\d+))?)?"),
)
_SECONDS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
_MEMORY = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>[KMGT]?)(i?B)?", re.IGNORECASE)
_BYTES = {"K": 2**10, "": 2**20, "M": 2**20, "G": 2**30, "T": 2**40}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,@+-]*")


@dataclass(frozen=True)
class Resources:
    """What a job, or each task of an array, is to get; None is left to the cluster."""

    nodes: int = 1
    cpus: int | None = None
    """Of each node, as Slurm counts them: hardware threads where it is set up so."""
    gpus: int | None = None
    """Of each node."""
    memory_bytes: int | None = None
    """Of each node."""
    time_s: int | None = None


@dataclass(frozen=True)
class Task:
    """One job, or one task of an array, and its part of the suite."""

    number: int
    """From 1; that of a job that is no array is 1."""
    tiers: tuple[str, ...]
    """One after another; none is the tier that fits the machine."""
    share: str = ""
    """``2/4``: the second of four parts of the cases."""


@dataclass(frozen=True)
class JobRequest:
    """A job as the user asked for it."""

    resources: Resources
    tiers: tuple[str, ...] = ()
    array: str | None = None
    """One of ARRAYS: a task for each tier, or for each GPU."""
    shares: int = 1
    """Into how many the cases are divided, where the array is over GPUs."""
    partition: str | None = None
    account: str | None = None
    launcher: str = LAUNCHERS[0]
    container: tuple[str, ...] = ()
    """Words that run what follows them in a container."""
    python: str = "python3"
    pytest: tuple[str, ...] = ()
    """Arguments after ``pytest``."""
    directory: Path = field(default_factory=Path.cwd)
    """Where the suite is run."""

    def tasks(self) -> list[Task]:
        """Return the job's tasks in order."""
        if self.array == "tiers":
            return [Task(number, (tier,)) for number, tier in enumerate(self.tiers, 1)]
        if self.array == "gpus":
            numbers = range(1, self.shares + 1)
            return [Task(n, self.tiers, f"{n}/{self.shares}") for n in numbers]
        return [Task(1, self.tiers)]


def seconds(text: str) -> int:
    """Read a time as sbatch does: ``90`` minutes, ``2:00:00``, ``1-12``; raises UserError."""
    found = next((match for each in _TIME if (match := each.fullmatch(text.strip()))), None)
    parts = found.groupdict() if found else {}
    total = sum(int(value) * _SECONDS[name] for name, value in parts.items() if value)
    if not total:
        raise UserError(
            f"--time {text!r} is no time; write minutes, hours:minutes:seconds or days-hours, "
            "2:00:00 for example"
        )
    return total


def clock(time_s: float) -> str:
    """Return a time as sbatch takes it: ``2:00:00``, ``1-12:00:00``."""
    days, rest = divmod(round(time_s), 86400)
    text = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def many(number: int, what: str) -> str:
    """Return ``1 core``, ``2 cores``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def memory(text: str) -> int:
    """Read an amount of memory, of MiB without a unit, in bytes; raises UserError."""
    match = _MEMORY.fullmatch(text.strip())
    amount = float(match["number"]) * _BYTES[match["unit"].upper()] if match else 0
    if amount < 2**20:
        raise UserError(
            f"--mem {text!r} is no amount of memory; write 64G or 500M, or leave it out for what "
            "the partition gives"
        )
    return int(amount)


def named_tiers(text: str | None) -> tuple[str, ...]:
    """Read ``gate,nightly``; raises UserError."""
    if text is None:
        return ()
    tiers = tuple(word.strip() for word in text.split(","))
    for tier in tiers:
        if tier not in TIERS:
            raise UserError(f"--tier {text!r}: {tier!r} is none of {', '.join(TIERS)}")
    if len(set(tiers)) < len(tiers):
        raise UserError(f"--tier {text!r} names a tier twice")
    return tiers


def name(option: str, text: str | None) -> str | None:
    """Let a partition's or an account's name through; raises UserError where it is none."""
    if text is not None and not _NAME.fullmatch(text):
        raise UserError(f"{option} {text!r} is no name that Slurm knows")
    return text


def count(option: str, value: int | None) -> int | None:
    """Let a number of things through; raises UserError where nobody can give so many."""
    if value is not None and not 1 <= value <= MOST:
        raise UserError(f"{option} is {value}; it has to be from 1 to {MOST}")
    return value


def words(option: str, text: str | None) -> tuple[str, ...]:
    """Split words as a shell does, without one; raises UserError."""
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise UserError(f"{option} {text!r} cannot be split into words: {error}") from error


INSTEAD = {
    "--perf-history": "--history",
    "--perf-tier": "--tier",
    "--perf-share": "--array gpus",
}
"""Options of pytest that the job's own script gives, and what they are called here."""
_WITH_VALUE = (
    *("-c", "-k", "-m", "-n", "-o", "-p", "-r", "-W", "--basetemp", "--confcutdir", "--deselect"),
    *("--ignore", "--junit-xml", "--junitxml", "--log-file", "--override-ini", "--rootdir"),
    *("--perf-baselines", "--perf-matrix"),
)
"""Options whose value may be the name of something that is there, and no test."""


def pytest_arguments(given: tuple[str, ...], directory: Path, default: str) -> tuple[str, ...]:
    """Return pytest's arguments, with the ``default`` folder where they name no tests.

    Raises UserError where they say what the job says itself.
    """
    for argument in given:
        option = argument.partition("=")[0]
        if option in INSTEAD:
            raise UserError(
                f"{option} is the job's own; give bench-lib submit {INSTEAD[option]} instead"
            )
    before = ("", *given)
    named = any(
        (directory / each.partition("::")[0]).exists()
        for option, each in zip(before, given, strict=False)
        if each and option not in _WITH_VALUE
    )
    return given if named else (default, *given)
