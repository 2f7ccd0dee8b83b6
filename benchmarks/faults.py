"""Faults in whole runs of the suite: is a finished measurement lost, or is anything left behind?

    python benchmarks/faults.py [--cases 2000] [--faults 500] [--seed 1] [--kind WORDS]
    python benchmarks/faults.py --device cuda --faults 30 --minutes 8
    python benchmarks/faults.py --device cuda --ranks 2 --faults 30 --at-once 4 --json out.json

Everything is the project's own but the devices and what runs on them (`faults_worker`): the plugin,
the engine, zygotes and their children as processes, ranks under a launcher, telemetry, locks,
history, baselines.  With ``--device cpu`` or ``cuda`` torch measures small products instead, and
with ``--ranks`` each in several ranks that add them up; then ranks and launchers are struck, too.

First come sessions whose cases fail in every way, by a plan that is drawn from the seed: in one
process, and with two workers of pytest-xdist.  Then single runs are struck from outside, at a
moment that is drawn from the seed and the fault's number.  The next run goes on in the same folder
with the cases that are left.  After 25 faults a run without one takes the rest.

Each case has to be in exactly one run, with its planned status, and with as many attempts as
workers got orders.  No complete line of a history may be lost, and no process, temporary file,
lock, open file or thread may be left.  A run may neither hang nor end with a status that its fault
does not explain.  Prints a table, and what was found.  The exit status is 1 if that is anything.
A full disk is a file system of its own, which needs a mount namespace.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import math
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_lib.model import (
    Accepted,
    Baseline,
    Device,
    Environment,
    Hardware,
    ProcessSummary,
    Status,
)
from bench_lib.report.answer import Column, Table
from bench_lib.report.render import summary_lines
from bench_lib.storage import baselines, history

HERE = Path(__file__).resolve().parent
OK, ERROR = {"OK"}, {"ERROR"}
PLANNED: dict[str, tuple[float, set[str]]] = {
    "well": (50, OK),
    "slow": (1.5, {"REGRESSED"}),
    "slow once": (1, {"OK", "SUSPECT"}),
    "slow then dead": (0.5, ERROR),
    "gives way": (4, OK),
    "skip": (5, {"SKIPPED"}),
    "talks": (2, OK),
    "raises": (4, ERROR),
    "out of memory": (4, ERROR),
    "aborts": (2, ERROR),
    "killed": (2, ERROR),
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
ONCE = {"throttled": {"INVALID"} | OK, "kills telemetry": OK}
RANKS = {"ranks well": OK, "rank dies": ERROR, "rank starves": ERROR, "rank hangs": ERROR}
LIMIT_S = {"hangs": 0.15, "rank hangs": 2.0}
"""Time limits of those that need one."""
MARK = "FAULTS_MARK"
"""In the environment of everything that is started here."""
RANKS_LIMIT_S = {"cuda": 60.0, "cpu": 90.0}
"""Of a case of several ranks under torch, which import it first, on a CPU one after another.

Where four runs did so at once beside two H100s that took 25 s, and of 30 s too little was left."""
GONE_S = 20.0
"""So long what a killed session left may take to notice."""
CLOSED_S = 1.0
"""A process that is gone has closed its files after so long."""
HUNG_S = 180.0
"""A run that takes longer past its fault hangs; a child has 120 s to open its device."""
MOST_BYTES_A_CASE = 20 * 1024
"""Records and reports are kept until the suite is judged; beyond that memory is flat."""
A_FOLDER = 25
"""Faults whose runs share a folder."""

CASE = """
[[smoke.factory]]
id = "{id}"
target = "{target}"
params = {params}
time_limit_s = {limit_s}
"""
TESTS = """
import json
import pytest
from pathlib import Path
from bench_lib.model import Case, Launch, Sampling

RANKS = [
    Case(
        launch=Launch(ranks=about.pop("ranks")),
        sampling=Sampling(**about.pop("sampling", {})),
        **about,
    )
    for about in json.loads(Path(__file__).with_name("ranks.json").read_text())
]


@pytest.mark.perf_cases("factory")
def test_step(case, perf):
    perf.measure(case)


@pytest.mark.parametrize("case", RANKS, ids=lambda case: case.id)
def test_ranks(case, perf):
    perf.measure(case)
"""
PRODUCT = """
import time
from pathlib import Path

import torch

HANG = Path(__file__).parent / "state" / "hang"


def product(setting, size):
    a = torch.randn(size, size, device=setting.device)
    return lambda: a @ a


def products(setting, size):
    step = product(setting, size)

    def added_up():
        if setting.rank and HANG.exists():
            HANG.unlink()
            time.sleep(3600)
        torch.distributed.all_reduce(step())

    return added_up
"""
CONFTEST = """
from pathlib import Path

STATE = Path(__file__).parents[1] / "state"


def pytest_collection_modifyitems(items):
    left = set((STATE / "left").read_text().split())
    # Without cases of ranks their test has a parameter that is not set, and no id.
    items[:] = [i for i in items if getattr(i.callspec.params["case"], "id", None) in left]
