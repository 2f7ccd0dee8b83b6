"""Operators in the worker: what a step does, in which order, and what it cannot do here."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders import make_baseline, make_measurement
from quickly import one_thread
from torch.nn import functional

from bench_lib.cases.operators import operator_case, with_usual
from bench_lib.formulas.operation import OPERATORS, QUANTIZERS, Operation, asks
from bench_lib.model import Case, ProcessSummary, Status
from bench_lib.verdict import judge
from bench_lib.verdict.evidence import Evidence
from bench_lib.verdict.metrics import summarise
from bench_lib.worker.workloads import Setting, UnsupportedError, Workload, build
from bench_lib.worker.workloads import operators as module

CPU = torch.device("cpu")
TINY: dict[str, tuple[str, str]] = {
    "gemm": ("16-8-12", ""),
    "grouped_gemm": ("12-8-16", "3"),
    "sdpa": ("b2h2s8d4", ""),
    "sdpa_decode": ("b2h4s8d4", "2"),
    "sdpa_paged": ("b2h4s8d4", "2-3"),
    "latent_decode": ("b2h4s8d4", "2"),
    "latent_prefill": ("b2h4s8d4", "2-3"),
    "conv2d": ("2-4-6-6", "8-4-3-3"),
    "batch_norm": ("2-3-4-4", ""),
    "embedding": ("10-4", "3-2"),
    "sparse_add": ("10-4", "5"),
    "sparse_add_": ("10-4", "5"),
}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setitem(module.CACHE_BYTES, "cpu", 2048)
    with one_thread():
        yield


def tiny(op: str, **values: Any) -> Case:
    shape, shape2 = TINY.get(op, ("6-8", ""))
    return operator_case(**with_usual(op, **{"shape": shape, "shape2": shape2, **values}))


def built(case: Case) -> Workload:
    return build(case, Setting(CPU))


ON_A_GPU = ("copy_h2d", "copy_d2h", "sdpa_paged")
ON_A_CPU = [op for op in OPERATORS if op not in (*ON_A_GPU, *QUANTIZERS)]


@pytest.mark.parametrize("op", ON_A_CPU)
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_every_operator_runs_and_its_answer_is_near_fp64s(op, direction):
    if direction == "bwd" and not asks(op, "direction"):
        return
    workload = built(tiny(op, **({"direction": direction} if asks(op, "direction") else {})))
    for _ in range(3):
        workload.step()
    numerics = workload.numerics()
    if op.endswith("_") or op in ("eq", "prod", "argmax", "argmin", "sparse_add", "copy_d2d"):
        assert numerics is None
        return
    assert numerics.finite
    if op in ("sum", "mean", "norm", "max", "std", "var"):
        assert numerics.cosine is None
    else:
        assert numerics.cosine == pytest.approx(1, abs=1e-9)
    size, expected = numerics.loss, numerics.reference_loss
    if direction == "bwd":
        size, expected = numerics.grad_norm, numerics.reference_grad_norm
    assert expected
    assert size == pytest.approx(expected, rel=1e-5)
    assert numerics.max_abs_diff < 1e-5


@pytest.mark.parametrize(
    "op", ["add", "gemm", "sdpa", "conv2d", "softmax", "batch_norm", "rms_norm"]
)
def test_a_shorter_precision_is_held_against_fp32(op):
    numerics = built(tiny(op, precision="bf16")).numerics()
    assert 0.999 < numerics.cosine < 1


def as_it_is(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    return function


@pytest.mark.parametrize("op", QUANTIZERS)
def test_a_row_in_fp8_is_the_row_but_for_three_bits(op, monkeypatch):
    monkeypatch.setattr(torch, "compile", as_it_is)
    workload = built(tiny(op, shape="6-64", precision="bf16"))
    assert workload.compiled
    numerics = workload.numerics()
    assert 0.999 < numerics.cosine < 1
    assert numerics.loss == pytest.approx(numerics.reference_loss, rel=0.01)


def test_the_largest_of_a_row_is_the_largest_of_fp8():
    rows = torch.tensor([[1.0, -448.0, 0.0], [2.0, 1.0, 0.5]])
    short, factors = module._to_fp8(rows, None, torch.float8_e4m3fn)
    assert short.float().tolist() == [[1.0, -448.0, 0.0], [448.0, 224.0, 112.0]]
    assert factors.flatten().tolist() == pytest.approx([1.0, 2 / 448])


@pytest.mark.parametrize("skew", [1, 3, 8])
def test_each_expert_has_its_own_tokens_however_many(skew, monkeypatch):
    given: list[torch.Tensor] = []
    right = functional.grouped_mm

    def product(*operands: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        given.append(offs)
        return right(*operands, offs=offs)

    monkeypatch.setattr(functional, "grouped_mm", product)
    case = tiny("grouped_gemm", shape="64-8-16", shape2="8", skew=skew)
    numerics = built(case).numerics()
    assert numerics.cosine == pytest.approx(1)
    shares = given[0].diff(prepend=torch.zeros(1, dtype=torch.int32)).tolist()
    assert sorted(shares, reverse=True) == Operation(**case.params).shares


def test_a_grouped_product_of_fp8_has_a_factor_for_each_row_and_column(monkeypatch):
    monkeypatch.setattr(module, "scaled_dtype", lambda *_: torch.float8_e4m3fn)

    def product(a, b, rows, _, columns, __, *, offs, use_fast_accum) -> torch.Tensor:
        assert use_fast_accum
        assert (rows.shape, columns.shape) == ((12,), (3, 16))
        assert b.stride() == (16 * 32, 1, 32)  # each expert's columns lie together
        return functional.grouped_mm(a.float() * rows[:, None], b.float(), offs=offs).bfloat16()

    monkeypatch.setattr(functional, "scaled_grouped_mm", product)
    case = tiny("grouped_gemm", shape="12-16-32", shape2="3", precision="fp8")
    numerics = built(case).numerics()
    assert numerics.cosine == pytest.approx(1, abs=1e-4)


def test_pages_are_read_where_they_lie_if_torch_can(monkeypatch):
    from torch.nn.attention import varlen

    case = tiny("sdpa_paged")
    with pytest.raises(UnsupportedError, match="varlen_attn needs a GPU"):
        built(case)
    operation, table = Operation(**case.params), torch.arange(6).view(2, 3)
    seen: list[Any] = []

    def attention(*given: Any, enable_gqa: bool, seqused_k: Any, block_table: Any) -> torch.Tensor:
        query, _, _, starts, *rest = given
        seen.extend((query.shape, starts.tolist(), rest, seqused_k.tolist(), enable_gqa))
        assert torch.equal(block_table, table.int())
        return query

    monkeypatch.setattr(varlen, "varlen_attn", attention)
    query = torch.ones(2, 4, 1, 4)
    assert module._attention_to_pages(operation, table)(query, query, query).shape == query.shape
    assert seen == [(2, 4, 4), [0, 1, 2], [None, 1, 8], [8, 8], True]
    monkeypatch.setattr(varlen, "varlen_attn", lambda query, key, value: None)
    with pytest.raises(UnsupportedError, match="has no varlen_attn with a block_table"):
        module._attention_to_pages(operation, table)


@pytest.mark.parametrize("op", ["sdpa", "sdpa_decode"])
def test_attention_is_whose_the_case_says(op):
    numerics = built(tiny(op, backend="math")).numerics()
    assert numerics.cosine == pytest.approx(1)
    with pytest.raises(
        UnsupportedError, match="this torch does not support this: No viable backend"
    ):
        built(tiny(op, backend="cudnn")).step()


@pytest.mark.parametrize(
    ("op", "causal"),
    [("sdpa", True), ("sdpa", False), ("sdpa_decode", False)],
)
@pytest.mark.filterwarnings("ignore")  # torch's words about flex attention that is not compiled
def test_flex_attention_answers_as_the_others(op, causal, monkeypatch):
    compiled: list[str] = []

    def noted(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        compiled.append(function.__name__)
        return function

    monkeypatch.setattr(torch, "compile", noted)
    shape = "b2h2s16d16" if op == "sdpa" else "b2h4s16d16"
    workload = built(tiny(op, shape=shape, backend="flex", **({"causal": True} if causal else {})))
    assert workload.compiled
    assert set(compiled) == {"flex_attention"}
    numerics = workload.numerics()
    assert numerics.cosine == pytest.approx(1)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_a_products_layout_is_how_its_matrices_lie(layout, monkeypatch):
    seen: list[tuple[torch.Size, bool]] = []
    product = torch.mm

    def looked(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        seen.extend((x.shape, x.is_contiguous()) for x in (a, b))
        return product(a, b)

    monkeypatch.setattr(torch, "mm", looked)
    built(tiny("gemm", layout=layout)).step()
    a, b = seen[:2]
    assert a == (torch.Size([16, 12]), layout[0] == "N")
    assert b == (torch.Size([12, 8]), layout[1] == "N")


# ---- turns ------------------------------------------------------------------------------


def logged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    notes: list[int] = []
    sets: list[Callable[[], int]] = []

    def family(_operation: object, _operands: object) -> module.OperatorCall:
        number = len(sets)
        sets.append(lambda: number)
        return module.OperatorCall(lambda: notes.append(number))

    monkeypatch.setitem(module._FAMILIES, "unary", family)
    return notes


def test_operands_take_turns_until_a_cache_is_filled_twice(monkeypatch):
    notes = logged(monkeypatch)
    workload = built(tiny("exp"))
    for _ in range(13):
        workload.step()
    assert notes == [*range(11), 0, 1]
    assert workload.items_per_step == 1


@pytest.fixture
def gpu(monkeypatch):
    def make(memory: int = 2**30, **properties: Any) -> Setting:
        seen = SimpleNamespace(total_memory=memory, **properties)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: seen)
        monkeypatch.setattr(module, "set_precision", lambda *_, **__: None)
        monkeypatch.setattr(module, "_Operands", lambda *_: None)
        monkeypatch.setitem(module.CACHE_BYTES, "cuda", 2048)
        return Setting(torch.device("cuda", 0))

    return make


def test_on_a_gpu_a_step_of_small_calls_goes_through_all_sets(monkeypatch, gpu):
    notes = logged(monkeypatch)
    workload = build(tiny("exp"), gpu())
    workload.step()
    workload.step()
    assert notes == [*range(11)] * 2
    assert (workload.items_per_step, workload.item) == (11, "op")
    assert workload.flops_per_step() == 11 * 48
    assert workload.least_bytes_per_step == workload.traffic_bytes_per_step() == 11 * 384


def test_on_a_gpu_a_call_that_moves_much_is_a_step(monkeypatch, gpu):
    notes = logged(monkeypatch)
    workload = build(tiny("exp", shape="12-16"), gpu())
    for _ in range(4):
        workload.step()
    assert notes == [0, 1, 2, 0]
    assert workload.items_per_step == 1


def test_sets_are_as_many_as_the_memory_holds(monkeypatch, gpu):
    logged(monkeypatch)
    assert build(tiny("exp"), gpu(memory=2000)).items_per_step == 4
    assert build(tiny("exp"), gpu(memory=480)).items_per_step == 1


# ---- what cannot be done here -----------------------------------------------------------


def test_what_needs_more_memory_than_there_is_is_a_skip_with_both_figures(gpu):
    case = operator_case(op="add", shape="64-1024-1024")
    with pytest.raises(UnsupportedError) as caught:
        build(case, gpu(memory=2**29))
    assert str(caught.value) == (
        "the tensors of add need 0.8 GiB on each rank, but only 80% of 0.5 GiB of memory "
        "may be used"
    )


@pytest.mark.parametrize("op", ["copy_h2d", "copy_d2h"])
def test_a_cpu_copies_to_nowhere(op):
    with pytest.raises(UnsupportedError, match="no memory apart from the host's"):
        built(tiny(op))


@pytest.mark.parametrize(
    ("hip", "properties", "dtype"),
    [
        (None, {"major": 9, "minor": 0}, torch.float8_e4m3fn),
        (None, {"major": 8, "minor": 9}, torch.float8_e4m3fn),
        ("7.0", {"gcnArchName": "gfx942:sramecc+:xnack-"}, torch.float8_e4m3fnuz),
        ("7.0", {"gcnArchName": "gfx950:sramecc+:xnack-"}, torch.float8_e4m3fn),
    ],
)
def test_fp8_is_the_form_that_the_device_has(monkeypatch, gpu, hip, properties, dtype):
    monkeypatch.setattr(torch.version, "hip", hip)
    assert module.scaled_dtype("fp8", gpu(**properties).device) is dtype


@pytest.mark.parametrize(
    ("hip", "properties", "why"),
    [
        (None, {"major": 8, "minor": 0}, "FP8 needs an NVIDIA GPU of compute capability 8.9"),
        (
            "7.0",
            {"gcnArchName": "gfx90a:sramecc+:xnack-"},
            "gfx90a does not support FP8 products; MI300",
        ),
    ],
)
def test_where_there_is_no_fp8_its_cases_are_skipped(monkeypatch, gpu, hip, properties, why):
    monkeypatch.setattr(torch.version, "hip", hip)
    case = operator_case(op="gemm", shape="16-16-16", layout="NT", precision="fp8")
    with pytest.raises(UnsupportedError, match=why):
        build(case, gpu(**properties))
    with pytest.raises(UnsupportedError, match="FP8 products need a GPU"):
        built(case)


@pytest.mark.parametrize("kind", ["mxfp8", "mxfp4"])
def test_a_scaled_product_is_held_against_what_its_bits_mean(monkeypatch, kind):
    dtype = torch.float4_e2m1fn_x2 if kind == "mxfp4" else torch.float8_e4m3fn
    monkeypatch.setattr(module, "scaled_dtype", lambda *_: dtype)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    numbers = torch.tensor(positive + [-each for each in positive])

    def plain(matrix: torch.Tensor) -> torch.Tensor:
        if kind != "mxfp4":
            return matrix.float()
        found = torch.empty(len(matrix), 2 * matrix.shape[1])
        bits = matrix.view(torch.uint8).int()
        found[:, ::2], found[:, 1::2] = numbers[bits % 16], numbers[bits // 16]
        return found

    def product(a, b, *, scale_a, scale_b, out_dtype, use_fast_accum) -> torch.Tensor:
        assert not use_fast_accum
        seen.append((scale_a, scale_b))
        return (plain(a) @ plain(b.t()).t()).to(out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", product)
    case = operator_case(op="gemm", shape="128-256-512", layout="NT", precision=kind)
    numerics = built(case).numerics()
    assert numerics.cosine == pytest.approx(1, abs=1e-4)
    first, second = seen[0]
    assert (first.numel(), second.numel()) == (128 * 16, 256 * 16)
    assert first.dtype == second.dtype == torch.float8_e8m0fnu
    assert (first.float() == 1).all()


def test_tf32_on_a_cpu_is_a_skip():
    with pytest.raises(UnsupportedError, match="TF32 exists on GPUs only"):
        built(tiny("gemm", precision="tf32"))


def test_what_torch_has_not_for_a_precision_is_a_skip(monkeypatch):
    def refuse(words: str) -> Callable[..., Any]:
        def raising(_x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError(words)

        return raising

    monkeypatch.setattr(torch, "exp", refuse("\"exp_cpu\" not implemented for 'Half'"))
    with pytest.raises(
        UnsupportedError, match='this torch does not support this: "exp_cpu" not implemented'
    ):
        built(tiny("exp", precision="fp16")).step()
    monkeypatch.setattr(torch, "exp", refuse("device-side assert"))
    with pytest.raises(RuntimeError, match="device-side assert"):
        built(tiny("exp")).step()


def test_where_the_memory_is_too_small_for_a_twin_nothing_is_compared(monkeypatch):
    workload = built(tiny("exp"))
    call = module.OperatorCall(lambda: None, lambda: pytest.fail("a twin was made"))
    operation = module.Operation("exp", "6-8")
    assert module._numerics(call, operation, total=384 * 4) is None
    assert workload.numerics() is not None


# ---- numerics ---------------------------------------------------------------------------


def verdicts(monkeypatch, place: Any, name: str, wrong: Callable[..., Any], case: Case) -> set:
    def summary() -> ProcessSummary:
        measured = make_measurement(numerics=built(case).numerics())
        return summarise(measured, environment="e0e0e0e0", time="2026-01-01T00:00:00Z")

    def statuses(process: ProcessSummary) -> set:
        evidence = Evidence([process], make_baseline(processes=[before]), case.limits)
        found = judge.judge({case.id: evidence})[case.id]
        return {verdict.status for verdict in found if verdict.metric == "numerics"}

    before = summary()
    assert statuses(before) == {Status.OK}
    monkeypatch.setattr(place, name, wrong)
    return statuses(summary())


@pytest.mark.parametrize("op", ["sum", "mean", "norm", "max", "std", "var", "exp", "add", "gemm"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_answer_of_another_size_is_a_regression(monkeypatch, op, precision):
    name = "mm" if op == "gemm" else op
    right = getattr(torch, name)

    def wrong(*operands: torch.Tensor) -> torch.Tensor:
        is_reference = operands[0].dtype != module.STORED.get(precision, torch.float32)
        return right(*operands) * (1 if is_reference else 1.05)

    case = tiny(op, precision=precision)
    assert Status.REGRESSED in verdicts(monkeypatch, torch, name, wrong, case)


@pytest.mark.parametrize("fill", [0.0, 3.0, math.nan, math.inf])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_wrong_tile_in_the_middle_of_a_product_is_seen(monkeypatch, fill, precision):
    right = torch.mm

    def wrong(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        result = right(a, b)
        if a.dtype == module.STORED.get(precision, torch.float32):
            result[192:256, 192:256] = fill
        return result

    case = tiny("gemm", shape="512-512-8", precision=precision)
    assert Status.REGRESSED in verdicts(monkeypatch, torch, "mm", wrong, case)


@pytest.mark.parametrize(("op", "parameter"), [("conv2d", 1), ("batch_norm", 3), ("batch_norm", 4)])
def test_of_a_backward_pass_all_gradients_are_judged(monkeypatch, op, parameter):
    right = getattr(functional, op)

    def wrong(*operands: Any, **more: Any) -> torch.Tensor:
        changed = list(operands)
        weight = changed[parameter]
        if operands[0].dtype == torch.float32:
            changed[parameter] = weight.detach() + 1.2 * (weight - weight.detach())
        return right(*changed, **more)

    case = tiny(op, direction="bwd")
    assert Status.REGRESSED in verdicts(monkeypatch, functional, op, wrong, case)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_attention_that_looks_ahead_is_not_causal(monkeypatch, direction):
    right = functional.scaled_dot_product_attention

    def wrong(*operands: torch.Tensor, is_causal: bool = False, **more: Any) -> torch.Tensor:
        del is_causal
        return right(*operands, **more)

    case = tiny("sdpa", causal=True, direction=direction)
    name = "scaled_dot_product_attention"
    assert Status.REGRESSED in verdicts(monkeypatch, functional, name, wrong, case)
