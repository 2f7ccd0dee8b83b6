"""Two thousand cases whose workers fail in every way, at random; is anything lost or left behind?

    python benchmarks/soak.py [--cases 2000] [--seed 1] [--way NAME] [--keep FOLDER]

Everything is the project's own but the devices and what runs on them (`soak_worker`): the plugin,
the runner, zygotes and their contexts as processes, ranks under a launcher, telemetry, locks,
history, baselines.  ``alone`` is one session over all cases.  In ``stopped`` pytest is killed once
and interrupted once, the disk is full once and workers cannot be started any more once, each in
the middle of a case; SIGTERM and SIGHUP end it once each.  The next session goes on with what is
left.  ``together`` are two runs at once, which want the same devices.  ``xdist`` has two workers,
whose controller is interrupted.  Prints a line for each way and ends with status 1 where anything
was found.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_lib.engine.device import MOST_LOST
from bench_lib.model import Accepted, Baseline, Device, Environment, Hardware, ProcessSummary
from bench_lib.report.tables import table
from bench_lib.storage import baselines, history

HERE = Path(__file__).resolve().parent
OK, ERROR = {"OK"}, {"ERROR"}
KINDS: dict[str, tuple[float, set[str]]] = {
    "well": (50, OK),
    "new": (3, {"NO_BASELINE"}),
    "slow": (1.5, {"REGRESSED"}),
    "fast": (1, {"IMPROVED"}),
    "slow once": (1, {"OK", "SUSPECT"}),
    "slow then dead": (0.5, ERROR),
    "noisy": (1, {"REGRESSED"}),
    "waits for host": (2, {"NOISY", "SUSPECT"}),
    "gives way": (4, OK),
    "skip": (5, {"SKIPPED"}),
    "talks": (2, OK),
    "raises": (4, ERROR),
    "out of memory": (4, ERROR),
    "aborts": (2, ERROR),
    "crashes": (2, ERROR),
    "killed": (2, ERROR),
    "leaves": (2, ERROR),
    "leaves others": (1, ERROR),
    "hangs": (0.5, ERROR),
    "hangs up": (0.5, ERROR),
    "half an answer": (2, ERROR),
    "garbage": (2, ERROR),
    "no object": (1, ERROR),
    "no answer": (1, ERROR),
    "no times": (1, ERROR),
    "kills zygote": (1, ERROR),
    "loses device": (1, ERROR),
    "chokes zygote": (0.5, ERROR),
    "garbles greeting": (0.5, ERROR),
    "is probed": (1, ERROR),
}
"""What cases do, how often, as weights, and the statuses that they may have in the end."""
RANKS: dict[str, set[str]] = {
    "ranks well": OK,
    "rank dies": ERROR,
    "rank starves": ERROR,
    "rank hangs": ERROR,
}
RANKS_SHARE = 0.01
LEAST = 60
"""Cases of a run beside another: every kind once."""
HELD_BACK = 2
"""Cases during which the device is: they take long to measure, since telemetry has to see it."""
STOPS: dict[str, set[str]] = {
    "interrupts": OK,
    "kills controller": OK,
    "terminates": OK,
    "closes terminal": OK,
    "fills disk": OK,
    "breaks workers": ERROR,
}
"""What ends a session; all but the last are measured by the next one."""
AT_FIRST = {
    "slow": {"SUSPECT"},
    "slow then dead": {"SUSPECT"},
    "slow once": {"SUSPECT"},
    "noisy": {"SUSPECT"},
    "fast": OK,
}
"""What is said of them where a session ended before it could look again."""
LIMIT_S = {"hangs": 0.15, "hangs up": 60.0, "rank hangs": 2.0}
"""Time limits of those that need one."""
MARK = "SOAK_MARK"
"""In the environment of everything that a soak starts."""
MOST_SESSIONS = 12
GONE_S = 20.0
"""So long what a killed session left may take to notice."""
CLOSED_S = 1.0
"""A process that is gone has closed its files after so long."""
MOST_BYTES_A_CASE = 20 * 1024
"""Records and reports are kept until the suite is judged; beyond that memory is flat."""

CASE = """
[[smoke.factory]]
id = "{id}"
target = "soak:step"
params = {{ does = "{does}" }}
time_limit_s = {limit_s}
"""
TESTS = """
import json
import pytest
from pathlib import Path
from bench_lib.model import Case, Launch

