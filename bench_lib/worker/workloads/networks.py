"""torchvision's classification and segmentation networks, in inference and in training."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench_lib.model import COMPILE_MODES, MEMORY_FORMATS, PRECISIONS, TASKS, Numerics
from bench_lib.worker.device import (
    AUTOCAST,
    STORED,
    autocast,
    gradient_scaler,
    layout_of,
    require_compile,
    set_precision,
    update,
)
from bench_lib.worker.workload import Setting, Workload, require_known
from bench_lib.worker.workloads.compilation import Recorded, averaged, compiled, records_graphs
from bench_lib.worker.workloads.flops import CONVOLUTIONS, OperationWork, linear_share, work
from bench_lib.worker.workloads.merging import merged, plain_mode
from bench_lib.worker.workloads.references import FirstStep, closeness, plain_fp32, twin_step
from bench_lib.worker.workloads.registry import create, networks
from bench_lib.worker.workloads.weights import quantize, settle, stored, stored_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

SEED = 1337
LEARNING_RATE = 1e-8
"""So small that every step finds the weights of the one before, and does the same work on them.

At 0.01 a network knows its one batch by heart before the first measured step, and GPUs are
faster on gradients that are nearly zero."""
MOMENTUM = 0.9
CALIBRATION_BATCH = 4
HEADS = {1: 0.4, 2: 0.3}
"""What each auxiliary head's loss counts, by how many there are: as Inception v3's and GoogLeNet's
papers have it."""
AUXILIARY = {"googlenet": 2 * HEADS[2], "inception_v3": HEADS[1]}
"""What the losses of auxiliary heads add to the main one's, each by its paper's weight."""


def main_output(output: Any) -> Tensor:
    """Return the tensor, of any shape, that the network is for, without its auxiliary heads."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, dict):
        return cast("Tensor", output["out"])
    return cast("Tensor", output[0])


def loss_of(output: Any, target: Tensor) -> Tensor:
    """Cross-entropy, a scalar, auxiliary heads weighted as in their papers (0.3 and 0.4).

    Targets are (n,), of segmentation (n, height, width).
    """
    if isinstance(output, Tensor):
        return functional.cross_entropy(output, target)
    if isinstance(output, dict):
        return functional.cross_entropy(output["out"], target)
    main, *auxiliary = (head for head in output if head is not None)
    loss = functional.cross_entropy(main, target)
    for head in auxiliary:
        loss = loss + HEADS[len(auxiliary)] * functional.cross_entropy(head, target)
    return loss


@dataclass(frozen=True)
class _Spec:
    """A case's parameters; raises ValueError for a value that is not known."""

    network: str
    batch_size: int
    """Images a rank."""
    precision: str = "fp32"
    compile_mode: str = "eager"
    compile_options: str = ""
    task: str = "infer"
    optimizer_every: int = 1
    """How many steps add up their gradients before the optimizer uses them."""
    memory_format: str = "nchw"
    image_size: int | None = None

    def __post_init__(self) -> None:
        """Refuse what is not known."""
        require_known("precision", self.precision, PRECISIONS)
        require_known("compile_mode", self.compile_mode, COMPILE_MODES)
        require_known("task", self.task, TASKS)
        require_known("memory_format", self.memory_format, MEMORY_FORMATS)

    @property
    def side(self) -> int:
        """Height and width of an image in pixels: the network's own where none is asked for."""
        info = networks().get(self.network)
        return self.image_size or (info.image_size if info else 0)

    @property
    def dtype(self) -> torch.dtype:
        """What weights and images are kept in."""
        return STORED.get(self.precision, torch.float32)

    @property
    def layout(self) -> torch.memory_format:
        """How images lie in memory."""
        return layout_of(self.memory_format)


def network(setting: Setting, **params: Any) -> Workload:
    """Build one step of a network: ``infer`` (forward) or ``train`` (forward, loss, backward, SGD).

    ``params`` are the fields of ``_Spec``; inputs are random normal images of shape
    (batch, 3, image_size, image_size) that stay on the device.  Raises ValueError for a value
    that is not known, and UnsupportedError for what the device or this torch cannot do.
    """
    spec = _Spec(**params)
    set_precision(spec.precision, setting.device)
    require_compile(spec.compile_mode, setting.device)
    kind = _Training if spec.task == "train" else _Inference
    return kind(spec, setting).workload()


