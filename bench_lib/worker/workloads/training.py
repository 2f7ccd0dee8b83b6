"""Training an image network for real: fed with new images each step, and learning from them.

Three things are kept apart: the device's step alone (``fixed``), the input pipeline alone (network
``none``), and both together (``device``, ``loader``).  Where a network learns, losses and
accuracies stay on the device until the measured stretch is over.
"""

from __future__ import annotations

import contextlib
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bench_lib.formulas.images import (
    DATASETS,
    FEEDS,
    INPUT_ALONE,
    MODES,
    PRECISIONS,
    SEED,
    DataSet,
    own_side,
)
from bench_lib.model import MEMORY_FORMATS, MOST_STEPS_TOLD, Training
from bench_lib.worker.caches import told
from bench_lib.worker.device import (
    STORED,
    autocast,
    gradient_scaler,
    layout_of,
    require_compile,
    set_precision,
    update,
)
from bench_lib.worker.workload import Setting, Workload, require_known
from bench_lib.worker.workloads import cifar, datasets
from bench_lib.worker.workloads.compilation import Recorded, averaged, compiled, records_graphs
from bench_lib.worker.workloads.feeding import Feed, Shape, feed_of, on_device
from bench_lib.worker.workloads.flops import count
from bench_lib.worker.workloads.networks import loss_of, main_output
from bench_lib.worker.workloads.references import FirstStep, plain_fp32, twin_step
from bench_lib.worker.workloads.weights import settle, stored, stored_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench_lib.model import Numerics

OPTIMIZERS = {"cifar100": "adam", "cifar10": "sgd", "mnist": "adadelta"}
"""Adam with its defaults, as in amd/HPCTrainingExamples' CIFAR-100 script; SGD with momentum; the
Adadelta of PyTorch's MNIST example.  Each at one learning rate throughout."""
STATES = {"adam": 2, "sgd": 1, "adadelta": 2}
"""Numbers that an optimizer keeps for each weight."""
UNMOVED = 1e-8
"""Learning rate where one batch is all there is: every step does the same work on it."""
SETTLED_ON = 4
"""Images that a fresh network is settled on."""
TESTED = 250
"""Images that are tested at once."""
DDP_STEPS = 11
"""Eager steps of several ranks before one is recorded, as torch's notes on CUDA graphs ask."""
CAPACITY = 2**16
"""Steps that losses are kept of where nothing says how many there will be."""


@dataclass(frozen=True)
class _Spec:
    """A case's parameters; raises ValueError for a value that is not known."""

    dataset: str
    network: str
    """``none`` is the input alone."""
    batch_size: int
    """Images a rank."""
    feed: str
    precision: str = "fp32"
    memory_format: str = "nchw"
    image_size: int = 0
    """Height and width in pixels; 0 is the network's own for this data set."""
    compile_mode: str = "eager"
    workers: int = 0
    epochs: int = 0
    """With some, the measured stretch is so many whole epochs from fresh weights, and the test
    images are looked at afterwards."""
    data: str = "generated"
    seed: int = SEED

    def __post_init__(self) -> None:
        """Refuse what is not known."""
        require_known("dataset", self.dataset, DATASETS)
        require_known("precision", self.precision, PRECISIONS)
        require_known("memory_format", self.memory_format, MEMORY_FORMATS)
        require_known("compile_mode", self.compile_mode, MODES)
        require_known("feed", self.feed, FEEDS)

    @property
    def about(self) -> DataSet:
        """What is known of the data set beforehand."""
        return DATASETS[self.dataset]

    @property
    def shape(self) -> Shape:
        """What the network takes."""
        return Shape(
            self.batch_size,
            self.image_size or own_side(self.dataset, self.network),
            STORED.get(self.precision, torch.float32),
            layout_of(self.memory_format),
        )


def training(setting: Setting, **params: Any) -> Workload:
    """Build a training step, or with network ``none`` its input alone.

    ``params`` are the fields of ``_Spec``.  A step of what a loader feeds is a batch of each of its
    processes, because they come together.  Raises ValueError for a value that is not known, and
    UnsupportedError for what the device or this torch cannot do.
    """
    spec = _Spec(**params)
    set_precision(spec.precision, setting.device)
    require_compile(spec.compile_mode, setting.device)
    data = datasets.load(spec.dataset, spec.data, spec.seed)
    transforms = cifar.transforms_of(spec.dataset)
    more = {"seed": spec.seed, "workers": spec.workers}
    source = feed_of(spec.feed, data, transforms, spec.shape, setting, **more)
    if spec.network == INPUT_ALONE:
        return _input_alone(spec, setting, source)
    return Trainer(spec, setting, data, transforms, source).workload()


