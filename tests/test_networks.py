"""torchvision's networks as workloads: what is built, what is counted, what is compared."""

from __future__ import annotations

import json
import math
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from quickly import one_thread
from torch import nn
from torch._inductor import config as inductor
from torchvision import models
from torchvision.models import segmentation

from bench_lib.model import COMPILE_MODES, PRECISIONS, QUANTIZED, Numerics
from bench_lib.worker.device import require_compile, set_precision
from bench_lib.worker.workloads import Setting, UnsupportedError, Workload, flops, registry, steps
from bench_lib.worker.workloads import networks as module
from bench_lib.worker.workloads.networks import network
from bench_lib.worker.workloads.registry import create, create_weightless, networks
from bench_lib.worker.workloads.steps import loss_of, main_output

CPU = torch.device("cpu")
REGISTERED = [
    *models.list_models(module=models),
    *models.list_models(module=segmentation),
]


TINY = "squeezenet1_1"
"""Few weights, and no batch norm, which is not a number over the one pixel of a tiny image."""


@pytest.fixture(autouse=True)
def _switches() -> Iterator[None]:
    """Give torch's process-wide switches back as they were; one thread is quickest here."""
    with one_thread():
        yield


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> float:
    """Return a learning rate at which weights move; the suite's own keeps them where they are."""
    monkeypatch.setattr(module, "LEARNING_RATE", 0.01)
    return 0.01


def build(name: str, size: int = 32, batch_size: int = 2, **about: Any) -> Workload:
    """Build a network for tiny images on the CPU."""
    return network(Setting(CPU), network=name, batch_size=batch_size, image_size=size, **about)


def case_of(workload: Workload) -> Any:
    """Return the object behind a step, with its network, its loss and its optimizer."""
    return workload.step.__self__


def built_network(workload: Workload) -> Any:
    """Return what the step runs: model and input."""
    return case_of(workload).built


def flops_per_image(name: str, task: str = "infer") -> float:
    """FLOPs of one image at the network's own size."""
    return per_image(name, networks()[name].image_size, task)


def per_image(name: str, image_size: int, task: str = "infer") -> float:
    """FLOPs that each further image of a batch costs."""
    two, four = (flops.counted(module.weightless_step, name, image_size, n, task) for n in (2, 4))
    assert two is not None
    assert four is not None
    return (four.all_flops - two.all_flops) / 2


def after_one_step(workload: Workload) -> Numerics:
    """Do what measuring does, as short as can be."""
    workload.step()
    workload.first_step_done()
    numerics = workload.numerics()
    assert numerics is not None
    return numerics


# --- the registry --------------------------------------------------------------------------


def test_every_network_of_torchvision_is_known() -> None:
    assert list(networks())[: len(REGISTERED)] == REGISTERED
    assert len(REGISTERED) >= 86


