"""Inside a job: compare what this node grants with what was asked for.

``python -m bench_lib.slurm.check --gpus 8 --mem 512G`` prints both and ends with 1 if the job got
less.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench_lib import backends
from bench_lib.backends.sysfs import ROOT, text
from bench_lib.model import UserError
from bench_lib.slurm.script import Resources

SLACK = 0.99
"""Limits are rounded to pages: only less than this share of the request is too little."""
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([KMGT]?)(?:i?B)?", re.IGNORECASE)


def size(amount: str) -> int:
    """Return the bytes of ``64G``, or of MiB without a unit, as sbatch reads it.

    Raises UserError if it is no amount.
    """
    match = _SIZE.fullmatch(amount.strip())
    found = int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or "M")) if match else 0
    if found < 2**20:
        raise UserError(
            f"--mem {amount!r} is no amount of memory; write 64G or 500M, or leave it out for "
            "what the partition gives"
        )
    return found


def report(
    asked: Resources,
    *,
    environ: Mapping[str, str] = os.environ,
    root: Path = ROOT,
    affinity: int | None = None,
) -> tuple[list[str], list[str]]:
    """Return what this node grants beside the request, and what it lacks, in lines.

    Cores are those that Slurm granted or that this process may run on (``affinity``), whichever
    are fewer; memory is the least of Slurm's variables, the control groups' limits, and what the
    node has; GPUs are those that torch would see.
    """
    node = environ.get("SLURMD_NODENAME") or socket.gethostname()
    gpus = [gpu for gpu in backends.detect(root, environ) if backends.is_gpu(gpu)]
    cores = affinity or len(os.sched_getaffinity(0))
    memory = _least(*_memory(environ, root))
    memory_asked = None if asked.mem is None else size(asked.mem)
    nodes = _number(environ, "SLURM_JOB_NUM_NODES")
    cpus = _least(_number(environ, "SLURM_CPUS_ON_NODE"), cores)
    lines = [f"bench-lib: job {environ.get('SLURM_JOB_ID', 'none')} on {node}"]
    lacks = []
    for what, wanted, got, is_less in (
        ("nodes", asked.nodes, nodes, (nodes or asked.nodes) < asked.nodes),
        ("cores of the node", asked.cpus, cpus, (cpus or 0) < (asked.cpus or 0)),
        ("GPUs of the node", asked.gpus, len(gpus), len(gpus) < (asked.gpus or 0)),
        (
            "memory of the node",
            _gib(memory_asked),
            _gib(memory),
            memory is not None and memory < SLACK * (memory_asked or 0),
        ),
    ):
        asked_for = "not asked for" if wanted is None else f"{wanted} asked for"
        granted = "not known" if got is None else f"{got} granted"
        lines.append(f"  {what}: {asked_for}, {granted}")
        if is_less:
            lacks.append(f"{node} grants less than the job asked for: {what}: {wanted}, got {got}")
    for index, gpu in enumerate(gpus):
        named = " ".join(word for word in (gpu.name, gpu.uuid, gpu.bdf) if word)
        lines.append(f"  GPU {index}: {named}")
    for name in (*backends.variables(), "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"):
        value = f"={environ[name]}" if name in environ else " is not set"
        lines.append(f"  {name}{value}")
    if len(gpus) < (asked.gpus or 0):
        reasons = (each.misnumbered(root, environ, len(gpus)) for each in backends.every())
        lacks += filter(None, reasons)
    return lines, lacks


def _memory(environ: Mapping[str, str], root: Path) -> Iterator[int | None]:
    """Yield each known limit of this node's memory, in bytes."""
    node_mb = _number(environ, "SLURM_MEM_PER_NODE")
    core_mb = _number(environ, "SLURM_MEM_PER_CPU")
    cores = _number(environ, "SLURM_CPUS_ON_NODE")
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
                limit = text(folder / name) or ""
                yield int(limit) if limit.strip().isdecimal() else None


def _number(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name, "")
    return int(value) if value.isdecimal() else None


def _least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _gib(amount: int | None) -> str | None:
    """Return bytes of memory in GiB, small ones in MiB."""
    if amount is None:
        return None
    return f"{amount / 2**30:.1f} GiB" if amount >= 2**30 else f"{amount / 2**20:.0f} MiB"


def main() -> int:
    """Print the request beside the grant; return 1 if the job got less."""
    parser = argparse.ArgumentParser(prog="python -m bench_lib.slurm.check")
    for option in ("--nodes", "--cpus", "--gpus"):
        parser.add_argument(option, type=int, default=1 if option == "--nodes" else None)
    parser.add_argument("--mem")
    lines, lacks = report(Resources(**vars(parser.parse_args())))
    print("\n".join(lines), flush=True)
    for lack in lacks:
        print(f"bench-lib: error: {lack}", file=sys.stderr)
    return 1 if lacks else 0


if __name__ == "__main__":
    sys.exit(main())
