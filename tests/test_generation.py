"""Llama's transformer: its sizes, its cache, prompts and the tokens behind them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench_lib.formulas.transformer import GENERATED, SIZES, Experts, Size
from bench_lib.worker.workload import Setting, UnsupportedError, Workload
from bench_lib.worker.workloads import flops, llama, steps
from bench_lib.worker.workloads import weights as quantizing
from bench_lib.worker.workloads.language_model import (
    AGREEING,
    Generating,
    language_model,
    weightless_step,
)
from bench_lib.worker.workloads.llama import Llama, _MixtureOfExperts

CPU = Setting(torch.device("cpu"))
KINDS = ("llama-tiny", "moe-tiny")
TORCHAO = pytest.mark.filterwarnings("ignore")  # torchao's and torch's words about each other


def build(network: str = "llama-tiny", **values: Any) -> Workload:
    usual: dict[str, Any] = {"batch_size": 2, "length": 16, "precision": "fp32"}
    return language_model(CPU, network=network, **{**usual, **values})


def fresh(network: str, length: int = 64) -> tuple[Llama, torch.Tensor]:
    torch.manual_seed(0)
    size = SIZES[network]
    return Llama(size, length).eval(), torch.randint(size.vocabulary, (2, 20))


# ---- sizes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("mixtral-8x7b", 46_702_792_704),
        ("deepseek-moe-16b", 16_375_728_128),
    ],
)
def test_a_size_has_the_weights_that_its_publisher_counts(name, parameters):
    assert SIZES[name].parameters == parameters


def test_flops_are_counted_as_the_formula_has_them():
    size = SIZES["llama-tiny"]
    counted = flops.counted(weightless_step, size, 2, 64)
    assert counted.all_flops == 3 * size.forward_flops(2, 64)


def test_a_token_of_experts_costs_those_that_it_goes_to():
    size = Size(
        layers=1,
        width=8,
        heads=2,
        kv_heads=1,
        hidden=0,
        vocabulary=10,
        context=16,
        experts=Experts(number=4, active=2, hidden=16, shared=1),
    )
    attention, router, experts = 2 * 8 * (8 + 4), 4 * 8, 3 * 8 * 16 * 3
    within = 2 * 8 * 5  # one of five tokens, queries and values
    assert size.forward_flops(1, 1, before=4) == 2 * (attention + router + experts + within + 80)


# ---- the network ------------------------------------------------------------------------


@pytest.mark.parametrize("network", KINDS)
def test_a_token_with_a_cache_is_answered_as_all_tokens_at_once(network):
    model, tokens = fresh(network)
    with torch.no_grad():
        whole = model(tokens)
        model.make_room(2, 32)
        torch.testing.assert_close(model.last(tokens[:, :12]), whole[:, 11])
        for place in range(12, 20):
            answer = model.next(tokens[:, place : place + 1], torch.tensor([place]))
            torch.testing.assert_close(answer, whole[:, place])


@pytest.mark.parametrize("network", KINDS)
def test_a_token_sees_what_came_before_it_and_nothing_after(network):
    model, tokens = fresh(network)
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 1024
    with torch.no_grad():
        first, second, swapped = model(tokens), model(changed), model(tokens.flip(1))
    torch.testing.assert_close(first[:, :5], second[:, :5])
    assert not torch.allclose(first[0, 5:], second[0, 5:])
    assert not torch.allclose(first, swapped.flip(1))


def test_a_token_goes_to_the_experts_that_its_router_likes():
    torch.manual_seed(2)
    layer = _MixtureOfExperts(16, Experts(number=4, active=2, hidden=8, shared=1), depth=2)
    stream = torch.randn(2, 5, 16)
    tokens = stream.flatten(0, 1)
    chance, chosen = layer.router(tokens).softmax(-1).topk(2)
    expected = layer.shared(tokens) if layer.shared else 0
    for token in range(10):
        share = chance[token] / chance[token].sum()
        for weight, expert in zip(share, chosen[token], strict=True):
            hidden = llama.gated(tokens[token] @ layer.inputs[expert])
            expected[token] += weight * (hidden @ layer.output[expert])
    torch.testing.assert_close(layer(stream).flatten(0, 1), expected)


def test_without_grouped_products_experts_are_a_skip(monkeypatch):
    monkeypatch.delattr(llama.functional, "grouped_mm")
    with pytest.raises(UnsupportedError, match=r"experts need functional\.grouped_mm, which"):
        build("moe-tiny", task="prefill")


# ---- steps ------------------------------------------------------------------------------


def test_decoding_takes_the_likeliest_tokens_one_after_the_other():
    model, tokens = fresh("llama-tiny")
    model.make_room(2, 20 + GENERATED)
    with torch.no_grad():
        generating = Generating(model, tokens)
        for _ in range(3):
            tokens = torch.cat([tokens, model(tokens)[:, -1].argmax(-1, keepdim=True)], dim=1)
            assert torch.equal(generating.tokens, tokens[:, -1:])
            generating()


@pytest.mark.parametrize("network", KINDS)
@pytest.mark.parametrize("task", ["prefill", "decode"])
def test_generation_in_fp32_is_its_own_reference(network, task):
    workload = build(network, task=task)
    for _ in range(2):
        workload.step()
    numerics = workload.numerics()
    assert numerics.finite
    assert numerics.cosine == pytest.approx(1)
    assert numerics.agreement == (1 if task == "decode" else None)


@TORCHAO
@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_decoding_in_less_is_near_the_reference(precision):
    numerics = build(task="decode", precision=precision).numerics()
    assert 0.99 < numerics.cosine < 1 - 1e-7
    assert numerics.agreement * AGREEING >= AGREEING - 3


def test_decoding_reads_weights_once_and_keys_and_values_of_all_tokens():
    size = SIZES["llama-tiny"]
    workload = build(task="decode", precision="bf16")
    weights = size.parameters - (size.vocabulary - 2) * size.width
    numbers = weights + size.kept(2, 16 + GENERATED // 2) + 2 * size.vocabulary
    prompt_bytes = 2 * 16 * 8
    assert workload.least_bytes_per_step == 2 * numbers + prompt_bytes
    assert workload.flops_per_step() == size.forward_flops(2, 1, before=16 + GENERATED // 2 - 1)


@TORCHAO
def test_fp8_products_without_the_device_for_them_are_a_skip(monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("needs MI300+")

    monkeypatch.setattr("torchao.quantization.quantize_", refuse)
    with pytest.raises(UnsupportedError, match="torchao does not support fp8 here: needs MI300"):
        quantizing.quantize(torch.nn.Sequential(torch.nn.Linear(8, 8)), "fp8")


@TORCHAO
@pytest.mark.parametrize(
    ("precision", "own", "options"),
    [
        ("bf16", "", ""),
        ("int8", "", "force_fuse_int_mm_with_mul"),
        ("int8", "freezing", "force_fuse_int_mm_with_mul,freezing"),
        ("int8", "backend=eager", "backend=eager"),
    ],
)
def test_a_precision_has_options_of_the_compiler_and_no_other_case_has_them(
    monkeypatch, precision, own, options
):
    from torch._inductor import config

    asked = []
    monkeypatch.setattr(steps, "compiled", lambda model, *how: asked.append(how) or model)
    before = config.shallow_copy_dict()
    build(task="decode", precision=precision, compile_mode="default", compile_options=own)
    assert asked == [("default", options)]
    assert config.shallow_copy_dict() == before


def test_a_cache_that_does_not_fit_is_a_skip_with_both_figures(monkeypatch):
    monkeypatch.setattr("bench_lib.worker.device.memory_bytes", lambda _device: 2**20)
    with pytest.raises(UnsupportedError, match=r"the weights and the KV cache need 0\.0 GiB"):
        build(task="decode", batch_size=64)


def test_a_prompt_whose_reference_does_not_fit_is_checked_for_finite_answers(monkeypatch):
    workload, usual = build("llama-tiny", task="prefill"), llama._Attention.forward
    heads: list[object] = []

    def fits_once(self: Any, stream: torch.Tensor, where: Any) -> torch.Tensor:
        heads.append(self)
        if len(heads) > SIZES["llama-tiny"].layers:
            raise torch.OutOfMemoryError("out of memory")
        return usual(self, stream, where)

    monkeypatch.setattr(llama._Attention, "forward", fits_once)
    numerics = workload.numerics()
    assert (numerics.finite, numerics.cosine) == (True, None)


@TORCHAO
@pytest.mark.parametrize(("precision", "compiled"), [("bf16", 0), ("int8", 2)])
def test_blocks_with_quantized_layers_are_compiled_before_a_step_is_recorded(
    precision, compiled, monkeypatch
):
    blocks: list[object] = []
    monkeypatch.setattr(steps, "require_compile", lambda *_: None)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda block, **_: blocks.append(block))
    build(task="decode", precision=precision, compile_mode="graph")
    assert len(blocks) == compiled
