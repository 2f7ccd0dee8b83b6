"""What each way of looking at a device makes of what it is told, and which one is chosen."""

from __future__ import annotations

import os
import shutil
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from standins.rocm import gpu_metrics

from bench_lib import backends
from bench_lib.backends import amd, cpu
from bench_lib.backends.amd import metrics, package, sensors
from bench_lib.backends.amd.sensors import partition, places
from bench_lib.backends.looks import FIGURES, NothingToldError, Source
from bench_lib.backends.nvidia import devices as nvml
from bench_lib.backends.tool import ToolError
from bench_lib.model import Hardware

CPU = Hardware(vendor="cpu", name="", key="cpu-test-2c")
AMD = Hardware(vendor="amd", name="", key="mi300x", bdf="0000:0c:00.0")
PARTITION = Hardware(
    vendor="amd", name="", key="mi300x-cpx", bdf="0000:0c:00.2", compute_partition="CPX"
)
NVIDIA = Hardware(vendor="nvidia", name="", key="h200", uuid="GPU-1")


def unknown(seen: dict[str, Any]) -> bool:
    return all(seen.get(name) is None for name in FIGURES)


# --- NVIDIA ------------------------------------------------------------------------------


class NVMLError(Exception):
    value = 3  # not supported


def fake_nvml(**changes: Any) -> SimpleNamespace:
    working = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_PERF_POLICY_THERMAL": 1,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetHandleByPciBusId": lambda bdf: bdf,
        "nvmlDeviceGetPowerUsage": lambda _: 512_500,
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=98, memory=40),
        "nvmlDeviceGetClockInfo": lambda _, kind: {1: 1755, 2: 3190}[kind],
        "nvmlDeviceGetTemperature": lambda _, kind: {0: 66}[kind],
        "nvmlDeviceGetCurrentClocksEventReasons": lambda _: 0x44,
        "nvmlDeviceGetViolationStatus": lambda _, policy: {
            1: SimpleNamespace(violationTime=4_000_000, referenceTime=90_000)
        }[policy],
        "nvmlDeviceGetProcessUtilization": lambda _, since: [
            SimpleNamespace(pid=99999997, smUtil=40, timeStamp=since + 5),
            SimpleNamespace(pid=99999998, smUtil=0, timeStamp=since + 9),
        ],
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [
            SimpleNamespace(pid=99999997, usedGpuMemory=300 * 2**20),
            SimpleNamespace(pid=99999998, usedGpuMemory=None),
        ],
    }
    return SimpleNamespace(**{**working, **changes})


def refuse(*_: object) -> None:
    raise NVMLError("Not Supported")


def test_nvml_s_figures_are_in_our_units():
    source = nvml.source(NVIDIA, fake_nvml())
    assert source.name == "nvml"
    assert source.look(with_pids=True) == {
        "clock_mhz": 1755,
        "memory_clock_mhz": 3190,
        "power_w": 512.5,
        "temperature_c": 66,
        "utilization": 0.98,
        "throttle": ["power cap", "thermal, by hardware"],
        "counters": {"thermal": 4_000_000},
        "ticks": 90_000_000,
        "pids": [99999997, 99999998],
        "names": {99999997: "unknown, 300 MiB", 99999998: "unknown"},
        "busy": [99999997],
    }
    assert not source.look(with_pids=False).keys() & {"pids", "counters"}


def test_who_has_run_something_is_asked_from_the_last_answer_on():
    asked = []

    def busy(_handle: object, since: int) -> list[SimpleNamespace]:
        asked.append(since)
        return [SimpleNamespace(pid=7, smUtil=1, timeStamp=since + 10)]

    source = nvml.source(NVIDIA, fake_nvml(nvmlDeviceGetProcessUtilization=busy))
    assert [source.look(with_pids=True)["busy"] for _ in range(3)] == [[7]] * 3
    assert asked == [0, 10, 20]


