"""``bench-lib``: what is here, what was measured, what is accepted.

Exit status: 0 done, 1 the answer is no (a machine that cannot measure, nothing to accept),
2 the question was wrong (a bad option, a file that cannot be read).
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bench_lib import __version__
from bench_lib.cli import (
    ab,
    baseline,
    collectives,
    compare,
    env,
    exercise,
    history,
    judge,
    micro,
    ops,
    profile,
    report,
    scaling,
    selfcheck,
    submit,
    train,
)
from bench_lib.model import UserError

app = typer.Typer(
    name="bench-lib",
    help="Performance regression testing for PyTorch on GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("env")(env.env)
app.command("judge")(judge.judge)
app.command("ab")(ab.ab)
app.command("compare")(compare.compare)
app.command("selfcheck")(selfcheck.selfcheck)
app.command("report")(report.report)
app.command("profile")(profile.profile)
app.command("micro", context_settings=micro.SETTINGS)(micro.micro)
app.command("ops")(ops.ops)
app.command("collectives")(collectives.collectives)
app.command("scaling")(scaling.scaling)
app.command("submit")(submit.submit)
app.add_typer(train.app, name="train")
app.add_typer(baseline.app, name="baseline")
app.add_typer(history.app, name="history")
app.add_typer(exercise.app, name="exercise")


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
            "--version", callback=_version, is_eager=True, help="Show the version and leave."
        ),
    ] = False,
) -> None:
    """Take the options that belong to no command."""


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit status 2."""
    try:
        app()
    except UserError as error:
        print(f"bench-lib: error: {error}", file=sys.stderr)
        sys.exit(2)
