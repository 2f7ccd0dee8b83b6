"""Networks that torchvision lacks: their papers' figures, and how torch's modes take them."""

from __future__ import annotations

import math

import pytest
import torch
from quickly import one_thread
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bench_lib.worker.workloads.architectures import _ShuffleUnit, shufflenet, xception
from bench_lib.worker.workloads.registry import ROCM_NAMES, create, create_weightless, networks

WRITTEN_HERE = ["shufflenet", "xception"]

ROCM_CLASSIFICATION = """
    alexnet densenet121 densenet161 densenet169 densenet201 googlenet inception_v3 mnasnet0_5
    mnasnet0_75 mnasnet1_0 mnasnet1_3 mobilenet_v2 resnet18 resnet34 resnet50 resnet101
    resnet152 resnext50 resnext50_32x4d resnext101 resnext101_32x8d shufflenet shufflenet_v2
    shufflenet_v2_x05 shufflenet_v2_x10 shufflenet_v2_x15 shufflenet_v2_x20 shufflenet_v2_x0_5
    shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0 SqueezeNet squeezenet1_0
    SqueezeNet1.1 squeezenet1_1 vgg11 vgg13 vgg16 vgg19 vgg11_bn vgg13_bn vgg16_bn vgg19_bn
    wide_resnet50_2 wide_resnet101_2 xception swin_t swin_s swin_b swin_v2_t swin_v2_s swin_v2_b
    vit_b_16 vit_b_32 vit_l_16 vit_l_32 vit_h_14 efficientnet_b0 efficientnet_b1 efficientnet_b2
    efficientnet_b3 efficientnet_b4 efficientnet_b5 efficientnet_b6 efficientnet_b7 maxvit_t
    mobilenet_v3_large mobilenet_v3_small
"""
ROCM_SEGMENTATION = """
    fcn_resnet50 fcn_resnet101 deeplabv3_resnet50 deeplabv3_resnet101
    deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large
"""
"""The keys of ``models`` and ``segmentation_models`` in ROCm/pytorch-micro-benchmarking."""

ROCM = [*ROCM_CLASSIFICATION.split(), *ROCM_SEGMENTATION.split()]


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


@pytest.fixture(scope="module")
def built():
    torch.manual_seed(1)
    return {"shufflenet": shufflenet().eval(), "xception": xception().eval()}


def images(size: int = 64) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(2))


# --- what the papers say -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("shufflenet", 1_865_728),  # 1.9 M (megvii-model/ShuffleNet-Series)
        ("xception", 22_855_952),  # as Keras's, whose 22,910,480 count 54,528 batch statistics
        ("inception_v3_no_aux", 27_161_264 - 3_326_696),  # torchvision's less the head
    ],
)
def test_a_network_has_the_known_number_of_parameters(name, parameters):
    network = create_weightless(name, networks()[name].image_size)
    assert sum(p.numel() for p in network.parameters()) == parameters


def multiply_adds(name: str) -> float:
    size = networks()[name].image_size
    network = create_weightless(name, size).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(torch.empty(1, 3, size, size, device="meta"))
    return float(counter.get_total_flops()) / 2


def test_shufflenet_costs_what_its_paper_says():
    assert round(multiply_adds("shufflenet") / 1e6) == 137


@pytest.mark.parametrize(
    ("name", "layer", "shape"),
    [
        ("shufflenet", "stem", (24, 56, 56)),
        ("shufflenet", "stage2", (240, 28, 28)),
        ("shufflenet", "stage3", (480, 14, 14)),
        ("shufflenet", "stage4", (960, 7, 7)),
        ("xception", "stem", (64, 147, 147)),
        ("xception", "entry", (728, 19, 19)),
        ("xception", "middle", (728, 19, 19)),
        ("xception", "exit", (2048, 10, 10)),
    ],
)
def test_what_leaves_each_part_has_the_papers_shape(name, layer, shape):
    size = networks()[name].image_size
    network = create_weightless(name, size).eval()
    seen: list[torch.Size] = []
    part = network.get_submodule(layer)
    part.register_forward_hook(lambda _layer, _inputs, output: seen.append(output.shape))
    with torch.no_grad():
        network(torch.empty(2, 3, size, size, device="meta"))
    assert seen == [(2, *shape)]


# --- units and blocks ----------------------------------------------------------------------


def reach(residual: nn.Module, channels: int) -> torch.Tensor:
    image = 1 + torch.rand(1, channels, 1, 1, dtype=torch.float64)
    changes = torch.eye(channels, dtype=torch.float64)[:, :, None, None]
    with torch.no_grad():
        answers = residual(torch.cat((image, image + changes)))[:, :, 0, 0]
    changed: torch.Tensor = (answers[1:] - answers[0]).abs() > 1e-9
    return changed.T


def test_every_group_sees_every_other():
    torch.manual_seed(0)
    residual = _ShuffleUnit(36, 36, 3).residual.double().eval()
    first, *_ = residual.parameters()
    nn.init.uniform_(first, 0.1, 1)  # positive, so that the ReLU hides nothing
    assert reach(residual, 36).all()
    assert isinstance(residual[2], nn.ChannelShuffle)
    residual[2] = nn.Identity()
    apart = torch.kron(torch.eye(3), torch.ones(12, 12)).bool()
    assert torch.equal(reach(residual, 36), apart)


def test_a_unit_that_does_not_widen_adds_its_input():
    unit = _ShuffleUnit(240, 240, 3).eval()
    *_, scale, _ = unit.residual.parameters()
    nn.init.zeros_(scale)
    image = torch.rand(1, 240, 4, 4)
    assert torch.equal(unit(image), image)


# --- how torch's modes take them -----------------------------------------------------------


@pytest.mark.parametrize("name", WRITTEN_HERE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_training_step_has_a_finite_loss_and_gradients(name, dtype):
    torch.manual_seed(0)
    network = create(name, 32).to(dtype).train()
    answer = network(images(32).to(dtype))
    loss = nn.functional.cross_entropy(answer.float(), torch.tensor([1, 2]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(math.log(1000), rel=0.15)
    for which, parameter in network.named_parameters():
        assert parameter.grad is not None, which
        assert torch.isfinite(parameter.grad).all(), which


@pytest.mark.parametrize("name", WRITTEN_HERE)
def test_a_network_is_one_graph_for_the_compiler(name, built):
    torch.compiler.reset()
    compiled = torch.compile(built[name], backend="eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(images()), built[name](images()))


# --- the registry --------------------------------------------------------------------------


def test_inception_without_its_auxiliary_head_answers_alone_in_training():
    batch = torch.empty(2, 3, 299, 299, device="meta")
    alone = create_weightless("inception_v3_no_aux", 299).train()(batch)
    twice = create_weightless("inception_v3", 299).train()(batch)
    assert alone.shape == (2, 1000)
    assert [head.shape for head in twice] == [(2, 1000), (2, 1000)]


def test_the_seeds_shufflenet_v2_is_torchvisions_1x():
    network = create_weightless(ROCM_NAMES["shufflenet_v2"], 224)
    batch_norm = network.get_submodule("conv5.1")
    assert isinstance(batch_norm, nn.BatchNorm2d)
    parameters = sum(p.numel() for p in network.parameters())
    assert parameters - 2 * batch_norm.num_features == 2_276_556


@pytest.mark.parametrize("name", ROCM)
def test_every_network_of_the_seed_can_be_built_for_its_224_pixels(name):
    network = create_weightless(ROCM_NAMES.get(name, name), 224)
    assert sum(p.numel() for p in network.parameters()) > 1e6