def test_nobody_is_asked_for_where_all_processes_are_ours():
    ours = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)]
    running = {"nvmlDeviceGetComputeRunningProcesses": lambda _: ours}
    asked = fake_nvml(**running, nvmlDeviceGetProcessUtilization=lambda *_: pytest.fail("asked"))
    source = nvml.source(NVIDIA, asked, os.getppid())
    assert source.look(with_pids=True)["busy"] is None


@pytest.mark.parametrize(("error", "busy"), [(6, []), (3, None)])
def test_nobody_having_run_anything_is_an_error_of_nvml(error, busy):
    def refusing(*_: object) -> None:
        raise type("Refusal", (NVMLError,), {"value": error})

    source = nvml.source(NVIDIA, fake_nvml(nvmlDeviceGetProcessUtilization=refusing))
    assert source.look(with_pids=True)["busy"] == busy


@pytest.mark.parametrize("reasons", [0x0, 0x1, 0x2, 0x3])
def test_idle_and_set_clocks_are_no_throttling(reasons):
    source = nvml.source(
        NVIDIA, fake_nvml(nvmlDeviceGetCurrentClocksEventReasons=lambda _: reasons)
    )
    assert source.look(with_pids=False)["throttle"] == []


def test_an_older_nvml_is_asked_by_the_older_name():
    older = fake_nvml(nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x8)
    del older.nvmlDeviceGetCurrentClocksEventReasons
    assert nvml.source(NVIDIA, older).look(with_pids=False)["throttle"] == ["hardware slowdown"]


def test_figures_that_nvml_refuses_are_none_one_by_one():
    names = ("PowerUsage", "UtilizationRates", "Temperature", "ComputeRunningProcesses")
    refused = {f"nvmlDeviceGet{name}": refuse for name in (*names, "ViolationStatus")}
    found = nvml.source(NVIDIA, fake_nvml(**refused)).look(with_pids=True)
    assert (found["clock_mhz"], found["power_w"], found["utilization"]) == (1755, None, None)
    assert not found.keys() & {"pids", "counters"}


# --- AMD: the kernel's files -------------------------------------------------------------


@pytest.fixture
def card(tmp_path):
    def write(**files: str | bytes) -> None:
        pci = tmp_path / "sys/bus/pci/devices/0000:0c:00.0"
        (pci / "hwmon/hwmon4").mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            folder = pci if name.startswith("gpu_") else pci / "hwmon/hwmon4"
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def kernel_look(root: Path, device: Hardware = AMD, *, with_pids: bool = False) -> dict[str, Any]:
    return sensors.source(device, root).look(with_pids=with_pids)


def test_an_amd_card_is_read_from_its_files(tmp_path, card):
    card(
        gpu_busy_percent="97\n",
        freq1_input="2100000000\n",
        freq2_input="1300000000\n",
        power1_average="641000000\n",
        temp1_label="edge\n",
        temp1_input="41000\n",
        temp2_label="junction\n",
        temp2_input="63000\n",
    )
    assert kernel_look(tmp_path) == {
        "clock_mhz": 2100.0,
        "memory_clock_mhz": 1300.0,
        "power_w": 641.0,
        "temperature_c": 63.0,
        "utilization": 0.97,
    }


@pytest.mark.parametrize("content", ["N/A\n", "", "-1\n", "0x10\n"])
def test_what_an_amd_card_does_not_say_is_none(tmp_path, card, content):
    card(
        gpu_busy_percent=content,
        freq1_input=content,
        freq2_input=content,
        power1_average=content,
        temp2_label="junction\n",
        temp2_input=content,
    )
    assert unknown(kernel_look(tmp_path))


@pytest.mark.parametrize("number", [0, 2])
def test_a_partition_reads_the_power_and_heat_of_its_card(tmp_path, card, number):
    card(
        gpu_busy_percent="50\n",
        freq1_input="2100000000\n",
        freq2_input="1300000000\n",
        power1_input="300000000\n",
        temp1_label="junction\n",
        temp1_input="41000\n",
    )
    found = kernel_look(tmp_path, replace(PARTITION, bdf=f"0000:0c:00.{number}"))
    assert [found[name] for name in FIGURES] == [None, 1300, 300, 41, None]