def _input_alone(spec: _Spec, setting: Setting, feed: Feed) -> Workload:
    torch.manual_seed(spec.seed + setting.rank)
    batch = Recorded(feed.batch) if spec.compile_mode == "graph" else feed.batch

    def step() -> None:
        for _ in range(feed.at_once):
            feed.fetch()
            batch()

    return Workload(
        step=step,
        items_per_step=spec.batch_size * feed.at_once,
        item="img",
        rewind=feed.rewind,
        fed_by_host=feed.fed_by_host,
        close=feed.close,
        warnings=feed.warnings,
    )


class Trainer:
    """A network that learns from a feed, on one rank."""

    def __init__(
        self,
        spec: _Spec,
        setting: Setting,
        data: datasets.Data,
        transforms: cifar.Transforms,
        feed: Feed,
    ) -> None:
        """Build the network, its optimizer, and what the step will need."""
        self.spec, self.setting, self.data = spec, setting, data
        self.device = setting.device
        self.transforms, self.feed = transforms, feed
        self.learns = spec.feed != "fixed"
        self.model = self._fresh_model()
        self.fresh = {name: value.cpu().clone() for name, value in self.model.state_dict().items()}
        self.scaler = gradient_scaler(spec.precision, self.device)
        self.fresh_scaler = self.scaler.state_dict() if self.scaler is not None else {}
        self.optimizer = self._optimizer()
        self.graphed = spec.compile_mode == "graph"
        # DDP keeps nodes of autograd, which work on the stream that they were made on.
        alone = setting.ranks == 1 or not self.graphed
        self.side = None if alone else torch.cuda.Stream()
        self.forward = compiled(self._parallel(), spec.compile_mode)
        self.records_graphs = records_graphs(spec.compile_mode)
        self.at_once = 1 if spec.epochs else feed.at_once
        self.steps = spec.epochs * feed.steps_per_epoch or None
        self.learnt = _Learnt(max(self.steps or 0, CAPACITY), self.device)
        self.images, self.targets = (torch.empty(0) for _ in range(2))
        self.loss: Tensor | None = None
        self.first: FirstStep | None = None
        self.recorded: Recorded | None = None
        if self.graphed:
            if self.side is not None:
                self._warm_up_ranks(self.side)
            self.recorded = Recorded(self._train_once, self._note_first, self.side)
        self.train_once: Callable[[], object] = self.recorded or self._train_once

    # ---- building -------------------------------------------------------------------------

    def _fresh_model(self) -> nn.Module:
        """Build the same weights each time it is called."""
        spec = self.spec
        torch.manual_seed(spec.seed)
        with self.device:
            model = cifar.create(spec.network, spec.about, spec.shape.image_size)
        model = model.to(self.device)
        shape = (SETTLED_ON, spec.about.channels, spec.shape.image_size, spec.shape.image_size)
        settle(model, torch.rand(shape, device=self.device))
        model = stored(model, spec.precision, spec.shape.dtype)
        return model.train().to(memory_format=spec.shape.layout)

    def _optimizer(self) -> torch.optim.Optimizer:
        weights = self.model.parameters()
        on_gpu = self.device.type == "cuda"
        # Fused, or else capturable: what asks the device whether a gradient overflowed waits.
        fused = True if on_gpu or self.scaler is not None else None
        kind = OPTIMIZERS[self.spec.dataset]
        if kind == "sgd":
            rate = 0.01 if self.learns else UNMOVED
            return torch.optim.SGD(weights, lr=rate, momentum=0.9, fused=fused)
        if kind == "adadelta":
            rate = 1.0 if self.learns else UNMOVED
            return torch.optim.Adadelta(weights, lr=rate, capturable=on_gpu)
        rate = 1e-3 if self.learns else UNMOVED
        return torch.optim.Adam(weights, lr=rate, fused=fused, capturable=on_gpu)

    def _parallel(self) -> nn.Module:
        """Return the network as it is trained: of several ranks each averages with the others."""
        # Each rank's batch norms keep what they saw: none of it is needed to train.
        apart = {"broadcast_buffers": False}
        if self.side is None:
            return averaged(self.model, self.setting, **apart)
        # As torch's notes on CUDA graphs ask: made on a side stream, in a group of ranks whose
        # watchdog does not touch the device while a step is recorded.
        with told({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}):
            group = torch.distributed.new_group(backend="nccl")
        with _on(self.side):
            return averaged(self.model, self.setting, process_group=group, **apart)

    def _warm_up_ranks(self, side: torch.cuda.Stream) -> None:
        with _on(side):
            for _ in range(DDP_STEPS):
                self.feed.fetch()
                self._train_once()
        self.rewind()

    # ---- a step ---------------------------------------------------------------------------

    def step(self) -> None:
        """Train on the next batch, or on as many as come at once."""
        for _ in range(self.at_once):
            self.feed.fetch()
            self.train_once()
            self.learnt.steps += 1
            if self.first is None:
                self._note_first()

    def load(self) -> None:
        """Do the first part of a step: the next batch, as the network takes it."""
        self.feed.fetch()
        self._load()

    def _train_once(self) -> None:
        self._load()
        self._go_forward()
        self._go_backward()
        self._optimize()

    def _load(self) -> None:
        self.images, self.targets = self.feed.batch()

    def _go_forward(self) -> None:
        if self.records_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        self.optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            output = self.forward(self.images)
            self.loss = loss_of(output, self.targets)
        if self.learns:
            self.learnt.note(self.loss, main_output(output), self.targets)

    def _go_backward(self) -> None:
        assert self.loss is not None
        loss = self.loss if self.scaler is None else self.scaler.scale(self.loss)
        loss.backward()
        self.loss = self.loss.detach()

    def _optimize(self) -> None:
        update(self.optimizer, self.scaler)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return autocast(self.spec.precision, self.device)

    # ---- before and after the measured stretch --------------------------------------------

    def rewind(self) -> None:
        """Forget what was learnt: weights, statistics, optimizer, scale, order, random numbers.

        Everything stays where it is in memory, because a graph refers to it.
        """
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                value.copy_(self.fresh[name])
            for state in self.optimizer.state.values():
                for value in state.values():
                    if isinstance(value, Tensor):
                        value.zero_()
        if self.scaler is not None:
            self.scaler.load_state_dict(self.fresh_scaler)
        self.learnt.rewind()
        self.feed.rewind()
        torch.manual_seed(self.spec.seed + self.setting.rank)

    def told(self) -> Training | None:
        """Return what was learnt since ``rewind``; None where one batch is all there is."""
        if not self.learns:
            return None
        losses, accuracies = self.learnt.told(self.feed.steps_per_epoch)
        tested = self._tested() if self.spec.epochs else None
        together = self.spec.batch_size * self.setting.ranks
        return Training(
            data=self.data.source,
            samples=self.feed.steps_per_epoch * together,
            steps_per_epoch=self.feed.steps_per_epoch,
            losses=losses,
            accuracies=accuracies,
            test_accuracy=None if tested is None else tested[0],
            test_samples=None if tested is None else tested[1],
        )

    def _tested(self) -> tuple[float, int]:
        """Return the share of this rank's test images that are right, and their number."""
        images, targets = on_device(self.data.test, self.device)
        rank, ranks, shape = self.setting.rank, self.setting.ranks, self.spec.shape
        images, targets = images[rank::ranks], targets[rank::ranks]
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        self.model.eval()
        with torch.no_grad(), self._autocast():
            for batch, answers in zip(images.split(TESTED), targets.split(TESTED), strict=True):
                seen = self.transforms.plain(batch, shape.image_size)
                seen = seen.to(shape.dtype, memory_format=shape.layout)
                right += (main_output(self.model(seen)).argmax(1) == answers).sum()
        self.model.train()
        return int(right) / len(targets), len(targets)

    # ---- numerics -------------------------------------------------------------------------

    def _note_first(self) -> None:
        """Keep the first step's batch and what came of it, for FP32's answer to the same."""
        if self.first is not None:
            return
        self.first = FirstStep()
        self.first.note(self.loss, self.model, self.setting.ranks)
        self.first_batch = self.images.cpu(), self.targets.cpu()

    def numerics(self) -> Numerics | None:
        """Return the first step beside FP32 eager's; alone where a network draws lots."""
        if self.first is None or self.loss is None:
            return None
        last = float(self.loss)
        twin: tuple[float | None, float | None] = (None, None)
        if not _draws_lots(self.model):
            self._release()
            twin = self._reference()
        return self.first.beside(twin, last)

    def _reference(self) -> tuple[float | None, float | None]:
        """First loss and gradient norm of FP32 eager; None where the memory is too small."""
        with plain_fp32():
            with self.device:
                twin = cifar.create(self.spec.network, self.spec.about, self.spec.shape.image_size)
            twin.load_state_dict(self.fresh)
            twin.to(self.device).train()
            images, targets = (each.to(self.device) for each in self.first_batch)
            images = images.float().contiguous()
            return twin_step(twin, lambda: loss_of(twin(images), targets))

    def _release(self) -> None:
        """Give back what only a step needs."""
        if self.recorded is not None:
            self.recorded.release()
        del self.forward, self.model, self.optimizer, self.loss

    def close(self) -> None:
        """End the feed, and the graph before the ranks part: it holds their communication."""
        self.feed.close()
        if self.recorded is not None:
            self.recorded.release()

    def flops(self) -> float | None:
        """Count the FLOPs of one call of ``step`` on this rank; None where torch cannot."""
        spec = self.spec
        try:
            with torch.device("meta"):
                twin = cifar.create(spec.network, spec.about, spec.shape.image_size).train()
                side = spec.shape.image_size
                images = torch.empty(spec.batch_size, spec.about.channels, side, side)
                targets = torch.empty(spec.batch_size, dtype=torch.int64)
            amount = count(lambda: loss_of(twin(images), targets).backward())
        except (RuntimeError, NotImplementedError):
            return None
        return self.at_once * math.fsum(amount.flops.values())

    # ---- all of it ------------------------------------------------------------------------

    def workload(self) -> Workload:
        """Return the step and what is known of it."""
        spec, is_eager = self.spec, self.spec.compile_mode == "eager"
        kept = 2 + 2 * STATES[OPTIMIZERS[spec.dataset]]
        state = sum(stored_bytes(weight) for weight in self.model.parameters())
        pixels = spec.about.channels * spec.shape.image_size**2
        portions: dict[str, Callable[[], object]] = {
            "load": self.load,
            "forward": self._go_forward,
            "backward": self._go_backward,
            "optimizer": self._optimize,
        }
        return Workload(
            step=self.step,
            items_per_step=spec.batch_size * self.at_once,
            item="img",
            compiled=not is_eager,
            parameters=sum(weight.numel() for weight in self.model.parameters()),
            # Weights and what the optimizer keeps are read and written, the input is read.
            least_bytes_per_step=self.at_once
            * (kept * state + spec.batch_size * pixels * spec.shape.dtype.itemsize),
            flops_per_step=self.flops,
            steps=self.steps,
            rewind=self.rewind if self.learns else self.feed.rewind,
            portions=portions if is_eager else {},
            fed_by_host=self.feed.fed_by_host,
            training=self.told,
            close=self.close,
            numerics=self.numerics,
            loss=lambda: self.loss,
            warnings=self.feed.warnings,
        )


