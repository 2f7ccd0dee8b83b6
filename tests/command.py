"""Commands of bench-lib run in the test's own process: how they end and what they print."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
import typer
from documents import document_in

import bench_lib.cli
from bench_lib.cli import main
from bench_lib.report import progress


class Printed(NamedTuple):
    """How a command ended and what it printed."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return document_in(self.out)

    @property
    def measured(self) -> list[str]:
        """The cases that it said it measured, in order."""
        return re.findall(r"^measuring: .*; now (\S+)$", self.err, re.MULTILINE)


class Quiet(Printed):
    """The answer of a command that says nothing beside its document."""

    @property
    def json(self) -> Any:
        assert self.err == ""
        return super().json


def commands_below(command: Any) -> dict[str, Any]:
    """Return the commands below one by name; a program imports each when it is asked for it."""
    names = command.list_commands(None) if hasattr(command, "commands") else []
    return {name: command.get_command(None, name) for name in names}


def leaves(program: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """Yield each command that has none below it, with its words."""
    program = program or typer.main.get_command(bench_lib.cli.app)
    for name, command in commands_below(program).items():
        if hasattr(command, "commands"):
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name), command


Kind = TypeVar("Kind", bound=Printed)


def unpacked(recorded: Path, folder: Path) -> None:
    """Copy what an earlier version wrote, and unpack its months as docs/history.md says."""
    shutil.copytree(recorded, folder, dirs_exist_ok=True)
    text = (Path(__file__).parents[1] / "docs/history.md").read_text()
    words = re.search(r"^python - history.*?<<'END'\n(.*?)^END$", text, re.MULTILINE | re.DOTALL)
    months = sorted((folder / "history").glob("*.parquet"))
    subprocess.run([sys.executable, "-", *map(str, months)], input=words[1], text=True, check=True)


def ran(
    words: Iterable[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: type[Kind] = Printed,
) -> Kind:
    """Run ``bench-lib`` with these words, and return its answer as one of this kind."""
    monkeypatch.setattr("sys.argv", ["bench-lib", *words])
    monkeypatch.setattr(progress, "EVERY_S", 0.0)  # each case has a line, however short it is
    with pytest.raises(SystemExit) as ended:
        main()
    return kind(int(ended.value.code or 0), *capsys.readouterr())
