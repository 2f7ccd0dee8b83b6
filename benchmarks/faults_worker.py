"""A worker for benchmarks/faults.py: the real zygote, and contexts that do what a case names.

    python -S benchmarks/faults_worker.py [any words]             the zygote
    python -S benchmarks/faults_worker.py telemetry INDEX         what watches a device
    python -S benchmarks/faults_worker.py -np N ... FOLDER        mpirun, and its ranks

The zygote is the project's own, with stand-ins where it imports torch; it forks real processes,
which answer over the real socket.  Standard library only, so that it starts in no time.  What a
case does is its parameter ``does``; what is to happen once happens once, which a file in
``$FAULTS_STATE`` remembers, and every order that a context is given is a line of ``orders`` there.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

STATE = Path(os.environ["FAULTS_STATE"])
HANG_S = 3600.0
LOOK_S = 0.02
"""Between two samples of the device."""
SEEN_S = 10.0
"""So long telemetry may take to see it."""
USUAL_S = 0.01
"""What a step takes."""
WORK_S = 0.1
KERNELS = [{"name": "gemm_kernel", "calls": 1, "total_s": USUAL_S}]
PROFILED = {"kernels": {"source": "torch.profiler", "steps": 5, "kernels": KERNELS}}


def happens(what: str) -> bool:
    """Whether something that is to happen once happens now."""
    try:
        (STATE / f"{what}.once").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def plant(what: str) -> None:
    """Have something happen to whoever comes next to this device."""
    (STATE / f"{what}-{device_index()}.next").touch()


def strikes(what: str) -> bool:
    """Whether that was planted; it happens to one."""
    try:
        (STATE / f"{what}-{device_index()}.next").unlink()
    except FileNotFoundError:
        return False
    return True


def device_index() -> str:
    """Return which device is this process's."""
    return os.environ["HIP_VISIBLE_DEVICES"]


