"""The history file of a run: JSON Lines, one file a run, each line whole when written.

A run that is killed loses at most the case in flight.  Readers fold the lines into
records, tolerate a torn last line and say so, and see a run without ``end`` as unfinished.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench_lib.model import (
    SCHEMA,
    Attempt,
    Case,
    Environment,
    Hardware,
    KernelTable,
    Measurement,
    Quarantine,
    Record,
    SlowDown,
    Status,
    UserError,
    Verdict,
)

T = TypeVar("T")
INTERRUPTED = (129, 130, 143)
"""Exit statuses of a run that SIGHUP, Ctrl-C or SIGTERM ended, which may lack cases."""


class HistoryError(UserError):
    """The history cannot be written or read; says where, why, and what to do."""


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
        """Note where measurements of this run come from; returns the reference to it."""
        name = reference(environment)
        if f"{name} {hardware.uuid}" not in self._environments:
            self._environments.add(f"{name} {hardware.uuid}")
            self._write("environment", ref=name, environment=environment, hardware=hardware)
        return name

    def attempt(self, case: Case, nodeid: str | None, attempt: Attempt) -> None:
        """Note one try at a case."""
        self._write("attempt", case=case, nodeid=nodeid, attempt=attempt)

    def tuned(self, case_id: str, database: str) -> None:
        """Note what tuning did to MIOpen's database before a case was measured."""
        self._write("tuned", case_id=case_id, database=database)

    def kernels(self, case_id: str, kernels: KernelTable) -> None:
        """Note what a look into a case's step found."""
        self._write("kernels", case_id=case_id, kernels=kernels)

    def verdict(self, record: Record) -> None:
        """Note how a case was judged."""
        self._write(
            "verdict",
            case_id=record.case.id,
            nodeid=record.nodeid,
            status=record.status,
            verdicts=record.verdicts,
            changes=record.changes,
            quarantine=record.quarantine,
            baseline_accepted=record.baseline_accepted,
            blamed=record.blamed,
        )

    def slow_down(self, found: SlowDown) -> None:
        """Note a slow-down that several nights show together, told tonight or before."""
        self._write("slowdown", slow_down=found)

    def end(
        self,
        counts: Mapping[str, int],
        exit_status: int,
        *,
        caches: Mapping[str, str] | None = None,
    ) -> None:
        """Close the run; `caches` is how full they are now, where somebody looked.

        By a status of INTERRUPTED it stays unfinished.
        """
        if self._file.closed:
            return
        after = {} if caches is None else {"caches": dict(caches)}
        self._write("end", counts=dict(counts), exit_status=exit_status, **after)
        self.close()

    def close(self) -> None:
        """Close the file; a run that is closed without an end stays unfinished."""
        self._file.close()

    def discard_if_empty(self) -> bool:
        """Remove the file of a run that measured nothing; returns whether it was empty."""
        if self.path.exists() and self.path.stat().st_size == 0:
            self._file.close()
            self.path.unlink()
            return True
        return False

    def _write(self, kind: str, **body: Any) -> None:
        line = {"schema": SCHEMA, "kind": kind, "run": self.run_id, "time": utc_now(), **body}
        data = _encode(line) + b"\n"
        good = self._file.tell()
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(good)
                self._file.seek(good)
            raise HistoryError(
                f"cannot write history to {self.path}: {error.strerror}; everything before "
                "this case is kept. Free some space or choose another folder with "
                "--history DIR, or pytest's --perf-history DIR"
            ) from error


def _encode(line: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(line)
    except UnicodeEncodeError:  # a variable or a file name whose bytes are no text
        text = json.dumps(msgspec.to_builtins(line), ensure_ascii=False)
        return msgspec.json.encode(json.loads(text.encode(errors="replace")))


@dataclass
class Run:
    """One run as its file tells it."""

    path: Path
    run_id: str = ""
    key: str = ""
    started: str = ""
    ended: str | None = None
    exit_status: int | None = None
    caches: dict[str, str] = field(default_factory=dict)
    """The state of the caches at its end; the environments have that at its beginning."""
    environments: dict[str, Environment] = field(default_factory=dict)
    hardware: list[Hardware] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)
    tuned: dict[str, str] = field(default_factory=dict)
    """By case, what became of MIOpen's database, where it was filled first."""
    slow_downs: list[SlowDown] = field(default_factory=list)
    """Slow-downs that several nights showed together, as of this run."""
    problems: list[str] = field(default_factory=list)
    """Unreadable lines, by line number."""

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.ended is not None

    @property
    def began(self) -> str:
        """When it began, as its file's name says, else its first line: UTC, ISO 8601."""
        return began(self.path) or self.started