@pytest.mark.parametrize(("mode", "busy"), [("CPX", 0.5), ("QPX", 0.8), ("DPX", None)])
def test_a_partition_s_load_is_that_of_its_own_dies_under_revision_1_9(mode, busy):
    dies = [10, 30, 50, 70, 75, 85, 90, 95]
    device = replace(PARTITION, compute_partition=mode)
    seen = sensors.converted(metrics.read(table(9, gfx_busy_inst=dies)), partition(device))
    assert seen["utilization"] == busy


def test_processes_on_an_amd_card_are_those_with_memory_on_it(tmp_path):
    for number, function in ((1, 0), (2, 1)):
        node = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{number}"
        node.mkdir(parents=True)
        location = 0x0C << 8 | function << 28
        (node / "properties").write_text(f"simd_count 8\nlocation_id {location}\ndomain 0\ntorn")
        (node / "gpu_id").write_text(f"{5000 + number}\n")
    use = {"100": (2**21, 0), "101": (0, 8192), "102": (2**20, 1), "self": (9, 9)}
    for pid, amounts in use.items():
        folder = tmp_path / f"sys/class/kfd/kfd/proc/{pid}"
        folder.mkdir(parents=True)
        for number, amount in enumerate(amounts, start=1):
            (folder / f"vram_{5000 + number}").write_text(f"{amount}\n")
    (tmp_path / "proc/100").mkdir(parents=True)
    (tmp_path / "proc/100/comm").write_text("train\n")
    found = kernel_look(tmp_path, with_pids=True)
    assert sorted(found["pids"]) == [100, 102]
    assert found["names"] == {100: "train, 2 MiB", 102: "unknown, 1 MiB"}


def table(revision: int, **figures: Any) -> bytes:
    return gpu_metrics.table(revision, figures)


def counters(*counts: int) -> dict[str, int]:
    return dict(zip(metrics.COUNTERS, counts, strict=True))


def throttling(content: bytes) -> dict[str, Any]:
    seen = sensors.converted(metrics.read(content), None)
    return {name: seen[name] for name in ("ticks", "counters", "throttle") if name in seen}


@pytest.mark.parametrize("revision", [6, 7, 8, 9])
def test_a_table_s_counters_come_after_their_clock(revision):
    assert throttling(table(revision, **counters(7000, 1, 2, 3, 4, 5))) == {
        "ticks": 7000,
        "counters": {
            "prochot": 1,
            "power cap": 2,
            "thermal": 3,
            "thermal, regulator": 4,
            "thermal, memory": 5,
        },
    }


@pytest.mark.parametrize("revision", [3, 4, 5, 6, 7, 8, 9])
def test_every_revision_tells_all_figures_in_one_read(tmp_path, card, revision):
    power = "average_socket_power" if revision == 3 else "curr_socket_power"
    clocks = 1262 if revision == 3 else (1306, 1290, 1262, 1301, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF)
    figures: dict[str, Any] = {
        power: 641,
        "temperature_hotspot": 63,
        "average_gfx_activity": 97,
        "current_gfxclk": clocks,
        "current_uclk": 1300,
    }
    card(gpu_metrics=table(revision, **figures))
    source = sensors.source(AMD, tmp_path)
    found = source.look(with_pids=False)
    assert (source.name, [found[name] for name in FIGURES]) == (
        "gpu_metrics",
        [1262, 1300, 641, 63, 0.97],
    )
    dies = {"XCD 0": 1306, "XCD 1": 1290, "XCD 2": 1262, "XCD 3": 1301}
    assert found.get("dies_mhz") == (None if revision == 3 else dies)


