"""MIOpen's caches: its databases, which choose kernels, and the kernels that it compiled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from bench_lib.backends.folders import hashed, place, searched, state, state_of, walk

NAME = "miopen"


def caches(environ: Mapping[str, str]) -> dict[str, str]:
    """Say how full the find and performance databases are, and how many kernels there are."""
    return {
        NAME: _database(place(environ, "MIOPEN_USER_DB_PATH", "~/.config/miopen")),
        "miopen kernels": _kernels(place(environ, "MIOPEN_CUSTOM_CACHE_DIR", "~/.cache/miopen")),
    }


def conditions(filled: Mapping[str, str]) -> dict[str, str]:
    """Return whether the database was cold, warm or tuned, by the caches that a run found."""
    if NAME not in filled:
        return {}
    is_tuned = searched(NAME) in filled
    return {"miopen_cache": "tuned" if is_tuned else state_of(filled[NAME])}


def _database(folder: Path) -> str:
    """Describe MIOpen's ``*.ufdb.txt`` and ``*.udb.txt`` (once ``*.updb.txt``), a record a line."""
    names = re.compile(r".*\.u[fp]?db\.txt")
    return hashed([file for file in walk(folder) if names.fullmatch(file.name)])


def _kernels(folder: Path) -> str:
    """Describe MIOpen's compiled kernels: they make first steps quick and choose nothing."""
    others = (".txt", ".udb", ".lock", ".time")  # the folder is often the databases' as well
    return state(sum(not file.name.endswith(others) for file in walk(folder)), "file")
