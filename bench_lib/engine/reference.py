"""The accepted environment: its own run, and its evidence when a case is judged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from bench_lib.engine import pairing
from bench_lib.engine.outcome import Outcome
from bench_lib.engine.settings import REFERENCE, Side, nodeid_of
from bench_lib.environment import fingerprint
from bench_lib.launch import inquiry, wheels
from bench_lib.launch.faults import LaunchError
from bench_lib.model import Case, Environment, Hardware, Record
from bench_lib.storage import history
from bench_lib.verdict.evidence import Turns

MOST = 3
"""A case that could still be slower gets so many times the planned pairs, at most."""


@dataclass
class ReferenceRun:
    """The environment measured in turns with a run's suspicious cases.

    It starts only if a case looks different, and only then has a run in the history.
    """

    side: Side
    own: Side
    """The run's own environment."""
    pairs: int
    """How many a suspicious case gets; at most ``most`` until their interval is narrow."""
    writer: Callable[[str], history.Writer]
    """Opens the reference's run for a hardware key."""
    candidate_run: str
    """The id of the run that it is measured for."""
    problem: str = ""
    """Why it cannot be measured; empty without a known problem."""
    records: dict[str, Record] = field(default_factory=dict)
    _found: dict[str, tuple[Environment, Environment]] = field(default_factory=dict)
    """By device, the reference and our own side as its workers tell."""
    _writer: history.Writer | None = None

    def __post_init__(self) -> None:
        """Check everything that needs no device.

        A list of wheels is installed now, while nobody waits for the device.
        """
        self.problem = self.problem or _problem_of(self.side, self.own)

    @property
    def most(self) -> int:
        """Pairs of a case, at most."""
        return MOST * self.pairs

    # ---- starting -------------------------------------------------------------------------

    def knows(self, place: str) -> bool:
        """Whether it was started on a device."""
        return place in self._found

    def start(self, place: str, found: tuple[Environment, Environment] | str) -> str:
        """Take in what starting it on a device came to, or why it failed; returns the problem."""
        if isinstance(found, str):
            self.problem = f"the reference {self.side} does not start: {found}"
            return self.problem
        self._found[place] = found
        theirs, ours = map(fingerprint.software, found)
        alike = self.side.environment == self.own.environment
        if alike and not self.side.command_prefix and not fingerprint.difference(theirs, ours):
            self.problem = (
                f"the reference {self.side} is the same environment (torch {theirs.torch}), so "
                "there is nothing to compare; name the environment that was accepted"
            )
        return self.problem

    # ---- what was measured ----------------------------------------------------------------

    def note(self, outcome: Outcome) -> Record:
        """Take in attempts, and write them down; raises HistoryError.

        In the history no attempt is accepted: its software is not the run's.
        """
        case = outcome.case
        record = self.records.setdefault(case.id, Record(case, nodeid_of(REFERENCE, case.id)))
        record.attempts.extend(outcome.attempts)
        if outcome.fault is not None and outcome.fault.kind == "launch":
            self.problem = f"the reference {self.side} does not start: {outcome.fault.message}"
        if self._writer is None:
            self._writer = self.writer(outcome.hardware.key)
        self._writer.environment(outcome.environment, outcome.hardware)
        why = f"the reference of run {self.candidate_run}, measured in turns with it"
        for attempt in outcome.attempts:
            words = attempt.discarded or why
            kept = replace(attempt, accepted=False, discarded=words)
            self._writer.attempt(case, record.nodeid, kept if attempt.measurement else attempt)
        return record

    def end(self) -> None:
        """Write the last line of its run, if it has one; raises HistoryError."""
        if self._writer is not None:
            self._writer.end({}, 0)

    def close(self) -> None:
        """Close its file."""
        if self._writer is not None:
            self._writer.close()

    # ---- judging --------------------------------------------------------------------------

    def turns(
        self, record: Record, device: Hardware, place: str, accepted: Environment | None
    ) -> Turns:
        """Return a case's results in turns.

        ``accepted`` is the environment of its baseline; None if unknown.
        """
        without = self.problem or self._unfit(record.case, device, place, accepted)
        theirs = self.records.get(record.case.id)
        if theirs is None:
            return Turns(self._in_words(place), (), self.pairs, without, self.most)
        without = without or _missing(theirs)
        if without:
            return Turns(self._in_words(place), (), self.pairs, without, self.most)
        pairs = [(new, old) for old, new in pairing.pairs_of(theirs, record)]
        return Turns(self._in_words(place), pairs, self.pairs, without, self.most)

    def _in_words(self, place: str) -> str:
        """Name the reference with its versions that are not ours."""
        name, prefix = self.side.python, self.side.command_prefix
        if prefix:
            name = f"{prefix[0]} … {name}"
        if place not in self._found:
            return name
        theirs, ours = map(fingerprint.versions, self._found[place])
        others = [
            f"{each.name} {version}"
            for each in fields(theirs)
            if (version := getattr(theirs, each.name)) and version != getattr(ours, each.name)
        ]
        return f"{name} ({', '.join(others) or f'torch {theirs.torch}'})"

    def _unfit(self, case: Case, device: Hardware, place: str, accepted: Environment | None) -> str:
        """Say why the reference tells nothing of a case; empty where it does."""
        if place not in self._found:
            return ""
        theirs, ours = self._found[place]
        sides = {"the reference": theirs, "this side": ours}
        if differing := pairing.mixed_conditions(case, device, sides):
            return f"conditions differ: {'; '.join(differing)}"
        if accepted is None:
            return "the baseline does not say in which environment it was accepted; accept a run"
        if shared := fingerprint.difference(*map(fingerprint.beneath, (accepted, ours))):
            words = f"both sides share what changed since the baseline: {'; '.join(shared)}"
            return f"{words}; accept a run made with it"
        versions = (fingerprint.versions(each) for each in (accepted, theirs))
        if other := fingerprint.difference(*versions):
            words = f"the reference is not what was accepted: {'; '.join(other)}"
            return f"{words}; install there what was accepted"
        return ""


