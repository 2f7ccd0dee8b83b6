"""Language models: sizes and formulas, cases, one rank's step; several ranks: test_collectives."""

import math

import pytest
import torch
from asked import asked
from torch.nn import functional

from bench_lib.cases.axes import case_of
from bench_lib.cases.language import language_axes
from bench_lib.formulas.transformer import SIZES
from bench_lib.model import UserError
from bench_lib.worker import device
from bench_lib.worker.workload import Setting, UnsupportedError
from bench_lib.worker.workloads import steps
from bench_lib.worker.workloads.language_model import Prompted, language_model
from bench_lib.worker.workloads.llama import Llama

CPU = Setting(torch.device("cpu"))
TINY = SIZES["llama-tiny"]


def build(**values):
    usual = {"network": "llama-tiny", "batch_size": 2, "length": 16}
    return language_model(CPU, **{**usual, "precision": "fp32", **values})


# ---- cases ------------------------------------------------------------------------------


def test_an_id_says_what_is_not_as_usual():
    plain = case_of(language_axes(), {"network": "llama-3.2-1b", "batch_size": 8})
    assert plain.id == "llama-3.2-1b-b8-1024t-bf16-eager-train"
    assert plain.workload == "language_model"
    assert "parallel" not in plain.params
    ddp = case_of(
        language_axes(), {"network": "llama-3.2-1b", "batch_size": 8, "parallel": "ddp", "ranks": 4}
    )
    assert ddp.id == "llama-3.2-1b-b8-1024t-bf16-eager-train-x4"
    assert ddp.params == plain.params
    divided = case_of(
        language_axes(),
        {
            "network": "llama-3.2-1b",
            "batch_size": 2,
            "length": 2048,
            "precision": "amp-bf16",
            "compile_mode": "default",
            "parallel": "fsdp2",
            "ranks": 2,
        },
    )
    assert divided.id == "llama-3.2-1b-b2-2048t-amp-bf16-default-fsdp2-train-x2"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("network=gpt", "unknown language model 'gpt'; choose from llama-tiny, llama-3.2-1b"),
        ("length=131073", "length is 131073, but llama-3.2-1b has only 131072 positions"),
        ("length=0", "length is 0; it must be a whole number of 1 or more"),
        ("batch_size=1.5", "batch_size is 1.5; it must be a whole number"),
        ("precision=fp32-bn", "unknown precision 'fp32-bn'; did you mean fp32"),
        ("precision=fp16", "precision fp16 is for inference, but the task is train"),
        ("compile_mode=defaults", "unknown compile_mode 'defaults'"),
        (
            "ranks=2 parallel=fsdp2 network=llama-tiny length=64 task=decode",
            "fsdp2 would gather all weights in every pass of decode; use ddp",
        ),
        ("task=infer", "unknown task 'infer'; choose from train, prefill, decode"),
        ("network=llama-tiny length=64 task=decode precision=amp-bf16", "precision amp-bf16 casts"),
        ("network=deepseek-moe-16b length=4096 task=decode", "length is 4096 and 64"),
        ("parallel=fsdp", "unknown parallel 'fsdp'; did you mean fsdp2"),
        ("compile_mode=graph ranks=2", "compile_mode graph records one device's step"),
        ("ranks=2 parallel=tp", "unknown parallel 'tp'; choose from ddp, fsdp2"),
        ("batch_size=3 ranks=2 strong=True", "batch_size 3 cannot be divided"),
    ],
)
def test_what_cannot_be_meant_is_a_line(values, words):
    with pytest.raises(UserError) as raised:
        case_of(language_axes(), {"network": "llama-3.2-1b", "batch_size": 8, **asked(values)})
    assert str(raised.value).startswith(words)


# ---- a step -----------------------------------------------------------------------------


def test_the_loss_is_the_mean_over_all_tokens():
    torch.manual_seed(0)
    model = Llama(TINY, 16).bfloat16()
    tokens = torch.randint(TINY.vocabulary, (2, 9))
    given, targets = tokens[:, :-1], tokens[:, 1:]
    loss = model(given, targets)
    logits = model(given)
    assert logits.shape == (2, 8, TINY.vocabulary)
    expected = functional.cross_entropy(logits.reshape(16, -1).float(), targets.reshape(16))
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)


def test_training_in_fp32_is_its_own_reference():
    workload = build()
    workload.step()
    workload.first_step_done()
    for part in workload.portions.values():
        part()
    assert list(workload.portions) == ["forward", "backward", "optimizer"]
    numerics = workload.numerics()
    assert numerics.finite
    assert numerics.loss == numerics.reference_loss == pytest.approx(math.log(1024), abs=0.2)
    assert numerics.grad_norm == numerics.reference_grad_norm
    assert (workload.items_per_step, workload.item) == (32, "token")
    assert workload.parameters == TINY.parameters


@pytest.mark.parametrize("precision", ["bf16", "amp-bf16"])
def test_training_in_bf16_is_near_the_reference(precision):
    workload = build(precision=precision)
    workload.step()
    workload.first_step_done()
    numerics = workload.numerics()
    assert numerics.loss != numerics.reference_loss
    assert numerics.loss == pytest.approx(numerics.reference_loss, rel=1e-3)
    assert numerics.grad_norm == pytest.approx(numerics.reference_grad_norm, rel=0.02)


def test_what_a_step_moves_is_counted_in_the_bytes_it_is_kept_in():
    for precision, itemsize in (("fp32", 4), ("bf16", 2)):
        kept = itemsize * TINY.parameters
        training = build(precision=precision)
        assert training.least_bytes_per_step == 6 * kept + 2 * 32 * 8
        traffic = training.traffic_bytes_per_step()
        assert traffic > (training.least_bytes_per_step or math.inf)
        unread = itemsize * (TINY.vocabulary - 32) * TINY.width
        numbers = TINY.kept(2, 16) + 2 * TINY.vocabulary
        prefill = build(precision=precision, task="prefill")
        assert prefill.least_bytes_per_step == kept - unread + itemsize * numbers + 32 * 8
    assert training.flops_per_step() == 3 * TINY.forward_flops(2, 16)


@pytest.mark.parametrize(("task", "kind"), [("prefill", Prompted), ("train", Llama)])
def test_what_is_compiled_is_the_whole_model(monkeypatch, task, kind):
    asked = []

    def compiled(model, mode, _options):
        asked.append((type(model), mode))
        return model

    monkeypatch.setattr(steps, "compiled", compiled)
    monkeypatch.setattr(steps, "require_compile", lambda *_: None)
    assert build(compile_mode="default", task=task).compiled
    assert asked == [(kind, "default")]
    assert not build(task=task).compiled


def test_weights_that_do_not_fit_are_a_skip_with_both_figures(monkeypatch):
    monkeypatch.setattr(device, "memory_bytes", lambda _device: 4 * 2**30)
    with pytest.raises(UnsupportedError) as raised:
        build(network="llama-3.2-1b", precision="bf16")
    assert str(raised.value) == (
        "the weights, gradients and AdamW's moments need 9.2 GiB on each rank, but only 80% of "
        "4.0 GiB of memory may be used"
    )


def test_a_graph_needs_a_gpu():
    with pytest.raises(UnsupportedError, match="graph records CUDA graphs, which a CPU does not"):
        build(compile_mode="graph")
