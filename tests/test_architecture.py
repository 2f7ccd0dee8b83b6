"""What imports what: torch only below the worker, and the worker on its own."""

import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from processes import ON_THE_CPU

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"


def run(program):
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **ON_THE_CPU, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "module", ["plugin", "engine.device", "cli", "launch.zygote", "launch.wire"]
)
def test_nothing_above_the_worker_imports_torch(module):
    loaded = run(f"import sys, bench_lib.{module}\nprint(*sys.modules)").split()
    assert f"bench_lib.{module}" in loaded
    assert {name.partition(".")[0] for name in loaded} & {"torch", "torchvision"} == set()
    assert not [name for name in loaded if name.startswith("bench_lib.worker")]


def test_the_command_line_starts_without_what_only_some_commands_need():
    loaded = run("import sys, bench_lib.cli\nprint(*sys.modules)").split()
    assert "typer" in loaded
    assert {"scipy", "pytest", "bench_lib.engine.device"} & set(loaded) == set()


ALONE = """
import dataclasses, json, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {
            "msgspec", "pytest", "typer", "rich", "scipy", "filelock", "xdist",
            "pytest_benchmark", "deepspeed", "pynvml",
        }:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())

from bench_lib.worker.zygote import importing_torch

with importing_torch():
    from bench_lib.model import Case, Sampling
    from bench_lib.worker import device, measure, process, ranks
    from bench_lib.worker.clock import clock_of
    from bench_lib.worker.workloads import Setting, networks, registry

device.versions()
registry.networks()
cpu, seen = device.open_device()
alone = measure.MeasuringContext(Setting(cpu), clock_of(cpu), "alone")
at_once = Sampling(warmup_s=0, warmup_max_s=0, iterations=2, max_iterations=2, measure_s=0)
for task in ("infer", "train"):
    params = {"network": "squeezenet1_1", "batch_size": 1, "image_size": 32, "task": task}
    case = Case(task, "network", params, sampling=at_once)
    print(*process.answer({"measure": dataclasses.asdict(case)}, alone))
print(*sorted(name for name in sys.modules if name.startswith("bench_lib")))
"""


def test_a_worker_needs_only_torch_and_torchvision():
    first, second, modules = run(ALONE).splitlines()
    assert (first, second) == ("measurement", "measurement")
    ours = {name for name in modules.split() if not name.startswith("bench_lib.worker")}
    assert ours == {
        "bench_lib",
        "bench_lib.files",
        "bench_lib.model",
        "bench_lib.formulas",
        "bench_lib.formulas.arithmetic",
        "bench_lib.formulas.spans",
        "bench_lib.launch",
        "bench_lib.launch.cache",
        "bench_lib.launch.faults",
        "bench_lib.launch.launchers",
        "bench_lib.launch.started",
        "bench_lib.launch.wire",
    }


def test_no_module_imports_one_that_imports_it():
    grimp = pytest.importorskip("grimp")
    graph = grimp.build_graph("bench_lib", cache_dir=None)
    importing = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert "bench_lib.engine.pace" in importing["bench_lib.cli.measuring"]  # inside a function
    TopologicalSorter(importing).prepare()  # raises CycleError, which names the modules


def test_the_page_draws_the_layers_that_are_checked():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (flow,) = (each for each in contracts["contracts"] if each["name"] == "One-way flow")
    assert "\n".join(["```", *flow["layers"], ""]) in PAGE.read_text()
