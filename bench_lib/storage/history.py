"""A run's history file: JSON Lines, compressed when the run has ended.

A run that is killed loses at most the case in flight, and its file stays uncompressed.  Readers
take both, fold the lines into records, tolerate and report a torn last line, and treat a run
without ``end`` as unfinished.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import gzip
import hashlib
import json
import os
import re
import secrets
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from bench_lib import files as safe_files
from bench_lib.model import (
    SCHEMA,
    Attempt,
    Case,
    Environment,
    Hardware,
    KernelTable,
    Record,
    SlowDown,
)
from bench_lib.storage import lines
from bench_lib.storage.lines import HistoryError

INTERRUPTED = (129, 130, 143)
"""Exit statuses of a run that SIGHUP, Ctrl-C or SIGTERM ended, which may lack cases."""
PACKED = ".gz"
"""Suffix of a compressed file's name."""
LARGEST = 128 * 2**20
"""Maximum bytes of a run's file, for tens of thousands of cases; more would fill the memory."""
NAME = re.compile(
    r"(?P<time>\d{8}T\d{6}Z)_(?P<key>[^/\n]+)_(?P<run>[0-9a-f]{8})\.jsonl(?P<packed>\.gz)?"
)
"""The name of a run's file."""

JUDGED = ("status", "verdicts", "changes", "quarantine", "baseline_accepted", "blamed")
"""What a verdict's line says of a record."""


def utc_now() -> str:
    """Return the time in ISO 8601, in UTC, to the second."""
    return dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def utc_today() -> dt.date:
    """Return the day in UTC."""
    return dt.datetime.now(dt.timezone.utc).date()


def new_id() -> str:
    """Draw a run's id: eight hexadecimal digits."""
    return secrets.token_hex(4)


def reference(environment: Environment) -> str:
    """Return a short name for an environment, the same for equal ones."""
    canonical = json.dumps(msgspec.to_builtins(environment), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


class Writer:
    """Appends the lines of one run to its own file."""

    def __init__(
        self, folder: Path, key: str, *, now: str | None = None, run_id: str | None = None
    ) -> None:
        """Create the file, so that a folder that cannot be written fails before measuring.

        ``run_id`` is eight hexadecimal digits, drawn unless given.  Raises HistoryError.
        """
        self.run_id = run_id or new_id()
        refuse_address(folder)
        started = (now or utc_now()).replace(":", "").replace("-", "")
        self.path = folder / f"{started}_{key}_{self.run_id}.jsonl"
        self._environments: set[str] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Unbuffered, so that nothing half-written comes out of a buffer later.
            self._file = self.path.open("xb", buffering=0)
        except OSError as error:
            raise HistoryError(
                f"cannot write history to {folder}: {error.strerror}; "
                "choose another folder with --history DIR, or pytest's --perf-history DIR"
            ) from error

    def environment(self, environment: Environment, hardware: Hardware) -> str:
        """Write the environment of measurements, once a device; returns the reference to it."""
        name = reference(environment)
        if f"{name} {hardware.uuid}" not in self._environments:
            self._environments.add(f"{name} {hardware.uuid}")
            self._write("environment", ref=name, environment=environment, hardware=hardware)
        return name

    def attempt(self, case: Case, nodeid: str | None, attempt: Attempt) -> None:
        """Write one attempt at a case."""
        self._write("attempt", case=case, nodeid=nodeid, attempt=attempt)

    def kernels(self, case_id: str, kernels: KernelTable) -> None:
        """Write the kernels of a case's step."""
        self._write("kernels", case_id=case_id, kernels=kernels)

    def verdict(self, record: Record) -> None:
        """Write how a case was judged."""
        self._write(
            "verdict",
            case_id=record.case.id,
            nodeid=record.nodeid,
            **{name: getattr(record, name) for name in JUDGED},
        )

    def slow_down(self, slow_down: SlowDown) -> None:
        """Write a slowdown that several nights show together, reported tonight or before."""
        self._write("slowdown", slow_down=slow_down)

    def end(
        self,
        counts: Mapping[str, int],
        exit_status: int,
        *,
        caches: Mapping[str, str] = {},
    ) -> None:
        """Close the run and compress its file; ``caches`` is their state now, if known.

        With an exit status of INTERRUPTED the run counts as unfinished.
        """
        if self._file.closed:
            return
        self._write("end", counts=counts, exit_status=exit_status, caches=caches)
        self.close()
        with contextlib.suppress(OSError, HistoryError):  # a failure costs only space
            packed = self.path.with_name(f"{self.path.name}{PACKED}")
            safe_files.replace(packed, gzip.compress(content(self.path), 6))
            self.path.unlink()
            self.path = packed

    def close(self) -> None:
        """Close the file; a run without an end stays unfinished, an empty one leaves no file."""
        self._file.close()
        if self.path.exists() and self.path.stat().st_size == 0:
            self.path.unlink()

    def _write(self, kind: str, **body: Any) -> None:
        line = {"schema": SCHEMA, "kind": kind, "run": self.run_id, "time": utc_now(), **body}
        try:
            data = msgspec.json.encode(line) + b"\n"
        except UnicodeEncodeError:  # a variable or a file name that is not UTF-8
            text = json.dumps(msgspec.to_builtins(line), ensure_ascii=False)
            data = msgspec.json.encode(json.loads(text.encode(errors="replace"))) + b"\n"
        start = self._file.tell()
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(start)
                self._file.seek(start)
            raise HistoryError(
                f"cannot write history to {self.path}: {error.strerror}; everything before "
                "this case is kept. Free some space or choose another folder with "
                "--history DIR, or pytest's --perf-history DIR"
            ) from error


@dataclass
class Run:
    """One run, read from its file."""

    path: Path
    run_id: str = ""
    key: str = ""
    started: str = ""
    """When it began, as its file's name says, else its first line: UTC, ISO 8601."""
    ended: str | None = None
    exit_status: int | None = None
    caches: dict[str, str] = field(default_factory=dict)
    """The state of the caches at its end; the environments have that at its beginning."""
    environments: dict[str, Environment] = field(default_factory=dict)
    hardware: list[Hardware] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)
    slow_downs: list[SlowDown] = field(default_factory=list)
    """Slowdowns that several nights showed together, as of this run."""
    problems: list[str] = field(default_factory=list)
    """Unreadable lines, by line number."""

    def __post_init__(self) -> None:
        """Fill in what the file's name says, since the lines need not."""
        if match := NAME.fullmatch(self.path.name):
            self.key, self.run_id = match["key"], match["run"]
            self.started = began(self.path)

    @property
    def finished(self) -> bool:
        """Whether the run finished."""
        return self.ended is not None

    def device_of(self, attempt: Attempt) -> Hardware:
        """Return the device of an attempt, or else one with its hardware key."""
        key = attempt.hardware_key or self.key
        devices = [device for device in self.hardware if device.key == key]
        own = [device for device in devices if device.uuid == attempt.device_uuid]
        return next(iter([*own, *devices]), Hardware(vendor="", name=key, key=key))


