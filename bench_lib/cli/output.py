"""How commands print: JSON, aligned tables, or Markdown."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO

import typer

from bench_lib import files
from bench_lib.formats import printable
from bench_lib.model import UserError

if TYPE_CHECKING:
    from bench_lib.report.answer import Answer

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Markdown = Annotated[
    bool, typer.Option("--markdown", help="Print Markdown, as for a pull request.")
]
HistoryDir = Annotated[Path, typer.Option(metavar="DIR", help="Folder of recorded runs.")]
BaselinesDir = Annotated[Path, typer.Option(metavar="DIR", help="Folder of baseline files.")]
Matrix = Annotated[Path, typer.Option(metavar="FILE", help="Matrix of cases.")]
STDOUT = Path("-")
DEFAULT_MATRIX = Path("perf_tests/matrix.toml")
DEFAULT_HISTORY = Path("history")
DEFAULT_BASELINES = Path("baselines")


def picked(source: object, names: str) -> dict[str, Any]:
    """Return fields and properties of an object by their names, separated by spaces."""
    return {name: getattr(source, name) for name in names.split()}


class ShownStream:
    """A stream that keeps other people's text from controlling the terminal.

    Files that are shown come from other people: a history that was pulled, a baseline in a pull
    request, a profile.
    """

    def __init__(self, stream: TextIO) -> None:
        """Write to ``stream``."""
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        """Return the stream's own attribute in all other cases."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text without what would control a terminal."""
        return self._stream.write(printable(text))


def _shown(stream: TextIO | None) -> Any:
    if stream is None:  # it was closed when Python started
        stream = io.StringIO()
    if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
        reconfigure(errors="backslashreplace")  # the encoding may lack characters
    return ShownStream(stream)


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Keep what is printed meanwhile from controlling the terminal or failing to encode."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_shown, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def tell(answer: Answer, *, json: bool = False, markdown: bool = False) -> NoReturn:
    """Print an answer in one form, and leave with its exit status.

    JSON and Markdown are in UTF-8.
    """
    from bench_lib.report import render

    with contextlib.suppress(BrokenPipeError):  # the reader left, and the status stays
        if json or markdown:
            write(STDOUT, render.as_json(answer) if json else render.as_markdown(answer))
        else:
            width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
            if text := render.as_text(answer, width):
                print(text.removesuffix("\n"), flush=True)
    raise typer.Exit(answer.exit_status)


def separate(**outputs: Path | bool | None) -> None:
    """Raise UserError if two options write to one place; a flag writes to standard output."""
    options: dict[str, str] = {}
    for name, path in outputs.items():
        if path is None or path is False:
            continue
        option = f"--{name}" if path is True else f"--{name} {path}"
        file = STDOUT if path is True else path
        if file != STDOUT and file.exists() and not file.is_file():
            continue  # `write` refuses such a place by itself
        other = options.setdefault(os.path.realpath(file), option)
        if other != option:
            remedy = "choose one" if path is True else f"name another file for --{name}"
            place = "standard output" if file == STDOUT else file
            raise UserError(f"{other} and {option} both write to {place}; {remedy}")


def write(path: Path, text: str) -> None:
    """Write a file, whole or not at all, and its folder; raises UserError.  STDOUT is printed."""
    if path == STDOUT:
        if (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:
            reconfigure(encoding="utf-8")
        print(text.removesuffix("\n"), flush=True)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(path, text.encode(errors="replace"))
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; name another file or folder"
        ) from error


def say(line: str) -> None:
    """Print a line on stderr."""
    print(line, file=sys.stderr, flush=True)
