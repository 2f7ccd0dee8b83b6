"""The launchers, torchrun, mpirun and srun: how ranks are started, and how each knows its place.

Standard library only: a rank asks for its place before it imports anything else.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from bench_lib.launch.faults import LaunchError
from bench_lib.model import UserError

if TYPE_CHECKING:
    from bench_lib.model import Environment

VARIABLE = "BENCH_LIB_LAUNCHER"
"""A launcher's name and perhaps words of its own: ``srun -p gpu``."""
SHARED_VARIABLE = "BENCH_LIB_SHARED"
"""A folder that all hosts see, for the ranks' files."""
LAUNCHED_VARIABLE = "BENCH_LIB_LAUNCHED"
"""How many times a launcher has started this command, of which one goes on."""
MEETING = ("MASTER_ADDR", "MASTER_PORT")
MOST_ON_A_CPU = 64
"""Ranks that are started where there is no GPU: enough to try what a cluster does."""
LOCALHOST = "127.0.0.1"
PORTS = range(20000, 32000)
"""A job's own port is one of these: below those that Linux gives to outgoing connections."""
DEFAULT_PORT = 29500
"""torch's own, where nothing tells one job of this host from another."""
JOB_HOSTS = "SLURM_JOB_NODELIST"


@dataclass(frozen=True)
class RanksWanted:
    """The ranks that are to be started."""

    ranks: int
    words: tuple[str, ...]
    """The user's own words for the launcher: ``-p gpu``."""
    python: str
    """The interpreter that measures."""
    environ: Mapping[str, str]
    gpus: int | None = None
    """Those of one host; None if unknown, or on a CPU."""


@dataclass(frozen=True)
class LaunchCommand:
    """The start of a command line: it runs what follows it as ranks."""

    launcher: str
    """The launcher's name: a condition of a baseline."""
    words: tuple[str, ...]
    """Before ``-m bench_lib.worker``, the interpreter among them."""
    ranks: int
    hosts: int | None = 1
    """None if only the launcher knows."""
    folder: Path | None = None
    """The folder where it starts; None is our own folder."""

    def is_alone(self, environ: Mapping[str, str]) -> bool:
        """Whether no launch may run beside it.

        Several hosts meet where all launches of a job do, as ranks do at a port that the user
        names; and a step of srun waits until the one before it has ended.
        """
        meets = any(environ.get(name) for name in MEETING)
        return self.hosts != 1 or self.launcher == "srun" or meets


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
    """Those of this host; None if the launcher does not say."""
    launcher: str | None = None
    """The launcher's name; None for a process that no launcher started."""

    @property
    def is_on_one_host(self) -> bool:
        """Whether all ranks are surely on this host."""
        return self.local_ranks == self.ranks


@dataclass(frozen=True)
class Meeting:
    """The meeting point of a launch's ranks: rank 0 listens there."""

    host: str
    port: int
    served: bool = False
    """Whether the launcher itself listens there already, and rank 0 must not."""

    @property
    def url(self) -> str:
        """The same as torch.distributed wants it."""
        return f"tcp://{self.host}:{self.port}"


@dataclass(frozen=True)
class RankVariables:
    """The names of the variables in which a launcher tells a process its place."""

    rank: str
    local_rank: str
    ranks: str
    local_ranks: str | None = None

    @property
    def needed(self) -> tuple[str, str, str]:
        """The three without which a place is unknown."""
        return self.rank, self.local_rank, self.ranks


