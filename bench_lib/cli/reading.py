"""Runs of the history as commands read them: from their own files, or from what was compacted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench_lib.history import Run


def is_compacted(folder: Path) -> bool:
    """Whether runs of a folder may be in Parquet, where only an archive sees them.

    Most folders have none, and are read without DuckDB, whose import alone takes a while.
    """
    return any(folder.glob("*.parquet"))


def run(name: str, place: str | Path) -> Run:
    """Read a run of a folder or an address, from its own file where that is there.

    It is named as for ``Archive.find``, or by its file.  Raises HistoryError.
    """
    from bench_lib import history

    folder = Path(place)
    if folder.is_dir() or name.endswith(".jsonl"):
        try:
            path = history.find(folder, name)
        except history.HistoryError:
            if not is_compacted(folder):
                raise
        else:
            return history.read(path)
    from bench_lib.archive import Archive

    with Archive(place) as archive:
        return archive.run(name)
