"""Faults in real runs, one a run: is a finished measurement lost, or anything left behind?

    python benchmarks/torture.py [--faults 500] [--seed 1] [--kind WORDS] [--rows FILE]
    python benchmarks/torture.py --device cuda --faults 30 --minutes 8
    python benchmarks/torture.py --sum FILE...

Unlike the soak's cases, which fail by a plan, runs are struck from outside at a moment that is
drawn: while one starts, or so many milliseconds after its n-th record.  A fault's kind and moment
come from the seed and its number.  The run that follows goes on with what is left, in the same
folder, until 25 faults are through; then a run without a fault takes the rest.  ``--device cpu``
and ``cuda`` have torch measure small products; without it devices and their work are the soak's
stand-ins.

Prints a row for each fault and a table by kind.  Ends with status 1 if a complete line of the
history was lost, if a process, a temporary file or a lock was left, if a file changed that is
nobody else's, if a run hung, or if its status was another than the fault's.  As root, full disks
are file systems of their own (in a mount namespace), and another user attacks the run;
``--protected 0`` and ``1`` set the kernel's fs.protected_* meanwhile and put them back.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import soak
from torture_faults import ALL, JUDGED, OTHER, PASSED, Kind
from torture_runs import Outcome, Place, RealPlace, Scene

from bench_lib.model import Status
from bench_lib.report.tables import table
from bench_lib.storage import history

A_FOLDER = 25
"""Faults whose runs share a folder."""
NAMESPACES = (
    ("unshare", "--mount"),
    ("unshare", "--user", "--map-root-user", "--mount"),
)
PROTECTED = Path("/proc/sys/fs")
PROTECTIONS = ("symlinks", "hardlinks", "fifos", "regular")


def tried(place: Place, kind: str, seed: int, number: int) -> Outcome:
    """Strike one run, and look at what is left of it."""
    draw = random.Random(f"{seed} {number}")
    outcome = Outcome(seed, number, kind, after=draw.choice((0, 1, 1, 2, 3)))
    scene = Scene(place, draw, outcome)
    files = set(place.history.glob("*.jsonl"))
    place.give()
    place.extra = {}
    began = time.monotonic()
    with scene.undo:
        ALL[kind].strike(scene)
        scene.end()
        outcome.seconds = time.monotonic() - began
    place.extra = {}
    kept = place.lines()
    outcome.lost = sum(max(0, n - kept[line]) for line, n in scene.before.items())
    outcome.left = list(_left(place, ALL[kind]))
    outcome.wrong += wrong(scene, ALL[kind], set(place.history.glob("*.jsonl")) - files)
    place.sessions.append(" ".join(map(str, outcome.status)))
    return outcome


def _left(place: Place, kind: Kind) -> Iterator[str]:
    for path in place.temporary.iterdir():
        if kind.leaves and path.name.startswith(kind.leaves):
            shutil.rmtree(path)
    yield from soak.left_behind(place)
    for path in place.temporary.glob("bench-lib-*"):  # told once, not by every run that follows
        shutil.rmtree(path, ignore_errors=True)


def wrong(scene: Scene, kind: Kind, files: set[Path]) -> Iterator[str]:
    """Hold statuses against what was struck and what the new files tell."""
    outcome, place = scene.outcome, scene.place
    allowed = kind.statuses if outcome.struck else PASSED
    yield from (f"status {s}" for s in outcome.status if s not in allowed)
    if outcome.status == [0] and (due := place.due()):
        yield f"status 0, and {len(due)} cases are in no run"
    spoilt, ended = 0, set(outcome.status)
    for path in sorted(files):
        if not path.exists():
            continue
        run = history.read(path)
        yield from (f"{path.name}: {p}" for p in run.problems[run.ended is None :])
        bad = [record for record in run.records.values() if record.status is Status.ERROR]
        spoilt += len(bad)
        if run.exit_status == 0 and bad:
            yield f"{path.name} says 0, and {bad[0].case.id} is ERROR"
        said = run.exit_status
        # What pytest calls 2 is 130 of any program, and -2 of one that the signal itself ended.
        if said is not None and not {said % 128, said, 128 - said} & ended:
            yield f"{path.name} says {said}"
    if spoilt > kind.spoils:
        yield f"{spoilt} cases are ERROR"
    # Ctrl-C before pytest is there is Python's own affair.
    is_mute = kind.is_mute and -signal.SIGINT not in outcome.status
    for log in sorted(place.folder.glob(f"run-{outcome.number}-*.log")):
        text = log.read_text(errors="replace")
        if is_mute and ("Traceback" in text or "INTERNALERROR" in text):
            yield f"{log.name}: {text.strip().splitlines()[-1][:200]}"


def finished(place: Place) -> Iterator[str]:
    """Measure what is left without a fault, and hold all runs against what was given."""
    place.give(0)
    if (place.state / "left").read_text() and place.start("rest").wait() not in JUDGED:
        yield "the run that takes the rest fails"
    runs = place.runs()
    for case in place.cases[: place.given]:
        told = sum(case.id in run.records for run in runs)
        if told != 1:
            yield f"{case.id} is in {told} runs"
    yield from soak.unreadable(place)


def permitted() -> set[str]:
    """Return which of ``disk`` and ``user`` can be had here."""
    found = set()
    with tempfile.TemporaryDirectory() as folder:
        words = ["mount", "-t", "tmpfs", "none", folder]
        if subprocess.run(words, capture_output=True, check=False).returncode == 0:
            subprocess.run(["umount", folder], check=True)
            found.add("disk")
    other = [sys.executable, "-IS", "-c", f"import os; os.setgid({OTHER}); os.setuid({OTHER})"]
    if subprocess.run(other, capture_output=True, check=False).returncode == 0:
        found |= {"user"} if shutil.which("setpriv") else set()
    return found


@contextlib.contextmanager
def protections(value: int | None) -> Iterator[None]:
    """Set what the kernel forbids in shared folders, and put it back."""
    paths = [PROTECTED / f"protected_{name}" for name in PROTECTIONS]
    before = {path: path.read_text() for path in paths if value is not None}
    try:
        for path in before:
            path.write_text(f"{value}")
        yield
    finally:
        for path, was in before.items():
            path.write_text(was)


FAULTS = ("fault", "kind", "struck at", "records before", "lost", "left behind", "status", "s")
BY_KIND = ("kind", "faults", "records before", "lost", "left behind", "statuses", "s", "wrong")


def by_kind(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Return a row for each kind, and one for all."""
    rows = []
    names = list(
        dict.fromkeys(o.kind for o in sorted(outcomes, key=lambda o: [*ALL].index(o.kind)))
    )
    for name in [*names, "all"]:
        own = [o for o in outcomes if name in (o.kind, "all")]
        statuses = Counter(str(s) for o in own for s in o.status)
        told = ", ".join(f"{s} ({n})" for s, n in statuses.most_common())
        seconds = [o.seconds for o in own]
        rows.append(
            (
                *(name, str(len(own)), str(sum(o.records for o in own))),
                *(str(sum(o.lost for o in own)), str(sum(len(o.left) for o in own)), told),
                f"{statistics.median(seconds):.1f} to {max(seconds):.1f}",
                str(sum(not o.is_well for o in own)),
            )
        )
    return rows


