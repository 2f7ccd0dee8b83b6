"""Inside a job: its resources beside the request, the suite, and the suite's use of them."""

from __future__ import annotations

import dataclasses
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from bench_lib import backends
from bench_lib.backends.sysfs import ROOT, text
from bench_lib.formats import many
from bench_lib.model import Hardware, UserError
from bench_lib.slurm import tools
from bench_lib.slurm.asked import Resources, clock, number

SAMPLE_S = 5.0
"""Between two looks at the memory of the suite's processes."""
SLACK = 0.99
"""Limits are rounded to pages: only less than this share of the request is too little."""
USED_FILE = "used.jsonl"


@dataclass(frozen=True)
class Got:
    """One node's resources for a job; None if unknown."""

    node: str
    nodes: int | None = None
    cpus: int | None = None
    memory_bytes: int | None = None
    gpus: list[str] = field(default_factory=list)
    """Those that can be used, in the order torch counts them."""
    variables: dict[str, str] = field(default_factory=dict)
    """The variables that choose GPUs, if set."""
    lacks: list[str] = field(default_factory=list)
    """Resources below the request, in words."""


@dataclass(frozen=True)
class Used:
    """The use of its node by one run of the suite, with the processes that it started."""

    exit_status: int
    wall_s: float
    cpu_s: float
    peak_bytes: int | None = None
    """Memory that processes share is counted for each of them."""
    peak_by: str = ""
    """Who read it: ``sstat``, or the job itself every SAMPLE_S seconds."""


def look(
    asked: Resources,
    *,
    environ: Mapping[str, str] = os.environ,
    root: Path = ROOT,
    cores: int | None = None,
) -> Got:
    """Return what this node gives to the job that this process is part of.

    Cores are those that Slurm granted or that the process may run on (``cores``, by default
    its affinity mask), whichever are fewer; memory is the least of Slurm's word, the limits
    of its control groups, and what the node has.
    """
    if cores is None:
        cores = len(os.sched_getaffinity(0))
    devices = _gpus(environ, root)
    got = Got(
        node=environ.get("SLURMD_NODENAME") or socket.gethostname(),
        nodes=number(environ.get("SLURM_JOB_NUM_NODES")),
        cpus=_least(number(environ.get("SLURM_CPUS_ON_NODE")), cores),
        memory_bytes=_least(*_memory(environ, root)),
        gpus=[_named(device) for device in devices],
        variables={name: environ[name] for name in gpu_variables() if name in environ},
    )
    missing = list(_lacks(asked, got))
    if len(devices) < (asked.gpus or 0):
        wrong = (each.misnumbered(root, environ, len(devices)) for each in backends.every())
        missing += filter(None, wrong)
    return dataclasses.replace(got, lacks=missing)


def check(asked: Resources, folder: Path) -> int:
    """Write down and print this node's resources; returns 1 if they are less than the request."""
    got = look(asked)
    _write(folder / f"got-{got.node}.json", got, "wb")
    for line in shown(asked, got):
        print(line, flush=True)
    return 1 if got.lacks else 0


def shown(asked: Resources, got: Got) -> Iterator[str]:
    """Yield the request beside the resources, for the job's log."""
    limit = "" if asked.time_s is None else f", {clock(asked.time_s)} at most"
    yield f"bench-lib: job {_job(os.environ)} on {got.node}{limit}"
    rows = (
        ("nodes", asked.nodes, got.nodes),
        ("cores of the node", asked.cpus, got.cpus),
        ("GPUs of the node", asked.gpus, len(got.gpus)),
        ("memory of the node", gib(asked.memory_bytes), gib(got.memory_bytes)),
    )
    for what, wanted, given in rows:
        asked_for = "not asked for" if wanted is None else f"{wanted} asked for"
        yield f"  {what}: {asked_for}, {'not known' if given is None else given} got"
    for index, gpu in enumerate(got.gpus):
        yield f"  GPU {index}: {gpu}"
    for name in gpu_variables():
        yield f"  {name}={got.variables[name]}" if name in got.variables else f"  {name} is not set"
    for lack in got.lacks:
        yield f"bench-lib: error: {lack}"


