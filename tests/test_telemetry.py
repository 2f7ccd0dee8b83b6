"""What is seen of a device while a worker measures, and what a broken sampler costs: nothing."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench_lib.model import Hardware, Telemetry
from bench_lib.telemetry import Sample, Sampler, parse, summarise
from bench_lib.telemetry.sources import ThrottleMeter, look_at, nvml_look

CPU = Hardware(vendor="cpu", name="", key="cpu-test-2c")
AMD = Hardware(vendor="amd", name="", key="mi300x", bdf="0000:0c:00.0")
NVIDIA = Hardware(vendor="nvidia", name="", key="h200", uuid="GPU-1")

LONG_S = 60.0
"""Past this a test that waits for another process has failed."""


# --- summarising -------------------------------------------------------------------------


def test_only_samples_inside_the_window_count() -> None:
    """Both ends belong to it."""
    samples = [Sample(t=t, clock_mhz=1000 + t) for t in (0.9, 1.0, 1.5, 2.0, 2.1)]
    found = summarise(samples, 1.0, 2.0)
    assert found is not None
    assert (found.samples, found.clock_mhz, found.clock_min_mhz) == (3, 1001.5, 1001.0)


def test_a_window_without_samples_is_none() -> None:
    """Which is not the same as a device at rest."""
    assert summarise([Sample(t=5.0)], 1.0, 2.0) is None
    assert summarise([], 1.0, 2.0) is None


def test_every_figure_is_summed_up_in_its_own_way() -> None:
    """Clocks by their median and least, power and load by their mean, heat by its highest."""
    samples = [
        Sample(1.0, "x", 2000, 400, 50, 0.5, ("power cap",)),
        Sample(1.1, "x", 1000, 600, 70, 1.0, ("thermal", "power cap")),
        Sample(1.2, "x", 2100, 500, 60, 0.75),
    ]
    assert summarise(samples, 1.0, 2.0) == Telemetry(
        source="x",
        samples=3,
        utilization=0.75,
        clock_mhz=2000,
        clock_min_mhz=1000,
        power_w=500,
        temperature_c=70,
        throttle=["power cap", "thermal"],
    )


def test_figures_that_no_sample_has_are_none() -> None:
    """And one sample that has them is enough."""
    assert summarise([Sample(t=1.0)], 1.0, 2.0) == Telemetry(source="", samples=1)
    some = summarise([Sample(t=1.0), Sample(t=1.1, power_w=300)], 1.0, 2.0)
    assert some is not None
    assert (some.power_w, some.clock_mhz) == (300, None)


@pytest.mark.parametrize(
    ("seen", "own", "foreign"),
    [
        ((10, 11), [10, 12], [11]),
        ((10,), [10], []),
        ((11, 12), [10], []),
        ((11,), [], []),
        ((), [10], []),
    ],
)
def test_processes_are_foreign_only_in_a_list_that_knows_ours(
    seen: tuple[int, ...], own: list[int], foreign: list[int]
) -> None:
    """A list without our own measuring process counts in another pid namespace."""
    found = summarise([Sample(t=1.0), Sample(t=1.5, pids=seen)], 1.0, 2.0, own)
    assert found is not None
    assert found.foreign_processes == foreign


# --- one line ----------------------------------------------------------------------------


def test_a_line_is_a_sample() -> None:
    """Every field as the process prints it."""
    line = {
        "t": 7.5,
        "source": "nvml",
        "clock_mhz": 1980,
        "power_w": 650.5,
        "temperature_c": 61,
        "utilization": 0.97,
        "throttle": ["power cap"],
        "pids": [4, 5],
    }
    assert parse(json.dumps(line)) == Sample(
        7.5, "nvml", 1980.0, 650.5, 61.0, 0.97, ("power cap",), (4, 5)
    )


@pytest.mark.parametrize("value", ["N/A", None, True, [1], float("nan"), float("inf"), 10**400])
def test_a_figure_that_is_no_figure_is_none(value: object) -> None:
    """The other figures of the line stay."""
    found = parse(json.dumps({"t": 1, "clock_mhz": value, "power_w": 5}))
    assert (found.clock_mhz, found.power_w) == (None, 5.0)


@pytest.mark.parametrize("value", ["GPU", None, 7, {"a": 1}, ["x", 3.5]])
def test_lists_that_are_none_are_empty(value: object) -> None:
    """Or hold what of them has the right type."""
    found = parse(json.dumps({"t": 1, "pids": value}))
    assert found.pids == ()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\n",
        "Failed to initialize NVML",
        '{"t": 1',
        "[1, 2]",
        "17",
        '{"clock_mhz": 5}',
        "[" * 9999,
    ],
)
def test_garbage_is_named_and_no_sample(line: str) -> None:
    """Libraries print to whatever is open."""
    with pytest.raises(ValueError, match="sampling process said"):
        parse(line)


def test_an_error_line_is_its_cause() -> None:
    """The process says why it cannot watch."""
    with pytest.raises(ValueError, match="NVML is not here"):
        parse('{"t": 1, "error": "NVML is not here"}')


# --- the sampler -------------------------------------------------------------------------


def eventually(condition: Callable[[], object]) -> None:
    """Wait for another process or thread."""
    limit = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.01)


def stand_in(script: str) -> list[str]:
    """Make a sampling process of a few lines of Python."""
    return [sys.executable, "-c", script]


@pytest.fixture
def ended() -> Iterator[list[Sampler]]:
    """Close the samplers of a test, whatever became of it."""
    samplers: list[Sampler] = []
    yield samplers
    for sampler in samplers:
        sampler.close()


def quiet_window(sampler: Sampler, begin: float, end: float) -> Telemetry | None:
    """Ask for a window without caring for its warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sampler.window(begin, end)


