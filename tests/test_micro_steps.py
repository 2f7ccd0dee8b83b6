"""What micro sees of each step, on a device whose time is a script."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from standins.device import Device

from bench_lib.micro.lines import SHOWN, PrintedIteration, Watched
from bench_lib.model import Measurement, Numerics, Sampling
from bench_lib.worker.measure import FEWEST_ISSUES, LEAST_WARMUP_STEPS
from bench_lib.worker.workload import Workload

AT_ONCE = Sampling(warmup_s=0, warmup_max_s=0, iterations=2, max_iterations=2, measure_s=0)
LONGER = Sampling(warmup_s=4, warmup_max_s=4, iterations=3, max_iterations=3, measure_s=0)

WARM = range(1, 1 + LEAST_WARMUP_STEPS)
"""Numbers of the steps of the shortest warm-up; 0 is the first step of all."""
MEASURED = range(WARM.stop + 1, WARM.stop + 3)
"""Numbers of the measured steps under ``AT_ONCE``; one step gives way before them."""


@pytest.fixture(autouse=True, scope="module")
def _frozen():
    gc.freeze()
    yield
    gc.unfreeze()


class Machine(Device):
    def __init__(
        self, seconds: Iterable[float] = (1 / 4,), *, in_place: bool = False, queued: bool = False
    ) -> None:
        """Script the steps' durations.

        ``in_place``: each step writes its loss where the one before wrote it.  ``queued``: the
        host is not kept waiting.
        """
        super().__init__(work_s=seconds, issue_s=[0.0], asynchronous=queued)
        self.allocated = self.peak = None
        self.has_loss = True
        self.loss = torch.tensor(math.nan)
        self._in_place = in_place

    def step(self) -> str:
        i = self.steps
        super().step()
        self.log[-1] = f"step {i}"
        if not self._in_place:
            self.loss = torch.tensor(math.nan)
        self.loss.fill_(i)
        return f"answer {i}"

    def ask_loss(self) -> torch.Tensor | None:
        self.log.append("loss")
        return self.loss if self.has_loss else None

    def numerics(self) -> Numerics:
        self.log.append("numerics")
        return Numerics(finite=True, cosine=1.0)

    def workload(self) -> Workload:
        return Workload(self.step, items_per_step=4, loss=self.ask_loss, numerics=self.numerics)

    def watched(self, **fields: Any) -> Watched:
        clock: Any = self
        return Watched(clock, **{"training": True, "keeps_losses": False, **fields})

    def measure(self, watched: Watched, sampling: Sampling = AT_ONCE) -> Measurement:
        fields = {"phase": watched.enter, "prepare": watched.prepare}
        return super().measure(sampling, **fields)

    def words(self, *beginnings: str) -> list[str]:
        return [word for word in self.log if word.startswith(beginnings)]


def warmup(watched: Watched) -> list[PrintedIteration]:
    return watched.iterations(watched.warmup_losses, watched.warmup_s)


def timed(watched: Watched, measured: Measurement) -> list[PrintedIteration]:
    return watched.iterations(watched.losses, measured.iteration_s)


# ---- losses -----------------------------------------------------------------------------------


def test_each_loss_is_kept_for_the_phase_of_its_step():
    machine = Machine()
    watched = machine.watched()
    machine.measure(watched)
    assert list(map(float, watched.warmup_losses)) == [0, *WARM]
    assert list(map(float, watched.losses)) == list(MEASURED)


def test_a_loss_that_the_next_step_overwrites_is_copied():
    machine = Machine(in_place=True)
    watched = machine.watched(keeps_losses=True)
    machine.measure(watched)
    assert list(map(float, watched.losses)) == list(MEASURED)
    assert watched.losses[-1] is not machine.loss


def test_the_loss_is_read_after_the_step_and_never_during_the_measurement():
    machine = Machine()
    machine.measure(machine.watched())
    begin = machine.log.index(f"step {MEASURED[0]}")
    assert machine.log[begin : begin + 5] == [
        *(f"step {MEASURED[0]}", "loss", "mark 1"),
        *(f"step {MEASURED[1]}", "loss"),
    ]


def test_a_training_that_tells_no_loss_has_no_lines():
    machine = Machine()
    machine.has_loss = False
    watched = machine.watched()
    measured = machine.measure(watched)
    assert timed(watched, measured) == []
    assert warmup(watched) == []


# ---- iterations -------------------------------------------------------------------------------


def test_steps_that_only_time_the_issuing_are_no_iterations():
    machine = Machine(queued=True)
    watched = machine.watched()
    measured = machine.measure(watched)
    assert machine.steps == MEASURED.stop + FEWEST_ISSUES
    assert [seen.loss for seen in timed(watched, measured)] == list(MEASURED)


@pytest.mark.parametrize("queued", [False, True])
def test_the_very_first_step_is_the_first_warm_up_iteration(queued):
    machine = Machine([8.0, 1 / 2, 1 / 4, 1 / 8], queued=queued)
    watched = machine.watched()
    machine.measure(watched)
    assert warmup(watched) == [
        PrintedIteration(0.0, 8.0),
        PrintedIteration(1.0, 1 / 2),
        PrintedIteration(2.0, 1 / 4),
        PrintedIteration(3.0, 1 / 8),
    ]


def test_no_more_warm_up_iterations_are_shown_than_the_guide_shows():
    machine = Machine([8.0, 1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 4])
    watched = machine.watched()
    machine.measure(watched, LONGER)
    expected = [(0.0, 8.0), (1.0, 1.0), (2.0, 1 / 2), (3.0, 1 / 4), (4.0, 1 / 8)]
    shown = warmup(watched)
    assert len(shown) == SHOWN
    assert shown == [PrintedIteration(loss, seconds) for loss, seconds in expected]


# ---- inference --------------------------------------------------------------------------------


def test_in_inference_the_loss_is_asked_for_once_when_warming_up_is_over():
    machine = Machine([8.0, 1 / 4])
    watched = machine.watched(training=False)
    measured = machine.measure(watched)
    assert machine.log.count("loss") == 1
    loss = machine.words("step", "loss").index("loss")
    assert machine.words("step", "loss")[loss - 1] == f"step {WARM[-1]}"
    last = machine.words("step", "mark", "read marks", "loss", "numerics")[-4:]
    assert last == [f"step {MEASURED[-1]}", "mark 2", "read marks", "numerics"]
    assert watched.answer_loss == WARM[-1]
    assert timed(watched, measured) == [PrintedIteration(float(WARM[-1]), 1 / 4)] * 2
    assert warmup(watched) == [
        PrintedIteration(float(WARM[-1]), seconds) for seconds in (8.0, 1 / 4, 1 / 4, 1 / 4)
    ]


def test_an_inference_that_tells_no_loss_has_lines_without_one():
    machine = Machine()
    machine.has_loss = False
    watched = machine.watched(training=False)
    measured = machine.measure(watched)
    losses = [seen.loss for seen in timed(watched, measured)]
    assert len(losses) == 2
    assert all(map(math.isnan, losses))


# ---- the workload -----------------------------------------------------------------------------


def test_a_watched_workload_is_the_workload_otherwise():
    machine = Machine()
    watched = machine.watched()
    workload = machine.workload()
    around = watched.prepare(workload)
    watched.enter("first step")
    assert around.step() == "answer 0"
    assert (around.items_per_step, around.loss) == (4, machine.ask_loss)
    assert workload.step == machine.step
