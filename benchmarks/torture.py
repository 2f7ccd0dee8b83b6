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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fuzz
import soak

from bench_lib import backends
from bench_lib.engine import devicelock
from bench_lib.model import Hardware
from bench_lib.report.console import table
from bench_lib.storage import history

KIB = 1024
A_FOLDER = 25
"""Faults whose runs share a folder."""
CASES = 5
"""New cases for each run."""
HUNG_S = 60.0
"""A run that takes longer past its fault hangs; it may wait for a case's time limit."""
PAUSE_S = 0.5
CASE_LIMIT_S = 5.0
OTHER = 65534
"""The other user."""
NAMESPACES = (
    ("unshare", "--mount"),
    ("unshare", "--user", "--map-root-user", "--mount"),
)
PROTECTIONS = ("symlinks", "hardlinks", "fifos", "regular")
TOOLS = {
    "amd-smi": "amd-smi",
    "rocm-smi": "rocm-smi",
    "rocminfo": "rocminfo",
    "nvidia-smi": "sinfo",
}
"""Vendors' tools, and the parser of `fuzz` whose inputs they print."""
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


# --- where runs are struck -----------------------------------------------------------------------


class Place(soak.Soak):
    """A folder whose runs are struck one after another."""

    mark = "stand-in"
    limit_s = CASE_LIMIT_S

    def __init__(self, folder: Path, faults: int) -> None:
        """Lay out five cases for each fault."""
        cases = [soak.Planned(f"case-{n:03d}", "works") for n in range(CASES * faults)]
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

    def give(self, cases: int = CASES) -> None:
        """Have the next run measure so many new cases, and what is left of earlier ones."""
        self.given = min(len(self.cases), self.given + cases)
        known = {case.id for case in self.cases[: self.given]}
        left = [id_ for id_ in self.left() if id_ in known]
        (self.state / "left").write_text("\n".join(left))

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

    limit_s = 20.0

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
        kept["PYTHONPATH"] = os.pathsep.join([str(self.folder), str(soak.HERE.parent)])
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
        self.runs.append(
            self.place.start(f"run-{self.outcome.number}-{len(self.runs)}", self.words)
        )

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
                _send(pid, signal.SIGKILL)
            run.wait()
            return "hung"


# --- faults --------------------------------------------------------------------------------------


Strike = Callable[[Scene], None]


@dataclass(frozen=True)
class Kind:
    """A fault, and what it may do to a run."""

    strike: Strike
    statuses: frozenset[int]
    spoils: int = 0
    """So many cases may be ERROR."""
    needs: str = ""
    """``disk``, ``user`` or ``stand-in``: where it can be done."""
    leaves: str = ""
    """What the name of a temporary file may begin with: nobody is there to remove it."""
    is_mute: bool = True
    """Whether there may be no traceback; Python without memory has no other words."""


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def signals(role: str, *numbers: int, pause_s: float = PAUSE_S) -> Strike:
    """Return what sends signals to all of a role."""

    def strike(scene: Scene) -> None:
        scene.start()
        pids = scene.someone(role)
        for n, number in enumerate(numbers):
            time.sleep(pause_s if n else 0)
            for pid in pids:
                _send(pid, number)

    return strike


def memory_ends(role: str) -> Strike:
    """Return what gives the processes of a role no more than a few pages beyond what they have."""

    def strike(scene: Scene) -> None:
        scene.start()
        for pid in scene.someone(role):
            with contextlib.suppress(OSError):
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
                room = scene.draw.choice((0, 64, 512, 4096)) * KIB
                _limit(pid, "as", pages * os.sysconf("SC_PAGE_SIZE") + room)

    return strike


def _limit(pid: int, what: str, size: int) -> None:
    words = ["prlimit", "--pid", str(pid), f"--{what}={size}:"]
    subprocess.run(words, check=False, capture_output=True)


def file_limit(scene: Scene) -> None:
    """Leave room for a part of a line, by a limit of files' sizes."""
    scene.start()
    for pid in scene.someone("pytest"):
        sizes = [path.stat().st_size for path in scene.place.history.glob("*.jsonl")]
        _limit(pid, "fsize", max(sizes, default=0) + scene.draw.randrange(600))