"""


# --- a folder with a suite, and its runs -----------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """One case, and what its worker does."""

    id: str
    does: str

    def may_be(self, status: str | None) -> bool:
        """Whether a status is as planned."""
        if self.does in PLANNED:
            return status in PLANNED[self.does][1]
        return status in {**RANKS, **ONCE, "works": OK}[self.does]


def plan(cases: int, seed: int) -> list[Planned]:
    """Draw what each case does; every kind is there at least once."""
    draw = random.Random(seed)
    does = [*PLANNED, "kills telemetry"]
    weights = [weight for weight, _ in PLANNED.values()]
    does += draw.choices([*PLANNED], weights, k=max(0, cases - len(does) - len(RANKS) - 1))
    draw.shuffle(does)
    # Nobody sees the device throttled when what watches it has ended, so that comes first.
    return [
        Planned(f"case-{number:04d}-{each.replace(' ', '-')}", each)
        for number, each in enumerate(["throttled", *does, *RANKS])
    ]


class Place:
    """One folder with a suite of planned cases, and the runs that measure it."""

    def __init__(
        self,
        folder: Path,
        cases: Sequence[Planned],
        *options: str,
        device: str | None = None,
        ranks: int = 1,
    ) -> None:
        """Lay the suite out; ``options`` are pytest's, and ``device`` is one that torch opens.

        There every case is of so many ``ranks``.
        """
        self.folder = folder
        self.cases = list(cases)
        self.device = device
        self.ranks = ranks
        self.state = folder / "state"
        self.history = folder / "history"
        self.temporary = folder / "tmp"
        self.locks = folder / "locks"
        self.options = options
        self.given = 0
        """Cases that some run was given."""
        folder.mkdir(exist_ok=True)
        for each in ("state", "tmp", "locks", "perf_tests", "bin"):
            (folder / each).mkdir()
        (self.state / "orders").touch()
        self._write_suite()
        if device is None:
            self._write_programs()
            self._write_baselines()

    def _write_programs(self) -> None:
        for name in ("worker", "mpirun"):
            program = self.folder / "bin" / name
            program.write_text(
                f'#!/bin/sh\nexec {sys.executable} -S -E {HERE / "faults_worker.py"} "$@"\n'
            )
            program.chmod(0o755)

    def _write_suite(self) -> None:
        ini = "[pytest]\nperf_paths = perf_tests\nfilterwarnings = error\n"
        (self.folder / "pytest.ini").write_text(ini)
        suite = self.folder / "perf_tests"
        of_ranks = [case for case in self.cases if case.does in RANKS or self.ranks > 1]
        alone = [case for case in self.cases if case not in of_ranks]
        (suite / "matrix.toml").write_text("".join(map(self._table, alone)))
        (suite / "ranks.json").write_text(json.dumps([*map(self._of_ranks, of_ranks)]))
        (suite / "test_faults.py").write_text(TESTS)
        (suite / "conftest.py").write_text(CONFTEST)
        (self.folder / "faults_product.py").write_text(PRODUCT)

    def _table(self, case: Planned) -> str:
        limit_s = LIMIT_S.get(case.does, 15.0 if case.does == "works" else 60.0)
        if self.device is None:
            params = f'{{ does = "{case.does}" }}'
            return CASE.format(id=case.id, target="faults:step", params=params, limit_s=limit_s)
        made = CASE.format(
            id=case.id, target="faults_product:product", params="{ size = 256 }", limit_s=limit_s
        )
        return made + "sampling = { warmup_s = 0.2, warmup_max_s = 0.5, measure_s = 0.2 }\n"

    def _of_ranks(self, case: Planned) -> dict[str, Any]:
        about: dict[str, Any] = {"id": case.id, "time_limit_s": LIMIT_S.get(case.does, 60.0)}
        if self.device is None:
            return {**about, "workload": "faults:step", "params": {"does": case.does}, "ranks": 2}
        how = {"warmup_s": 0.2, "warmup_max_s": 0.5, "measure_s": 0.2}
        what = {"workload": "faults_product:products", "params": {"size": 256}, "sampling": how}
        return {**about, **what, "time_limit_s": RANKS_LIMIT_S[self.device], "ranks": self.ranks}

    def _write_baselines(self) -> None:
        """Accept five processes of the usual time for all cases."""
        accepted = Accepted("0a0a0a0a", "as planned", "2026-01-01T00:00:00Z")
        changes = []
        for case in self.cases:
            processes = [
                ProcessSummary(
                    {"latency": 0.01 * (1 + 0.0005 * (i - 2)), "stability": 0.01},
                    *(20, "e0e0e0e0", "2026-01-01"),
                )
                for i in range(5)
            ]
            is_alone = case.does not in RANKS
            launch = (
                {"ranks": 1, "launcher": "none"}
                if is_alone
                else {
                    "ranks": 2,
                    "launcher": "mpirun",
                }
            )
            new = Baseline(case.id, processes, accepted, conditions=launch)
            changes.append(baselines.BaselineChange(case.id, None, new))
        file = baselines.load(self.folder / "baselines", "mi300x")
        known = {"e0e0e0e0": Environment("3.11.7", "node-1", torch="2.9.0")}
        baselines.write(file, changes, devices()[0], known)

    def give(self, cases: int) -> None:
        """Have the next run measure so many new cases, and what is left of earlier ones."""
        self.given = min(len(self.cases), self.given + cases)
        (self.state / "left").write_text("\n".join(self.due()))

    def due(self) -> list[str]:
        """Return the cases that were given to a run and are in none."""
        known = {id_ for run in self.runs() for id_ in run.records}
        return [case.id for case in self.cases[: self.given] if case.id not in known]

    def runs(self) -> list[history.Run]:
        """Read what all runs have left."""
        return [history.read(path) for path in history.files(self.history)]

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Start one run over the cases in ``left``."""
        words = [
            *(sys.executable, "-m", "pytest", "perf_tests", "-q", "--no-header", "--tb=no"),
            *("-p", "bench_lib.plugin", "-p", "no:cacheprovider", "--perf-tier", "smoke"),
            *self.options,
        ]
        if self.device is None:
            words += ["-p", "faults_session", "-o", "perf_launcher=mpirun"]
        else:
            words += ["-o", "perf_kernels=none"]
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                words,
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def environment(self) -> dict[str, str]:
        """Return what runs are started with, and commands that read what they left."""
        kept = {k: v for k, v in os.environ.items() if not k.endswith("_VISIBLE_DEVICES")}
        folders = [str(self.folder), str(HERE), str(HERE.parent)]
        if there := os.environ.get("PYTHONPATH"):
            folders.append(there)  # packages may come by it
        kept |= {
            MARK: str(self.folder),
            "TMPDIR": str(self.temporary),
            "BENCH_LIB_LOCKS": str(self.locks),
            "PYTHONPATH": os.pathsep.join(folders),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        if self.device is not None:
            if self.device == "cpu":
                kept |= {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}
            # Torch makes this folder, and keeps it.
            cache = str(self.folder / "inductor")
            return kept | {"BENCH_LIB_PRELOAD": "torch", "TORCHINDUCTOR_CACHE_DIR": cache}
        seen = [
            asdict(Device("cuda", d.name, d.arch, d.compute_units, d.memory_bytes, d.uuid, d.bdf))
            for d in devices()
        ]
        return kept | {
            "FAULTS_STATE": str(self.state),
            "FAULTS_DEVICES": json.dumps(seen),
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "BENCH_LIB_PRELOAD": "no",
        }

    def await_end(self) -> None:
        """Wait for what notices by itself that its session is gone."""
        deadline = time.monotonic() + GONE_S
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)

    def processes(self) -> dict[int, str]:
        """Return what runs and was started here, of any depth and whoever its parent is."""
        found = {}
        mark = f"{MARK}={self.folder}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(entry.name)] = words
        return found

    def pids(self, role: str) -> list[int]:
        """Return the processes of a role, or all.

        There are pytest, zygote, child, telemetry; launcher, server of a rank and rank.
        """
        found = self.processes()
        if role == "all":
            return list(found)
        roles = {pid: _role(words) for pid, words in found.items()}
        zygotes = {pid for pid, each in roles.items() if each == "worker"}
        for pid in zygotes:
            roles[pid] = "child" if _parent(pid) in zygotes else "zygote"
        servers = {pid for pid, each in roles.items() if each == "server of a rank"}
        roles.update(dict.fromkeys((pid for pid in servers if _parent(pid) in servers), "rank"))
        return [pid for pid, each in roles.items() if each == role]

    def lines(self) -> Counter[bytes]:
        """Return the complete lines of all runs' files."""
        found: Counter[bytes] = Counter()
        for path in history.files(self.history):
            lines = history.content(path).splitlines(keepends=True)
            found.update(line for line in lines if line[-1:] == b"\n")
        return found

    def measured(self) -> int:
        """Return how many attempts the history holds."""
        return sum(n for line, n in self.lines().items() if b'"kind":"attempt"' in line)

    def readings(self) -> list[dict[str, Any]]:
        """Return what sessions' processes held, in order."""
        paths = sorted(self.state.glob("readings-*.jsonl"))
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


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