RANKS = [
    Case(id_, "soak:step", {"does": does}, launch=Launch(ranks=2), time_limit_s=limit_s)
    for id_, does, limit_s in json.loads(Path(__file__).with_name("ranks.json").read_text())
]


@pytest.mark.perf_cases("factory")
def test_step(case, perf):
    perf.measure(case)


@pytest.mark.parametrize("case", RANKS, ids=lambda case: case.id)
def test_ranks(case, perf):
    perf.measure(case)
"""


@dataclass(frozen=True)
class Planned:
    """One case of a soak."""

    id: str
    does: str

    def may_be(self, status: str | None, *, finished: bool) -> bool:
        """Whether a status is as planned, in a session that came to its end or did not."""
        kinds = {does: statuses for does, (_, statuses) in KINDS.items()}
        planned = {**kinds, **RANKS, **STOPS, "throttled": {"INVALID"} | OK, "kills telemetry": OK}
        if not finished and (status is None or status in AT_FIRST.get(self.does, set())):
            return True
        return status in planned[self.does]

    @property
    def is_of_ranks(self) -> bool:
        """Whether a launcher starts it."""
        return self.does in RANKS


def plan(cases: int, seed: int, *, stops: Sequence[str] = ()) -> list[Planned]:
    """Draw what each case does; every kind is there at least once, and each stop once."""
    draw = random.Random(seed)
    more = dict.fromkeys(("ranks well", "rank dies", "rank starves"), 1.0)
    of_ranks = [*RANKS, *draws_of(draw, more, int(cases * RANKS_SHARE) - len(RANKS))]
    alone = [*KINDS, "kills telemetry", *stops]
    weights = {does: weight for does, (weight, _) in KINDS.items()}
    alone += draws_of(draw, weights, cases - len(alone) - len(of_ranks) - HELD_BACK)
    draw.shuffle(alone)
    # Nobody sees the device held back when what watches it has ended.
    alone = ["throttled"] * HELD_BACK + alone
    return [
        Planned(f"case-{number:04d}-{does.replace(' ', '-')}", does)
        for number, does in enumerate([*alone, *of_ranks])
    ]


def draws_of(draw: random.Random, weights: Mapping[str, float], count: int) -> list[str]:
    """Draw so many by their weights; none where there are none to draw."""
    return draw.choices(list(weights), list(weights.values()), k=max(0, count))


def module_path(*folders: Path) -> str:
    """Return a PYTHONPATH of folders before those that are there: packages may come by it."""
    there = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*map(str, folders), *([there] if there else [])])


class Soak:
    """One folder with a suite of planned cases, and the sessions that measure it."""

    def __init__(self, folder: Path, cases: Sequence[Planned], *options: str) -> None:
        """Lay the suite out in an empty folder; ``options`` are pytest's."""
        self.folder = folder
        self.cases = list(cases)
        self.state = folder / "state"
        self.history = folder / "history"
        self.temporary = folder / "tmp"
        self.locks = folder / "locks"
        self.options = ["-p", "soak_session", "--perf-launcher", "mpirun", *options]
        self.of_several = "-n" in options
        """Whether pytest has workers: they measure on for a moment when their controller stops."""
        self._mark = f"{MARK}={folder}"
        self.sessions: list[str] = []
        """How each ended."""
        self.faults: list[tuple[str, ...]] = []
        """A row of FAULTS for each session."""
        self.others: list[str] = []
        """What was found in a run beside this one."""
        self.took_s = 0.0
        self.cpu_s = 0.0
        """Of all processes that somebody waited for."""
        folder.mkdir(exist_ok=True)
        for each in ("state", "tmp", "locks", "perf_tests", "bin"):
            (folder / each).mkdir()
        self._write_programs()
        self._write_suite()
        self._write_baselines()

    def _write_programs(self) -> None:
        for name in ("worker", "mpirun"):
            program = self.folder / "bin" / name
            program.write_text(
                f'#!/bin/sh\nexec {sys.executable} -S -E {HERE / "soak_worker.py"} "$@"\n'
            )
            program.chmod(0o755)

    def _write_suite(self) -> None:
        ini = "[pytest]\nperf_paths = perf_tests\nfilterwarnings = error\n"
        (self.folder / "pytest.ini").write_text(ini)
        tables = [
            CASE.format(id=case.id, does=case.does, limit_s=LIMIT_S.get(case.does, 60.0))
            for case in self.cases
            if not case.is_of_ranks
        ]
        suite = self.folder / "perf_tests"
        (suite / "matrix.toml").write_text("".join(tables))
        ranks = [(c.id, c.does, LIMIT_S.get(c.does, 60.0)) for c in self.cases if c.is_of_ranks]
        (suite / "ranks.json").write_text(json.dumps(ranks))
        (suite / "test_soak.py").write_text(TESTS)

    def _write_baselines(self) -> None:
        """Accept five processes of the usual time for all cases but the new ones."""
        accepted = Accepted("0a0a0a0a", "as planned", "2026-01-01T00:00:00Z")
        changes = []
        for case in self.cases:
            if case.does == "new":
                continue
            processes = [
                ProcessSummary(
                    {"latency": 0.01 * (1 + 0.0005 * (i - 2)), "stability": 0.01},
                    *(20, "e0e0e0e0", "2026-01-01"),
                )
                for i in range(5)
            ]
            launcher = "mpirun" if case.is_of_ranks else "none"
            conditions = {"ranks": 2 if case.is_of_ranks else 1, "launcher": launcher}
            new = Baseline(case.id, processes, accepted, conditions=conditions)
            changes.append(baselines.BaselineChange(case.id, None, new))
        file = baselines.load(self.folder / "baselines", "mi300x")
        known = {"e0e0e0e0": Environment("3.11.7", "node-1", torch="2.9.0")}
        baselines.write(file, changes, devices()[0], known)

    def run(self) -> None:
        """Measure until no case is left; each session goes on where the last one ended."""
        begin, before = time.monotonic(), _cpu_s()
        while left := self.left():
            assert len(self.sessions) < MOST_SESSIONS, self.sessions
            (self.state / "left").write_text("\n".join(left))
            records, began = len(self.cases) - len(left), time.monotonic()
            self.sessions.append(self._session())
            found = [*lost(self, so_far=True), *left_behind(self)]
            took = f"{time.monotonic() - began:.1f}"
            now = len(self.cases) - len(self.left())
            row = (len(self.sessions), self.sessions[-1], records, now, len(found), took)
            self.faults.append(tuple(map(str, row)))
        self.took_s = time.monotonic() - begin
        self.cpu_s = _cpu_s() - before

    def left(self) -> list[str]:
        """Return the cases that are in no run's history."""
        told = {id_ for run in self.runs() for id_ in run.records}
        return [case.id for case in self.cases if case.id not in told]

    def runs(self) -> list[history.Run]:
        """Read what all sessions have left."""
        return [history.read(path) for path in history.files(self.history)]

    def _session(self) -> str:
        status = self.start().wait()
        self.await_end()
        return f"{status}"

    def start(self, name: str = "session", before: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start one session over the cases in ``left``; ``before`` are words before Python's."""
        words = [
            *before,
            *(sys.executable, "-m", "pytest", "perf_tests", "-q", "--no-header", "--tb=no"),
            *("-p", "bench_lib.plugin", "-p", "no:cacheprovider", "--perf-tier", "smoke"),
            *("--perf-cool", "0", *self.options),
        ]
        (self.state / "broken").unlink(missing_ok=True)
        with self.log(name).open("wb") as log:
            return subprocess.Popen(
                words,
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self, name: str = "session") -> Path:
        """Return where the session that began last prints, or will."""
        return self.folder / f"{name}-{len(self.sessions)}.log"

    def environment(self) -> dict[str, str]:
        """Return what sessions run under, and commands that read what they left."""
        kept = {k: v for k, v in os.environ.items() if not k.endswith("_VISIBLE_DEVICES")}
        seen = [
            asdict(Device("cuda", d.name, d.arch, d.compute_units, d.memory_bytes, d.uuid, d.bdf))
            for d in devices()
        ]
        return {
            **kept,
            MARK: str(self.folder),
            "SOAK_STATE": str(self.state),
            "SOAK_DEVICES": json.dumps(seen),
            "TMPDIR": str(self.temporary),
            "BENCH_LIB_LOCKS": str(self.locks),
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": module_path(HERE, HERE.parent),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "BENCH_LIB_PRELOAD": "no",
        }

    def await_end(self) -> None:
        """Wait for what notices by itself that its session is gone."""
        deadline = time.monotonic() + GONE_S
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)

    def processes(self) -> list[str]:
        """Return what runs and was started here, of any depth and whoever its parent is."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self._mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found.append(f"{entry.name} {words}")
        return found

    def readings(self) -> Iterator[dict[str, Any]]:
        """Return what sessions' processes held, in order."""
        for path in sorted(self.state.glob("readings-*.jsonl")):
            yield from map(json.loads, path.read_text().splitlines())


