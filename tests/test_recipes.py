"""The recipes of docs/adding-a-case.md, followed in a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ON_THE_CPU

ROOT = Path(__file__).parents[1]
RECIPE = re.compile(r"^```\w+\n# ([\w./]+)(?:, in (\w+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    copy = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "bench_lib", copy / "bench_lib", ignore=ignored)
    for name, table, text in RECIPE.findall((ROOT / "docs" / "adding-a-case.md").read_text()):
        path = copy / name
        if not path.parent.is_dir():
            continue  # a repository of somebody's own
        known = path.read_text() if path.exists() else ""
        if "".join(text.split()) in "".join(known.split()):
            continue  # somebody followed the recipe here
        assert bool(known) == (path.suffix == ".toml" or bool(table)), f"{name} is there already"
        row = f"{table} = (\n{text.rstrip()},\n"  # ruff would make a row with its comma a tuple
        path.write_text(known.replace(f"{table} = (\n", row) if table else known + text)
    return copy


def run(checkout, *arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=checkout,
        env={
            **os.environ,
            **ON_THE_CPU,
            "PYTHONPATH": os.pathsep.join([str(checkout), str(ROOT / "tests")]),
            "XDG_CACHE_HOME": str(checkout / "cache"),
        },
        capture_output=True,
        text=True,
        check=False,
    )


JUDGED = """
from builders import make_measurement
from dataclasses import replace
from judging import verdicts_of
from bench_lib.verdict.evidence import Evidence
from bench_lib.verdict.metrics import summarise
from bench_lib.model import Accepted, Baseline
from bench_lib.verdict.metrics import registered

print(f"compared by {registered()['host_memory'].label}; {next(iter(registered()))} leads")
def process(size):
    seen = replace(make_measurement(), peak_host_bytes=size)
    return summarise(seen, environment="e", time="t")
baseline = Baseline("case", [process(100)] * 5, Accepted("run", "first", "2026-01-01"))
for size in (109, 111):
    [verdict] = [
        v
        for v in verdicts_of({"case": Evidence([process(size)] * 2, baseline)})["case"]
        if v.metric == "host_memory"
    ]
    print(verdict.status.value, verdict.value, verdict.baseline, verdict.unit)
"""


def test_a_metric_is_kept_judged_and_compared(checkout):
    done = run(checkout, "-c", JUDGED)
    assert done.stdout.splitlines() == [
        "compared by peak host memory; latency leads",
        "OK 109.0 100.0 B",
        "REGRESSED 111.0 100.0 B",
    ], done.stderr


IDENTIFIED = """
from bench_lib.backends.amd.devices import identify
from bench_lib.model import Hardware

for mode in ("SPX", "DPX"):
    gpu = identify(
        Hardware("amd", "AMD Radeon Graphics", "", pci_device_id="7fff", compute_partition=mode)
    )
    print(gpu.key, gpu.name, gpu.peak_tflops, gpu.peak_gb_per_s)
"""


def test_a_gpu_has_its_key_its_name_and_its_peaks(checkout):
    done = run(checkout, "-c", IDENTIFIED)
    assert done.stdout.splitlines() == [
        "mi999x AMD Instinct MI999X {'bf16': 3000.0} 9000.0",
        "mi999x-dpx AMD Instinct MI999X {'bf16': 1500.0} None",
    ], done.stderr


def test_its_row_passes_the_tests_of_the_catalogue(checkout):
    tests = str(ROOT / "tests" / "test_peaks.py")
    options = "--noconftest", "-p", "no:cacheprovider", "-c", os.devnull
    done = run(checkout, "-m", "pytest", *options, tests)
    assert done.returncode == 0, done.stdout
