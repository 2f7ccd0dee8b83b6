"""A launcher: the command that starts ranks, and the variables that tell each its place.

Standard library only: a rank asks for its place before it imports anything else.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bench_lib.launch.faults import LaunchError
from bench_lib.model import UserError

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

    def condition(self, words: Sequence[str]) -> str:  # noqa: ARG002 - for others
        """Return the name that a baseline keeps of it, by the user's words for it."""
        return self.name

    # --- who a process is ------------------------------------------------------------------

    def variables_in(self, environ: Mapping[str, str]) -> RankVariables | None:
        """Return the variables that place a process; None if this launcher did not start it."""
        return next((each for each in self.variables if each.rank in environ), None)

    def is_whole_in(self, environ: Mapping[str, str]) -> bool:
        """Whether this launcher started the process, and all needed variables are set."""
        found = self.variables_in(environ)
        return found is not None and all(name in environ for name in found.needed)

    def who_am_i(self, environ: Mapping[str, str]) -> Placement:
        """Return the place of a process that this launcher started.

        Raises UserError where variables are missing, are no numbers, or contradict each other.
        """
        variables = self.variables_in(environ)
        assert variables is not None
        self._require(variables, environ)
        local_rank = number(environ, variables.local_rank)
        rank = number(environ, variables.rank)
        ranks = number(environ, variables.ranks)
        if rank >= ranks:
            raise UserError(
                f"the rank is {rank} and {variables.ranks} is {ranks} in the environment; a rank "
                f"is below {variables.ranks}, and {self.name} sets both"
            )
        local_ranks = self.local_ranks(variables, environ)
        if local_ranks is not None and not local_rank < local_ranks <= ranks:
            raise UserError(
                f"{variables.local_rank} is {local_rank}, {variables.local_ranks} says "
                f"{local_ranks} and "
                f"{variables.ranks} is {ranks} in the environment; each is below the next or equal "
                f"to it, and {self.name} sets all three"
            )
        return Placement(rank, local_rank, ranks, local_ranks, self.name)

    def local_ranks(self, variables: RankVariables, environ: Mapping[str, str]) -> int | None:
        """Return the number of ranks on this host; None if unknown."""
        name = variables.local_ranks
        return number(environ, name) if name is not None and name in environ else None

    def _require(self, variables: RankVariables, environ: Mapping[str, str]) -> None:
        missing = [name for name in variables.needed if name not in environ]
        if missing:
            here = next(name for name in variables.needed if name in environ)
            raise UserError(
                f"{here} is {environ[here]!r} in the environment and {' and '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing; {self.name} sets them all: "
                f"start the ranks with it, or unset {here}"
            )

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
        told = [environ.get(name, "") for name in self.job]
        if not any(told):
            return DEFAULT_PORT
        return PORTS[zlib.crc32("/".join(told).encode()) % len(PORTS)]


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


# --- ranks that another launcher has started already -----------------------------------------


class Gathered(Launcher):
    """Hands work to ranks of ``mpirun -np 2 bench-lib train``, which wait for it; no user names it.

    They wait in ``launch/gathering.py``.
    """

    name = "gathered"
    variables = (
        RankVariables(
            "BENCH_LIB_GATHERED_RANK",
            "BENCH_LIB_GATHERED_LOCAL_RANK",
            "BENCH_LIB_GATHERED_SIZE",
            "BENCH_LIB_GATHERED_LOCAL_SIZE",
        ),
    )
    own = r"BENCH_LIB_GATHERED_\w+"

    @staticmethod
    def asked(folder: Path, launcher: str, ranks: int) -> str:
        """Return what BENCH_LIB_LAUNCHER says where a launcher's ranks wait in a folder."""
        return shlex.join([Gathered.name, str(folder), launcher, str(ranks)])

    def command(self, wanted: RanksWanted) -> LaunchCommand:
        """Return the command; raises LaunchError where fewer ranks wait than are wanted."""
        folder, launcher, ranks = wanted.words
        if wanted.ranks > int(ranks):
            raise LaunchError(
                f"{launcher} started {ranks} ranks, and a case has {wanted.ranks}; start as many, "
                "or ask for fewer"
            )
        words = (sys.executable, "-m", "bench_lib.launch.gathering", folder, str(wanted.ranks))
        return LaunchCommand(launcher, (*words, wanted.python), wanted.ranks, hosts=None)

    def condition(self, words: Sequence[str]) -> str:
        """Return the name of the launcher that started the ranks."""
        return words[1]

    def waiting(self, text: str) -> int | None:
        """Return how many ranks wait, by BENCH_LIB_LAUNCHER; None if none do."""
        name, *words = shlex.split(text) or [""]
        return int(words[2]) if name == self.name and len(words) == 3 else None

    def variables_for(
        self, rank: int, local_rank: int, ranks: int, local_ranks: int
    ) -> Mapping[str, str]:
        """Return the variables that tell a process its place."""
        (names,) = self.variables
        assert names.local_ranks is not None
        return {
            names.rank: str(rank),
            names.local_rank: str(local_rank),
            names.ranks: str(ranks),
            names.local_ranks: str(local_ranks),
        }
