"""Micro's values of each step: its loss, and the time of the first ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from bench_lib.worker.clock import Clock, Marks
from bench_lib.worker.workload import Workload

SHOWN = 5
"""Warm-up iterations that are printed, as the workshop's guide has them."""
PHASES = ("first step", "warm-up", "measure")
"""The phases whose iterations are printed."""


@dataclass(frozen=True)
class PrintedIteration:
    """One iteration as it is printed."""

    loss: float
    seconds: float


@dataclass
class Watched:
    """A workload whose steps are watched; does nothing else between two of them."""

    clock: Clock
    training: bool
    keeps_losses: bool
    """Whether a loss has to be copied, because the next step writes over it."""
    entered: Callable[[str], None] = lambda _phase: None
    phase: str = ""
    losses: dict[str, list[Tensor]] = field(default_factory=dict)
    """By phase, a scalar of each step that is kept."""
    answer_loss: float = float("nan")
    """In inference: the answer's, the same for every iteration."""
    steps: int = 0
    """For warming up, the very first included."""
    first_step_s: float = float("nan")
    _ask: Callable[[], Tensor | None] = lambda: None
    _marks: Marks | None = None
    _marked: int = 0

    def enter(self, phase: str) -> None:
        """Take in where in the case we are."""
        self.phase = phase
        self.losses.setdefault(phase, [])
        if phase == "warm-up":
            self._marks = self.clock.marks(SHOWN + 1)
            self._marked = 0
        if phase == "give way" and not self.training and (seen := self._ask()) is not None:
            self.answer_loss = float(seen)
        self.entered(phase)

    def prepare(self, workload: Workload) -> Workload:
        """Put what watches around a workload's step."""
        step, loss = workload.step, workload.loss
        keeps, self._ask = self.keeps_losses, loss

        def watched_step() -> object:
            if self.phase == "warm-up":
                self._count()
            answer = self._first(step) if self.phase == "first step" else step()
            if self._shows() and (seen := loss()) is not None:
                self.losses[self.phase].append(seen.clone() if keeps else seen)
            return answer

        return replace(workload, step=watched_step)

    def _first(self, step: Callable[[], object]) -> object:
        begin = self.clock.now()
        answer = step()
        self.clock.synchronize()
        self.first_step_s = self.clock.now() - begin
        self.steps = 1
        return answer

    def _count(self) -> None:
        self.steps += 1
        if self._marked <= SHOWN:
            assert self._marks is not None
            self._marks.mark(self._marked)
            self._marked += 1

    def _shows(self) -> bool:
        """Whether a line will show this step's loss; the others' would be memory for nothing."""
        if not self.training or self.phase not in PHASES:
            return False
        return self.phase != "warm-up" or len(self.losses[self.phase]) < SHOWN

    def first(self) -> list[PrintedIteration]:
        """Return the very first iteration, as soon as it is done."""
        return self._iterations(self._losses("first step"), [self.first_step_s])

    def warmup(self) -> list[PrintedIteration]:
        """Return the first iterations, the very first included, once all are done."""
        assert self._marks is not None
        # A mark stands before its step, so that the last step seen has no end.
        seconds = [self.first_step_s]
        if self._marked > 1:
            seconds += self._marks_passed()
        losses = self._losses("first step") + self._losses("warm-up")
        return self._iterations(losses, seconds[:SHOWN])

    def _marks_passed(self) -> list[float]:
        assert self._marks is not None
        for i in range(self._marked, SHOWN + 1):
            self._marks.mark(i)  # unused ones have to be somewhere to be read
        self.clock.synchronize()
        return self._marks.intervals()[: self._marked - 1]

    def measured(self, seconds: list[float], *, since: int = 0) -> list[PrintedIteration]:
        """Return measured iterations from ``since`` on, which took so long."""
        return self._iterations(self._losses("measure", since), seconds)

    def _losses(self, phase: str, since: int = 0) -> list[float]:
        return [float(loss) for loss in self.losses.get(phase, [])[since:]]

    def _iterations(self, losses: list[float], seconds: list[float]) -> list[PrintedIteration]:
        if not self.training:
            losses = [self.answer_loss] * len(seconds)
        return [PrintedIteration(loss, taken) for loss, taken in zip(losses, seconds, strict=False)]