class Launcher(ABC):
    """One way to start ranks; a subclass is all that bench-lib knows of it."""

    name: ClassVar[str]
    """The user's word for it, and the name of its program."""
    install: ClassVar[str] = "install it"
    """How to get its program."""
    variables: ClassVar[tuple[RankVariables, ...]]
    """The variables of each of its implementations."""
    own: ClassVar[str] = ""
    """A pattern of variables that must not reach the ranks of another launch."""
    job: ClassVar[tuple[str, ...]] = ()
    """Variables, equal on all ranks, that tell one launch from another."""
    host_lists: ClassVar[tuple[str, ...]] = (JOB_HOSTS,)
    """Variables with the hosts of the ranks as Slurm writes them; the first one set counts."""

    @abstractmethod
    def command(self, wanted: RanksWanted) -> LaunchCommand:
        """Return the command that starts ranks; raises LaunchError where it cannot."""

    def program(self, environ: Mapping[str, str]) -> str:
        """Return the path of its program; raises LaunchError where it is not available."""
        path = shutil.which(self.name, path=environ.get("PATH"))
        if path is None:
            raise LaunchError(
                f"there is no {self.name} in PATH; {self.install}, or choose another launcher"
            )
        return path

    # --- who a process is ------------------------------------------------------------------

    def variables_in(self, environ: Mapping[str, str]) -> RankVariables | None:
        """Return the variables that place a process; None if this launcher did not start it."""
        return next((each for each in self.variables if each.rank in environ), None)

    def who_am_i(self, environ: Mapping[str, str]) -> Placement:
        """Return the place of a process that this launcher started.

        Raises UserError where variables are missing, are no numbers, or contradict each other.
        """
        variables = self.variables_in(environ)
        assert variables is not None
        if missing := [name for name in variables.needed if name not in environ]:
            here = next(name for name in variables.needed if name in environ)
            raise UserError(
                f"{here} is {environ[here]!r} in the environment and {' and '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing; {self.name} sets them all: "
                f"start the ranks with it, or unset {here}"
            )
        local_rank = number(environ, variables.local_rank)
        rank = number(environ, variables.rank)
        ranks = number(environ, variables.ranks)
        if rank >= ranks:
            raise UserError(
                f"the rank is {rank} and {variables.ranks} is {ranks} in the environment; a rank "
                f"is below {variables.ranks}, and {self.name} sets both"
            )
        return Placement(rank, local_rank, ranks, self.local_ranks(variables, environ), self.name)

    def local_ranks(self, variables: RankVariables, environ: Mapping[str, str]) -> int | None:
        """Return the number of ranks on this host; None if unknown."""
        name = variables.local_ranks
        return number(environ, name) if name is not None and name in environ else None

    def device_index(self, place: Placement, environ: Mapping[str, str]) -> int:
        """Return which of the GPUs that a rank sees is its own.

        The local rank's, unless the rank sees one GPU: then the launcher left it its own.
        """
        for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
            if re.fullmatch(r"[^,\s]+", environ.get(name, "")):
                return 0
        return place.local_rank

    # --- where ranks meet ------------------------------------------------------------------

    def meeting_point(self, place: Placement, environ: Mapping[str, str]) -> Meeting:
        """Return where the ranks meet: the point that was set, or one that all of them can find.

        On one host by its own address, else on the first of the hosts; the port is made from the
        job's number.  Raises UserError if that is unknown.
        """
        if (told := told_meeting(environ)) is not None:
            return told
        if place.is_on_one_host:
            return Meeting(LOCALHOST, self._port(environ))
        hosts = next((environ[name] for name in self.host_lists if environ.get(name)), None)
        if hosts is None:
            raise UserError(
                "the ranks are on several hosts and do not know where to meet; set MASTER_ADDR to "
                "the host of rank 0 and MASTER_PORT to a free port there, for all of them: with "
                "Open MPI -x MASTER_ADDR=HOST -x MASTER_PORT=29500, with MPICH -genv MASTER_ADDR "
                "HOST -genv MASTER_PORT 29500"
            )
        return Meeting(first_host(hosts), self._port(environ))

    def _port(self, environ: Mapping[str, str]) -> int:
        job = [environ.get(name, "") for name in self.job]
        if any(job):
            return PORTS[zlib.crc32("/".join(job).encode()) % len(PORTS)]
        return DEFAULT_PORT


def number(environ: Mapping[str, str], name: str) -> int:
    """Return a variable's whole number; raises UserError where it is none."""
    text = environ[name]
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise UserError(f"{name} is {text!r} in the environment; the launcher has to set a number")
    return int(text)


