"""The runs of a folder: their files are checked first, and each run counts once."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench_lib.formats import some
from bench_lib.model import Record
from bench_lib.storage import history
from bench_lib.storage.history import Run
from bench_lib.storage.lines import HistoryError

ENDS = (".jsonl", f".jsonl{history.PACKED}")
"""Suffixes of the names of runs' files."""
AHEAD = dt.timedelta(days=1)
"""A run that began this far in the future has a wrong clock, and would stay the newest."""
MONTH = ".parquet"
"""Suffix of a month that version 0.1 or 0.2 compacted."""


@dataclass(frozen=True)
class RunFile:
    """A run's file, by its name."""

    name: str
    path: Path
    run_id: str
    key: str
    started: str
    """UTC, ISO 8601."""
    bytes: int
    """Size of the file, compressed or not."""
    modified_ns: int
    """When it was last written to, since 1970."""


class Runs:
    """The runs of a folder."""

    def __init__(self, folder: str | Path) -> None:
        """Nothing is opened yet.  Raises HistoryError for an address."""
        history.refuse_address(folder)
        self.folder = Path(folder)
        latest = dt.datetime.fromisoformat(history.utc_now().rstrip("Z")) + AHEAD
        self._latest = f"{latest:%Y-%m-%dT%H:%M:%SZ}"
        self.problems: list[str] = []
        """Files that are left out, with the reason."""

    @cached_property
    def files(self) -> list[RunFile]:
        """The files of all runs, oldest first; none if there is no folder.

        Raises HistoryError if the folder cannot be read.
        """
        best: dict[str, RunFile] = {}
        by_id: dict[str, str] = {}
        # Of two copies of a run, the compressed one is complete.
        for file in sorted(
            self._scanned(), key=lambda file: not file.name.endswith(history.PACKED)
        ):
            if file.started > self._latest:
                self._leave_out(file.name, f"it began on {file.started}, in the future")
                continue
            name = file.name.removesuffix(history.PACKED)
            best.setdefault(name, file)
            # One of the two may be forged, and nothing shows which.
            if (other := by_id.setdefault(file.run_id, name)) != name:
                self.problems.append(f"{file.name}: it has the same id as {other}; both count")
        # Of two runs that began in the same second, the one written to last is the later.
        return sorted(best.values(), key=lambda file: (file.started, file.modified_ns, file.name))

    def read(self, files: Iterable[RunFile], say: Callable[[str], None]) -> Iterator[Run]:
        """Yield whole runs, in the order of their files.

        ``say`` is called with why one cannot be read.
        """
        for file in files:
            try:
                run = history.read(file.path)
            except HistoryError as error:  # noqa: PERF203 - one odd file hides no other
                say(str(error))
            else:
                yield run

    def find(self, name: str) -> Run:
        """Return a run: ``latest``, its id or the start of one, or its file.

        Raises HistoryError if there is none, or more than one.
        """
        if name.endswith(ENDS) and os.path.lexists(name):
            return history.read(Path(name))
        if not self.files:
            raise HistoryError(
                f"no runs in {self.folder}; measure with pytest, or name --history DIR"
            )
        if name == "latest":
            left_out: list[str] = []
            for run in self.read(reversed(self.files), left_out.append):
                run.problems += [*left_out, *self.problems]
                return run
            raise HistoryError("; ".join(left_out))
        # An empty name, as of a variable that is not set, begins every id.
        files = self.files if name else []
        matches = [f for f in files if f.run_id.startswith(name) or f.name == name]
        if len(matches) == 1:
            return history.read(matches[0].path)
        ids = some([file.run_id for file in reversed(matches or self.files)], 5)
        what = "is the beginning of several ids" if matches else "is not a run here"
        raise HistoryError(f"{name!r} {what}; {self.folder} has {ids}")

    def latest(
        self,
        key: str,
        most: int,
        say: Callable[[str], None] = lambda _problem: None,
        *,
        but: str = "",
    ) -> Iterator[Run]:
        """Yield the runs of a hardware key, newest first, ``most`` of them and not the run ``but``.

        ``say`` is called with the reason of each file that cannot be read.
        """
        own = [file for file in reversed(self.files) if file.key == key and file.run_id != but]
        for problem in self.problems:
            say(problem)
        return self.read(own[:most], say)

    def record(self, case_id: str) -> Record | None:
        """Return a case's record in the newest run that tried it; None if none did.

        Files that cannot be read are skipped.  Raises HistoryError.
        """
        wanted = case_id.encode(errors="replace")
        for file in reversed(self.files):
            with contextlib.suppress(HistoryError):
                data = history.content(file.path)
                if wanted in data and (
                    record := history.unfold(file.path, data).records.get(case_id)
                ):
                    return record
        return None

    def _scanned(self) -> Iterator[RunFile]:
        """Yield every run's file, including copies; note those that are left out."""
        try:
            names = sorted(path.name for path in self.folder.iterdir())
        except FileNotFoundError:
            return
        except NotADirectoryError as error:
            raise HistoryError(
                f"{self.folder} is not a folder; name one with --history DIR"
            ) from error
        except OSError as error:
            raise HistoryError(f"cannot read {self.folder}: {error.strerror}") from error
        for name in names:
            if name.startswith(".") or not name.endswith((*ENDS, MONTH)):
                continue
            try:
                yield _run_file(self.folder / name)
            except FileNotFoundError:  # the run has just ended, and its file was compressed
                if name.endswith(ENDS[0]):
                    names.append(f"{name}{history.PACKED}")
            except HistoryError as error:
                self._leave_out(name, str(error))

    def _leave_out(self, name: str, reason: str) -> None:
        shown = name.encode(errors="replace").decode()
        self.problems.append(f"{shown}: {reason}; left out")


def _run_file(path: Path) -> RunFile:
    """Return a run's file.

    Raises HistoryError if its name is of no run, or it is too large, FileNotFoundError if it is
    gone.
    """
    info = path.lstat()
    if not stat.S_ISREG(info.st_mode):
        raise HistoryError("it is not a regular file")
    if path.suffix == MONTH:
        raise HistoryError("0.1 or 0.2 compacted this month; unpack it (docs/history.md)")
    name, size, began = path.name, info.st_size, history.began(path)
    match = history.NAME.fullmatch(name)
    try:
        dt.datetime.fromisoformat(began.removesuffix("Z"))
        name.encode()
    except ValueError:  # no such day, or not UTF-8
        match = None
    if match is None:
        raise HistoryError("it is not named like the file of a run")
    if size > history.LARGEST:
        raise HistoryError(
            f"it has {size / 1e6:.0f} MB; the limit is {history.LARGEST / 1e6:.0f} MB"
        )
    return RunFile(name, path, match["run"], match["key"], began, size, info.st_mtime_ns)
