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
from bench_lib.worker.workloads.steps import loss_of


def meta(*shape: int, **about: Any) -> Tensor:
    """Return a tensor without data."""
    return torch.empty(*shape, device="meta", **about)


def moved(step: Callable[[], object]) -> tuple[float, float]:
    """Count the numbers and the other bytes that a step moves, and see that it computes nothing."""
    counted = count(step)
    assert counted.flops == {}
    return counted.elements, counted.other_bytes


# --- one operation -------------------------------------------------------------------------


def test_a_convolution_reads_image_and_weight_and_writes_its_answer():
    image, weight = meta(2, 3, 8, 8), meta(8, 3, 3, 3)
    counted = count(lambda: functional.conv2d(image, weight, padding=1))
    assert counted == Amount({"convolution": 2 * 27 * 8 * 64 * 2}, 384 + 216 + 1024, 0.0)


@pytest.mark.parametrize(
    ("step", "elements"),
    [
        (lambda x: x + meta(10), 30),
        (lambda x: x * x, 20),
        (lambda x: x.relu_(), 20),
        (lambda x: x.sum(), 11),
        (lambda x: torch.cat([x, meta(5)]), 30),
        (lambda x: x.fill_(1.0), 10),
        (torch.zeros_like, 10),
        (lambda x: x.copy_(meta(10)), 20),
        (lambda x: x + meta(1).expand(10), 21),
        (lambda x: x.view(2, 5).t().clone(), 20),
    ],
)
def test_each_operand_and_each_answer_is_moved_once(step: Any, elements: int):
    x = meta(10)
    assert moved(lambda: step(x)) == (elements, 0)


@pytest.mark.parametrize(
    "step",
    [
        lambda x: x.view(2, 5),
        lambda x: x.view(2, 5).t(),
        lambda x: torch.ops.aten._unsafe_view(x, [5, 2]),
        lambda x: x.detach(),
        lambda x: x.expand(3, 10),
        lambda x: x.as_strided_((5,), (2,)),
        lambda x: x[2:4],
        torch.empty_like,
        lambda x: x.new_empty(7),
        lambda _x: torch.empty(9, device="meta"),
    ],
)
def test_views_and_memory_that_nobody_fills_move_nothing(step: Any):
    x = meta(10)
    assert moved(lambda: step(x)) == (0, 0)


def test_what_is_no_floating_point_number_keeps_its_own_size():
    x = meta(10)
    assert moved(lambda: x > 0) == (10, 10)
    image = meta(1, 1, 4, 4)
    assert moved(lambda: functional.max_pool2d(image, 2)) == (16 + 4, 8 * 4)


def test_a_linear_layer_there_and_back():
    layer, images = nn.Linear(4, 3, device="meta"), meta(2, 4)
    there = (2 * 4 + 12 + 3) + 2 * 3
    of_weights, of_bias = 2 * 3 + 2 * 4 + 12, 2 * 3 + 3
    counted = count(lambda: layer(images).backward(meta(2, 3)))
    assert counted == Amount({"addmm": 48, "mm": 48}, there + of_weights + of_bias, 0.0)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("of_images", [False, True])
def test_a_convolution_costs_as_much_again_for_each_gradient(groups: int, of_images: bool):
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
    """Count attention of two heads of four numbers, from 5 places to 7."""
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


def test_attention_is_one_operation():
    name = "scaled_dot_product_attention"
    moved_once = 2 * QUERY + 2 * KEY
    assert attention(training=False) == Amount({name: 2 * 2 * SCORES * 4}, moved_once, 0)
    mask = meta(5, 7)
    assert attention(training=False, mask=mask).elements == moved_once + 5 * 7


def test_attention_costs_twice_as_much_back_as_there():
    counted = attention(training=True)
    name = "scaled_dot_product_attention"
    assert counted.flops == {name: 16 * SCORES, f"{name}_backward": 32 * SCORES}
    there, back = 2 * QUERY + 2 * KEY, (3 * QUERY + 2 * KEY) + (QUERY + 2 * KEY)
    assert counted.elements == there + back


def test_torch_has_its_own_attention_back_even_after_a_failure():
    own = functional.scaled_dot_product_attention

    def fail() -> None:
        assert functional.scaled_dot_product_attention is not own
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        count(fail)
    assert functional.scaled_dot_product_attention is own


# --- a step of a network -------------------------------------------------------------------


def test_the_optimizer_moves_eight_numbers_for_each_weight():
    weight = meta(10, requires_grad=True)
    weight.grad = meta(10)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, foreach=False)
    optimizer.step()  # the first has no momentum yet
    assert moved(optimizer.step) == (10 * networks.SGD_ELEMENTS, 0)


class Odd(nn.Module):
    """Multiplies its images by a product of weights, which costs the same for any batch."""

    def __init__(self) -> None:
        """Make two weights without data."""
        super().__init__()
        self.left = nn.Parameter(meta(12, 5))
        self.right = nn.Parameter(meta(5, 6))

    def forward(self, images: Tensor) -> Tensor:
        """Answer six numbers an image."""
        return images.flatten(1) @ (self.left @ self.right)


