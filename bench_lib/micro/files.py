"""Results in files: whole or not at all, and found out early where they cannot be written."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench_lib.micro.output import cut, shown
from bench_lib.model import UserError

PART = ".part"
"""At the end of a result's name while it is written."""


def check_file(file: Path) -> None:
    """Check before measuring that a file can be written; raises UserError.

    Anything but a regular file, such as a pipe, is not tried: opening it may wait for a reader.
    """
    try:
        str(file).encode()
        if not file.parent.is_dir():
            folder = cut(str(file.parent))
            why = f"there is no folder {folder}; make it first, or name another"
            raise UserError(f"{cut(str(file))} cannot be written: {why}")
        with contextlib.suppress(FileNotFoundError):
            file.stat()  # from Python 3.14 on, only this tells of a name that no file may have
        if file.is_file() or file.is_dir():
            file.open("a").close()
        elif not file.exists():
            tempfile.TemporaryFile(dir=file.parent).close()
    except OSError as error:
        raise UserError(f"{_because(file, error)}; name another place for it") from error
    except UnicodeEncodeError as error:
        why = f"{shown(str(file))} cannot be written: it is no text; name another"
        raise UserError(why) from error


def part_of(file: Path) -> Path:
    """Return what a file is called while it is written."""
    return Path(f"{file}{PART}")


def write_json(file: Path, result: Mapping[str, Any]) -> None:
    """Write a result, whole or not at all; raises UserError."""
    text = json.dumps(result, indent=2)
    try:
        whole = file.resolve()  # what a link points at is replaced, and not the link
        if whole.exists() and not whole.is_file():
            whole.write_text(text)
            return
        part = part_of(whole)
        try:
            part.write_text(text)
            part.replace(whole)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
    except OSError as error:
        raise UserError(_because(file, error)) from error


def append_row(file: Path, row: Mapping[str, Any]) -> str | None:
    """Append a row to a CSV, below a header if the file is new; raises UserError.

    Returns any oddity of the file.
    """
    text = io.StringIO(newline="")
    rows = csv.writer(text)
    try:
        header = _header(file, text)
        if header is None:
            rows.writerow(row)
        rows.writerow(row.values())
        with file.open("a", newline="") as opened:
            opened.write(text.getvalue())
    except OSError as error:
        raise UserError(_because(file, error)) from error
    if header is None or header == ",".join(row):
        return None
    return (
        f"the columns of {cut(str(file))} are {shown(header)}, and the row that was appended has "
        f"{', '.join(row)}; name a new file with --csv-file"
    )


def _header(file: Path, text: io.StringIO) -> str | None:
    """Return a file's first line, None of a new one; a last line without end is ended."""
    if not file.is_file() or not file.stat().st_size:
        return None
    with file.open("rb") as opened:
        header = opened.readline(10_000).decode(errors="replace").strip()
        opened.seek(-1, os.SEEK_END)
        if opened.read(1) != b"\n":
            text.write("\r\n")
    return header


def _because(file: Path, error: OSError) -> str:
    return f"{cut(str(file))} cannot be written: {error.strerror}"
