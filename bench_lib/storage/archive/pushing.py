"""A folder's runs to where all machines' runs are, and back."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from bench_lib.storage import history
from bench_lib.storage.archive import AHEAD, Archive, months, tables
from bench_lib.storage.archive.compaction import STILL
from bench_lib.storage.archive.places import HistoryPlace, StoredFile
from bench_lib.storage.history import HistoryError


@dataclass
class Pushed:
    """The result of pushing a folder's runs."""

    files: list[str] = field(default_factory=list)
    """Names of the uploaded files."""
    there: int = 0
    """Runs that were there before."""
    going_on: list[str] = field(default_factory=list)
    """Files of runs that are not finished and may still grow."""


@dataclass
class Pulled:
    """The result of pulling the runs at an address."""

    files: list[Path] = field(default_factory=list)
    """The files that were written."""
    here: int = 0
    """Runs that were here before."""
    left: list[str] = field(default_factory=list)
    """Files that were left as they are, with the reason."""


def push(folder: Path, address: str, *, now: dt.datetime | None = None) -> Pushed:
    """Upload the runs that are not at an address yet; nothing at the address gets lost.

    A compacted month goes whole if it holds everything that the address has of it, otherwise run by
    run.  Raises HistoryError.
    """
    place, done = HistoryPlace(address), Pushed()
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


def pull(folder: Path, address: str, *, most: int | None, now: dt.datetime | None = None) -> Pulled:
    """Write the files of runs that an address has and a folder lacks, compacted or not.

    It takes the newest ``most`` of each hardware key, or all for None.  Raises HistoryError; files
    written until then are whole.
    """
    place, ours, done = HistoryPlace(address), HistoryPlace(folder), Pulled()
    if ours.folder is None:
        raise HistoryError(f"{folder} is no folder; runs are fetched into one")
    latest = (now or dt.datetime.now(dt.timezone.utc)) + AHEAD
    with TemporaryDirectory(prefix="bench-lib-") as scratch:
        try:
            there, known = _Contents(place, Path(scratch)), _Contents(ours, Path(scratch)).files()
            wanted = _newest(there.files(), most, f"{latest:%Y%m%dT%H%M%SZ}")
            missing = [name for name, size in wanted.items() if known.get(name, -1) < size]
            done.here = len(wanted) - len(missing)
            for name, data in there.read(missing):
                _keep(ours.folder / name, data, done)
        except duckdb.Error as error:
            raise HistoryError(
                f"cannot read {place.address}: {tables.first_line(error)}"
            ) from error
    return done


def _newest(files: Mapping[str, int], most: int | None, latest: str) -> dict[str, int]:
    """Return of each hardware key the newest runs' files, but none that is yet to come."""
    of_key: dict[str, list[str]] = {}
    for name in sorted(files, reverse=True):
        match = history.NAME.fullmatch(name)
        if match and match["time"] <= latest:
            of_key.setdefault(match["key"], []).append(name)
    return {name: files[name] for names in of_key.values() for name in names[:most]}


def _keep(path: Path, data: bytes, done: Pulled) -> None:
    """Write a file, unless something else is here under its name; raises HistoryError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        same = not path.exists() or data.startswith(path.read_bytes())
    except OSError as error:
        raise HistoryError(f"cannot write {path}: {error.strerror}") from error
    if same:
        history.put(path, data)
        done.files.append(path)
    else:
        done.left.append(f"{path.name}: not what is there under its name; left as it is")


def _fit_to_go_whole(ours: _Contents, there: _Contents) -> Iterator[StoredFile]:
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

    def __init__(self, place: HistoryPlace, scratch: Path) -> None:
        self.place, self.scratch = place, scratch
        self.entries = {entry.name: entry for entry in place.entries()}
        self.months: dict[str, StoredFile] = {}
        self.held: dict[str, Mapping[str, int]] = {}
        """By compacted month."""
        self._at: dict[str, str] = {}
        with self._database() as database:
            for entry, at, problem in months.found(database, place, self.entries.values(), scratch):
                if problem is None:
                    self.months[entry.name], self._at[entry.name] = entry, at
                    sizes = months.files(database, at)
                    self.held[entry.name] = {name: size for name, (size, _) in sizes.items()}

    def files(self) -> dict[str, int]:
        """Return the address's copy of each run's file: the longest of several."""
        found: dict[str, int] = {}
        single = {e.name: e.bytes or 0 for e in self.entries.values() if e.name.endswith("jsonl")}
        for files in (single, *self.held.values()):
            for name, size in files.items():
                found[name] = max(size, found.get(name, 0))
        return found

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the address's run files, each with its bytes: the longest of several copies.

        Raises HistoryError and duckdb.Error.
        """
        longest, in_months = self.files(), defaultdict[str, list[str]](list)
        for name in names:
            entry = self.entries.get(name)
            if entry is not None and (entry.bytes or 0) == longest[name]:
                yield name, self.place.read(entry)
            else:
                month = next(m for m, held in self.held.items() if held.get(name) == longest[name])
                in_months[month].append(name)
        with self._database() as database:
            for month, files in in_months.items():
                for batch in months.batches({name: longest[name] for name in files}):
                    found = months.held(database, self._at[month], batch)
                    yield from sorted(found.items())

    def _database(self) -> contextlib.closing[duckdb.DuckDBPyConnection]:
        return contextlib.closing(tables.connect(self.scratch, files=self.place.file_system))