def run(asked: Resources, folder: Path, words: Sequence[str]) -> int:
    """Run this interpreter with ``words``, note its use of resources, and return its exit status.

    A SIGTERM is handed on, and the use until then is noted all the same.
    """
    started, told = time.monotonic(), []
    process = subprocess.Popen([sys.executable, *words], stdin=subprocess.DEVNULL)

    def hand_on(signum: int, _: object) -> None:
        told.append(signum)
        process.terminate()

    signal.signal(signal.SIGTERM, hand_on)
    watch = Watch(process.pid, os.environ.get("SLURM_JOB_ID", ""))
    code = process.poll()
    while code is None:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(SAMPLE_S)
        watch.look()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = max(watch.peak_bytes, usage.ru_maxrss * 1024)
    sstat = None if told else _by_sstat()  # there is no time for questions then
    used = Used(
        exit_status=code if code >= 0 else 128 - code,
        wall_s=time.monotonic() - started,
        cpu_s=usage.ru_utime + usage.ru_stime + watch.steps_cpu_s,
        peak_bytes=max(own, sstat or 0),
        peak_by="sstat" if sstat and sstat > own else "its own reading",
    )
    _write(folder / USED_FILE, used, "ab")
    print(f"bench-lib: used {in_words(used, asked)}", flush=True)
    return used.exit_status


def in_words(
    used: Used, asked: Resources, cpus: int | None = None, limit_s: float | None = None
) -> str:
    """Describe the use beside the request.

    ``cpus``, of all nodes, and the time limit are the granted ones, if known.
    """
    parts = []
    if used.peak_bytes is not None:
        part = f"{gib(used.peak_bytes)} of memory at most"
        if asked.memory_bytes:
            share = used.peak_bytes / asked.memory_bytes / asked.nodes
            part += f", {share:.0%} of {gib(asked.memory_bytes * asked.nodes)}"
        parts.append(part)
    cores = cpus or (asked.cpus or 0) * asked.nodes
    part = f"{used.cpu_s:.0f} s of CPU time"
    if cores and used.wall_s > 0:
        part += f", {used.cpu_s / used.wall_s / cores:.0%} of {many(cores, 'core')}"
    parts.append(part)
    limit_s = limit_s or asked.time_s
    limit = "" if limit_s is None else f" of {clock(limit_s)}"
    return "; ".join([*parts, f"{clock(used.wall_s)}{limit}"])


def together(runs: Sequence[Used]) -> Used | None:
    """Return the use by a job's runs, one after another; None if there was none."""
    if not runs:
        return None
    peaks = [each.peak_bytes for each in runs if each.peak_bytes is not None]
    return Used(
        exit_status=next((each.exit_status for each in reversed(runs) if each.exit_status), 0),
        wall_s=sum(each.wall_s for each in runs),
        cpu_s=sum(each.cpu_s for each in runs),
        peak_bytes=max(peaks, default=None),
        peak_by=runs[-1].peak_by,
    )


class Watch:
    """Looks at the suite's processes, and at those that srun started for it on this node.

    Those are no descendants of the suite, but of the job's slurmstepd, whose title is
    ``slurmstepd: [JOB.STEP]``.
    """

    def __init__(self, suite: int, job: str, proc: Path = Path("/proc")) -> None:
        """Watch the process ``suite`` of the job with this number."""
        self._suite, self._job, self._proc = suite, job, proc
        self._steps_s: dict[tuple[int, int], float] = {}
        self.peak_bytes = 0
        """Most memory that all of them held at one look."""

    @property
    def steps_cpu_s(self) -> float:
        """CPU time of the processes that srun started, each as it was last seen."""
        return sum(self._steps_s.values())

    def look(self) -> None:
        """Look once."""
        there = {each.pid: each for each in _processes(self._proc)}
        steps = [pid for pid, each in there.items() if self._is_step(each)]
        others = set(_family(there, steps))
        everything = others.union(_family(there, [self._suite]))
        held = sum(there[pid].held_bytes for pid in everything)
        self.peak_bytes = max(self.peak_bytes, held)
        for pid in others:
            self._steps_s[pid, there[pid].started] = there[pid].cpu_s

    def _is_step(self, each: _Process) -> bool:
        if not self._job or each.name != "slurmstepd":
            return False
        title = text(self._proc / str(each.pid) / "cmdline") or ""
        return bool(re.match(rf"slurmstepd: \[{self._job}\.\d+\]", title))


@dataclass(frozen=True)
class _Process:
    pid: int
    name: str
    parent: int
    cpu_s: float
    started: int
    held_bytes: int


