"""One launch of several ranks, ``mpirun -np 2 bench-lib ...``, as one command that measures.

The first rank is the command.  The others wait in a folder for its orders, so that each measures
where the launcher put it: on its own GPU, cores and host.  The program of this module hands one
order to all of them, and ends when they have.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench_lib.launch import launchers
from bench_lib.launch.launchers import (
    GATHERED,
    SHARED_VARIABLE,
    TOLD,
    VARIABLE,
    Placement,
    Torchrun,
)
from bench_lib.launch.started import leashed
from bench_lib.launch.wire import write_whole
from bench_lib.model import UserError

MEETING_S = 300.0
"""Hosts of a cluster may start minutes apart."""
SLOW_S = 5.0
"""After this the first rank says that it waits."""
LOOK_S = 0.05
GRACE_S = 5.0
"""For a rank to end before it is killed."""
FIRST = "first.json"
MEETING = ("MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Waiting:
    """One rank that waits for orders."""

    rank: int
    local_rank: int
    host: str
    pid: int
    cpus: list[int]
    """The cores that the launcher gave it."""
    told: dict[str, str]
    """Variables of its own that an order may change."""


@dataclass(frozen=True)
class RankOrder:
    """A program for some ranks."""

    words: list[str]
    ranks: int
    environ: dict[str, str]
    """Differences from each rank's own variables."""
    output: str
    """The file that takes their output."""


@contextlib.contextmanager
def gathered(place: Placement) -> Iterator[None]:
    """Be the first rank: cases of several ranks are measured by this launch's own meanwhile.

    This process may use the cores of all ranks of its host.  Raises UserError where the others
    cannot be met.
    """
    folder = _folder(place, os.environ)
    assert place.launcher is not None
    if not place.is_on_one_host and SHARED_VARIABLE not in os.environ:
        raise UserError(
            f"the ranks that {place.launcher} started are not known to be on one host; name a "
            f"folder that all of them see in {SHARED_VARIABLE}"
        )
    shutil.rmtree(folder, ignore_errors=True)  # of a launch that was killed
    before = dict(os.environ)
    cpus = os.sched_getaffinity(0)
    try:
        folder.mkdir(mode=0o700)
        write_whole(folder / FIRST, asdict(_waiting(place)))
        ranks = _met(folder, place)
        here = [each for each in ranks if each.host == ranks[0].host]
        with contextlib.suppress(OSError):  # a cluster may not let us have the others' cores
            os.sched_setaffinity(0, {cpu for each in here for cpu in each.cpus})
        _forget(place)
        os.environ[VARIABLE] = GATHERED.asked(folder, place.launcher, place.ranks)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        os.sched_setaffinity(0, cpus)
        shutil.rmtree(folder, ignore_errors=True)


def _forget(place: Placement) -> None:
    """Have programs started from here be no rank of this launch, but of an order."""
    kept = launchers.without_ranks(os.environ)
    if place.launcher == Torchrun.name:  # it listens there itself, so that no rank can
        kept = {name: value for name, value in kept.items() if name not in MEETING}
    for name in os.environ.keys() - kept.keys():
        del os.environ[name]


def serve(place: Placement) -> None:
    """Be another rank: do what the first orders, until it ends."""
    folder = _folder(place, os.environ)
    done: set[Path] = set()
    deadline = time.monotonic() + MEETING_S
    while not _is_open(folder):
        if time.monotonic() > deadline:
            return  # the first rank says so
        time.sleep(LOOK_S)
    write_whole(folder / f"rank-{place.rank}.json", asdict(_waiting(place)))
    _forget(place)
    while _is_open(folder):
        for file in set(folder.glob("order-*.json")) - done:
            done.add(file)
            _obey(file, place)
        time.sleep(LOOK_S)


def _obey(file: Path, place: Placement) -> None:
    """Run an order on this rank, unless it is for fewer, and say how that ended."""
    try:
        order = RankOrder(**json.loads(file.read_text()))
    except FileNotFoundError:
        return
    if place.rank >= order.ranks:
        return
    process = _started(order, _read(file.parent, place.ranks), place.rank)
    while process.poll() is None and file.exists():
        time.sleep(LOOK_S)
    _end(process)
    with contextlib.suppress(OSError):
        write_whole(_ended(file, place.rank), process.returncode)