@contextlib.contextmanager
def _disk(folder: Path, size: str) -> Iterator[Callable[[int], None]]:
    """Have a file system of its own in a folder; yields what fills it but for so many bytes.

    What it holds afterwards lies in the folder.
    """
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "disk", folder], check=True
    )

    def fill(room: int) -> None:
        with (folder / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        size = (folder / "ballast").stat().st_size
        os.truncate(folder / "ballast", max(0, size - room))

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
    """Have what watches the devices print what it should not."""
    name = scene.draw.choice(("amd-smi", "history", "samples"))
    samples = scene.place.state / "samples"
    scene.undo.callback(samples.unlink, missing_ok=True)
    scene.start()
    scene.someone("telemetry")
    samples.write_bytes(_hostile(name, scene.draw)[: 64 * KIB])


def _hostile(name: str, draw: random.Random) -> bytes:
    parser = next(each for each in fuzz.PARSERS if each.name == name)
    return fuzz.input_of(parser, draw.randrange(2**31), 1 + draw.randrange(2**31))


def hostile_tools(scene: Scene) -> None:
    """Have vendors' tools print what they should not, end badly, or print much."""
    folder = Path(scene.undo.enter_context(tempfile.TemporaryDirectory()))
    for tool, parser in TOOLS.items():
        (folder / f"{tool}.said").write_bytes(_hostile(parser, scene.draw))
        said = f'cat "{folder / tool}.said"'
        after = scene.draw.choice(("", "exit 3", "kill -9 $$", "head -c 50000000 /dev/zero"))
        (folder / tool).write_text(f"#!/bin/sh\n{said}\n{after}\n")
        (folder / tool).chmod(0o755)
    path = f"{folder}{os.pathsep}{scene.place.environment()['PATH']}"
    scene.place.extra = {"PATH": path, "SOAK_TOOLS": "1"}
    scene.start()
    scene.remember()


def hostile_history(scene: Scene) -> None:
    """Have somebody else's run in the history that is none."""
    scene.place.history.mkdir(exist_ok=True)
    path = scene.place.history / fuzz.HISTORY_FILE
    scene.undo.callback(path.unlink, missing_ok=True)
    scene.remember()
    path.write_bytes(_hostile("history", scene.draw))
    scene.start()


def two_runs(scene: Scene) -> None:
    """Have a second run want the same devices."""
    _second(scene, signal.SIGCONT)


def two_runs_one_killed(scene: Scene) -> None:
    """Kill the first of two runs while the second waits."""
    _second(scene, signal.SIGKILL)


def _second(scene: Scene, number: int) -> None:
    scene.start()
    scene.moment()
    scene.remember(struck=scene.runs[0].poll() is None)
    (scene.place.state / "left").write_text("")
    # What the first one measures is not the second one's.
    left = {case.id for case in scene.place.cases[: scene.place.given]}
    scene.place.give()
    new = [case.id for case in scene.place.cases[: scene.place.given] if case.id not in left]
    (scene.place.state / "left").write_text("\n".join(new))
    scene.start()
    time.sleep(scene.draw.random())
    scene.before = scene.place.lines()
    _send(scene.runs[0].pid, number)


# --- another user --------------------------------------------------------------------------------


ATTACKER = """
import contextlib, fcntl, os, sys, time
folders, canary = sys.argv[1:3], sys.argv[3]
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print("ready", flush=True)
planted = 0
while True:
    for top in folders:
        for folder, below, files in os.walk(top):
            for name in files:
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    if os.lstat(path).st_uid == 65534:
                        continue
                    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW)
                    os.write(file, b"other\\n")
                    print("wrote", path, flush=True)
                with contextlib.suppress(OSError):
                    os.unlink(path)
                    os.symlink(canary, path)
                    print("replaced", path, flush=True)
            for name in below:
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    if os.lstat(path).st_uid == 65534:
                        continue
                    os.rename(path, path + ".other")
                    print("moved", path, flush=True)
                with contextlib.suppress(OSError):
                    os.symlink(canary, os.path.join(path, f"other-{planted}"))
                    print("planted in", path, flush=True)
    with contextlib.suppress(OSError):
        os.symlink(canary, os.path.join(folders[0], f"bench-lib-{planted % 50}"))
    with contextlib.suppress(OSError):
        os.mkfifo(os.path.join(folders[0], f"bench-lib-pipe-{planted % 50}"), 0o666)
    planted += 1
    time.sleep(0.002)
"""
HOLDER = """
import fcntl, os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
file = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(file, fcntl.LOCK_EX)
print("ready", flush=True)
sys.stdin.read()
"""


def _as_other(scene: Scene, code: str, *words: object) -> subprocess.Popen[str]:
    """Start another user's process; it is ended with the scene."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-IS", "-c", code, *map(str, words)]
    other = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    scene.undo.callback(other.communicate)
    scene.undo.callback(other.kill)
    assert other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    return other


def _shared(scene: Scene) -> Path:
    """Open the folders of locks and of temporary files to all; returns a file of the victim's.

    The victim is root without root's rights, for whom permissions hold.
    """
    place = scene.place
    canary = place.folder / "canary"
    canary.write_text("mine\n")
    scene.words = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    for folder in (place.temporary, place.locks):
        folder.chmod(0o1777)
        scene.undo.callback(folder.chmod, 0o755)
        scene.undo.callback(_remove_others, folder)

    def look() -> None:
        if canary.read_text() != "mine\n":
            scene.outcome.wrong.append("another user wrote to a file through a run")

    scene.undo.callback(look)
    return canary


def _remove_others(folder: Path) -> None:
    for path in folder.iterdir():
        if path.lstat().st_uid == OTHER:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _lock(scene: Scene) -> Path:
    """Return the path of the lock that a run takes first, where there is nothing."""
    path = scene.place.locks / f"{devicelock._name(scene.place.device())}.lock"
    path.unlink(missing_ok=True)
    return path


def plants(what: str) -> Strike:
    """Return what plants something in place of a device's lock."""

    def strike(scene: Scene) -> None:
        canary, path = _shared(scene), _lock(scene)
        match what:
            case "link":
                path.symlink_to(canary)
            case "pipe":
                os.mkfifo(path, 0o666)
            case "unreadable":
                path.touch(0o600)
            case _:
                path.mkdir(0o700)
        os.chown(path, OTHER, OTHER, follow_symlinks=False)
        scene.start()
        scene.remember()

    return strike


def holds(*, for_ever: bool) -> Strike:
    """Return what holds a device, for a while or until the run has given up."""

    def strike(scene: Scene) -> None:
        _shared(scene)
        path = _lock(scene)
        path.touch(0o444)
        other = _as_other(scene, HOLDER, path)
        if for_ever:
            scene.words = (*scene.words, "env", "PYTEST_ADDOPTS=--perf-lock-wait 1")
        scene.start()
        scene.remember()
        if not for_ever:
            time.sleep(1 + scene.draw.random())
            other.kill()

    return strike


def writes_everywhere(scene: Scene) -> None:
    """Have another user try to write, replace and move whatever a run makes."""
    canary = _shared(scene)
    place = scene.place
    other = _as_other(scene, ATTACKER, place.temporary, place.locks, canary)
    scene.start()
    scene.remember()
    scene.end()
    other.kill()
    told, _ = other.communicate()
    scene.outcome.wrong += told.splitlines()[:3]


KILLED = frozenset({-signal.SIGKILL})
PASSED, JUDGED = frozenset({0}), frozenset({0, 1})
REFUSED = frozenset({4})


def stopped(number: int, *statuses: int) -> frozenset[int]:
    """Return how a run ends that is told to: before it can be asked, by the signal itself."""
    return frozenset({-number, *statuses})


ALL: dict[str, Kind] = {
    "pytest is killed": Kind(signals("pytest", signal.SIGKILL), KILLED),
    "the zygote is killed": Kind(signals("zygote", signal.SIGKILL), JUDGED, 1),
    "a context is killed": Kind(signals("context", signal.SIGKILL), JUDGED, 1),
    "telemetry is killed": Kind(signals("telemetry", signal.SIGKILL), PASSED),
    "all are killed at once": Kind(signals("all", signal.SIGKILL), KILLED, leaves="bench-lib-"),
    "Ctrl-C": Kind(signals("pytest", signal.SIGINT), stopped(signal.SIGINT, 2)),
    "Ctrl-C twice": Kind(
        signals("pytest", signal.SIGINT, signal.SIGINT, pause_s=0.05), stopped(signal.SIGINT, 2)
    ),
    "Ctrl-C reaches all": Kind(signals("all", signal.SIGINT), stopped(signal.SIGINT, 2), 1),
    "SIGTERM": Kind(signals("pytest", signal.SIGTERM), stopped(signal.SIGTERM, 143)),
    "SIGTERM reaches all": Kind(signals("all", signal.SIGTERM), stopped(signal.SIGTERM, 143), 1),
    "SIGHUP": Kind(signals("pytest", signal.SIGHUP), stopped(signal.SIGHUP, 129)),
    "pytest is paused": Kind(signals("pytest", signal.SIGSTOP, signal.SIGCONT), PASSED),
    "the zygote is paused": Kind(signals("zygote", signal.SIGSTOP, signal.SIGCONT), PASSED),
    "a context is paused": Kind(signals("context", signal.SIGSTOP, signal.SIGCONT), PASSED),
    "telemetry is paused": Kind(signals("telemetry", signal.SIGSTOP, signal.SIGCONT), PASSED),
    "all are paused": Kind(signals("all", signal.SIGSTOP, signal.SIGCONT), PASSED),
    "a context stops": Kind(signals("context", signal.SIGSTOP), JUDGED, 1),
    "telemetry stops": Kind(signals("telemetry", signal.SIGSTOP), PASSED),
    "pytest's memory ends": Kind(
        memory_ends("pytest"), frozenset({0, 1, 2, 3, 4}), CASES * 2, is_mute=False
    ),
    "the zygote's memory ends": Kind(memory_ends("zygote"), frozenset({0, 1, 4}), CASES * 2),
    "a context's memory ends": Kind(memory_ends("context"), JUDGED, 1),
    "files may not grow": Kind(file_limit, frozenset({0, 3, 4})),
    "the history's disk is full": Kind(history_disk, frozenset({0, 3, 4}), needs="disk"),
    "the temporary folder is full": Kind(temporary_disk, frozenset({0, 4}), needs="disk"),
    "hostile samples": Kind(hostile_samples, PASSED, needs="stand-in"),
    "hostile tools": Kind(hostile_tools, PASSED),
    "a hostile history": Kind(hostile_history, PASSED),
    "two runs at once": Kind(two_runs, PASSED),
    "two runs, one is killed": Kind(two_runs_one_killed, PASSED | KILLED),
    "another user plants a link": Kind(plants("link"), REFUSED, needs="user"),
    "another user plants a pipe": Kind(plants("pipe"), REFUSED, needs="user"),
    "another user plants a folder": Kind(plants("folder"), REFUSED, needs="user"),
    "another user's file cannot be read": Kind(plants("unreadable"), REFUSED, needs="user"),
    "another user holds the device": Kind(holds(for_ever=True), REFUSED, needs="user"),
    "another user had the device": Kind(holds(for_ever=False), PASSED, needs="user"),
    "another user writes everywhere": Kind(writes_everywhere, PASSED, needs="user"),
}


# --- trying --------------------------------------------------------------------------------------


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
    outcome.wrong += _wrong(scene, ALL[kind], set(place.history.glob("*.jsonl")) - files)
    place.sessions.append(" ".join(map(str, outcome.status)))
    return outcome


def _left(place: Place, kind: Kind) -> Iterator[str]:
    for path in place.temporary.iterdir():
        if kind.leaves and path.name.startswith(kind.leaves):
            shutil.rmtree(path)
    yield from soak.left_behind(place)


def _wrong(scene: Scene, kind: Kind, files: set[Path]) -> Iterator[str]:
    """Hold statuses against what was struck and what the new files tell."""
    outcome, place = scene.outcome, scene.place
    allowed = kind.statuses if outcome.struck else PASSED
    yield from (f"status {s}" for s in outcome.status if s not in allowed)
    spoilt, ended = 0, set(outcome.status)
    for path in sorted(files):
        if not path.exists():
            continue
        run = history.read(path)
        yield from (f"{path.name}: {p}" for p in run.problems[run.ended is None :])
        bad = [
            r for r in run.records.values() if r.status is not None and r.status.value == "ERROR"
        ]
        spoilt += len(bad)
        if run.exit_status == 0 and bad:
            yield f"{path.name} says 0, and {bad[0].case.id} is ERROR"
        # What pytest calls 2 is 130 of any program.
        if run.exit_status is not None and not {run.exit_status % 128, run.exit_status} & ended:
            yield f"{path.name} says {run.exit_status}"
    if spoilt > kind.spoils:
        yield f"{spoilt} cases are ERROR"
    for log in sorted(place.folder.glob(f"run-{outcome.number}-*.log")):
        text = log.read_text(errors="replace")
        # Ctrl-C before pytest is there is Python's own affair.
        is_blurted = "Traceback" in text or "INTERNALERROR" in text
        if is_blurted and kind.is_mute and -signal.SIGINT not in outcome.status:
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
        found.add("user")
    return found


@contextlib.contextmanager
def protections(value: int | None) -> Iterator[None]:
    """Set what the kernel forbids in shared folders, and put it back."""
    paths = [Path("/proc/sys/fs", f"protected_{name}") for name in PROTECTIONS]
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
    kinds: Sequence[str], folder: Path, seed: int, numbers: Sequence[int], device: str | None
) -> Iterator[Outcome]:
    """Strike runs that share a folder, and finish what they leave."""
    # Two runs at once have as many cases each.
    faults = 2 * len(numbers)
    place = Place(folder, faults) if device is None else RealPlace(folder, faults, device)
    for number in numbers:
        yield tried(place, kinds[number % len(kinds)], seed, number)
    problems = list(finished(place))
    if problems:
        rest = Outcome(seed, numbers[-1], kinds[numbers[-1] % len(kinds)], 0, wrong=problems)
        yield rest


