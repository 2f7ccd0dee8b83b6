"""A step layer by layer: figures by hand, what is printed, and that nothing is left behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench_lib.model import UserError
from bench_lib.worker import layers
from bench_lib.worker.layers import Kind, LayerProfile, NoProfilerError, in_words, profile

CONVOLUTION = 27 * 8 * 64
"""Products of an image of 3 × 8 × 8 for eight channels."""
LINEAR = 512 * 10


def small() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
    )


def images(n: int = 2) -> Tensor:
    return torch.randn(n, 3, 8, 8)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    times = iter([10.0, 12.0, 20.0, 24.0])
    scripted = SimpleNamespace(now=lambda: next(times), synchronize=lambda: None)
    monkeypatch.setattr(layers, "clock_of", lambda _device: scripted)
    return times


# --- figures -------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
def test_a_profile_has_what_can_be_counted_by_hand(training: bool):
    found = profile(small(), images(), training=training)
    assert found.training is training
    assert found.macs == 2 * (CONVOLUTION + LINEAR)
    assert found.flops == 2 * found.macs + 2 * 512  # a comparison for each number cut off


def test_kinds_of_layers_add_up_to_the_network():
    network = nn.Sequential(small(), nn.Linear(10, 10))
    found = profile(network, images(), training=False)
    kinds = {kind.name: kind for kind in found.kinds}
    assert kinds["Linear"].layers == 2
    assert kinds["Linear"].macs == 2 * (LINEAR + 100)
    assert (kinds["Sequential"].layers, kinds["Sequential"].flops) == (2, 0)
    assert sum(kind.macs for kind in found.kinds) == found.macs
    assert sum(kind.flops for kind in found.kinds) == found.flops
    assert sum(kind.forward_s for kind in found.kinds) == pytest.approx(found.layered_s)
    times = [kind.forward_s for kind in found.kinds]
    assert times == sorted(times, reverse=True)


def test_inference_has_no_backward_pass(clock: Iterator[float]):
    modes = []

    class Watched(nn.Linear):
        def forward(self, batch: Tensor) -> Tensor:
            modes.append(torch.is_grad_enabled())
            return super().forward(batch)

    found = profile(Watched(4, 4), torch.randn(1, 4), training=False)
    assert (found.forward_s, found.backward_s) == (2.0, None)
    assert set(modes) == {False}
    assert list(clock) == [20.0, 24.0]


def test_a_network_runs_under_the_autocast_of_its_case():
    types = []

    class Watched(nn.Linear):
        def forward(self, batch: Tensor) -> Tensor:
            answer = super().forward(batch)
            types.append(answer.dtype)
            return answer

    profile(
        Watched(4, 4),
        torch.randn(1, 4),
        training=True,
        autocast=lambda: torch.autocast("cpu", torch.bfloat16),
    )
    assert types == [torch.bfloat16] * 3


@pytest.mark.parametrize("output", [dict, tuple])
def test_networks_with_auxiliary_heads_are_trained_as_they_are_measured(output: Any):
    reached = []

    class Headed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out, self.aux = nn.Conv2d(3, 5, 1), nn.Conv2d(3, 5, 1)
            for head in (self.out, self.aux):
                head.bias.register_hook(lambda _grad, head=head: reached.append(head))

        def forward(self, batch: Tensor) -> Any:
            heads = self.out(batch), self.aux(batch)
            return {"out": heads[0], "aux": heads[1]} if output is dict else heads

    network = Headed()
    profile(network, images(), training=True)
    assert (network.out in reached, network.aux in reached) == (True, output is tuple)


def test_attention_is_counted_in_inference():
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, batch: Tensor) -> Tensor:
            return self.attention(batch, batch, batch, need_weights=False)[0]

    found = profile(Attending().eval(), torch.randn(3, 5, 8), training=False)
    projections, scores = 15 * 8 * 24 + 15 * 8 * 8, 3 * 2 * 5 * 5
    assert found.macs == projections + 2 * scores * 4


PROFILE = LayerProfile(
    training=True,
    macs=500_000,
    flops=1_200_000,
    forward_s=0.002,
    backward_s=0.004,
    layered_s=0.01,
    activation_bytes=3 * 2**20,
    kinds=(Kind("Conv2d", 2, 375_000, 800_000, 0.0075),),
    text="what DeepSpeed says\n",
)


# --- what is printed -----------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
def test_deepspeeds_own_text_is_printed_in_training_and_in_inference(training: bool):
    found = profile(small(), images(), training=training, profile_step=7, ranks=4)
    lines = in_words(found).splitlines()
    assert lines[:4] == ["=" * 40, "DeepSpeed FLOPS Profiler Output:", "=" * 40, ""]
    assert f"{'-' * 26} DeepSpeed Flops Profiler {'-' * 26}" in lines
    assert "Profile Summary at step 7:" in lines
    for what, value in (
        ("world size", "4"),
        ("data parallel size", "4"),
        ("batch size per GPU", "2"),
        ("params per GPU", "5.35 K"),
        ("params of model = params per GPU * mp_size", "5.35 K"),
    ):
        assert f"{what + ': ':<70}  {value:<8}" in lines
    assert [line for line in lines if line.startswith("fwd FLOPS per GPU = fwd flops per GPU")]
    assert [line for line in lines if "(0): Conv2d(" in line or line.strip() == "(0): Conv2d("]
    assert bool([line for line in lines if line.startswith("bwd latency")]) is training


def test_below_it_stands_what_deepspeed_does_not_measure():
    assert in_words(PROFILE).splitlines() == [
        "========================================",
        "DeepSpeed FLOPS Profiler Output:",
        "========================================",
        "what DeepSpeed says",
        "",
        "-------------------------- The Same Step, Not Held Up --------------------------",
        f"{'fwd latency without a wait after each layer: ':<72}2 ms",
        f"{'fwd FLOPS per GPU without these waits: ':<72}600 MFLOPS",
        f"{'bwd latency: ':<72}4 ms",
        f"{'bwd FLOPS per GPU = 2 * fwd flops per GPU / bwd latency: ':<72}600 MFLOPS",
        f"{'fwd+bwd FLOPS per GPU = 3 * fwd flops per GPU / (fwd+bwd latency): ':<72}600 MFLOPS",
        f"{'activation memory kept for the backward pass: ':<72}3 MiB",
        "",
        "Layers by kind, each without the layers in it:",
        "kind                             layers       MACs      flops  fwd latency   share",
        "Conv2d                                2      375 K      800 K       7.5 ms   75.0%",
    ]


# --- DeepSpeed itself ----------------------------------------------------------------------


def test_without_deepspeed_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "deepspeed.profiling.flops_profiler.profiler", None)
    with pytest.raises(NoProfilerError, match="pip install deepspeed") as caught:
        profile(small(), images(), training=True)
    assert isinstance(caught.value, UserError)
