"""Workers, telemetry and machines that follow a script, for tests of scheduling and outcomes.

A script maps a case's id to a list of answers, one for each time the case is measured:
a list of iteration times, a Measurement's fields, a Fault, or a text that is the reason of a skip.
The last answer repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from builders import device_of, make_hardware, make_measurement

from bench_lib.engine.device import HeldDevice
from bench_lib.engine.devicelock import DeviceLock
from bench_lib.engine.engine import Engine
from bench_lib.engine.settings import Settings
from bench_lib.engine.suite import fails
from bench_lib.engine.telemetry.samples import TelemetrySample
from bench_lib.launch.faults import CaseFault, CaseSkipped, LaunchError
from bench_lib.launch.zygote import PLAIN, MeasureRequest
from bench_lib.model import (
    Calibration,
    Case,
    Choices,
    Fault,
    Hardware,
    Kernel,
    KernelTable,
    Measurement,
    Telemetry,
)
from bench_lib.report.instrument import judged_by
from bench_lib.storage.history import utc_today

Answer = list[float] | dict[str, Any] | Fault | str
KERNELS = KernelTable("torch.profiler", 5, [Kernel("gemm_kernel", 1, 0.005)])


def ranks_that(
    measure: Callable[..., Measurement], profile: Callable[[Case], KernelTable] = lambda _: KERNELS
) -> type:
    """Return ranks that start nothing and answer with what these return."""

    class Ranks:
        started: ClassVar[list[int]] = []
        """How many ranks each launch had."""

        def __init__(self, command: Any, environment: Mapping[str, str]) -> None:
            self.told = {"command": command, "environment": environment}
            self.versions: dict[str, str | None] = {}
            self.is_fresh = True
            self._runs = False

        def start(self) -> None:
            if not self._runs:
                self.started.append(self.told["command"].ranks)
            self._runs = True

        def measure(self, case: Case, asked: MeasureRequest = PLAIN) -> Measurement:
            self.start()
            self.is_fresh = False
            self.versions = {"torch": "2.9.0"}
            return measure(case, asked=asked, **self.told)

        def profile(self, case: Case) -> KernelTable:
            self.start()
            self.is_fresh = False
            return profile(case)

        def drop(self) -> None:
            self.is_fresh = True

        def close(self) -> None:
            self.drop()

    return Ranks


class Contexts:
    """A zygote's stand-in: forks contexts that answer from the script, and logs it all."""

    def __init__(self, script: Mapping[str, list[Any]], device: Hardware) -> None:
        self.versions: dict[str, str | None] = {"torch": "2.9.0", "python": "3.11.7"}
        self.script = {case_id: list(answers) for case_id, answers in script.items()}
        self.device = device
        self.log: list[str] = []
        self.forks = 0
        self.tries: list[int | None] = []
        """How many tries each context was allowed; None where nothing was said."""
        self.alive: set[str] = set()
        self.refuse_forks_from: int | None = None
        self.asks_to_give_way = False
        self.no_turns = False
        self.known: list[set[str]] = []
        """What nobody had to find out again, by measurement."""
        self.compiled: set[str] = set()
        self.drawn: dict[str, Choices] = {}
        """What the compiler chooses for a case, if not what it is handed."""
        self.kernels: dict[str, KernelTable | str | Fault] = {}
        """What a look into a case's step finds; one kernel of 5 ms where nothing is said."""

    def fork(self, *, tries: int | None = None) -> Context:
        self.forks += 1
        self.tries.append(tries)
        if self.refuse_forks_from is not None and self.forks >= self.refuse_forks_from:
            raise LaunchError("no device")
        name = f"context-{self.forks}"
        self.alive.add(name)
        self.log.append(f"fork {name}")
        return Context(self, name)

    def close(self) -> None:
        self.alive.clear()
        self.log.append("close")


