"""``bench-lib ab``: compares two environments on one device, interleaved."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench_lib.cli.options import grouped, known, read
from bench_lib.cli.output import (
    DEFAULT_HISTORY,
    DEFAULT_MATRIX,
    HistoryDir,
    Json,
    Markdown,
    Matrix,
    picked,
    say,
    separate,
    tell,
)
from bench_lib.formats import duration, many, shortened, some
from bench_lib.model import TIERS, Case, Environment, Hardware, Status
from bench_lib.report.answer import Answer, Column, Table, columns, judged
from bench_lib.verdict.severity import rank

if TYPE_CHECKING:
    from bench_lib.engine.settings import Side
    from bench_lib.studies.ab import Compared, PairRow

SHOWN = 3
"""Cases that are named where an expression matches none."""
PAIRS, MOST_PAIRS = 3, 6


@dataclass(frozen=True, kw_only=True)
class ChosenCases:
    """The options that choose cases of a matrix."""

    expression: Annotated[
        str,
        typer.Option("-k", metavar="EXPR", help="Only cases whose ids match, as with pytest's -k."),
    ] = ""
    matrix: Matrix = DEFAULT_MATRIX
    tier: Annotated[
        str | None,
        typer.Option(help="Tier of the matrix (default: gate on a GPU, else smoke)."),
    ] = None

    def of(self, device: Hardware) -> list[Case]:
        """Return the cases to measure on a device; raises MatrixError."""
        from bench_lib.cases.matrix import read_matrix, tables, usual_tier
        from bench_lib.launch.catalogue import network_sizes

        if not self.matrix.is_file():
            raise typer.BadParameter(f"{self.matrix} is not a file", param_hint="--matrix")
        tier = usual_tier(device) if self.tier is None else known(self.tier, TIERS, "--tier")
        cases = read_matrix(self.matrix, tables(network_sizes()))[tier]
        if not cases:
            raise typer.BadParameter(f"{self.matrix} has no case in {tier}", param_hint="--tier")
        return _matching(cases, self.expression)


def _matching(cases: Sequence[Case], expression: str) -> list[Case]:
    """Return the cases whose ids an expression matches, read as pytest reads its own -k."""
    import pytest
    from _pytest.mark import _parse_expression

    if not expression.strip():
        return list(cases)
    try:
        compiled = _parse_expression(expression, "write an expression such as 'resnet50 and fp16'")
        chosen = [case for case in cases if compiled.evaluate(_matcher(case.id))]
    except (pytest.UsageError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="-k") from error
    if not chosen:
        examples = some([case.id for case in cases], SHOWN)
        message = f"{expression!r} matches none of {len(cases)} cases: {examples}"
        raise typer.BadParameter(message, param_hint="-k")
    return chosen


def _matcher(case_id: str) -> Callable[..., bool]:
    def matches(name: str, /, **arguments: Any) -> bool:
        if arguments:
            raise ValueError(f"{name} takes no arguments")
        return name.lower() in case_id.lower()

    return matches


def _python(side: str) -> Any:
    text = f"Python interpreter for {side}, with torch and torchvision (default: this one)."
    return typer.Option(f"--python-{side.lower()}", metavar="PYTHON", help=text)


def _env(side: str) -> Any:
    text = f"Environment variable for {side}; may be repeated."
    return typer.Option(f"--env-{side.lower()}", metavar="KEY=VALUE", help=text)


def _prefix(side: str) -> Any:
    text = f"Command that runs {side}'s interpreter in a container: 'docker run --rm ...'."
    return typer.Option(f"--prefix-{side.lower()}", metavar="WORDS", help=text)


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
    pairs: Annotated[
        int, typer.Option(min=2, help="Pairs of fresh processes for every case.")
    ] = PAIRS,
    most_pairs: Annotated[
        int | None,
        typer.Option(
            help=f"Maximum number of pairs for a case that looks different (default: {MOST_PAIRS})."
        ),
    ] = None,
    history: HistoryDir = DEFAULT_HISTORY,
    json: Json = False,
    markdown: Markdown = False,
) -> None:
    """Compare two environments, interleaved (A/B) on one device, and say whether B is slower.

    Without options, both are this environment, which shows how much equal sides differ here.  The
    exit status is 1 if a case regressed or has no measurement, and 2 if most could not be judged.
    """
    separate(json=json, markdown=markdown)
    sides = {
        "A": _side("a", python_a, env_a, prefix_a),
        "B": _side("b", python_b, env_b, prefix_b),
    }
    limit = max(MOST_PAIRS, pairs) if most_pairs is None else most_pairs
    if limit < pairs:
        message = f"{limit} is less than --pairs {pairs}, the number that every case is measured in"
        raise typer.BadParameter(message, param_hint="--most-pairs")

    from bench_lib import backends

    device = backends.detect()[0]
    comparison = _compare(device, sides, chosen.of(device), (pairs, limit), history)
    answer = _answer(comparison, device, sides, (pairs, limit), history)
    tell(answer, json=json, markdown=markdown)


def _side(
    letter: str,
    python: str | None,
    env: list[str] | None,
    prefix: str | None,
) -> Side:
    from bench_lib.engine import settings
    from bench_lib.launch.environments import interpreter

    command_prefix = read(settings.prefix, prefix or "", f"--prefix-{letter}")
    if python == "":
        message = "it is empty; leave the option out to use this interpreter"
        raise typer.BadParameter(message, param_hint=f"--python-{letter}")
    if command_prefix and python is None:
        message = f"name the interpreter that --prefix-{letter} runs, python3 for example"
        raise typer.BadParameter(message, param_hint=f"--python-{letter}")
    variables = dict(read(settings.variable, text, f"--env-{letter}") for text in env or [])
    return settings.Side(interpreter(python or sys.executable), variables, command_prefix)


def _compare(
    device: Hardware,
    sides: Mapping[str, Side],
    cases: Sequence[Case],
    pairs: tuple[int, int],
    folder: Path,
) -> Compared:
    """Announce how long the comparison takes, and make it."""
    from bench_lib.engine import pace
    from bench_lib.engine.engine import opened
    from bench_lib.engine.settings import Settings
    from bench_lib.engine.suite import mixed_conditions
    from bench_lib.report.progress import ProgressLines
    from bench_lib.studies import ab as comparing

    last_pace = pace.read(folder, device.key)
    least, longest = (comparing.expected_s(cases, n, last_pace) for n in pairs)
    say(
        f"{many(len(cases), 'case')} on {device.key}, {pairs[0]} pairs each: about "
        f"{duration(least)}; up to {pairs[1]} pairs, {duration(longest)}, if all look different"
    )
    pair_pace = pace.Pace({case.id: comparing.expected_s([case], 1, last_pace) for case in cases})
    progress = ProgressLines(say, lambda _phase: pair_pace)
    settings = Settings(
        bursts=True,
        history=folder,
        command="ab",
        processes=pairs[0],
        planned=pairs[1],
        by_baseline=False,
        sides={name: sides[name] for name in ("B", "A")},
        say=say,
        progress=progress,
    )
    with opened(device, settings) as engine:
        engine.held.open(0)
        environments = {name: engine.held.environments[name] for name in sides}
        for name, environment in environments.items():
            say(f"{name}: {_in_brief(sides[name], environment)}")
        if differing := mixed_conditions(cases[0], device, environments):
            say(f"every case will be INCOMPARABLE: {'; '.join(differing)}")
        return comparing.compare(engine, cases)


def _answer(
    comparison: Compared,
    device: Hardware,
    sides: Mapping[str, Side],
    pairs: tuple[int, int],
    folder: Path,
) -> Answer:
    from bench_lib.studies.ab import unanswered

    rows = sorted(comparison.rows, key=lambda row: rank(row.status))
    counts = Counter(row.status.value for row in rows)
    statuses = ", ".join(f"{n} {status}" for status, n in counts.items())
    changes = comparison.differences or ["no known difference"]
    environments = comparison.environments
    notes = [f"environment, A -> B: {line}" for line in changes]
    notes += [
        f"environment of {name}: its ROCm version, its caches and the variables that its prefix "
        "sets are unknown"
        for name, side in sides.items()
        if side.command_prefix
    ]
    notes += [
        f"{row.case_id}: {verdict.status.value} {verdict.metric}: {shortened(verdict.reason)}"
        for row in rows
        for verdict in row.verdicts
        if verdict.status is not Status.OK
    ]
    if comparison.stopped:
        notes.append(f"stopped: {shortened(comparison.stopped)}")
    notes += [f"history of {name}: {path}" for name, path in comparison.history.items()]
    obstacle, step = _next_step(comparison, sides, folder)
    return Answer(
        command="ab",
        tables={"cases": Table(COLUMNS, rows)},
        title=f"B against A on {device.name}: {statuses}",
        heading=[f"{name}: {_in_brief(sides[name], environments[name])}" for name in sorted(sides)],
        notes=[*notes, *filter(None, [obstacle, unanswered(comparison.rows)])],
        next=step,
        about={
            **picked(comparison, "environments differences runs history stopped"),
            "device": device,
            "pairs": pairs[0],
            "most_pairs": pairs[1],
        },
        exit_status=_exit_status(comparison),
    )


def _in_brief(side: Side, environment: Environment) -> str:
    parts = [f"torch {environment.torch}", f"Python {environment.python}"]
    parts += [f"ROCm {environment.rocm}, HIP {environment.hip}"] if environment.hip else []
    command = shlex.join((*side.command_prefix, side.python))
    parts += [command, *(f"{name}={value}" for name, value in side.environment.items())]
    return ", ".join(parts)


def _next_step(comparison: Compared, sides: Mapping[str, Side], folder: Path) -> tuple[str, str]:
    """Return why there is nothing to accept, or the command that proposes B's values."""
    if not any(row.pairs for row in comparison.rows):
        return "nothing was compared, so there is nothing to accept", ""
    if sides["A"] == sides["B"]:
        return (
            "nothing to accept: both sides are the same environment, so any difference is noise",
            "",
        )
    option = "" if folder == DEFAULT_HISTORY else f" --history {shlex.quote(str(folder))}"
    return "", f"bench-lib baseline accept --dry-run --run {comparison.runs['B']}{option}"


def _exit_status(comparison: Compared) -> int:
    """Return 1 where B is worse or the comparison ended early, 2 where most is unjudged."""
    from bench_lib.studies.ab import fails, unanswered

    if fails(comparison.rows) or comparison.stopped:
        return 1
    return 2 if unanswered(comparison.rows) else 0


COLUMNS: list[Column[PairRow]] = [
    Column("case_id", lambda row: row.case_id, heading="case"),
    Column("status", lambda row: row.status),
    Column("a_s", lambda row: row.a_s, "s", "A"),
    Column("b_s", lambda row: row.b_s, "s", "B"),
    *judged(lambda row: row.verdicts[0]),
    Column("metric", lambda row: row.metric, heading="by"),
    *columns("", "pairs verdicts"),
]
