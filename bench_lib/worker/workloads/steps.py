"""Inference and training steps, shared by all kinds of networks.

A kind of network describes itself and its loss in a ``BuiltNetwork``.  ``InferenceStep`` and
``TrainingStep`` run it, and compare it with FP32 eager.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench_lib.model import Numerics
from bench_lib.worker.device import AUTOCAST, STORED, autocast, require_compile, set_precision
from bench_lib.worker.graph import AGAIN
from bench_lib.worker.workload import Setting, Workload
from bench_lib.worker.workloads.compilation import Recorded, averaged, compiled, records_graphs
from bench_lib.worker.workloads.flops import Amount


@contextlib.contextmanager
def plain_fp32() -> Iterator[None]:
    """Compute FP32 products and convolutions without TF32."""
    precision = torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions


def gradients_norm(model: nn.Module) -> float:
    """Return the 2-norm of all gradients together."""
    gradients = [p.grad.float() for p in model.parameters() if p.grad is not None]
    return float(torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients])))


def closeness(answer: Tensor, reference: Tensor, *, finite: bool) -> Numerics:
    """Return how far an answer, (batch, ...), is from its reference on the same device."""
    a, b = answer.flatten().double(), reference.flatten().double()
    return Numerics(
        finite=finite,
        max_abs_diff=float((answer - reference).abs().max()),
        cosine=cosine(a, b),
        reference_batch=len(answer),
    )


def cosine(a: Tensor, b: Tensor) -> float:
    """Return the cosine of two vectors, (n,)."""
    return max(-1.0, min(1.0, float(functional.cosine_similarity(a, b, dim=0))))


HEADS = {1: 0.4, 2: 0.3}
"""Weight of each auxiliary head's loss, by how many there are, from the papers of Inception v3 and
GoogLeNet."""


def main_output(output: Any) -> Tensor:
    """Return the network's main output, of any shape, without its auxiliary heads."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, dict):
        return cast("Tensor", output["out"])
    return cast("Tensor", output[0])