def tortured(
    kinds: Sequence[str],
    folder: Path,
    seed: int,
    numbers: Sequence[int],
    *,
    device: str | None = None,
    until_s: float = math.inf,
) -> Iterator[Outcome]:
    """Strike runs that share a folder, and finish what they leave.

    None is struck past ``until_s`` on the monotonic clock.
    """
    faults = len(numbers)
    place = Place(folder, faults) if device is None else RealPlace(folder, faults, device)
    outcome = None
    for number in numbers:
        if time.monotonic() < until_s:
            outcome = tried(place, kinds[number % len(kinds)], seed, number)
            yield outcome
    if outcome and (problems := list(finished(place))):
        yield Outcome(seed, outcome.number, outcome.kind, 0, wrong=problems)


def main() -> int:
    """Strike, print what became of it, and return 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: stand-ins")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no fault after so long"
    )
    parser.add_argument("--kind", default="", help="only kinds with these words")
    parser.add_argument("--protected", type=int, choices=[0, 1], help="fs.protected_* (root)")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="append outcomes as JSON")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave everything there")
    parser.add_argument("--sum", type=Path, nargs="+", metavar="FILE", help="tell of rows alone")
    options = parser.parse_args()
    if options.sum:
        return told(rows_in(options.sum))
    _enter_namespace()
    for number in (signal.SIGINT, signal.SIGHUP):  # which runs ignore if we do, as by nohup
        signal.signal(number, signal.default_int_handler)
    here = permitted() | ({"stand-in"} if options.device is None else set())
    kinds = [n for n, kind in ALL.items() if not kind.needs or kind.needs in here]
    kinds = [name for name in kinds if options.kind in name]
    if without := [n for n in ALL if options.kind in n and n not in kinds]:
        print(f"cannot be done here: {', '.join(without)}")
    random.Random(options.seed).shuffle(kinds)
    until_s = time.monotonic() + 60 * options.minutes
    outcomes: list[Outcome] = []
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    numbers = range(options.first, options.first + options.faults)
    with protections(options.protected):
        for at in range(0, len(numbers), A_FOLDER):
            folder = Path(tempfile.mkdtemp(prefix="torture-", dir=options.keep))
            few = numbers[at : at + A_FOLDER]
            asked = {"device": options.device, "until_s": until_s}
            for outcome in tortured(kinds, folder, options.seed, few, **asked):
                outcomes.append(outcome)
                _tell(outcome, options.rows)
            if options.keep is None:
                shutil.rmtree(folder)
    return told(outcomes)


def _tell(outcome: Outcome, rows: Path | None) -> None:
    print("  ".join(outcome.cells()), flush=True)
    for each in (*outcome.left, *outcome.wrong):
        print(f"    {each}", flush=True)
    if rows is not None:
        with rows.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")


def rows_in(files: Sequence[Path]) -> list[Outcome]:
    """Read the outcomes that ``--rows`` kept."""
    lines = [line for path in files for line in path.read_text().splitlines()]
    return [Outcome(**json.loads(line)) for line in lines]


def told(outcomes: Sequence[Outcome]) -> int:
    """Print the table by kind, and whether all is well; returns the exit status."""
    print("\n".join(table(BY_KIND, by_kind(outcomes), 200)))
    found = sum(not outcome.is_well for outcome in outcomes)
    print(f"{'FAIL' if found else 'PASS'}: {len(outcomes)} faults, {found} with findings")
    return min(found, 1)


def _enter_namespace() -> None:
    """Have mounts of our own, which end with us, where that is permitted."""
    if "TORTURE_NAMESPACE" in os.environ:
        return
    for words in NAMESPACES:
        with contextlib.suppress(OSError):
            if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
                os.environ["TORTURE_NAMESPACE"] = "1"
                os.execvp(words[0], [*words, sys.executable, *sys.argv])


if __name__ == "__main__":
    sys.exit(main())
