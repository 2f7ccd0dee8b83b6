"""How full the caches of compilers and tuners are, and a hash of what chooses kernels."""

from __future__ import annotations

import getpass
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench_lib import backends
from bench_lib.backends.folders import entries, hashed, place, state, state_of


def found(environ: Mapping[str, str] = os.environ, cwd: Path | None = None) -> dict[str, str]:
    """Say of each cache ``cold``, or ``warm, 41 entries`` and a hash where it chooses kernels.

    Entries are compiled graphs of ``inductor`` (folders of generated code where it keeps no
    graphs), kernels of ``triton``, what the backends name (records of ``miopen``'s find and
    performance databases, files of ``miopen kernels``), and tuned operations of ``tunableop``,
    which is not there unless it is switched on; its files are looked for from `cwd`.
    """
    home = environ.get("HOME") or "/"
    triton = f"{environ.get('TRITON_HOME') or home}/.triton/cache"
    found = {
        "inductor": _inductor(place(environ, "TORCHINDUCTOR_CACHE_DIR", _inductor_at(environ))),
        "triton": state(len(entries(place(environ, "TRITON_CACHE_DIR", triton)))),
    }
    for backend in backends.every():
        found |= backend.caches(environ)
    if environ.get("PYTORCH_TUNABLEOP_ENABLED") == "1":
        name = environ.get("PYTORCH_TUNABLEOP_FILENAME") or "tunableop_results.csv"
        found["tunableop"] = _tuned((Path.cwd() if cwd is None else cwd) / name)
    return found


def same(old: str, new: str) -> bool:
    """Whether two states of a cache are alike: counts and differently hashed states are not."""
    if state_of(old) != state_of(new):
        return False
    hashes = [re.fullmatch(r"warm, .*, ([0-9a-f]{12})", cache) for cache in (old, new)]
    return None in hashes or len({found[1] for found in hashes if found}) == 1


# --- each cache --------------------------------------------------------------------------


def _inductor_at(environ: Mapping[str, str]) -> str:
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # a container's user without a name
        user = ""
    return f"{environ.get('TMPDIR') or tempfile.gettempdir()}/torchinductor_{user}"


def _inductor(folder: Path) -> str:
    graphs = sum(len(entries(bucket)) for bucket in entries(folder / "fxgraph"))
    # Generated code lies in folders of two letters, beside locks and caches of other kinds.
    return state(graphs or sum(len(entry.name) == 2 for entry in entries(folder)))


def _tuned(name: Path) -> str:
    """Describe TunableOp's results: a device's number is where %d is, else before the suffix."""
    before, _, after = name.stem.partition("%d")
    pattern = re.compile(rf"{re.escape(before)}\d*{re.escape(after + name.suffix)}")
    files = [file for file in entries(name.parent) if pattern.fullmatch(file.name)]
    return hashed(files, passing_over=b"Validator,")
