"""`pytest perf_tests` as it would run on AMD's GPUs: on machines of stand-ins, otherwise whole.

Stand-ins are the kernel's files, ROCm's Python package and profilers, and what torch does on a
device (`standins.rocm`).  Each machine is laid out and run once; the tests look at what
is left of it: the history, what was printed, and which devices were really opened.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from builders import make_baseline, make_environment, make_processes
from standins.rocm.machine import Card, Machine, Site, mi250x, mi300x, mi300x_cpx, mi325x

from bench_lib.backends.amd import profilers
from bench_lib.model import Attempt, Hardware, Status
from bench_lib.storage import baselines, history

ROOT = Path(__file__).parents[1]
LIMIT_S = 240
CONVOLUTIONS = 26
"""In squeezenet1_1; nothing else in it takes the made-up devices any time to speak of."""

INI = """
[pytest]
perf_paths = perf_tests
addopts = --strict-markers --strict-config -p no:cacheprovider
filterwarnings =
    error
    ignore:Benchmarks are automatically disabled
"""
TABLE = """
[[gate.networks]]
network = "squeezenet1_1"
batch_size = 1
image_size = {sizes}
[gate.networks.sampling]
warmup_s = 0.2
warmup_max_s = 1.0
iterations = 20
max_iterations = 20
measure_s = 0.1
"""
"""The iterations take two seconds: every tenth look at a device lists its processes as well."""
AS_IT_IS = ("-o", "perf_confirm=0", "-o", "perf_kernels=none")
"""Each case is measured once: the run of the MI300X waits, looks again and profiles."""


def case_id(size: int) -> str:
    return f"squeezenet1_1-b1-fp32-{size}px-eager-infer"


def step_s(site: Site, card: Card) -> float:
    return CONVOLUTIONS * site.machine.kernel_us / 1e6 * card.max_clock_mhz / card.clock_mhz


@dataclass(frozen=True)
class Checkout:
    folder: Path
    site: Site
    variables: Mapping[str, str]

    def python(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        # Of other plugins, and of the compiler, nobody asks anything here: both take seconds.
        quick = {"BENCH_LIB_PRELOAD": "no", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        environ = self.site.environ(**{**quick, **self.variables, **variables})
        environ["PYTHONPATH"] = os.pathsep.join((environ["PYTHONPATH"], str(ROOT)))
        self.site.rest()
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def pytest(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        plugins = ("-p", "bench_lib.plugin", "-p", "xdist", "-p", "pytest_benchmark.plugin")
        return self.python("-m", "pytest", *plugins, "perf_tests", *words, **variables)

    def accept(self, key: str, size: int, median_s: float, **fields: Any) -> None:
        file = baselines.load(self.folder / "baselines", key)
        logs = [math.log(median_s) + spread for spread in (-1e-3, -5e-4, 0.0, 5e-4, 1e-3)]
        processes = make_processes(logs, environment="e0e0e0e0", device_uuid=None, **fields)
        new = make_baseline(case_id=case_id(size), processes=processes, conditions={"ranks": 1})
        device = Hardware(vendor="amd", name=key, key=key)
        change = baselines.BaselineChange(case_id(size), None, new)
        baselines.write(file, [change], device, {"e0e0e0e0": make_environment()})

    @property
    def run(self) -> history.Run:
        (file,) = history.files(self.folder / "history")
        return history.read(file)


@dataclass(frozen=True)
class Ran:
    checkout: Checkout
    done: subprocess.CompletedProcess[str]

    @property
    def site(self) -> Site:
        return self.checkout.site

    @property
    def devices(self) -> list[Hardware]:
        return sorted(self.checkout.run.hardware, key=lambda device: device.index)

    def status(self, size: int) -> Status | None:
        return self.checkout.run.records[case_id(size)].status

    def attempts(self, size: int) -> list[Attempt]:
        return self.checkout.run.records[case_id(size)].attempts

    def confirmations(self, size: int) -> list[bool]:
        return [attempt.confirms for attempt in self.attempts(size) if attempt.accepted]

    def first(self, size: int) -> Attempt:
        return self.attempts(size)[0]

    def why(self, size: int) -> str:
        """Say why the last attempt was discarded."""
        return self.attempts(size)[-1].discarded or ""


Lay = Callable[..., Checkout]


@pytest.fixture(scope="module")
def lay(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")

    def make(machine: Machine, sizes: Sequence[int], **variables: str) -> Checkout:
        site = machine.lay_out(tmp_path_factory.mktemp("machine"))
        folder = site.folder / "checkout"
        (folder / "perf_tests").mkdir(parents=True)
        (folder / "pytest.ini").write_text(INI)
        shutil.copy(ROOT / "perf_tests/test_networks.py", folder / "perf_tests")
        (folder / "perf_tests/matrix.toml").write_text(TABLE.format(sizes=list(sizes)))
        made = Checkout(folder, site, {"XDG_CACHE_HOME": str(cache), **variables})
        if not any(cache.iterdir()):  # every process would ask what torchvision has
            asked = made.python("-m", "pytest", "-p", "bench_lib.plugin", "--co", "perf_tests")
            assert asked.returncode == 0, asked.stdout
        return made

    return make


SCENARIOS: dict[str, Callable[[Lay], Ran]] = {}


def scenario(play: Callable[[Lay], Ran]) -> Any:
    """Make a fixture of a run; those that a session needs are run two at a time.

    Most of a run is the import of torch, and waiting for made-up devices.
    """
    SCENARIOS[play.__name__] = play

    def fixture(runs: Mapping[str, Future[Ran]]) -> Ran:
        return runs[play.__name__].result()

    return pytest.fixture(scope="module", name=play.__name__)(fixture)


@pytest.fixture(scope="module")
def runs(request, lay):
    needed = {
        name
        for item in request.session.items
        for name in getattr(item, "fixturenames", ())
        if item.path == request.path
    }
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(play, lay) for name, play in SCENARIOS.items() if name in needed}


@contextlib.contextmanager
def stranger(checkout: Checkout, hip: int) -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-ISc", "input()"], stdin=subprocess.PIPE) as process:
        checkout.site.hold(process.pid, hip, "blender", memory=3 << 30)
        (checkout.folder / "stranger").write_text(str(process.pid))
        yield
        process.communicate(b"\n")


def in_words(checkout: Checkout) -> str:
    pid = (checkout.folder / "stranger").read_text()
    return f"shared with process {pid} (blender, 3072 MiB)"


def same_gpu(device: Hardware, described: Mapping[str, Any]) -> None:
    assert device.vendor == "amd"
    assert device.pci_device_id == described["pci_id"]
    assert device.arch == described["arch"]
    assert device.compute_units == described["units"]
    assert device.memory_bytes == described["memory"]
    assert device.bdf == described["bdf"]
    assert device.uuid == f"GPU-{described['hip_uuid']}"


# --- four MI325X, ROCm's Python package; something is wrong with three of them -----------

FOUR = [32, 33, 34, 35]
"""Dealt to the devices in turn."""
VIRTUAL, SHARED, HOT, LOW = range(4)
NAMELESS = HOT
"""Without a name, under a useless one, with a stranger, too hot, with too low a clock."""


@pytest.fixture(scope="module")
def four_mi325x(lay):
    machine = mi325x(4, has_package=True)
    cards, on = list(machine.cards), [device["card"] for device in machine.devices]
    cards[on[VIRTUAL]] = replace(cards[on[VIRTUAL]], pci_id="74b9", name="")
    cards[on[NAMELESS]] = replace(cards[on[NAMELESS]], name="AMD Radeon Graphics")
    cards[on[HOT]] = replace(cards[on[HOT]], held_back={"socket_thermal": 0.25})
    cards[on[LOW]] = replace(cards[on[LOW]], clock_mhz=1410, cap_w=700)
    made = lay(replace(machine, cards=cards), FOUR)
    made.accept("mi325x", FOUR[LOW], CONVOLUTIONS * 4.1e-3, clock_mhz=2070.0, power_w=790.0)
    with stranger(made, hip=SHARED):
        done = made.pytest("-n", "4", *AS_IT_IS)
    return Ran(made, done)


def test_four_mi325x_are_four_devices_in_the_order_of_their_nodes(four_mi325x):
    described = four_mi325x.site.machine.devices
    assert [device["smi"] for device in described] != list(range(4))
    assert [d.key for d in four_mi325x.devices] == ["mi325x"] * 4, four_mi325x.done.stdout
    for device, about in zip(four_mi325x.devices, described, strict=True):
        same_gpu(device, about)


def test_a_name_is_no_key(four_mi325x):
    virtual, nameless = (four_mi325x.devices[n] for n in (VIRTUAL, NAMELESS))
    assert (virtual.key, virtual.pci_device_id) == ("mi325x", "74b9")
    assert [device.name for device in (virtual, nameless)] == ["AMD Instinct MI325X"] * 2


def test_each_worker_is_pinned_to_a_device_of_its_own(four_mi325x):
    opened = four_mi325x.site.opened
    pins = {(one["hip"], one["variables"]["HIP_VISIBLE_DEVICES"]) for one in opened}
    assert pins == {(n, str(n)) for n in range(4)}
    assert len({one["pid"] for one in opened}) == len(opened)


@pytest.mark.parametrize("index", range(4))
def test_each_case_ran_on_a_device_of_its_own(four_mi325x, index):
    about = four_mi325x.site.machine.devices[index]
    card = four_mi325x.site.machine.cards[about["card"]]
    attempt = four_mi325x.first(FOUR[index])
    assert attempt.device_uuid == f"GPU-{about['hip_uuid']}"
    # No step is shorter than the stand-in makes it; how much longer is this machine's affair.
    fastest_s = min(attempt.measurement.iteration_s)
    assert fastest_s == pytest.approx(step_s(four_mi325x.site, card), rel=0.02)


def test_each_worker_is_watched_on_its_own_card(four_mi325x):
    for index, size in enumerate(FOUR):
        seen = four_mi325x.first(size).telemetry
        about = four_mi325x.site.machine.devices[index]
        assert (seen.source, seen.clock_mhz) == ("gpu_metrics", about["clock_mhz"])
        assert (seen.power_w, bool(seen.foreign_processes)) == (800.0, index == SHARED)


def test_a_shared_device_makes_its_case_invalid_with_who_it_was(four_mi325x):
    assert four_mi325x.status(FOUR[SHARED]) is Status.INVALID, four_mi325x.done.stdout
    words = in_words(four_mi325x.checkout)
    assert four_mi325x.why(FOUR[SHARED]) == words
    assert words in four_mi325x.done.stdout


def test_counters_of_throttling_that_grow_make_a_case_invalid(four_mi325x):
    assert four_mi325x.status(FOUR[HOT]) is Status.INVALID, four_mi325x.done.stdout
    words = four_mi325x.why(FOUR[HOT])
    told = re.fullmatch(r"throttled: thermal for (\d+)% of the time, at 61 °C", words or "")
    assert told is not None, words
    # The share is that of a measured stretch, whose ends are not those of the counters' steps.
    assert int(told[1]) == pytest.approx(25, abs=2)


def test_a_clock_below_the_baseline_s_makes_a_case_invalid(four_mi325x):
    assert four_mi325x.status(FOUR[LOW]) is Status.INVALID, four_mi325x.done.stdout
    words = "by the clock: 1410 MHz against 2070 MHz in the baseline; power 800 W against 790 W"
    assert words in four_mi325x.done.stdout


def test_a_run_of_which_nothing_could_be_judged_is_not_green(four_mi325x):
    assert four_mi325x.done.returncode == pytest.ExitCode.TESTS_FAILED
    others = [size for n, size in enumerate(FOUR) if n not in (SHARED, HOT, LOW)]
    assert {four_mi325x.status(size) for size in others} == {Status.NO_BASELINE}


# --- one MI300X, ROCm 7.1, commands alone ------------------------------------------------

FAST, SLOW = 32, 40


@scenario
def one_mi300x(lay: Lay) -> Ran:
    made = lay(mi300x(), [FAST, SLOW])
    (card,) = made.site.machine.cards
    now_s = step_s(made.site, card)
    made.accept("mi300x", FAST, now_s, clock_mhz=2100.0)
    made.accept("mi300x", SLOW, now_s / 1.2, clock_mhz=2100.0)
    for other in ("mi325x", "mi300x-cpx-nps4"):  # which must not be looked at
        made.accept(other, FAST, now_s / 2)
        made.accept(other, SLOW, now_s * 2)
    return Ran(made, made.pytest("-o", "perf_confirm=2"))


def test_an_mi300x_is_found_under_its_key(one_mi300x):
    (device,) = one_mi300x.devices
    assert (device.key, device.name) == ("mi300x", "AMD Instinct MI300X")
    assert (device.compute_partition, device.memory_partition) == ("SPX", "NPS1")
    assert device.power_cap_w == 750.0
    assert device.peak_tflops["fp16"] == 1307.4
    same_gpu(device, one_mi300x.site.machine.devices[0])


def test_its_own_baseline_judges_it(one_mi300x):
    assert one_mi300x.done.returncode == pytest.ExitCode.TESTS_FAILED, one_mi300x.done.stdout
    assert one_mi300x.status(FAST) is Status.OK
    assert one_mi300x.status(SLOW) is Status.REGRESSED
    assert "% slower than 5 baseline processes" in one_mi300x.done.stdout
    assert one_mi300x.confirmations(FAST) == [False]
    assert one_mi300x.confirmations(SLOW) == [False, True, True]


def test_the_kernel_s_files_watch_it(one_mi300x):
    seen = one_mi300x.first(FAST).telemetry
    assert (seen.source, seen.samples >= 1) == ("gpu_metrics", True)
    assert (seen.clock_mhz, seen.power_w) == (2100.0, 600.0)
    assert seen.temperature_c == 61.0
    assert seen.utilization == pytest.approx(0.97)
    assert (seen.throttle, seen.foreign_processes) == ([], [])


def test_the_worker_measured_it_as_a_build_for_hip(one_mi300x):
    (environment,) = one_mi300x.checkout.run.environments.values()
    assert (environment.hip, environment.cuda) == ("7.1.0.25424", None)
    assert (environment.rocm, environment.cudnn) == ("7.1.0", "305001")
    measured = one_mi300x.first(FAST).measurement
    # How steady this machine is is not what is tested.
    assert [w for w in measured.warnings if not w.startswith("not steady")] == []
    assert measured.peak_memory_bytes
    assert measured.numerics.finite
    (card,) = one_mi300x.site.machine.cards
    assert min(measured.iteration_s) == pytest.approx(step_s(one_mi300x.site, card), rel=0.02)


def test_the_worker_is_pinned_even_to_the_only_device(one_mi300x):
    told = [opened["variables"]["HIP_VISIBLE_DEVICES"] for opened in one_mi300x.site.opened]
    assert len(told) >= 2
    assert set(told) == {"0"}


# --- one MI250X, ROCm 6.3 ----------------------------------------------------------------

DIES = [32, 33]


@scenario
def two_dies(lay: Lay) -> Ran:
    made = lay(mi250x(), DIES)
    for size in DIES:
        made.accept("mi250x", size, CONVOLUTIONS * 4e-3)
    with stranger(made, hip=1):
        done = made.pytest("-n", "2", *AS_IT_IS)
    return Ran(made, done)


def test_an_mi250x_is_two_devices_of_one_key(two_dies):
    assert [d.key for d in two_dies.devices] == ["mi250x", "mi250x"], two_dies.done.stdout
    for device, about in zip(two_dies.devices, two_dies.site.machine.devices, strict=True):
        same_gpu(device, about)
        assert device.peak_tflops["fp16"] == 191.5
    assert [two_dies.status(size) for size in DIES] == [Status.OK, Status.INVALID]
    assert two_dies.why(DIES[1]) == in_words(two_dies.checkout)


def test_each_die_is_pinned_and_watched_on_its_own(two_dies):
    pins = {(one["hip"], one["variables"]["HIP_VISIBLE_DEVICES"]) for one in two_dies.site.opened}
    assert pins == {(0, "0"), (1, "1")}
    seen = [two_dies.first(size).telemetry for size in DIES]
    assert [one and one.source for one in seen] == ["gpu_metrics", "gpu_metrics"]
    assert [one and one.clock_mhz for one in seen] == [1700.0, 1700.0]
    assert [one and one.power_w for one in seen] == [448.0, None]
    assert [device.power_cap_w for device in two_dies.devices] == [560.0, None]


# --- MI300X in CPX and NPS4, by the kernel's files ---------------------------------------

PARTITION = 6


@scenario
def partition(lay: Lay) -> Ran:
    machine = mi300x_cpx(rocm="10.0.0", card={"revision": 9})
    made = lay(machine, [FAST], HIP_VISIBLE_DEVICES="6,3")
    now_s = CONVOLUTIONS * 4e-3
    made.accept("mi300x-cpx-nps4", FAST, now_s, clock_mhz=2100.0)
    made.accept("mi300x", FAST, now_s / 2)
    return Ran(made, made.pytest("-o", "perf_confirm=0"))


def test_a_partition_has_a_key_and_a_baseline_of_its_mode(partition):
    assert partition.done.returncode == 0, partition.done.stdout
    (device,) = partition.devices
    assert device.key == "mi300x-cpx-nps4"
    same_gpu(device, partition.site.machine.devices[PARTITION])
    assert (device.compute_partition, device.memory_partition) == ("CPX", "NPS4")
    assert device.peak_tflops["fp16"] == pytest.approx(1307.4 / 8)
    assert device.peak_gb_per_s == pytest.approx(5300 / 4)
    assert partition.status(FAST) is Status.OK


def test_a_partition_is_pinned_by_the_user_s_own_word(partition):
    opened = partition.site.opened
    assert {(one["hip"], one["variables"]["HIP_VISIBLE_DEVICES"]) for one in opened} == {(6, "6")}


def test_a_partition_shows_its_card_s_sensors(partition):
    seen = partition.first(FAST).telemetry
    assert (seen.source, seen.power_w, seen.temperature_c) == ("gpu_metrics", 600.0, 61.0)
    assert (seen.clock_mhz, seen.utilization) == (2100.0, pytest.approx(0.97))
    assert (seen.throttle, seen.foreign_processes) == ([], [])


def test_env_shows_the_machine_and_that_it_is_fit(partition):
    done = partition.checkout.python("-m", "bench_lib", "env", "--json")
    told = json.loads(done.stdout)
    assert [device["key"] for device in told["devices"]] == ["mi300x-cpx-nps4"] * 2
    figures = [(seen["source"], seen["power_w"]) for seen in told["telemetry"]]
    assert figures == [("gpu_metrics", 139.0)] * 2
    assert [device["accepted"] for device in told["devices"]] == [1, 1]
    environment = told["environment"]
    assert (environment["rocm"], environment["hip"]) == ("10.0.0", "7.15.26333")
    assert environment["driver"] == "amdgpu 6.16.4"
    checks = {check["name"]: check for check in told["checks"]}
    sound = {"visible devices", "/dev/kfd", "/dev/dri/renderD*", "AMD driver"}
    sound |= {"telemetry", "torch", "torchvision", "worker starts"}
    assert {name for name in sound if checks[name]["ok"] is not True} == set(), checks
    # Compilers are this machine's own.
    broken = {check["name"] for check in told["checks"] if check["ok"] is False and check["fatal"]}
    assert broken <= {"triton", "C compiler", "C++ compiler"}
    assert done.returncode == (1 if broken else 0)


# --- the profiler ------------------------------------------------------------------------

APP = """
import torch
a = torch.ones(64, 64, device="cuda")
for _ in range(5):
    b = a @ a
torch.cuda.synchronize()
"""


def test_rocm_s_profiler_runs_an_application_and_its_statistics_are_read(tmp_path):
    site = mi325x(1).lay_out(tmp_path / "machine")
    environ = site.environ()
    profiler = profilers.find(environ)
    assert profiler.tool == "rocprofv3"
    command = profiler.command([sys.executable, "-c", APP], site.folder / "out")
    subprocess.run(command, env=environ, check=True, timeout=LIMIT_S)
    gemm, *others = profiler.results(site.folder / "out").processes[0].kernels
    assert (gemm.name, gemm.calls) == ("at::native::mm", 5)
    assert gemm.total_s / gemm.calls == pytest.approx(site.machine.kernel_us / 1e6)
    assert gemm.total_s > 99 * sum(kernel.total_s for kernel in others)
    assert sum(kernel.calls for kernel in others) == 1