class Context:
    cudnn = None
    threads = 1
    libraries: Mapping[str, str] = {}

    def __init__(self, contexts: Contexts, name: str) -> None:
        self.contexts = contexts
        self.name = name
        self.pid = 1000 + contexts.forks
        self.give_way: Callable[[], None] = lambda: None
        self.device = device_of(contexts.device)

    def measure(self, case: Case, asked: MeasureRequest = PLAIN) -> Measurement:
        if self.contexts.asks_to_give_way:
            self.give_way()
        self.contexts.known.append(set(asked.known))
        how = " by choices" if asked.choices and asked.choices.kernels else ""
        how += "" if asked.keeps else ", anew"
        self.contexts.log.append(f"{self.name} {case.id}{how}")
        answers = self.contexts.script.get(case.id) or [[0.01] * 20]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Fault):
            raise CaseFault(answer)
        if isinstance(answer, str):
            raise CaseSkipped(answer)
        return make_measurement(
            case_id=case.id,
            context_id=self.name,
            device_uuid=self.contexts.device.uuid,
            draw=self.contexts.drawn.get(case.id, asked.choices),
            **({"compile_s": 3.0} if case.id in self.contexts.compiled else {}),
            **(answer if isinstance(answer, dict) else {"iteration_s": answer}),
        )

    def calibrate(self) -> Calibration:
        """Never slow down."""
        return Calibration(None, 0.0)

    def profile(self, case: Case) -> KernelTable:
        self.contexts.log.append(f"{self.name} profiles {case.id}")
        found = self.contexts.kernels.get(case.id, KERNELS)
        if isinstance(found, Fault):
            raise CaseFault(found)
        if isinstance(found, str):
            raise CaseSkipped(found)
        return found

    def take_turn(self) -> None:
        if self.contexts.no_turns:
            raise LaunchError("gone")
        self.contexts.log.append(f"{self.name} takes its turn")

    def close(self) -> None:
        self.contexts.alive.discard(self.name)
        self.contexts.log.append(f"end {self.name}")


class Watch:
    """Telemetry that follows a script too; its last answer repeats."""

    def __init__(self, *script: Telemetry | None) -> None:
        self.script = list(script) or [None]
        self.own: list[list[int]] = []
        self.closed = False

    def window(self, begin_s: float, end_s: float, own: Any = ()) -> Telemetry | None:
        self.own.append(list(own))
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]

    def samples(self) -> list[TelemetrySample]:
        """Have seen nothing in single looks, so that every sensor is believed."""
        return []

    def close(self) -> None:
        self.closed = True


def gpus(count: int, **fields: Any) -> list[Hardware]:
    return [
        make_hardware(index=i, uuid=f"GPU-{i + 1:016x}", bdf=f"0000:{i:02x}:00.0", **fields)
        for i in range(count)
    ]


def held(device: Hardware, workers: Contexts, locks: Path, **options: Any) -> HeldDevice:
    """Hold a device with these workers; ``options`` are HeldDevice's own, and else settings."""
    names = ("accepted", "start", "watch", "lock_of")
    own = {name: options.pop(name) for name in names if name in options}
    defaults = {
        "start": lambda _side, _device: workers,
        "watch": lambda _device: Watch(),
        "lock_of": lambda each: DeviceLock(each, locks),
    }
    return HeldDevice(device, Settings(**options), **{**defaults, **own})


def nobody_shares(*_: object) -> NoReturn:
    """Start no workers for another process, in the place of ``engine.processes.share``."""
    raise LaunchError("scripted")


def conclude(engine: Engine) -> bool:
    """Look again, profile, judge and end, as a session of pytest does; whether nothing fails."""
    engine.remeasure()
    engine.profile()
    passes = not any(fails(record, strict=False, today=utc_today()) for record in engine.judge())
    passes &= not engine.alarms
    for line in judged_by(engine.suite):
        engine.settings.say(line)
    engine.end(0 if passes else 1)
    return passes


def held_class(
    script: Mapping[str, list[Any]], locks: Path, *seen: Telemetry | None
) -> Callable[..., HeldDevice]:
    """Return what holds a device whose workers follow the script, and telemetry ``seen``."""

    def hold(device: Hardware, settings: Settings, **options: Any) -> HeldDevice:
        return HeldDevice(
            device,
            settings,
            start=lambda _side, _device: Contexts(script, device),
            watch=lambda _device: Watch(*seen),
            lock_of=lambda each: DeviceLock(each, locks),
            **options,
        )

    return hold