def _role(words: str) -> str:
    if "bench_lib.worker serve" in words:
        return "worker"
    if "telemetry" in words:
        return "telemetry"
    if "bench_lib.worker ranks" in words:
        return "launcher" if "torch.distributed" in words else "server of a rank"
    return "pytest" if "-m pytest" in words else "other"


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


# --- what is held against the plan -----------------------------------------------------------


def lost(place: Place, *, of_several: bool = False) -> Iterator[str]:
    """Hold the history against the plan and against the orders that workers were given.

    ``of_several`` is a session with workers of its own: its orders may have been given in vain.
    """
    runs = place.runs()
    orders = Counter((place.state / "orders").read_text().splitlines())
    for run in runs:
        yield from (f"{run.path.name}: {problem}" for problem in run.problems[run.ended is None :])
    for case in place.cases[: place.given]:
        told = [run.records[case.id] for run in runs if case.id in run.records]
        if len(told) != 1:
            yield f"{case.id} is in {len(told)} runs"
            continue
        (record,) = told
        status = None if record.status is None else record.status.value
        if not case.may_be(status):
            faults = [f"{a.fault.kind}: {a.fault.message}" for a in record.attempts if a.fault]
            yield f"{case.id} is {status}: {faults}"
        if case.does == "throttled" and not any(a.invalid for a in record.attempts):
            yield f"{case.id} was never seen to be"
        if case.does == "works":
            continue
        in_vain = orders[case.id] - len(record.attempts)
        if in_vain < 0 or (in_vain > 0 and not of_several):
            yield f"{case.id}: {orders[case.id]} orders, {len(record.attempts)} attempts"


