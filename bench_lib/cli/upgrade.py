"""``bench-lib upgrade``: an old environment, a new one, and what in it makes cases slower."""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench_lib.cases.operators import command_of
from bench_lib.cli.ending import leaving_when_told
from bench_lib.cli.options import grouped
from bench_lib.cli.output import (
    DEFAULT_BASELINES,
    DEFAULT_HISTORY,
    DEFAULT_MATRIX,
    BaselinesDir,
    HistoryDir,
    Json,
    duration,
    filled,
    print_json,
    print_table,
    say,
    writing,
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
from bench_lib.formats import many, some
from bench_lib.model import Case, Hardware, Status, UserError

if TYPE_CHECKING:
    from bench_lib.engine.pairing import PairRow
    from bench_lib.engine.settings import Side
    from bench_lib.studies.ab import Compared
    from bench_lib.studies.culprits import Culprit, CulpritsFound
    from bench_lib.studies.upgrade import Upgrade

PAIRS, MOST_PAIRS = 5, 6
"""Fewer processes than five make a baseline whose own spread is hardly known."""
FOLDER = Path("upgrade")
PROPOSAL = "baselines.md"
HEADINGS = ("case", "culprit", "alone", "wrong at most")


@dataclass(frozen=True, kw_only=True)
class UpgradeOptions:
    """The options of an upgrade."""

    prefix: Annotated[
        str,
        typer.Option(
            metavar="WORDS",
            help="Words that run an image, for OLD and NEW: 'docker run --rm {image}'.",
        ),
    ] = ""
    python: Annotated[
        str, typer.Option("--python", metavar="PYTHON", help="Interpreter in the images.")
    ] = "python3"
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Environment variable of both; may be repeated."),
    ] = None
    chosen: ChosenCases
    pairs: LeastPairs = PAIRS
    culprits: Annotated[
        bool,
        typer.Option(
            "--culprits/--no-culprits",
            help="Find the packages that make a case slower, by exchanging them in OLD.",
        ),
    ] = True
    output: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder for the change of the baselines and the issues."),
    ] = FOLDER
    history: HistoryDir = DEFAULT_HISTORY
    baselines: BaselinesDir = DEFAULT_BASELINES
    json: Json = False

    @property
    def again(self) -> list[str]:
        """Options of ``ab`` for the same cases and variables, without those of the default."""
        words = [word for text in self.env or [] for word in ("--env-a", text, "--env-b", text)]
        matrix, tier = self.chosen.matrix, self.chosen.tier
        words += [] if matrix == DEFAULT_MATRIX else ["--matrix", str(matrix)]
        return words if tier is None else [*words, "--tier", tier]


@grouped
def upgrade(
    *,
    old: Annotated[
        str, typer.Argument(help="Interpreter that runs today, a list of wheels, or an image.")
    ],
    new: Annotated[str, typer.Argument(help="The new one, in the same form.")],
    asked: UpgradeOptions,
) -> None:
    """Judge an upgrade: warm both sides, measure them in turns, and name the guilty packages.

    Writes the change of the baselines that the new side proposes, and an issue for the makers of
    each guilty package.  Accepts nothing.  Exit status 1 where a case regressed or has no
    measurement, 2 where most could not be judged.
    """
    sides = _sides(old, new, asked)

    from bench_lib import backends
    from bench_lib.studies.upgrade import Upgrade

    device = backends.detect()[0]
    steps = Upgrade(
        device,
        *sides,
        asked.chosen.of(device),
        pairs=asked.pairs,
        most_pairs=max(asked.pairs, MOST_PAIRS),
        history=asked.history,
        folder=asked.output,
        say=say,
    )
    with leaving_when_told(), contextlib.closing(steps):
        status = _go(steps, asked)
    raise typer.Exit(status)


def _sides(old: str, new: str, asked: UpgradeOptions) -> tuple[Side, Side]:
    """Return both sides; an image's is asked whether it has a torch."""
    from bench_lib.engine import settings
    from bench_lib.studies.candidates import Candidate
    from bench_lib.studies.candidates.images import Images

    if old == new:
        raise UserError(f"OLD and NEW are both {old}; name two environments")
    variables = dict(read(settings.variable, text, "--env") for text in asked.env or [])
    words = read(settings.prefix, asked.prefix, "--prefix")
    if not words:
        return settings.Side(old, variables), settings.Side(new, variables)
    images = Images((), words, python=asked.python, environment=variables)
    return images.make(Candidate(old)), images.make(Candidate(new))


