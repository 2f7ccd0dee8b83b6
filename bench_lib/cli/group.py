"""The tree of commands; each is imported only when it is called."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

BY_PURPOSE = {
    "Run and judge (pytest perf_tests runs the suite)": {
        "ab": "Compare two environments, interleaved (A/B): is B slower than A?",
        "compare": "Judge a finished run by another one or by the baseline.",
        "judge": "Judge another tool's timings.",
        "selfcheck": "Add known delays, and see which are detected on this machine.",
    },
    "Look": {
        "report": "Report on the newest night: what failed, since when, and why.",
        "history": "List, show, query and export the runs that were measured.",
        "env": "Show hardware, versions and caches, and what is missing here.",
    },
    "Find the cause": {
        "bisect": "Find the commit or package version that made a case slower.",
        "profile": "Show a case's kernels, or how two profiles differ.",
    },
    "Measure something": {
        "exercise": "Measure an exercise of the workshop guide.",
        "micro": "Run ROCm's micro_benchmarking_pytorch.py with its own flags.",
        "ops": "Measure operators: time per call, GB/s, TFLOP/s, share of peak.",
        "collectives": "Measure collectives by size: time, bandwidths, wrong elements.",
        "scaling": "Measure speed-up over threads, processes and GPUs; fit laws.",
        "train": "Train CIFAR-100 step by step, or CIFAR-10 for a table by ranks.",
    },
    "Manage": {
        "baseline": "Record, accept and show the values that runs are judged by.",
        "adopt": "Write a case for your own model, and measure it once.",
    },
}
"""Every command with its purpose in a line, so that listing them imports none.

``bench_lib.cli.<name>`` has a function of that name, or ``app`` where there are several below it.
"""
COMMANDS = {name: line for group in BY_PURPOSE.values() for name, line in group.items()}
MEASURING = (
    *("ab", "adopt", "baseline", "bisect", "collectives", "exercise", "ops", "profile", "scaling"),
    *("selfcheck", "train"),
)
"""The commands that measure, but for ``micro``, which does so in the ranks of its launch."""


def _load(name: str) -> Any:
    module = importlib.import_module(f"bench_lib.cli.{name}")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        settings = getattr(module, "SETTINGS", None)
        app.command(name, context_settings=settings)(getattr(module, name))
    command = typer.main.get_command(app)
    command.name = name
    for leaf in getattr(command, "commands", {"": command}).values():
        _name_values(leaf)
    return command


def _name_values(command: Any) -> None:
    """Name each value after its option or argument; typer shows an option's type instead."""
    for option in command.params:
        if option.metavar is None and not getattr(option, "is_flag", False):
            name = next((text for text in option.opts if text.startswith("--")), option.name)
            option.metavar = name.removeprefix("--").replace("-", "_").upper()


def _as_a_rank() -> None:
    """If a launcher started this command several times, go on in the first rank alone.

    The command itself starts a case's ranks, by the same launcher.  The other ranks exit with 0:
    on a failure the launcher would end the first one too.
    """
    import os

    from bench_lib.launch.launchers import go_on_alone, who_am_i

    place = who_am_i(os.environ)
    if place.rank > 0:
        raise typer.Exit(0)
    if place.ranks > 1:
        go_on_alone(place)


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
        """Know every command's name, so that a typo gets a suggestion."""
        super().__init__(**attributes)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:  # noqa: ARG002 - typer's way
        """Return a command, whose module is imported when it is first asked for."""
        if name in COMMANDS and self.commands[name] is None:
            self.commands[name] = _load(name)
        return self.commands.get(name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the requested command, and go on in one rank if a launcher started several."""
        resolved = super().resolve_command(ctx, args)
        if resolved[0] in MEASURING:
            _as_a_rank()
        return resolved

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer's way
        """List the commands by purpose on one screen, and import none."""
        usage = "Usage: bench-lib [--version] COMMAND [ARGS]...; see COMMAND --help"
        width = max(map(len, COMMANDS)) + 2
        lines = [usage]
        for purpose, group in BY_PURPOSE.items():
            lines += [purpose, *(f"  {name:{width}}{line}" for name, line in group.items())]
        formatter.write("\n".join([*lines, ""]))
