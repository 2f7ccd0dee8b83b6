"""Runs into Parquet, a file a month, and back: nothing is lost, whenever it is interrupted."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
from filelock import FileLock, Timeout

from bench_lib.storage import history
from bench_lib.storage.archive import Archive, months, tables
from bench_lib.storage.archive.lines import COLUMNS, LineRow, split, too_large
from bench_lib.storage.history import HistoryError

STILL = dt.timedelta(days=1)
"""How long nobody has written to the file of a run without an end before it is compacted."""
_LOCK = ".compact.lock"
_SCRATCH = ".compact-"


@dataclass
class Compaction:
    """The result of compacting a folder's runs."""

    written: int = 0
    """Runs that are in Parquet and were not before."""
    removed: list[Path] = field(default_factory=list)
    """Files that are only in Parquet now."""
    bytes_removed: int = 0
    left: list[str] = field(default_factory=list)
    """Odd files that were left as they are, with the reason."""


def compact(folder: Path, *, keep: int, now: dt.datetime | None = None) -> Compaction:
    """Bring a folder's runs into Parquet, and remove files that are in it byte for byte.

    The newest ``keep`` files of each hardware key stay as well, and those of runs that do not
    count, which ``restore`` could not name.  Runs that are not finished, and were written to in the
    last day, stay alone and are none of the ``keep``.  Raises HistoryError.
    """
    if not folder.is_dir():
        raise HistoryError(f"{folder} is not a folder; name one with --history DIR")
    done = Compaction()
    now = now or dt.datetime.now(dt.timezone.utc)
    still_ns = int((now - STILL).timestamp() * 1e9)
    with alone(folder) as scratch:
        try:
            for month, files in _months(folder).items():
                with _left_where_damaged(folder / f"{month}.parquet", scratch, done) as archive:
                    _bring_in(archive, files, still_ns, scratch, done)
            with Archive(folder, now=f"{now:%Y-%m-%dT%H:%M:%SZ}") as there:
                runs = there.runs()
                _tell_of_months(folder, there.problems, done)
            counted = {run.file for run in runs}
            going_on = {run.file for run in runs if _goes_on(run.ended, run.modified_ns, still_ns)}
            kept: set[Path] = set()
            for paths in history.keys(folder).values():
                finished = [path for path in paths if path.name not in going_on]
                kept.update(finished[max(0, len(finished) - keep) :])
            for month, files in _months(folder).items():
                spare = [path for path in files if path not in kept and path.name in counted]
                with _left_where_damaged(folder / f"{month}.parquet", scratch, done) as archive:
                    _remove(archive, spare, scratch, done)
        except duckdb.Error as error:
            raise HistoryError(f"cannot compact {folder}: {tables.first_line(error)}") from error
        except OSError as error:
            raise HistoryError(f"cannot compact {folder}: {error.strerror}") from error
    return done


def restore(folder: Path, run: str) -> Path:
    """Write a compacted run's own file again, as it was; returns it.

    The run is named as for ``Archive.find``; it stays in Parquet and counts once.  Raises
    HistoryError.
    """
    with Archive(folder) as archive:
        if archive.place.folder is None:
            raise HistoryError(f"{folder} is no folder; a run is restored into one")
        line = archive.find(run)
        path = archive.place.folder / line.file
        if not line.compacted:
            return path
        data, modified_ns = archive.data(line), line.modified_ns
    history.put(path, data, modified_ns)
    return path


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[Path]:
    """Keep others from compacting the folder; yields a scratch folder in it.

    Raises HistoryError.
    """
    try:
        with FileLock(folder / _LOCK, blocking=False):
            for left in folder.glob(f"{_SCRATCH}*"):  # by one that was killed
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
            with TemporaryDirectory(prefix=_SCRATCH, dir=folder) as scratch:
                yield Path(scratch)
    except Timeout as error:
        raise HistoryError(f"{folder} is being compacted by somebody else") from error
    except OSError as error:
        raise HistoryError(f"cannot write to {folder}: {error.strerror}") from error


class _NotOursError(Exception):
    """A Parquet file is none that this version adds to; says why."""


@contextlib.contextmanager
def _left_where_damaged(archive: Path, scratch: Path, done: Compaction) -> Iterator[Path]:
    """Leave a month as it is, and say so, where its Parquet file cannot be read."""
    try:
        yield archive
    except _NotOursError as error:
        problem = str(error)
    except duckdb.Error:
        damage = months.damage(str(archive), scratch) if archive.exists() else None
        if damage is None:
            raise
        problem = f"cannot be read: {damage}"
    else:
        return
    reason = f"{archive.name}: {problem}; left as it is, and so are its runs' files"
    if reason not in done.left:
        done.left.append(reason)


def _tell_of_months(folder: Path, problems: Sequence[str], done: Compaction) -> None:
    """Report odd compacted months, unless they are among the files that were left already."""
    for month in sorted(f"{path.name}: " for path in folder.glob("*.parquet")):
        if not any(reason.startswith(month) for reason in done.left):
            done.left += [problem for problem in problems if problem.startswith(month)]


