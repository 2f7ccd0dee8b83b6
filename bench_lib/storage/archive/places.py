"""Places of runs: a folder, or an address that fsspec knows."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_lib.storage.history import HistoryError, put

PROTOCOLS = {"s3": "s3fs", "gs": "gcsfs", "http": "aiohttp", "https": "aiohttp", "memory": ""}
"""Kinds of addresses, and the package that each needs."""


@dataclass(frozen=True)
class StoredFile:
    """One file of a place."""

    name: str
    address: str
    """The address for DuckDB."""
    bytes: int | None
    """None if the place would have to be asked for each."""
    modified_ns: int | None
    """None if the place has times of its own, which copying does not keep."""


class HistoryPlace:
    """A folder, or an object store under an address such as ``s3://bucket/runs``."""

    def __init__(self, address: str | Path) -> None:
        """Understand an address; nothing is opened yet.  Raises HistoryError."""
        # A path has swallowed one of an address's slashes.
        text = re.sub(r"^(s3|gs|https?|memory):/(?=[^/])", r"\1://", str(address))
        self.address = text
        self.folder: Path | None = None
        """The folder, where it is one of this machine."""
        self.file_system: Any = None
        """The file system that DuckDB reads the place by; None for a folder."""
        protocol, found, _ = text.partition("://")
        if not found:
            self.folder = Path(address)
        elif protocol in PROTOCOLS:
            self.address = text.rstrip("/")
            self.file_system = _file_system(protocol)
        else:
            known = ", ".join(f"{name}://" for name in PROTOCOLS if name != "memory")
            raise HistoryError(f"{text}: runs are kept in folders, or under {known}")

    def entries(self) -> list[StoredFile]:
        """Return all files of the place by name, none where there is no folder.

        Raises HistoryError where the place cannot be read.
        """
        if self.folder is not None:
            return sorted(_of_folder(self.folder), key=lambda entry: entry.name)
        with self._in_words("read"):
            self.file_system.invalidate_cache()
            found = self._listed()
            entries = [self._entry(one) for one in found if one.get("type") != "directory"]
            return sorted(entries, key=lambda entry: entry.name)

    def _listed(self) -> list[dict[str, Any]]:
        try:
            return list(self.file_system.ls(self.address, detail=True))
        except FileNotFoundError:
            kind, _, rest = self.address.partition("://")
            if kind in ("http", "https"):
                raise
            # A bucket that is there, and nothing under this name yet, is a history of nothing.
            self.file_system.ls(f"{kind}://{rest.partition('/')[0]}")
            return []

    def _entry(self, one: dict[str, Any]) -> StoredFile:
        name = str(one["name"]).rstrip("/").rpartition("/")[2]
        return StoredFile(name, f"{self.address}/{name}", one.get("size"), None)

    def local(self, entries: Sequence[StoredFile], folder: Path) -> dict[str, Path]:
        """Return by name where DuckDB reads files quickly: those of a store are copied first.

        Raises HistoryError.
        """
        if self.folder is not None:
            return {entry.name: self.folder / entry.name for entry in entries}
        copies = {entry.name: folder / entry.name for entry in entries}
        if copies:
            with self._in_words("read"):
                self.file_system.get(
                    [entry.address for entry in entries], [str(path) for path in copies.values()]
                )
        return copies

    def in_parts(self, entries: Sequence[StoredFile], folder: Path) -> dict[str, str]:
        """Return by name where DuckDB reads parts of files; raises HistoryError.

        A web server need not be able to send a part of a file, so its files are copied.
        """
        if not self.address.startswith("http"):
            return {entry.name: entry.address for entry in entries}
        return {name: str(path) for name, path in self.local(entries, folder).items()}

    def read(self, entry: StoredFile) -> bytes:
        """Return a file's bytes; raises HistoryError."""
        with self._in_words("read"):
            if self.folder is not None:
                return Path(entry.address).read_bytes()
            return bytes(self.file_system.cat_file(entry.address))

    def write(self, name: str, source: Path) -> None:
        """Put a file there; raises HistoryError."""
        with self._in_words("write to"):
            if self.folder is not None:
                self.folder.mkdir(parents=True, exist_ok=True)
                put(self.folder / name, source.read_bytes())
                return
            self.file_system.put_file(str(source), f"{self.address}/{name}")

    @contextlib.contextmanager
    def _in_words(self, doing: str) -> Iterator[None]:
        try:
            yield
        except HistoryError:
            raise
        except Exception as error:
            # Each file system has errors of its own, without a class in common.
            raise HistoryError(f"cannot {doing} {self.address}: {_why(error)}") from error


def _of_folder(folder: Path) -> Iterator[StoredFile]:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise HistoryError(f"{folder} is not a folder; name one with --history DIR")
    try:
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # compacted this very moment
                about = path.stat()
                if path.is_file():
                    yield StoredFile(path.name, str(path), about.st_size, about.st_mtime_ns)
    except OSError as error:
        raise HistoryError(f"cannot read {folder}: {error.strerror}") from error


def _file_system(protocol: str) -> Any:
    import fsspec  # noqa: PLC0415 - a folder needs none of it

    options: dict[str, Any] = {}
    if protocol == "s3":
        # A server that is gone is to be said, and not waited for by the minute.
        options["config_kwargs"] = {
            "connect_timeout": 10,
            "read_timeout": 60,
            "retries": {"max_attempts": 2},
        }
    try:
        return fsspec.filesystem(protocol, **options)
    except ImportError as error:
        package = PROTOCOLS[protocol]
        what = package if protocol == "gs" else "'bench-lib[object-store]'"
        raise HistoryError(f"{protocol}:// needs {package}; pip install {what}") from error


def _why(error: BaseException) -> str:
    """Say in one line what a file system's error is, with what helps."""
    kind, text = type(error).__name__, " ".join(str(error).split())
    if kind in ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError"):
        return "there are no credentials for it here; s3:// takes AWS_ACCESS_KEY_ID and the like"
    if isinstance(error, FileNotFoundError):
        return "there is no such bucket, or nothing is there"
    if isinstance(error, PermissionError):
        return f"it was refused ({text[:200]})"
    return (text[:300] or kind).strip()