class _Learnt:
    """Loss and accuracy of every step, written on the device and read when all is over."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.steps = 0
        """Since ``rewind``, as the host counts them."""
        self._capacity = capacity
        # What is beyond the capacity goes to the last line, over and over.
        self._values = torch.zeros(capacity + 1, 2, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)

    def note(self, loss: Tensor, output: Tensor, targets: Tensor) -> None:
        """Write one step down without waiting for it."""
        with torch.no_grad():
            right = (output.argmax(1) == targets).float().mean()
            line = torch.stack((loss.detach().float(), right))
            self._values.index_copy_(0, self._position, line[None])
            self._position += 1
            self._position.clamp_(max=self._capacity)

    def rewind(self) -> None:
        """Start over."""
        self.steps = 0
        self._position.zero_()

    def told(self, steps_per_epoch: int) -> tuple[list[float], list[float]]:
        """Return losses and accuracies by step, or by epoch where the steps are many."""
        values = self._values[: min(self.steps, self._capacity)].double().cpu()
        if len(values) > MOST_STEPS_TOLD:
            values = torch.stack([epoch.mean(0) for epoch in values.split(steps_per_epoch)])
        # JSON has no infinity: the largest float stands for what is no number.
        losses = torch.nan_to_num(values[:, 0], nan=sys.float_info.max, posinf=sys.float_info.max)
        return losses.tolist(), values[:, 1].tolist()


def _draws_lots(model: nn.Module) -> bool:
    """Whether a network in training drops something at random."""
    return any(float(getattr(module, "p", 0.0) or 0.0) > 0 for module in model.modules())


@contextlib.contextmanager
def _on(side: torch.cuda.Stream) -> Any:
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream().wait_stream(side)