def left_behind(place: Place) -> Iterator[str]:
    """Look for processes, temporary files, locks, open files, threads, and memory."""
    yield from (f"still runs: {pid} {words}" for pid, words in place.processes().items())
    for path in sorted(place.temporary.iterdir()):
        if not path.name.startswith("pytest-of-"):
            yield f"temporary: {path.name} {[p.name for p in path.iterdir()]}"
    locks = sorted(place.locks.glob("*.lock"))
    yield from (f"locked: {path.name}" for path in locks if _is_held(path))
    for reading in place.readings():
        if reading["kind"] == "end":
            yield from (f"left open: {each}" for each in reading["left_open"])
            yield from (f"left running: thread {each}" for each in reading["left_running"])
    if (slope := growth(place)) > MOST_BYTES_A_CASE:
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


def growth(place: Place) -> float:
    """Return by how many bytes a case the longest session's memory grew, past its first cases."""
    by_process: dict[int, list[dict[str, Any]]] = {}
    for reading in place.readings():
        if reading["kind"] == "cases":
            by_process.setdefault(reading["pid"], []).append(reading)
    longest = max(by_process.values(), key=len, default=[])
    if len(longest) < 2:
        return 0.0
    first, last = longest[0], longest[-1]
    return (last["rss"] - first["rss"]) / (last["cases"] - first["cases"])


def unreadable(place: Place) -> Iterator[str]:
    """Have one report show all runs."""
    runs = place.runs()
    words = [sys.executable, "-m", "bench_lib", "report", "--json"]
    words += ["--history", str(place.history), "--baselines", str(place.folder / "baselines")]
    done = subprocess.run(
        [*words, *(word for run in runs for word in ("--run", run.run_id))],
        capture_output=True,
        text=True,
        cwd=place.folder,
        env=place.environment(),
        check=False,
    )
    told = json.loads(done.stdout)["runs"] if done.returncode == 0 else []
    if {each["run"]: each["cases"] for each in told} != {r.run_id: len(r.records) for r in runs}:
        yield f"the report shows {told}: {done.stderr[-300:]}"


WAYS = {"alone": (), "xdist": ("-p", "xdist", "-n", "2")}
"""By name, pytest's options."""


def planned(way: str, folder: Path, cases: int, seed: int) -> tuple[str, list[str]]:
    """Measure cases that fail by a plan; returns a line of figures, and what was found."""
    place = Place(folder, plan(cases, seed), *WAYS[way])
    place.give(len(place.cases))
    began = time.monotonic()
    status = place.start("planned").wait()
    place.await_end()
    took_s = time.monotonic() - began
    found = [*lost(place, of_several=way == "xdist"), *left_behind(place), *unreadable(place)]
    if status != 1:
        found.append(f"status {status}")
    statuses = Counter(r.status for run in place.runs() for r in run.records.values())
    counts = ", ".join(f"{n} {status}" for status, n in statuses.most_common())
    figures = f"{took_s:.1f} s, {growth(place) / 1024:.1f} KiB a case; {counts}"
    return f"{way}: {len(place.cases)} cases in {figures}", found


# --- one run, and what strikes it ------------------------------------------------------------


