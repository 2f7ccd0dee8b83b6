"""``bench-lib bisect``: which change made a case slower, at a stated error."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench_lib.cli.ending import leaving_when_told
from bench_lib.cli.options import share_of
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
from bench_lib.cli.sides import read
from bench_lib.formats import many, percent, seconds, shortened
from bench_lib.model import Case, Environment, Hardware, UserError
from bench_lib.profiling.kernels import diff

if TYPE_CHECKING:
    from bench_lib.storage.history import Run
    from bench_lib.studies.bisect import BisectEnding, Bisecting, Expected, KernelsChanged
    from bench_lib.studies.candidates import Candidate, Candidates
    from bench_lib.studies.candidates.kinds import Ends
    from bench_lib.verdict.statistics.search import Found, SlowerBy

LAST_OK = "last-ok"
MOST_RUNS = 120
"""Runs that are looked through for the case's noise and its nights."""
ERROR, MOST_ERROR = "3%", 0.2
SHOWN = 5
"""Kernels that are printed, those that changed most."""


def bisect(
    *,
    case: Annotated[str, typer.Argument(metavar="CASE", help="Id of the case that got slower.")],
    good: Annotated[
        str,
        typer.Option(
            metavar="A",
            help=f"The good end: a commit, a version or an image; {LAST_OK} asks the history.",
        ),
    ],
    bad: Annotated[
        str | None,
        typer.Option(
            metavar="B", help=f"The bad end (default with {LAST_OK}: the first failing night)."
        ),
    ] = None,
    build: Annotated[
        str, typer.Option(metavar="COMMAND", help="Command that builds a commit, in its worktree.")
    ] = "",
    package: Annotated[
        str | None, typer.Option(metavar="NAME", help="Package whose versions the ends are.")
    ] = None,
    wheels: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the versions' wheels.")
    ] = None,
    pip: Annotated[
        str, typer.Option(metavar="OPTIONS", help="Options of pip install for the versions.")
    ] = "",
    image: Annotated[
        list[str] | None,
        typer.Option(
            "--image", metavar="IMAGE", help="An image between the ends; repeat it in their order."
        ),
    ] = None,
    prefix: Annotated[
        str, typer.Option(metavar="WORDS", help="Words that run an image: 'docker run --rm'.")
    ] = "",
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="PYTHON", help="Interpreter of the candidates."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Environment variable of all; may be repeated."),
    ] = None,
    error: Annotated[
        str, typer.Option(metavar="SHARE", help="Largest chance of a wrong answer.")
    ] = ERROR,
    most_pairs: Annotated[
        int | None,
        typer.Option(min=2, help="Largest number of pairs (default: 4 times the expected)."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what an earlier call of this measured.")
    ] = False,
    keep: Annotated[
        bool,
        typer.Option("--keep-candidates", help="Keep the worktrees or environments made for this."),
    ] = False,
    matrix: Matrix = DEFAULT_MATRIX,
    history: HistoryDir = DEFAULT_HISTORY,
    json: Json = False,
) -> None:
    """Find the commit, the version or the image that made a case slower.

    Each candidate is measured in turns with the good end.  The first lines say how long that
    takes.  The same command continues an interrupted search.  Exit status 1 where the bad end is
    not slower, 2 where the pairs did not suffice.
    """
    share = share_of(error, "--error", most=MOST_ERROR)
    from bench_lib import backends
    from bench_lib.engine import settings
    from bench_lib.storage.runs import Runs
    from bench_lib.studies.candidates.kinds import Ends

    device = backends.detect()[0]
    runs = list(Runs(history).latest(device.key, MOST_RUNS, say))
    asked = case_of(case, matrix, history)
    named = Ends(
        good,
        bad or "",
        build=read(settings.prefix, build, "--build"),
        package=package,
        wheels=wheels,
        options=read(settings.prefix, pip, "--pip"),
        images=tuple(image or ()),
        prefix=read(settings.prefix, prefix, "--prefix"),
        python=python,
        environment=dict(read(settings.variable, each, "--env") for each in env or []),
    )
    ends = _ends(named, runs, asked.id)
    with _candidates(ends, keep=keep) as (candidates, line), leaving_when_told():
        hunt, expected = _prepared(
            asked,
            device,
            line,
            candidates=candidates,
            how=_how(ends),
            runs=runs,
            error=share,
            history=history,
            fresh=fresh,
        )
        ending, kernels = _searched(hunt, expected.slow_down, most_pairs)
        again = f"bench-lib bisect {shlex.quote(asked.id)}"
        options = _options(ends, error, matrix, history)
        status = _tell(hunt, expected, ending, kernels, again=again, options=options, json=json)
    raise typer.Exit(status)


