"""``bench-lib bisect``: which change made a case slower, at a stated error."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench_lib.cli.ending import leaving_when_told
from bench_lib.cli.options import read, share_of
from bench_lib.cli.output import (
    DEFAULT_HISTORY,
    DEFAULT_MATRIX,
    HistoryDir,
    Json,
    Matrix,
    duration,
    print_json,
    say,
)
from bench_lib.cli.reading import case_of
from bench_lib.formats import many, percent, shortened
from bench_lib.model import UserError

if TYPE_CHECKING:
    from bench_lib.storage.history import Run
    from bench_lib.studies.bisect import Bisecting
    from bench_lib.verdict.statistics.sequential import SlowerBy, SoFar

LAST_OK = "last-ok"
MOST_RUNS = 120
"""Runs that are looked through for the case's noise and its nights."""
MOST_ERROR = 0.2
MORE_PAIRS = 4
"""The search gives up after so many times the pairs that it expects."""


def bisect(
    *,
    case: Annotated[str, typer.Argument(metavar="CASE", help="Id of the case that got slower.")],
    good: Annotated[
        str,
        typer.Option(
            metavar="A", help=f"The good end: a commit or a version; {LAST_OK} asks the history."
        ),
    ],
    bad: Annotated[
        str,
        typer.Option(
            metavar="B", help=f"The bad end (default with {LAST_OK}: the first failing night)."
        ),
    ] = "",
    build: Annotated[
        str, typer.Option(metavar="COMMAND", help="Command that builds a commit, in its worktree.")
    ] = "",
    package: Annotated[
        str, typer.Option(metavar="NAME", help="Package whose versions the ends are.")
    ] = "",
    pip: Annotated[
        str, typer.Option(metavar="OPTIONS", help="Options of pip for the versions.")
    ] = "",
    python: Annotated[
        str, typer.Option("--python", metavar="PYTHON", help="Interpreter of the candidates.")
    ] = "",
    error: Annotated[
        str, typer.Option(metavar="SHARE", help="Largest chance of a wrong answer.")
    ] = "5%",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what an earlier call of this measured.")
    ] = False,
    matrix: Matrix = DEFAULT_MATRIX,
    history: HistoryDir = DEFAULT_HISTORY,
    json: Json = False,
) -> None:
    """Find the commit or the package version that made a case slower.

    Each candidate is measured in turns with the good end.  The first lines say how long that
    takes.  The same command continues an interrupted search.  Exit status 1 where the bad end is
    not slower, 2 where the pairs did not suffice.
    """
    share = share_of(error, "--error", most=MOST_ERROR)
    from bench_lib import backends
    from bench_lib.engine import settings
    from bench_lib.storage.runs import Runs
    from bench_lib.studies.bisect import Bisecting, pair_noise
    from bench_lib.studies.candidates import Commits, Packages
    from bench_lib.verdict.statistics.sequential import GUESSED_SD, ChangeSearch

    device = backends.detect()[0]
    runs = list(Runs(history).latest(device.key, MOST_RUNS, say))
    asked = case_of(case, matrix, history)
    tolerance = slow_down = asked.limits.tolerance
    package = package or good.rpartition("==")[0]
    if good == LAST_OK:
        good, first, slow_down = _of_nights(runs, asked.id, package)
        bad = bad or first
        say(f"from {good}, of the last night in which {asked.id} was OK, to {bad}")
    elif not bad:
        raise typer.BadParameter(f"name it, unless --good is {LAST_OK}", param_hint="--bad")
    words = read(settings.prefix, build, "--build")
    if package and words:
        raise UserError("--build is for commits, and the ends are versions of a package")
    options = read(settings.prefix, pip, "--pip")
    candidates = Packages(python, package, options) if package else Commits(python, words)
    line = candidates.between(good, bad)
    about = [asked.id, device.key, *(each.name for each in line), build, pip, python]
    path = history / "bisections" / f"{hashlib.sha256(repr(about).encode()).hexdigest()[:16]}.pairs"
    path.parent.mkdir(parents=True, exist_ok=True)
    if fresh:
        path.unlink(missing_ok=True)
    noise = pair_noise(runs, asked.id) or GUESSED_SD
    search = ChangeSearch(len(line) - 1, tolerance, share, noise)
    hunt = Bisecting(asked, device, line, candidates, search=search, path=path, say=say)
    most_pairs = hunt.pairs + MORE_PAIRS * _announced(hunt, max(tolerance, slow_down), history)
    with leaving_when_told():
        try:
            look = hunt.run(most_pairs)
        except KeyboardInterrupt as stop:
            kept = f"kept: {many(hunt.pairs, 'pair')}; the same command goes on from there"
            raise KeyboardInterrupt(*stop.args, kept) from None
    if look.next is None:
        candidates.close(path.stem)
    raise typer.Exit(_told(hunt, look, path, json=json))