def test_the_cpu_is_watched_by_a_process_of_its_own() -> None:
    """The real one, on whatever this machine is."""
    begin = time.monotonic()
    with Sampler(CPU) as sampler:
        eventually(lambda: sampler.window(begin, time.monotonic()))
        found = sampler.window(begin, time.monotonic())
    assert found is not None
    assert found.source == "proc"
    assert found.foreign_processes == []


def test_a_device_that_cannot_be_watched_is_a_warning_with_the_cause() -> None:
    """No such GPU here, or none at all: NVML's own words."""
    with Sampler(Hardware(vendor="nvidia", name="", key="h200", uuid="GPU-none")) as sampler:
        eventually(lambda: sampler._fault)
        with pytest.warns(RuntimeWarning, match="the device is not watched: NVML"):
            assert sampler.window(0, time.monotonic()) is None


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("raise SystemExit('no such device')", "no such device"),
        ("print('garbage', flush=True); import time; time.sleep(600)", "garbage"),
        ("", "ended"),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\xfe\\x00 ' * 50000)", "said"),
    ],
)
def test_a_sampler_that_fails_is_one_warning_and_no_telemetry(
    ended: list[Sampler], script: str, cause: str
) -> None:
    """And a second window is silent."""
    sampler = Sampler(CPU, stand_in(script))
    ended.append(sampler)
    sampler.start()
    eventually(lambda: sampler._fault)
    with pytest.warns(RuntimeWarning, match=cause):
        assert sampler.window(0, time.monotonic()) is None
    assert sampler.window(0, time.monotonic()) is None


def test_a_sampler_that_cannot_start_is_one_warning_and_no_telemetry(tmp_path: Path) -> None:
    """Its caller is not told otherwise."""
    with Sampler(CPU, [str(tmp_path / "nowhere")]) as sampler:
        with pytest.warns(RuntimeWarning, match="nowhere"):
            assert sampler.window(0, 1) is None
        sampler.close()


def test_a_sampler_that_is_only_starting_is_not_warned_of(ended: list[Sampler]) -> None:
    """A window before the first sample is empty, and nothing is wrong yet."""
    sampler = Sampler(CPU, stand_in("import time; time.sleep(600)"))
    ended.append(sampler)
    sampler.start()
    assert sampler.window(0, time.monotonic()) is None


def test_a_sampler_that_hangs_is_warned_of_and_keeps_what_it_saw(ended: list[Sampler]) -> None:
    """Windows before the hang still have their samples."""
    script = 'print(\'{"t": 5.0, "power_w": 80}\', flush=True); import time; time.sleep(600)'
    sampler = Sampler(CPU, stand_in(script))
    ended.append(sampler)
    sampler.start()
    eventually(lambda: quiet_window(sampler, 4.0, 6.0))
    with pytest.warns(RuntimeWarning, match="no sample since 5"):
        assert sampler.window(100.0, 101.0) is None
    before = sampler.window(4.0, 6.0)
    assert before is not None
    assert before.power_w == 80