def test_counters_that_are_not_supported_or_repeat_their_clock_are_not_there():
    clock = 5_123_456
    assert throttling(table(6, **counters(clock, 0, clock, clock, 0, clock))) == {
        "ticks": clock,
        "counters": {"prochot": 0, "thermal, regulator": 0},
    }
    none = 2**32 - 1
    assert throttling(table(7, **counters(none, 1, none, none, none, none))) == {
        "ticks": None,
        "counters": {"prochot": 1},
    }


FLAGS = [
    (0, []),
    (1 << 0, ["power cap"]),
    (1 << 17, ["current limit"]),
    (1 << 32 | 1 << 3, ["power cap", "thermal"]),
    (1 << 57, []),
    (1 << 36, []),
    (1 << 36 | 1 << 34, ["thermal"]),
    (2**64 - 1, []),
]


@pytest.mark.parametrize(("flags", "reasons"), FLAGS)
def test_flags_of_older_cards_are_reasons(flags, reasons):
    assert throttling(table(3, indep_throttle_status=flags)).get("throttle", []) == reasons


@pytest.mark.parametrize(
    "content",
    [
        b"",
        table(6, **counters(1, 2, 3, 4, 5, 6))[:50],
        struct.pack("<HBB", 1728, 1, 6) + bytes(1724),  # the first 1.6, of Linux 6.12
        table(9, accumulation_counter=7)[:12],
        struct.pack("<HBB", 1024, 1, 10) + bytes(1020),
    ],
)
def test_a_torn_or_unknown_table_tells_nothing(content):
    assert throttling(content) == {}


# --- AMD: ROCm's Python package ----------------------------------------------------------


class FakeAmdSmi:
    bdfs = ("0000:0b:00.0", "0000:0C:00.0")
    asked: list[str]

    def __init__(self, **answers: Any) -> None:
        self.asked = []
        self.answers = {
            "gpu_metrics_info": {
                "current_gfxclk": 1950,
                "current_uclk": 1250,
                "current_socket_power": 690,
                "average_socket_power": "N/A",
                "temperature_hotspot": 71,
                "temperature_edge": "N/A",
                "average_gfx_activity": 93,
                "accumulation_counter": 5000,
                "prochot_residency_acc": 0,
                "ppt_residency_acc": 800,
                "socket_thm_residency_acc": 3,
                "vr_thm_residency_acc": "N/A",
                "hbm_thm_residency_acc": 1,
                "indep_throttle_status": "N/A",
            },
            "gpu_process_list": [],
            **answers,
        }

    def amdsmi_init(self) -> None:
        print("a banner")  # noqa: T201 - as the real one does
        os.write(2, b"a warning\n")

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(len(self.bdfs)))

    def amdsmi_get_gpu_device_bdf(self, handle: int) -> str:
        return self.bdfs[handle]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        what = name.removeprefix("amdsmi_get_")
        if what not in self.answers:
            raise AttributeError(name)

        def answer(handle: int, *arguments: Any) -> Any:
            assert handle == len(self.bdfs) - 1
            self.asked.append(what)
            found = self.answers[what]
            if isinstance(found, Exception):
                raise found
            return found

        return answer


@pytest.fixture
def install(monkeypatch):
    monkeypatch.delenv("ROCM_PATH", raising=False)

    def put(smi: Any) -> None:
        monkeypatch.setitem(sys.modules, "amdsmi", smi)

    return put


def package_look(root: Path, device: Hardware = AMD, *, with_pids: bool = False) -> dict[str, Any]:
    return package.source(device, root).look(with_pids=with_pids)


def test_the_package_s_figures_are_in_our_units(tmp_path, install, capfd):
    smi = FakeAmdSmi()
    install(smi)
    assert package_look(tmp_path) == {
        "clock_mhz": 1950,
        "memory_clock_mhz": 1250,
        "power_w": 690,
        "temperature_c": 71,
        "utilization": 0.93,
        "counters": {"prochot": 0, "power cap": 800, "thermal": 3, "thermal, memory": 1},
        "ticks": 5000,
    }
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("flags", "reasons"), [(1 << 33, ["thermal"]), (True, ["throttled"]), ("N/A", []), (0, [])]
)
def test_an_mi200_tells_reasons_by_its_flags(tmp_path, install, flags, reasons):
    install(FakeAmdSmi(gpu_metrics_info={"indep_throttle_status": flags}))
    assert package_look(tmp_path).get("throttle", []) == reasons


