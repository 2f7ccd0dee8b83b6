"""Unreadable parts of a folder's history, by file, row and reason; and mending them.

Mending moves a file into ``lost+found`` and writes its readable part in its place, so that nothing
is lost.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from bench_lib.storage import history
from bench_lib.storage.archive import months, tables
from bench_lib.storage.archive.compaction import STILL, alone, settle
from bench_lib.storage.archive.lines import COLUMNS, split, too_large
from bench_lib.storage.history import HistoryError

LOST_AND_FOUND = "lost+found"


@dataclass
class Damage:
    """The unreadable parts of one file."""

    file: str
    problems: list[str] = field(default_factory=list)
    mended: str = ""
    """The mending that was done; empty if none was."""
    remedy: str = ""
    """Why nothing is done about it, and what a person can do."""


def check(folder: Path, *, repair: bool = False, now: dt.datetime | None = None) -> list[Damage]:
    """Return what cannot be read of a folder's history, file by file; mend it where asked.

    A file that somebody may still be writing to is left alone.  Raises HistoryError.
    """
    if not folder.is_dir():
        raise HistoryError(f"{folder} is not a folder; name one with --history DIR")
    still_s = ((now or dt.datetime.now(dt.timezone.utc)) - STILL).timestamp()
    with alone(folder) as scratch:
        found = [
            *(_run(path, still_s, repair=repair) for path in sorted(folder.glob("*.jsonl"))),
            *(
                _month(path, scratch, repair=repair)
                for path in sorted(folder.glob("[!.]*.parquet"))
            ),
        ]
    return [damage for damage in found if damage.problems]


# --- a run's file --------------------------------------------------------------------------------


def _run(path: Path, still_s: float, *, repair: bool) -> Damage:
    damage = Damage(path.name.encode(errors="replace").decode())
    try:
        about = path.stat()
        problem = too_large(about.st_size)
        data = b"" if problem else path.read_bytes()
        split(path, data, None)  # which is for other files, too
        run, lines = history.unfold(path, data), list(history.lines(path, data))
    except (OSError, HistoryError) as error:
        problem = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if problem:
        damage.problems.append(problem)
        damage.remedy = "rename it, or move it elsewhere"
        return damage
    damage.problems += [line.problem for line in lines if line.problem]
    if damage.problems and not run.finished and about.st_mtime > still_s:
        damage.remedy = "the run may go on; look again in a day"
    elif damage.problems and repair:
        good = [line.raw + b"\n" for line in lines if line.line is not None]
        _set_aside(path)
        if good:
            history.put(path, b"".join(good), about.st_mtime_ns)
        damage.mended = f"{len(good)} of its lines kept"
    return damage


# --- a compacted month ---------------------------------------------------------------------------


def _month(path: Path, scratch: Path, *, repair: bool) -> Damage:
    damage = Damage(path.name)
    with contextlib.closing(tables.connect(scratch)) as database:
        problem = months.problem_of(database, str(path))
        if problem is not None and not problem.startswith(months.UNREADABLE):
            damage.problems.append(problem)
            damage.remedy = "it is left as it is"
            return damage
        torn = problem or months.damage(str(path), scratch)
        unsound = {} if torn else months.unsound(database, [str(path)])
        damage.problems += [torn] if torn else []
        damage.problems += [f"{why} ({file or 'of no file'})" for (_, file), why in unsound.items()]
        if not (damage.problems and repair):
            return damage
        part = scratch / path.name
        kept = 0 if torn else _without(database, path, [file for _, file in unsound], part)
    _set_aside(path)
    if kept:
        settle(part)
        part.replace(path)
    damage.mended = f"{kept} of its runs kept"
    return damage


def _without(
    database: duckdb.DuckDBPyConnection, month: Path, files: list[str | None], part: Path
) -> int:
    """Write a month without the rows of some files; return how many runs are left in it."""
    columns = ", ".join(COLUMNS)
    database.execute(
        f"CREATE TABLE kept AS SELECT {columns} FROM {months.parquet([str(month)])} "
        "WHERE file IS NOT NULL AND NOT list_contains(?, file)",
        [[file for file in files if file is not None]],
    )
    months.write(database, "kept", part)
    counted = database.execute("SELECT count(DISTINCT file) FROM kept").fetchone()
    return int(counted[0]) if counted else 0


def _set_aside(path: Path) -> Path:
    """Move a file into ``lost+found``, under a name that nothing there has."""
    folder = path.parent / LOST_AND_FOUND
    try:
        folder.mkdir(exist_ok=True)
        to = next(name for name in _names(folder / path.name) if not name.exists())
        shutil.move(path, to)
    except OSError as error:
        raise HistoryError(f"cannot move {path} to {folder}: {error.strerror}") from error
    return to


def _names(path: Path) -> Iterator[Path]:
    yield path
    number = 1
    while True:
        number += 1
        yield path.with_name(f"{path.name}.{number}")
