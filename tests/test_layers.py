"""A step layer by layer: DeepSpeed's figures, what is printed, and how the network runs."""

import sys

import pytest
import torch
from torch import nn

from bench_lib.model import UserError
from bench_lib.worker.layers import profile


def small():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
    )


def images(n=2):
    return torch.randn(n, 3, 8, 8)


def macs_in(text):
    (line,) = [line for line in text.splitlines() if line.startswith("fwd MACs per GPU")]
    return line.partition(": ")[2].strip()


def test_products_are_those_that_can_be_counted_by_hand():
    text = profile(small(), images(), training=False)
    assert macs_in(text) == "37.89 KMACs"  # 2 x (27 x 512 + 5120)


@pytest.mark.parametrize("training", [False, True])
def test_gradients_are_noted_in_training_alone(training):
    modes = []

    class Watched(nn.Linear):
        def forward(self, batch):
            modes.append(torch.is_grad_enabled())
            return super().forward(batch)

    profile(Watched(4, 4), torch.randn(1, 4), training=training)
    assert modes == [training] * 2


def test_a_network_runs_under_the_autocast_of_its_case():
    types = []

    class Watched(nn.Linear):
        def forward(self, batch):
            answer = super().forward(batch)
            types.append(answer.dtype)
            return answer

    profile(
        Watched(4, 4),
        torch.randn(1, 4),
        training=True,
        autocast=lambda: torch.autocast("cpu", torch.bfloat16),
    )
    assert types == [torch.bfloat16] * 2


def test_attention_is_counted_in_inference():
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, batch):
            return self.attention(batch, batch, batch, need_weights=False)[0]

    found = profile(Attending().eval(), torch.randn(3, 5, 8), training=False)
    assert macs_in(found) == "5.04 KMACs"  # 15 x 8 x 32 of projections, 2 x 150 x 4 of scores


def test_what_is_printed_is_deepspeeds_own_text():
    lines = profile(small(), images(), training=True, profile_step=7, ranks=4).splitlines()
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


def test_without_deepspeed_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed.profiling.flops_profiler.profiler", None)
    with pytest.raises(UserError, match="pip install deepspeed") as caught:
        profile(small(), images(), training=True)
    assert isinstance(caught.value, UserError)
