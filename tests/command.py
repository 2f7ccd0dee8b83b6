"""Commands of bench-lib run in the test's own process: how they end and what they print."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import pytest
from documents import document_in

from bench_lib.cli import main
from bench_lib.engine import pace


class Printed(NamedTuple):
    """How a command ended and what it printed."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """What it printed, by line."""
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        """What it printed, decoded."""
        return document_in(self.out)

    @property
    def measured(self) -> list[str]:
        """The cases that it said it measured, in order."""
        return re.findall(r"^measuring: .*; now (\S+)$", self.err, re.MULTILINE)


class Quiet(Printed):
    """The answer of a command that says nothing beside its document."""

    @property
    def json(self) -> Any:
        """What it printed, decoded."""
        assert self.err == ""
        return super().json


def commands_below(command: Any) -> dict[str, Any]:
    """Return the commands below one by name; a program imports each when it is asked for it."""
    names = command.list_commands(None) if hasattr(command, "commands") else []
    return {name: command.get_command(None, name) for name in names}


Kind = TypeVar("Kind", bound=Printed)


def ran(
    words: Iterable[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: type[Kind] = Printed,
) -> Kind:
    """Run ``bench-lib`` with these words, and return its answer as one of this kind."""
    monkeypatch.setattr("sys.argv", ["bench-lib", *words])
    monkeypatch.setattr(pace, "EVERY_S", 0.0)  # each case has a line, however short it is
    with pytest.raises(SystemExit) as ended:
        main()
    return kind(int(ended.value.code or 0), *capsys.readouterr())
