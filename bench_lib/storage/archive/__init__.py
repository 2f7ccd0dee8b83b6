"""The history at size: every run of a place as tables, from JSON Lines and Parquet alike.

A run counts once, however often it is there.  Files that are left out are reported.
docs/history.md describes the files and the tables.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import msgspec

from bench_lib.model import Environment, Record, Status, unknown
from bench_lib.storage import history
from bench_lib.storage.archive import months, tables, views
from bench_lib.storage.archive.lines import LineRow, split, too_large
from bench_lib.storage.archive.places import HistoryPlace, StoredFile
from bench_lib.storage.history import HistoryError
from bench_lib.verdict.severity import FAILING

T = TypeVar("T")
ANSWER = "answer.parquet"
"""In the scratch folder, the only file that a database may write while it answers."""
ROWS_AT_ONCE = 4096
"""Lines that are put into a table together: each time DuckDB plans for as long as for hundreds."""
ANSWERED_AT_ONCE = 2048
"""Rows of an answer that are in memory together, unless they are kept."""
AHEAD = dt.timedelta(days=1)
"""A run that began so much later than now has a wrong clock, and would be the newest for ever."""
_NO_TABLE = re.compile(r"Table with name (\S+) does not exist")


@dataclass(frozen=True)
class Point:
    """One run's value of one case on one hardware."""

    run_id: str
    time: str
    """When the run began, as its file's name says: UTC, ISO 8601."""
    case_id: str
    key: str
    device_uuid: str | None
    """None too where the run measured the case on several devices."""
    log_median: float
    """Natural logarithm of seconds: the median over the run's accepted attempts."""
    spread: float
    """Inside a process, as ``summary.spread`` has it."""
    rate: float | None
    """Items a second by the wall clock."""
    item: str
    peak_memory_bytes: int | None
    status: Status | None
    """Status of the case's verdict; None if it was not judged."""
    environment: str
    """Reference; ``Archive.environments`` has the environment itself."""


@dataclass(frozen=True)
class RunLine:
    """One run in a line."""

    run_id: str
    key: str
    started: str
    """As its file's name says: UTC, ISO 8601."""
    ended: str | None
    """None if the run was interrupted, or goes on."""
    exit_status: int | None
    cases: int
    counts: dict[str, int]
    """How many cases have each status; ``not judged`` is one."""
    path: str
    """The file that it is read from; several runs share one that was compacted."""
    file: str
    """The name of the run's own file, wherever it is."""
    compacted: bool
    """Whether its own file is not there any more."""
    bytes: int
    """Size of its own file."""
    modified_ns: int | None
    """When its own file was last written to, since 1970; None if the place does not say."""