def test_garbage_between_samples_does_not_matter(ended: list[Sampler]) -> None:
    """A library's banner, then samples."""
    script = "print('banner'); print('{\"t\": 5.0}'); print('{\"t\": 5.1}', flush=True)"
    sampler = Sampler(CPU, stand_in(f"{script}; import time; time.sleep(600)"))
    ended.append(sampler)
    sampler.start()
    eventually(lambda: len(sampler._samples) == 2)
    found = sampler.window(5.0, 5.1)
    assert found is not None
    assert found.samples == 2


def test_closing_ends_a_process_that_does_not_listen() -> None:
    """It ignores its standard input and the polite signals."""
    script = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('{"t": 1.0}', flush=True)
time.sleep(600)
"""
    sampler = Sampler(CPU, stand_in(script))
    sampler.start()
    process = sampler._process
    assert process is not None
    eventually(lambda: sampler._samples)
    sampler.close()
    assert process.returncode is not None
    sampler.close()


def test_the_process_ends_when_its_parent_is_gone() -> None:
    """Which closes its standard input, however the parent ended."""
    command = [sys.executable, "-m", "bench_lib.telemetry", json.dumps(asdict(CPU))]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert parse(process.stdout.readline()).source == "proc"
        process.stdin.close()
        assert process.wait(timeout=LONG_S) == 0
    finally:
        process.kill()
        process.stdout.close()


# --- NVIDIA ------------------------------------------------------------------------------


class NVMLError(Exception):
    """NVML's own kind of error."""


def fake_nvml(**changes: Any) -> SimpleNamespace:
    """Make an NVML with one GPU at work."""
    working = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetHandleByPciBusId": lambda bdf: bdf,
        "nvmlDeviceGetPowerUsage": lambda _: 512_500,
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=98, memory=40),
        "nvmlDeviceGetClockInfo": lambda _, kind: {1: 1755}[kind],
        "nvmlDeviceGetTemperature": lambda _, kind: {0: 66}[kind],
        "nvmlDeviceGetCurrentClocksEventReasons": lambda _: 0x44,
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [SimpleNamespace(pid=p) for p in (7, 8)],
    }
    return SimpleNamespace(**{**working, **changes})


def refuse(*_: object) -> None:
    """Answer as NVML does for a figure that a GPU does not have."""
    raise NVMLError("Not Supported")


def test_nvml_s_figures_are_in_our_units() -> None:
    """Watts, not milliwatts; a fraction, not percent; reasons by name."""
    look = nvml_look(NVIDIA, fake_nvml())
    assert look(with_pids=True) == {
        "source": "nvml",
        "clock_mhz": 1755,
        "power_w": 512.5,
        "temperature_c": 66,
        "utilization": 0.98,
        "throttle": ["power cap", "thermal, by hardware"],
        "pids": [7, 8],
    }
    assert "pids" not in look(with_pids=False)


@pytest.mark.parametrize("reasons", [0x0, 0x1, 0x2, 0x3])
def test_idle_and_set_clocks_are_no_throttling(reasons: int) -> None:
    """Somebody who locks the clocks wants them so."""
    look = nvml_look(NVIDIA, fake_nvml(nvmlDeviceGetCurrentClocksEventReasons=lambda _: reasons))
    assert look(with_pids=False)["throttle"] == []


def test_an_older_nvml_is_asked_by_the_older_name() -> None:
    """Clocks-event reasons were called throttle reasons."""
    nvml = fake_nvml(nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x8)
    del nvml.nvmlDeviceGetCurrentClocksEventReasons
    assert nvml_look(NVIDIA, nvml)(with_pids=False)["throttle"] == ["hardware slowdown"]


def test_figures_that_nvml_refuses_are_none_one_by_one() -> None:
    """A virtual GPU has no power sensor and still has a clock."""
    names = ("PowerUsage", "UtilizationRates", "Temperature", "ComputeRunningProcesses")
    refused = {f"nvmlDeviceGet{name}": refuse for name in names}
    found = nvml_look(NVIDIA, fake_nvml(**refused))(with_pids=True)
    assert (found["clock_mhz"], found["power_w"], found["utilization"]) == (1755, None, None)
    assert found["pids"] == []