def told_meeting(environ: Mapping[str, str]) -> Meeting | None:
    """Return the meeting point in MASTER_ADDR and MASTER_PORT; None if neither is set.

    Raises UserError if one is missing, or the port is none.
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


def first_host(hosts: str) -> str:
    """Return the first of a list of hosts as Slurm writes it: ``gpu[07-09,12],login1``."""
    first = re.split(r",(?![^[]*\])", hosts)[0]
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", first)


def has(words: Sequence[str], *options: str) -> bool:
    """Whether one of these options is among the words, with or without its value attached."""
    return any(word.partition("=")[0] in options for word in words)


def host_count(words: Sequence[str], short: str, long: str) -> int | None:
    """Return the number of hosts that an option has among the words; raises LaunchError."""
    for i, word in enumerate(words):
        name, given, value = word.partition("=")
        if name in (short, long):
            value = value if given else next(iter(words[i + 1 :]), "")
        elif len(short) == 2 and word.startswith(short) and not word.startswith("--"):
            value = word.removeprefix(short)
        else:
            continue
        if not value.isdecimal() or not int(value):
            raise LaunchError(f"{name} {value!r}: the launcher needs a number of hosts, from 1 on")
        return int(value)
    return None


# --- srun --------------------------------------------------------------------------------

STEP = "SLURM_STEP_ID"
"""Set in a step's tasks and not in the batch script, which has a SLURM_PROCID of 0 and a
SLURM_NTASKS of many all the same (Slurm 22.05)."""


class Srun(Launcher):
    """Starts ranks on as many hosts as their GPUs need, or as ``--nodes`` says."""

    name = "srun"
    install = "apt-get install slurm-client, and run inside a Slurm cluster"
    variables = (
        RankVariables(
            "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"
        ),
    )
    job = ("SLURM_JOB_ID", STEP)
    host_lists = ("SLURM_STEP_NODELIST", JOB_HOSTS)

    def command(self, wanted: RanksWanted) -> LaunchCommand:
        """Return the command; without GPUs and without ``--nodes N`` one host is taken."""
        hosts = host_count(wanted.words, "-N", "--nodes")
        words: list[str] = []
        if hosts is None:
            hosts = _hosts_needed(wanted)
            words.append(f"--nodes={hosts}")
        words += [f"--ntasks={wanted.ranks}", *wanted.words]
        around = step(words, wanted.environ)
        return LaunchCommand(self.name, (*around, wanted.python), wanted.ranks, hosts)

    def variables_in(self, environ: Mapping[str, str]) -> RankVariables | None:
        """Return its variables; a step of one task is a shell where people work."""
        (variables,) = self.variables
        is_ours = STEP in environ and any(name in environ for name in variables.needed)
        return variables if is_ours and environ.get(variables.ranks) != "1" else None

    def local_ranks(self, variables: RankVariables, environ: Mapping[str, str]) -> int | None:
        """Return this host's part of ``2(x3),1``."""
        counts: list[int] = []
        for part in environ.get(variables.local_ranks or "", "").split(","):
            found = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,6})\))?", part)
            if found is None:
                return None
            counts += [int(found[1])] * int(found[2] or 1)
        node = environ.get("SLURM_NODEID", "")
        return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else None