@pytest.mark.parametrize("name", REGISTERED)
def test_a_network_takes_its_own_size_and_costs_what_is_published(name: str) -> None:
    known = networks()[name]
    assert known.name == name
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
    """Return what torchvision's metadata say, less an auxiliary head that is not built."""
    for weights in models.get_model_weights(name):
        if registry._crop(weights.transforms()) == size:
            published = float(weights.meta["_ops"])
            break
    if name.startswith(("fcn_", "deeplabv3_resnet")):
        channels, pixels = 1024, 65 * 65
        published -= (9 * channels * channels // 4 + channels // 4 * 21) * pixels / 1e9
    elif name == "deeplabv3_mobilenet_v3_large":
        channels, pixels = 40, 65 * 65
        published -= (9 * channels * channels // 4 + channels // 4 * 21) * pixels / 1e9
    return published


def test_weightless_networks_have_shapes_and_no_contents() -> None:
    network = create_weightless("regnet_y_128gf", 384)
    assert {t.device.type for t in (*network.parameters(), *network.buffers())} == {"meta"}
    assert sum(p.numel() for p in network.parameters()) == 644_812_894


def test_an_unknown_network_is_named() -> None:
    with pytest.raises(ValueError, match=r"torchvision [\d.+a-z]+ has no network 'resnet5'"):
        build("resnet5")


@pytest.mark.parametrize(
    ("name", "size"), [("vit_b_32", 64), ("maxvit_t", 448), ("resnet18", 96), ("swin_t", 64)]
)
def test_a_network_can_be_built_for_another_size(name: str, size: int) -> None:
    network = create_weightless(name, size).eval()
    with torch.no_grad():
        assert network(torch.empty(2, 3, size, size, device="meta")).shape == (2, 1000)


@pytest.mark.parametrize(
    ("what", "word", "message"),
    [
        ("precision", "fp17", "precision is 'fp17'; there is fp32, tf32, tf32-conv, "),
        ("compile_mode", "fast", "compile_mode is 'fast'; there is eager, graph, default, "),
        ("task", "test", "task is 'test'; there is infer, train"),
        ("memory_format", "chwn", "memory_format is 'chwn'; there is nchw, nhwc"),
    ],
)
def test_a_word_that_is_not_known_is_refused(what: str, word: str, message: str) -> None:
    about: dict[str, Any] = {what: word}
    with pytest.raises(ValueError, match=message):
        build("resnet18", **about)


def test_the_catalogue_is_printed_without_building_anything(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert registry.describe() == 0
    described = json.loads(capsys.readouterr().out)
    assert described["torch"] == torch.__version__
    assert list(described["networks"]) == list(networks())
    assert described["networks"]["inception_v3"] == {"kind": "classification", "image_size": 299}
    assert described["networks"]["fcn_resnet50"] == {"kind": "segmentation", "image_size": 520}


# --- FLOPs ---------------------------------------------------------------------------------


def test_resnet50_costs_4_09_gmacs_an_image() -> None:
    assert flops_per_image("resnet50") / 2e9 == pytest.approx(4.09, rel=0.005)


def test_the_attention_of_a_vit_is_counted() -> None:
    assert flops_per_image("vit_b_16") / 2e9 == pytest.approx(17.6, rel=0.005)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("resnet50", 2 * 64 * 3 * 7 * 7 * 112 * 112),
        ("mobilenet_v3_small", 2 * 16 * 3 * 3 * 3 * 112 * 112),
        ("resnext50_32x4d", 2 * 64 * 3 * 7 * 7 * 112 * 112),
        ("vit_b_32", 2 * 768 * 3 * 32 * 32 * 7 * 7),
    ],
)
def test_training_costs_three_forward_passes_less_the_gradient_of_the_images(
    name: str, first: int
) -> None:
    assert flops_per_image(name, "train") == 3 * flops_per_image(name) - first


def test_flops_of_a_step_are_those_of_its_images() -> None:
    four = build(TINY, 32, 4).flops_per_step()
    assert four == 4 * per_image(TINY, 32)
    assert build(TINY, 32, 8).flops_per_step() == 2 * four
    larger = build("resnet18", 64, 4).flops_per_step()
    classifier = 2 * 512 * 1000 * 4
    smaller = build("resnet18", 32, 4).flops_per_step()
    assert larger is not None
    assert smaller is not None
    assert larger - classifier == 4 * (smaller - classifier)


# --- steps ---------------------------------------------------------------------------------

RUNS_ON_A_CPU = ["fp32", "fp16", "fp16-bn32", "bf16", "amp-fp16", "amp-bf16"]
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
DTYPES |= {f"amp-{name}": dtype for name, dtype in DTYPES.items()}
DTYPES["fp16-bn32"] = torch.float16


@pytest.mark.parametrize("precision", RUNS_ON_A_CPU)
def test_inference_answers_in_its_precision_and_like_fp32(precision: str) -> None:
    workload = build(TINY, 64, precision=precision)
    output: Any = workload.step()
    assert output.shape == (2, 1000)
    assert output.dtype == DTYPES.get(precision, torch.float32)
    assert not output.requires_grad
    numerics = after_one_step(workload)
    assert numerics.finite
    assert numerics.reference_batch == 2
    assert numerics.cosine is not None
    assert numerics.cosine > 0.999
    assert (numerics.loss, numerics.grad_norm) == (None, None)


@pytest.mark.parametrize("precision", RUNS_ON_A_CPU)
def test_training_learns_in_its_precision_and_like_fp32(precision: str) -> None:
    numerics = after_one_step(build(TINY, 64, precision=precision, task="train"))
    assert numerics.finite
    assert numerics.loss == pytest.approx(numerics.reference_loss, rel=0.01)
    assert numerics.grad_norm == pytest.approx(numerics.reference_grad_norm, rel=0.02)
    assert (numerics.cosine, numerics.max_abs_diff) == (None, None)


@pytest.mark.parametrize("memory_format", ["nchw", "nhwc"])
@pytest.mark.parametrize("task", ["infer", "train"])
def test_memory_format_is_that_of_weights_and_images(task: str, memory_format: str) -> None:
    seen: list[torch.Tensor] = []
    workload = build(TINY, task=task, memory_format=memory_format)
    features = built_network(workload).model.features
    features[0].register_forward_hook(lambda _layer, inputs, output: seen.extend((*inputs, output)))
    workload.step()
    layout = torch.channels_last if memory_format == "nhwc" else torch.contiguous_format
    assert [tensor.is_contiguous(memory_format=layout) for tensor in seen] == [True, True]
    assert features[0].weight.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("name", [TINY, "mobilenet_v3_small", "vit_b_32"])
def test_fp32_eager_inference_is_its_own_reference(name: str) -> None:
    numerics = after_one_step(build(name))
    assert (numerics.finite, numerics.max_abs_diff) == (True, 0.0)
    assert numerics.cosine == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("name", [TINY, "mobilenet_v3_small", "googlenet"])
def test_fp32_eager_training_is_its_own_reference(name: str) -> None:
    numerics = after_one_step(build(name, task="train"))
    assert numerics.loss == numerics.reference_loss
    assert numerics.grad_norm == numerics.reference_grad_norm


def test_a_step_of_training_changes_every_weight(learning: float) -> None:
    workload = build(TINY, task="train")
    model = built_network(workload).model
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    workload.step()
    for name, parameter in model.named_parameters():
        step = learning * parameter.grad
        assert torch.allclose(parameter, before[name] - step, rtol=0, atol=1e-7), name


def test_many_steps_leave_the_weights_where_they_are() -> None:
    workload = build(TINY, 64, task="train")
    losses = []
    for _ in range(5):
        torch.manual_seed(0)  # dropout
        workload.step()
        losses.append(float(case_of(workload).loss))
    assert losses == pytest.approx([losses[0]] * 5, rel=1e-4)


def test_gradients_do_not_pile_up_from_step_to_step() -> None:
    workload = build("resnet18", task="train")
    case = case_of(workload)
    case.optimizer.param_groups[0]["lr"] = 0.0
    workload.step()
    first = case.built.model.fc.weight.grad.clone()
    workload.step()
    assert torch.equal(case.built.model.fc.weight.grad, first)


def test_segmentation_answers_for_every_pixel() -> None:
    output: Any = build("lraspp_mobilenet_v3_large", 64).step()
    assert output["out"].shape == (2, 21, 64, 64)
    numerics = after_one_step(build("lraspp_mobilenet_v3_large", 64, task="train"))
    assert numerics.loss == numerics.reference_loss
    assert numerics.loss == pytest.approx(math.log(21), rel=0.5)


@pytest.mark.parametrize(("name", "size"), [("inception_v3", 299), ("googlenet", 64)])
def test_auxiliary_heads_are_trained(name: str, size: int) -> None:
    workload = build(name, size, task="train")
    workload.step()
    gradients = {n: p.grad for n, p in built_network(workload).model.named_parameters()}
    assert any("aux" in n.lower() for n in gradients)
    assert [n for n, gradient in gradients.items() if gradient is None] == []


def test_auxiliary_losses_are_weighted_as_in_their_papers() -> None:
    target = torch.tensor([0])
    head = torch.zeros(1, 4)
    one = math.log(4)
    assert float(loss_of(head, target)) == pytest.approx(one)
    assert float(loss_of({"out": head, "aux": head}, target)) == pytest.approx(one)
    assert float(loss_of((head, head), target)) == pytest.approx(1.4 * one)
    assert float(loss_of((head, head, head), target)) == pytest.approx(1.6 * one)
    assert float(loss_of((head, None), target)) == pytest.approx(one)


def test_what_a_network_is_made_of_is_told() -> None:
    parameters = 11_689_512
    images, answers = 2 * 3 * 32 * 32, 2 * 1000
    inference = build("resnet18", precision="fp16")
    assert (inference.items_per_step, inference.item) == (2, "img")
    assert (inference.parameters, inference.compiled) == (parameters, False)
    assert inference.least_bytes_per_step == 2 * (parameters + images + answers)
    training = build("resnet18", task="train")
    assert training.least_bytes_per_step == 4 * (4 * parameters + images)
    pixels = build("lraspp_mobilenet_v3_large", 64, precision="amp-bf16")
    weights = 4 * (pixels.parameters or 0)
    assert pixels.least_bytes_per_step == weights + 4 * 2 * 3 * 64 * 64 + 2 * 2 * 21 * 64 * 64


@pytest.fixture
def two_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have 2 × 2 images of resnet18 answered by a product of 12 numbers and a sum of 1000."""

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
LOSS = 2 * 2000 + (2000 + 1 + 1)
"""Of a logarithm of softmax, and of picking from it with a weight."""
BACKWARD = 1 + (1 + 2000 + 1 + 2000) + 3 * 2000 + (2000 + 1000) + (2000 + 24 + 12_000)
"""Of the same the other way: gradients of the loss, of the sum and of the product's weights."""


@pytest.mark.usefixtures("two_layers")
@pytest.mark.parametrize(
    ("precision", "size"), [("fp32", 4), ("fp16", 2), ("amp-bf16", 2), ("tf32-conv", 4)]
)
def test_inference_moves_numbers_of_the_size_that_it_computes_in(
    precision: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "set_precision", lambda *_: None)
    workload = build("resnet18", 2, precision=precision)
    assert workload.traffic_bytes_per_step() == FORWARD * size


@pytest.mark.usefixtures("two_layers")
def test_training_moves_gradients_and_the_optimizers_numbers_too() -> None:
    numbers = FORWARD + LOSS + BACKWARD + 8 * 13_000
    workload = build("resnet18", 2, task="train")
    assert workload.traffic_bytes_per_step() == numbers * 4 + 2 * (2 * 8)


@pytest.mark.usefixtures("two_layers")
def test_autocast_updates_its_weights_in_fp32_in_one_step_of_many() -> None:
    workload = build("resnet18", 2, task="train", precision="amp-bf16", optimizer_every=2)
    computing = (FORWARD + LOSS + BACKWARD) * 2 + 2 * (2 * 8)
    assert workload.traffic_bytes_per_step() == computing + (8 + 3) / 2 * 13_000 * 4


def test_each_rank_has_images_of_its_own_and_the_same_weights() -> None:
    second = Setting(CPU, rank=1, local_rank=1, ranks=2)
    zero = built_network(build(TINY))
    one = built_network(network(second, network=TINY, batch_size=2, image_size=32))
    assert not torch.equal(zero.input, one.input)
    weights = zip(zero.model.parameters(), one.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in weights)


def test_activations_keep_their_size_from_layer_to_layer() -> None:
    def largest_spread(model: nn.Module, images: torch.Tensor) -> float:
        spreads: list[float] = []
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_hook(lambda *seen: spreads.append(float(seen[2].std())))
        with torch.no_grad():
            model(images)
        return max(spreads)

    case = built_network(build("resnet50", 64))
    assert 0.1 < largest_spread(case.model, case.input) < 10
    assert largest_spread(create("resnet50", 64).eval(), case.input) > 20


def test_a_head_that_starts_at_zero_gets_weights() -> None:
    output: Any = build("vit_b_32").step()
    assert float(output.abs().min()) > 0


# --- planted faults ------------------------------------------------------------------------


@pytest.fixture
def planted(request: pytest.FixtureRequest) -> Workload:
    """Build a network whose weights are damaged after it was built; its twin's are not."""
    task, damage = request.param
    workload = build(TINY, 64, task=task)
    damage(built_network(workload).model.classifier[1])
    return workload


def shuffled(layer: nn.Conv2d) -> None:
    """Put the classes into another order."""
    layer.weight.data.copy_(layer.weight.data.flip(0))


def nan(layer: nn.Conv2d) -> None:
    """Spoil one weight."""
    layer.weight.data[0, 0] = math.nan


def infinite(layer: nn.Conv2d) -> None:
    """Let one class overflow."""
    assert layer.bias is not None
    layer.bias.data[0] = math.inf


@pytest.mark.parametrize("planted", [("infer", shuffled)], indirect=True)
def test_a_wrong_answer_shows_in_the_cosine(planted: Workload) -> None:
    numerics = after_one_step(planted)
    assert numerics.finite
    assert numerics.cosine is not None
    assert numerics.cosine < 0.9
    assert numerics.max_abs_diff is not None
    assert numerics.max_abs_diff > 0.01


@pytest.mark.parametrize("planted", [("infer", nan), ("infer", infinite)], indirect=True)
def test_an_answer_that_is_not_finite_is_called_so(planted: Workload) -> None:
    assert not after_one_step(planted).finite


@pytest.mark.parametrize("planted", [("train", nan)], indirect=True)
def test_a_loss_that_is_not_finite_is_called_so(planted: Workload) -> None:
    numerics = after_one_step(planted)
    assert not numerics.finite
    assert numerics.reference_loss is not None
    assert math.isfinite(numerics.reference_loss)


@pytest.mark.parametrize("planted", [("train", shuffled)], indirect=True)
def test_wrong_training_shows_in_the_loss(planted: Workload) -> None:
    numerics = after_one_step(planted)
    assert numerics.finite
    assert numerics.loss != numerics.reference_loss
    assert numerics.grad_norm != numerics.reference_grad_norm


def test_training_that_breaks_later_is_not_called_finite() -> None:
    workload = build(TINY, task="train")
    workload.step()
    workload.first_step_done()
    nan(built_network(workload).model.classifier[1])
    workload.step()
    numerics = workload.numerics()
    assert numerics is not None
    assert (numerics.finite, numerics.loss) == (False, numerics.reference_loss)


# --- what a device cannot do ---------------------------------------------------------------


def test_tf32_on_a_cpu_is_skipped_with_a_remedy() -> None:
    with pytest.raises(UnsupportedError, match="TF32 exists on GPUs only; use fp32 on a CPU"):
        build("resnet18", precision="tf32")


@pytest.mark.parametrize(
    "mode", ["graph", "reduce-overhead", "reduce-overhead-folded", "reduce-overhead-fused"]
)
def test_graphs_on_a_cpu_are_skipped(mode: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{mode} records CUDA graphs"):
        build("resnet18", compile_mode=mode)


def test_every_precision_runs_on_a_cpu_or_says_why_not() -> None:
    assert {*RUNS_ON_A_CPU, "tf32", "tf32-conv", *QUANTIZED} == set(PRECISIONS)


@pytest.mark.parametrize("precision", ["tf32", "tf32-conv"])
def test_tf32_on_a_cpu_is_skipped(precision: str) -> None:
    with pytest.raises(UnsupportedError, match="TF32 exists on GPUs only"):
        build("resnet18", precision=precision)


@pytest.mark.filterwarnings("ignore")  # torchao's and torch's words about each other
def test_int8_keeps_linear_layers_in_less_and_answers_nearly_the_same() -> None:
    pytest.importorskip("torchao", exc_type=ImportError)
    workload = build("resnet18", 64, precision="int8")
    assert workload.warnings == ["INT8 in 1 linear layer with 4% of the weights; the rest is bf16"]
    weight = built_network(workload).model.fc.weight
    assert type(weight) is not nn.Parameter
    assert "int8" in str(weight).lower()
    numerics = after_one_step(workload)
    assert numerics.cosine is not None
    assert 0.99 < numerics.cosine < 1


@pytest.mark.filterwarnings("ignore")
def test_int8_of_a_vit_reaches_what_torchao_quantizes_and_nothing_else() -> None:
    pytest.importorskip("torchao", exc_type=ImportError)
    workload = build("vit_b_32", 64, precision="int8")
    (warning,) = workload.warnings
    assert warning.startswith("INT8 in 25 linear layers with 65% of the weights")
    weights = dict(built_network(workload).model.named_parameters())
    quantized = {name: w for name, w in weights.items() if type(w) is not nn.Parameter}
    mlps = [f"encoder.layers.encoder_layer_{n}.mlp.{i}.weight" for n in range(12) for i in (0, 3)]
    assert set(quantized) == {*mlps, "heads.head.weight"}
    share = 24 * (768 * 3072) * 5 + 768 * 1000
    whole = share + 12 * (4 * 768 * 768 * 5 + 2 * 5 * 5 * 768) + 4 * 3 * 32 * 32 * 768
    assert workload.reduced_flops_share() == share / whole


@pytest.mark.filterwarnings("ignore")
def test_quantized_weights_have_to_be_read_as_they_are_kept() -> None:
    pytest.importorskip("torchao", exc_type=ImportError)
    plain = build("resnet18", precision="bf16").least_bytes_per_step
    quantized = build("resnet18", precision="int8").least_bytes_per_step
    assert plain is not None
    assert quantized is not None
    scales = quantized - (plain - 512 * 1000)
    assert 0 < scales <= 1000 * 8


def test_convolutions_share_is_that_of_tf32(monkeypatch: Any) -> None:
    monkeypatch.setattr(steps, "set_precision", lambda *_: None)
    counted = per_image("resnet18", 32)
    share = build("resnet18", precision="tf32-conv").reduced_flops_share()
    assert share == pytest.approx(1 - 2 * 512 * 1000 / counted, rel=1e-12)
    training = build("resnet18", precision="tf32-conv", task="train").reduced_flops_share()
    assert training == pytest.approx(0.97, abs=0.02)
    assert build("resnet18").reduced_flops_share() is None


@pytest.mark.filterwarnings("ignore")
def test_int8_of_a_network_without_linear_layers_is_skipped() -> None:
    pytest.importorskip("torchao", exc_type=ImportError)
    with pytest.raises(UnsupportedError, match="the network has none"):
        build(TINY, precision="int8")


def test_int8_without_torchao_is_skipped_with_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'bench-lib\[int8\]'"):
        build("resnet18", precision="int8")


def test_int8_with_a_torchao_that_does_not_fit_is_skipped_with_the_torch_that_is_there(
    monkeypatch: Any,
) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", types.ModuleType("quantization"))
    with pytest.raises(UnsupportedError, match=r"install one that fits torch \d"):
        build("resnet18", precision="int8")


def test_batch_norms_may_stay_in_fp32() -> None:
    model = built_network(build("resnet18", 64, precision="fp16-bn32")).model
    assert model.bn1.weight.dtype == model.bn1.running_mean.dtype == torch.float32
    assert model.conv1.weight.dtype == torch.float16


def test_folded_networks_answer_as_before() -> None:
    workload = build("resnet18", 64, precision="bf16", compile_mode="default-folded")
    model = built_network(workload).model
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert next(model.parameters()).dtype == torch.bfloat16


@pytest.mark.usefixtures("learning")
def test_gradients_add_up_until_the_optimizer_uses_them() -> None:
    case = case_of(build(TINY, 64, task="train", optimizer_every=2))
    case.built.model.eval()  # dropout would draw anew
    weight = next(case.built.model.parameters())
    before = weight.detach().clone()
    case.step()
    once = weight.grad.clone()
    assert torch.equal(weight, before)
    case.step()
    torch.testing.assert_close(weight.grad, 2 * once)
    assert not torch.equal(weight, before)
    case.optimizer.zero_grad()
    case.step()
    alone = weight.grad.clone()
    case.optimizer.zero_grad()
    case.gathered = 0
    case.step()
    torch.testing.assert_close(weight.grad, alone)


def test_the_loss_of_inference_is_that_of_its_answer() -> None:
    loss = build("resnet18", 64, 4).loss()
    assert loss is not None
    assert float(loss) == pytest.approx(math.log(1000), abs=0.8)


def test_the_layers_of_a_step_are_the_network_and_its_input() -> None:
    model, images = build(TINY, precision="bf16", batch_size=3).layers()
    assert next(model.parameters()).dtype == torch.bfloat16
    assert images.shape == (3, 3, 32, 32)


def test_compiling_for_a_cpu_without_a_compiler_is_skipped() -> None:
    missing = inductor.patch({"cpp.cxx": (None, "/nowhere/g++")})  # as torch takes it from CXX
    with missing, pytest.raises(UnsupportedError) as refused:
        require_compile("default", CPU)
    assert str(refused.value) == "torch.compile needs a C++ compiler on a CPU; install g++"


@pytest.mark.parametrize(
    "mode", [m for m in COMPILE_MODES if m not in ("eager", "graph") and "overhead" not in m]
)
def test_other_compile_modes_may_run_on_a_cpu(mode: str) -> None:
    try:
        require_compile(mode, CPU)
    except UnsupportedError as reason:
        pytest.skip(str(reason))


def test_switches_are_set_for_every_case_anew() -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    set_precision("fp32", CPU)
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.backends.cudnn.allow_tf32 is False
