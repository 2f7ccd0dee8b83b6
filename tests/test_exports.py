"""A run for dashboards: PyTorch's benchmark record, and OpenMetrics text."""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path
from typing import Any

import pytest
from builders import (
    CASE_ID,
    make_attempt,
    make_case,
    make_environment,
    make_hardware,
    make_measurement,
    make_record,
    make_verdict,
    night,
    write_run,
)

from bench_lib.model import Status

RECORDED = Path(__file__).with_name("recorded")
TEXT, COUNT, NUMBER = "String", "UInt32", "Float32"
TEXTS, NUMBERS, INFO = "Array(String)", "Array(Float32)", "Map(String, String)"
SCHEMA: dict[str, Any] = {
    "benchmark": {"name": TEXT, "mode": TEXT, "dtype": TEXT, "extra_info": INFO},
    "model": {"name": TEXT, "type": TEXT, "backend": TEXT, "origins": TEXTS, "extra_info": INFO},
    "metric": {
        "name": TEXT,
        "benchmark_values": NUMBERS,
        "target_value": NUMBER,
        "extra_info": INFO,
    },
    "inputs": {None: {"dtype": TEXT, "extra_info": INFO}},
    "dependencies": {
        None: {"repo": TEXT, "branch": TEXT, "sha": TEXT, "version": TEXT, "extra_info": INFO}
    },
    "runners": [
        {
            "name": TEXT,
            "type": TEXT,
            "cpu_info": TEXT,
            "cpu_count": COUNT,
            "mem_info": TEXT,
            "avail_mem_in_gb": COUNT,
            "gpu_info": TEXT,
            "gpu_count": COUNT,
            "gpu_mem_info": TEXT,
            "avail_gpu_mem_in_gb": COUNT,
            "extra_info": INFO,
        }
    ],
}
"""The columns of a record in ClickHouse (pytorch/test-infra's schema.sql at 3c0eb5c3ab14)."""


def is_of(value: Any, kind: Any) -> bool:
    """Return whether a value has a column's type, and all fields of it and no other."""
    if isinstance(kind, list):
        return isinstance(value, list) and all(is_of(each, kind[0]) for each in value)
    if isinstance(kind, dict) and None in kind:
        return isinstance(value, dict) and all(is_of(each, kind[None]) for each in value.values())
    if isinstance(kind, dict):
        return list(value) == list(kind) and all(is_of(value[name], kind[name]) for name in kind)
    match kind:
        case "String":
            return isinstance(value, str)
        case "UInt32":
            return type(value) is int and 0 <= value < 2**32
        case "Float32":
            return type(value) in (int, float) and abs(value) < 3.4e38
        case "Map(String, String)":
            return all(isinstance(each, str) for item in value.items() for each in item)
    return all(is_of(each, TEXT if kind == TEXTS else NUMBER) for each in value)


def attempts(*medians: float) -> list:
    return [
        make_attempt(
            process=n,
            measurement=make_measurement(
                context_id=f"context-{n}", iteration_s=[median] * 20, peak_memory_bytes=2**30
            ),
        )
        for n, median in enumerate(medians)
    ]


def record(*medians: float, **fields):
    return make_record(
        attempts=attempts(*medians),
        status=Status.OK,
        verdicts=[make_verdict(baseline=0.0625)],
        **fields,
    )


def exported(cli, form: str) -> str:
    answer = cli("history", "export", "latest", "--format", form)
    assert (answer.status, answer.err) == (0, "")
    return answer.out


# ---- PyTorch's benchmark record ---------------------------------------------------------


@pytest.mark.parametrize("vendor", ["amd", "cpu"])
def test_every_field_of_a_record_is_of_the_schema(cli, tmp_path, vendor):
    empty = make_record(case=make_case(id="skipped"), attempts=[make_attempt(skipped="no GPU")])
    bare = make_environment(torch=None, commit=None, cpu_count=8)
    for environment, day in ((make_environment(), 1), (bare, 2)):
        records = [record(0.5, 0.25), empty]
        hardware = make_hardware(vendor=vendor)
        where = {"hardware": hardware, "environment": environment, "now": night(day)}
        write_run(tmp_path / "history", records, **where)
        found = [json.loads(line) for line in exported(cli, "pytorch").splitlines()]
        assert found
        for each in found:
            assert list(each) == list(SCHEMA)
            for name, kind in SCHEMA.items():
                assert is_of(each[name], kind), name


def test_a_record_has_a_value_for_each_process_the_software_and_the_device(cli, tmp_path):
    environment = make_environment(torch="2.9.0a0+git1234abc", libraries={"hipblaslt": "1.2.2"})
    write_run(tmp_path / "history", [record(0.5, 0.25)], environment=environment)
    found = [json.loads(line) for line in exported(cli, "pytorch").splitlines()]
    by_metric = {each["metric"]["name"]: each for each in found}
    assert by_metric["memory"]["metric"]["benchmark_values"] == [2.0**30] * 2
    latency = by_metric["latency"]
    assert latency["metric"] == {
        "name": "latency",
        "benchmark_values": [0.5, 0.25],
        "target_value": 0.0625,
        "extra_info": {
            "values": "processes",
            "unit": "s",
            "more_is_better": "False",
            "status": "OK",
        },
    }
    assert latency["benchmark"]["extra_info"]["case"] == CASE_ID
    assert (latency["benchmark"]["mode"], latency["benchmark"]["dtype"]) == ("inference", "fp32")
    assert (latency["model"]["name"], latency["model"]["backend"]) == ("resnet18", "eager")
    torch = latency["dependencies"]["torch"]
    assert (torch["repo"], torch["sha"]) == ("pytorch/pytorch", "1234abc")
    assert latency["dependencies"]["hipblaslt"]["version"] == "1.2.2"
    assert latency["dependencies"]["tests"]["sha"] == "c0ffee0"
    (runner,) = latency["runners"]
    assert (runner["gpu_info"], runner["gpu_count"]) == ("AMD Instinct MI300X", 1)
    assert (runner["type"], runner["avail_gpu_mem_in_gb"]) == ("mi300x", 192)