def began(path: Path) -> str:
    """Return when a run began by its file's name: UTC, ISO 8601; empty if it is no run's file."""
    match = NAME.fullmatch(path.name)
    if match is None:
        return ""
    day, clock = match["time"][:8], match["time"][9:15]
    return f"{day[:4]}-{day[4:6]}-{day[6:]}T{clock[:2]}:{clock[2:4]}:{clock[4:]}Z"


def read(path: Path) -> Run:
    """Read a run from its file.

    Lines that cannot be read are named in ``problems``; a line of a newer schema, or a
    file that cannot be read, raises HistoryError.
    """
    return unfold(path, content(path))


def content(path: Path) -> bytes:
    """Return the lines of a run's file, compressed or not; raises HistoryError.

    If the run ends meanwhile, its file is found under the other name.
    """
    try:
        return _content(path)
    except (OSError, EOFError, zlib.error) as error:
        is_packed = path.suffix == PACKED
        other = path.with_suffix("") if is_packed else path.with_name(f"{path.name}{PACKED}")
        with contextlib.suppress(OSError, EOFError, zlib.error):
            return _content(other)
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise HistoryError(f"cannot read {path}: {reason}") from error


def _content(path: Path) -> bytes:
    with safe_files.open_regular(path, LARGEST) as file:
        data = (gzip.GzipFile(fileobj=file) if path.suffix == PACKED else file).read(LARGEST + 1)
    if len(data) > LARGEST:
        raise HistoryError(f"cannot read {path}: it is larger than {LARGEST / 1e6:.0f} MB")
    return data


def unfold(path: Path, data: bytes) -> Run:
    """Read a run from its file's bytes; ``path`` names the file in messages.

    Raises HistoryError as ``read`` does.
    """
    run = Run(path)
    for line in lines.decoded(path, data):
        if isinstance(line, str):
            run.problems.append(line)
        else:
            _fold(run, line)
    return run


def _fold(run: Run, line: lines.Line) -> None:
    run.run_id = line.run
    run.started = run.started or line.time
    match line:
        case lines.EnvironmentLine():
            run.environments[line.ref] = line.environment
            if line.hardware not in run.hardware:
                run.hardware.append(line.hardware)
            run.key = run.key or line.hardware.key
        case lines.AttemptLine():
            record = run.records.setdefault(line.case.id, Record(line.case, line.nodeid))
            record.attempts.append(line.attempt)
        case lines.KernelsLine():
            old = run.records[line.case_id]
            run.records[line.case_id] = replace(old, kernels=line.kernels)
        case lines.VerdictLine():
            old = run.records[line.case_id]
            judged: dict[str, Any] = {name: getattr(line, name) for name in JUDGED}
            nodeid = line.nodeid or old.nodeid
            run.records[line.case_id] = replace(old, nodeid=nodeid, **judged)
        case lines.SlowDownLine():
            run.slow_downs.append(line.slow_down)
        case lines.EndLine():
            run.ended = None if line.exit_status in INTERRUPTED else line.time
            run.exit_status = line.exit_status
            run.caches = line.caches


def files(folder: Path) -> list[Path]:
    """Return the runs' files in a folder, oldest first; none if there is no folder."""
    return sorted(path for path in folder.glob("*.jsonl*") if NAME.fullmatch(path.name))


def refuse_address(folder: str | Path) -> None:
    """Raise HistoryError for the address of an object store, which only 0.2 could read."""
    if re.match(r"[a-z0-9]{2,}:/", str(folder)):  # pathlib has merged the two slashes
        raise HistoryError(
            f"{folder} is an address, but runs are read from a folder; copy it with "
            "aws s3 sync s3://BUCKET/RUNS history, or with rclone from other stores"
        )
