"""``bench-lib bisect``: finds the change that made a case slower, with a stated error."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated

import typer

from bench_lib.cli.options import read, share_of
from bench_lib.cli.output import (
    DEFAULT_HISTORY,
    DEFAULT_MATRIX,
    HistoryDir,
    Json,
    Matrix,
    picked,
    say,
    tell,
)
from bench_lib.cli.reading import case_of
from bench_lib.formats import duration, many, percent, shortened, some
from bench_lib.report.answer import Answer, Column, Table

if TYPE_CHECKING:
    from bench_lib.studies.bisect import Bisecting, Candidate

LAST_OK = "last-ok"
MOST_RUNS = 120
"""Runs that are searched for the case's noise and its ends."""
MORE_PAIRS = 4
"""The search gives up after this many times the expected pairs."""


def bisect(
    *,
    case: Annotated[str, typer.Argument(metavar="CASE", help="Id of the case that got slower.")],
    good: Annotated[
        str,
        typer.Option(
            metavar="A", help=f"Fast commit or version; {LAST_OK} takes it from the history."
        ),
    ],
    bad: Annotated[
        str,
        typer.Option(
            metavar="B", help=f"Slow commit or version (default with {LAST_OK}: the first to fail)."
        ),
    ] = "",
    build: Annotated[
        str,
        typer.Option(metavar="COMMAND", help="Command that builds a commit, run in its worktree."),
    ] = "",
    package: Annotated[
        str, typer.Option(metavar="NAME", help="Package whose versions are searched.")
    ] = "",
    error: Annotated[
        str, typer.Option(metavar="SHARE", help="Highest acceptable probability of a wrong answer.")
    ] = "5%",
    matrix: Matrix = DEFAULT_MATRIX,
    history: HistoryDir = DEFAULT_HISTORY,
    json: Json = False,
) -> None:
    """Find the commit or the package version that made a case slower.

    Each candidate is interleaved with the good end.  The first lines say how long that takes.
    The same command continues an interrupted search.  The exit status is 1 if the bad end is not
    slower, and 2 if the pairs did not suffice.
    """
    share = share_of(error, "--error", most=0.2)
    from bench_lib import backends
    from bench_lib.engine import pace, settings
    from bench_lib.launch.cache import cache_folder
    from bench_lib.storage.runs import Runs
    from bench_lib.studies import ab
    from bench_lib.studies.bisect import Bisecting, commits, ends_of, pair_noise, versions
    from bench_lib.studies.search import ChangeSearch
    from bench_lib.verdict import pairing
    from bench_lib.verdict.metrics import LEADING

    device = backends.detect()[0]
    runs = list(Runs(history).latest(device.key, MOST_RUNS, say))
    target = case_of(case, matrix, history)
    package = package or good.rpartition("==")[0]
    command = read(settings.prefix, build, "--build")
    if package and command:
        raise typer.BadParameter("the ends are versions, not commits", param_hint="--build")
    others: list[str] = []
    if good == LAST_OK:
        good, first, others = ends_of(runs, target.id, package)
        bad = bad or first
    elif not bad:
        raise typer.BadParameter(f"it is required unless --good is {LAST_OK}", param_hint="--bad")
    line = versions(good, bad, package) if package else commits(good, bad, command)
    identity = repr((target.id, device.key, [candidate.name for candidate in line], command))
    key = hashlib.sha256(identity.encode()).hexdigest()[:16]
    places = (history / "bisections" / key, cache_folder() / "bisections" / key)
    noise = pair_noise(runs, target.id)
    tolerance = pairing.tolerated(LEADING, target.limits)
    search = ChangeSearch(len(line) - 1, tolerance, share, noise)
    hunt = Bisecting(target, device, line, search, *places, say)
    pairs = search.expected_pairs()
    takes_s = pairs * ab.expected_s([target], 1, pace.read(history, device.key))
    say(f"{many(search.last, 'candidate')} after {line[0]} up to {line[-1]}, on {device.key}")
    if others:
        say(f"{some(others, 3)} changed as well; --package searches a package's versions instead")
    say(
        f"about {many(pairs, 'pair')} and {duration(takes_s)}, plus preparing the candidates, if "
        f"{target.id} is {search.tolerance:.1%} slower and pairs differ by {search.guessed_sd:.1%}"
        f"; wrong at most once in {1 / share:.0f}"
    )
    if hunt.pairs:
        say(f"continuing with {many(hunt.pairs, 'pair')} from an earlier call, in {hunt.path}")
    hunt.run(MORE_PAIRS * pairs)
    tell(_answer(hunt), json=json)


_CANDIDATES: list[Column[Candidate]] = [
    Column("name", lambda candidate: candidate.name, heading="change"),
    Column("subject", lambda candidate: candidate.subject),
]


def _answer(hunt: Bisecting) -> Answer:
    search, line, look = hunt.search, hunt.line, hunt.search.look()
    changes = line[look.low + 1 : look.high + 1]
    ending = "undecided" if look.next is not None else "found" if changes else "none"
    size, *interval = search.slower_by(look.high)
    skipped = {line[at].name: reason for at, reason in search.skipped.items()}
    claim = f"made {hunt.case.id} slower" if changes else f"{line[-1]} is not slower than {line[0]}"
    low, high = (percent(bound, 2) for bound in interval)
    heading, notes = [], [f"{claim}: {percent(size, 2)} ({low} to {high})"]
    if ending == "undecided":
        heading = ["undecided; run the same command to continue. Most probable so far:"]
    if len(changes) > 1:
        notes.insert(0, f"one of these {len(changes)}: only the last of them can be measured")
    notes.append(f"{percent(look.sure)} sure, after {many(hunt.pairs, 'pair')} in {hunt.path}")
    notes += [f"skipped: {name[:12]}: {shortened(reason)}" for name, reason in skipped.items()]
    return Answer(
        command="bisect",
        tables={"changes": Table(_CANDIDATES, changes)},
        heading=heading,
        notes=notes,
        about={
            "case_id": hunt.case.id,
            "device": hunt.device,
            "good": picked(line[0], "name subject"),
            "bad": picked(line[-1], "name subject"),
            "candidates": search.last,
            "error": search.error,
            "ending": ending,
            "probability": look.sure,
            "slower_by": size,
            "interval": interval,
            "log_ratios": {line[at].name: logs for at, logs in search.pairs.items()},
            "skipped": skipped,
            "path": hunt.path,
        },
        exit_status={"found": 0, "none": 1, "undecided": 2}[ending],
    )