# --- AMD ---------------------------------------------------------------------------------


@pytest.fixture
def card(tmp_path: Path) -> Callable[..., None]:
    """Write files of the card at 0000:0c:00.0, and of the system around it."""

    def write(**files: str) -> None:
        pci = tmp_path / "sys/bus/pci/devices/0000:0c:00.0"
        (pci / "hwmon/hwmon4").mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            folder = pci if name.startswith("gpu_") else pci / "hwmon/hwmon4"
            (folder / name).write_text(content)

    return write


def test_an_amd_card_is_read_from_its_files(tmp_path: Path, card: Callable[..., None]) -> None:
    """Hertz, microwatts and millidegrees in our units; the junction before the edge."""
    card(
        gpu_busy_percent="97\n",
        freq1_input="2100000000\n",
        power1_average="641000000\n",
        temp1_label="edge\n",
        temp1_input="41000\n",
        temp2_label="junction\n",
        temp2_input="63000\n",
    )
    assert look_at(AMD, tmp_path)(with_pids=False) == {
        "source": "amdgpu",
        "clock_mhz": 2100.0,
        "power_w": 641.0,
        "temperature_c": 63.0,
        "utilization": 0.97,
        "throttle": [],
    }


def test_what_an_amd_card_lacks_is_looked_for_elsewhere(
    tmp_path: Path, card: Callable[..., None]
) -> None:
    """MI300 has a present power and no average, older cards an edge sensor alone."""
    card(power1_input="300000000\n", temp1_label="edge\n", temp1_input="41000\n")
    found = look_at(AMD, tmp_path)(with_pids=False)
    assert (found["power_w"], found["temperature_c"], found["clock_mhz"]) == (300.0, 41.0, None)


@pytest.mark.parametrize("content", ["N/A\n", "", "-1\n", "0x10\n"])
def test_what_an_amd_card_does_not_say_is_none(
    tmp_path: Path, card: Callable[..., None], content: str
) -> None:
    """Only partition 0 of a card has sensors; the others print N/A."""
    card(
        gpu_busy_percent=content,
        freq1_input=content,
        power1_average=content,
        temp2_label="junction\n",
        temp2_input=content,
    )
    found = look_at(AMD, tmp_path)(with_pids=False)
    figures = ("clock_mhz", "power_w", "temperature_c", "utilization")
    assert [found[name] for name in figures] == [None] * 4


def test_a_second_die_without_a_sensor_draws_no_power_that_is_known(
    tmp_path: Path, card: Callable[..., None]
) -> None:
    """It says 0 W."""
    card(power1_average="0\n")
    assert look_at(AMD, tmp_path)(with_pids=False)["power_w"] is None


def test_a_partition_reads_the_card_it_is_on(tmp_path: Path, card: Callable[..., None]) -> None:
    """Its own function is not on the bus."""
    card(gpu_busy_percent="50\n")
    partition = Hardware(vendor="amd", name="", key="mi300x-cpx-nps4", bdf="0000:0c:00.5")
    assert look_at(partition, tmp_path)(with_pids=False)["utilization"] == 0.5


def test_a_card_that_is_gone_is_all_none(tmp_path: Path) -> None:
    """And no exception."""
    found = look_at(Hardware(vendor="amd", name="", key="amd-gpu"), tmp_path)(with_pids=True)
    assert {value for name, value in found.items() if name not in ("source", "throttle")} == {None}


def test_processes_on_an_amd_card_are_those_with_memory_on_it(tmp_path: Path) -> None:
    """KFD lists every process with every device; a partition is a device of its own."""
    for number, partition in ((1, 0), (2, 1)):
        node = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{number}"
        node.mkdir(parents=True)
        location = 0x0C << 8 | partition << 28
        (node / "properties").write_text(f"simd_count 8\nlocation_id {location}\ndomain 0\ntorn")
        (node / "gpu_id").write_text(f"{5000 + number}\n")
    use = {"100": (4096, 0), "101": (0, 8192), "102": (1, 1), "self": (9, 9)}
    for pid, amounts in use.items():
        folder = tmp_path / f"sys/class/kfd/kfd/proc/{pid}"
        folder.mkdir(parents=True)
        for number, amount in enumerate(amounts, start=1):
            (folder / f"vram_{5000 + number}").write_text(f"{amount}\n")
    assert sorted(look_at(AMD, tmp_path)(with_pids=True)["pids"]) == [100, 102]


