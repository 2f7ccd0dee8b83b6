"""The command line, ``bench-lib``.

Exit status: 0 done, 1 the answer is no (a machine that cannot measure, nothing to accept),
2 an error (a bad option, a file that cannot be read or written), 130 interrupted.
"""

from __future__ import annotations

from typing import Annotated

import typer

from bench_lib import __version__
from bench_lib.cli.group import Program

app = typer.Typer(
    name="bench-lib",
    cls=Program,
    help="Performance regression testing for PyTorch on GPUs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:  # noqa: FBT001 - typer calls it so
    if value:
        print(f"bench-lib {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options that belong to no command."""


def main() -> None:
    """Run the command line and leave with its exit status; a mistake is one line on stderr."""
    from bench_lib.cli.ending import run

    program = typer.main.get_command(app)
    for parameter in program.params:
        parameter.default = parameter.default or False  # typer imports pydantic to read None
    run(program)