# ---- what is asked ------------------------------------------------------------------------


def _ends(ends: Ends, runs: Sequence[Run], case_id: str) -> Ends:
    """Return the ends, those of the history if requested; raises UserError."""
    if ends.good != LAST_OK:
        if not ends.bad:
            why = f"it is needed, unless --good is {LAST_OK}"
            raise typer.BadParameter(why, param_hint="--bad")
        return ends
    if ends.images or ends.prefix:
        raise UserError(f"the history does not know images; name --good instead of {LAST_OK}")
    good, bad = _of_nights(runs, case_id, ends.bad, ends.package)
    say(f"from {good}, of the last night in which {case_id} was OK, to {bad}")
    return replace(ends, good=good, bad=bad)


def _of_nights(runs: Sequence[Run], case_id: str, bad: str, package: str | None) -> tuple[str, str]:
    from bench_lib.environment import fingerprint
    from bench_lib.studies.bisect import failing_since

    nights = failing_since(runs, case_id)
    what = f"version of {package}" if package else "commit"
    good, first = (_recorded(each, package) for each in (nights.ok, nights.failing))
    if good is None or not (first or bad):
        raise UserError(f"the history has no {what} of these nights; name both ends")
    if good == first and not bad:
        changed = "; ".join(fingerprint.difference(nights.ok, nights.failing)) or "nothing known"
        why = f"both nights have the same {what}, {good}; what changed is {changed}"
        raise UserError(f"{why}; name --package NAME, or both ends")
    return good, bad or str(first)


def _recorded(environment: Environment, package: str | None) -> str | None:
    if package is None:
        return environment.commit
    known = getattr(environment, package.replace("-", "_"), None)
    return known if isinstance(known, str) else environment.libraries.get(package)


@contextmanager
def _candidates(ends: Ends, *, keep: bool) -> Iterator[tuple[Candidates, Sequence[Candidate]]]:
    """Have the candidates for as long as this lasts; an interrupted search keeps them."""
    from bench_lib.studies.candidates.kinds import of

    candidates = of(ends)
    yield candidates, candidates.between(ends.good, ends.bad)
    if not keep:
        candidates.close()


# ---- the search ---------------------------------------------------------------------------