@dataclass
class Outcome:
    """What became of one fault."""

    seed: int
    number: int
    kind: str
    after: int
    """Records of this run that the fault waited for; none is while it starts."""
    struck: bool = False
    """Whether what the fault strikes was there."""
    records: int = 0
    """Records in the folder's history before."""
    lost: int = 0
    left: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    status: list[int | str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_well(self) -> bool:
        """Whether all is as it should be."""
        return not (self.lost or self.left or self.wrong)


class Scene:
    """One run, and what strikes it."""

    def __init__(self, place: Place, draw: random.Random, outcome: Outcome) -> None:
        """Take a place; nothing runs yet."""
        self.place = place
        self.draw = draw
        self.outcome = outcome
        self.runs: list[subprocess.Popen[bytes]] = []
        self.before: Counter[bytes] = Counter()
        self.undo = contextlib.ExitStack()
        self._records = 0

    def start(self) -> None:
        """Start a run."""
        self._records = self._records or self.place.measured()
        self.runs.append(self.place.start(f"run-{self.outcome.number}-{len(self.runs)}"))

    def moment(self) -> bool:
        """Wait for the drawn moment; whether the run is still there."""
        wait_s = self.draw.random() * (0.1 if self.outcome.after else 1.0)
        until = self._records + self.outcome.after
        while self.place.measured() < until:
            if self.runs[0].poll() is not None:
                return False
            time.sleep(0.005)
        time.sleep(wait_s)
        return self.runs[0].poll() is None

    def someone(self, role: str) -> list[int]:
        """Wait for the moment, and until somebody of a role is there."""
        there = self.moment()
        if there and self.place.ranks > 1:
            there = self._in_a_launch("rank" if role == "rank" else "server of a rank")
        while there and not (found := self.place.pids(role)):
            there = self.runs[0].poll() is None
            time.sleep(0.005)
        self.remember(struck=there)
        return found if there else []

    def _in_a_launch(self, role: str) -> bool:
        """Wait until somebody is there, and for a moment of the time that they take."""
        while not self.place.pids(role):
            if self.runs[0].poll() is not None:
                return False
            time.sleep(0.005)
        time.sleep(self.draw.random() * LASTS_S[role])
        return self.runs[0].poll() is None

    def remember(self, *, struck: bool = True) -> None:
        """Keep what is in the history now; that must not be lost."""
        self.outcome.struck = struck
        self.before = self.place.lines()
        self.outcome.records = self.place.measured()

    def end(self) -> None:
        """Wait for all runs; one that hangs is ended, and found."""
        deadline = time.monotonic() + HUNG_S
        self.outcome.status += [self._status(run, deadline) for run in self.runs]
        self.place.await_end()

    def _status(self, run: subprocess.Popen[bytes], deadline: float) -> int | str:
        try:
            return run.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            for pid in self.place.pids("all"):
                send(pid, signal.SIGKILL)
            run.wait()
            return "hung"


Strike = Callable[[Scene], None]


def signals(role: str, *numbers: int, pause_s: float = 0.5) -> Strike:
    """Return what sends signals to all of a role."""

    def strike(scene: Scene) -> None:
        scene.start()
        pids = scene.someone(role)
        for n, number in enumerate(numbers):
            time.sleep(pause_s if n else 0)
            for pid in pids:
                send(pid, number)

    return strike


def one(role: str, *numbers: int) -> Strike:
    """Return what sends signals to one of several."""

    def strike(scene: Scene) -> None:
        scene.start()
        ranks = scene.someone(role)
        for n, number in enumerate(numbers if ranks else ()):
            time.sleep(0.5 if n else 0)
            send(ranks[scene.outcome.number % len(ranks)], number)

    return strike


def a_rank_hangs(scene: Scene) -> None:
    """Have a rank sleep while the other waits for it in a collective."""
    hang = scene.place.state / "hang"
    hang.touch()
    scene.undo.callback(hang.unlink, missing_ok=True)
    scene.start()
    scene.someone("rank")


def memory_ends(role: str) -> Strike:
    """Return what gives the processes of a role no more than a few pages beyond what they have."""

    def strike(scene: Scene) -> None:
        scene.start()
        for pid in scene.someone(role):
            with contextlib.suppress(OSError):
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
                room = scene.draw.choice((0, 64, 512, 4096)) * 1024
                most = pages * resource.getpagesize() + room
                resource.prlimit(pid, resource.RLIMIT_AS, (most, most))

    return strike


def file_limit(scene: Scene) -> None:
    """Leave room for a part of a line, by a limit of files' sizes."""
    scene.start()
    for pid in scene.someone("pytest"):
        sizes = [path.stat().st_size for path in history.files(scene.place.history)]
        most = max(sizes, default=0) + scene.draw.randrange(600)
        with contextlib.suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))