def test_what_was_exported_can_be_judged_with_a_process_for_each_value(cli, tmp_path):
    for name, slower in (("a", 1.0), ("b", 1.05)):
        medians = [0.1 * slower * (1 + n / 10_000) for n in range(5)]
        day = night(1 if name == "a" else 2)
        write_run(tmp_path / "history", [record(*medians)], now=day)
        (tmp_path / f"{name}.json").write_text(exported(cli, "pytorch"))
    answer = cli("judge", "--format", "pytorch", "--baseline", "a.json", "b.json", "--json")
    assert answer.status == 1
    (verdict,) = answer.json["verdicts"]
    assert (verdict["case_id"], verdict["metric"]) == (CASE_ID, "latency")
    assert verdict["ratio"] == pytest.approx(1.05, rel=1e-3)
    assert "5 baseline processes" in verdict["reason"]


@pytest.mark.parametrize("name", ["h200-gate-1", "h200-gate-2"])
def test_a_run_of_a_real_gpu_keeps_to_both_forms(cli, tmp_path, name):
    lines = lzma.decompress((RECORDED / f"{name}.jsonl.xz").read_bytes())
    run = json.loads(lines.partition(b"\n")[0])["run"]
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / f"20261122T150000Z_h200_{run}.jsonl").write_bytes(lines)
    found = [json.loads(line) for line in exported(cli, "pytorch").splitlines()]
    assert {each["benchmark"]["extra_info"]["tier"] for each in found} == {"gate"}
    assert all(is_of(each[field], kind) for each in found for field, kind in SCHEMA.items())
    of_metric = families(exported(cli, "openmetrics"))
    latencies = [each for each in found if each["metric"]["name"] == "latency"]
    assert len(of_metric["bench_lib_latency_seconds"]) == len(latencies) > 50


# ---- OpenMetrics ------------------------------------------------------------------------

LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\n"])*"'
SAMPLE = re.compile(rf"([a-zA-Z_:][\w:]*)\{{({LABEL}(?:,{LABEL})*)?\}} (\S+) (\d+)")


def families(text: str) -> dict[str, list[tuple[dict[str, str], float, int]]]:
    """Return the samples of a text by family; an AssertionError names what is not of the format."""
    assert text.endswith("\n# EOF\n")
    found: dict[str, list[tuple[dict[str, str], float, int]]] = {}
    family = kind = ""
    for line in text.removesuffix("# EOF\n").splitlines():
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert family not in found, f"{family} is interrupted"
            assert kind in ("gauge", "info")
            found[family] = []
        elif line.startswith("# UNIT "):
            _, _, name, unit = line.split(" ")
            assert name == family, line
            assert family.endswith(f"_{unit}"), line
            assert kind == "gauge", line
            assert not found[family], line
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] == (f"{family}_info" if kind == "info" else family)
            labels = re.findall(LABEL, match[2])
            names = dict(label.split("=", 1) for label in labels)
            assert len(names) == len(labels), line
            assert all(names != known for known, _, _ in found[family]), f"twice: {line}"
            assert kind == "gauge" or match[3] == "1"
            found[family].append((names, float(match[3]), int(match[4])))
    return found


def test_a_run_is_text_of_openmetrics_with_its_labels(cli, tmp_path):
    records = [record(0.5, 0.25, 0.25), record(0.1, case=make_case(id="b"))]
    hostile = make_environment(host='a"b\\c\nd')
    write_run(tmp_path / "history", records, environment=hostile, now="2026-01-01T00:00:00Z")
    found = families(exported(cli, "openmetrics"))
    (labels, value, time), other = found["bench_lib_latency_seconds"]
    assert (value, time) == (0.25, 1_767_225_600)
    assert labels["case"] == f'"{CASE_ID}"'
    assert labels["torch"] == '"2.9.0+rocm7.0"'
    assert labels["host"] == r'"a\"b\\c\nd"'
    assert other[0]["case"] == '"b"'
    assert "bench_lib_memory_bytes" in found
    ((verdict, _, _), _) = found["bench_lib_verdict"]
    assert verdict == {"case": f'"{CASE_ID}"', "hardware": '"mi300x"', "status": '"OK"'}
    ((run, _, _),) = found["bench_lib_run"]
    assert (run["commit"], run["hardware"]) == ('"c0ffee0"', '"mi300x"')


def test_a_file_without_a_run_is_text_without_a_family(cli, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    answer = cli("history", "export", "empty.jsonl", "--format", "openmetrics")
    assert (answer.status, answer.out.strip()) == (0, "# EOF")
