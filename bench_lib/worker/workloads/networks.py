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
from bench_lib.worker.device import AUTOCAST, STORED, require_compile, set_precision
from bench_lib.worker.workload import Setting, Workload
from bench_lib.worker.workloads.flops import flops_per_image
from bench_lib.worker.workloads.registry import create, networks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEED = 1337
LEARNING_RATE = 0.01
MOMENTUM = 0.9
CALIBRATION_BATCH = 4


def main_output(output: Any) -> Tensor:
    """Return the tensor that the network is for, without its auxiliary heads."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, dict):
        return cast("Tensor", output["out"])
    return cast("Tensor", output[0])


def loss_of(output: Any, target: Tensor) -> Tensor:
    """Cross-entropy, auxiliary heads weighted as in their papers (0.3 and 0.4)."""
    if isinstance(output, Tensor):
        return functional.cross_entropy(output, target)
    if isinstance(output, dict):
        return functional.cross_entropy(output["out"], target)
    main, *auxiliary = (head for head in output if head is not None)
    weight = 0.4 if len(auxiliary) == 1 else 0.3
    loss = functional.cross_entropy(main, target)
    for head in auxiliary:
        loss = loss + weight * functional.cross_entropy(head, target)
    return loss


@dataclass(frozen=True)
class _Spec:
    name: str
    batch_size: int
    precision: str
    compile_mode: str
    task: str
    memory_format: str
    image_size: int
    channels: int = 3

    @property
    def dtype(self) -> torch.dtype:
        return STORED.get(self.precision, torch.float32)

    @property
    def layout(self) -> torch.memory_format:
        nhwc = self.memory_format == "nhwc"
        return torch.channels_last if nhwc else torch.contiguous_format


def network(
    setting: Setting,
    *,
    network: str,
    batch_size: int,
    precision: str = "fp32",
    compile_mode: str = "eager",
    task: str = "infer",
    memory_format: str = "nchw",
    image_size: int | None = None,
) -> Workload:
    """Build one step of a network: ``infer`` (forward) or ``train`` (forward, loss, backward, SGD).

    ``batch_size`` is per rank; inputs are random normal images of shape
    (batch, 3, image_size, image_size) that stay on the device.
    """
    for what, value, known in (
        ("precision", precision, PRECISIONS),
        ("compile_mode", compile_mode, COMPILE_MODES),
        ("task", task, TASKS),
        ("memory_format", memory_format, MEMORY_FORMATS),
    ):
        if value not in known:
            raise ValueError(f"{what} is {value!r}; there is {', '.join(known)}")
    device = setting.device
    set_precision(precision, device)
    if compile_mode != "eager":
        require_compile(compile_mode, device)
    info = networks().get(network)
    size = image_size or (info.image_size if info else 0)
    spec = _Spec(network, batch_size, precision, compile_mode, task, memory_format, size)
    kind = _Training if task == "train" else _Inference
    return kind(spec, setting).workload()


class _Case:
    """What inference and training share: the network, its input, and its FP32 twin."""

    def __init__(self, spec: _Spec, setting: Setting) -> None:
        self.spec = spec
        self.setting = setting
        self.device = setting.device
        self.model = self._fresh_model().to(spec.dtype).to(memory_format=spec.layout)
        self.input = self._images(spec.batch_size).to(spec.dtype)
        self.input = self.input.contiguous(memory_format=spec.layout)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.state_bytes = sum(p.nbytes for p in self.model.parameters())

    def _fresh_model(self) -> nn.Module:
        """Build the same FP32 weights each time it is called."""
        torch.manual_seed(SEED)
        with self.device:
            model = create(self.spec.name, self.spec.image_size)
        model = model.to(self.device)
        _fill_zero_weights(model)
        _calibrate(model, self._images(CALIBRATION_BATCH))
        return model.train(self.spec.task == "train")

    def _images(self, n: int) -> Tensor:
        size = self.spec.image_size
        generator = torch.Generator(self.device).manual_seed(SEED + self.setting.rank)
        shape = (n, self.spec.channels, size, size)
        return torch.randn(shape, device=self.device, generator=generator)

    def compile(self, model: nn.Module) -> nn.Module:
        if self.spec.compile_mode == "eager":
            return model
        mode = self.spec.compile_mode
        return cast("nn.Module", torch.compile(model, mode=mode))

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        dtype = AUTOCAST.get(self.spec.precision)
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=dtype)

    def flops(self) -> float | None:
        spec = self.spec
        per_image = flops_per_image(spec.name, spec.image_size, spec.task)
        return None if per_image is None else per_image * spec.batch_size


class _Inference(_Case):
    def __init__(self, spec: _Spec, setting: Setting) -> None:
        super().__init__(spec, setting)
        self.forward: Callable[[Tensor], Any] | None = self.compile(self.model)

    def step(self) -> Any:
        assert self.forward is not None
        with torch.no_grad(), self.autocast():
            return self.forward(self.input)

    def workload(self) -> Workload:
        return Workload(
            step=self.step,
            items_per_step=self.spec.batch_size,
            item="img",
            compiled=self.spec.compile_mode != "eager",
            parameters=self.parameters,
            least_bytes_per_step=self.state_bytes + self.input.nbytes + self._output_bytes(),
            flops_per_step=self.flops,
            numerics=self.numerics,
        )

    def _output_bytes(self) -> int:
        info = networks()[self.spec.name]
        pixels = self.spec.image_size**2 if info.kind == "segmentation" else 1
        dtype = AUTOCAST.get(self.spec.precision, self.spec.dtype)
        return self.spec.batch_size * info.outputs * pixels * dtype.itemsize

    def numerics(self) -> Numerics:
        answer = main_output(self.step()).float().cpu()
        self.forward = None
        del self.model
        finite = bool(torch.isfinite(answer).all())
        batch, reference = self._reference()
        answer = answer[:batch]
        return Numerics(
            finite=finite,
            max_abs_diff=float((answer - reference).abs().max()),
            cosine=_cosine(answer, reference),
            reference_batch=batch,
        )

    def _reference(self) -> tuple[int, Tensor]:
        """FP32 eager on as much of the batch as the memory holds."""
        images = self.input.float().contiguous()
        batch = self.spec.batch_size
        with _plain_fp32(), torch.no_grad():
            twin = self._fresh_model()
            while True:
                try:
                    return batch, main_output(twin(images[:batch])).cpu()
                except torch.OutOfMemoryError:  # noqa: PERF203 - each try is another batch
                    if batch == 1:
                        raise
                    batch //= 2
                    torch.cuda.empty_cache()


class _Training(_Case):
    def __init__(self, spec: _Spec, setting: Setting) -> None:
        super().__init__(spec, setting)
        self.target = self._targets()
        self.scaler = None
        if spec.precision == "amp-fp16":
            # From the usual 65536 the first steps overflow and are skipped.
            self.scaler = torch.amp.GradScaler(self.device.type, init_scale=1024.0)
        # Unfused SGD under a scaler asks the device whether a gradient overflowed, and waits.
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=LEARNING_RATE,
            momentum=MOMENTUM,
            fused=True if self.scaler is not None else None,
        )
        forward = self.model
        if setting.ranks > 1:
            ids = [self.device.index] if self.device.type == "cuda" else None
            forward = nn.parallel.DistributedDataParallel(forward, device_ids=ids)
        self.forward = self.compile(forward)
        self.records_graphs = spec.compile_mode in ("reduce-overhead", "max-autotune")
        self.loss: Tensor | None = None
        self.first_loss = math.nan
        self.first_grad_norm: float | None = None

    def _targets(self) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(SEED)
        info = networks()[self.spec.name]
        size = self.spec.image_size
        pixels = (size, size) if info.kind == "segmentation" else ()
        shape = (self.spec.batch_size, *pixels)
        return torch.randint(info.outputs, shape, device=self.device, generator=generator)

    def step(self) -> None:
        if self.records_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            loss = loss_of(self.forward(self.input), self.target)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.loss = loss.detach()

    def first_step_done(self) -> None:
        assert self.loss is not None
        self.first_loss = float(self.loss)
        if self.setting.ranks == 1:  # several ranks average theirs; the twin is one rank's
            self.first_grad_norm = _grad_norm(self.model)

    def workload(self) -> Workload:
        return Workload(
            step=self.step,
            items_per_step=self.spec.batch_size,
            item="img",
            compiled=self.spec.compile_mode != "eager",
            parameters=self.parameters,
            # Weights and momentum are each read and written once, the input is read.
            least_bytes_per_step=4 * self.state_bytes + self.input.nbytes,
            flops_per_step=self.flops,
            first_step_done=self.first_step_done,
            numerics=self.numerics,
        )

    def numerics(self) -> Numerics:
        last = math.nan if self.loss is None else float(self.loss)
        del self.forward, self.model, self.optimizer, self.loss
        loss, norm = self._reference()
        return Numerics(
            finite=math.isfinite(self.first_loss) and math.isfinite(last),
            loss=self.first_loss,
            reference_loss=loss,
            grad_norm=self.first_grad_norm,
            reference_grad_norm=norm,
        )

    def _reference(self) -> tuple[float | None, float | None]:
        """First loss and gradient norm of FP32 eager; None where the memory is too small."""
        images = self.input.float().contiguous()
        with _plain_fp32():
            twin = self._fresh_model()
            try:
                loss = loss_of(twin(images), self.target)
                loss.backward()
            except torch.OutOfMemoryError:
                return None, None
            return float(loss.detach()), _grad_norm(twin)


def _grad_norm(model: nn.Module) -> float:
    gradients = [p.grad.float() for p in model.parameters() if p.grad is not None]
    return float(torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients])))


def _cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.flatten().double(), b.flatten().double()
    return float(functional.cosine_similarity(a, b, dim=0))


@contextlib.contextmanager
def _plain_fp32() -> Iterator[None]:
    precision = torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions


def _fill_zero_weights(model: nn.Module) -> None:
    """Give layers that start at zero some weights: ViT's head would answer zero to anything."""
    for weight in model.parameters():
        if weight.ndim > 1 and not weight.detach().any():
            nn.init.normal_(weight, std=0.02)


def _calibrate(model: nn.Module, images: Tensor) -> None:
    """Fit the running statistics of batch norms to the input.

    With the statistics of a fresh network (mean 0, variance 1) activations double from
    block to block and overflow in fp16, and a GPU is faster on overflowed data than on
    real data; after this they look like a trained network's.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]  # noqa: SLF001 - the public base class of all batch norms is this one
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = None
    model.train()
    with torch.no_grad():
        model(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
