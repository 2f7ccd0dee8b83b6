"""Runs that benchmarks/torture.py strikes: their folder, their processes, their outcome."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import soak

from bench_lib import backends
from bench_lib.model import Hardware

HUNG_S = 180.0
"""A run that takes longer past its fault hangs; a context has 120 s to open its device."""
STEPS = """
import torch


def product(setting, size):
    a = torch.randn(size, size, device=setting.device)
    return lambda: a @ a
"""
CONFTEST = """
from pathlib import Path

STATE = Path(__file__).parents[1] / "state"


def pytest_collection_modifyitems(items):
    left = set((STATE / "left").read_text().split())
    items[:] = [item for item in items if item.callspec.params["case"].id in left]
"""
CASE = """
[[smoke.factory]]
id = "{id}"
target = "{target}"
params = {params}
time_limit_s = {limit_s}
"""
SAMPLING = "sampling = { warmup_s = 0.2, warmup_max_s = 0.5, measure_s = 0.2 }\n"
TESTS = """
import pytest


@pytest.mark.perf_cases("factory")
def test_step(case, perf):
    perf.measure(case)
"""


class Place(soak.Soak):
    """A folder whose runs are struck one after another."""

    new = 5
    """Cases for each fault."""
    limit_s = 5.0
    """Of a case."""

    def __init__(self, folder: Path, faults: int) -> None:
        """Lay out cases for each fault, twice as many as one run takes: some have two."""
        cases = [soak.Planned(f"case-{n:03d}", "works") for n in range(2 * self.new * faults)]
        super().__init__(folder, cases)
        for each in (folder, self.temporary, self.locks):
            each.chmod(0o755)
        self.extra: dict[str, str] = {}
        """Variables of the run that comes next."""
        self.given = 0
        """Cases that some run was given."""

    def _write_suite(self) -> None:
        ini = "[pytest]\nperf_paths = perf_tests\nfilterwarnings = error\n"
        (self.folder / "pytest.ini").write_text(ini)
        suite = self.folder / "perf_tests"
        (suite / "matrix.toml").write_text("".join(map(self._table, self.cases)))
        (suite / "test_torture.py").write_text(TESTS)

    def _table(self, case: soak.Planned) -> str:
        params = '{ does = "works" }'
        return CASE.format(id=case.id, target="soak:step", params=params, limit_s=self.limit_s)

    def environment(self) -> dict[str, str]:
        """Return what runs under, with what a fault adds."""
        return {**super().environment(), **self.extra}

    def device(self) -> Hardware:
        """Return the device that a run takes first."""
        return soak.devices()[0]

    def give(self, cases: int | None = None) -> None:
        """Have the next run measure so many new cases, and what is left of earlier ones."""
        new = self.new if cases is None else cases
        self.given = min(len(self.cases), self.given + new)
        (self.state / "left").write_text("\n".join(self.due()))

    def due(self) -> list[str]:
        """Return the cases that were given to a run and are in none."""
        known = {case.id for case in self.cases[: self.given]}
        return [id_ for id_ in self.left() if id_ in known]

    def lines(self) -> Counter[bytes]:
        """Return the complete lines of all runs' files."""
        found: Counter[bytes] = Counter()
        for path in self.history.glob("*.jsonl"):
            found.update(
                line for line in path.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n"
            )
        return found

    def measured(self) -> int:
        """Return how many attempts the history holds."""
        return sum(n for line, n in self.lines().items() if b'"kind":"attempt"' in line)

    def pids(self, role: str) -> list[int]:
        """Return the processes of a role: pytest, zygote, context, telemetry; or all."""
        found: dict[int, str] = {}
        for each in self.processes():
            pid, _, words = each.partition(" ")
            found[int(pid)] = words
        if role == "all":
            return list(found)
        roles = {pid: _role(words) for pid, words in found.items()}
        zygotes = {pid for pid, each in roles.items() if each == "worker"}
        for pid in zygotes:
            roles[pid] = "context" if _parent(pid) in zygotes else "zygote"
        return [pid for pid, each in roles.items() if each == role]