def loss_of(output: Any, target: Tensor) -> Tensor:
    """Return the cross-entropy, a scalar, with auxiliary heads weighted by HEADS.

    Targets are (n,), or (n, height, width) for segmentation.
    """
    loss = functional.cross_entropy(main_output(output), target)
    if isinstance(output, (Tensor, dict)):
        return loss
    auxiliary = [head for head in output[1:] if head is not None]
    for head in auxiliary:
        loss = loss + HEADS[len(auxiliary)] * functional.cross_entropy(head, target)
    return loss


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A case's parameters, checked by ``bench_lib.cases``."""

    network: str
    batch_size: int
    """Images or sequences per rank."""
    precision: str = "fp32"
    compile_mode: str = "eager"
    compile_options: str = ""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of stored weights."""
        return STORED.get(self.precision, torch.float32)

    @property
    def itemsize(self) -> int:
        """Bytes of a number in computations."""
        return AUTOCAST.get(self.precision, self.dtype).itemsize


class BuiltNetwork(ABC):
    """A network and its input on one rank; each kind of network is a subclass."""

    model: nn.Module
    """In the case's precision and not compiled; deleted when numerics begin."""
    input: Tensor
    """(batch, ...)."""
    targets: Tensor
    """(batch, ...)."""
    parameters: int
    items: int
    """Per step."""
    item = "img"
    least_bytes: int
    """Bytes that a step has to read and write at least."""
    update_elements = 0.0
    """Elements that the optimizer reads and writes for each weight in a step."""

    def __init__(self, spec: Spec, setting: Setting) -> None:
        """Set torch's switches; raises UnsupportedError for what the device cannot do."""
        set_precision(spec.precision, setting.device)
        require_compile(spec.compile_mode, setting.device)
        self.spec = spec
        self.setting = setting
        self.device = setting.device
        self.scaler: torch.amp.GradScaler | None = None
        """Keeps gradients above zero, if the precision needs that."""
        if spec.precision == "amp-fp16":
            # From the default of 65536, the first steps would overflow and be skipped.
            self.scaler = torch.amp.GradScaler(self.device.type, init_scale=1024.0)
        self.compared = spec.batch_size
        """Most samples of the batch whose answers are compared."""
        self.warnings: list[str] = []

    @abstractmethod
    def twin(self) -> nn.Module:
        """Build the network in FP32, with its initial weights."""

    def beginning(self, n: int) -> Tensor:
        """Return the first ``n`` of the input as the twin takes it, (n, ...)."""
        batch = self.input[:n]
        return batch.float().contiguous() if batch.is_floating_point() else batch

    def loss_by(self, network: nn.Module, batch: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, a scalar, of a network's answer to a batch, (n, ...)."""
        return loss_of(network(batch), targets)

    @abstractmethod
    def optimizer(self) -> torch.optim.Optimizer:
        """Return the model's optimizer."""

    def averaged(self) -> nn.Module:
        """Return the module to train: the model, or a wrapper that averages ranks' gradients."""
        return averaged(self.model, self.setting)

    def compiled(self, model: nn.Module) -> nn.Module:
        """Return the model as the case's compile mode and options run it."""
        options = self.spec.compile_options
        if self.spec.precision == "int8" and "backend=" not in options:
            # torchao recommends it: products and scales in one kernel.
            options = ",".join(filter(None, ("force_fuse_int_mm_with_mul", options)))
        return compiled(model, self.spec.compile_mode, options)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context of forward passes."""
        return autocast(self.spec.precision, self.device)

    @abstractmethod
    def counted(self) -> Amount | None:
        """Count an eager step without its optimizer; None if torch cannot."""

    def flops(self) -> float | None:
        """Return the FLOPs of a step on this rank."""
        amount = self.counted()
        return None if amount is None else amount.all_flops

    def traffic(self) -> float | None:
        """Return the bytes that a step's eager operations move, the optimizer's included."""
        amount = self.counted()
        if amount is None:
            return None
        updates = self.update_elements * self.parameters * self.spec.dtype.itemsize
        return amount.moved_bytes(self.spec.itemsize) + updates

    def reduced_flops_share(self) -> float | None:
        """As ``Workload.reduced_flops_share``."""
        return None

    def layers(self) -> tuple[nn.Module, Tensor] | None:
        """Return the network, not compiled, and its input, (batch, ...)."""
        return self.model, self.input


class InferenceStep:
    """Forward passes of a network."""

    def __init__(self, built: BuiltNetwork) -> None:
        """Prepare the first step; nothing runs yet."""
        self.built = built
        self.run = built.compiled(built.model)
        is_graph = built.spec.compile_mode == "graph"
        # Ranks replay together, and one may be able to record less often than another.
        again = AGAIN if built.setting.ranks == 1 else 0
        self.recorded = Recorded(self.answer, again=again) if is_graph else None
        self.step = self.recorded or self.answer

    def answer(self) -> Any:
        """Do one step; returns the network's output."""
        with torch.no_grad(), self.built.autocast():
            return self.run(self.built.input)

    def workload(self, **fields: Any) -> Workload:
        """Return the step and its figures, with further ``fields`` of a workload."""
        if self.recorded is not None:
            fields["first_step_done"] = self.recorded.choose
        return _workload(self.built, step=self.step, numerics=self.numerics, **fields)

    def numerics(self) -> Numerics:
        """Compare an answer with FP32 eager's; frees what the step needs."""
        answer = main_output(self.step())
        finite = bool(torch.isfinite(answer).all())
        answer = answer[: self.built.compared].float().cpu()
        if self.recorded is not None:
            self.recorded.release()
        del self.run, self.built.model
        with plain_fp32(), torch.no_grad(), contextlib.suppress(torch.OutOfMemoryError):
            twin, beginning = self.built.twin(), self.built.beginning(self.built.compared)
            reference = main_output(twin(beginning)).cpu()
            return closeness(answer, reference, finite=finite)
        return Numerics(finite=finite)


class TrainingStep:
    """Steps in which a network learns: forward, loss, backward, optimizer."""

    def __init__(self, built: BuiltNetwork, optimizer_every: int = 1) -> None:
        """Prepare the first step; the optimizer runs every so many steps, on summed gradients."""
        spec = built.spec
        self.built = built
        self.optimizer_every = optimizer_every
        self.optimizer = built.optimizer()
        self.run = built.compiled(built.averaged())
        self.records_graphs = records_graphs(spec.compile_mode, spec.compile_options)
        is_graph = spec.compile_mode == "graph"
        self.recorded = Recorded(self.train_once, self.note_first_step) if is_graph else None
        self.accumulated = 0
        """Steps whose gradients are summed and not used yet."""
        self.loss: Tensor | None = None
        """Loss of the last step."""
        self.first_loss = math.nan
        self.first_norm: float | None = None
        """Norm of all gradients of the first step; None if ranks average them."""

    @property
    def portions(self) -> dict[str, Callable[[], object]]:
        """The parts of a step, in order."""
        return {"forward": self.forward, "backward": self.backward, "optimizer": self.optimize}

    def train_once(self) -> None:
        """Do the device's part of a step, which may become a graph."""
        self.forward()
        self.backward()
        self.optimize()

    def forward(self) -> None:
        """Do the first part of a step, including the loss."""
        if self.records_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        if self.accumulated == 0:
            self.optimizer.zero_grad(set_to_none=True)
        with self.built.autocast():
            self.loss = self.compute_loss()

    def compute_loss(self) -> Tensor:
        """Return the loss, a scalar, of the step's input."""
        return self.built.loss_by(self.run, self.built.input, self.built.targets)

    def backward(self) -> None:
        """Do the second part of a step."""
        assert self.loss is not None
        scaler = self.built.scaler
        (self.loss if scaler is None else scaler.scale(self.loss)).backward()
        self.loss = self.loss.detach()

    def optimize(self) -> None:
        """Do the last part of a step."""
        self.accumulated = (self.accumulated + 1) % self.optimizer_every
        if self.accumulated == 0:
            if (scaler := self.built.scaler) is None:
                self.optimizer.step()
            else:
                scaler.step(self.optimizer)
                scaler.update()

    def note_first_step(self) -> None:
        """Keep the results of the very first step; a graph is recorded some steps later."""
        if self.loss is None or not math.isnan(self.first_loss):
            return
        self.first_loss = float(self.loss)
        if self.built.setting.ranks == 1:
            self.first_norm = gradients_norm(self.built.model)

    def workload(self, **fields: Any) -> Workload:
        """Return the step and its figures, with further ``fields`` of a workload."""
        return _workload(
            self.built,
            step=fields.pop("step", self.recorded or self.train_once),
            first_step_done=self.note_first_step,
            numerics=self.numerics,
            loss=lambda: self.loss,
            **fields,
        )

    def numerics(self) -> Numerics | None:
        """Return the first step's results and FP32 eager's; frees what a step needs."""
        last = math.nan if self.loss is None else float(self.loss)
        if self.recorded is not None:
            self.recorded.release()
        del self.run, self.built.model, self.optimizer, self.loss
        built = self.built
        batch, targets = built.beginning(built.spec.batch_size), built.targets
        with plain_fp32(), contextlib.suppress(torch.OutOfMemoryError):
            twin = built.twin()
            loss = built.loss_by(twin, batch, targets)
            loss.backward()
            return self.compared((float(loss.detach()), gradients_norm(twin)), last)
        return self.compared((None, None), last)

    def compared(self, reference: tuple[float | None, float | None], last: float) -> Numerics:
        """Return the first step and its reference; ``last`` is the loss of the last step."""
        loss, norm = reference
        return Numerics(
            finite=math.isfinite(self.first_loss) and math.isfinite(last),
            loss=self.first_loss,
            reference_loss=loss,
            grad_norm=self.first_norm,
            reference_grad_norm=None if self.first_norm is None else norm,
        )


def _workload(built: BuiltNetwork, **fields: Any) -> Workload:
    return Workload(
        items_per_step=built.items,
        item=built.item,
        compiled=built.spec.compile_mode != "eager",
        parameters=built.parameters,
        least_bytes_per_step=built.least_bytes,
        flops_per_step=built.flops,
        traffic_bytes_per_step=built.traffic,
        reduced_flops_share=built.reduced_flops_share,
        layers=built.layers,
        warnings=built.warnings,
        **fields,
    )