def note(file: str, words: str) -> None:
    """Write a line down, whole, whoever else does."""
    descriptor = os.open(STATE / file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{words}\n".encode())
    os.close(descriptor)


def pid_of(who: str) -> int:
    """Return the number that somebody wrote down."""
    return int((STATE / f"{who}.pid").read_text())


# --- a zygote and its contexts --------------------------------------------------------------


def serve() -> int:
    """Be a zygote."""
    for name in ("torch", "torchvision", "measure", "device", "process"):
        full = name if name.startswith("torch") else f"bench_lib.worker.{name}"
        sys.modules[full] = types.ModuleType(full)
    import bench_lib.worker  # noqa: PLC0415 - after the stand-ins

    package: Any = bench_lib.worker
    for name in ("measure", "device", "process"):
        setattr(package, name, sys.modules[f"bench_lib.worker.{name}"])
    package.device.versions = lambda: {"torch": "2.9.0", "python": "3.11.7"}
    package.process.serve_cases = Worker.serve
    from bench_lib.worker import zygote  # noqa: PLC0415

    return zygote.serve()


class Worker:
    """One context: a process that answers each case as the case wants."""

    def __init__(self, name: str, connection: Any) -> None:
        """Speak over ``connection``."""
        self.name = name
        self.connection = connection

    @classmethod
    def serve(cls, name: str) -> int:
        """Open the device, unless it is lost, and answer until hung up on."""
        from bench_lib.launch.wire import ClosedError, connect  # noqa: PLC0415 - telemetry needs none of it

        if strikes("unborn"):
            return 1
        for doomed, pid in (("killed", os.getpid()), ("orphaned", os.getppid())):
            if strikes(doomed):
                os.kill(pid, signal.SIGKILL)
        if strikes("stranger"):
            connect(hello="a stranger").close()
        worker = cls(name, connect(hello=name, pid=os.getpid()))
        if strikes("lost"):
            print("hipErrorNoDevice: no ROCm-capable device is detected", file=sys.stderr)
            return 1
        device = json.loads(os.environ["FAULTS_DEVICES"])[int(device_index())]
        if strikes("garbled"):
            device = {"type": 7}
        # Some are drawn again, as on devices whose contexts are of two kinds.
        excess = 0.1 if os.getpid() % 7 == 0 else 0.0
        worker.connection.send({"device": device, "threads": 1, "excess": excess})
        try:
            while True:
                worker.obey(worker.connection.receive())
        except ClosedError:
            return 0

    def obey(self, order: dict[str, Any]) -> None:
        """Do what the runner wants."""
        if "take_turn" in order:
            self.connection.send({"turn_taken": True})
            return
        kind, case = next(iter(order.items()))  # what is asked for beside it comes after it
        if kind == "profile":
            self.connection.send(PROFILED)
            return
        note("orders", case["id"])
        self.connection.send({"phase": "measure"})
        does = case["params"]["does"]
        act: Callable[[dict[str, Any]], None] = getattr(self, does.replace(" ", "_"))
        act(case)

    def answer(self, case: dict[str, Any], factor: float = 1.0, **fields: Any) -> None:
        """Send a measurement."""
        begin = fields.pop("begin", time.monotonic())
        times = fields.pop("iteration_s", None) or [USUAL_S * factor] * 20
        measurement = measured(case["id"], self.name, times, begin) | fields
        self.connection.send({"measurement": measurement})

    def fault(self, kind: str, message: str) -> None:
        """Send a fault."""
        told = {"kind": kind, "message": message, "traceback": message}
        self.connection.send({"fault": told})

    def say(self, data: bytes) -> None:
        """Send what is not of the protocol."""
        os.write(self.connection.fileno(), data)

    # What cases do, by name.  First those that end well.

    def well(self, case: dict[str, Any]) -> None:
        """Take as long as always."""
        self.answer(case)

    def works(self, case: dict[str, Any]) -> None:
        """Take long enough for something to happen meanwhile."""
        time.sleep(WORK_S)
        self.answer(case)

    def slow(self, case: dict[str, Any]) -> None:
        """Take half as long again, every time."""
        self.answer(case, 1.5)

    def slow_once(self, case: dict[str, Any]) -> None:
        """Be slow at the first look only."""
        self.answer(case, 1.5 if happens(f"slow {case['id']}") else 1.0)

    def slow_then_dead(self, case: dict[str, Any]) -> None:
        """Be slow, and gone when looked at again."""
        if not happens(f"slow {case['id']}"):
            os.abort()
        self.answer(case, 1.5)

    def throttled(self, case: dict[str, Any]) -> None:
        """Be held back, as the telemetry will tell."""
        held, seen = (STATE / f"{what}-{device_index()}" for what in ("held", "seen"))
        begin = time.monotonic()
        held.touch()
        nobody = STATE / f"nobody-{device_index()}"
        while not (seen.exists() or nobody.exists() or time.monotonic() > begin + SEEN_S):
            time.sleep(LOOK_S)
        end = time.monotonic()
        held.unlink()
        time.sleep(LOOK_S)  # for the runner to take in what was seen
        seen.unlink(missing_ok=True)
        self.answer(case, begin=begin, window_s=[begin, end])

    def gives_way(self, case: dict[str, Any]) -> None:
        """Ask for another context's turn first."""
        self.connection.send({"give_way": True})
        self.connection.receive()
        self.answer(case)

    def skip(self, _case: dict[str, Any]) -> None:
        """Be something that this device has not."""
        self.connection.send({"skipped": "no such arithmetic here"})

    def talks(self, case: dict[str, Any]) -> None:
        """Print much, by no encoding."""
        os.write(1, b"\xff a library's word\n" * 1000)
        self.answer(case)

    # Then those that do not.

    def raises(self, _case: dict[str, Any]) -> None:
        """Raise."""
        self.fault("exception", "ValueError: planted")

    def out_of_memory(self, _case: dict[str, Any]) -> None:
        """Ask for more than there is."""
        self.fault("out of memory", "OutOfMemoryError: HIP out of memory")

    def aborts(self, _case: dict[str, Any]) -> None:
        """Be a library that calls abort."""
        os.abort()

    def killed(self, _case: dict[str, Any]) -> None:
        """Be what the kernel kills when memory runs out."""
        os.kill(os.getpid(), signal.SIGKILL)

    def leaves_others(self, _case: dict[str, Any]) -> None:
        """Leave behind what it has started."""
        subprocess.Popen(["sleep", str(HANG_S)])
        os._exit(3)

    def hangs(self, _case: dict[str, Any]) -> None:
        """Hang, with a process of its own."""
        subprocess.Popen(["sleep", str(HANG_S)])
        time.sleep(HANG_S)

    def hangs_up(self, _case: dict[str, Any]) -> None:
        """Close the socket, and stay."""
        self.connection.close()
        time.sleep(HANG_S)

    def half_an_answer(self, _case: dict[str, Any]) -> None:
        """End within a line."""
        self.say(b'{"measurement": {"case_id": "al')
        os._exit(0)

    def garbage(self, _case: dict[str, Any]) -> None:
        """Say what is no text."""
        self.say(os.urandom(512) + b"\n")

    def no_object(self, _case: dict[str, Any]) -> None:
        """Say what is no object."""
        self.say(b"[1, 2, 3]\n")

    def no_answer(self, _case: dict[str, Any]) -> None:
        """Say what nobody asked."""
        self.connection.send({"weather": "fine"})

    def no_times(self, case: dict[str, Any]) -> None:
        """Send a measurement whose times are words."""
        self.answer(case, iteration_s=["fast", "slow"])

    def kills_zygote(self, _case: dict[str, Any]) -> None:
        """Take the zygote along, with a process of its own beside it."""
        subprocess.Popen(["sleep", str(HANG_S)])
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(HANG_S)

    # What strikes whoever comes next.

    def loses_device(self, _case: dict[str, Any]) -> None:
        """Break the device, so that the next context cannot open it."""
        plant("lost")
        os.abort()

    def chokes_zygote(self, _case: dict[str, Any]) -> None:
        """Leave so little memory that the next context ends before it has called back."""
        plant("unborn")
        os.abort()

    def garbles_greeting(self, _case: dict[str, Any]) -> None:
        """Have the next context say what is no device."""
        plant("garbled")
        os.abort()

    def is_probed(self, _case: dict[str, Any]) -> None:
        """Have a stranger call before the next context does."""
        plant("stranger")
        os.abort()

    def kills_telemetry(self, case: dict[str, Any]) -> None:
        """End what watches the device."""
        (STATE / f"nobody-{device_index()}").touch()
        os.kill(pid_of(f"telemetry-{device_index()}"), signal.SIGKILL)
        self.answer(case)


def measured(case_id: str, context: str, times: list[float], begin: float) -> dict[str, Any]:
    """Return a measurement as the worker sends it."""
    return {
        "case_id": case_id,
        "context_id": context,
        "device_uuid": None,
        "iteration_s": times,
        "window_s": [begin, time.monotonic()],
        "wall_s": USUAL_S * len(times),
        "warmup_s": 0.5,
        "warmup_iterations": 64,
        "steady": True,
        "first_step_s": 0.25,
        "enqueue_s": 0.001,
        "host_bound": False,
        "items_per_step": 4,
        "item": "img",
    }


# --- what watches the device ----------------------------------------------------------------


def watch(index: str) -> None:
    """Print what the device does until standard input closes; once in a while, garbage.

    A file ``samples`` in the state's folder is printed between any two looks.
    """
    samples = STATE / "samples"
    (STATE / f"telemetry-{index}.pid").write_text(str(os.getpid()))
    (STATE / f"nobody-{index}").unlink(missing_ok=True)
    looks = told = 0
    while not select.select([0], [], [], LOOK_S)[0]:
        looks += 1
        if looks % 500 == 0:
            print("amdgpu: \x00 not a sample", flush=True)
        if samples.exists():
            os.write(1, samples.read_bytes() + b"\n")
        now = time.monotonic()
        held = ["thermal"] if (STATE / f"held-{index}").exists() else []
        seen = {"t": now, "source": "stand-in", "clock_mhz": 2100.0, "utilization": 1.0}
        print(json.dumps({**seen, "throttle": held, "due": now + 5}), flush=True)
        told = told + 1 if held else 0
        if told == 3:
            (STATE / f"seen-{index}").touch()


# --- ranks ----------------------------------------------------------------------------------


def start_ranks(words: list[str]) -> int:
    """Be mpirun: start ranks, wait for all, and end the others where one dies."""
    count, folder = int(words[1]), Path(words[-1])
    left = {start_rank(rank, count, folder) for rank in range(count)}
    signal.signal(signal.SIGTERM, lambda *_: _end(left, 143))
    while left:
        pid, status = os.wait()
        left.discard(pid)
        if code := os.waitstatus_to_exitcode(status):
            print(f"=   PID {pid} RUNNING AT here\n=   EXIT CODE: {abs(code)}")
            print(f"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: (signal {-code})", flush=True)
            _end(left, 1)
    return 0


def _end(pids: set[int], code: int) -> NoReturn:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(code)


def start_rank(rank: int, ranks: int, folder: Path) -> int:
    """Fork one rank, which forks the groups' processes; returns its number."""
    from bench_lib.launch.launchers import Placement  # noqa: PLC0415 - telemetry needs none of it
    from bench_lib.worker import host, zygote  # noqa: PLC0415

    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        place = Placement(rank, rank, ranks, ranks)
        zygote.serve_ranks(serve_cases, folder, place, host.RankLog(folder, rank))
    return pid


def serve_cases(group: Path, place: Any, log: Any) -> None:
    """Profile, measure, or, if it is the last rank, die, hang or fail; the others may wait."""
    for number in itertools.count():
        file = group / f"{number}.json"
        while not file.exists():
            time.sleep(LOOK_S)
        kind, case = next(iter(json.loads(file.read_text()).items()))
        if kind == "profile":
            told = {"rank": place.rank, **PROFILED}
        else:
            if place.rank == 0:
                note("orders", case["id"])
            log.enter("measure")
            told = outcome(case, place.rank, is_last=place.rank == place.ranks - 1)
        answers = group / str(number)
        answers.mkdir(exist_ok=True)
        part = answers / f"rank-{place.rank}.part"
        part.write_text(json.dumps(told))
        part.rename(answers / f"rank-{place.rank}.json")
        if "fault" in told:
            return


def outcome(case: dict[str, Any], rank: int, *, is_last: bool) -> dict[str, Any]:
    """Do what the case says."""
    does = case["params"]["does"]
    told: dict[str, Any] = {"rank": rank, "local_rank": rank, "ended_s": time.time()}
    if does == "ranks well":
        times = measured(case["id"], f"rank-{rank}", [USUAL_S] * 20, time.monotonic())
        software = {"versions": {"torch": "2.9.0"}, "cudnn": None}
        return {**told, **software, "measurement": times, "pid": os.getpid()}
    if not is_last or does == "rank hangs":
        time.sleep(HANG_S)
    if does == "rank dies":
        os.kill(os.getpid(), signal.SIGKILL)
    fault = {"kind": "out of memory", "message": "HIP out of memory", "traceback": "here"}
    return {**told, "fault": fault, "phase": "measure"}


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["telemetry"]:
        watch(arguments[1])
    elif arguments[:1] in (["-np"], ["--version"]):
        sys.exit(start_ranks(arguments))
    else:
        sys.exit(serve())