def devices() -> list[Hardware]:
    """Return two equal GPUs that nobody has."""
    return [
        Hardware(
            vendor="amd",
            name="AMD Instinct MI300X",
            key="mi300x",
            index=i,
            arch="gfx942",
            bdf=f"0000:{i + 1:02x}:00.0",
            uuid=f"GPU-{i + 1:016x}",
            compute_units=304,
            memory_bytes=192 * 2**30,
        )
        for i in range(2)
    ]


def _cpu_s() -> float:
    used = os.times()
    return used.children_user + used.children_system


# --- what is held against the plan ----------------------------------------------------------


def findings(soak: Soak) -> list[str]:
    """Say what was lost or left behind, and what did not come out as planned; empty is well."""
    return [*lost(soak), *left_behind(soak), *unreadable(soak), *soak.others]


def lost(soak: Soak, *, so_far: bool = False) -> Iterator[str]:
    """Hold the history against the plan and against the orders that workers were given.

    ``so_far`` is between two sessions: cases that no run has are the next one's.
    """
    runs = soak.runs()
    orders = Counter((soak.state / "orders").read_text().splitlines())
    for run in runs:
        yield from (f"{run.path.name}: {problem}" for problem in run.problems[run.ended is None :])
    unserved = 0
    for case in soak.cases:
        told = [run for run in runs if case.id in run.records]
        if so_far and not told:
            continue
        if len(told) != 1:
            yield f"{case.id} is in {len(told)} runs"
            continue
        record = told[0].records[case.id]
        faults = [a.fault for a in record.attempts if a.fault is not None]
        if any(fault.kind == "launch" for fault in faults):
            unserved += 1
            continue
        status = None if record.status is None else record.status.value
        if not case.may_be(status, finished=told[0].finished):
            yield f"{case.id} is {status}: {[f'{f.kind}: {f.message}' for f in faults]}"
        if case.does == "throttled" and not any(a.invalid for a in record.attempts):
            yield f"{case.id} was never seen to be"
        in_vain = orders[case.id] - len(record.attempts)
        if in_vain < 0 or (in_vain > (case.does in STOPS) and not soak.of_several):
            yield f"{case.id}: {orders[case.id]} orders, {len(record.attempts)} attempts"
    # Where workers are broken for good the run goes on for some cases, and then ends.
    planned = MOST_LOST * sum(case.does == "breaks workers" for case in soak.cases)
    if unserved != planned and not so_far:
        yield f"{unserved} cases had no worker, and {planned} were to have none"


