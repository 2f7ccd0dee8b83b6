"""Networks with what follows a convolution merged into it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench_lib.worker.workload import UnsupportedError
from bench_lib.worker.workloads.compilation import Fused, fuse_relus, merged
from bench_lib.worker.workloads.registry import create

CPU = torch.device("cpu")


def test_folded_batch_norms_are_in_the_convolutions_and_nowhere_else() -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.BatchNorm2d(1), nn.ReLU()).eval()
    model[0].weight.data.fill_(3.0)
    model[1].running_mean.fill_(1.0)
    model[1].running_var.fill_(4.0)
    without, left = merged(model, "reduce-overhead-folded", CPU)
    assert left == []
    assert not any(isinstance(module, nn.BatchNorm2d) for module in without.modules())
    weight = dict(without.named_parameters())["0.weight"]
    assert float(weight.detach()) == pytest.approx(1.5, rel=1e-4)
    image = torch.full((1, 1, 1, 1), 5.0)
    torch.testing.assert_close(without(image), model(image), rtol=1e-5, atol=1e-6)
    assert merged(model, "reduce-overhead", CPU) == (model, [])


def test_batch_norms_that_cannot_be_folded_are_counted() -> None:
    norms = [nn.BatchNorm2d(1) for _ in range(3)]
    model = nn.Sequential(norms[0], nn.Conv2d(1, 1, 1), norms[1], nn.ReLU(), norms[2])
    without, left = merged(model, "default-folded", CPU)
    assert left == [
        "2 of the network's 3 batch norms are not folded: they follow no convolution of their own"
    ]
    assert len([m for m in without.modules() if isinstance(m, nn.BatchNorm2d)]) == 2


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([nn.Conv2d(1, 1, 1)], "the network has no batch norms to fold; use max-autotune$"),
        (
            [nn.BatchNorm2d(1), nn.Conv2d(1, 1, 1)],
            "none of the network's 1 batch norms follows a convolution of its own; use max-auto",
        ),
    ],
)
def test_a_network_in_which_nothing_folds_is_skipped(layers: list[nn.Module], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        merged(nn.Sequential(*layers), "max-autotune-folded", CPU)


def test_a_network_whose_flow_depends_on_its_data_is_skipped() -> None:
    class Depends(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(UnsupportedError, match=r"torch\.fx cannot follow the network"):
        merged(Depends(), "default-folded", CPU)


def in_turn(calls: list[str]) -> Fused:
    def relu(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
        calls.append("relu")
        return functional.relu(functional.conv2d(x, weight, bias, *rest))

    def add_relu(
        x: Tensor, weight: Tensor, z: Tensor, alpha: float, bias: Tensor, *rest: Any
    ) -> Tensor:
        calls.append("add_relu")
        return functional.relu(functional.conv2d(x, weight, bias, *rest) + alpha * z)

    return Fused(relu, add_relu)


def fused(model: nn.Module) -> tuple[torch.fx.GraphModule, int, list[str]]:
    calls: list[str] = []
    network = torch.fx.symbolic_trace(model.eval())
    return network, fuse_relus(network, in_turn(calls)), calls


@pytest.mark.parametrize(
    ("name", "relus", "sums"),
    [("resnet18", 9, 8), ("resnet50", 33, 16), ("googlenet", 57, 0), ("vgg11_bn", 8, 0)],
)
def test_a_fused_network_answers_as_before(name: str, relus: int, sums: int) -> None:
    model = create(name, 64).eval()
    image = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(image)
        folded, _ = merged(model, "default-folded", CPU)
        calls: list[str] = []
        count = fuse_relus(folded, in_turn(calls))  # as merged does
        answer = folded(image)
    assert count == relus + sums
    assert (calls.count("relu"), calls.count("add_relu")) == (relus, sums)
    assert float(functional.cosine_similarity(answer, expected).min()) > 0.9999


class Written(nn.Module):
    def __init__(self, after: Any, **settings: Any) -> None:
        super().__init__()
        self.after = after
        self.conv = nn.Conv2d(1, 1, 1, **settings)
        self.six = nn.ReLU6()

    def forward(self, x: Tensor) -> Any:
        return self.after(self, x, self.conv(x))


@pytest.mark.parametrize(
    "after",
    [
        lambda _m, _x, y: functional.relu(y),
        lambda _m, _x, y: functional.relu(y, inplace=True),
        lambda _m, _x, y: torch.relu(y),
        lambda _m, _x, y: y.relu(),
        lambda _m, x, y: torch.relu(x + y),
        lambda _m, x, y: torch.relu(y + x),
        lambda _m, x, y: torch.add(y, x).relu_(),
    ],
)
def test_every_way_to_write_a_relu_is_fused(after: Any) -> None:
    model = Written(after)
    image = torch.randn(1, 1, 2, 2)
    expected = model(image.clone())
    network, count, _ = fused(model)
    assert count == 1
    torch.testing.assert_close(network(image.clone()), expected)


@pytest.mark.parametrize(
    ("after", "settings"),
    [
        (lambda _m, _x, y: y, {}),
        (lambda m, _x, y: m.six(y), {}),
        (lambda _m, _x, y: torch.relu(y) + y, {}),
        (lambda _m, _x, y: torch.relu(y + 1), {}),
        (lambda _m, x, y: torch.relu(torch.add(y, x, alpha=2)), {}),
        (lambda _m, x, y: torch.relu(s := y + x) + s, {}),
        (lambda _m, _x, y: torch.relu(y), {"bias": False}),
        (lambda _m, _x, y: torch.relu(y), {"padding": "same"}),
        (lambda _m, _x, y: torch.relu(y), {"padding_mode": "reflect", "padding": 1}),
    ],
)
def test_what_a_library_cannot_do_in_one_kernel_stays(after: Any, settings: dict[str, Any]) -> None:
    model = Written(after, **settings)
    image = torch.randn(1, 1, 2, 2)
    network, count, calls = fused(model)
    assert (count, calls) == (0, [])
    torch.testing.assert_close(network(image), model(image))
