"""The runs of a place, each read from its own file where that is there.

Only what was compacted, or is at an address, has to be opened as an archive: importing DuckDB alone
takes a while.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bench_lib.model import Record
from bench_lib.storage import history
from bench_lib.storage.history import HistoryError, Run

if TYPE_CHECKING:
    from bench_lib.storage.archive import Archive


class Runs:
    """The runs of a folder, or of an address such as ``s3://bucket/runs``."""

    def __init__(self, place: str | Path) -> None:
        """Open nothing yet."""
        self.place = place
        self._folder = Path(place)
        is_folder = self._folder.is_dir() or not self._folder.exists()
        is_local = is_folder and not is_address(str(place))
        self._in_files = is_local and not any(self._folder.glob("*.parquet"))

    def keys(self) -> list[str]:
        """Return the hardware keys that there are runs of, in order; raises HistoryError."""
        if self._in_files:
            return list(history.keys(self._folder))
        with self._archive() as archive:
            return sorted({run.key for run in archive.runs()})

    def find(self, name: str) -> Run:
        """Return a run: ``latest``, its id or the start of one, or its file.

        Raises HistoryError where there is none, or more than one.
        """
        path = self._file(name)
        if path is not None:
            return history.read(path)
        with self._archive() as archive:
            return archive.run(name)

    def newest(self, key: str) -> Run | None:
        """Return the newest run of a hardware key; None if there is none.  Raises HistoryError."""
        if self._in_files:
            files = history.keys(self._folder).get(key, [])
            return history.read(files[-1]) if files else None
        with self._archive() as archive:
            ids = [run.run_id for run in archive.runs() if run.key == key]
            return archive.run(ids[-1]) if ids else None

    def latest(self, key: str, most: int, say: Callable[[str], None]) -> Iterator[Run]:
        """Yield the runs of a hardware key, newest first, ``most`` of them.

        ``say`` is called with what cannot be read of them.
        """
        if self._in_files:
            for run in history.latest(self._folder, key, most, say=say):
                for problem in run.problems:
                    say(f"{run.path.name}: {problem}")
                yield run
            return
        with self._archive() as archive:
            for problem in archive.problems:
                say(problem)
            own = [run for run in archive.runs() if run.key == key]
            yield from archive.read(reversed(own[-most:]))

    def record(self, case_id: str) -> Record | None:
        """Return a case as the newest run that tried it has it; None if none did.

        A file that cannot be read is passed over.  Raises HistoryError.
        """
        try:
            wanted = case_id.encode()
        except UnicodeEncodeError:  # bytes that are no text, and so in no line of JSON
            return None
        if not self._in_files:
            with self._archive() as archive:
                return archive.record(case_id)
        for path in reversed(history.files(self._folder)):
            with contextlib.suppress(HistoryError, OSError):
                if wanted in path.read_bytes():
                    records = history.read(path).records
                    if case_id in records:
                        return records[case_id]
        return None

    def _file(self, name: str) -> Path | None:
        """Return the file of a run; None if only an archive tells.  Raises HistoryError."""
        if self._in_files:
            return history.find(self._folder, name)
        # Of what was compacted another run may be the newest, or its id may begin alike.
        with contextlib.suppress(HistoryError):
            path = history.find(self._folder, name)
            if name.endswith(".jsonl") or path.stem.endswith(f"_{name}"):
                return path
        return None

    def _archive(self) -> Archive:
        from bench_lib.storage.archive import Archive  # noqa: PLC0415 - most places need no DuckDB

        return Archive(self.place)


def is_address(name: str) -> bool:
    """Whether a name is an address; a path has swallowed one of its slashes."""
    return re.match(r"[a-z0-9]{2,}:/", name) is not None
