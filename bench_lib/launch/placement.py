"""Which of a launch's ranks this process is, and where they meet, by the launcher's variables.

torchrun, Open MPI's and MPICH's mpirun, and srun each have names of their own for the same four
numbers.  Standard library only: a rank asks before it imports anything else.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from bench_lib.model import UserError

LOCALHOST = "127.0.0.1"
PORTS = range(20000, 32000)
"""Where a job's own port is taken from: below what Linux gives to outgoing connections."""
DEFAULT_PORT = 29500
"""torch's own, where nothing tells one job of this host from another."""


@dataclass(frozen=True)
class Placement:
    """One process among all that its launcher started."""

    rank: int = 0
    """Among all, from 0."""
    local_rank: int = 0
    """Among those of this host, from 0."""
    ranks: int = 1
    """The world size."""
    local_ranks: int | None = 1
    """Those of this host; None where the launcher does not tell."""
    launcher: str | None = None
    """``torchrun``, ``mpirun`` or ``srun``; None for a process that nobody launched."""

    @property
    def is_on_one_host(self) -> bool:
        """Whether all ranks are known to be on this host."""
        return self.local_ranks == self.ranks


@dataclass(frozen=True)
class _Dialect:
    """What a launcher calls its numbers."""

    launcher: str
    rank: str
    local_rank: str
    ranks: str
    local_ranks: str | None = None

    @property
    def names(self) -> tuple[str, str, str]:
        """The three without which a process is nowhere."""
        return self.rank, self.local_rank, self.ranks

    def is_whole(self, environ: Mapping[str, str]) -> bool:
        """Whether all of them are there."""
        return all(name in environ for name in self.names)


TORCHRUN = _Dialect("torchrun", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
OPEN_MPI = _Dialect(
    "mpirun",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
MPICH = _Dialect("mpirun", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS")
SLURM = _Dialect("srun", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS")
SLURM_STEP = "SLURM_STEP_ID"
"""Set in a step's tasks and not in the batch script, which has a SLURM_PROCID of 0 and a
SLURM_NTASKS of many all the same (Slurm 22.05)."""


def placement_of(environ: Mapping[str, str]) -> Placement:
    """Return the place of the process that has these variables.

    torchrun's win, since it may itself have been started by one of the others.  Raises UserError
    where variables are missing, are no numbers, or contradict each other.
    """
    dialect = _dialect(environ)
    if dialect is None:
        return Placement()
    # Whoever sets only torchrun's LOCAL_RANK has one rank a host, and one host.
    if dialect is not TORCHRUN or TORCHRUN.rank in environ or TORCHRUN.ranks in environ:
        _require_whole(dialect, environ)
    local_rank = _number(environ, dialect.local_rank, 0)
    rank = _number(environ, dialect.rank, local_rank)
    ranks = _number(environ, dialect.ranks, 1)
    if rank >= ranks:
        raise UserError(
            f"the rank is {rank} and {dialect.ranks} is {ranks} in the environment; a rank is "
            f"below {dialect.ranks}, and {dialect.launcher} sets both"
        )
    local_ranks = _local_ranks(dialect, environ)
    if local_ranks is not None and not local_rank < local_ranks <= ranks:
        name = dialect.local_ranks or TASKS_PER_NODE
        raise UserError(
            f"{dialect.local_rank} is {local_rank}, {name} says {local_ranks} and {dialect.ranks} "
            f"is {ranks} in the environment; each is below the next or equal to it, and "
            f"{dialect.launcher} sets all three"
        )
    return Placement(rank, local_rank, ranks, local_ranks, dialect.launcher)


def launcher_of(environ: Mapping[str, str]) -> str | None:
    """Return what started the process that has these variables; None where nothing did."""
    dialect = _dialect(environ)
    return None if dialect is None else dialect.launcher


def is_first(environ: Mapping[str, str]) -> bool:
    """Whether this is the rank that speaks for all, also where the variables make no sense."""
    dialect = _dialect(environ)
    return dialect is None or environ.get(dialect.rank, "0") == "0"


def _dialect(environ: Mapping[str, str]) -> _Dialect | None:
    if TORCHRUN.is_whole(environ):
        return TORCHRUN
    if OPEN_MPI.rank in environ:
        return OPEN_MPI
    # Slurm's own PMI sets the rank and the size too, and says nothing of the host.
    if MPICH.rank in environ and (MPICH.local_rank in environ or SLURM_STEP not in environ):
        return MPICH
    # A shell in a step of one task is where people work, and nothing that was launched.
    if SLURM_STEP in environ and environ.get(SLURM.ranks) != "1":
        return SLURM
    # Cluster managers set RANK and WORLD_SIZE for a host, without a launcher.
    return TORCHRUN if TORCHRUN.local_rank in environ else None


def _require_whole(dialect: _Dialect, environ: Mapping[str, str]) -> None:
    missing = [name for name in dialect.names if name not in environ]
    if missing:
        here = next(name for name in (*dialect.names, SLURM_STEP) if name in environ)
        raise UserError(
            f"{here} is {environ[here]!r} in the environment and {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing; {dialect.launcher} sets them all: "
            f"start the ranks with it, or unset {here}"
        )


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise UserError(f"{name} is {text!r} in the environment; the launcher has to set a number")
    return int(text)


TASKS_PER_NODE = "SLURM_STEP_TASKS_PER_NODE"


def _local_ranks(dialect: _Dialect, environ: Mapping[str, str]) -> int | None:
    if dialect.local_ranks is not None:
        name = dialect.local_ranks
        return _number(environ, name, 1) if name in environ else None
    counts: list[int] = []
    for part in environ.get(TASKS_PER_NODE, "").split(","):
        found = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,6})\))?", part)  # 2(x3),1
        if found is None:
            return None
        counts += [int(found[1])] * int(found[2] or 1)
    node = environ.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else None