def counted(network: nn.Module, task: str, monkeypatch: pytest.MonkeyPatch) -> Amount | None:
    """Count a step of three 2 × 2 images, by a network that is in no registry."""
    monkeypatch.setattr(networks, "create_weightless", lambda _name, _side: network)
    return flops.counted.__wrapped__(networks.weightless_step, "resnet18", 2, 3, task)


def test_a_part_of_the_work_does_not_depend_on_the_batch(monkeypatch):
    of_weights, of_images = 2 * 12 * 5 * 6, 2 * 12 * 6
    elements = (60 + 30 + 72) + (72 + 3 * (12 + 6))
    found = counted(Odd(), "infer", monkeypatch)
    assert found == Amount({"mm": of_weights + 3 * of_images}, elements, 0)


def test_a_frozen_weight_has_no_gradient(monkeypatch):
    network = Odd()
    network.left.requires_grad_(False)
    trained = counted(network, "train", monkeypatch)
    assert trained is not None
    assert trained.flops == {"mm": 2 * (2 * 12 * 5 * 6 + 3 * 2 * 12 * 6)}


def test_a_network_that_looks_at_its_data_is_not_counted(monkeypatch):
    class Looking(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images if images.sum() > 0 else -images

    assert counted(Looking(), "infer", monkeypatch) is None


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_all_heads_of_a_network_are_differentiated(heads: int):
    answers = [meta(2, 5, 4, 4, requires_grad=True) for _ in range(heads)]
    targets = meta(2, 4, 4, dtype=torch.int64)
    outputs: list[Any] = [(*answers, None), *([answers[0]] if heads == 1 else [])]
    for output in outputs:
        for answer in answers:
            answer.grad = None
        loss_of(output, targets).backward()
        assert all(answer.grad is not None for answer in answers)


# --- shares of the work --------------------------------------------------------------------


def test_operations_have_a_share_of_all_flops():
    amount = Amount({"convolution": 300.0, "addmm": 30.0, "mm": 7.0}, 1050, 88)
    assert amount.all_flops == 337
    assert amount.share_of(networks.CONVOLUTIONS) == 300 / 337
    assert amount.share_of(["addmm", "mm"]) == 37 / 337
    assert Amount({}, elements=1, other_bytes=0).share_of(["mm"]) is None


def test_traffic_is_numbers_of_their_size_and_the_rest_as_it_is():
    amount = Amount({}, elements=1050, other_bytes=88)
    assert amount.moved_bytes(2) == 1050 * 2 + 88


def test_operations_on_some_weights_are_told_apart():
    one, other, images = nn.Linear(4, 3, device="meta"), meta(5, 3), meta(2, 4)
    counted = count(lambda: functional.linear(one(images), other), [other])
    assert counted.flops == {"addmm": 2 * 2 * 4 * 3, flops.APART: 2 * 2 * 3 * 5}


class Attentive(nn.Module):
    """Attends among four places of three numbers, and answers ten."""

    def __init__(self) -> None:
        """Make layers without data."""
        super().__init__()
        self.attention = nn.MultiheadAttention(3, 1, bias=False, batch_first=True, device="meta")
        self.head = nn.Linear(12, 10, bias=False, device="meta")

    def forward(self, images: Tensor) -> Tensor:
        """Answer ten numbers an image."""
        places = images.flatten(2).mT
        answer, _ = self.attention(places, places, places, need_weights=False)
        return self.head(answer.flatten(1))


def test_attentions_own_weights_are_no_linear_layers(monkeypatch):
    monkeypatch.setattr(networks, "create_weightless", lambda _name, _size: Attentive())
    found = networks.linear_share.__wrapped__("attentive", 2)
    assert found == 120 / (4 * 3 * 9 + 4 * 3 * 3 + 2 * 16 * 3 + 120)


# --- a network that all know ---------------------------------------------------------------


def test_resnet50_costs_4_09_gmacs_an_image_by_three_counts():
    one = flops.counted(networks.weightless_step, "resnet50", 224, 1, "infer")
    assert one is not None
    per_image = one.all_flops
    assert per_image == pytest.approx(2 * 4.09e9, rel=0.005)
    profile = layers.profile(
        create("resnet50", 224).eval(), torch.randn(1, 3, 224, 224), training=False
    )
    assert 2 * profile.macs == per_image
    assert profile.flops_by_torch == per_image
    assert profile.disagreement is None
    assert "25.56 M" in profile.text  # its weights


def test_resnet50_moves_its_weights_once_and_its_activations_between_operations():
    one, two = (
        flops.counted(networks.weightless_step, "resnet50", 224, n, "infer") for n in (1, 2)
    )
    assert one is not None
    assert two is not None
    assert 2 * one.elements - two.elements == 25_557_032 + 4 * 26_560
    assert one.other_bytes == 8 * 64 * 56 * 56  # where a pool's maxima were