NAME = re.compile(r"(?P<time>\d{8}T\d{6}Z)_(?P<key>[^/\n]+)_(?P<run>[0-9a-f]{8})\.jsonl")
"""The name of a run's file."""


def began(path: Path) -> str:
    """Return when a run began, as its file's name says: UTC, ISO 8601; empty where it is none."""
    match = NAME.fullmatch(path.name)
    if match is None:
        return ""
    day, clock = match["time"][:8], match["time"][9:15]
    return f"{day[:4]}-{day[4:6]}-{day[6:]}T{clock[:2]}:{clock[2:4]}:{clock[4:]}Z"


def read(path: Path) -> Run:
    """Fold one file into a run.

    Lines that cannot be read are named in ``problems``; a line of a newer schema, or a
    file that cannot be opened, raises HistoryError.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise HistoryError(f"cannot read {path}: {error.strerror}") from error
    return unfold(path, data)


def unfold(path: Path, data: bytes) -> Run:
    """Return what ``read`` does of a file's bytes; ``path`` names the file in messages.

    Raises HistoryError as ``read`` does.
    """
    run = Run(path)
    if match := NAME.fullmatch(path.name):
        run.key, run.run_id = match["key"], match["run"]
    for told in lines(path, data):
        if told.line is not None:
            _fold(run, told.line)
        elif told.problem is not None:
            run.problems.append(told.problem)
    return run


def lines(path: Path, data: bytes) -> Iterator[FileLine]:
    """Yield each line of a file with its decoded content, one at a time.

    A reader that keeps little of a line need not hold the whole file's attempts, which takes longer
    than decoding them.  Raises HistoryError for a line of a newer schema.
    """
    *found, torn = data.split(b"\n")
    tried: set[str] = set()
    for number, raw in enumerate(found, 1):
        if not raw.strip():
            yield FileLine(number, raw)
            continue
        try:
            line = _decode(raw)
            _check(line, tried)
        except _NewerSchemaError as error:
            raise HistoryError(f"{path}, line {number}: {error}") from error
        except (ValueError, RecursionError) as error:
            yield FileLine(number, raw, problem=f"line {number} cannot be read: {error}")
        else:
            yield FileLine(number, raw, line)
    number = len(found) + 1
    problem = f"line {number} is torn: the run was killed while writing it" if torn else None
    yield FileLine(number, torn, problem=problem)


# ---- a line, decoded --------------------------------------------------------------------


class Line(msgspec.Struct, kw_only=True):
    """The fields of every line."""

    kind: str
    run: str
    """The run's id."""
    time: str
    """UTC, ISO 8601."""


class LaterLine(Line, kw_only=True):
    """A kind that only a later version knows."""

    case_id: str | None = None


class EnvironmentLine(Line, kw_only=True):
    """The environment of the attempts that name ``ref``; before them."""

    ref: str
    environment: Environment
    hardware: Hardware


class AttemptLine(Line, kw_only=True):
    """One try at a case."""

    case: Case
    attempt: Attempt
    nodeid: str | None = None


class TunedLine(Line, kw_only=True):
    """The effect of tuning on MIOpen's database before a case was measured."""

    case_id: str
    database: str


class KernelsLine(Line, kw_only=True):
    """The kernels of a case's step by a profile."""

    case_id: str
    kernels: KernelTable


class VerdictLine(Line, kw_only=True):
    """How a case was judged."""

    case_id: str
    status: Status
    verdicts: list[Verdict]
    nodeid: str | None = None
    changes: list[str] = []
    """Changes in the environment since the baseline, in words."""
    quarantine: Quarantine | None = None
    baseline_accepted: str | None = None
    """When the baseline that it was judged by was accepted."""
    blamed: list[str] = []
    """The kernels that made it slower: ``GEMM: MT128x128 → MT64x64``."""


