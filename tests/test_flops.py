"""What a step computes and moves: by hand for small ones, then for a network that all know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench_lib.worker import layers
from bench_lib.worker.workloads import flops, networks
from bench_lib.worker.workloads.flops import Amount, count
from bench_lib.worker.workloads.registry import create


def meta(*shape: int, **about: Any) -> Tensor:
    return torch.empty(*shape, device="meta", **about)


def moved(step: Callable[[], object]) -> tuple[float, float]:
    counted = count(step)
    assert counted.flops == {}
    return counted.elements, counted.other_bytes


# --- one operation -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "elements"),
    [
        (lambda x: x + meta(10), 30),
        (lambda x: x.relu_(), 20),
        (lambda x: x.sum(), 11),
        (lambda x: torch.cat([x, meta(5)]), 30),
        (lambda x: x.fill_(1.0), 10),
        (torch.zeros_like, 10),
        (lambda x: x.copy_(meta(10)), 20),
        (lambda x: x.view(2, 5).t().clone(), 20),
    ],
)
def test_each_operand_and_each_answer_is_moved_once(step, elements):
    x = meta(10)
    assert moved(lambda: step(x)) == (elements, 0)


@pytest.mark.parametrize(
    "step",
    [
        lambda x: x.view(2, 5).t(),
        lambda x: torch.ops.aten._unsafe_view(x, [5, 2]),
        lambda x: x.expand(3, 10),
        lambda x: x.as_strided_((5,), (2,)),
        lambda x: x[2:4],
        torch.empty_like,
        lambda _x: torch.empty(9, device="meta"),
    ],
)
def test_views_and_memory_that_nobody_fills_move_nothing(step):
    x = meta(10)
    assert moved(lambda: step(x)) == (0, 0)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("of_images", [False, True])
def test_a_convolution_costs_as_much_again_for_each_gradient(groups, of_images):
    images = meta(2, 8, 6, 6, requires_grad=of_images)
    weight = meta(8, 8 // groups, 3, 3, requires_grad=True)

    def step() -> None:
        answer = functional.conv2d(images, weight, padding=1, groups=groups)
        answer.backward(meta(2, 8, 6, 6))

    forward = 2 * (2 * 8 * 36) * (8 // groups * 9)
    gradients = 2 if of_images else 1
    expected = {"convolution": forward, "convolution_backward": gradients * forward}
    assert count(step).flops == expected


# --- attention -----------------------------------------------------------------------------


def attention(*, training: bool, mask: Tensor | None = None) -> Amount:
    query = meta(3, 2, 5, 4, requires_grad=training)
    key = meta(3, 2, 7, 4, requires_grad=training)
    value = meta(3, 2, 7, 4, requires_grad=training)

    def step() -> None:
        answer = functional.scaled_dot_product_attention(query, key, value, mask)
        if training:
            answer.backward(meta(3, 2, 5, 4))

    return count(step)


QUERY, KEY = 3 * 2 * 5 * 4, 3 * 2 * 7 * 4
SCORES = 3 * 2 * 5 * 7


def test_attention_costs_twice_as_much_back_as_there():
    counted = attention(training=True)
    name = "scaled_dot_product_attention"
    assert counted.flops == {name: 16 * SCORES, f"{name}_backward": 32 * SCORES}
    there, back = 2 * QUERY + 2 * KEY, (3 * QUERY + 2 * KEY) + (QUERY + 2 * KEY)
    assert counted.elements == there + back


# --- a step of a network -------------------------------------------------------------------


def test_the_optimizer_moves_eight_numbers_for_each_weight():
    weight = meta(10, requires_grad=True)
    weight.grad = meta(10)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, foreach=False)
    optimizer.step()  # the first has no momentum yet
    assert moved(optimizer.step) == (10 * networks.SGD_ELEMENTS, 0)


def counted(network: nn.Module, task: str, monkeypatch: pytest.MonkeyPatch) -> Amount | None:
    monkeypatch.setattr(networks, "create_weightless", lambda _name, _side: network)
    return flops.counted.__wrapped__(networks.weightless_step, "resnet18", 2, 3, task)


def test_a_network_that_looks_at_its_data_is_not_counted(monkeypatch):
    class Looking(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images if images.sum() > 0 else -images

    assert counted(Looking(), "infer", monkeypatch) is None


# --- a network that all know ---------------------------------------------------------------


def test_resnet50_costs_4_09_gmacs_an_image_by_two_counts():
    one = flops.counted(networks.weightless_step, "resnet50", 224, 1, "infer")
    per_image = one.all_flops
    assert per_image == pytest.approx(2 * 4.09e9, rel=0.005)
    text = layers.profile(
        create("resnet50", 224).eval(), torch.randn(1, 3, 224, 224), training=False
    )
    assert f"{per_image / 2e9:.2f} GMACs" in text
    assert "25.56 M" in text  # its weights


def test_resnet50_moves_its_weights_once_and_its_activations_between_operations():
    one, two = (
        flops.counted(networks.weightless_step, "resnet50", 224, n, "infer") for n in (1, 2)
    )
    assert 2 * one.elements - two.elements == 25_557_032 + 4 * 26_560
    assert one.other_bytes == 8 * 64 * 56 * 56  # where a pool's maxima were
