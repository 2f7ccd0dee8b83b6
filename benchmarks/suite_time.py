"""How long do 24 eager cases take through the suite, and through one process each?

    python benchmarks/suite_time.py [--cases 24]
    python benchmarks/suite_time.py --gate [--runs 3] [--cold] [-- PYTEST OPTIONS]
    python benchmarks/suite_time.py --of RUN [--history DIR] [--ahead SECONDS]

Runs ``pytest perf_tests`` on suite_time.toml, then one_case.py once per case, then the suite
again, and prints wall times and their ratio; the aim is at most a third.  One script runs
before all, so that nobody pays for reading torch from a cold disk.  With fewer cases the
scripts' time is scaled up to 24, and the output says so.

With ``--gate`` it runs the gate of ``perf_tests`` so often instead, the first time from empty
caches with ``--cold``, and prints for each run how long it took, what that was spent on by phase
and by case, and how long one to eight devices would take with the cases balanced.  With ``--of`` it
prints the same of a run that a history has.  ``--ahead`` is how much of an import passes while
pytest-xdist starts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench_lib.engine import balance
from bench_lib.engine.processes import FORK
from bench_lib.model import Record
from bench_lib.plugin.devices import device_of
from bench_lib.report import spent, tables
from bench_lib.storage import history

HERE = Path(__file__).resolve().parent
NETWORKS = ("resnet18", "resnet34", "resnet50", "mobilenet_v2", "densenet121", "vgg16")


def suite() -> float:
    """Wall seconds of one run of the suite."""
    with tempfile.TemporaryDirectory() as history:
        begin = time.monotonic()
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "perf_tests", "--perf-tier", "gate"),
                *("--perf-matrix", str(HERE / "suite_time.toml"), "--perf-history", history),
                *("-q", "-p", "no:cacheprovider"),
            ],
            cwd=HERE.parent,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return time.monotonic() - begin


def script(network: str, *flags: str) -> float:
    """Wall seconds of one process for one case."""
    begin = time.monotonic()
    subprocess.run(
        [sys.executable, str(HERE / "one_case.py"), "--network", network, *flags],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.monotonic() - begin


# ---- what a gate is spent on ------------------------------------------------------------


DEVICES = (1, 2, 4, 8)
CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "MIOPEN_USER_DB_PATH": "miopen",
    "MIOPEN_CUSTOM_CACHE_DIR": "miopen-cache",
    "CUDA_CACHE_PATH": "cuda",
    "XDG_CACHE_HOME": "cache",
}
"""Of compilers, vendors and our own, in a folder that is empty at first."""


def gate(runs: int, options: Sequence[str], *, cold: bool) -> None:
    """Run the gate and print what each run was spent on."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        own = {name: str(folder / at) for name, at in CACHES.items()} if cold else {}
        for number in range(runs):
            kept = folder / f"history-{number}"
            begin = time.monotonic()
            status = subprocess.run(
                [
                    *(sys.executable, "-m", "pytest", "perf_tests", "--perf-tier", "gate"),
                    *("--perf-history", str(kept), "-q", "-p", "no:cacheprovider", *options),
                ],
                cwd=HERE.parent,
                check=False,
                stdout=sys.stderr,
                env={**os.environ, **own},
            ).returncode
            wall_s = time.monotonic() - begin
            caches = "empty caches" if cold and number == 0 else "warm caches"
            print(f"\n== run {number + 1}, {caches}: {wall_s:.1f} s, exit status {status}")
            for path in history.files(kept):
                show(history.read(path))
            sys.stdout.flush()


def show(run: history.Run, ahead_s: float = 0.0) -> None:
    """Print what a run was spent on, and how long several devices would take."""
    records = list(run.records.values())
    found = spent.spent(records)
    print("\n".join(tables.table(spent.HEADINGS, spent.rows(found))), end="\n\n")
    print("\n".join(tables.table(spent.CASE_HEADINGS, spent.case_rows(records))), end="\n\n")
    rows = [
        (str(devices), f"{hashed:.1f}", f"{even:.1f}", f"{alone / even:.2f}")
        for devices in DEVICES
        for alone, hashed, even in (on_devices(records, devices, ahead_s),)
    ]
    headings = ("devices", "by hash, s", "balanced, s", "times as fast")
    print("\n".join(tables.table(headings, rows)))


