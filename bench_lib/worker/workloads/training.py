"""Real training of an image network, fed with new images in each step.

Three things are measured apart: the device's step alone (``fixed``), the input pipeline alone
(network ``none``), and both together (``device``, ``loader``).  If a network learns, losses and
accuracies stay on the device until the measured stretch is over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bench_lib.formulas.images import DATASETS, INPUT_ALONE, SEED, DataSet, own_side
from bench_lib.model import MOST_STEPS_TOLD, Numerics, Training
from bench_lib.worker.device import layout_of, require_compile, set_precision
from bench_lib.worker.workload import Setting, Workload
from bench_lib.worker.workloads import cifar, datasets
from bench_lib.worker.workloads.compilation import averaged
from bench_lib.worker.workloads.feeding import Feed, feed_of, on_device
from bench_lib.worker.workloads.flops import Amount, counted
from bench_lib.worker.workloads.steps import BuiltNetwork, Spec, TrainingStep, loss_of, main_output
from bench_lib.worker.workloads.weights import settle, stored, stored_bytes

OPTIMIZERS = {"cifar100": "adam", "cifar10": "sgd", "mnist": "adadelta"}
"""Adam with its defaults, as in amd/HPCTrainingExamples' CIFAR-100 script; SGD with momentum; the
Adadelta of PyTorch's MNIST example."""
RATES = {"adam": 1e-3, "sgd": 0.01, "adadelta": 1.0}
STATES = {"adam": 2, "sgd": 1, "adadelta": 2}
"""Numbers that an optimizer keeps for each weight."""
UNMOVED = 1e-8
"""Learning rate for a single fixed batch: every step does the same work on it."""
SETTLED_ON = 4
"""Images that a fresh network is settled on."""
TESTED = 250
"""Images that are tested at once."""
CAPACITY = 2**16
"""Steps whose losses are kept if their number is unknown."""


@dataclass(frozen=True, kw_only=True)
class _Spec(Spec):
    dataset: str
    feed: str
    memory_format: str = "nchw"
    workers: int = 0
    epochs: int = 0
    """If not 0, the measured stretch is so many whole epochs from fresh weights, and the network is
    tested afterwards."""
    data: str = "generated"

    @property
    def about(self) -> DataSet:
        return DATASETS[self.dataset]

    @property
    def side(self) -> int:
        return own_side(self.dataset, self.network)


def training(setting: Setting, **params: Any) -> Workload:
    """Build a training step, or only its input with network ``none``.

    ``params`` are the fields of ``_Spec``.  A step fed by a loader is one batch of each of its
    processes, because they arrive together.  Raises UnsupportedError for what the device or this
    torch cannot do.
    """
    spec = _Spec(**params)
    set_precision(spec.precision, setting.device)
    require_compile(spec.compile_mode, setting.device)
    data = datasets.load(spec.dataset, spec.data)
    transforms = cifar.transforms_of(spec.dataset, spec.side)
    sizes = (spec.batch_size, spec.about.channels, spec.side, spec.side)
    place = torch.empty(sizes, dtype=spec.dtype, device=setting.device)
    place = place.contiguous(memory_format=layout_of(spec.memory_format))
    feed = feed_of(spec.feed, data, transforms, place, setting, workers=spec.workers)
    if spec.network != INPUT_ALONE:
        return _Trainer(_Images(spec, setting, feed), feed, data.test).workload()
    torch.manual_seed(SEED + setting.rank)

    def step() -> None:
        for _ in range(feed.at_once):
            feed.fetch()

    return Workload(
        step=step,
        items_per_step=spec.batch_size * feed.at_once,
        item="img",
        rewind=feed.rewind,
        fed_by_host=feed.fed_by_host,
        close=feed.close,
        warnings=feed.warnings,
    )


