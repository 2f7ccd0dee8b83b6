"""How full the caches of compilers and tuners are, and a hash of what chooses kernels."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

CONTENT_BYTES = 4 * 2**20
"""Databases up to this size are hashed by content, larger ones by their files' names and sizes."""
MOST_FILES = 10_000
"""So many files of one folder are looked at; a count that reaches it may be more."""
COLD = "cold"
TUNED = "miopen search"
"""What a run that fills MIOpen's database before it measures says so by, among the caches."""


def found(environ: Mapping[str, str] = os.environ, cwd: Path | None = None) -> dict[str, str]:
    """Say of each cache ``cold``, or ``warm, 41 entries`` and a hash where it chooses kernels.

    Entries are compiled graphs of ``inductor`` (folders of generated code where it keeps no
    graphs), kernels of ``triton``, records of ``miopen``'s find and performance databases,
    files of ``miopen kernels``, and tuned operations of ``tunableop``, which is not there
    unless it is switched on; its files are looked for from `cwd`.

    The hash of MIOpen's databases and TunableOp's results does not depend on the order of
    lines.  More than `CONTENT_BYTES` are not read: then files are counted, and names and
    sizes hashed.
    """
    home = environ.get("HOME") or "/"

    def place(variable: str, otherwise: str) -> Path:
        return Path(re.sub(r"^~(?=/|$)", lambda _: home, environ.get(variable) or otherwise))

    triton = f"{environ.get('TRITON_HOME') or home}/.triton/cache"
    found = {
        "inductor": _inductor(place("TORCHINDUCTOR_CACHE_DIR", _inductor_at(environ))),
        "triton": _state(len(_entries(place("TRITON_CACHE_DIR", triton)))),
        "miopen": _database(place("MIOPEN_USER_DB_PATH", "~/.config/miopen")),
        "miopen kernels": _kernels(place("MIOPEN_CUSTOM_CACHE_DIR", "~/.cache/miopen")),
    }
    if environ.get("PYTORCH_TUNABLEOP_ENABLED") == "1":
        name = environ.get("PYTORCH_TUNABLEOP_FILENAME") or "tunableop_results.csv"
        found["tunableop"] = _tuned((Path.cwd() if cwd is None else cwd) / name)
    return found


def state_of(cache: str) -> str:
    """Return ``cold`` or ``warm`` of what `caches` says, now or in its first version.

    That version said ``none``, ``41 entries`` or ``2 files, 0123456789ab``.
    """
    return COLD if cache in (COLD, "none") else "warm"


def same(old: str, new: str) -> bool:
    """Whether two states of a cache are alike: counts and what was hashed otherwise are not."""
    if state_of(old) != state_of(new):
        return False
    hashes = [re.fullmatch(r"warm, .*, ([0-9a-f]{12})", cache) for cache in (old, new)]
    return None in hashes or len({found[1] for found in hashes if found}) == 1


def describe_folder(folder: Path) -> str | None:
    """Count a folder's files and hash their names and sizes; None where there are none."""
    files = list(_files(folder))
    return f"{_counted(len(files), 'file')}, {_digest(_listed(files))}" if files else None


# --- each cache --------------------------------------------------------------------------


def _inductor_at(environ: Mapping[str, str]) -> str:
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # a container's user without a name
        user = ""
    return f"{environ.get('TMPDIR') or tempfile.gettempdir()}/torchinductor_{user}"


def _inductor(folder: Path) -> str:
    graphs = sum(len(_entries(bucket)) for bucket in _entries(folder / "fxgraph"))
    # Generated code lies in folders of two letters, beside locks and caches of other kinds.
    return _state(graphs or sum(len(entry.name) == 2 for entry in _entries(folder)))


def _database(folder: Path) -> str:
    """Describe MIOpen's ``*.ufdb.txt`` and ``*.udb.txt`` (once ``*.updb.txt``), a record a line."""
    names = re.compile(r".*\.u[fp]?db\.txt")
    return _hashed([file for file in _files(folder) if names.fullmatch(file.name)])


def _kernels(folder: Path) -> str:
    """Describe MIOpen's compiled kernels: they make first steps quick and choose nothing."""
    others = (".txt", ".udb", ".lock", ".time")  # the folder is often the databases' as well
    return _state(sum(not file.name.endswith(others) for file in _files(folder)), "file")


def _tuned(name: Path) -> str:
    """Describe TunableOp's results: a device's number is where %d is, else before the suffix."""
    before, _, after = name.stem.partition("%d")
    pattern = re.compile(rf"{re.escape(before)}\d*{re.escape(after + name.suffix)}")
    files = [file for file in _entries(name.parent) if pattern.fullmatch(file.name)]
    return _hashed(files, passing_over=b"Validator,")


# --- counting and hashing ----------------------------------------------------------------


def _hashed(files: Sequence[os.DirEntry[str]], passing_over: bytes | None = None) -> str:
    """Count and hash the lines of files, but for `CONTENT_BYTES` of them the files alone.

    Lines that begin with `passing_over` are hashed and not counted.
    """
    if sum(map(_size, files)) > CONTENT_BYTES:
        return f"{_state(len(files), 'file')}, {_digest(_listed(files))}"
    lines = [
        (os.fsencode(file.name), line)
        for file in files
        for line in _content(file).splitlines()
        if line.strip()
    ]
    count = sum(passing_over is None or not line.startswith(passing_over) for _, line in lines)
    if not count:
        return COLD
    return f"{_state(count)}, {_digest(b'%b %b' % each for each in lines)}"


def _state(count: int, noun: str = "entry") -> str:
    return f"warm, {_counted(count, noun)}" if count else COLD


def _counted(count: int, noun: str) -> str:
    nouns = {"entry": "entries", "file": "files"}
    return f"{count} {noun if count == 1 else nouns[noun]}"


def _digest(parts: Iterable[bytes]) -> str:
    return hashlib.sha256(b"\n".join(sorted(parts))).hexdigest()[:12]


def _listed(files: Sequence[os.DirEntry[str]]) -> list[bytes]:
    return [b"%b %d" % (os.fsencode(file.name), _size(file)) for file in files]


def _entries(folder: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    """List a folder; empty where there is none or it may not be read."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Walk through the files below a folder, `MOST_FILES` at most."""
    left, folders = MOST_FILES, [_entries(folder)]
    while folders:
        for entry in folders.pop():
            if entry.is_dir(follow_symlinks=False):
                folders.append(_entries(entry))
            elif not left:
                return
            elif entry.is_file():
                left -= 1
                yield entry


def _size(file: os.DirEntry[str]) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _content(file: os.DirEntry[str]) -> bytes:
    try:
        return Path(file.path).read_bytes()
    except OSError:  # gone meanwhile, or not ours to read
        return b""