class SlowDownLine(Line, kw_only=True):
    """A slow-down that several nights show together; after the verdicts."""

    slow_down: SlowDown


class EndLine(Line, kw_only=True):
    """The end of a run; one without it was interrupted."""

    counts: dict[str, int] = {}
    """How many cases have each status."""
    exit_status: int | None = None
    caches: dict[str, str] = {}
    """How full they were left."""


@dataclass
class FileLine:
    """One line of a file."""

    number: int
    raw: bytes
    line: Line | None = None
    """None for a blank line, and for one with a problem."""
    problem: str | None = None
    """Why the line was left out."""


class _Head(msgspec.Struct):
    schema: int
    kind: str | None = None


_head = msgspec.json.Decoder(_Head)
_later = msgspec.json.Decoder(LaterLine)
_known: dict[str | None, msgspec.json.Decoder[Any]] = {
    "environment": msgspec.json.Decoder(EnvironmentLine),
    "attempt": msgspec.json.Decoder(AttemptLine),
    "tuned": msgspec.json.Decoder(TunedLine),
    "kernels": msgspec.json.Decoder(KernelsLine),
    "verdict": msgspec.json.Decoder(VerdictLine),
    "slowdown": msgspec.json.Decoder(SlowDownLine),
    "end": msgspec.json.Decoder(EndLine),
}


_OURS = re.compile(
    b'\\{"schema":%d,"kind":"(%s)",' % (SCHEMA, "|".join(filter(None, _known)).encode())
)
"""The beginning of a line that this version wrote: it names the line's kind, so that nothing else
need be read."""


class _NewerSchemaError(Exception):
    pass


def _decode(raw: bytes) -> Line:
    """Decode one line; raises ValueError where it is not as its kind is."""
    known = _OURS.match(raw)
    if known is not None:
        ours: Line = _known[known[1].decode()].decode(raw)
        return ours
    head = _head.decode(raw)
    if head.schema > SCHEMA:
        raise _NewerSchemaError(
            f"schema {head.schema} is newer than {SCHEMA}, the newest that this version "
            "of bench-lib reads; upgrade bench-lib"
        )
    line: Line = _known.get(head.kind, _later).decode(raw)
    return line


def _fold(run: Run, line: Line) -> None:
    run.run_id = line.run
    run.started = run.started or line.time
    match line:
        case EnvironmentLine():
            run.environments[line.ref] = line.environment
            if line.hardware not in run.hardware:
                run.hardware.append(line.hardware)
            run.key = run.key or line.hardware.key
        case AttemptLine():
            record = run.records.setdefault(line.case.id, Record(line.case, line.nodeid))
            record.attempts.append(line.attempt)
        case TunedLine():
            run.tuned[line.case_id] = line.database
        case KernelsLine():
            old = run.records[line.case_id]
            run.records[line.case_id] = replace(old, kernels=line.kernels)
        case VerdictLine():
            old = run.records[line.case_id]
            run.records[line.case_id] = replace(
                old,
                nodeid=line.nodeid or old.nodeid,
                status=line.status,
                verdicts=line.verdicts,
                changes=line.changes,
                quarantine=line.quarantine,
                baseline_accepted=line.baseline_accepted,
                blamed=line.blamed,
            )
        case SlowDownLine():
            run.slow_downs.append(line.slow_down)
        case EndLine():
            run.ended = None if line.exit_status in INTERRUPTED else line.time
            run.exit_status = line.exit_status
            run.caches = line.caches


LARGEST = 2**63
"""No count is larger, and floating point takes it."""


def _check_measurement(seen: Measurement) -> None:
    """Raise ValueError where nothing can be judged by it."""
    if not seen.iteration_s:
        raise ValueError("a measurement without iterations")
    times = (min(seen.iteration_s), max(seen.iteration_s), seen.wall_s)
    if not all(0 < time < math.inf for time in times):
        raise ValueError("a measurement whose times are not all above zero")
    for name, value in vars(seen).items():
        if type(value) is int and value > LARGEST:
            raise ValueError(f"a measurement whose {name} is above {LARGEST:.0e}")


