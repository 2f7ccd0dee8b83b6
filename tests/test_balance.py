"""Cases stay on their devices, and move where one device would wait long for another."""

from __future__ import annotations

import random

import pytest

from bench_lib.engine.pace import SLACK, balanced, is_compiled, queues


def loads(found, takes, devices):
    return [sum(takes[name] for name in queue) for queue in queues(found, devices)]


def test_a_balanced_suite_stays_where_it_is():
    homes = {"a": 0, "b": 0, "c": 1, "d": 1}
    takes = {"a": 1.0, "b": 1.05, "c": 1.0, "d": 1.0}
    assert balanced(homes, 2, takes.get) == homes


def test_as_few_as_need_be_move_from_the_longest_queue():
    homes = dict.fromkeys("abcd", 0) | {"e": 1}
    takes = {"a": 8.0, "b": 1.0, "c": 2.0, "d": 3.0, "e": 8.0}
    assert balanced(homes, 2, takes.get) == {**homes, "d": 1}


def test_what_is_not_known_takes_as_long_as_most():
    homes = dict.fromkeys("abcd", 0)
    assert loads(balanced(homes, 2, {"a": 2.0, "b": 2.0}.get), dict.fromkeys("abcd", 2.0), 2) == [
        4.0,
        4.0,
    ]
    assert balanced(homes, 2, {"a": 2.0}.get) == homes


def test_one_case_longer_than_all_others_moves_them_away_from_it():
    homes = dict.fromkeys("abc", 0)
    takes = {"a": 60.0, "b": 1.0, "c": 1.0}
    assert sorted(loads(balanced(homes, 2, takes.get), takes, 2)) == [2.0, 60.0]


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("seed", range(5))
def test_a_gate_is_balanced_on_any_number_of_devices(devices, seed):
    chance = random.Random(seed)
    takes = {f"network-{n}": chance.uniform(1.0, 8.6) for n in range(30)}
    takes |= {f"operator-{n}": chance.uniform(1.3, 1.8) for n in range(30)}
    homes = {name: chance.randrange(devices) for name in takes}
    most = max(loads(balanced(homes, devices, takes.get), takes, devices))
    assert most <= (1 + 2 * SLACK) * sum(takes.values()) / devices


@pytest.mark.parametrize(
    ("nodeid", "compiles"),
    [
        ("perf_tests/test_networks.py::test_network[resnet50-b64-fp16-max-autotune-infer]", True),
        ("vit_b_16-b32-bf16-reduce-overhead-infer", True),
        ("op-gemm-8192x8192x8192-nt-default", True),
        ("resnet50-b64-fp16-eager-infer", False),
        ("resnet50-b64-fp16-graph-infer", False),
        ("tests/test_default.py::test_default", False),
    ],
)
def test_an_id_says_whether_its_case_is_compiled(nodeid, compiles):
    assert is_compiled(nodeid) is compiles