def on_devices(
    records: Sequence[Record], devices: int, ahead_s: float = 0.0
) -> tuple[float, float, float]:
    """Return the seconds that a run's attempts take on one device, and on several.

    Those are by hash alone, and balanced.  Each device starts workers and measures its cases of one
    rank; a case that the compiler drew anew is replayed at once.  When all are done, the other
    second looks follow process by process, each on its case's device.  Cases of several ranks take
    all devices, one after the other.  Several devices' workers have been starting for ``ahead_s``
    when the first case begins.
    """
    first: dict[str, float] = {}
    again: dict[int, list[tuple[str, float]]] = {}
    start_s = shared_s = 0.0
    for record in records:
        replay = next((attempt for attempt in record.attempts if attempt.confirms), None)
        for attempt in record.attempts:
            taken = sum(attempt.phases_s.values())
            if record.case.launch.ranks > 1:
                shared_s += taken
            elif attempt.confirms and not (attempt is replay and attempt.replays):
                again.setdefault(attempt.process, []).append((record.case.id, taken))
            else:
                fork_s = 0.0 if attempt.confirms else attempt.phases_s.get(FORK, 0.0)
                start_s += fork_s
                first[record.case.id] = first.get(record.case.id, 0.0) + taken - fork_s

    def whole(places: Mapping[str, int], begun_s: float = 0.0) -> float:
        """Return the seconds of a run with its cases in these places."""
        rounds = [first.items(), *(again[process] for process in sorted(again))]
        return (
            shared_s
            + max(0.0, start_s - begun_s)
            + sum(_longest(tried, places) for tried in rounds)
        )

    homes = {name: device_of(f"[{name}]", devices) for name in first}
    even = balance.balanced(homes, devices, first.get)
    begun_s = ahead_s if devices > 1 else 0.0
    return whole(dict.fromkeys(first, 0)), whole(homes, begun_s), whole(even, begun_s)


def _longest(tried: Iterable[tuple[str, float]], places: Mapping[str, int]) -> float:
    """Return the seconds of the device that is at it longest."""
    loads: dict[int, float] = {}
    for name, taken in tried:
        loads[places[name]] = loads.get(places[name], 0.0) + taken
    return max(loads.values(), default=0.0)


def main() -> None:
    """Run both and print one JSON object; or run the gate, and print tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=24)
    parser.add_argument("--gate", action="store_true", help="say what the gate is spent on")
    parser.add_argument("--runs", type=int, default=3, help="of --gate")
    parser.add_argument("--cold", action="store_true", help="begin --gate with empty caches")
    parser.add_argument("--of", metavar="RUN", help="say it of a run that is there")
    parser.add_argument("--history", type=Path, default=Path("history"))
    parser.add_argument("--ahead", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("options", nargs="*", help="pytest's, of --gate")
    arguments = parser.parse_args()
    if arguments.of:
        show(history.read(history.find(arguments.history, arguments.of)), arguments.ahead)
        return
    if arguments.gate:
        gate(arguments.runs, arguments.options, cold=arguments.cold)
        return
    cases = list(itertools.product(NETWORKS, ((), ("--fp16",)), ((), ("--train",))))
    chosen = cases[: arguments.cases]
    script(NETWORKS[0])
    first = suite()
    scripts = [script(network, *precision, *task) for network, precision, task in chosen]
    second = suite()
    total = sum(scripts) * len(cases) / len(chosen)
    report = {
        "suite_s": [first, second],
        "scripts_s": total,
        "scripts_run": len(chosen),
        "scripts_scaled": len(chosen) < len(cases),
        "median_script_s": sorted(scripts)[len(scripts) // 2],
        "ratio": [first / total, second / total],
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