def _of_nights(runs: Sequence[Run], case_id: str, package: str) -> tuple[str, str, float]:
    """Return the ends and the slow-down that the history knows; raises UserError."""
    from bench_lib.environment.fingerprint import difference
    from bench_lib.studies.bisect import failing_since

    *nights, slow_down = failing_since(runs, case_id)
    name = package.replace("-", "_") or "commit"
    good, bad = (getattr(each, name, None) or each.libraries.get(package) for each in nights)
    if not (good and bad) or good == bad:
        changed = "; ".join(difference(*nights)) or "nothing known"
        why = f"the {package or 'commit'} of these nights is {good or 'not known'} and {bad}"
        raise UserError(f"{why}; what changed is {changed}; name --package NAME, or both ends")
    return good, bad, slow_down


def _announced(hunt: Bisecting, slow_down: float, history: Path) -> int:
    """Say what the search will take; returns the expected number of pairs."""
    from bench_lib.engine import pace
    from bench_lib.studies import ab

    steps, pairs = hunt.search.expected(slow_down)
    takes_s = ab.expected_s([hunt.case], pairs, pace.Pace(pace.past(history, hunt.device.key)))
    say(
        f"{hunt.case.id} on {hunt.device.key}: {many(hunt.search.last, 'candidate')} after "
        f"{hunt.line[0]} up to {hunt.line[-1]}\nabout {many(steps, 'step')}, "
        f"{many(pairs, 'pair')} and {duration(takes_s + (steps - 1) * ab.STARTING_S)}, besides "
        f"making the candidates, if it is {slow_down:.1%} slower and pairs differ by "
        f"{hunt.search.guessed_sd:.1%}; wrong at most once in {1 / hunt.search.error:.0f}"
    )
    if hunt.kept:
        say(f"goes on from {many(hunt.pairs, 'pair')} of an earlier call; --fresh forgets")
    return pairs


def _told(hunt: Bisecting, look: SoFar, path: Path, *, json: bool) -> int:
    """Print the answer; returns the exit status that follows."""
    search, line = hunt.search, hunt.line
    changes = line[look.low + 1 : look.high + 1] if look.next is None else []
    whole, change = search.slower_by(0, search.last), search.slower_by(look.low, look.high)
    skipped = {pair.candidate: pair.skipped for pair in hunt.kept if pair.skipped}
    status = 2 if look.next is not None else int(not changes)
    if json:
        print_json(
            "bisect",
            schema=2,  # 1 had beliefs, steps and kernels
            case_id=hunt.case.id,
            device=hunt.device,
            good=line[0],
            bad=line[-1],
            candidates=search.last,
            error=search.error,
            ending=("found", "none", "undecided")[status],
            changes=changes,
            change_size=change if changes else None,
            whole_size=whole,
            pairs=[pair for pair in hunt.kept if not pair.skipped],
            skipped=skipped,
            path=path,
        )
        return status
    for each in changes:
        print(f"{each.name} {each.subject}".rstrip())
    if len(changes) > 1:
        print(f"one of these {len(changes)}: the others than the last cannot be measured")
    case, size, pairs = hunt.case, _size(whole), many(hunt.pairs, "pair")
    if changes:
        print(f"made {case.id} slower by {_size(change)}; from end to end {size}")
    elif status == 1:
        tolerance = f"the tolerance of {case.limits.tolerance:.1%}"
        print(f"{line[-1]} is not slower than {line[0]} by {tolerance}: {size}")
    else:
        where = f"since a change after {line[look.low]}, up to {line[look.high]}"
        print(
            f"undecided after {pairs}: slower by {size} in all, {where}; the same command goes on"
        )
    if status < 2:
        print(f"{1 - search.error:.0%} sure, after {pairs}")
    for name, reason in skipped.items():
        print(f"left out: {name[:12]}: {shortened(reason)}")
    print(f"pairs: {path}")
    return status


def _size(size: SlowerBy) -> str:
    low, high = (percent(bound - 1, 2) for bound in size.interval)
    return f"{percent(size.ratio - 1, 2)} ({low} to {high})"