def _months(folder: Path) -> dict[str, list[Path]]:
    """Return the files of runs by the month that they began in, in order: ``2026-01``."""
    found: dict[str, list[Path]] = {}
    for path in history.files(folder):
        found.setdefault(f"{path.name[:4]}-{path.name[4:6]}", []).append(path)
    return dict(sorted(found.items()))


def _goes_on(ended: str | None, modified_ns: int | None, still_ns: int) -> bool:
    """Whether somebody may be writing to a run's file.

    The nights before such a run judge it, so none may be missing for its sake.
    """
    return ended is None and (modified_ns or 0) > still_ns


def _bring_in(
    archive: Path, files: Sequence[Path], still_ns: int, scratch: Path, done: Compaction
) -> None:
    """Put the new files of a month into its Parquet file, which is replaced whole."""
    known = _known(archive, scratch)
    changed = [path for path in files if known.get(path.name) != _size_and_time(path)]
    if not changed:
        return
    with _staging() as database:
        new = 0
        for batch in months.batches({path: path.stat().st_size for path in changed}):
            names = [path.name for path in batch if path.name in known]
            before = months.held(database, str(archive), names) if names else {}
            rows: list[LineRow] = []
            for path in batch:
                try:
                    found = _rows(path, before.get(path.name, b""), still_ns)
                except HistoryError as error:
                    done.left.append(str(error))
                    continue
                new += bool(found)
                rows += found
            tables.insert(database, "staged", rows)
        if new:
            _replace(database, archive, scratch / archive.name)
            done.written += new


@contextlib.contextmanager
def _staging() -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a database on disk, for a month is too much for memory."""
    with TemporaryDirectory(prefix="bench-lib-") as folder:
        path = Path(folder)
        with contextlib.closing(tables.connect(path, str(path / "lines.duckdb"))) as database:
            tables.create(database, "staged")
            yield database


def _known(archive: Path, scratch: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of the files that are whole in an archive, by name."""
    if not archive.exists():
        return {}
    with contextlib.closing(tables.connect(scratch)) as database:
        if problem := months.problem_of(database, str(archive)):
            raise _NotOursError(problem)
        return months.files(database, str(archive))


def _rows(path: Path, before: bytes, still_ns: int) -> list[LineRow]:
    """Return the lines of a file; none while somebody may be writing to it.

    ``before`` is its compacted part.  Raises HistoryError if the file does not begin with that, or
    cannot be read.
    """
    try:
        about = _size_and_time(path)
        if problem := too_large(about[0]):
            raise HistoryError(f"{path.name}: {problem}")
        data = path.read_bytes()
    except OSError as error:
        raise HistoryError(f"{path.name}: cannot be read: {error.strerror}") from error
    if not data.startswith(before):
        raise HistoryError(
            f"{path.name}: not what was compacted under its name; rename one of them, or remove it"
        )
    rows = split(path, data, about[1])
    going_on = _goes_on(rows[0].ended, about[1], still_ns)
    return [] if going_on or _size_and_time(path) != about else rows


def _replace(database: duckdb.DuckDBPyConnection, archive: Path, part: Path) -> None:
    """Write the staged rows and those of the archive, and replace the archive."""
    columns = ", ".join(COLUMNS)
    old = ""
    if archive.exists():
        old = (
            f"SELECT {columns} FROM {months.parquet([str(archive)])} "
            "WHERE file NOT IN (SELECT DISTINCT file FROM brought)"
        )
        database.execute("CREATE TABLE brought AS SELECT DISTINCT file FROM staged")
        database.execute(f"INSERT INTO staged {old}")
    months.write(database, "staged", part)
    written = _digests(f"SELECT {columns} FROM {months.parquet([str(part)])}")
    meant = [_digests(f"SELECT {columns} FROM staged"), *([_digests(old)] if old else [])]
    for digests in meant:
        if database.execute(f"{digests} EXCEPT {written}").fetchone() is not None:
            raise HistoryError(
                f"{archive.name} was not written as it was meant to be; everything is as it was"
            )
    settle(part)
    part.replace(archive)
    settle(archive.parent)


def _digests(lines: str) -> str:
    """Return the SQL that computes each file's number of lines and their digest."""
    every = ", ".join(COLUMNS)
    return f"SELECT file, count(*), bit_xor(hash({every})) FROM ({lines}) GROUP BY file"


def settle(path: Path) -> None:
    """Have a file or folder on the disk; raises OSError."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _remove(archive: Path, files: Sequence[Path], scratch: Path, done: Compaction) -> None:
    """Remove files that are read from an archive just as they are."""
    known = _known(archive, scratch) if files else {}
    sure = [path for path in files if known.get(path.name) == _size_and_time(path)]
    if not sure:
        return
    with contextlib.closing(tables.connect(scratch)) as database:
        for batch in months.batches({path: known[path.name][0] for path in sure}):
            found = months.held(database, str(archive), [path.name for path in batch])
            for path in batch:
                data = path.read_bytes()
                if data == found.get(path.name):
                    path.unlink()
                    done.removed.append(path)
                    done.bytes_removed += len(data)


def _size_and_time(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns
