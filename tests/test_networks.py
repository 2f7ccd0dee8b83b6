"""torchvision's networks as workloads: what is built, what is counted, what is compared."""

from __future__ import annotations

import math
import re
import sys
from typing import Any

import pytest
import torch
from quickly import one_thread
from torch import nn
from torch._inductor import config as inductor
from torchvision import models
from torchvision.models import segmentation

from bench_lib.model import Numerics
from bench_lib.worker.device import require_compile
from bench_lib.worker.workloads import Setting, UnsupportedError, Workload, flops, registry, steps
from bench_lib.worker.workloads import networks as module
from bench_lib.worker.workloads.networks import network
from bench_lib.worker.workloads.registry import create_weightless, networks
from bench_lib.worker.workloads.steps import main_output

CPU = torch.device("cpu")
REGISTERED = [
    *models.list_models(module=models),
    *models.list_models(module=segmentation),
]
ONE_OF_EACH = list({re.split(r"[_\d]", name)[0]: name for name in REGISTERED}.values())
"""The last of each family of networks."""


TINY = "squeezenet1_1"
"""Few weights, and no batch norm, which is not a number over the one pixel of a tiny image."""


@pytest.fixture(autouse=True)
def _switches():
    with one_thread():
        yield


@pytest.fixture
def learning(monkeypatch):
    monkeypatch.setattr(module, "LEARNING_RATE", 0.01)
    return 0.01


def build(name: str, size: int = 32, batch_size: int = 2, **about: Any) -> Workload:
    return network(Setting(CPU), network=name, batch_size=batch_size, image_size=size, **about)


def case_of(workload: Workload) -> Any:
    return workload.step.__self__


def built_network(workload: Workload) -> Any:
    return case_of(workload).built


def per_image(name: str, image_size: int, task: str = "infer") -> float:
    two, four = (flops.counted(module.weightless_step, name, image_size, n, task) for n in (2, 4))
    return (four.all_flops - two.all_flops) / 2


def after_one_step(workload: Workload) -> Numerics:
    workload.step()
    workload.first_step_done()
    return workload.numerics()


# --- the registry --------------------------------------------------------------------------


def test_every_network_of_torchvision_is_known():
    assert list(networks())[: len(REGISTERED)] == REGISTERED
    assert len(REGISTERED) >= 86


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_network_takes_its_own_size_and_costs_what_is_published(name):
    known = networks()[name]
    network = create_weightless(name, known.image_size).eval()
    images = torch.empty(2, 3, known.image_size, known.image_size, device="meta")
    outputs: list[torch.Tensor] = []
    with torch.no_grad():
        counted = flops.count(lambda: outputs.append(main_output(network(images))))
    (output,) = outputs
    if known.kind == "segmentation":
        assert output.shape == (2, 21, known.image_size, known.image_size)
    else:
        assert output.shape == (2, 1000)

    published = published_gmacs(name, known.image_size)
    per_image = math.fsum(counted.flops.values()) / len(images)
    assert per_image / 2e9 == pytest.approx(published, rel=0.002, abs=0.0006)


