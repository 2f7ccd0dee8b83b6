"""A Slurm of one node, this machine, for tests: started for real, and stopped without a trace.

munged, slurmctld and slurmd run as this user with a configuration, ports, a key and state of
their own in a temporary folder; nothing in /etc is read or written.  There is no accounting
database, so `sacct` only says that there is none: what a job used is told by `scontrol`, while
it runs by `sstat`, and by its own readings.  The node shows two GPUs that are none, so that
Slurm hands them out and a job sees what it does not get.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import is_gone, wait_until

DAEMONS = ("munged", "slurmctld", "slurmd")
COMMANDS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
NODE, PARTITION = "bench1", "short"
GPUS = ("/dev/null", "/dev/zero")
"""Slurm wants character devices; two that every machine has."""

CONFIGURATION = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
KillWait=2
DefMemPerCPU=1024
MinJobAge=3600
SlurmctldTimeout=30
SlurmdTimeout=30
GresTypes=gpu
NodeName=DEFAULT CPUs={cpus} RealMemory={memory_mb} Gres=gpu:{gpus}
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1
PartitionName={partition} Nodes={node} Default=YES MaxTime=60 State=UP
"""


def missing() -> str | None:
    """Say why there can be no Slurm here; None where there can."""
    lacking = [name for name in (*DAEMONS, *COMMANDS) if _which(name) is None]
    if not lacking:
        return None
    return f"no {', '.join(lacking)}; apt-get install slurmctld slurmd slurm-client munge"


@dataclass(frozen=True)
class SlurmNode:
    """A running Slurm and how to speak with it."""

    folder: Path
    environment: dict[str, str]
    daemons: tuple[subprocess.Popen[bytes], ...]

    def run(self, *words: str) -> str:
        """Return what a command of Slurm says; raises CalledProcessError where it fails."""
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def is_ready(self) -> bool:
        """Whether the node takes jobs; raises AssertionError where a daemon has ended."""
        for daemon in self.daemons:
            assert daemon.poll() is None, f"{daemon.args} ended:\n{self.logs()}"
        with contextlib.suppress(subprocess.SubprocessError):
            return self.run("sinfo", "--noheader", "--format=%t").strip() == "idle"
        return False

    def processes(self) -> list[int]:
        ours = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and ours in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return [pid for pid in found if pid != os.getpid() and not is_gone(pid)]

    def logs(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in logs)

    def stop(self) -> None:
        """Cancel what runs and end the daemons, the one that the others need last."""
        with contextlib.suppress(subprocess.SubprocessError):
            self.run("scancel", f"--partition={PARTITION}")
            wait_until(lambda: not self.run("squeue", "--noheader").strip())
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def start(folder: Path) -> SlurmNode:
    """Start Slurm in a folder whose path is short enough for a socket."""
    for name in ("state", "spool"):
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    controller_port, node_port = _free_ports(2)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            folder=folder,
            host=socket.gethostname().partition(".")[0],
            user=os.geteuid(),
            controller_port=controller_port,
            node_port=node_port,
            node=NODE,
            partition=PARTITION,
            cpus=os.cpu_count(),
            memory_mb=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20 - 64,
            gpus=len(GPUS),
        )
    )
    (folder / "gres.conf").write_text("".join(f"Name=gpu File={file}\n" for file in GPUS))
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    munged = [
        "--foreground",
        f"--socket={folder}/munge.socket",
        f"--key-file={key}",
        f"--pid-file={folder}/munged.pid",
        f"--log-file={folder}/munged.log",
        f"--seed-file={folder}/munged.seed",
    ]
    daemons = [_start("munged", munged, folder, environment)]
    assert wait_until((folder / "munge.socket").exists)
    daemons.append(_start("slurmctld", ["-D", "-c"], folder, environment))
    daemons.append(_start("slurmd", ["-D", "-N", NODE], folder, environment))
    return SlurmNode(folder, environment, tuple(daemons))


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmNode]:
    """Give a Slurm that takes jobs; afterwards nothing of it is there any more."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # sockets have short names
    folder.chmod(0o755)
    node = start(folder)
    try:
        assert wait_until(node.is_ready), node.logs()
        yield node
    finally:
        node.stop()
        wait_until(lambda: not node.processes())  # the step of a job that is over may be ending
        left = node.processes()
        shutil.rmtree(folder)
    assert not left, f"processes of Slurm are left behind: {left}"


def _start(
    name: str, words: Sequence[str], folder: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    path = _which(name)
    assert path is not None
    # So that a test run that is killed leaves nothing either.
    with_us = ["setpriv", "--pdeathsig", "TERM"] if _which("setpriv") else []
    with (folder / f"{name}.out.log").open("wb") as log:
        return subprocess.Popen(
            [*with_us, path, *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
