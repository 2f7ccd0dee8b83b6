"""TF32 on AMD: refused where torch's switch does not reach it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from builders import make_hardware
from quickly import one_thread

from bench_lib import backends
from bench_lib.worker.device import set_precision
from bench_lib.worker.workload import UnsupportedError


@pytest.fixture
def on_amd(monkeypatch: pytest.MonkeyPatch) -> Callable[..., torch.device]:
    def make(arch: str = "gfx942:sramecc+:xnack-", allowed: str | None = None) -> torch.device:
        seen = SimpleNamespace(gcnArchName=arch, major=9)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: seen)
        monkeypatch.setattr(torch.version, "hip", "7.0")
        monkeypatch.delenv("HIPBLASLT_ALLOW_TF32", raising=False)
        if allowed is not None:
            monkeypatch.setenv("HIPBLASLT_ALLOW_TF32", allowed)
        return torch.device("cuda", 0)

    return make


@pytest.mark.parametrize("precision", ["tf32", "tf32-conv"])
def test_networks_in_tf32_are_skipped_on_amd_whatever_is_set(
    on_amd: Callable[..., torch.device], precision: str
) -> None:
    device = on_amd(allowed="1")
    with pytest.raises(UnsupportedError, match=r"does not reach MIOpen.*use fp32"):
        set_precision(precision, device)
    hardware = make_hardware(vendor="amd", arch="gfx942", peak_tflops={"tf32": 653.7})
    assert not backends.of(hardware).has_tf32(hardware)


@pytest.mark.parametrize(
    ("about", "remedy"),
    [
        ({}, "set that, or use fp32"),
        ({"allowed": "0"}, "only with HIPBLASLT_ALLOW_TF32=1"),
        ({"allowed": "1", "arch": "gfx90a"}, "gfx90a has no TF32"),
        ({"allowed": "1"}, None),
    ],
    ids=["not set", "set to 0", "MI200", "allowed"],
)
def test_products_in_tf32_are_skipped_on_amd_unless_they_are_allowed(
    on_amd: Callable[..., torch.device],
    about: dict[str, str],
    remedy: str | None,
) -> None:
    device = on_amd(**about)
    if remedy is None:
        with one_thread():
            set_precision("tf32", device, products=True)
            assert torch.get_float32_matmul_precision() == "high"
        return
    with pytest.raises(UnsupportedError, match=remedy):
        set_precision("tf32", device, products=True)