def published_gmacs(name: str, size: int) -> float:
    for weights in models.get_model_weights(name):
        if registry._crop(weights.transforms()) == size:
            published = float(weights.meta["_ops"])
            break
    if name.startswith(("fcn_", "deeplabv3_")):
        channels = 40 if "mobilenet" in name else 1024
        published -= (9 * channels * channels // 4 + channels // 4 * 21) * 65 * 65 / 1e9
    return published


def test_an_unknown_network_is_named():
    with pytest.raises(ValueError, match=r"torchvision [\d.+a-z]+ has no network 'resnet5'"):
        build("resnet5")


@pytest.mark.parametrize(
    ("name", "size"), [("vit_b_32", 64), ("maxvit_t", 448), ("resnet18", 96), ("swin_t", 64)]
)
def test_a_network_can_be_built_for_another_size(name, size):
    network = create_weightless(name, size).eval()
    with torch.no_grad():
        assert network(torch.empty(2, 3, size, size, device="meta")).shape == (2, 1000)


def test_inception_without_its_auxiliary_head_answers_alone_in_training():
    batch = torch.empty(2, 3, 299, 299, device="meta")
    alone = create_weightless(registry.WITHOUT_HEAD, 299).train()(batch)
    twice = create_weightless("inception_v3", 299).train()(batch)
    assert alone.shape == (2, 1000)
    assert [head.shape for head in twice] == [(2, 1000), (2, 1000)]


@pytest.mark.parametrize("name", registry.ROCM_NAMES)
def test_a_network_by_its_name_in_the_seeds_tool_can_be_built_for_224_pixels(name):
    network = create_weightless(registry.ROCM_NAMES[name], 224)
    assert sum(p.numel() for p in network.parameters()) > 1e6


# --- steps ---------------------------------------------------------------------------------

RUNS_ON_A_CPU = ["fp32", "fp16", "fp16-bn32", "bf16", "amp-fp16", "amp-bf16"]
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
DTYPES |= {f"amp-{name}": dtype for name, dtype in DTYPES.items()}
DTYPES["fp16-bn32"] = torch.float16


@pytest.mark.parametrize("precision", RUNS_ON_A_CPU)
def test_inference_answers_in_its_precision_and_like_fp32(precision):
    workload = build(TINY, 64, precision=precision)
    output: Any = workload.step()
    assert output.shape == (2, 1000)
    assert output.dtype == DTYPES.get(precision, torch.float32)
    assert not output.requires_grad
    numerics = after_one_step(workload)
    assert numerics.finite
    assert numerics.reference_batch == 2
    assert numerics.cosine > 0.999
    assert (numerics.loss, numerics.grad_norm) == (None, None)


@pytest.mark.parametrize("precision", RUNS_ON_A_CPU)
def test_training_learns_in_its_precision_and_like_fp32(precision):
    numerics = after_one_step(build(TINY, 64, precision=precision, task="train"))
    assert numerics.finite
    assert numerics.loss == pytest.approx(numerics.reference_loss, rel=0.01)
    assert numerics.grad_norm == pytest.approx(numerics.reference_grad_norm, rel=0.02)
    assert (numerics.cosine, numerics.max_abs_diff) == (None, None)


@pytest.mark.parametrize("memory_format", ["nchw", "nhwc"])
@pytest.mark.parametrize("task", ["infer", "train"])
def test_memory_format_is_that_of_weights_and_images(task, memory_format):
    seen: list[torch.Tensor] = []
    workload = build(TINY, task=task, memory_format=memory_format)
    features = built_network(workload).model.features
    features[0].register_forward_hook(lambda _layer, inputs, output: seen.extend((*inputs, output)))
    workload.step()
    layout = torch.channels_last if memory_format == "nhwc" else torch.contiguous_format
    assert [tensor.is_contiguous(memory_format=layout) for tensor in seen] == [True, True]
    assert features[0].weight.is_contiguous(memory_format=layout)


def test_a_step_of_training_changes_every_weight(learning):
    workload = build(TINY, task="train")
    model = built_network(workload).model
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    workload.step()
    for name, parameter in model.named_parameters():
        step = learning * parameter.grad
        assert torch.allclose(parameter, before[name] - step, rtol=0, atol=1e-7), name


def test_segmentation_answers_for_every_pixel():
    output: Any = build("lraspp_mobilenet_v3_large", 64).step()
    assert output["out"].shape == (2, 21, 64, 64)
    numerics = after_one_step(build("lraspp_mobilenet_v3_large", 64, task="train"))
    assert numerics.loss == numerics.reference_loss
    assert numerics.loss == pytest.approx(math.log(21), rel=0.5)


@pytest.mark.parametrize(("name", "size"), [("inception_v3", 299), ("googlenet", 64)])
def test_auxiliary_heads_are_trained(name, size):
    workload = build(name, size, task="train")
    workload.step()
    gradients = {n: p.grad for n, p in built_network(workload).model.named_parameters()}
    assert any("aux" in n.lower() for n in gradients)
    assert [n for n, gradient in gradients.items() if gradient is None] == []


@pytest.fixture
def two_layers(monkeypatch):
    class TwoLayers(nn.Module):
        def __init__(self, device: str) -> None:
            super().__init__()
            self.product = nn.Linear(12, 1000, bias=False, device=device)
            self.sum = nn.Parameter(torch.ones(1000, device=device))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.product(images.flatten(1)) + self.sum

    monkeypatch.setattr(module, "create", lambda *_: TwoLayers("cpu"))
    monkeypatch.setattr(module, "create_weightless", lambda *_: TwoLayers("meta"))
    monkeypatch.setattr(module, "counted", flops.counted.__wrapped__)


FORWARD = (2 * 12 + 12_000 + 2000) + (2000 + 1000 + 2000)
"""Numbers that the product and the sum of two images read and write."""


@pytest.mark.usefixtures("two_layers")
@pytest.mark.parametrize(
    ("precision", "size"), [("fp32", 4), ("fp16", 2), ("amp-bf16", 2), ("tf32-conv", 4)]
)
def test_inference_moves_numbers_of_the_size_that_it_computes_in(precision, size, monkeypatch):
    monkeypatch.setattr(steps, "set_precision", lambda *_: None)
    workload = build("resnet18", 2, precision=precision)
    assert workload.traffic_bytes_per_step() == FORWARD * size


def test_each_rank_has_images_of_its_own_and_the_same_weights():
    second = Setting(CPU, rank=1, local_rank=1, ranks=2)
    zero = built_network(build(TINY))
    one = built_network(network(second, network=TINY, batch_size=2, image_size=32))
    assert not torch.equal(zero.input, one.input)
    weights = zip(zero.model.parameters(), one.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in weights)


# --- planted faults ------------------------------------------------------------------------


def shuffled(layer: nn.Conv2d) -> None:
    layer.weight.data.copy_(layer.weight.data.flip(0))


def nan(layer: nn.Conv2d) -> None:
    layer.weight.data[0, 0] = math.nan


def infinite(layer: nn.Conv2d) -> None:
    layer.bias.data[0] = math.inf


@pytest.mark.parametrize(
    ("task", "damage", "finite"),
    [
        ("infer", shuffled, True),
        ("infer", nan, False),
        ("infer", infinite, False),
        ("train", nan, False),
        ("train", shuffled, True),
    ],
)
def test_damage_to_a_network_shows_in_its_numerics(task, damage, finite):
    workload = build(TINY, 64, task=task)
    damage(built_network(workload).model.classifier[1])
    numerics = after_one_step(workload)
    assert numerics.finite is finite
    if task == "train":
        assert math.isfinite(numerics.reference_loss)
        assert numerics.loss != numerics.reference_loss
        assert numerics.grad_norm != numerics.reference_grad_norm
    elif finite:
        assert numerics.cosine < 0.9
        assert numerics.max_abs_diff > 0.01


# --- what a device cannot do ---------------------------------------------------------------


def test_tf32_on_a_cpu_is_skipped_with_a_remedy():
    with pytest.raises(UnsupportedError, match="TF32 exists on GPUs only; use fp32 on a CPU"):
        build("resnet18", precision="tf32")


@pytest.mark.parametrize("mode", ["graph", "reduce-overhead"])
def test_graphs_on_a_cpu_are_skipped(mode):
    with pytest.raises(UnsupportedError, match=f"{mode} records CUDA graphs"):
        build("resnet18", compile_mode=mode)


@pytest.mark.filterwarnings("ignore")  # torchao's and torch's words about each other
def test_int8_keeps_linear_layers_in_less_and_answers_nearly_the_same():
    pytest.importorskip("torchao", exc_type=ImportError)
    workload = build("resnet18", 64, precision="int8")
    assert workload.warnings == ["INT8 in 1 linear layer with 4% of the weights; the rest is bf16"]
    weight = built_network(workload).model.fc.weight
    assert type(weight) is not nn.Parameter
    assert "int8" in str(weight).lower()
    numerics = after_one_step(workload)
    assert 0.99 < numerics.cosine < 1


@pytest.mark.filterwarnings("ignore")
def test_int8_of_a_network_without_linear_layers_is_skipped():
    pytest.importorskip("torchao", exc_type=ImportError)
    with pytest.raises(UnsupportedError, match="the network has none"):
        build(TINY, precision="int8")


def test_int8_without_torchao_is_skipped_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'bench-lib\[int8\]'"):
        build("resnet18", precision="int8")


def test_batch_norms_may_stay_in_fp32():
    model = built_network(build("resnet18", 64, precision="fp16-bn32")).model
    assert model.bn1.weight.dtype == model.bn1.running_mean.dtype == torch.float32
    assert model.conv1.weight.dtype == torch.float16


@pytest.mark.usefixtures("learning")
def test_gradients_add_up_until_the_optimizer_uses_them():
    case = case_of(build(TINY, 64, task="train", optimizer_every=2))
    case.built.model.eval()  # dropout would draw anew
    weight = next(case.built.model.parameters())
    before = weight.detach().clone()
    case.train_once()
    once = weight.grad.clone()
    assert torch.equal(weight, before)
    case.train_once()
    torch.testing.assert_close(weight.grad, 2 * once)
    assert not torch.equal(weight, before)
    case.optimizer.zero_grad()
    case.train_once()
    alone = weight.grad.clone()
    case.optimizer.zero_grad()
    case.accumulated = 0
    case.train_once()
    torch.testing.assert_close(weight.grad, alone)


def test_compiling_for_a_cpu_without_a_compiler_is_skipped():
    missing = inductor.patch({"cpp.cxx": (None, "/nowhere/g++")})  # as torch takes it from CXX
    with missing, pytest.raises(UnsupportedError) as refused:
        require_compile("default", CPU)
    assert str(refused.value) == "torch.compile needs a C++ compiler on a CPU; install g++"