def _prepared(
    case: Case,
    device: Hardware,
    line: Sequence[Candidate],
    *,
    candidates: Candidates,
    how: Sequence[str],
    runs: Sequence[Run],
    error: float,
    history: Path,
    fresh: bool,
) -> tuple[Bisecting, Expected]:
    """Say what the search will take, and return it with that."""
    from bench_lib.engine import pace
    from bench_lib.storage.points import Points
    from bench_lib.studies import bisect as study
    from bench_lib.verdict.statistics.search import Bisection

    last, tolerance = len(line) - 1, case.limits.tolerance
    ratio, noise = study.last_ratio(runs, case.id), study.pair_noise(runs, case.id)
    names = [each.name for each in line]
    points = Points(history, [case.id, device.key, str(error), *names, *how], fresh=fresh)
    hunt = study.Bisecting(
        case,
        device,
        line,
        candidates=candidates,
        search=Bisection(last, tolerance=tolerance, noise=noise, error=error),
        points=points,
        pace=pace.Pace(pace.past(history, device.key)),
        say=say,
    )
    expected = hunt.expected(tolerance if ratio is None else max(tolerance, ratio - 1))
    say(
        f"{case.id} on {device.key}: {many(last, 'candidate')} from {study.in_brief(line[0])} "
        f"to {study.in_brief(line[-1])}"
    )
    seen = "by the history" if ratio else "a slow-down of the tolerance"
    guess = "by the history" if noise else "a guess"
    say(
        f"about {many(expected.steps, 'step')}, {many(expected.pairs, 'pair')} and "
        f"{duration(expected.takes_s)}, besides making the candidates: {expected.slow_down:.1%} "
        f"slower ({seen}), pairs that differ by {expected.noise:.1%} ({guess}), "
        f"wrong at most once in {1 / error:.0f}"
    )
    if points.kept:
        say(f"goes on from {many(hunt.search.pairs, 'pair')} of an earlier call; --fresh forgets")
    return hunt, expected


def _searched(
    hunt: Bisecting, slow_down: float, most_pairs: int | None
) -> tuple[BisectEnding, KernelsChanged | str | None]:
    """Search, and profile the kernels before and after the culprit."""
    try:
        ending = hunt.run(slow_down, most_pairs)
        found = hunt.search.found
        return ending, None if found is None else hunt.kernels(found)
    except KeyboardInterrupt as interrupt:
        kept = many(hunt.search.pairs, "pair")
        raise KeyboardInterrupt(
            *interrupt.args, f"kept: {kept}; the same command goes on from there"
        ) from None


# ---- the answer ---------------------------------------------------------------------------


def _tell(
    hunt: Bisecting,
    expected: Expected,
    ending: BisectEnding,
    kernels: KernelsChanged | str | None,
    *,
    again: str,
    options: str,
    json: bool,
) -> int:
    """Print the answer; returns the exit status that follows."""
    from bench_lib.studies.bisect import BisectEnding

    found = hunt.search.found if ending is BisectEnding.FOUND else None
    line, search = hunt.line, hunt.search
    shown = advice = None
    if found is not None:
        shown = _command(again, line[found.before], line[found.after], options)
        if found.other is not None:
            is_later = found.other[0] >= found.after
            ends = (found.after, len(line) - 1) if is_later else (0, found.before)
            advice = _command(again, line[ends[0]], line[ends[1]], options)
    elif ending is BisectEnding.UNDECIDED:
        advice = _command(again, line[0], line[-1], f"{options} --most-pairs {4 * search.pairs}")
    steps = [f"next: {advice}"] if advice else []
    if json:
        _print_document(hunt, expected, ending, found, kernels, again=shown, steps=steps)
    else:
        _print(hunt, ending, found, kernels)
        print(f"pairs: {hunt.points.path}")
        if shown:
            print(f"shown again by: {shown}")
        for each in steps:
            print(each)
    return {BisectEnding.FOUND: 0, BisectEnding.NONE: 1, BisectEnding.UNDECIDED: 2}[ending]


def _print_document(
    hunt: Bisecting,
    expected: Expected,
    ending: BisectEnding,
    found: Found | None,
    kernels: KernelsChanged | str | None,
    *,
    again: str | None,
    steps: list[str],
) -> None:
    line = hunt.line
    print_json(
        "bisect",
        case_id=hunt.case.id,
        device=hunt.device,
        good=line[0],
        bad=line[-1],
        candidates=len(line) - 1,
        error=hunt.search.error,
        expected=expected,
        ending=ending,
        changes=[] if found is None else line[found.before + 1 : found.after + 1],
        belief=None if found is None else found.belief,
        change_size=None if found is None else found.size,
        whole_size=hunt.search.whole,
        steps=hunt.steps,
        skipped=hunt.skipped,
        kernels=None if isinstance(kernels, str) else kernels,
        kernels_unknown=kernels if isinstance(kernels, str) else None,
        points=str(hunt.points.path),
        again=again,
        next=steps,
    )