def left_behind(soak: Soak) -> Iterator[str]:
    """Look for processes, temporary files, locks, open files, threads, and memory."""
    yield from (f"still runs: {each}" for each in soak.processes())
    for path in sorted(soak.temporary.iterdir()):
        if not path.name.startswith("pytest-of-"):
            yield f"temporary: {path.name} {[p.name for p in path.iterdir()]}"
    locks = sorted(soak.locks.glob("*.lock"))
    yield from (f"locked: {path.name}" for path in locks if _is_held(path))
    for reading in soak.readings():
        if reading["kind"] == "end":
            yield from (f"left open: {each}" for each in reading["left_open"])
            yield from (f"left running: thread {each}" for each in reading["left_running"])
    if (slope := growth(soak)) > MOST_BYTES_A_CASE:
        yield f"memory grows by {slope / 1024:.1f} KiB a case"


def _is_held(path: Path) -> bool:
    """Whether somebody keeps a lock; a process that ends closes its files last."""
    deadline = time.monotonic() + CLOSED_S
    with path.open() as file:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
            if time.monotonic() > deadline:
                return True
            time.sleep(0.01)


def growth(soak: Soak) -> float:
    """Return by how many bytes a case the longest session's memory grew, past its first cases."""
    longest: list[dict[str, Any]] = []
    for pid in {reading["pid"] for reading in soak.readings()}:
        own = [r for r in soak.readings() if r["pid"] == pid and r["kind"] == "cases"]
        longest = max(longest, own, key=len)
    if len(longest) < 2:
        return 0.0
    first, last = longest[0], longest[-1]
    return (last["rss"] - first["rss"]) / (last["cases"] - first["cases"])