def main() -> int:
    """Strike, print what became of it, and return 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: stand-ins")
    parser.add_argument("--minutes", type=float, help="begin no fault after so long")
    parser.add_argument("--kind", default="", help="only kinds with these words")
    parser.add_argument("--protected", type=int, choices=[0, 1], help="fs.protected_* (root)")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="append outcomes as JSON")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave everything there")
    parser.add_argument("--sum", type=Path, nargs="+", metavar="FILE", help="tell of rows alone")
    options = parser.parse_args()
    if options.sum:
        lines = [line for path in options.sum for line in path.read_text().splitlines()]
        return told([Outcome(**json.loads(line)) for line in lines])
    _enter_namespace()
    here = permitted() | ({"stand-in"} if options.device is None else set())
    kinds = [n for n, kind in ALL.items() if not kind.needs or kind.needs in here]
    kinds = [name for name in kinds if options.kind in name]
    if without := [n for n in ALL if options.kind in n and n not in kinds]:
        print(f"cannot be done here: {', '.join(without)}")
    random.Random(options.seed).shuffle(kinds)
    deadline = time.monotonic() + 60 * (options.minutes or 1e6)
    outcomes: list[Outcome] = []
    numbers = range(options.first, options.first + options.faults)
    with protections(options.protected):
        for at in range(0, len(numbers), A_FOLDER):
            if time.monotonic() > deadline:
                break
            folder = Path(tempfile.mkdtemp(prefix="torture-", dir=options.keep))
            for outcome in tortured(
                kinds, folder, options.seed, numbers[at : at + A_FOLDER], options.device
            ):
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


def told(outcomes: Sequence[Outcome]) -> int:
    """Print the table by kind, and whether all is well; returns the exit status."""
    print("\n".join(table(BY_KIND, by_kind(outcomes), 200)))
    wrong = sum(not outcome.is_well for outcome in outcomes)
    print(f"{'FAIL' if wrong else 'PASS'}: {len(outcomes)} faults, {wrong} with findings")
    return min(wrong, 1)


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