def _print(
    hunt: Bisecting, ending: BisectEnding, found: Found | None, kernels: KernelsChanged | str | None
) -> None:
    from bench_lib.studies.bisect import BisectEnding

    search, line = hunt.search, hunt.line
    took = f"{many(len(hunt.steps), 'step')} and {many(search.pairs, 'pair')}"
    if found is not None:
        for change in line[found.before + 1 : found.after + 1]:
            _print_change(change)
        if (count := found.after - found.before) > 1:
            print(f"one of these {count}: the others than the last cannot be measured")
        times = f"{seconds(hunt.good_s())} → {seconds(hunt.good_s() * found.whole.ratio)}"
        print(f"made {hunt.case.id} slower by {_size(found.size)}; from end to end {times}")
        print(f"{found.belief:.1%} of the belief, after {took}")
        if found.other is not None:
            first, last = (hunt.named(at) for at in found.other)
            print(f"all of it is {_size(found.whole)}; another change lies after {first}, ", end="")
            print(f"up to {last}")
    elif ending is BisectEnding.NONE:
        print(
            f"{hunt.named(len(line) - 1)} is not slower than {hunt.named(0)} by the tolerance of "
            f"{hunt.case.limits.tolerance:.1%}: {_size(search.whole)}, after {took}"
        )
    else:
        low, high = (hunt.named(at) for at in search.between)
        print(f"undecided after {took}: slower by {_size(search.whole)} in all, ", end="")
        print(f"since a change after {low}, up to {high}")
    if kernels is not None:
        _print_kernels(kernels)
    for name, reason in hunt.skipped.items():
        print(f"left out: {name[:12]}: {shortened(reason)}")


def _print_kernels(kernels: KernelsChanged | str) -> None:
    from bench_lib.cli.kernels import print_changes

    if isinstance(kernels, str):
        print(f"kernels are not known: {shortened(kernels)}")
        return
    print_changes(diff(kernels.before, kernels.after), SHOWN)
    print(shortened(kernels.reason))


def _print_change(change: Candidate) -> None:
    print(" ".join(filter(None, [change.name, change.subject])))
    if about := ", ".join(filter(None, [change.author, change.date])):
        print(f"  {about}")
    if change.address:
        print(f"  {change.address}")


def _size(size: SlowerBy) -> str:
    low, high = (percent(bound - 1, 2) for bound in size.interval)
    return f"{percent(size.ratio - 1, 2)} ({low} to {high})"


def _command(again: str, good: Candidate, bad: Candidate, options: str) -> str:
    ends = [shlex.quote(each.name.replace(" ", "==")) for each in (good, bad)]
    return f"{again} --good {ends[0]} --bad {ends[1]}{options}"


def _options(ends: Ends, error: str, matrix: Path, history: Path) -> str:
    """Return the options of the same search between other ends, as a shell reads them."""
    others = (("--error", error), ("--matrix", matrix), ("--history", history))
    usual = (ERROR, DEFAULT_MATRIX, DEFAULT_HISTORY)
    words = _how(ends)
    for (option, value), default in zip(others, usual, strict=True):
        words += [] if value == default else [option, str(value)]
    return f" {shlex.join(words)}" if words else ""


def _how(ends: Ends) -> list[str]:
    """Return the options that say how candidates are made: others may make other speeds."""
    options: Iterable[tuple[str, object]] = (
        ("--build", shlex.join(ends.build)),
        ("--wheels", ends.wheels),
        ("--pip", shlex.join(ends.options)),
        *(("--image", image) for image in ends.images),
        ("--prefix", shlex.join(ends.prefix)),
        ("--python", ends.python),
        *(("--env", f"{name}={text}") for name, text in ends.environment.items()),
    )
    return [word for option, value in options if value for word in (option, str(value))]