def _started(order: RankOrder, ranks: Sequence[Waiting], rank: int) -> subprocess.Popen[bytes]:
    own = ranks[rank]
    local = sum(each.host == own.host for each in ranks[: order.ranks])
    placed = GATHERED.variables_for(rank, own.local_rank, order.ranks, local)
    with Path(order.output).open("ab") as output:
        return subprocess.Popen(
            leashed(order.words),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **order.environ, **placed},
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    process.kill()
    process.wait()


# --- handing an order out ------------------------------------------------------------------


def main(folder: Path, ranks: int, words: list[str]) -> int:
    """Have the first of the waiting ranks run some words, and be the first of them.

    Returns 0 if all of them do, else 1.
    """
    waiting = _read(folder, ranks)
    first = waiting[0]
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, first.cpus)
    environ = {
        name: value
        for name, value in os.environ.items()
        if TOLD.fullmatch(name) and first.told.get(name) != value
    }
    order = RankOrder(words, ranks, environ, str(Path("/proc/self/fd/1").readlink()))
    file = folder / f"order-{time.time_ns()}.json"
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        write_whole(file, asdict(order))
        process = _started(order, waiting, 0)
        while True:
            codes = {0: process.poll(), **_codes(file, ranks)}
            failed = {rank: code for rank, code in codes.items() if code}
            for rank, code in failed.items():
                sys.stderr.write(f"rank {rank} ended with {code}\n")
            if failed or (len(codes) == ranks and codes[0] == 0):
                return 1 if failed else 0
            time.sleep(LOOK_S)
    finally:
        file.unlink(missing_ok=True)
        _end(process)
        deadline = time.monotonic() + 2 * GRACE_S
        while len(_codes(file, ranks)) < ranks - 1 and time.monotonic() < deadline:
            time.sleep(LOOK_S)


def _codes(order: Path, ranks: int) -> dict[int, int]:
    """Return how the other ranks of an order ended, those that have."""
    files = {rank: _ended(order, rank) for rank in range(1, ranks)}
    return {rank: json.loads(f.read_text()) for rank, f in files.items() if f.exists()}


def _ended(order: Path, rank: int) -> Path:
    return order.with_name(f"ended-{order.stem}-{rank}.json")


# --- the folder ----------------------------------------------------------------------------


def _folder(place: Placement, environ: Mapping[str, str]) -> Path:
    """Return the folder of a launch, whose name all of its ranks can find out."""
    told = launchers.job_of(place, environ)
    if not told and place.is_on_one_host:
        told = [str(os.getppid()), *(environ.get(name, "") for name in MEETING)]
    name = zlib.crc32("/".join(told).encode())
    base = environ.get(SHARED_VARIABLE) or tempfile.gettempdir()
    return Path(base, f"bench-lib-{os.getuid()}-{place.launcher}-{name:08x}")


def _waiting(place: Placement) -> Waiting:
    told = {name: value for name, value in os.environ.items() if TOLD.fullmatch(name)}
    host, cpus = socket.gethostname(), sorted(os.sched_getaffinity(0))
    return Waiting(place.rank, place.local_rank, host, os.getpid(), cpus, told)


def _is_open(folder: Path) -> bool:
    """Whether the first rank is there, and it is ours."""
    try:
        if folder.lstat().st_uid != os.getuid():
            return False
        first = Waiting(**json.loads((folder / FIRST).read_text()))
    except FileNotFoundError:
        return False
    return first.host != socket.gethostname() or Path(f"/proc/{first.pid}").exists()


def _met(folder: Path, place: Placement) -> list[Waiting]:
    """Return all ranks once they are there; raises UserError where one does not come."""
    begin, said = time.monotonic(), False
    while True:
        missing = [r for r in range(1, place.ranks) if not _file(folder, r).exists()]
        waited = time.monotonic() - begin
        if not missing:
            return _read(folder, place.ranks)
        if waited > MEETING_S:
            raise UserError(
                f"rank {missing[0]} did not come within {MEETING_S:g} s; each rank has to run the "
                f"same command, and on several hosts {SHARED_VARIABLE} has to be a folder that all "
                "of them see"
            )
        if waited > SLOW_S and not said:
            said = True
            sys.stderr.write(f"waiting for rank {missing[0]} of {place.ranks}\n")
        time.sleep(LOOK_S)


def _file(folder: Path, rank: int) -> Path:
    return folder / (FIRST if rank == 0 else f"rank-{rank}.json")


def _read(folder: Path, ranks: int) -> list[Waiting]:
    return [Waiting(**json.loads(_file(folder, rank).read_text())) for rank in range(ranks)]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