class _Case:
    """What inference and training share: the network, its input, and its FP32 twin."""

    def __init__(self, spec: _Spec, setting: Setting) -> None:
        self.spec = spec
        self.setting = setting
        self.device = setting.device
        model, self.warnings = merged(self._fresh_model(), spec.compile_mode, self.device)
        self.model = stored(model, spec.precision, spec.dtype).to(memory_format=spec.layout)
        self.input = self._images(spec.batch_size).to(spec.dtype)
        self.input = self.input.contiguous(memory_format=spec.layout)
        self.parameters = sum(p.numel() for p in self.model.parameters())

    def described(self, step: Callable[[], object], **more: Any) -> Workload:
        return Workload(
            step=step,
            items_per_step=self.spec.batch_size,
            item="img",
            compiled=self.spec.compile_mode != "eager",
            parameters=self.parameters,
            flops_per_step=self.flops,
            traffic_bytes_per_step=self.traffic,
            reduced_flops_share=self.reduced_flops_share,
            layers=self.layers,
            warnings=self.warnings,
            **more,
        )

    def state_bytes(self) -> int:
        return sum(stored_bytes(p) for p in self.model.parameters())

    def _fresh_model(self) -> nn.Module:
        """Build the same FP32 weights each time it is called."""
        torch.manual_seed(SEED)
        with self.device:
            model = create(self.spec.network, self.spec.side)
        model = model.to(self.device)
        settle(model, self._images(CALIBRATION_BATCH))
        return model.train(self.spec.task == "train")

    def _images(self, n: int) -> Tensor:
        size = self.spec.side
        generator = torch.Generator(self.device).manual_seed(SEED + self.setting.rank)
        shape = (n, 3, size, size)
        return torch.randn(shape, device=self.device, generator=generator)

    def compile(self, model: nn.Module) -> nn.Module:
        return compiled(model, self.spec.compile_mode, self.spec.compile_options)

    def targets(self) -> Tensor:
        """Return a class for every image, or for each of its pixels."""
        generator = torch.Generator(self.device).manual_seed(SEED)
        info = networks()[self.spec.network]
        size = self.spec.side
        pixels = (size, size) if info.kind == "segmentation" else ()
        shape = (self.spec.batch_size, *pixels)
        return torch.randint(info.outputs, shape, device=self.device, generator=generator)

    def layers(self) -> tuple[nn.Module, Tensor]:
        spec = self.spec
        if plain_mode(spec.compile_mode) == spec.compile_mode:
            return self.model, self.input
        unmerged = stored(self._fresh_model(), spec.precision, spec.dtype)
        return unmerged.to(memory_format=spec.layout), self.input

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return autocast(self.spec.precision, self.device)

    def work(self) -> OperationWork | None:
        return work(self.spec.network, self.spec.side, self.spec.task)

    def flops(self) -> float | None:
        counted = self.work()
        return None if counted is None else counted.flops(self.spec.batch_size)

    def traffic(self) -> float | None:
        counted = self.work()
        if counted is None:
            return None
        spec = self.spec
        return counted.traffic_bytes(
            spec.batch_size,
            AUTOCAST.get(spec.precision, spec.dtype).itemsize,
            stored_itemsize=spec.dtype.itemsize,
            optimizer_every=spec.optimizer_every,
        )

    def reduced_flops_share(self) -> float | None:
        spec = self.spec
        if spec.precision == "int8":
            return linear_share(spec.network, spec.side)
        counted = self.work() if spec.precision == "tf32-conv" else None
        return None if counted is None else counted.share_of(CONVOLUTIONS, spec.batch_size)