@dataclass(frozen=True)
class QueryAnswer:
    """The answer to a query."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    is_cut: bool = False
    """Whether there are more rows than the query asked for."""


@dataclass(frozen=True)
class QueryStream:
    """The answer to a query, which is read as it comes and once."""

    columns: list[str]
    rows: Iterator[tuple[Any, ...]]


class Archive:
    """The runs of a folder, or of an address such as ``s3://bucket/runs``; a context manager."""

    def __init__(self, place: str | Path, *, now: str | None = None) -> None:
        """List the files.  Raises HistoryError if the place cannot be read."""
        self.place = HistoryPlace(place)
        self.problems: list[str] = []
        """Parts that were left out, and odd ones that were kept, by file."""
        self._now = now or history.utc_now()
        self._has_views = False
        self._address: dict[str, str] = {}
        """Addresses of compacted months, as DuckDB reads them."""
        self._damaged: dict[str, str] = {}
        """Compacted months that cannot be read, by name, with the reason."""
        self._scratch = tempfile.TemporaryDirectory(prefix="bench-lib-")
        try:
            self._open()
        except BaseException:
            self._scratch.cleanup()
            raise

    def __enter__(self) -> Archive:  # noqa: PYI034 - typing has no Self before Python 3.11
        """Keep it open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Give back memory and scratch files."""
        self._database.close()
        self._scratch.cleanup()

    # ---- what is there ------------------------------------------------------------------

    def runs(self) -> list[RunLine]:
        """Return all runs, oldest first."""
        return list(self._runs)

    def find(self, run: str) -> RunLine:
        """Return the line of a run: ``latest``, or an id or the start of one.

        Raises HistoryError where there is none, or more than one.
        """
        return history.chosen(run, [(r.run_id, r) for r in self._runs], self.place.address)

    def run(self, run: str) -> history.Run:
        """Return the whole run, named as for ``find``, compacted or not.

        Raises HistoryError if there is none, or more than one, or it cannot be read.
        """
        return next(self.read([self.find(run)]))

    def read(self, lines: Iterable[RunLine]) -> Iterator[history.Run]:
        """Yield whole runs, in their order; raises HistoryError.

        Those of one month that follow each other come much faster than each by itself.
        """
        for line, data in self._files(lines):
            yield history.unfold(Path(line.path).parent / line.file, data)

    def data(self, line: RunLine) -> bytes:
        """Return the bytes of a run's own file, compacted or not; raises HistoryError."""
        return next(data for _, data in self._files([line]))

    def _files(self, lines: Iterable[RunLine]) -> Iterator[tuple[RunLine, bytes]]:
        for (path, is_month), group in groupby(lines, lambda line: (line.path, line.compacted)):
            of_file = {line.file: line for line in group}
            for batch in months.batches({file: line.bytes for file, line in of_file.items()}):
                found = self._held(path, batch) if is_month else {}
                for file in batch:
                    data = found[file] if is_month else self.place.read(self._entries[file])
                    yield of_file[file], data

    def _held(self, month: str, files: Sequence[str]) -> dict[str, bytes]:
        place = next(at for at, address in self._address.items() if address == month)
        try:
            found = months.held(self._database, place, files)
        except duckdb.Error as error:
            said = tables.first_line(error)
            raise HistoryError(f"cannot read {files[0]} in {month}: {said}") from error
        if missing := set(files) - found.keys():
            raise HistoryError(f"{min(missing)} is not whole in {month}")
        return found

    def record(self, case_id: str) -> Record | None:
        """Return a case as the newest run that tried it has it; None if none did.

        Raises HistoryError.
        """
        tried = f"kind = 'attempt' AND case_id = {tables.quoted(case_id)}"
        found = self.query(f"SELECT DISTINCT run FROM lines WHERE {tried}")
        ids = {run_id for (run_id,) in found.rows}
        for line in reversed(self._runs):
            if line.run_id in ids:
                record = self.run(line.run_id).records.get(case_id)
                if record is not None:
                    return record
        return None

    def series(self, case_id: str, key: str, *, since: str | None = None) -> list[Point]:
        """Return a case's values on a hardware, oldest first; ``since`` is a run's start."""
        query = f"{_POINTS} AND case_id = ? AND key = ? AND started >= ? ORDER BY started, file"
        return [_point(row) for row in self._ask(query, [case_id, key, since or ""])]

    def all_series(self, *, since: str | None = None) -> Iterator[tuple[str, str, list[Point]]]:
        """Yield each case and hardware key, in order, with its values, oldest first."""
        query = f"{_POINTS} AND started >= ? ORDER BY case_id, key, started, file"
        points = map(_point, self._ask(query, [since or ""]))
        for (case_id, key), own in groupby(points, lambda point: (point.case_id, point.key)):
            yield case_id, key, list(own)

    def environments(self, refs: Iterable[str]) -> dict[str, Environment]:
        """Return those environments that are known, by reference."""
        query = (
            "SELECT environment, min(raw) FROM known WHERE kind = 'environment' "
            "AND list_contains(?, environment) GROUP BY environment"
        )
        found: dict[str, Environment] = {}
        for ref, raw in self._ask(query, [sorted(set(refs))]):
            with contextlib.suppress(msgspec.DecodeError):
                found[ref] = msgspec.json.decode(raw, type=history.EnvironmentLine).environment
        return found

    def failures(self) -> Iterator[tuple[str, history.Line]]:
        """Yield by run each line that says that a case failed, or of a slow-down over nights.

        They come in the order of time.
        """
        told = ", ".join(tables.quoted(status.value) for status in FAILING)
        query = (
            f"SELECT run, raw, kind FROM known WHERE (kind = 'verdict' AND status IN ({told})) "
            "OR kind = 'slowdown' ORDER BY started, file, line"
        )
        types = {"verdict": history.VerdictLine, "slowdown": history.SlowDownLine}
        for run, raw, kind in self._ask(query):
            with contextlib.suppress(msgspec.DecodeError):
                yield run, msgspec.json.decode(raw, type=types[kind])

    def standings(self, cases: Iterable[str]) -> Iterator[tuple[str, str, str, Status | None]]:
        """Yield of some cases each run that measured one: run, case, hardware key, its status."""
        query = (
            "SELECT run, case_id, key, status FROM known "
            "WHERE log_median IS NOT NULL AND list_contains(?, case_id)"
        )
        for run, case_id, key, status in self._ask(query, [sorted(set(cases))]):
            yield run, case_id, key, _STATUS.get(status)

    def former_ids(self, runs: Iterable[RunLine]) -> dict[str, str]:
        """Return by case the id that it had before, as the newest of some runs has the case.

        A case that was tried again under its former id after that is left out, and so are several
        that had the same one.  Raises HistoryError.
        """
        by_id = {run.run_id: run for run in runs}
        query = (
            "SELECT case_id, max(started), arg_max(run, started) FROM known "
            "WHERE case_id IS NOT NULL AND list_contains(?, run) GROUP BY case_id"
        )
        newest = {case_id: row for case_id, *row in self._ask(query, [sorted(by_id)])}
        wanted = {run_id: by_id[run_id] for _, run_id in newest.values()}
        cases = {
            (run.run_id, case_id): record.case
            for run in self.read(wanted.values())
            for case_id, record in run.records.items()
        }
        found: dict[str, str] = {}
        for case_id, (started, run_id) in newest.items():
            case = cases.get((run_id, case_id))
            former = case.renamed_from if case else ""
            if former and newest.get(former, [""])[0] < started:
                found[case_id] = former
        claims = Counter(found.values())
        return {case_id: former for case_id, former in found.items() if claims[former] == 1}

    def environments_of(self, runs: Iterable[str]) -> dict[str, str]:
        """Return by run the reference of the environment that it began in."""
        query = (
            "SELECT run, arg_min(environment, line) FROM known WHERE kind = 'environment' "
            "AND list_contains(?, run) GROUP BY run"
        )
        return dict(self._ask(query, [sorted(set(runs))]))

    def query(self, sql: str, most: int | None = None) -> QueryAnswer:
        """Answer a question as ``stream`` does, with ``most`` rows at most."""
        found = self.stream(sql)
        rows = list(islice(found.rows, None if most is None else most + 1))
        return QueryAnswer(found.columns, rows[:most], is_cut=len(rows) > len(rows[:most]))

    def stream(self, sql: str) -> QueryStream:
        """Answer a question about the views that docs/history.md names, row after row.

        It can read nothing else, and write nothing, and an interrupt ends it.  Ask nothing else
        before the rows are read.  Raises HistoryError, which reading a row may, too.
        """

        def begin() -> tuple[list[str], list[tuple[Any, ...]]]:
            found = self._database.execute(self._checked(sql))
            return [about[0] for about in found.description or []], self._next_rows()

        columns, first = self._answered(lambda: self._past_damage(begin))

        def rows() -> Iterator[tuple[Any, ...]]:
            batch = first
            while batch:
                yield from batch
                batch = self._answered(self._next_rows)

        return QueryStream(columns, rows())

    def _next_rows(self) -> list[tuple[Any, ...]]:
        return self._database.fetchmany(ANSWERED_AT_ONCE)

    def write_parquet(self, sql: str, path: Path) -> None:
        """Write the answer to a query, whose columns have names of their own, as Parquet.

        Raises HistoryError.
        """
        answer = Path(self._scratch.name) / ANSWER
        options = "FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false"
        to = f"{tables.quoted(str(answer))} ({options})"

        def write() -> None:
            self._database.execute(f"COPY ({self._checked(sql)}\n) TO {to}")

        self._answered(lambda: self._past_damage(write))
        history.put(path, answer.read_bytes())

    def _answered(self, work: Callable[[], T]) -> T:
        """Do what a query asks for, until an interrupt; raises HistoryError."""
        try:
            # DuckDB returns to Python, and so to its signals, when it is done.
            with ThreadPoolExecutor(1) as elsewhere:
                future = elsewhere.submit(work)
                try:
                    return future.result()
                except KeyboardInterrupt:
                    self._database.interrupt()
                    raise
        except duckdb.Error as error:
            # DuckDB suggests tables of ours that a query is not meant to see.
            if missing := _NO_TABLE.search(str(error)):
                raise HistoryError(unknown("table", missing[1], list(views.VIEWS))) from error
            raise HistoryError(f"the query failed: {error}") from error

    def _checked(self, sql: str) -> str:
        """Return a query that is one SELECT, for which the views are there; raises HistoryError."""
        try:
            sql.encode()  # an argument may be bytes that are no text, for which DuckDB has no words
            statements = duckdb.extract_statements(sql)
        except (duckdb.Error, UnicodeEncodeError) as error:
            raise HistoryError(f"the query cannot be read: {error}") from error
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise HistoryError("a query is one SELECT; it reads the history and never writes it")
        if not self._has_views:
            views.create(self._database, self._fresh_at, list(self._address))
            self._has_views = True
        return statements[0].query.rstrip("; \n")

    def _ask(self, query: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        def begin() -> tuple[duckdb.DuckDBPyConnection, list[tuple[Any, ...]]]:
            cursor = self._database.cursor().execute(query, list(parameters))
            return cursor, cursor.fetchmany(20_000)

        try:
            cursor, rows = self._past_damage(begin)
            with contextlib.closing(cursor):
                while rows:
                    yield from rows
                    rows = cursor.fetchmany(20_000)
        except duckdb.Error as error:
            raise self._unreadable(error) from error

    def _past_damage(self, work: Callable[[], T]) -> T:
        """Do some work; if compacted months turn out to be damaged, again without them."""
        try:
            return work()
        except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException):
            raise  # the question's fault
        except duckdb.Error:
            if not self._finds_damage():
                raise
        self._database.close()
        self._has_views = False
        self.problems.clear()
        self._open()
        return work()

    def _finds_damage(self) -> bool:
        """Read all of the compacted months; return whether one more cannot be read."""
        scratch, files = Path(self._scratch.name), self.place.file_system
        told = {Path(at).name: months.damage(at, scratch, files) for at in self._address}
        found = {name: f"cannot be read: {why}" for name, why in told.items() if why}
        self._damaged |= found
        return bool(found)

    def _unreadable(self, error: duckdb.Error) -> HistoryError:
        return HistoryError(f"cannot read {self.place.address}: {tables.first_line(error)}")

    # ---- opening ------------------------------------------------------------------------

    def _open(self) -> None:
        for _ in range(3):
            scratch, files = Path(self._scratch.name), self.place.file_system
            self._database = tables.connect(scratch, files=files)
            try:
                self._look()
            except _MovedError:  # somebody compacts: what was a file is in Parquet now
                self._database.close()
                self.problems.clear()
            except duckdb.Error as error:
                self._database.close()
                self.problems.clear()
                if not self._finds_damage():
                    raise self._unreadable(error) from error
            except BaseException:
                self._database.close()
                raise
            else:
                return
        raise HistoryError(f"{self.place.address} changes while it is read; try again")

    def _look(self) -> None:
        database = self._database
        entries = [entry for entry in self.place.entries() if self._can_be_said(entry)]
        self._entries = {entry.name: entry for entry in entries}
        tables.create(database, "fresh")
        parquet = self._parquet(entries)
        unsound = months.unsound(database, parquet)
        self.problems += [
            f"{Path(place).name}: {problem}; {f'{file} in it' if file else 'the row'} is left out"
            for (place, file), problem in unsound.items()
        ]
        compacted = self._copies(months.parquet(parquet), unsound) if parquet else []
        fresh = self._fresh(entries, compacted)
        local = self.place.local(fresh, Path(self._scratch.name))
        rows: list[LineRow] = []
        for entry in fresh:
            rows += self._rows_of(entry, local[entry.name])
            if len(rows) >= ROWS_AT_ONCE:
                tables.insert(database, "fresh", rows)
                rows = []
        tables.insert(database, "fresh", rows)
        kept = self._count_once([*compacted, *self._copies("(SELECT *, NULL AS place FROM fresh)")])
        counted = {(copy.place, copy.line.file) for copy in kept if copy.place}
        aside = {(copy.place, copy.line.file) for copy in compacted if copy.place}
        aside |= {(place, file) for place, file in unsound if file is not None}
        # What is compacted from now on is not to count a second time.
        aside |= {(place, entry.name) for place in parquet for entry in fresh}
        views.create_known(database, parquet, sorted(aside - counted))
        read = sorted(copy.line.file for copy in kept if copy.place is None)
        database.execute("DELETE FROM fresh WHERE NOT list_contains(?, file)", [read])
        self._fresh_at = {name: local[name] for name in read}
        answer = Path(self._scratch.name) / ANSWER
        views.lock(database, [*parquet, *(str(local[name]) for name in read), str(answer)])
        told = (
            "SELECT file, problem FROM known WHERE problem IS NOT NULL ORDER BY started, file, line"
        )
        self.problems += [f"{file}: {problem}" for file, problem in self._ask(told)]
        self._runs = [copy.line for copy in sorted(kept, key=lambda copy: copy.order)]

    def _can_be_said(self, entry: StoredFile) -> bool:
        """Whether a file's name is text, which databases and terminals take."""
        told = entry.name.encode(errors="replace").decode()
        if told != entry.name:
            self.problems.append(f"{told}: its name is no text; left out")
        return told == entry.name

    def _parquet(self, entries: Sequence[StoredFile]) -> list[str]:
        """Return where compacted files are read that this version reads."""
        self._address = {}
        scratch = Path(self._scratch.name)
        for entry, address, problem in months.found(self._database, self.place, entries, scratch):
            if why := self._damaged.get(entry.name, problem):
                self.problems.append(f"{entry.name}: {why}; left out")
            else:
                self._address[address] = entry.address
        return list(self._address)

    def _copies(self, source: str, unsound: Container[tuple[str, str | None]] = ()) -> list[_Copy]:
        """Return the runs in a table of lines, but those whose place and file are unsound."""
        rows = self._database.execute(
            "SELECT place, file, run, key, started, ended, exit_status, cases, counts, bytes, "
            f"modified_ns FROM {source} WHERE bytes IS NOT NULL"
        ).fetchall()
        found = []
        for place, file, *about, counts, size, modified_ns in rows:
            if (place, file) in unsound:
                continue
            if history.NAME.fullmatch(file) is None:  # it is where restoring would write to
                self.problems.append(f"{file!r}: no name of a run's file; cannot be restored")
                continue
            entry = self._entries.get(file)
            path = entry.address if entry else self._address[place]
            told = (
                *about,
                msgspec.json.decode(counts),
                path,
                file,
                entry is None,
                size,
                modified_ns,
            )
            found.append(_Copy(RunLine(*told), place))
        return found

    def _fresh(self, entries: Sequence[StoredFile], compacted: Sequence[_Copy]) -> list[StoredFile]:
        """Return the files that are not compacted as they are now."""
        known = {copy.line.file: copy for copy in compacted}
        found = []
        for entry in entries:
            if not entry.name.endswith(".jsonl"):
                continue
            if problem := too_large(entry.bytes):
                self.problems.append(f"{entry.name}: {problem}; left out")
            elif entry.name not in known or not known[entry.name].is_of(entry):
                found.append(entry)
        return found

    def _rows_of(self, entry: StoredFile, path: Path) -> list[LineRow]:
        """Read a run's file; unreadable parts are reported."""
        try:
            data = path.read_bytes()
            return split(Path(entry.address), data, entry.modified_ns, whole=False)
        except FileNotFoundError as error:
            raise _MovedError from error
        except OSError as error:
            self.problems.append(f"{entry.name}: cannot be read: {error.strerror}; left out")
        except HistoryError as error:
            self.problems.append(f"{error}; left out")
        return []

    def _count_once(self, copies: Sequence[_Copy]) -> list[_Copy]:
        """Return the files that count: a run's longest copy, none from clocks ahead."""
        kept: dict[str, _Copy] = {}
        latest = _later(self._now, AHEAD)
        for copy in sorted(copies, key=lambda copy: copy.rank):
            line = copy.line
            other = kept.get(line.run_id)
            if other is not None:
                # A file that has grown since it was compacted is no surprise.
                if other.line.file != line.file or (other.place and copy.place):
                    where = f"{line.file} in {Path(copy.place).name}" if copy.place else line.file
                    self.problems.append(
                        f"{where}: the same run as {other.line.file}; counted once"
                    )
            elif line.started > latest:
                self.problems.append(
                    f"{line.file}: began {line.started}, which is yet to come; left out"
                )
            else:
                kept[line.run_id] = copy
                if line.ended is not None and line.ended < line.started:
                    self.problems.append(
                        f"{line.file}: ended {line.ended}, before it began; kept as it is"
                    )
        return list(kept.values())