def _missing(theirs: Record) -> str:
    """Say why the reference has no measurement of a case; empty where it has one."""
    for attempt in theirs.attempts:
        if attempt.fault is not None:
            return f"the reference fails: {attempt.fault.in_words}"
        if attempt.skipped is not None:
            return f"the reference skips it: {attempt.skipped}"
    return ""


def _problem_of(side: Side, own: Side) -> str:
    """Name the problem of a reference, as far as no worker is needed."""
    if not side.command_prefix and (problem := _misnamed(side)):
        return problem
    comparable = side.command_prefix or side.environment != own.environment
    try:
        if not comparable and _interpreter(side) == _interpreter(own):
            return _same(side)
        theirs = _asked(side)
        if not comparable and theirs == _asked(own):
            return _same(side)
    except LaunchError as error:
        return f"the reference {side} does not start: {error}"
    return ""


def _same(side: Side) -> str:
    return (
        f"the reference {side} is this environment itself, so there is nothing to compare; "
        "name the environment that was accepted"
    )


def _asked(side: Side) -> inquiry.Installed:
    """Return what a side has; raises LaunchError."""
    python = wheels.interpreter(side.python)
    return inquiry.ask(python, side.environment, side.command_prefix)


def _misnamed(side: Side) -> str:
    """Say that no file is where an interpreter or a list of wheels is to be."""
    if wheels.is_list(side.python):
        missing = not Path(side.python).is_file()
        remedy = "pip freeze in the accepted environment writes one"
        return f"there is no list {side.python}; {remedy}" if missing else ""
    if _interpreter(side) is not None:
        return ""
    remedy = "name the python of the accepted environment"
    return f"there is no interpreter {side.python} for the reference; {remedy}"


def _interpreter(side: Side) -> tuple[str, str] | None:
    """Return the folder of an interpreter, and what the interpreter is; None if there is none.

    Interpreters of virtual environments are links to one file.
    """
    path = shutil.which(side.python)
    if path is None:
        return None
    return os.path.realpath(Path(path).parent), os.path.realpath(path)


def place(device: Hardware) -> str:
    """Name one device among those of this machine."""
    return device.uuid or f"{device.key} {device.index}"
