"""Options that commands share: fields of a dataclass become options, and come back as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from bench_lib.cli.options import grouped


@dataclass(frozen=True, kw_only=True)
class Inner:
    folder: Annotated[str, typer.Option(help="Where.")] = "here"
    loud: Annotated[bool, typer.Option("--loud", help="Say more.")] = False


@dataclass(frozen=True, kw_only=True)
class Outer:
    count: Annotated[int, typer.Option(help="How many.")] = 1
    inner: Inner


@grouped
def command(
    name: Annotated[str, typer.Argument(help="Who.")],
    *,
    first: Annotated[int, typer.Option(help="Before.")] = 0,
    outer: Outer,
    last: Annotated[int, typer.Option(help="After.")] = 0,
) -> None:
    typer.echo(f"{name} {first} {outer} {last}")


app = typer.Typer()
app.command()(command)


def ran(*words: str) -> str:
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code == 0, done.output
    return done.output.strip()


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ((), Outer(inner=Inner())),
        (("--count", "3", "--loud"), Outer(count=3, inner=Inner(loud=True))),
        (("--folder", "there"), Outer(inner=Inner(folder="there"))),
    ],
)
def test_a_command_gets_its_options_as_the_dataclasses_it_asks_for(words, given):
    assert ran("ann", *words) == f"ann 0 {given} 0"


def test_options_stand_where_the_dataclass_stands_among_the_parameters():
    names = [each.name for each in typer.main.get_command(app).params]
    assert names[:6] == ["name", "first", "count", "folder", "loud", "last"]