def _go(steps: Upgrade, asked: UpgradeOptions) -> int:
    """Go through all steps, tell, and return the exit status."""
    from bench_lib.studies.culprits import CulpritsFound

    with writing(asked.output):
        asked.output.mkdir(parents=True, exist_ok=True)
    packages = steps.packages()
    _say_plan(steps, packages, asked)
    unfit = _unfit(steps.device)
    for line in unfit:
        say(f"before: {line}")
    if steps.needs_warming:
        say("warming the caches of both sides; these figures are discarded")
        steps.warm()
    say("the old side against itself: what differs there is noise")
    itself = steps.itself()
    say("old against new")
    compared = steps.compare()
    if not asked.json:  # now: the search for the guilty packages may take long, and be interrupted
        _print_compared(itself, compared, packages)
    kernels = steps.kernels(compared.rows)
    found = steps.culprits(compared.rows) if asked.culprits else CulpritsFound()
    minimal = {**_minimal(steps.cases, found), **steps.minimal(compared.rows)}
    proposal = _proposal(compared, asked)
    issues = _write_issues(steps, compared, found.culprits, asked, kernels=kernels, minimal=minimal)
    advice = [*_next_steps(compared, asked.history, proposal, issues), *no_answer(compared)]
    if asked.json:
        from bench_lib.cli.documents import UpgradeDocument
        from bench_lib.verdict.statistics.culprits import ERROR

        print_json(
            filled(
                UpgradeDocument,
                compared,
                **vars(found),
                device=steps.device,
                pairs=steps.pairs,
                most_pairs=steps.most_pairs,
                unfit=unfit,
                itself=itself,
                cases=compared.rows,
                packages=packages,
                kernels=kernels,
                error=ERROR,
                minimal=minimal,
                proposal=proposal,
                issues=issues,
                next=advice,
            )
        )
    else:
        _print_causes(compared.rows, kernels, found)
        print("\n".join(advice))
    return exit_status(compared)


# ---- before -------------------------------------------------------------------------------


def _say_plan(steps: Upgrade, packages: Sequence[str] | None, asked: UpgradeOptions) -> None:
    """Say which packages differ, the steps, and about how long they take."""
    from bench_lib.engine import pace
    from bench_lib.report.console import NAMED

    known = pace.Pace(pace.past(asked.history, steps.device.key))
    takes = {step: duration(time) for step, time in steps.expected_s(known).items()}
    for name, side in zip(("old", "new"), steps.sides.values(), strict=True):
        say(f"{name}: {shlex.join((*side.command_prefix, side.python))}")
    if packages is not None:
        which = f": {some(packages, NAMED)}" if packages else ""
        say(f"{many(len(packages), 'package')} differ{'s' * (len(packages) == 1)}{which}")
    say(f"{many(len(steps.cases), 'case')} on {steps.device.key}:")
    if steps.needs_warming:
        say(f"  1. warm the caches of both sides, about {takes['warm']}")
    say(f"  2. the old side against itself in one case, about {takes['itself']}")
    say(f"  3. old against new in {steps.pairs} pairs, about {takes['compare']}")
    if asked.culprits:
        say(
            "  4. the kernels and the guilty packages of what got slower, about "
            f"{takes['culprit']} for each that is guilty"
        )
    say("  5. the change of the baselines, and issues for upstream")


def _unfit(device: Hardware) -> list[str]:
    """Say what would spoil measurements on this machine, each with its remedy."""
    from bench_lib.environment import readiness

    return [
        f"{check.name}: {check.detail}" + (f"; {check.remedy}" if check.remedy else "")
        for check in readiness.checks(devices=[device])
        if check.ok is False
    ]


# ---- what is written -----------------------------------------------------------------------


def _proposal(compared: Compared, asked: UpgradeOptions) -> Path | None:
    """Write the changes that accepting the new side's run would make; None if there are none."""
    from bench_lib.cli.proposals import Proposal

    text = io.StringIO()
    try:
        found = Proposal([compared.runs["B"]], asked.history, asked.baselines, "*", "upgrade")
        with contextlib.redirect_stdout(text):
            found.print_changes(markdown=True)
    except UserError as error:
        say(f"no change of the baselines: {error}")
        return None
    path = asked.output / PROPOSAL
    with writing(path):
        path.write_text(text.getvalue(), encoding="utf-8")
    return path