@pytest.mark.parametrize(
    "answer", ["N/A", None, RuntimeError("no permission"), [1, 2], 2**32 - 1, 2**16 - 1]
)
def test_what_the_package_does_not_tell_is_none(tmp_path, install, answer):
    install(FakeAmdSmi(gpu_metrics_info=answer, gpu_process_list=answer))
    found = package_look(tmp_path, with_pids=True)
    assert unknown(found)
    assert not found.get("pids")
    names = ("current_gfxclk", "current_socket_power", "temperature_hotspot", "current_uclk")
    install(FakeAmdSmi(gpu_metrics_info=dict.fromkeys(names, answer)))
    found = package_look(tmp_path)
    assert unknown(found)
    assert not found.get("counters")


def test_the_package_s_processes_are_those_with_memory_on_the_device(tmp_path, install):
    listed = [
        {"name": "train", "pid": 99999990, "memory_usage": {"vram_mem": 6 * 2**20}},
        {"name": "N/A", "pid": 99999991, "memory_usage": {"vram_mem": "N/A"}},
        {"name": "other", "pid": 99999992, "memory_usage": {"vram_mem": 0}},
        {"name": "torn"},
    ]
    install(FakeAmdSmi(gpu_process_list=listed))
    found = package_look(tmp_path, with_pids=True)
    assert found["pids"] == [99999990, 99999991]
    assert found["names"] == {99999990: "train, 6 MiB", 99999991: "unknown"}


class Partitioned(FakeAmdSmi):
    bdfs = ("0000:0c:00.0", "0000:0c:00.1", "0000:0c:00.2", "0000:0c:00.3")
    processes = ([], [], [{"name": "train", "pid": 5, "memory_usage": {"vram_mem": 2**20}}], [])

    def __getattr__(self, name: str) -> Callable[..., Any]:
        what = name.removeprefix("amdsmi_get_")

        def answer(handle: int, *arguments: Any) -> Any:
            if what == "gpu_process_list":
                return self.processes[handle]
            if handle:
                raise RuntimeError("not supported")
            found = FakeAmdSmi.__getattr__(self, name)(3, *arguments)
            if what == "gpu_metrics_info":
                busy = [[n, "N/A", n + 2] for n in (10, 30, 50, 70)]
                clocks = [1500, 1600, 1700, 0xFFFF, 1800, 1900, 2000, 2100]
                return {**found, "xcp_stats.gfx_busy_inst": busy, "current_gfxclks": clocks}
            return found

        return answer


QUARTER = replace(PARTITION, compute_partition="QPX")


def test_a_partition_without_sensors_has_its_card_s(tmp_path, install):
    install(Partitioned())
    found = package_look(tmp_path, QUARTER, with_pids=True)
    assert (found["clock_mhz"], found["power_w"], found["temperature_c"]) == (1800, 690, 71)
    assert (found["utilization"], found["pids"]) == (pytest.approx(0.51), [5])
    assert (found["counters"]["power cap"], found["ticks"]) == (800, 5000)
    first = package_look(tmp_path, replace(QUARTER, bdf="0000:0c:00.0"))
    assert (first["clock_mhz"], first["utilization"]) == (1500, pytest.approx(0.11))
    second = package_look(tmp_path, replace(QUARTER, bdf="0000:0c:00.1"))
    assert second["clock_mhz"] == 1700


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("nothing", ["N/A", None, [], ["N/A"] * 8, 1950])
def test_a_partition_has_no_clock_or_load_where_only_its_card_s_is_known(
    tmp_path, install, number, nothing
):
    table = {"current_gfxclks": nothing, "xcp_stats.gfx_busy_inst": nothing}

    class Silent(Partitioned):
        def __getattr__(self, name: str) -> Callable[..., Any]:
            if name == "amdsmi_get_gpu_metrics_info":
                return lambda _: table
            return super().__getattr__(name)

    install(Silent())
    found = package_look(tmp_path, replace(QUARTER, bdf=f"0000:0c:00.{number}"))
    assert [found[name] for name in FIGURES] == [None, None, None, None, None]