def _check(line: Line, tried: set[str]) -> None:
    """Raise ValueError for a line that cannot follow the attempts before it."""
    match line:
        case AttemptLine():
            if (seen := line.attempt.measurement) is not None:
                _check_measurement(seen)
            tried.add(line.case.id)
        case KernelsLine() | VerdictLine() if line.case_id not in tried:
            raise ValueError(f"{line.case_id} was not tried before it")
        case _:
            pass


def put(path: Path, data: bytes, modified_ns: int | None = None) -> None:
    """Write a file, which is there whole or not at all; raises HistoryError."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(data)
        if modified_ns is not None:
            os.utime(part, ns=(modified_ns, modified_ns))
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise HistoryError(f"cannot write {path}: {error.strerror}") from error


# ---- a folder's files -------------------------------------------------------------------


def files(folder: Path) -> list[Path]:
    """Return the files of all runs in a folder, oldest first; none where there is no folder."""
    return [path for path, _ in _found(folder)]


def _found(folder: Path) -> list[tuple[Path, re.Match[str]]]:
    """Return the files of all runs, oldest first, with what their names say."""
    found = []
    for path in folder.glob("*.jsonl"):
        if match := NAME.fullmatch(path.name):
            with contextlib.suppress(OSError):  # compacted this very moment, or a link to nowhere
                about = path.stat()
                if stat.S_ISREG(about.st_mode):
                    # Of two runs of one second the one that was written to last is the later.
                    found.append((match["time"], about.st_mtime_ns, path, match))
    return [(path, match) for _, _, path, match in sorted(found, key=lambda one: one[:3])]


def keys(folder: Path) -> dict[str, list[Path]]:
    """Return the hardware keys of a folder's runs, in order, each with its files, oldest first."""
    found: dict[str, list[Path]] = {}
    for path, match in _found(folder):
        found.setdefault(match["key"], []).append(path)
    return dict(sorted(found.items()))


def has_closed_month(folder: Path, today: dt.date, *, more_than: int) -> bool:
    """Whether a folder of more than so many files has runs of an earlier month to compact.

    Those are files that were written to since their month's Parquet file was.
    """
    found = files(folder)
    if len(found) <= more_than:
        return False
    month, closed = "", f"{today:%Y%m}"
    compacted_ns = 0
    for path in found:
        if path.name[:6] >= closed:
            return False
        if path.name[:6] != month:
            month = path.name[:6]
            compacted_ns = _modified_ns(folder / f"{month[:4]}-{month[4:]}.parquet")
        if _modified_ns(path) > compacted_ns:
            return True
    return False


def _modified_ns(path: Path) -> int:
    """Return when a file was last written to, in ns since 1970; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def latest(
    folder: Path,
    key: str,
    most: int,
    *,
    but: Path | None = None,
    say: Callable[[str], None] = lambda _problem: None,
) -> Iterator[Run]:
    """Read the runs of a hardware key, newest first, ``most`` of them and not the file ``but``.

    A file that cannot be read is passed over; ``say`` is called with the reason.
    """
    paths = [path for path in reversed(keys(folder).get(key, [])) if path != but]
    for path in paths[:most]:
        try:
            run = read(path)
        except HistoryError as error:
            say(str(error))
            continue
        yield run


def find(folder: Path, run: str) -> Path:
    """Return the file of a run: ``latest``, a run id or the start of one, or a path.

    Raises HistoryError where there is none, or more than one.
    """
    if run.endswith(".jsonl") and Path(run).is_file():
        return Path(run)
    return chosen(run, [(match["run"], path) for path, match in _found(folder)], folder)


def chosen(run: str, known: Sequence[tuple[str, T]], where: str | Path) -> T:
    """Return what goes with a run: ``latest``, its id or the start of one.

    ``known`` has the runs by their ids, oldest first, and ``where`` is where they are.  Raises
    HistoryError where there is none, or more than one.
    """
    if not known:
        raise HistoryError(f"no runs in {where}; measure with pytest, or name --history DIR")
    if run == "latest":
        return known[-1][1]
    found = [(id_, one) for id_, one in known if id_.startswith(run)]
    if len(found) == 1:
        return found[0][1]
    ids = ", ".join(id_ for id_, _ in (found or known)[-5:])
    what = "is the start of several runs" if found else "is not a run here"
    raise HistoryError(f"{run!r} {what}; in {where} there is {ids}")
