"""The faults of benchmarks/torture.py: what strikes a run, and what that may do to it."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torture_runs import Scene, send

from bench_lib.engine import devicelock

KIB = 1024
PAUSE_S = 0.5
MANY = 1000
"""Every case may be spoilt."""
OTHER = 65534
"""The other user."""
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
    """Whether there may be no traceback; without memory Python has no other words."""


def signals(role: str, *numbers: int, pause_s: float = PAUSE_S) -> Strike:
    """Return what sends signals to all of a role."""

    def strike(scene: Scene) -> None:
        scene.start()
        pids = scene.someone(role)
        for n, number in enumerate(numbers):
            time.sleep(pause_s if n else 0)
            for pid in pids:
                send(pid, number)

    return strike


def memory_ends(role: str) -> Strike:
    """Return what gives the processes of a role no more than a few pages beyond what they have."""

    def strike(scene: Scene) -> None:
        scene.start()
        for pid in scene.someone(role):
            with contextlib.suppress(OSError):
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
                room = scene.draw.choice((0, 64, 512, 4096)) * KIB
                most = pages * resource.getpagesize() + room
                resource.prlimit(pid, resource.RLIMIT_AS, (most, most))

    return strike


def file_limit(scene: Scene) -> None:
    """Leave room for a part of a line, by a limit of files' sizes."""
    scene.start()
    for pid in scene.someone("pytest"):
        sizes = [path.stat().st_size for path in scene.place.history.glob("*.jsonl")]
        most = max(sizes, default=0) + scene.draw.randrange(600)
        with contextlib.suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))


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


def two_runs(scene: Scene) -> None:
    """Have a second run want the same devices."""
    _second(scene, signal.SIGCONT)


def two_runs_one_killed(scene: Scene) -> None:
    """Kill the first of two runs while the second waits."""
    _second(scene, signal.SIGKILL)


def _second(scene: Scene, number: int) -> None:
    # The first one has to know its cases before the second one's are written in their place.
    scene.outcome.after = max(1, scene.outcome.after)
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
    send(scene.runs[0].pid, number)


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
        found = path.lstat()  # nobody may follow another user's links
        if found.st_uid == OTHER:
            shutil.rmtree(path) if stat.S_ISDIR(found.st_mode) else path.unlink()


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
    "a context stops": Kind(signals("context", signal.SIGSTOP), JUDGED | REFUSED, 1),
    "telemetry stops": Kind(signals("telemetry", signal.SIGSTOP), PASSED),
    "pytest's memory ends": Kind(
        memory_ends("pytest"), frozenset({0, 1, 2, 3, 4}), MANY, is_mute=False
    ),
    "the zygote's memory ends": Kind(
        memory_ends("zygote"), frozenset({0, 1, 4}), MANY, is_mute=False
    ),
    "a context's memory ends": Kind(memory_ends("context"), JUDGED, 1),
    "files may not grow": Kind(file_limit, frozenset({0, 3, 4})),
    "the history's disk is full": Kind(history_disk, frozenset({0, 3, 4}), needs="disk"),
    "the temporary folder is full": Kind(temporary_disk, frozenset({0, 4}), needs="disk"),
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