@pytest.mark.parametrize(
    ("broken", "cause"),
    [
        ({"amdsmi_init": lambda: {}["a"]}, "cannot start: KeyError: 'a'"),
        ({"amdsmi_init": lambda: sys.exit("no driver")}, "cannot start: SystemExit: no driver"),
        ({}, "AttributeError"),
        (
            {"amdsmi_init": lambda: None, "amdsmi_get_processor_handles": list},
            "no GPU at 0000:0c:00.0; found none",
        ),
    ],
)
def test_a_package_that_cannot_start_is_not_the_way(tmp_path, install, broken, cause):
    install(SimpleNamespace(**broken))
    with pytest.raises(NothingToldError, match=cause):
        package.source(AMD, tmp_path)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    monkeypatch.delenv("ROCM_PATH", raising=False)
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    registry, rocm = tmp_path / "site", tmp_path / "opt/rocm/share/amd_smi"
    monkeypatch.syspath_prepend(str(registry))

    def write(*, registry_s: str | None = None, rocm_s: str | None = None) -> None:
        for folder, code in ((registry, registry_s), (rocm, rocm_s)):
            if code is not None:
                (folder / "amdsmi").mkdir(parents=True)
                (folder / "amdsmi/__init__.py").write_text(code)

    yield write
    sys.modules.pop("amdsmi", None)


def test_rocm_s_own_package_comes_before_the_registry_s_if_it_can_be_imported(tmp_path, packages):
    packages(registry_s="whose = 'registry'", rocm_s="import nowhere_at_all")
    assert package.load(tmp_path).whose == "registry"
    sys.modules.pop("amdsmi")
    shutil.rmtree(tmp_path / "site")
    shutil.rmtree(tmp_path / "opt")
    packages(registry_s="whose = 'registry'", rocm_s="whose = 'rocm'")
    before = list(sys.path)
    assert package.load(tmp_path).whose == "rocm"
    assert sys.path == before


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("print('cannot find the library'); raise KeyError('libamd_smi.so')", "KeyError"),
        ("raise SystemExit(1)", "SystemExit: 1"),
        ("def torn(", "SyntaxError"),
    ],
)
def test_a_package_that_cannot_be_imported_is_its_cause(tmp_path, packages, capfd, code, cause):
    packages(registry_s=code)
    with pytest.raises(NothingToldError, match=cause):
        package.source(AMD, tmp_path)
    assert capfd.readouterr() == ("", "")


# --- AMD: partitions ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bdf", "listed", "found"),
    [
        ("0000:0c:00.0", ["0000:0b:00.0", "0000:0C:00.0"], (1, 1)),
        ("0000:0c:00.1", ["0000:0c:00.0", "0000:0c:00.1"], (1, 0)),
        ("0000:0c:00.1", ["0000:0b:00.0", "0000:0c:00.0", "0000:0c:00.0"], (2, 1)),
        ("0000:0c:00.3", ["0000:0c:00.0", None], (0, 0)),
    ],
)
def test_a_partition_has_a_place_of_its_own_or_its_card_s(bdf, listed, found):
    assert places(replace(AMD, bdf=bdf), listed) == found


@pytest.mark.parametrize(
    ("mode", "number", "clock"),
    [
        ("CPX", 0, 1300),
        ("CPX", 5, 1800),
        ("CPX", 6, None),
        ("TPX", 1, 1500),
        ("DPX", 1, 1600),
        ("QPX", 0, None),
        (None, 1, None),
        ("SPX", 1, 1300),
        (None, 0, 1300),
    ],
)
def test_a_partition_s_clock_is_that_of_its_own_dies(mode, number, clock):
    device = replace(PARTITION, bdf=f"0000:0c:00.{number}", compute_partition=mode)
    dies = [1300, 1400, 1500, 1600, 1700, 1800, None, None]
    assert sensors.paced(dies, partition(device))["clock_mhz"] == clock