def device_index(place: Placement, environ: Mapping[str, str]) -> int:
    """Return which of the GPUs that this process sees is its own.

    Slurm and mpirun's wrappers can leave a rank the one GPU that is its own; then that is the
    first.
    """
    if place.launcher == "torchrun":
        return place.local_rank
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        if re.fullmatch(r"[^,\s]+", environ.get(name, "")):
            return 0
    return place.local_rank


# --- where ranks meet ----------------------------------------------------------------------


@dataclass(frozen=True)
class Meeting:
    """Where the ranks of a launch find each other: rank 0 listens there."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The same as torch.distributed wants it."""
        return f"tcp://{self.host}:{self.port}"


def told_meeting(environ: Mapping[str, str]) -> Meeting | None:
    """Return where MASTER_ADDR and MASTER_PORT say; None where neither is set.

    Raises UserError where one is missing, or the port is none.
    """
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if not host and not port:
        return None
    if not host or not port:
        here, missing = ("MASTER_ADDR", "MASTER_PORT") if host else ("MASTER_PORT", "MASTER_ADDR")
        raise UserError(f"{here} is {host or port!r} and {missing} is missing; set both or neither")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        raise UserError(f"MASTER_PORT is {port!r}; it has to be a port from 1 to 65535")
    return Meeting(host, int(port))


def meeting_of(place: Placement, environ: Mapping[str, str]) -> Meeting:
    """Return where the ranks meet: where they are told, or where all of them can find out.

    On one host by its own address, in Slurm on the first of the step's hosts; the port is made
    from the job's number.  Raises UserError where that cannot be known.
    """
    if (told := told_meeting(environ)) is not None:
        return told
    if place.is_on_one_host:
        return Meeting(LOCALHOST, _port(place, environ))
    hosts = environ.get("SLURM_STEP_NODELIST") if place.launcher == "srun" else None
    hosts = hosts or environ.get("SLURM_JOB_NODELIST")
    if not hosts:
        raise UserError(
            "the ranks are on several hosts and do not know where to meet; set MASTER_ADDR to the "
            "host of rank 0 and MASTER_PORT to a free port there, for all of them: with Open MPI "
            "-x MASTER_ADDR=HOST -x MASTER_PORT=29500, with MPICH -genv MASTER_ADDR HOST -genv "
            "MASTER_PORT 29500"
        )
    return Meeting(first_host(hosts), _port(place, environ))


def first_host(hosts: str) -> str:
    """Return the first of a list of hosts as Slurm writes it: ``gpu[07-09,12],login1``."""
    first = re.split(r",(?![^[]*\])", hosts)[0]
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", first)


_JOB = {
    "srun": ("SLURM_JOB_ID", SLURM_STEP),
    "mpirun": ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"),
}
"""What tells one launch from another; MPICH's hydra has nothing that all ranks share."""


def _port(place: Placement, environ: Mapping[str, str]) -> int:
    told = [environ.get(name, "") for name in _JOB.get(place.launcher or "", ())]
    if not any(told):
        return DEFAULT_PORT
    return PORTS[zlib.crc32("/".join(told).encode()) % len(PORTS)]
