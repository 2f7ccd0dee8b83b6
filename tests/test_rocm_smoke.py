"""The smoke tier of `perf_tests` on every kind of Instinct, with every installation of ROCm.

A run takes seconds.  So each machine and each installation is in one or two of the runs; what does
not need a run is held of all their pairs in `test_rocm`.  Workers answer at once, and all that
finds, watches and describes a device is real.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from standins.rocm.machine import Site, hip_of
from test_kernel_in_a_box import MACHINES
from test_rocm import FIRST_OF_CORE, INSTALLED

from bench_lib.backends.amd.rocm import release
from bench_lib.model import Status
from bench_lib.storage import history

TESTS = Path(__file__).parent
LIMIT_S = 120
INI = """
[pytest]
perf_paths = perf_tests
addopts = --strict-markers --strict-config -p no:cacheprovider
filterwarnings =
    error
    ignore:Benchmarks are automatically disabled
"""
PLUGINS = ("bench_lib.plugin", "xdist", "pytest_benchmark.plugin", "standins.rocm.answering")
ROUNDS = max(len(MACHINES), len(INSTALLED))
RUNS = [([*MACHINES][n % len(MACHINES)], [*INSTALLED][n % len(INSTALLED)]) for n in range(ROUNDS)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep what torchvision has, of which every run would ask a worker."""
    return tmp_path_factory.mktemp("cache")


def smoke(site: Site, cache: Path, *words: str) -> subprocess.CompletedProcess[str]:
    checkout = site.folder / "checkout"
    checkout.mkdir()
    shutil.copytree(TESTS.parent / "perf_tests", checkout / "perf_tests")
    (checkout / "pytest.ini").write_text(INI)
    own = {"XDG_CACHE_HOME": str(cache), "HOME": str(site.folder)}
    environ = site.environ(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", **own)
    environ["PYTHONPATH"] = os.pathsep.join((environ["PYTHONPATH"], str(TESTS), str(TESTS.parent)))
    loaded = [word for plugin in PLUGINS for word in ("-p", plugin)]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *loaded,
            "perf_tests",
            "--perf-tier",
            "smoke",
            "-o",
            "perf_kernels=none",
            *words,
        ],
        cwd=checkout,
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize(("name", "installed"), RUNS)
def test_the_smoke_tier_is_green(tmp_path: Path, cache: Path, name: str, installed: str) -> None:
    make, keys, clock_mhz = MACHINES[name]
    machine = make(**{"torch_rocm": None, **INSTALLED[installed]})
    site = machine.lay_out(tmp_path / "machine")
    database = site.folder / ".config/miopen/gfx942.HIP.3_5_1.ufdb.txt"
    database.parent.mkdir(parents=True)
    database.write_text("64-56-56=igemm:1,2\n")
    done = smoke(site, cache, *(["-n", "2"] if len(keys) == 8 else []))
    assert done.returncode == 0, done.stdout
    (file,) = history.files(site.folder / "checkout/history")
    run = history.read(file)
    assert {device.key for device in run.hardware} == {keys[0]}
    assert {record.status for record in run.records.values()} == {Status.NO_BASELINE}
    for environment in run.environments.values():
        assert (environment.rocm, environment.hip) == (machine.rocm, hip_of(machine.rocm))
        bare = (release(machine.rocm) or ()) >= FIRST_OF_CORE
        assert environment.libraries["hipblaslt"].startswith("1 " if bare else "1.0.")
        assert environment.caches["miopen"].startswith("warm, 1 entry")
    # A look may come too late for one of them on a busy host.
    seen = [record.attempts[0].telemetry for record in run.records.values()]
    assert any(seen)
    for each in filter(None, seen):
        assert (each.source, each.clock_mhz) == ("gpu_metrics", clock_mhz)
        assert (each.throttle, each.foreign_processes) == ([], [])
    assert [*site.folder.rglob("*.ran")] == []