class _MovedError(Exception):
    """A file that was there is not any more."""


@dataclass(frozen=True)
class _Copy:
    """A run as it is in one place."""

    line: RunLine
    place: str | None
    """The Parquet file; None for a run's own file."""

    @property
    def rank(self) -> tuple[int, bool, str, str]:
        """The first of several copies counts: the longest, and a file before Parquet."""
        return -self.line.bytes, self.place is not None, self.line.file, self.place or ""

    @property
    def order(self) -> tuple[str, int, str]:
        """Orders two runs of one second by their last write."""
        return self.line.started, self.line.modified_ns or 0, self.line.file

    def is_of(self, entry: StoredFile) -> bool:
        """Whether a file is as it was when it was compacted."""
        same_size = entry.bytes is None or entry.bytes == self.line.bytes
        return same_size and entry.modified_ns in (None, self.line.modified_ns)


_POINTS = (
    "SELECT run, started, case_id, key, device_uuid, log_median, spread, rate, item, "
    "peak_memory_bytes, status, environment FROM known WHERE log_median IS NOT NULL"
)
_STATUS: dict[str | None, Status | None] = {None: None, **{s.value: s for s in Status}}


def _point(row: Sequence[Any]) -> Point:
    """Return a row of ``_POINTS``, whose columns are in the order of ``Point``."""
    *known, status, environment = row
    values = (*known, _STATUS.get(status), environment)
    return Point(*values)


def _later(time: str, by: dt.timedelta) -> str:
    return f"{dt.datetime.fromisoformat(time.rstrip('Z')) + by:%Y-%m-%dT%H:%M:%SZ}"
