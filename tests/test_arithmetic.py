"""Arithmetic proves itself: which one answered is told by its error, and another is refused."""

import math
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch
from builders import make_case, make_hardware, make_measurement
from quickly import one_thread

from bench_lib import backends
from bench_lib.formulas.arithmetic import ERRORS, LABELS, answered, operations, proof, refusal
from bench_lib.worker import arithmetic, process
from bench_lib.worker.arithmetic import WrongArithmeticError, prove
from bench_lib.worker.device import set_precision
from bench_lib.worker.measure import MeasuringContext
from bench_lib.worker.workloads import Setting, UnsupportedError

CPU = torch.device("cpu")
BOTH = ["gemm", "conv"]


# --- what errors tell --------------------------------------------------------------------


@pytest.mark.parametrize("name", ERRORS)
def test_each_arithmetic_is_known_by_its_error(name):
    assert {answered(ERRORS[name] * factor) for factor in (0.7, 1, 2.66)} == {name}


def test_an_emulation_by_bf16_is_taken_for_tf32_and_not_for_fp32():
    for factor in (0.6, 1.0, 2.66):
        errors = {"gemm": ERRORS["three bf16"] * factor}
        assert refusal("tf32", errors) is None
        assert refusal("fp32", errors) is not None


@pytest.mark.parametrize("precision", LABELS)
def test_the_right_arithmetic_is_never_refused(precision):
    wanted = dict(zip(BOTH, LABELS[precision], strict=True))
    for factor in (0.6, 1.0, 1.7):
        errors = {name: ERRORS[it] * factor for name, it in wanted.items()}
        assert refusal(precision, errors) is None


@pytest.mark.parametrize(
    ("precision", "errors", "said"),
    [
        ("fp32", {"gemm": 2.9e-4}, "the case asks for fp32, but the device computed in tf32: the"),
        ("fp32", {"gemm": 3e-7, "conv": 2.9e-4}, "the case asks for fp32, but the device computed"),
        ("fp32", {"gemm": 4e-6}, "the case asks for fp32, but the device computed in three bf16"),
        ("fp16", {"gemm": 2.4e-3}, "the case asks for fp16, but the device computed in bf16"),
        ("bf16", {"gemm": 3.7e-2}, "the case asks for bf16, but the device computed in fp8"),
        ("tf32", {"gemm": 3e-7}, "the case asks for tf32, but the device computed in fp32"),
        ("tf32", {"gemm": 1.15e-6}, "the case asks for tf32, but the device computed in fp32"),
        ("tf32-conv", {"gemm": 3e-7, "conv": 3e-7}, "the case asks for tf32-conv, but the device"),
        ("tf32", {"gemm": math.inf}, "the case asks for tf32, but the device computed in arithm"),
        ("tf32", {"gemm": math.nan}, "the case asks for tf32, but the device computed in arithm"),
    ],
)
def test_another_arithmetic_is_refused_by_name(precision, errors, said):
    problem = refusal(precision, errors)
    assert problem.startswith(said)


@pytest.mark.parametrize(
    ("workload", "params", "needed"),
    [
        ("network", {"precision": "fp32"}, ("fp32", *BOTH)),
        ("operator", {"op": "gemm", "precision": "tf32"}, ("tf32", "gemm")),
        ("operator", {"op": "conv2d", "precision": "bf16"}, ("bf16", "conv")),
        ("operator", {"op": "add", "precision": "fp32"}, None),
        ("language_model", {"precision": "amp-bf16"}, ("amp-bf16", "gemm")),
        ("network", {"precision": "int8"}, None),
        ("mine:factory", {"precision": "fp32"}, None),
        ("delay", {}, None),
    ],
)
def test_a_case_proves_what_its_time_rests_on(workload, params, needed):
    case = make_case(workload=workload, params=params)
    assert proof(case) == needed
    assert list(operations(workload, params)) == [*(needed or ("",))[1:]] or needed is None


# --- what a device answers ---------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp-bf16"])
def test_this_cpu_answers_in_the_precision_that_it_is_asked_for(precision):
    errors = prove(precision, CPU, BOTH)
    wanted = ERRORS["fp32" if precision == "fp32" else "bf16"]
    assert {name: error / wanted < 4 for name, error in errors.items()} == dict.fromkeys(BOTH, True)


def rounded(bits):
    def to(tensor):
        mantissa, exponent = torch.frexp(tensor.double())
        return torch.ldexp(torch.round(mantissa * 2**bits) / 2**bits, exponent).float()

    return to