def step(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a step of Slurm that ends with the first rank that fails; raises LaunchError."""
    path = Srun().program(environ)
    own = ["--kill-on-bad-exit=1", "--export=ALL", "--mpi=none", "--input=none", "--unbuffered"]
    if not has(words, "--cpu-bind"):
        own.append("--cpu-bind=none")
    if STEP in environ and not has(words, "--overlap"):
        own.append("--overlap")  # the step that we are in holds what this one needs
    return (path, *own, *words)


def _hosts_needed(wanted: RanksWanted) -> int:
    there = wanted.environ.get("SLURM_JOB_NUM_NODES", "1")
    most = int(there) if there.isdecimal() else 1
    return min(max(1, most), -(-wanted.ranks // wanted.gpus)) if wanted.gpus else 1


# --- mpirun ------------------------------------------------------------------------------

ANSWER_S = 20.0
OPEN_MPI = RankVariables(
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
MPICH = RankVariables("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS")

_HOSTS = ("--host", "-host", "-H", "--hostfile", "-hostfile", "-machinefile", "--machinefile")
_HYDRA_HOSTS = ("-hosts", "--hosts", "-host", "-f", "-hostfile", "-machinefile")
_BINDING = ("--bind-to", "-bind-to", "--map-by", "-map-by")
TOLD = re.compile(
    r"(AITER|AMD|AMDGCN|ATEN|BENCH_LIB|CUBLAS|CUDA|DEBUG_CLR|DISABLE_ADDMM|FLASH_ATTENTION|GLOO"
    r"|GOMP|GPU|HIP|HIPBLASLT|HSA|KMP|LD|MALLOC|MASTER|MIOPEN|MKL|NCCL|NVIDIA|NVSHMEM|OMP|ONEDNN"
    r"|OPENBLAS|PYTHON|PYTORCH|RCCL|ROCBLAS|ROCM?|ROCR|SGLANG|TENSILE|TORCH|TORCHDYNAMO"
    r"|TORCHINDUCTOR|TRITON|VLLM)_\w+"
    r"|PATH|PYTHONPATH|VIRTUAL_ENV"
)
"""Variables that ranks of other hosts need: Open MPI takes only those along that are named."""


class Mpirun(Launcher):
    """Starts ranks that may use all cores: data loading has threads and processes of its own."""

    name = "mpirun"
    install = "apt-get install openmpi-bin, or mpich"
    variables = (OPEN_MPI, MPICH)
    own = (
        r"(PMI|PMIX|HYDI)_\w+|MPI_LOCALN?RANK(S|ID)|OMPI_COMM_WORLD_\w+"
        r"|OMPI_MCA_(ess|orte|pmix)_\w+"
    )
    job = ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE")  # MPICH's hydra has none

    def command(self, wanted: RanksWanted) -> LaunchCommand:
        """Return the command, for whichever mpirun is there; raises LaunchError."""
        extra, environ = wanted.words, wanted.environ
        path = self.program(environ)
        words = [path, "-np", str(wanted.ranks)]
        if is_open_mpi(path):
            alone = _is_alone(environ) and not has(extra, *_HOSTS)
            if not has(extra, *_BINDING):
                words += ["--bind-to", "none"]
                if alone:  # slots are cores, of which small machines have few
                    words += ["--map-by", "slot:OVERSUBSCRIBE"]
            if os.geteuid() == 0:
                words.append("--allow-run-as-root")
            told = sorted({"PYTHONPATH", *(name for name in environ if TOLD.fullmatch(name))})
            words += [word for name in told for word in ("-x", name)]
        else:
            alone = _is_alone(environ) and not has(extra, *_HYDRA_HOSTS)
            words += ["-genvall"] if has(extra, *_BINDING) else ["-bind-to", "none", "-genvall"]
        hosts = 1 if alone else None
        return LaunchCommand(self.name, (*words, *extra, wanted.python), wanted.ranks, hosts)

    def variables_in(self, environ: Mapping[str, str]) -> RankVariables | None:
        """Return its variables; Slurm's own PMI has MPICH's rank and size, and no local rank."""
        found = super().variables_in(environ)
        is_slurms = found is MPICH and MPICH.local_rank not in environ and STEP in environ
        return None if is_slurms else found


def _is_alone(environ: Mapping[str, str]) -> bool:
    """Whether there is one host: both mpiruns ask Slurm."""
    return environ.get("SLURM_JOB_NUM_NODES", "1") == "1"


@functools.cache
def is_open_mpi(path: str) -> bool:
    """Ask an mpirun which one it is; raises LaunchError where it is neither we know."""
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{path} --version: {error}") from error
    if "Open MPI" in done.stdout or "OpenRTE" in done.stdout:
        return True
    if "HYDRA" in done.stdout or "Intel(R) MPI" in done.stdout:
        return False
    said = (done.stdout + done.stderr).strip().splitlines()[:1]
    raise LaunchError(
        f"{path} is neither Open MPI's nor MPICH's (it says {' '.join(said) or 'nothing'!r}); put "
        "one of them first in PATH"
    )


# --- torchrun ----------------------------------------------------------------------------


class Torchrun(Launcher):
    """Starts ranks on this host; in a Slurm allocation also on several, one torchrun a host."""

    name = "torchrun"
    variables = (RankVariables("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),)
    own = r"(LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|(ROLE|TORCHELASTIC)_\w+"

    def command(self, wanted: RanksWanted) -> LaunchCommand:
        """Return the command; with ``--nnodes N`` srun starts a torchrun on each of N hosts.

        Raises LaunchError where the ranks cannot be shared out, or nothing reaches other hosts.
        """
        extra, environ = wanted.words, wanted.environ
        start = (wanted.python, "-m", "torch.distributed.run")
        hosts = host_count(extra, "--nnodes", "--nnodes") or 1
        if hosts == 1:
            one = ("--standalone", f"--nproc-per-node={wanted.ranks}")
            return LaunchCommand(self.name, (*start, *one, *extra), wanted.ranks)
        each, left = divmod(wanted.ranks, hosts)
        if left or not each:
            raise LaunchError(
                f"{wanted.ranks} ranks cannot be shared out evenly among --nnodes {hosts}"
            )
        if "SLURM_JOB_ID" not in environ:
            raise LaunchError(
                "torchrun starts the ranks of its own host only, and outside a Slurm allocation "
                f"there is nothing that starts it on {hosts}; take mpirun --host A:{each},B:{each},"
                " or srun"
            )
        words = ["--nproc-per-node", str(each), *extra]
        if not has(extra, "--rdzv-endpoint", "--rdzv_endpoint"):
            host = first_host(environ.get(JOB_HOSTS, "localhost"))
            port = PORTS[int(environ["SLURM_JOB_ID"]) % len(PORTS)]
            words += ["--rdzv-endpoint", f"{host}:{port}"]
        if not has(extra, "--rdzv-backend", "--rdzv_backend"):
            words += ["--rdzv-backend", "c10d", "--rdzv-id", environ["SLURM_JOB_ID"]]
        around = step([f"--nodes={hosts}", "--ntasks-per-node=1"], environ)
        return LaunchCommand(self.name, (*around, *start, *words), wanted.ranks, hosts)

    def variables_in(self, environ: Mapping[str, str]) -> RankVariables | None:
        """Return its variables; cluster managers set all but LOCAL_RANK without a launcher."""
        return self.variables[0] if "LOCAL_RANK" in environ else None

    def who_am_i(self, environ: Mapping[str, str]) -> Placement:
        """Return the place of a process; LOCAL_RANK alone is one rank of one."""
        if not {"RANK", "WORLD_SIZE"} & environ.keys():
            environ = {**environ, "RANK": environ["LOCAL_RANK"], "WORLD_SIZE": "1"}
        return super().who_am_i(environ)

    def device_index(self, place: Placement, environ: Mapping[str, str]) -> int:  # noqa: ARG002 - as every launcher
        """Return the local rank: all ranks of a host see the same GPUs."""
        return place.local_rank

    def meeting_point(self, place: Placement, environ: Mapping[str, str]) -> Meeting:
        """Return where torchrun's agent listens."""
        served = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return replace(super().meeting_point(place, environ), served=served)


# --- which there are ---------------------------------------------------------------------

ALL: tuple[Launcher, ...] = (Torchrun(), Mpirun(), Srun())
"""The first whose variables are whole counts: each may itself have been started by the next."""
DEFAULT = ALL[0].name


def _named(name: str | None) -> Launcher | None:
    return next((launcher for launcher in ALL if launcher.name == name), None)


# --- who a process is ----------------------------------------------------------------------


def who_am_i(environ: Mapping[str, str]) -> Placement:
    """Return the place of the process that has these variables.

    Raises UserError where variables are missing, are no numbers, or contradict each other.
    """
    launcher = _launcher_in(environ)
    return Placement() if launcher is None else launcher.who_am_i(environ)


def device_index(place: Placement, environ: Mapping[str, str]) -> int:
    """Return which of the GPUs that a process sees is its own."""
    return _starter(place).device_index(place, environ)


def meeting_point(place: Placement, environ: Mapping[str, str]) -> Meeting:
    """Return where the ranks of a launch meet; raises UserError where that is unknown."""
    return _starter(place).meeting_point(place, environ)


def without_ranks(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables less those that say which rank of another launch this process is."""
    own = re.compile("|".join(launcher.own for launcher in ALL))
    return {name: value for name, value in environ.items() if not own.fullmatch(name)}


def go_on_alone(place: Placement) -> None:
    """Be no rank of our own launch any more: each case starts its ranks by the same launcher.

    To be called in one process of a command that was started several times.  It may use the cores
    of the others.
    """
    kept = without_ranks(os.environ)
    if place.launcher == Torchrun.name:  # it listens there itself, so that no rank can
        kept = {name: value for name, value in kept.items() if name not in MEETING}
    for name in os.environ.keys() - kept.keys():
        del os.environ[name]
    os.environ.setdefault(VARIABLE, place.launcher or DEFAULT)
    os.environ[LAUNCHED_VARIABLE] = str(place.ranks)
    with contextlib.suppress(OSError):  # a cluster may not let us have the others' cores
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def ranks_launched() -> int | None:
    """Return how many times a launcher has started this command; None if it was started alone."""
    ranks = os.environ.get(LAUNCHED_VARIABLE)
    return None if ranks is None else int(ranks)


def _launcher_in(environ: Mapping[str, str]) -> Launcher | None:
    """Return the launcher that started a process: one whose variables are whole, if any."""
    claims = []
    for launcher in ALL:
        variables = launcher.variables_in(environ)
        if variables is not None and all(name in environ for name in variables.needed):
            return launcher
        if variables is not None:
            claims.append(launcher)
    return claims[-1] if claims else None


def _starter(place: Placement) -> Launcher:
    starter = _named(place.launcher or DEFAULT)
    assert starter is not None, place
    return starter


# --- what starts ranks ---------------------------------------------------------------------


def command_for(
    ranks: int,
    text: str | None = None,
    *,
    python: str = sys.executable,
    environ: Mapping[str, str] = os.environ,
    gpus: int | None = None,
) -> LaunchCommand:
    """Return what starts ranks, by the launcher in ``text`` or BENCH_LIB_LAUNCHER.

    torchrun on this host where nobody asked.  ``gpus`` are those of one host: in a Slurm
    allocation of several, srun takes as many hosts as the ranks need.  Raises LaunchError where
    there is no such launcher, or it is not installed.
    """
    launcher, words = read(_asked(text, environ))
    return launcher.command(RanksWanted(ranks, words, python, environ, gpus))


def name_of(text: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of the launcher that ``command_for`` would take; raises LaunchError."""
    launcher, _ = read(_asked(text, environ))
    return launcher.name


def noted_in(described: Environment, name: str | None) -> Environment:
    """Add a launcher's name where it is not the usual one: it is a condition of several ranks."""
    if name in (None, DEFAULT):
        return described
    return replace(described, variables={**described.variables, VARIABLE: name})


def _asked(text: str | None, environ: Mapping[str, str]) -> str:
    return text if text is not None else environ.get(VARIABLE) or DEFAULT


def read(text: str) -> tuple[Launcher, tuple[str, ...]]:
    """Return the launcher that a user wrote, and the words for it; raises LaunchError."""
    try:
        name, *words = shlex.split(text) or [""]
    except ValueError as error:
        raise LaunchError(f"the launcher is {text!r}: {error}") from error
    launcher = _named(name)
    if launcher is None:
        *names, last = (each.name for each in ALL)
        raise LaunchError(
            f"the launcher is {text!r}; it has to be {', '.join(names)} or {last}, and then "
            'perhaps words of its own, such as "srun -p gpu"'
        )
    return launcher, tuple(words)


def too_many(command: LaunchCommand, gpus: int | None) -> str | None:
    """Say why hosts with so many GPUs each, or with a CPU alone, cannot run the ranks.

    None if they can.  With several hosts only the launcher knows their GPUs.
    """
    if command.hosts is None:
        return None
    if gpus is None:
        if command.ranks <= MOST_ON_A_CPU:
            return None
        return (
            f"{command.ranks} ranks need {command.ranks} GPUs; there is none, and on a CPU at "
            f"most {MOST_ON_A_CPU} are started"
        )
    there = gpus * command.hosts
    if command.ranks <= there:
        return None
    where = "" if command.hosts == 1 else f" on {command.hosts} hosts"
    verb = "is" if there == 1 else "are"
    return f"{command.ranks} ranks need {command.ranks} GPUs; {there} {verb} visible{where}"