@contextlib.contextmanager
def _disk(folder: Path, size: str) -> Iterator[Callable[[int], None]]:
    """Have a file system of its own in a folder; yields what fills it but for so many bytes.

    What it holds afterwards lies in the folder.
    """
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "disk", folder], check=True)

    def fill(room: int) -> None:
        ballast = folder / "ballast"
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        os.truncate(ballast, max(0, ballast.stat().st_size - room))

    try:
        yield fill
    finally:
        (folder / "ballast").unlink(missing_ok=True)
        kept = folder.with_name(f"{folder.name}.kept")
        shutil.copytree(folder, kept, symlinks=True)
        subprocess.run(["umount", "-l", folder], check=True)
        shutil.copytree(kept, folder, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(kept)


def history_disk(scene: Scene) -> None:
    """Fill the disk that the history is on."""
    folder = scene.place.history
    folder.mkdir(exist_ok=True)
    kept = folder.with_name("history.before")
    shutil.copytree(folder, kept)
    fill = scene.undo.enter_context(_disk(folder, "4m"))
    shutil.copytree(kept, folder, dirs_exist_ok=True)
    shutil.rmtree(kept)
    scene.start()
    scene.someone("pytest")
    fill(scene.draw.choice((0, 4096)))


def temporary_disk(scene: Scene) -> None:
    """Fill the disk of the folder for temporary files."""
    fill = scene.undo.enter_context(_disk(scene.place.temporary, "1m"))
    if not scene.outcome.after:
        fill(0)
    scene.start()
    scene.someone("pytest")
    fill(0)


def hostile_samples(scene: Scene) -> None:
    """Have what watches the devices print bytes that are no samples."""
    samples = scene.place.state / "samples"
    scene.undo.callback(samples.unlink, missing_ok=True)
    scene.start()
    scene.someone("telemetry")
    samples.write_bytes(scene.draw.randbytes(scene.draw.randrange(64 * 1024)))


def two_runs(number: int) -> Strike:
    """Return what has a second run want the same devices, and sends the first one a signal."""

    def strike(scene: Scene) -> None:
        place = scene.place
        # The first one has to know its cases before the second one's are written in their place.
        scene.outcome.after = max(1, scene.outcome.after)
        scene.start()
        scene.moment()
        scene.remember(struck=scene.runs[0].poll() is None)
        of_first = place.given
        place.give(NEW)
        new = [case.id for case in place.cases[of_first : place.given]]
        (place.state / "left").write_text("\n".join(new))
        scene.start()
        time.sleep(scene.draw.random())
        scene.before = place.lines()
        send(scene.runs[0].pid, number)

    return strike


NEW = 5
"""Cases for each fault."""
LASTS_S = {"server of a rank": 6.0, "rank": 2.0}
"""Servers import torch; ranks open their devices, meet, and measure."""
KILLED, PASSED, JUDGED, REFUSED = {-signal.SIGKILL}, {0}, {0, 1}, {4}
MANY = 1000
"""Every case may be ERROR."""


@dataclass(frozen=True)
class Kind:
    """A fault, and what it may do to a run."""

    strike: Strike
    statuses: set[int]
    disturbs: int = 0
    """So many cases may be ERROR."""
    needs: str = ""
    """``disk``, ``stand-in`` or ``ranks``: where it can be done."""
    leaves: str = ""
    """What the name of a temporary file may begin with: nobody is there to remove it."""
    is_mute: bool = True
    """Whether there may be no traceback; without memory Python has no other words."""


def stopped(number: int, status: int) -> set[int]:
    """Return how a run ends that is told to: before it can be asked, by the signal itself."""
    return {-number, status}


INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
STOP, CONT, KILL = signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL
KINDS: dict[str, Kind] = {
    "pytest is killed": Kind(signals("pytest", KILL), KILLED),
    "the zygote is killed": Kind(signals("zygote", KILL), JUDGED, 1),
    "a child is killed": Kind(signals("child", KILL), JUDGED, 1),
    "telemetry is killed": Kind(signals("telemetry", KILL), PASSED),
    "all are killed at once": Kind(signals("all", KILL), KILLED, leaves="bench-lib-"),
    "Ctrl-C": Kind(signals("pytest", INT), stopped(INT, 2)),
    "Ctrl-C twice": Kind(signals("pytest", INT, INT, pause_s=0.05), stopped(INT, 2)),
    "Ctrl-C reaches all": Kind(signals("all", INT), stopped(INT, 2), 1),
    "SIGTERM": Kind(signals("pytest", TERM), stopped(TERM, 143)),
    "SIGTERM reaches all": Kind(signals("all", TERM), stopped(TERM, 143), 1),
    "SIGHUP": Kind(signals("pytest", HUP), stopped(HUP, 129)),
    "pytest is paused": Kind(signals("pytest", STOP, CONT), PASSED),
    "the zygote is paused": Kind(signals("zygote", STOP, CONT), PASSED),
    "a child is paused": Kind(signals("child", STOP, CONT), PASSED),
    "telemetry is paused": Kind(signals("telemetry", STOP, CONT), PASSED),
    "all are paused": Kind(signals("all", STOP, CONT), PASSED),
    "a child stops": Kind(signals("child", STOP), JUDGED | REFUSED, 1),
    "telemetry stops": Kind(signals("telemetry", STOP), PASSED),
    "pytest's memory ends": Kind(memory_ends("pytest"), {0, 1, 2, 3, 4}, MANY, is_mute=False),
    "the zygote's memory ends": Kind(memory_ends("zygote"), {0, 1, 4}, MANY, is_mute=False),
    "a child's memory ends": Kind(memory_ends("child"), JUDGED, 1),
    "files may not grow": Kind(file_limit, {0, 3, 4}),
    "the history's disk is full": Kind(history_disk, {0, 3, 4}, needs="disk"),
    "the temporary folder is full": Kind(temporary_disk, {0, 4}, needs="disk"),
    "hostile samples": Kind(hostile_samples, PASSED, needs="stand-in"),
    "two runs at once": Kind(two_runs(CONT), PASSED),
    "two runs, one is killed": Kind(two_runs(KILL), PASSED | KILLED),
    "a rank is killed": Kind(one("rank", KILL), JUDGED, 1, needs="ranks"),
    "a rank stops": Kind(one("rank", STOP), JUDGED, 1, needs="ranks"),
    "a rank is paused": Kind(one("rank", STOP, CONT), PASSED, needs="ranks"),
    "a rank hangs": Kind(a_rank_hangs, JUDGED, 1, needs="ranks"),
    "a rank's server is killed": Kind(one("server of a rank", KILL), JUDGED, 1, needs="ranks"),
    "a rank's server stops": Kind(one("server of a rank", STOP), JUDGED, 1, needs="ranks"),
    "the launcher is killed": Kind(signals("launcher", KILL), JUDGED, 1, needs="ranks"),
    "the launcher stops": Kind(signals("launcher", STOP), JUDGED, 1, needs="ranks"),
}
OF_RANKS = (
    *("pytest is killed", "all are killed at once", "Ctrl-C", "Ctrl-C reaches all", "SIGTERM"),
    *("SIGTERM reaches all", "SIGHUP", "all are paused", "pytest is paused", "telemetry is killed"),
    *(name for name, kind in KINDS.items() if kind.needs == "ranks"),
)
"""Of ranks there is no zygote, and no child."""


def tried(place: Place, kind: str, seed: int, number: int) -> Outcome:
    """Strike one run, and look at what is left of it."""
    draw = random.Random(f"{seed} {number}")
    outcome = Outcome(seed, number, kind, after=draw.choice((0, 1, 1, 2, 3)))
    scene = Scene(place, draw, outcome)
    files = set(history.files(place.history))
    place.give(NEW)
    began = time.monotonic()
    with scene.undo:
        KINDS[kind].strike(scene)
        scene.end()
        outcome.seconds = time.monotonic() - began
    kept = place.lines()
    outcome.lost = sum(max(0, n - kept[line]) for line, n in scene.before.items())
    leaves = KINDS[kind].leaves
    if place.ranks > 1 and KINDS[kind].statuses == KILLED:
        leaves = "bench-lib-"  # a zygote removes its runner's folder, and ranks do not
    if leaves:
        for path in place.temporary.glob(f"{leaves}*"):
            shutil.rmtree(path)
    outcome.left = list(left_behind(place))
    for path in place.temporary.glob("bench-lib-*"):  # shown once, not by every run that follows
        shutil.rmtree(path, ignore_errors=True)
    outcome.wrong += wrong(scene, KINDS[kind], set(history.files(place.history)) - files)
    return outcome


def wrong(scene: Scene, kind: Kind, files: set[Path]) -> Iterator[str]:
    """Hold statuses against what was struck and what the new files say."""
    outcome, place = scene.outcome, scene.place
    allowed = kind.statuses if outcome.struck else PASSED
    yield from (f"status {s}" for s in outcome.status if s not in allowed)
    if outcome.status == [0] and (due := place.due()):
        yield f"status 0, and {len(due)} cases are in no run"
    disturbed, ended = 0, set(outcome.status)
    for path in sorted(files):
        run = history.read(path)
        yield from (f"{path.name}: {p}" for p in run.problems[run.ended is None :])
        bad = [record for record in run.records.values() if record.status is Status.ERROR]
        disturbed += len(bad)
        if run.exit_status == 0 and bad:
            yield f"{path.name} says 0, and {bad[0].case.id} is ERROR"
        said = run.exit_status
        # What pytest calls 2 is 130 of any program, and -2 of one that the signal itself ended.
        if said is not None and not {said % 128, said, 128 - said} & ended:
            yield f"{path.name} says {said}"
    if disturbed > kind.disturbs:
        yield f"{disturbed} cases are ERROR"
    # Ctrl-C before pytest is there is Python's own affair.
    is_mute = kind.is_mute and -signal.SIGINT not in outcome.status
    for log in sorted(place.folder.glob(f"run-{outcome.number}-*.log")):
        text = log.read_text(errors="replace")
        if is_mute and ("Traceback" in text or "INTERNALERROR" in text):
            yield f"{log.name}: {text.strip().splitlines()[-1][:200]}"


def struck(
    kinds: Sequence[str],
    folder: Path,
    seed: int,
    numbers: Sequence[int],
    *,
    device: str | None = None,
    ranks: int = 1,
    until_s: float = math.inf,
) -> Iterator[Outcome]:
    """Strike runs that share a folder, and finish what they leave.

    None is struck past ``until_s`` on the monotonic clock.
    """
    # Twice as many cases as one run takes: some faults have two runs.
    cases = [Planned(f"case-{n:03d}", "works") for n in range(2 * NEW * len(numbers))]
    place = Place(folder, cases, device=device, ranks=ranks)
    outcome = None
    for number in numbers:
        if time.monotonic() < until_s:
            outcome = tried(place, kinds[number % len(kinds)], seed, number)
            yield outcome
    if outcome and (problems := list(_finished(place))):
        yield Outcome(seed, outcome.number, outcome.kind, 0, wrong=problems)


def _finished(place: Place) -> Iterator[str]:
    """Measure what is left without a fault, and look whether each case is in one run."""
    place.give(0)
    if place.due() and place.start("rest").wait() not in JUDGED:
        yield "the run that takes the rest fails"
    runs = place.runs()
    for case in place.cases[: place.given]:
        told = sum(case.id in run.records for run in runs)
        if told != 1:
            yield f"{case.id} is in {told} runs"
    yield from unreadable(place)


# --- the command -----------------------------------------------------------------------------


BY_KIND = ("kind", "faults", "records before", "lost", "left behind", "statuses", "s", "wrong")


def by_kind(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Return a row for each kind, and one for all."""
    rows = []
    for name in [*(name for name in KINDS if any(o.kind == name for o in outcomes)), "all"]:
        own = [o for o in outcomes if name in (o.kind, "all")]
        statuses = Counter(str(s) for o in own for s in o.status)
        seconds = [o.seconds for o in own]
        rows.append(
            (
                name,
                str(len(own)),
                str(sum(o.records for o in own)),
                str(sum(o.lost for o in own)),
                str(sum(len(o.left) for o in own)),
                ", ".join(f"{s} ({n})" for s, n in statuses.most_common()),
                f"{statistics.median(seconds):.1f} to {max(seconds):.1f}",
                str(sum(not o.is_well for o in own)),
            )
        )
    return rows


def main() -> int:
    """Inject all faults, print what became of them, and return 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2000, help="that fail by a plan; 0 for none")
    parser.add_argument("--faults", type=int, default=500, help="from outside, one a run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: stand-ins")
    parser.add_argument("--ranks", type=int, default=1, help="of every case, with --device")
    parser.add_argument("--at-once", type=int, default=1, help="runs, each with locks of its own")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what became of each, too")
    parser.add_argument("--minutes", type=float, default=math.inf, help="strike no run after")
    parser.add_argument("--kind", default="", help="only faults with these words")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave everything there")
    options = parser.parse_args()
    if options.ranks == 1:
        _enter_namespace()
    for number in (INT, HUP):  # which runs ignore if we do, as by nohup
        signal.signal(number, signal.default_int_handler)
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    if options.cases and options.device is None and not options.kind:
        for way in WAYS:
            with _folder(options.keep) as folder:
                figures, found = planned(way, folder, options.cases, options.seed)
            print("\n    ".join([figures, *found]), flush=True)
            problems += found
    outcomes = _all_struck(options)
    if outcomes:
        columns = [Column(name, itemgetter(at)) for at, name in enumerate(BY_KIND)]
        print("\n".join(summary_lines(Table(columns, by_kind(outcomes)), 200)))
    found = len(problems) + sum(not outcome.is_well for outcome in outcomes)
    print(f"{'FAIL' if found else 'PASS'}: {len(outcomes)} runs were struck, {found} findings")
    return min(found, 1)


def _all_struck(options: argparse.Namespace) -> list[Outcome]:
    """Strike runs, a folder for some of them, and print each outcome."""
    until_s = time.monotonic() + 60 * options.minutes
    kinds = _kinds(options)
    outcomes: list[Outcome] = []
    telling = threading.Lock()

    def strike(numbers: range) -> None:
        with _folder(options.keep) as folder:
            asked = {"device": options.device, "ranks": options.ranks, "until_s": until_s}
            for outcome in struck(kinds, folder, options.seed, numbers, **asked):
                with telling:
                    outcomes.append(outcome)
                    _tell(outcome, outcomes, options)

    a_folder = min(A_FOLDER, math.ceil(options.faults / options.at_once))
    firsts = range(0, options.faults, a_folder)
    numbers = [range(first, min(options.faults, first + a_folder)) for first in firsts]
    with ThreadPoolExecutor(options.at_once) as lanes:
        list(lanes.map(strike, numbers))
    return outcomes


def _kinds(options: argparse.Namespace) -> list[str]:
    """Return the faults that are possible here, in an order that is drawn from the seed."""
    if options.ranks > 1:
        kinds = list(OF_RANKS)
    else:
        here = {"", "stand-in"} if options.device is None else {""}
        here |= {"disk"} if _can_mount() else set()
        kinds = [name for name, kind in KINDS.items() if kind.needs in here]
    kinds = [name for name in kinds if options.kind in name]
    random.Random(options.seed).shuffle(kinds)
    return kinds


def _tell(outcome: Outcome, outcomes: list[Outcome], options: argparse.Namespace) -> None:
    """Print what became of a fault, and write down all until now."""
    when = f"record {outcome.after}" if outcome.after else "the start"
    if not outcome.struck:
        when = "nobody"
    words = f"{outcome.number} {outcome.kind}, struck at {when}: {outcome.status}"
    print("\n    ".join([words, *outcome.left, *outcome.wrong]), flush=True)
    if options.json:
        told = {
            "device": options.device or "stand-ins",
            "ranks": options.ranks,
            "faults": len(outcomes),
            "findings": sum(not each.is_well for each in outcomes),
            "outcomes": [asdict(each) for each in outcomes],
        }
        options.json.write_text(json.dumps(told, indent=1))


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir=keep))
    yield folder
    if keep is None:
        shutil.rmtree(folder)


def _can_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        words = ["mount", "-t", "tmpfs", "none", folder]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            return False
        subprocess.run(["umount", folder], check=True)
    return True


def _enter_namespace() -> None:
    """Have mounts of our own, which end with us, where that is permitted."""
    if "FAULTS_NAMESPACE" in os.environ:
        return
    for rights in ([], ["--user", "--map-root-user"]):
        words = ["unshare", *rights, "--mount"]
        with contextlib.suppress(OSError):
            if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
                os.environ["FAULTS_NAMESPACE"] = "1"
                os.execvp(words[0], [*words, sys.executable, *sys.argv])


if __name__ == "__main__":
    sys.exit(main())