@pytest.fixture
def in_place_of_fp32(monkeypatch):
    def use(to):
        product, convolution = torch.mm, torch.nn.functional.conv2d

        def mm(a, b):
            return product(a, b) if a.dtype == torch.float64 else product(to(a), to(b)).float()

        def conv2d(x, w, **words):
            return convolution(to(x), to(w), **words).float()

        monkeypatch.setattr(arithmetic.torch, "mm", mm)
        monkeypatch.setattr(arithmetic.functional, "conv2d", conv2d)

    return use


@pytest.mark.parametrize(
    ("to", "found"),
    [
        (rounded(11), "tf32"),
        (rounded(8), "bf16"),
        (rounded(4), "fp8"),
        (lambda t: t.half().float(), "arithmetic of a smaller range"),
    ],
    ids=["tf32", "bf16", "fp8", "fp16"],
)
@pytest.mark.parametrize("operation", BOTH)
def test_a_wrong_switch_is_caught_by_what_it_does(in_place_of_fp32, to, found, operation):
    in_place_of_fp32(to)
    with pytest.raises(
        WrongArithmeticError, match=f"the case asks for fp32, but the device computed in {found}"
    ):
        prove("fp32", CPU, [operation])


def test_tf32_that_is_fp32_is_refused_and_tf32_is_not(in_place_of_fp32):
    with pytest.raises(
        WrongArithmeticError, match="the case asks for tf32, but the device computed in fp32"
    ):
        prove("tf32", CPU, ["gemm"])
    in_place_of_fp32(rounded(11))
    assert set(prove("tf32", CPU, BOTH)) == {*BOTH}


# --- TF32 on AMD -------------------------------------------------------------------------


@pytest.fixture
def on_amd(monkeypatch):
    def make(arch="gfx942:sramecc+:xnack-", allowed=None, version="2.9.1"):
        seen = SimpleNamespace(gcnArchName=arch, major=9)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: seen)
        monkeypatch.setattr(torch.version, "hip", "7.0")
        monkeypatch.setattr(torch, "__version__", version)
        monkeypatch.delenv("HIPBLASLT_ALLOW_TF32", raising=False)
        if allowed is not None:
            monkeypatch.setenv("HIPBLASLT_ALLOW_TF32", allowed)
        return torch.device("cuda", 0)

    return make


@pytest.mark.parametrize("precision", ["tf32", "tf32-conv"])
def test_networks_in_tf32_are_skipped_on_amd_whatever_is_set(on_amd, precision):
    device = on_amd(allowed="1")
    with pytest.raises(UnsupportedError, match=r"MIOpen stay in FP32.*use fp32"):
        set_precision(precision, device)
    hardware = make_hardware(vendor="amd", arch="gfx942", peak_tflops={"tf32": 653.7})
    assert not backends.of(hardware).has_tf32(hardware)


@pytest.mark.parametrize(
    ("about", "remedy"),
    [
        ({}, "set it, or use fp32"),
        ({"allowed": "0"}, r"torch 2\.9\.1 .* only with HIPBLASLT_ALLOW_TF32=1"),
        ({"allowed": "1", "arch": "gfx90a"}, "gfx90a does not support TF32"),
        ({"allowed": "1", "arch": "gfx950:sramecc+:xnack-"}, None),
        ({"allowed": "1"}, None),
        ({"version": "2.10.0+rocm7.14.0"}, None),
        ({"version": "2.13.0+rocm10.1.0", "arch": "gfx90a"}, "gfx90a does not support TF32"),
        ({"version": "of my own"}, "torch of my own .* only with"),
    ],
)
def test_products_in_tf32_are_skipped_on_amd_unless_they_are_allowed(on_amd, about, remedy):
    device = on_amd(**about)
    if remedy is None:
        with one_thread():
            set_precision("tf32", device, products=True)
            assert torch.get_float32_matmul_precision() == "high"
        return
    with pytest.raises(UnsupportedError, match=remedy):
        set_precision("tf32", device, products=True)


# --- in a worker -------------------------------------------------------------------------


def proving(monkeypatch, precision):
    monkeypatch.setattr(process, "measure", lambda case, _: make_measurement(case_id=case.id))
    case = make_case(workload="operator", params={"op": "gemm", "precision": precision})
    clock = SimpleNamespace(release=lambda: None)
    lent = MeasuringContext(setting=Setting(CPU), clock=clock, context_id="c")
    return process.answer({"measure": asdict(case), "prove": True}, lent)


def test_a_refused_arithmetic_is_a_fault_of_its_own_kind(monkeypatch, capfd):
    fault = proving(monkeypatch, "tf32")["fault"]
    assert fault["kind"] == "arithmetic"
    assert fault["message"].startswith(
        "the case asks for tf32, but the device computed in fp32: the error of a matrix"
    )
    capfd.readouterr()
