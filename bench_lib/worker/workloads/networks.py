"""torchvision's classification and segmentation networks, in inference and in training."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from bench_lib.model import QUANTIZED
from bench_lib.worker.device import layout_of
from bench_lib.worker.workload import Setting, Workload
from bench_lib.worker.workloads.flops import APART, Amount, count, counted
from bench_lib.worker.workloads.registry import create, create_weightless, networks
from bench_lib.worker.workloads.steps import (
    BuiltNetwork,
    InferenceStep,
    Spec,
    TrainingStep,
    loss_of,
    main_output,
)
from bench_lib.worker.workloads.weights import linear_layers, quantize, settle, stored, stored_bytes

SEED = 1337
LEARNING_RATE = 1e-8
"""So small that every step starts from the same weights, and does the same work on them.

At 0.01 a network has memorised its one batch before the first measured step, and GPUs are faster on
gradients that are nearly zero."""
MOMENTUM = 0.9
CALIBRATION_BATCH = 4
CONVOLUTIONS = ("convolution", "convolution_backward")
SGD_ELEMENTS = 8
"""Elements that SGD with momentum moves for each weight.

Unfused it is three operations: momentum times a number, gradient added to it, both added to
the weight.  Fused under a gradient scaler it is two: gradients are checked in place, then weight,
gradient and momentum are read and written (ATen's AmpKernels.cu and FusedSgdKernel.cu).
"""
ACCUMULATION_ELEMENTS = 3
"""Adding a gradient to an existing one: both are read, one is written."""
ELEMENTS = 1024
"""Numbers that a CPU's delay works on: one unit takes some microseconds on one thread."""


@dataclass(frozen=True, kw_only=True)
class _Spec(Spec):
    task: str = "infer"
    optimizer_every: int = 1
    """Steps whose gradients are summed before the optimizer uses them."""
    memory_format: str = "nchw"
    image_size: int | None = None

    @property
    def side(self) -> int:
        """Height and width of an image in pixels: the network's own unless given."""
        return self.image_size or networks()[self.network].image_size


def network(setting: Setting, **params: Any) -> Workload:
    """Build one step of a network: ``infer`` (forward) or ``train`` (forward, loss, backward, SGD).

    ``params`` are the fields of ``_Spec``; inputs are random normal images of shape
    (batch, 3, image_size, image_size) that stay on the device.  Raises UnsupportedError for what
    the device or this torch cannot do.
    """
    spec = _Spec(**params)
    built = _Images(spec, setting)
    if spec.task == "train":
        return TrainingStep(built, spec.optimizer_every).workload()
    inference = InferenceStep(built)
    return inference.workload(loss=lambda: built.loss_of(inference.step()))


class _Images(BuiltNetwork):
    spec: _Spec

    def __init__(self, spec: _Spec, setting: Setting) -> None:
        super().__init__(spec, setting)
        self.layout = layout_of(spec.memory_format)
        self.model = stored(self.twin(), spec.precision, spec.dtype).to(memory_format=self.layout)
        self.input = self._images(spec.batch_size).to(spec.dtype)
        self.input = self.input.contiguous(memory_format=self.layout)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.items = spec.batch_size
        if spec.task == "train":
            self.targets = self._targets()
            every = spec.optimizer_every
            self.update_elements = (SGD_ELEMENTS + ACCUMULATION_ELEMENTS * (every - 1)) / every
        if spec.precision in QUANTIZED:
            self.warnings += quantize(self.model, spec.precision)
        state = sum(stored_bytes(weight) for weight in self.model.parameters())
        pixels = math.prod(_target_shape(spec.network, spec.side, spec.batch_size))
        written = pixels * networks()[spec.network].outputs * spec.itemsize
        if spec.task == "train":  # weights and momentum are each read and written once
            written = 3 * state
        self.least_bytes = state + self.input.nbytes + written

    def twin(self) -> nn.Module:
        torch.manual_seed(SEED)
        with self.device:
            model = create(self.spec.network, self.spec.side)
        model = model.to(self.device)
        settle(model, self._images(CALIBRATION_BATCH))
        return model.train(self.spec.task == "train")

    def _images(self, n: int) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(SEED + self.setting.rank)
        shape = (n, 3, self.spec.side, self.spec.side)
        return torch.randn(shape, device=self.device, generator=generator)

    def _targets(self) -> Tensor:
        """Return a class for every image, or for each of its pixels."""
        spec = self.spec
        generator = torch.Generator(self.device).manual_seed(SEED)
        shape = _target_shape(spec.network, spec.side, spec.batch_size)
        outputs = networks()[spec.network].outputs
        return torch.randint(outputs, shape, device=self.device, generator=generator)

    def loss_of(self, output: Any) -> Tensor:
        return loss_of(main_output(output).float(), self._targets())

    def optimizer(self) -> torch.optim.Optimizer:
        # Unfused SGD under a scaler waits for the device to say whether a gradient overflowed.
        fused = True if self.scaler is not None else None
        weights = self.model.parameters()
        return torch.optim.SGD(weights, lr=LEARNING_RATE, momentum=MOMENTUM, fused=fused)

    def counted(self) -> Amount | None:
        spec = self.spec
        return counted(weightless_step, spec.network, spec.side, spec.batch_size, spec.task)

    def reduced_flops_share(self) -> float | None:
        spec = self.spec
        if spec.precision in QUANTIZED:
            return linear_share(spec.network, spec.side)
        amount = self.counted() if spec.precision == "tf32-conv" else None
        return None if amount is None else amount.share_of(CONVOLUTIONS)


def _target_shape(name: str, side: int, batch: int) -> tuple[int, ...]:
    pixels = (side, side) if networks()[name].kind == "segmentation" else ()
    return (batch, *pixels)


def weightless_step(name: str, side: int, batch: int, task: str) -> Callable[[], object]:
    """Return an eager step of a network that has shapes but no data, the optimizer's left out."""
    model = create_weightless(name, side).train(task == "train")
    images = torch.empty(batch, 3, side, side, device="meta")
    if task == "infer":
        return torch.no_grad()(lambda: model(images))
    shape = _target_shape(name, side, batch)
    targets = torch.empty(shape, dtype=torch.int64, device="meta")
    return lambda: loss_of(model(images), targets).backward()


@cache
def linear_share(name: str, side: int) -> float | None:
    """Return the share of inference's FLOPs in linear layers that can be quantized.

    None if torch's counter cannot follow the network.
    """
    with contextlib.suppress(RuntimeError), torch.no_grad():
        model = create_weightless(name, side).eval()
        image = torch.empty(1, 3, side, side, device="meta")
        weights = [layer.weight for layer in linear_layers(model)]
        return count(lambda: model(image), weights).share_of([APART])
    return None


def planted(setting: Setting, *, delay_units: int, **params: Any) -> Workload:
    """Build the workload ``network`` with a delay at the end of its step.

    ``params`` are those of ``network``.  Without units it is that workload; with any number, only
    the step differs.
    """
    inner = network(setting, **params)
    if delay_units == 0:
        return inner
    wait = _delay(setting.device, delay_units)

    def step() -> object:
        output = inner.step()
        wait()
        return output

    return replace(inner, step=step)


def delay(setting: Setting, *, delay_units: int) -> Workload:
    """Build a step that is only the delay; its time over ``delay_units`` is that of a unit."""
    return Workload(_delay(setting.device, delay_units))


def _delay(device: torch.device, units: int) -> Callable[[], None]:
    """Return a function that keeps the device busy for a time that grows linearly with ``units``.

    A unit is a cycle of a GPU's clock.  On a CPU it is one pass over a small tensor; each pass
    needs the previous one, so that none can be left out.
    """
    if device.type == "cuda":
        return lambda: torch.cuda._sleep(units)  # noqa: SLF001 - no public name
    numbers = torch.ones(ELEMENTS, device=device)

    def work() -> None:
        for _ in range(units):
            torch.sin_(numbers)

    return work