class RealPlace(Place):
    """The same with a device that torch opens."""

    new = 3
    limit_s = 15.0

    def __init__(self, folder: Path, faults: int, device: str) -> None:
        """Measure on the CPU, or on whatever GPUs are here."""
        self._device = device
        super().__init__(folder, faults)
        self.options = ["--perf-kernels", "none"]

    def _write_suite(self) -> None:
        super()._write_suite()
        (self.folder / "perf_tests" / "conftest.py").write_text(CONFTEST)
        (self.folder / "torture_steps.py").write_text(STEPS)

    def _write_baselines(self) -> None:
        """Accept nothing: each case is new."""

    def _table(self, case: soak.Planned) -> str:
        target, params = "torture_steps:product", "{ size = 256 }"
        made = CASE.format(id=case.id, target=target, params=params, limit_s=self.limit_s)
        return made + SAMPLING

    def device(self) -> Hardware:
        """Return the first that is seen here."""
        return backends.detect(environ=self.environment())[0]

    def environment(self) -> dict[str, str]:
        """Return what runs under, with torch alone preloaded."""
        kept = super().environment()
        for name in ("SOAK_DEVICES", "SOAK_STATE"):
            del kept[name]
        kept["PYTHONPATH"] = soak.module_path(self.folder, soak.HERE.parent)
        if self._device == "cpu":
            kept |= {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}
        # Torch makes this folder, and keeps it.
        kept["TORCHINDUCTOR_CACHE_DIR"] = str(self.folder / "inductor")
        return {**kept, "BENCH_LIB_PRELOAD": "torch", **self.extra}


def _role(words: str) -> str:
    if "bench_lib.worker serve" in words:
        return "worker"
    if "telemetry" in words:
        return "telemetry"
    return "pytest" if "-m pytest" in words else "other"


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@dataclass
class Outcome:
    """A row of the table."""

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

    def cells(self) -> tuple[str, ...]:
        """Return the row."""
        when = f"record {self.after}" if self.after else "start"
        statuses = " ".join(map(str, self.status))
        return (
            *(f"{self.seed}:{self.number}", self.kind, when if self.struck else "nobody there"),
            *(str(self.records), str(self.lost), str(len(self.left)), statuses),
            f"{self.seconds:.1f}",
        )


class Scene:
    """One run, and what strikes it."""

    def __init__(self, place: Place, draw: random.Random, outcome: Outcome) -> None:
        """Take a place; nothing runs yet."""
        self.place = place
        self.draw = draw
        self.outcome = outcome
        self.runs: list[subprocess.Popen[bytes]] = []
        self.before: Counter[bytes] = Counter()
        self.words: tuple[str, ...] = ()
        """Words before those of a run."""
        self.undo = contextlib.ExitStack()
        self._records = 0

    def start(self) -> None:
        """Start a run."""
        self._records = self._records or self.place.measured()
        name = f"run-{self.outcome.number}-{len(self.runs)}"
        self.runs.append(self.place.start(name, self.words))

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
        while there and not (found := self.place.pids(role)):
            there = self.runs[0].poll() is None
            time.sleep(0.005)
        self.remember(struck=there)
        return found if there else []

    def remember(self, *, struck: bool = True) -> None:
        """Keep what is in the history now; that must not be lost."""
        self.outcome.struck = struck
        self.before = self.place.lines()
        self.outcome.records = self.place.measured()

    def end(self) -> None:
        """Wait for all runs; one that hangs is ended, and found."""
        deadline = time.monotonic() + HUNG_S
        for run in self.runs[len(self.outcome.status) :]:
            self.outcome.status.append(self._status(run, deadline))
        self.place.await_end()

    def _status(self, run: subprocess.Popen[bytes], deadline: float) -> int | str:
        try:
            return run.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            for pid in self.place.pids("all"):
                send(pid, signal.SIGKILL)
            run.wait()
            return "hung"


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