class _Images(BuiltNetwork):
    """A network for small images, and the batch that it is given."""

    spec: _Spec

    def __init__(self, spec: _Spec, setting: Setting, feed: Feed) -> None:
        super().__init__(spec, setting)
        self.learns = spec.feed != "fixed"
        self.at_once = 1 if spec.epochs else feed.at_once
        self.items = spec.batch_size * self.at_once
        self.warnings = feed.warnings
        side = spec.side
        torch.manual_seed(SEED)
        with self.device:
            model = cifar.create(spec.network, spec.about, side)
        model = model.to(self.device)
        settle(model, torch.rand(SETTLED_ON, spec.about.channels, side, side, device=self.device))
        model = stored(model, spec.precision, spec.dtype)
        self.layout = layout_of(spec.memory_format)
        self.model = model.train().to(memory_format=self.layout)
        self.fresh = {name: value.cpu().clone() for name, value in self.model.state_dict().items()}
        self.parameters = sum(weight.numel() for weight in self.model.parameters())
        # Weights and the optimizer's state are read and written, the input is read.
        passes = 2 + 2 * STATES[OPTIMIZERS[spec.dataset]]
        state = sum(stored_bytes(weight) for weight in self.model.parameters())
        images = spec.batch_size * spec.about.channels * side**2
        self.least_bytes = self.at_once * (passes * state + images * spec.dtype.itemsize)
        self.input, self.targets = feed.images, feed.targets

    def twin(self) -> nn.Module:
        spec = self.spec
        with self.device:
            twin = cifar.create(spec.network, spec.about, spec.side)
        twin.load_state_dict(self.fresh)
        return twin.to(self.device).train()

    def optimizer(self) -> torch.optim.Optimizer:
        weights = self.model.parameters()
        on_gpu = self.device.type == "cuda"
        # Fused or capturable: otherwise the host waits to learn whether a gradient overflowed.
        fused = True if on_gpu or self.scaler is not None else None
        kind = OPTIMIZERS[self.spec.dataset]
        rate = RATES[kind] if self.learns else UNMOVED
        if kind == "sgd":
            return torch.optim.SGD(weights, lr=rate, momentum=0.9, fused=fused)
        if kind == "adadelta":
            return torch.optim.Adadelta(weights, lr=rate, capturable=on_gpu)
        return torch.optim.Adam(weights, lr=rate, fused=fused, capturable=on_gpu)

    def averaged(self) -> nn.Module:
        # Each rank keeps its batch norms' statistics, which training does not need.
        return averaged(self.model, self.setting, broadcast_buffers=False)

    def counted(self) -> Amount | None:
        spec = self.spec
        return counted(weightless_step, spec.network, spec.about, spec.side, spec.batch_size)

    def flops(self) -> float | None:
        flops = super().flops()
        return None if flops is None else self.at_once * flops

    def traffic(self) -> float | None:
        return None  # the bytes of the feed and the optimizer are not counted


def weightless_step(
    network: str, about: DataSet, side: int, batch_size: int
) -> Callable[[], object]:
    """Return an eager step that has shapes but no data, the optimizer's left out."""
    with torch.device("meta"):
        model = cifar.create(network, about, side).train()
        images = torch.empty(batch_size, about.channels, side, side)
        targets = torch.empty(batch_size, dtype=torch.int64)
    return lambda: loss_of(model(images), targets).backward()