# --- the choice --------------------------------------------------------------------------


def way(name: str, seen: dict[str, Any] | Exception) -> Callable[[Hardware, Path], Source]:
    def source(_device: Hardware, _root: Path) -> Source:
        if isinstance(seen, Exception):
            raise seen
        return Source(name, lambda with_pids: dict(seen))

    return source


def choose(root: Path) -> Source:
    return backends.of(AMD).telemetry(AMD, root, 0)


@pytest.mark.parametrize(
    ("ways", "chosen"),
    [
        ([{"power_w": 1.0}, {"clock_mhz": 1.0}], "0"),
        ([KeyError("x"), {"utilization": 0.0}, {"clock_mhz": 0.0}], "2"),
        ([{"utilization": 0.0}, {}, ToolError("hangs")], "0"),
        ([{}, {"temperature_c": 50.0}, {"utilization": 0.5}], "1"),
    ],
)
def test_the_first_way_that_tells_a_clock_or_a_power_is_chosen(monkeypatch, ways, chosen):
    named = {str(n): way(str(n), seen) for n, seen in enumerate(ways)}
    monkeypatch.setattr(amd, "WAYS", named)
    assert choose(Path()).name == chosen


def test_the_package_is_asked_where_the_kernel_tells_no_clock_and_no_power(tmp_path, card, install):
    install(FakeAmdSmi())
    card(freq1_input="2000000000\n")
    chosen = [choose(tmp_path).name]
    card(freq1_input="N/A\n")
    chosen.append(choose(tmp_path).name)
    assert chosen == ["amdgpu", "amdsmi"]
    install(SimpleNamespace())
    causes = (
        "the kernel's files: it reports neither a clock nor a power; the amdsmi package: "
        "cannot start"
    )
    with pytest.raises(NothingToldError, match=causes):
        choose(tmp_path)


# --- the CPU -----------------------------------------------------------------------------


def test_the_load_of_a_cpu_is_what_passed_between_two_looks(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2})
    stat = tmp_path / "proc/stat"
    stat.parent.mkdir()
    source = backends.of(CPU).telemetry(CPU, tmp_path, 0)
    stat.write_text("cpu  9 9 9 9 9\ncpu1 10 0 0 80 0 0 0 0\ncpu2 10 0 0 80 0 0 0 0\n\nintr 5\n")
    first = source.look(with_pids=False)
    assert (first["utilization"], first["steal"]) == (None, None)
    stat.write_text("cpu0 999 0 0 0 0\ncpu1 40 0 0 90 0 0 0 20\ncpu2 10 0 0 110 10 0 0 0\n")
    second = source.look(with_pids=True)
    assert second["utilization"] == pytest.approx(50 / 100)
    assert second["steal"] == pytest.approx(20 / 100)
    assert source.look(with_pids=True)["utilization"] is None


def test_a_cpu_that_was_too_hot_has_counted_it(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    for number, counts in enumerate([(3, 7), (4, 7)]):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{number}/thermal_throttle"
        folder.mkdir(parents=True)
        for name, count in zip(("core", "package"), counts, strict=True):
            (folder / f"{name}_throttle_count").write_text(f"{count}\n")
    found = cpu.source(tmp_path).look(with_pids=False)
    assert found["counters"] == {"thermal": 14}
    assert "ticks" not in found


@pytest.mark.parametrize("content", ["", "cpu0 1 2\n", "cpu0 a b c d e\n", "\n\n"])
def test_a_torn_proc_stat_is_no_load(tmp_path, content):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(content)
    source = cpu.source(tmp_path)
    source.look(with_pids=False)
    found = source.look(with_pids=False)
    assert found == {"utilization": None, "steal": None, "clock_mhz": None, "counters": {}}