def _processes(proc: Path) -> Iterator[_Process]:
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for folder in proc.glob("[0-9]*"):
        # The name stands in parentheses, and may hold some itself.
        start, _, rest = (text(folder / "stat") or "").rpartition(")")
        fields = rest.split()
        if len(fields) > 21:  # proc(5) counts them from 3
            yield _Process(
                pid=int(folder.name),
                name=start.partition("(")[2],
                parent=int(fields[1]),
                cpu_s=(int(fields[11]) + int(fields[12])) / tick,
                started=int(fields[19]),
                held_bytes=int(fields[21]) * page,
            )


def _family(there: Mapping[int, _Process], first: Sequence[int]) -> list[int]:
    """Return these processes and all that descend from them."""
    children: dict[int, list[int]] = {}
    for each in there.values():
        children.setdefault(each.parent, []).append(each.pid)
    family = [pid for pid in first if pid in there]
    for pid in family:  # which grows meanwhile
        family += children.get(pid, [])
    return family


def gib(size: int | None) -> str | None:
    """Return bytes of memory in GiB, small ones in MiB; None for None."""
    if size is None:
        return None
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def gpu_variables() -> tuple[str, ...]:
    """Return the variables by which Slurm or a vendor chooses GPUs."""
    return (*backends.variables(), "SLURM_JOB_GPUS", "SLURM_STEP_GPUS")


def _gpus(environ: Mapping[str, str], root: Path) -> list[Hardware]:
    return [device for device in backends.detect(root, environ) if backends.is_gpu(device)]


def _lacks(asked: Resources, got: Got) -> Iterator[str]:
    if got.nodes is not None and got.nodes < asked.nodes:
        yield f"{many(asked.nodes, 'node')} asked for, the job has {got.nodes}"
    if asked.cpus and got.cpus is not None and got.cpus < asked.cpus:
        yield (
            f"{many(asked.cpus, 'core')} asked for, {got.cpus} can be used on {got.node} (Slurm "
            "granted them, or the process is bound to them)"
        )
    if asked.gpus and len(got.gpus) < asked.gpus:
        set_to = ", ".join(f"{name}={value}" for name, value in got.variables.items())
        yield (
            f"{many(asked.gpus, 'GPU')} asked for, {len(got.gpus)} can be used on {got.node} "
            f"({set_to or 'no variable names any'})"
        )
    wanted = SLACK * (asked.memory_bytes or 0)
    if got.memory_bytes is not None and got.memory_bytes < wanted:
        yield (
            f"{gib(asked.memory_bytes)} of memory asked for, {gib(got.memory_bytes)} can be used "
            f"on {got.node}"
        )


def _memory(environ: Mapping[str, str], root: Path) -> Iterator[int | None]:
    """Yield each known limit of this node's memory, in bytes."""
    node_mb = number(environ.get("SLURM_MEM_PER_NODE"))
    core_mb = number(environ.get("SLURM_MEM_PER_CPU"))
    cores = number(environ.get("SLURM_CPUS_ON_NODE"))
    yield node_mb and node_mb * 2**20
    yield core_mb and cores and core_mb * cores * 2**20
    if found := re.search(r"MemTotal:\s*(\d+) kB", text(root / "proc/meminfo") or ""):
        yield int(found[1]) * 1024
    for line in (text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.strip("/")
        for folder in (group, *group.parents):
            if folder == top or top in folder.parents:
                yield number(text(folder / name))


def _by_sstat() -> int | None:
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job:
        return None
    with suppress(UserError):
        words = ("--noheader", "--parsable2", "--allsteps", "--jobs", job, "--format=MaxRSS")
        return tools.read_sstat(tools.ask("sstat", *words))
    return None


def _write(path: Path, what: Got | Used, mode: Literal["wb", "ab"]) -> None:
    """Write a line of JSON; raises UserError where the shared folder cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            file.write(msgspec.json.encode(what) + b"\n")
    except OSError as error:
        raise UserError(
            f"cannot write {path} from {socket.gethostname()}: {error.strerror}; --history has to "
            "be a folder that every node can write"
        ) from error


def _job(environ: Mapping[str, str]) -> str:
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environ.get("SLURM_JOB_ID", "none")


def _named(device: Hardware) -> str:
    return " ".join(word for word in (device.name, device.uuid, device.bdf) if word)


def _least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)