class _Trainer(TrainingStep):
    """A network that learns from a feed, on one rank."""

    built: _Images

    def __init__(self, built: _Images, feed: Feed, test: datasets.Split) -> None:
        spec, scaler = built.spec, built.scaler
        self.spec, self.feed, self.test = spec, feed, test
        self.fresh_scaler = {} if scaler is None else scaler.state_dict()
        self.steps = spec.epochs * feed.steps_per_epoch or None
        self.progress = _Progress(max(self.steps or 0, CAPACITY), built.device)
        self.first_batch: tuple[Tensor, Tensor] | None = None
        super().__init__(built)

    def step(self) -> None:
        """Train on the next batch, or on as many as arrive at once."""
        train_once = self.recorded or self.train_once
        for _ in range(self.built.at_once):
            self.feed.fetch()
            train_once()
            self.progress.steps += 1
            self.note_first_step()

    def compute_loss(self) -> Tensor:
        output = self.run(self.built.input)
        loss = loss_of(output, self.built.targets)
        if self.built.learns:
            self.progress.note(loss, main_output(output), self.built.targets)
        return loss

    def rewind(self) -> None:
        """Undo the training: weights, statistics, optimizer, scale, order, random numbers.

        Everything stays at its place in memory, because a graph refers to it.
        """
        with torch.no_grad():
            for name, value in self.built.model.state_dict().items():
                value.copy_(self.built.fresh[name])
            for state in self.optimizer.state.values():
                for value in state.values():
                    if isinstance(value, Tensor):
                        value.zero_()
        if self.built.scaler is not None:
            self.built.scaler.load_state_dict(self.fresh_scaler)
        self.progress.rewind()
        self.feed.rewind()
        torch.manual_seed(SEED + self.built.setting.rank)

    def results(self) -> Training | None:
        """Return the training's results since ``rewind``; None for a single fixed batch."""
        if not self.built.learns:
            return None
        losses, accuracies = self.progress.series(self.feed.steps_per_epoch)
        accuracy, samples = self._tested() if self.spec.epochs else (None, None)
        return Training(
            data=self.spec.data,
            samples=self.feed.steps_per_epoch * self.spec.batch_size * self.built.setting.ranks,
            steps_per_epoch=self.feed.steps_per_epoch,
            losses=losses,
            accuracies=accuracies,
            test_accuracy=accuracy,
            test_samples=samples,
        )

    def _tested(self) -> tuple[float, int]:
        """Return the network's accuracy on this rank's test images, and their number."""
        model, setting, spec = self.built.model, self.built.setting, self.spec
        images, targets = on_device(self.test, setting.device)
        images, targets = (data[setting.rank :: setting.ranks] for data in (images, targets))
        right = torch.zeros((), dtype=torch.int64, device=setting.device)
        model.eval()
        with torch.no_grad(), self.built.autocast():
            for batch, classes in zip(images.split(TESTED), targets.split(TESTED), strict=True):
                inputs = self.feed.transforms.plain(batch)
                inputs = inputs.to(spec.dtype, memory_format=self.built.layout)
                right += (main_output(model(inputs)).argmax(1) == classes).sum()
        model.train()
        return int(right) / len(targets), len(targets)

    def note_first_step(self) -> None:
        """Keep the first step's batch too, so that FP32 can be given the same."""
        if self.first_batch is None:
            super().note_first_step()
            batch = self.built.input, self.built.targets
            self.first_batch = batch[0].to("cpu", copy=True), batch[1].to("cpu", copy=True)

    def numerics(self) -> Numerics | None:
        """Return the first step's results and FP32 eager's; no reference for random networks."""
        if self.first_batch is None or self.loss is None:
            return None
        # Dropout drops others in each run.
        if any(float(getattr(m, "p", 0.0) or 0.0) > 0 for m in self.built.model.modules()):
            return self.compared((None, None), float(self.loss))
        device = self.built.device
        self.built.input, self.built.targets = (data.to(device) for data in self.first_batch)
        return super().numerics()

    def close(self) -> None:
        """End the feed, and the graph before the ranks leave: it holds their communication."""
        self.feed.close()
        if self.recorded is not None:
            self.recorded.release()

    def workload(self, **fields: Any) -> Workload:
        portions = {"load": self.feed.fetch, **self.portions}
        return super().workload(
            step=self.step,
            steps=self.steps,
            rewind=self.rewind if self.built.learns else self.feed.rewind,
            portions=portions if self.spec.compile_mode == "eager" else {},
            fed_by_host=self.feed.fed_by_host,
            training=self.results,
            close=self.close,
            **fields,
        )


class _Progress:
    """Loss and accuracy of every step, written on the device and read after all steps."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.steps = 0
        """Since ``rewind``, as the host counts them."""
        self._capacity = capacity
        # Steps beyond the capacity overwrite the last line.
        self._values = torch.zeros(capacity + 1, 2, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)

    def note(self, loss: Tensor, output: Tensor, targets: Tensor) -> None:
        """Store a step's values without waiting for them."""
        with torch.no_grad():
            right = (output.argmax(1) == targets).float().mean()
            line = torch.stack((loss.detach().float(), right))
            self._values.index_copy_(0, self._position, line[None])
            self._position += 1
            self._position.clamp_(max=self._capacity)

    def rewind(self) -> None:
        self.steps = 0
        self._position.zero_()

    def series(self, steps_per_epoch: int) -> tuple[list[float], list[float]]:
        """Return losses and accuracies by step, or by epoch if there are many steps."""
        values = self._values[: min(self.steps, self._capacity)].double().cpu()
        if len(values) > MOST_STEPS_TOLD:
            values = torch.stack([epoch.mean(0) for epoch in values.split(steps_per_epoch)])
        # JSON has no infinity or NaN: the largest float stands for both.
        losses = torch.nan_to_num(values[:, 0], nan=sys.float_info.max, posinf=sys.float_info.max)
        return losses.tolist(), values[:, 1].tolist()
