"""The other context that uses the device before the measured stretch, as in the suite.

An H200 makes every launch dearer after some kernels, until another context has run
(docs/architecture.md): without one a case would not be in the state its baseline was in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from bench_lib import backends
from bench_lib.engine.processes import Companion
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.zygote import Zygote
from bench_lib.model import Hardware
from bench_lib.worker.zygote import PRELOAD_VARIABLE


@dataclass(frozen=True)
class Beside:
    """What gives the device to the other context for a moment."""

    companion: Callable[[], Companion | None]

    def give_way(self) -> None:
        """Have the other context use the device; where there is none, nothing happens."""
        with contextlib.suppress(LaunchError):
            if (companion := self.companion()) is not None:
                companion.run()

    @property
    def pids(self) -> list[int]:
        """The processes that have the device open for it."""
        companion = self.companion()
        return [] if companion is None else companion.pids


NOBODY = Beside(lambda: None)


@contextlib.contextmanager
def beside(device: Hardware) -> Iterator[Beside]:
    """Start the other process, which imports torch while we do."""
    with contextlib.ExitStack() as stack:
        starter = stack.enter_context(ThreadPoolExecutor(1))

        def start() -> Companion:
            variables = {**backends.visibility(device), PRELOAD_VARIABLE: "torch"}
            zygote = Zygote(environment=variables)
            stack.callback(zygote.close)
            return Companion(lambda: zygote.context(draws=1))

        started: Future[Companion] = starter.submit(start)

        def companion() -> Companion | None:
            try:
                return started.result()
            except LaunchError:
                return None

        # Waited for, so that what was started is ended, whatever goes wrong meanwhile.
        stack.callback(companion)
        yield Beside(companion)
