"""``bench-lib ab``: two environments on one device in turns, and what that says of the second."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench_lib.cli.options import grouped
from bench_lib.cli.output import (
    DEFAULT_HISTORY,
    HistoryDir,
    Json,
    duration,
    picked,
    print_json,
    say,
)
from bench_lib.cli.sides import (
    ChosenCases,
    LeastPairs,
    exit_status,
    no_answer,
    print_compared,
    read,
    run_of,
)
from bench_lib.formats import many
from bench_lib.model import Case, Environment, Hardware, Status

if TYPE_CHECKING:
    from bench_lib.engine.settings import Side
    from bench_lib.studies.ab import Compared

PAIRS, MOST_PAIRS = 3, 6
BASELINE_PAIRS = 5
"""Fewer processes than this make a baseline whose own spread is hardly known."""


def _python(side: str) -> Any:
    words = f"Interpreter of {side}, with torch and torchvision (default: this one)."
    return typer.Option(f"--python-{side.lower()}", metavar="PYTHON", help=words)


def _env(side: str) -> Any:
    words = f"Environment variable of {side}; may be repeated."
    return typer.Option(f"--env-{side.lower()}", metavar="KEY=VALUE", help=words)


def _prefix(side: str) -> Any:
    words = f"Words that run {side}'s interpreter in a container: 'docker run --rm ...'."
    return typer.Option(f"--prefix-{side.lower()}", metavar="WORDS", help=words)


@grouped
def ab(
    *,
    python_a: Annotated[str | None, _python("A")] = None,
    python_b: Annotated[str | None, _python("B")] = None,
    env_a: Annotated[list[str] | None, _env("A")] = None,
    env_b: Annotated[list[str] | None, _env("B")] = None,
    prefix_a: Annotated[str | None, _prefix("A")] = None,
    prefix_b: Annotated[str | None, _prefix("B")] = None,
    chosen: ChosenCases,
    pairs: LeastPairs = PAIRS,
    most_pairs: Annotated[
        int | None,
        typer.Option(help=f"Most pairs of a case that looks different (default: {MOST_PAIRS})."),
    ] = None,
    history: HistoryDir = DEFAULT_HISTORY,
    json: Json = False,
) -> None:
    """Measure two environments in turns on one device, and say whether B is slower than A.

    Without options both are this environment, which shows how far equal sides differ here.  Exit
    status 1 where a case regressed or has no measurement, 2 where most could not be judged.
    """
    sides = {
        "A": _side("a", python_a, env_a, prefix_a),
        "B": _side("b", python_b, env_b, prefix_b),
    }
    most = max(MOST_PAIRS, pairs) if most_pairs is None else most_pairs
    if most < pairs:
        why = f"{most} is less than --pairs {pairs}; a case has at least those"
        raise typer.BadParameter(why, param_hint="--most-pairs")

    from bench_lib import backends

    device = backends.detect()[0]
    cases = chosen.of(device)
    _compare(device, sides, cases, pairs=pairs, most_pairs=most, folder=history, json=json)


def _side(letter: str, python: str | None, env: list[str] | None, prefix: str | None) -> Side:
    from bench_lib.engine import settings

    words = read(settings.prefix, prefix or "", f"--prefix-{letter}")
    if python == "":
        why = "it is empty; leave the option out for this interpreter"
        raise typer.BadParameter(why, param_hint=f"--python-{letter}")
    if words and python is None:
        why = f"name the interpreter behind --prefix-{letter}, python3 for example"
        raise typer.BadParameter(why, param_hint=f"--python-{letter}")
    variables = dict(read(settings.variable, text, f"--env-{letter}") for text in env or [])
    return settings.Side(python or sys.executable, variables, words)


def _compare(
    device: Hardware,
    sides: Mapping[str, Side],
    cases: Sequence[Case],
    *,
    pairs: int,
    most_pairs: int,
    folder: Path,
    json: bool,
) -> None:
    """Compare, print, and leave with the exit status that follows."""
    from bench_lib.engine import pace, pairing
    from bench_lib.engine.engine import opened
    from bench_lib.studies import ab as comparing

    settings = comparing.settings(sides, pairs, most_pairs, history=folder, say=say)
    known = pace.Pace(pace.past(folder, device.key))
    least, longest = (comparing.expected_s(cases, n, known) for n in (pairs, most_pairs))
    say(
        f"{many(len(cases), 'case')} on {device.key} in {pairs} pairs, "
        f"about {duration(least)}; up to {most_pairs} pairs, {duration(longest)}, where "
        "something looks different"
    )
    with opened(device, settings) as engine:
        engine.held.open(0)
        for name, environment in engine.environments.items():
            say(f"{name}: {_in_brief(sides[name], environment)}")
        if differing := pairing.mixed_conditions(cases[0], device, engine.environments):
            say(f"everything will be INCOMPARABLE: {'; '.join(differing)}")
        found = comparing.compare(engine, cases)
    advice = [*_next_steps(found, sides, folder), *no_answer(found)]
    if json:
        about = picked(found, "environments differences runs history stopped")
        about |= {"device": device, "pairs": pairs, "most_pairs": most_pairs}
        print_json("ab", cases=found.rows, next=advice, **about)
    else:
        unknown = "what its prefix sets, its caches and ROCm: not known"
        prefixed = [name for name, side in sides.items() if side.command_prefix]
        beside = [f"environment of {name}: {unknown}" for name in prefixed]
        print_compared(found, ("A", "B"), beside)
        for name, path in found.history.items():
            print(f"history of {name}: {path}")
        for line in advice:
            print(line)
    raise typer.Exit(exit_status(found))


def _in_brief(side: Side, environment: Environment) -> str:
    words = [f"torch {environment.torch}", f"Python {environment.python}"]
    words += [f"HIP {environment.hip}"] if environment.hip else []
    command = shlex.join((*side.command_prefix, side.python))
    words += [command, *(f"{name}={value}" for name, value in side.environment.items())]
    return ", ".join(words)


def _next_steps(found: Compared, sides: Mapping[str, Side], folder: Path) -> list[str]:
    """Return what to do now: the change of the baseline that B's run proposes."""
    from bench_lib.storage.acceptance import DOUBTFUL

    measured = [len(row.pairs) for row in found.rows if row.pairs]
    if not measured:
        return ["next: nothing was compared, so there is nothing to accept"]
    if sides["A"] == sides["B"]:
        return ["next: nothing to accept; both sides are the same, and what differs is noise"]
    run = run_of(found, folder)
    steps = [
        f"next: bench-lib baseline diff {run} --markdown",
        f"      bench-lib baseline accept {run} --reason '...'",
    ]
    if doubtful := sum(row.status in (Status.ERROR, *DOUBTFUL) for row in found.rows):
        steps.append(
            f"{doubtful} of {len(found.rows)} cases are in doubt: accept leaves them out, or takes "
            "them with --force and the reason; bench-lib baseline quarantine excuses one"
        )
    if min(measured) < BASELINE_PAIRS:
        steps.append(
            f"a baseline of {min(measured)} processes hardly knows their spread: "
            f"--pairs {BASELINE_PAIRS} makes a better one"
        )
    return steps