def metrics(revision: int, *counters: int, size: int = 120, flags: int = 0) -> bytes:
    """Lay out a gpu_metrics table with the counters or flags that its revision has."""
    table = bytearray(size)
    struct.pack_into("<HBB", table, 0, size, 1, revision)
    if counters:
        struct.pack_into("<5I", table, {6: 36}.get(revision, 44), *counters)
    else:
        struct.pack_into("<Q", table, 112, flags)
    return bytes(table)


@pytest.mark.parametrize("revision", [6, 7, 8])
def test_counters_that_grow_are_reasons(revision: int) -> None:
    """The first look knows no growth, and later ones only what was since."""
    meter = ThrottleMeter()
    assert meter.reasons(metrics(revision, 9, 9, 9, 9, 9)) == []
    assert meter.reasons(metrics(revision, 9, 12, 9, 9, 9)) == ["power cap"]
    assert meter.reasons(metrics(revision, 10, 12, 10, 10, 10)) == [
        "prochot",
        "thermal",
        "thermal, regulator",
        "thermal, memory",
    ]
    assert meter.reasons(metrics(revision, 10, 12, 10, 10, 10)) == []


@pytest.mark.parametrize(
    ("flags", "reasons"),
    [
        (0, []),
        (1 << 0, ["power cap"]),
        (1 << 17, ["current limit"]),
        (1 << 32 | 1 << 3, ["power cap", "thermal"]),
        (1 << 57, []),
        (2**64 - 1, []),
    ],
)
def test_flags_of_older_cards_are_reasons(flags: int, reasons: list[str]) -> None:
    """Sixteen bits a kind; all of them means that the firmware does not say."""
    assert ThrottleMeter().reasons(metrics(3, flags=flags)) == reasons


@pytest.mark.parametrize(
    "table",
    [
        b"",
        b"\x00",
        metrics(6, 1, 2, 3, 4, 5)[:50],
        metrics(5),
        metrics(9),
        metrics(3, size=120)[:100],
    ],
)
def test_a_torn_or_unknown_table_has_no_reasons(table: bytes) -> None:
    """Layouts are read only where they are known."""
    meter = ThrottleMeter()
    assert meter.reasons(table) == []
    assert meter.reasons(table) == []


# --- the CPU -----------------------------------------------------------------------------


def test_the_load_of_a_cpu_is_what_passed_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the CPUs that this process may use, waiting for a disk counted as idle."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2})
    stat = tmp_path / "proc/stat"
    stat.parent.mkdir()
    look = look_at(CPU, tmp_path)
    stat.write_text("cpu  9 9 9 9 9\ncpu1 10 0 0 80 0 0 0 0\ncpu2 10 0 0 80 0 0 0 0\n\nintr 5\n")
    assert look(with_pids=False)["utilization"] is None
    stat.write_text("cpu0 999 0 0 0 0\ncpu1 40 0 0 90 0 0 0 0\ncpu2 10 0 0 110 10 0 0 0\n")
    assert look(with_pids=True)["utilization"] == pytest.approx(30 / 80)
    assert look(with_pids=True)["utilization"] is None


def test_the_clock_of_a_cpu_is_the_mean_of_a_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kilohertz in the file; a virtual machine has none."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    for number, content in enumerate(["3000000\n", "2000000\n", "<unknown>\n"]):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{number}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text(content)
    assert look_at(CPU, tmp_path)(with_pids=False)["clock_mhz"] == pytest.approx(2500)


@pytest.mark.parametrize("content", ["", "cpu0 1 2\n", "cpu0 a b c d e\n", "\n\n"])
def test_a_torn_proc_stat_is_no_load(tmp_path: Path, content: str) -> None:
    """Nor is one that is missing."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(content)
    look = look_at(CPU, tmp_path)
    look(with_pids=False)
    assert look(with_pids=False) == {"source": "proc", "utilization": None, "clock_mhz": None}