def _write_issues(
    steps: Upgrade,
    compared: Compared,
    culprits: Sequence[Culprit],
    asked: UpgradeOptions,
    *,
    kernels: Mapping[str, str],
    minimal: Mapping[str, str],
) -> list[Path]:
    """Write an issue for each set of guilty packages, with all its cases, to a file of its own."""
    from bench_lib.studies.upstream import issue_lines

    groups: dict[tuple[str, ...], list[Culprit]] = {}
    for culprit in culprits:
        groups.setdefault(tuple(culprit.packages), []).append(culprit)
    a, b = steps.sides.values()
    words = ["bench-lib", "ab", "--python-a", a.python, "--python-b", b.python, *asked.again, "-k"]
    written: list[Path] = []
    for packages, those in groups.items():
        path = asked.output / f"issue-{'-'.join(packages[:3])}.md"
        if path in written:  # of more packages, which differ in others than the first
            path = path.with_stem(f"{path.stem}-{len(written) + 1}")
        ids = " or ".join(each.case_id for each in those)
        lines = issue_lines(
            those,
            compared,
            kernels=kernels,
            minimal=minimal,
            device=steps.device,
            command=shlex.join([*words, ids]),
        )
        with writing(path):
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        written.append(path)
    return written


def _minimal(cases: Sequence[Case], found: CulpritsFound) -> dict[str, str]:
    """Return by slower case the command of an operator that the same packages make slower.

    Such operators are among the cases that were measured; without one a case is left out.
    """
    operators = {case.id: case for case in cases if command_of(case)}
    by_packages: dict[tuple[str, ...], str] = {}
    for culprit in found.culprits:
        if culprit.case_id in operators:
            command = command_of(operators[culprit.case_id])
            by_packages.setdefault(tuple(culprit.packages), command)
    return {
        culprit.case_id: by_packages[tuple(culprit.packages)]
        for culprit in found.culprits
        if tuple(culprit.packages) in by_packages
    }


# ---- what is told -------------------------------------------------------------------------


def _print_compared(
    itself: Sequence[PairRow], compared: Compared, packages: Sequence[str] | None
) -> None:
    beside = [f"packages, old -> new: {', '.join(packages)}"] if packages else []
    for row in itself:
        effect = row.verdicts[0].detectable_effect
        seen = f", {effect:.1%} is visible" if effect is not None else ""
        beside.append(f"old against itself: {row.case_id} {row.status.value}{seen}")
    print_compared(compared, ("old", "new"), beside, differ=bool(packages))
    sys.stdout.flush()


def _print_causes(
    rows: Sequence[PairRow], kernels: Mapping[str, str], found: CulpritsFound
) -> None:
    from bench_lib.verdict.statistics.culprits import ERROR

    for row in rows:
        if row.case_id in kernels:
            print(f"{row.case_id}: {kernels[row.case_id]}")
    if found.culprits:
        print()
        lines = []
        for culprit in found.culprits:
            alone = "" if culprit.ratio is None else f"{culprit.ratio:.4f}"
            surely = f"once in {1 / ERROR:.0f}" if culprit.known else "unknown"
            lines.append((culprit.case_id, "; ".join(culprit.changes), alone, surely))
        print_table(HEADINGS, lines)
    for culprit in found.culprits:
        if not culprit.told_apart:
            print(f"{culprit.case_id}: which of these packages does it could not be told apart")
        elif culprit.alone or len(culprit.packages) > 1:
            each = ", ".join(f"{name} {ratio:.4f}" for name, ratio in culprit.alone.items())
            print(f"{culprit.case_id}: only together" + (f"; alone {each}" if each else ""))
    for tied in found.tied:
        print(f"exchanged together: {', '.join(tied.packages)}: {tied.why}")
    for case_id, why in found.unexplained.items():
        print(f"{case_id}: no culprit: {why}")


def _next_steps(
    compared: Compared,
    history: Path,
    proposal: Path | None,
    issues: Sequence[Path],
) -> Iterator[str]:
    """Name the written files and the next steps."""
    for name, run in compared.runs.items():
        side = "old" if name == "A" else "new"
        yield f"history of {side}: {compared.history[name]} (run {run})"
    for path in issues:
        yield f"issue for upstream: {path}"
    if proposal is None:
        yield "next: nothing was compared, so there is nothing to accept"
        return
    yield f"change of the baselines: {proposal}"
    if not any(row.status in (Status.OK, Status.IMPROVED) for row in compared.rows):
        yield "next: no case is fit to be accepted; find out why, or measure with more --pairs"
        return
    yield f"next: bench-lib baseline accept {run_of(compared, history)} --reason '...'"
