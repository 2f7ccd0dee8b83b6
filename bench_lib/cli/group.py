"""The tree of commands, whose branches are imported when somebody asks for them."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = {
    "env": "Show hardware, versions, variables and caches.",
    "judge": "Judge timings from any program.",
    "ab": "Measure two environments in turns on one device, and say whether B is slower than A.",
    "bisect": "Find the commit or the package version that made a case slower.",
    "compare": "Show how B differs from A, case by case, slowest first; nothing is judged.",
    "selfcheck": "Plant known delays in a real case, and report which are found.",
    "report": "Report on the newest night: what failed, since when, and why.",
    "profile": "Profile a case, or say which kernels two profiles differ in.",
    "micro": "Run ROCm's micro_benchmarking_pytorch.py's command line, measured as the suite "
    "measures.",
    "ops": "Measure operators: time of a call, GB/s, TFLOP/s, share of the hardware's ceiling.",
    "collectives": "Measure collectives by size: time of a call, algorithm and bus bandwidth, "
    "wrong elements.",
    "scaling": "Measure speed-up and efficiency over threads, processes and GPUs; fit the laws "
    "of it.",
    "submit": "Submit the suite to a Slurm cluster.",
    "train": "Train as the CIFAR-100 script and the CIFAR-10 table do.",
    "adopt": "Write a factory, a matrix row and a test for an object of yours, and measure it "
    "once.",
    "baseline": "Record, accept and show the values that runs are judged by.",
    "history": "List, show, query and export the runs that were measured.",
    "exercise": "Run the workshop guide's exercises.",
}
"""Every command with the first sentence of its help, so that listing them imports none.

``bench_lib.cli.<name>`` has a function of that name, or ``app`` where there are several below it.
"""

SHARING = ("collectives", "scaling", "train")
"""Commands whose cases have several ranks, by default as many as started the command."""
ALONE = ("ab", "adopt", "baseline record", "bisect", "exercise", "ops", "profile", "selfcheck")
"""Other commands that measure: a launcher would have each of its ranks measure side by side."""


def _load(name: str) -> Any:
    module = importlib.import_module(f"bench_lib.cli.{name}")
    below = getattr(module, "app", None)
    if below is None:
        below = typer.Typer(add_completion=False, rich_markup_mode=None)
        settings = getattr(module, "SETTINGS", None)
        below.command(name, context_settings=settings)(getattr(module, name))
    command = typer.main.get_command(below)
    command.name = name
    return command


def _as_a_rank(name: str, words: list[str]) -> None:
    """If a launcher started this command several times, go on in the first rank alone.

    A command of ``SHARING`` starts the ranks of its cases itself, by the same launcher.  Another
    one says that it cannot, by a UserError.  The other ranks end without a fault of their own, for
    which a launcher would end the first before it speaks.
    """
    asked = [name, *words]
    alone = next((each for each in ALONE if asked[: len(each.split())] == each.split()), None)
    if name not in SHARING and alone is None:
        return
    import os

    from bench_lib.launch.launchers import VARIABLE, go_on_alone, who_am_i
    from bench_lib.model import UserError

    place = who_am_i(os.environ)
    if place.ranks == 1:
        return
    if place.rank > 0:
        raise typer.Exit(0)
    if alone is None:
        go_on_alone(place)
        return
    raise UserError(
        f"{place.launcher} started bench-lib {alone} {place.ranks} times; start it once, without "
        f"{place.launcher}: it starts the ranks of a case itself, by {place.launcher} with "
        f"{VARIABLE}={place.launcher}"
    )


class CommandGroup(TyperGroup):
    """Commands below a command."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return --help with a value, so that typer need not import pydantic to find one."""
        option = super().get_help_option(ctx)
        if option is not None and option.default is None:
            option.default = False
        return option


def branch(name: str) -> typer.Typer:
    """Return a command of COMMANDS that has others below it."""
    return typer.Typer(
        cls=CommandGroup,
        help=COMMANDS[name],
        no_args_is_help=True,
        rich_markup_mode=None,
        add_completion=False,
    )


class Program(CommandGroup):
    """All commands."""

    def __init__(self, **attributes: Any) -> None:
        """Know every command's name, so that a slip of the keyboard gets a suggestion."""
        super().__init__(**attributes)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:  # noqa: ARG002 - typer's way
        """Return a command, whose module is imported when it is first asked for."""
        if name in COMMANDS and self.commands[name] is None:
            self.commands[name] = _load(name)
        return self.commands.get(name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that is asked for, and be one of its ranks where a launcher says so."""
        found = super().resolve_command(ctx, args)
        _as_a_rank(str(found[0]), found[2])
        return found

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer's way
        """List the commands, and import none."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