class _Inference(_Case):
    def __init__(self, spec: _Spec, setting: Setting) -> None:
        super().__init__(spec, setting)
        if spec.precision == "int8":
            self.warnings += quantize(self.model)
        self.forward: Callable[[Tensor], Any] | None = self.compile(self.model)
        self.recorded = Recorded(self.answer) if spec.compile_mode == "graph" else None
        self.step = self.recorded or self.answer

    def answer(self) -> Any:
        assert self.forward is not None
        with torch.no_grad(), self.autocast():
            return self.forward(self.input)

    def loss(self) -> Tensor:
        return loss_of(main_output(self.step()).float(), self.targets())

    def workload(self) -> Workload:
        return self.described(
            self.step,
            least_bytes_per_step=self.state_bytes() + self.input.nbytes + self._output_bytes(),
            numerics=self.numerics,
            loss=self.loss,
        )

    def _output_bytes(self) -> int:
        info = networks()[self.spec.network]
        pixels = self.spec.side**2 if info.kind == "segmentation" else 1
        dtype = AUTOCAST.get(self.spec.precision, self.spec.dtype)
        return self.spec.batch_size * info.outputs * pixels * dtype.itemsize

    def numerics(self) -> Numerics:
        answer = main_output(self.step()).float().cpu()
        if self.recorded is not None:
            self.recorded.release()
        self.forward = None
        del self.model
        finite = bool(torch.isfinite(answer).all())
        batch, reference = self._reference()
        return closeness(answer[:batch], reference, finite=finite)

    def _reference(self) -> tuple[int, Tensor]:
        """FP32 eager on as much of the batch as the memory holds."""
        batch = self.spec.batch_size
        with plain_fp32(), torch.no_grad():
            twin = self._fresh_model()
            while True:
                try:
                    images = self.input[:batch].float().contiguous()
                    return batch, main_output(twin(images)).cpu()
                except torch.OutOfMemoryError:  # noqa: PERF203 - each try is another batch
                    if batch == 1:
                        raise
                    batch //= 2
                    torch.cuda.empty_cache()


class _Training(_Case):
    def __init__(self, spec: _Spec, setting: Setting) -> None:
        super().__init__(spec, setting)
        self.target = self.targets()
        self.scaler = gradient_scaler(spec.precision, self.device)
        # Unfused SGD under a scaler asks the device whether a gradient overflowed, and waits.
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=LEARNING_RATE,
            momentum=MOMENTUM,
            fused=True if self.scaler is not None else None,
        )
        self.forward = self.compile(averaged(self.model, setting))
        self.recorded = None
        if spec.compile_mode == "graph":
            self.recorded = Recorded(self.step, self.note_first_step)
        self.records_graphs = records_graphs(spec.compile_mode, spec.compile_options)
        self.loss: Tensor | None = None
        self.gathered = 0
        """Steps whose gradients are added up and not used yet."""
        self.first = FirstStep()

    def step(self) -> None:
        if self.records_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        if self.gathered == 0:
            self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            loss = loss_of(self.forward(self.input), self.target)
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        self.gathered = (self.gathered + 1) % self.spec.optimizer_every
        if self.gathered == 0:
            update(self.optimizer, self.scaler)
        self.loss = loss.detach()

    def note_first_step(self) -> None:
        self.first.note(self.loss, self.model, self.setting.ranks)

    def workload(self) -> Workload:
        return self.described(
            self.recorded or self.step,
            # Weights and momentum are each read and written once, the input is read.
            least_bytes_per_step=4 * self.state_bytes() + self.input.nbytes,
            first_step_done=self.note_first_step,
            numerics=self.numerics,
            loss=lambda: self.loss,
        )

    def numerics(self) -> Numerics:
        last = math.nan if self.loss is None else float(self.loss)
        if self.recorded is not None:
            self.recorded.release()
        del self.forward, self.model, self.optimizer, self.loss
        return self.first.beside(self._reference(), last)

    def _reference(self) -> tuple[float | None, float | None]:
        """First loss and gradient norm of FP32 eager; None where the memory is too small."""
        images = self.input.float().contiguous()
        with plain_fp32():
            twin = self._fresh_model()
            return twin_step(twin, lambda: loss_of(twin(images), self.target))