def unreadable(soak: Soak) -> Iterator[str]:
    """Have one report tell of all runs."""
    runs = soak.runs()
    words = [sys.executable, "-m", "bench_lib.cli", "report", "--json"]
    words += ["--history", str(soak.history), "--baselines", str(soak.folder / "baselines")]
    done = subprocess.run(
        [*words, *(word for run in runs for word in ("--run", run.run_id))],
        capture_output=True,
        text=True,
        cwd=soak.folder,
        env=soak.environment(),
        check=False,
    )
    told = json.loads(done.stdout)["runs"] if done.returncode == 0 else []
    if {each["run"]: each["cases"] for each in told} != {r.run_id: len(r.records) for r in runs}:
        yield f"the report tells of {told}: {done.stderr[-300:]}"


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


FAULTS = ("session", "exit status", "records before", "records after", "lost or left", "s")
WAYS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "alone": ((), ()),
    "stopped": (tuple(STOPS), ()),
    "xdist": (("interrupts",), ("-p", "xdist", "-n", "2")),
    "together": ((), ()),
}
"""By name, what stops sessions, and pytest's options."""


def soaked(way: str, folder: Path, cases: int, seed: int) -> Soak:
    """Run a soak one way, in an empty folder."""
    stops, options = WAYS[way]
    soak = Soak(folder, plan(cases, seed, stops=stops), *options)
    if way != "together":
        soak.run()
        return soak
    # Two runs want the same devices: the second one waits until the first lets go.
    other = Soak(folder / "other", plan(LEAST, seed + 1))
    other.locks = soak.locks
    with ThreadPoolExecutor(2) as both:
        for running in [both.submit(each.run) for each in (soak, other)]:
            running.result()
    soak.others = findings(other)
    return soak


def in_words(way: str, soak: Soak) -> str:
    """Return the line of figures."""
    each_ms, cpu_ms = (1000 * s / len(soak.cases) for s in (soak.took_s, soak.cpu_s))
    at = {r["cases"]: r["rss"] / 2**20 for r in soak.readings() if r["kind"] == "cases"}
    marks = sorted({100, 1000, 2000, max(at, default=0)} & set(at))
    memory = ", ".join(f"{at[n]:.1f} MiB at {n}" for n in marks)
    counts: Counter[str] = Counter()
    for run in soak.runs():
        counts.update(r.status.value if r.status else "unjudged" for r in run.records.values())
    statuses = ", ".join(f"{n} {status}" for status, n in counts.most_common())
    return (
        f"{way}: {len(soak.cases)} cases in {len(soak.sessions)} sessions (exit "
        f"{', '.join(soak.sessions)}), {soak.took_s:.1f} s, {each_ms:.1f} ms a case, "
        f"{cpu_ms:.1f} ms of a CPU; "
        f"{memory}; {growth(soak) / 1024:.1f} KiB a case; {statuses}"
    )


def main() -> int:
    """Soak each way, say what was found, and return how many ways found something."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--way", choices=WAYS, action="append", help="default: all")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave everything there")
    options = parser.parse_args()
    found = 0
    for way in options.way or WAYS:
        folder = Path(tempfile.mkdtemp(prefix=f"soak-{way}-", dir=options.keep))
        soak = soaked(way, folder, options.cases, options.seed)
        print(in_words(way, soak), flush=True)
        print("\n".join(table(FAULTS, soak.faults, 200)))
        problems = findings(soak)
        found += bool(problems)
        print("".join(f"  {problem}\n" for problem in problems) or "  nothing found\n", end="")
        if options.keep is None:
            shutil.rmtree(folder)
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
