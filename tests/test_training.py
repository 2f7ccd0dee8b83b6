"""Training as a case: its axes, a network that learns, whole epochs, and loaders in a worker."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from asked import asked
from processes import LONG_S, ON_THE_CPU, all_gone, fresh_context
from torch import nn

from bench_lib.cases.training import training_case
from bench_lib.formulas.images import DataSet
from bench_lib.launch.faults import CaseFault
from bench_lib.launch.zygote import Zygote
from bench_lib.model import Case, Measurement, Sampling, UserError
from bench_lib.worker import host
from bench_lib.worker.clock import clock_of
from bench_lib.worker.measure import MeasuringContext as Lent
from bench_lib.worker.measure import measure
from bench_lib.worker.workload import Setting, UnsupportedError, Workload
from bench_lib.worker.workloads import cifar, datasets
from bench_lib.worker.workloads import training as module
from bench_lib.worker.workloads.training import training

CPU = torch.device("cpu")
AT_ONCE = Sampling(warmup_s=0, warmup_max_s=0, iterations=2, max_iterations=2, measure_s=0)


# ---- axes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("precision=bf16 memory_format=nhwc compile_mode=graph", "-bf16-nhwc-graph-fixed"),
        ("precision=amp-fp16 feed=loader workers=4", "-amp-fp16-eager-loader-w4"),
        ("network=none feed=loader workers=0", "cifar100-none-b256-fp32-eager-loader-w0"),
        ("feed=device epochs=10 ranks=2", "-eager-device-e10-x2"),
        ("dataset=mnist network=cnn data=files", "-fp32-eager-fixed-files"),
        ("network=vit_b_16 ranks=4 strong=True", "-fp32-eager-fixed-x4-strong"),
    ],
)
def test_an_id_names_what_is_not_usual(values, expected):
    usual = {"dataset": "cifar100", "network": "resnet50", "batch_size": 256, "feed": "fixed"}
    assert expected in training_case(**{**usual, **asked(values)}).id


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("dataset=cifar", "unknown dataset 'cifar'; did you mean cifar10"),
        ("network=resnet", "unknown network 'resnet'; did you mean resnet50"),
        ("batch_size=0", "batch_size is 0; it must be a whole number of 1 or more"),
        ("feed=loader", "feed loader needs workers, its number of processes, such as 4"),
        ("feed=device workers=4", "workers is 4, but feed device"),
        ("feed=loader workers=-1", "workers is -1; it must be a whole number"),
        ("epochs=3", "epochs is 3, but feed fixed repeats one batch"),
        ("batch_size=50001", "a step has 50001 images, but cifar100 has only 640"),
        ("batch_size=2 ranks=4 strong=True", "batch_size 2 cannot be divided"),
        ("dataset=mnist", "network resnet50 needs images with three channels, and mnist has one"),
        ("network=none", "network none measures only the input pipeline, but feed fixed has none"),
        ("network=none feed=device epochs=1", "epochs is 1, but network none learns"),
        ("network=none feed=device precision=amp-fp16", "network none produces"),
        ("network=none feed=device compile_mode=default", "network none has nothing to compile; c"),
        ("compile_mode=graph ranks=2", "compile_mode graph records one device's step"),
        ("data=web", "unknown data 'web'; choose from generated, files"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(values, words):
    usual = {"dataset": "cifar100", "network": "resnet50", "batch_size": 256, "feed": "fixed"}
    with pytest.raises(UserError) as raised:
        training_case(**{**usual, **asked(values)})
    assert str(raised.value).startswith(words)


# ---- networks -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dataset", "side", "millions"),
    [
        ("resnet50", "cifar100", 32, 23.713),
        ("swin_v2_t", "cifar100", 32, 27.659),
        ("vit_b_16", "cifar100", 32, 85.728),
        ("inception_v3", "cifar10", 299, 24.371),
        ("cnn", "mnist", 28, 1.200),
    ],
)
def test_networks_have_the_size_that_their_papers_have(name, dataset, side, millions):
    with torch.device("meta"):
        network = cifar.create(name, datasets.DATASETS[dataset], side)
        answer = network.eval()(torch.empty(2, datasets.DATASETS[dataset].channels, side, side))
    weights = sum(weight.numel() for weight in network.parameters())
    assert weights / 1e6 == pytest.approx(millions, abs=1e-3)
    assert answer.shape == (2, datasets.DATASETS[dataset].classes)


# ---- learning -----------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, about in datasets.DATASETS.items():
        monkeypatch.setitem(datasets.DATASETS, name, replace(about, train=640, test=100))
    datasets.generated.cache_clear()
    yield
    datasets.generated.cache_clear()


@pytest.fixture
def linear(monkeypatch):
    def create(_name: str, about: DataSet, side: int) -> nn.Module:
        inputs = about.channels * side * side
        return nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, 16), nn.BatchNorm1d(16), nn.Linear(16, about.classes)
        )

    monkeypatch.setattr(cifar, "create", create)


def built(ranks: int = 1, rank: int = 0, **params: Any) -> Workload:
    usual = {"dataset": "mnist", "network": "cnn", "batch_size": 16, "feed": "device"}
    setting = Setting(CPU, rank=rank, local_rank=rank, ranks=ranks)
    return training(setting, **{**usual, **params})


def measured(sampling: Sampling = AT_ONCE, **params: Any) -> Measurement:
    usual = {"dataset": "mnist", "network": "cnn", "batch_size": 16, "feed": "device"}
    case = Case("it", "training", {**usual, **params}, sampling=sampling)
    return measure(case, Lent(Setting(CPU), clock_of(CPU), "here"))


def steps(workload: Workload, n: int) -> Any:
    workload.step()
    workload.rewind()
    for _ in range(n):
        workload.step()
    return workload.training()


def test_loss_falls_and_accuracy_rises_within_forty_steps():
    told = steps(built(), 40)
    assert (told.data, told.samples, told.steps_per_epoch) == ("generated", 640, 40)
    assert len(told.losses) == len(told.accuracies) == 40
    assert sum(told.losses[-8:]) < sum(told.losses[:8]) / 3
    assert sum(told.accuracies[:4]) / 4 < 0.4
    assert sum(told.accuracies[-8:]) / 8 > 0.9


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp-bf16", "amp-fp16"])
@pytest.mark.parametrize("dataset", ["cifar100", "cifar10", "mnist"])
def test_every_optimizer_learns_in_every_precision(linear, dataset, precision):
    told = steps(built(dataset=dataset, precision=precision, batch_size=64), 40)
    assert sum(told.losses[-5:]) < 0.9 * sum(told.losses[:5])


@pytest.mark.parametrize("dataset", ["cifar100", "cifar10", "mnist"])
def test_a_rewound_training_is_the_same_again_to_the_bit(linear, dataset):
    workload = built(dataset=dataset, precision="amp-fp16")
    once = steps(workload, 5)
    assert steps(workload, 5) == once
    assert once.losses[0] != once.losses[1]


def test_a_fixed_batch_teaches_nothing(linear):
    workload = built(feed="fixed")
    workload.step()
    first = float(workload.loss())
    workload.rewind()
    for _ in range(10):
        workload.step()
    assert workload.training() is None
    assert float(workload.loss()) == pytest.approx(first, rel=1e-4)


def test_a_loss_that_is_no_number_can_be_written_down(linear, monkeypatch):
    monkeypatch.setattr(module, "loss_of", lambda output, _targets: output.sum() * float("nan"))
    seen = measured()
    assert min(seen.training.losses) > 1e308
    assert not seen.numerics.finite
    json.dumps(asdict(seen), allow_nan=False)


# ---- measured -----------------------------------------------------------------------------


def test_whole_epochs_are_measured_from_fresh_weights_and_tested(linear):
    seen = measured(epochs=2, batch_size=64)
    told = seen.training
    assert len(seen.iteration_s) == len(told.losses) == 20
    assert (told.steps_per_epoch, told.samples, told.test_samples) == (10, 640, 100)
    assert told.test_accuracy > 0.4
    assert told.losses[0] > told.losses[-1]
    assert told.accuracies[0] < 0.5


def test_the_test_images_are_shared_by_the_ranks(linear, monkeypatch):
    monkeypatch.setattr(nn.parallel, "DistributedDataParallel", lambda network, **_: network)
    parts = [steps(built(ranks=3, rank=rank, epochs=1), 1) for rank in range(3)]
    assert [part.test_samples for part in parts] == [34, 33, 33]
    assert parts[0].samples == 13 * 16 * 3


def test_an_eager_step_has_its_parts_by_name():
    seen = measured()
    assert list(seen.portions_s) == ["load", "forward", "backward", "optimizer"]
    assert min(seen.portions_s.values()) > 0
    assert (seen.item, seen.items_per_step) == ("img", 16)
    assert not built().fed_by_host


def test_a_network_that_draws_no_lots_is_held_against_fp32(linear):
    exact, rough = measured(dataset="cifar10").numerics, measured(precision="bf16").numerics
    assert exact.finite
    assert (exact.loss, exact.grad_norm) == (exact.reference_loss, exact.reference_grad_norm)
    assert rough.loss != rough.reference_loss
    assert rough.loss == pytest.approx(rough.reference_loss, rel=0.05)


def test_the_input_alone_is_a_workload_that_learns_nothing():
    alone = built(network="none", batch_size=8)
    assert (alone.items_per_step, alone.parameters, alone.training()) == (8, None, None)
    by_loader = built(network="none", batch_size=8, feed="loader", workers=3)
    assert (by_loader.items_per_step, by_loader.fed_by_host) == (24, True)
    both = built(batch_size=8, feed="loader", workers=3)
    assert (both.items_per_step, both.fed_by_host) == (24, True)


def test_a_step_of_what_a_loader_feeds_trains_on_a_batch_of_each_process(linear):
    workload = built(feed="loader", workers=2)
    try:
        assert len(steps(workload, 3).losses) == 6
    finally:
        workload.close()


def test_a_graph_on_a_cpu_is_a_skip():
    with pytest.raises(UnsupportedError, match="graph records CUDA graphs, which a CPU does not"):
        built(compile_mode="graph")


def test_a_step_of_more_images_than_there_are_is_refused():
    with pytest.raises(ValueError, match="a step needs 1 x 700 images, but there are only 640"):
        built(batch_size=700)


# ---- in a worker --------------------------------------------------------------------------


LOADED = {
    "dataset": "mnist",
    "network": "cnn",
    "batch_size": 8,
    "feed": "loader",
    "workers": 2,
}


@pytest.fixture(scope="module")
def zygote():
    with contextlib.closing(Zygote(environment=ON_THE_CPU)) as zygote:
        yield zygote


@pytest.fixture
def context(zygote):
    with fresh_context(zygote) as context:
        yield context


def loaded(**params: Any) -> Case:
    return Case("it", "training", {**LOADED, **params}, sampling=AT_ONCE, time_limit_s=LONG_S)


def test_a_loader_works_in_a_forked_context_and_its_processes_go_with_the_case(context):
    seen = context.measure(loaded())
    assert (seen.items_per_step, len(seen.iteration_s)) == (16, 2)
    assert len(seen.training.losses) == 4
    assert seen.peak_host_bytes is not None
    assert host.family(first=context.pid) == [context.pid]
    assert context.measure(loaded(network="none")).items_per_step == 16


def test_processes_that_load_are_gone_after_a_fault(zygote):
    context = zygote.fork()
    case = replace(loaded(network="none"), time_limit_s=6.0)
    seen: set[int] = set()

    def look() -> None:
        seen.update(host.family(first=context.pid))

    context.give_way = look  # called while the case is under way
    endless = replace(case.sampling, iterations=10**6, max_iterations=10**6)
    with pytest.raises(CaseFault) as raised:
        context.measure(replace(case, sampling=endless))
    assert raised.value.fault.kind == "time limit"
    assert len(seen) == 3
    assert all_gone(*seen)
