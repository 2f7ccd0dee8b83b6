"""A folder's runs to where all machines' runs are."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from bench_lib.archive import Archive, tables, views
from bench_lib.archive.compaction import STILL
from bench_lib.archive.places import Entry, Place
from bench_lib.history import HistoryError


@dataclass
class Pushed:
    """What became of a folder's runs."""

    files: list[str] = field(default_factory=list)
    """Names of what was uploaded."""
    there: int = 0
    """Runs that were there before."""
    going_on: list[str] = field(default_factory=list)
    """Files of runs that are not finished and may still grow."""


def push(folder: Path, address: str, *, now: dt.datetime | None = None) -> Pushed:
    """Upload the runs that are not at an address yet; nothing that is there gets lost.

    A compacted month goes whole where all that the address has of it is in it, and run by run
    otherwise.  Raises HistoryError.
    """
    place, done = Place(address), Pushed()
    if place.address.startswith("http"):
        raise HistoryError(f"{place.address}: web servers are read from, and not written to")
    still = (now or dt.datetime.now(dt.timezone.utc)) - STILL
    with Archive(folder) as archive, TemporaryDirectory(prefix="bench-lib-") as scratch:
        if archive.place.folder is None:
            raise HistoryError(f"{folder} is no folder; what is pushed is one")
        try:
            there = _Contents(place, Path(scratch))
            before = there.files()
            for entry in _fit_to_go_whole(_Contents(archive.place, Path(scratch)), there):
                place.write(entry.name, Path(entry.address))
                done.files.append(entry.name)
        except duckdb.Error as error:
            raise HistoryError(f"cannot read {place.address}: {error}") from error
        known = there.files()
        for line in archive.runs():
            if known.get(line.file) == line.bytes:
                done.there += before.get(line.file) == line.bytes
            elif line.ended is None and (line.modified_ns or 0) > still.timestamp() * 1e9:
                done.going_on.append(line.file)
            else:
                copy = Path(scratch) / line.file
                copy.write_bytes(archive.data(line))
                place.write(line.file, copy)
                copy.unlink()
                done.files.append(line.file)
    return done


def _fit_to_go_whole(ours: _Contents, there: _Contents) -> Iterator[Entry]:
    """Yield the compacted months that hold more than is there, and all that is under their name.

    Each is taken to be there from then on.
    """
    for name, entry in ours.months.items():
        mine, held = ours.held[name], there.held.get(name, {})
        somebody_elses = name in there.entries and name not in there.months
        news = mine.items() - there.files().items()
        if news and held.items() <= mine.items() and not somebody_elses:
            yield entry
            there.held[name] = mine


class _Contents:
    """The names and sizes of the runs' files of a place, compacted and not."""

    def __init__(self, place: Place, scratch: Path) -> None:
        self.entries = {entry.name: entry for entry in place.entries()}
        self.months: dict[str, Entry] = {}
        self.held: dict[str, Mapping[str, int]] = {}
        """By compacted month."""
        with contextlib.closing(tables.connect(scratch)) as database:
            if place.file_system is not None:
                database.register_filesystem(place.file_system)
            for name, entry in self.entries.items():
                if not name.endswith(".parquet"):
                    continue
                if tables.version_of(database, entry.address) == tables.VERSION:
                    self.months[name] = entry
                    self.held[name] = _files(database, entry)

    def files(self) -> dict[str, int]:
        """Return what is there of each run's file: of several the longest."""
        found: dict[str, int] = {}
        single = {e.name: e.bytes or 0 for e in self.entries.values() if e.name.endswith("jsonl")}
        for files in (single, *self.held.values()):
            for name, size in files.items():
                found[name] = max(size, found.get(name, 0))
        return found


def _files(database: duckdb.DuckDBPyConnection, entry: Entry) -> Mapping[str, int]:
    query = f"SELECT file, bytes FROM {views.parquet([entry.address])} WHERE bytes IS NOT NULL"
    return dict(database.execute(query).fetchall())
