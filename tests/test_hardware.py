"""Which devices are found, under which key, and how a worker is pinned to one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench_lib.backends import confirm, detect, sysfs, visibility
from bench_lib.backends.nvidia import devices as nvidia
from bench_lib.model import Device, Hardware

GIB = 2**30


@pytest.fixture(autouse=True)
def _forget_warnings():
    sysfs.warn_once.cache_clear()


class Machine:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._nodes = 0
        self.write("proc/cpuinfo", "model name\t: Test CPU 12-Core Processor\n")
        self.write("proc/meminfo", "MemTotal:       8388608 kB\n")

    def write(self, path: str, content: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return file

    def cpu_node(self) -> None:
        node = f"sys/class/kfd/kfd/topology/nodes/{self._nodes}"
        self.write(f"{node}/gpu_id", "0\n")
        self.write(f"{node}/properties", "cpu_cores_count 48\nsimd_count 0\nlocation_id 0\n")
        self._nodes += 1

    def amd(
        self,
        *,
        pci: str = "74a1",
        version: int = 90402,
        units: int = 304,
        memory: int = 192 * GIB,
        bus: int = 0x0C,
        partition: int = 0,
        serial: int | None = None,
        compute: str | None = "SPX",
        nps: str | None = "NPS1",
        cap_uw: int | None = 750_000_000,
    ) -> Path:
        node = f"sys/class/kfd/kfd/topology/nodes/{self._nodes}"
        self.write("dev/kfd", "")
        self.write(f"{node}/gpu_id", f"{40000 + self._nodes}\n")
        serial = 0x7100000000000000 + bus if serial is None else serial
        properties = {
            "cpu_cores_count": 0,
            "simd_count": units * 4,
            "simd_per_cu": 4,
            "gfx_target_version": version,
            "vendor_id": 4098,
            "device_id": int(pci, 16),
            "location_id": bus << 8 | partition << 28,
            "domain": 0,
            "unique_id": serial,
        }
        self.write(f"{node}/properties", "".join(f"{k} {v}\n" for k, v in properties.items()))
        self.write(f"{node}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {memory}\n")
        slot = f"sys/bus/pci/devices/0000:{bus:02x}:00.0"
        self.write(f"{slot}/device", f"0x{pci}\n")
        for name, value in (("compute", compute), ("memory", nps)):
            if value is not None:
                self.write(f"{slot}/current_{name}_partition", f"{value}\n")
        if cap_uw is not None:
            self.write(f"{slot}/hwmon/hwmon3/power1_cap", f"{cap_uw}\n")
        self._nodes += 1
        return self.root / node

    def detect(self, **environ: str) -> list[Hardware]:
        return detect(self.root, environ)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def nvml_entry(**changes: object) -> dict[str, object]:
    entry: dict[str, object] = {
        "name": "NVIDIA H200",
        "uuid": "GPU-11111111-aaaa-bbbb-cccc-000000000001",
        "bdf": "00000000:3B:00.0",
        "pci_id": 0x233510DE,
        "arch": "sm_90",
        "cuda_cores": 132 * 128,
        "memory_bytes": 150 * 10**9,
        "power_cap_w": 700.0,
        "mig": False,
    }
    return {**entry, **changes}


@pytest.fixture
def nvml(machine, monkeypatch):
    machine.write("dev/nvidia0", "")

    def answer(*entries: Mapping[str, object], script: str | None = None) -> None:
        lines = script or f"echo '{json.dumps({'devices': entries})}'"
        tool = machine.write("python", f"#!/bin/sh\n{lines}\n")
        tool.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(tool))

    return answer


# --- AMD ---------------------------------------------------------------------------------


def test_an_amd_gpu_is_described_by_kernel_files_alone(machine):
    machine.cpu_node()
    machine.amd(serial=0x0123456789ABCDEF)
    (gpu,) = machine.detect()
    assert gpu.key == "mi300x"
    assert gpu.name == "AMD Instinct MI300X"
    assert (gpu.vendor, gpu.index, gpu.arch, gpu.pci_device_id) == ("amd", 0, "gfx942", "74a1")
    assert (gpu.bdf, gpu.uuid) == ("0000:0c:00.0", "GPU-0123456789abcdef")
    assert (gpu.compute_units, gpu.memory_bytes, gpu.power_cap_w) == (304, 192 * GIB, 750.0)
    assert (gpu.compute_partition, gpu.memory_partition) == ("SPX", "NPS1")
    assert gpu.peak_tflops["bf16"] == pytest.approx(1307.4)
    assert gpu.peak_gb_per_s == pytest.approx(5300)


@pytest.mark.parametrize(
    ("version", "arch"),
    [(90402, "gfx942"), (90010, "gfx90a"), (90500, "gfx950"), (100300, "gfx1030")],
)
def test_a_target_version_becomes_the_name_of_its_architecture(machine, version, arch):
    machine.amd(pci="9999", version=version)
    assert machine.detect()[0].arch == arch


def test_an_id_of_two_cards_and_the_units_of_neither_is_a_key_of_its_own(machine):
    machine.amd(pci="740c", version=90010, units=96, memory=64 * GIB, compute=None, nps=None)
    (gpu,) = machine.detect()
    assert (gpu.key, gpu.peak_tflops) == ("amd-gfx90a-740c", {})


def test_a_partition_may_be_told_by_its_function(machine):
    node = machine.amd(units=38, memory=24 * GIB, compute="CPX", nps="NPS1")
    properties = (node / "properties").read_text()
    (node / "properties").write_text(properties.replace("location_id 3072", "location_id 3075"))
    (gpu,) = machine.detect()
    assert (gpu.bdf, gpu.key, gpu.power_cap_w) == ("0000:0c:00.3", "mi300x-cpx-nps1", 750.0)
    assert gpu.peak_gb_per_s == pytest.approx(5300)


def test_a_function_that_is_on_the_bus_is_a_device_of_its_own(machine):
    node = machine.amd()
    properties = (node / "properties").read_text()
    (node / "properties").write_text(properties.replace("location_id 3072", "location_id 3074"))
    machine.write("sys/bus/pci/devices/0000:0c:00.2/device", "0x74b5\n")
    (gpu,) = machine.detect()
    assert (gpu.bdf, gpu.pci_device_id) == ("0000:0c:00.2", "74b5")


def test_memory_comes_from_pci_where_kfd_has_no_bank(machine):
    node = machine.amd()
    (node / "mem_banks/0/properties").write_text("heap_type 0\nsize_in_bytes 5\n")
    machine.write("sys/bus/pci/devices/0000:0c:00.0/mem_info_vram_total", f"{191 * GIB}\n")
    assert machine.detect()[0].memory_bytes == 191 * GIB


@pytest.mark.parametrize("content", ["", "N/A\n", "0x74zz\n", "0x74a1beef\n"])
def test_an_unreadable_pci_id_is_asked_of_kfd(machine, content):
    machine.amd()
    machine.write("sys/bus/pci/devices/0000:0c:00.0/device", content)
    assert machine.detect()[0].key == "mi300x"


def test_a_machine_that_says_little_is_still_found(machine):
    node = machine.amd(cap_uw=None, compute=None, nps=None)
    (node / "properties").write_text("simd_count 1216\nsimd_per_cu 4\ngfx_target_vers")
    (node / "mem_banks/0/properties").unlink()
    (gpu,) = machine.detect()
    assert (gpu.key, gpu.uuid, gpu.memory_bytes) == ("amd-304cu", None, None)
    assert (gpu.arch, gpu.pci_device_id, gpu.power_cap_w) == (None, None, None)


@pytest.mark.parametrize("cap", ["0\n", "N/A\n", ""])
def test_a_cap_of_nothing_is_no_cap(machine, cap):
    machine.amd()
    machine.write("sys/bus/pci/devices/0000:0c:00.0/hwmon/hwmon3/power1_cap", cap)
    assert machine.detect()[0].power_cap_w is None


@pytest.mark.parametrize(
    ("content", "policy"),
    [
        ("auto\n", "auto"),
        ("high\n", "high"),
        ("unknown\n", None),
        (None, None),
    ],
)
def test_what_holds_an_amd_gpus_clocks_is_its_performance_level(machine, content, policy):
    machine.amd()
    if content is not None:
        machine.write("sys/bus/pci/devices/0000:0c:00.0/power_dpm_force_performance_level", content)
    assert machine.detect()[0].clock_policy == policy


def test_nodes_that_this_container_may_not_read_are_not_its_devices(machine):
    node = machine.amd(bus=1)
    machine.amd(bus=2)
    (node / "gpu_id").unlink()
    (node / "gpu_id").mkdir()
    assert [gpu.bdf for gpu in machine.detect()] == ["0000:02:00.0"]


def test_a_gpu_of_which_the_kernel_shows_no_list_is_warned_of(machine):
    (machine.root / "dev").mkdir(parents=True, exist_ok=True)
    (machine.root / "dev/kfd").touch()
    with pytest.warns(RuntimeWarning, match="/dev/kfd exists, but .* let the container see"):
        (device,) = machine.detect()
    assert device.vendor == "cpu"


def test_gpus_without_their_device_file_are_named_and_not_used(machine):
    machine.amd()
    (machine.root / "dev/kfd").unlink()
    with pytest.warns(RuntimeWarning, match="--device=/dev/kfd"):
        (device,) = machine.detect()
    assert device.vendor == "cpu"


# --- which of them are visible -----------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "buses"),
    [
        ({}, [1, 2, 3, 4]),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [2]),
        ({"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "1"}, [4]),
        ({"ROCR_VISIBLE_DEVICES": "3,1"}, [4, 2]),
        ({"ROCR_VISIBLE_DEVICES": "3, 1", "HIP_VISIBLE_DEVICES": "1"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": "2,2,1"}, [3]),
        ({"HIP_VISIBLE_DEVICES": "2,2,1"}, [3, 2]),
        ({"HIP_VISIBLE_DEVICES": "0,9,1"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "gpu-71000000000000 04"}, []),
        ({"ROCR_VISIBLE_DEVICES": "GPU-7100000000000004,0"}, [4, 1]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
        ({"HIP_VISIBLE_DEVICES": "-1"}, []),
    ],
)
def test_variables_hide_and_renumber_amd_gpus(machine, environ, buses):
    for bus in (1, 2, 3, 4):
        machine.amd(bus=bus)
    found = [device for device in machine.detect(**environ) if device.vendor == "amd"]
    assert [gpu.bdf for gpu in found] == [f"0000:{bus:02x}:00.0" for bus in buses]
    assert [gpu.index for gpu in found] == list(range(len(buses)))


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"HIP_VISIBLE_DEVICES": "2,0,1"},
        {"CUDA_VISIBLE_DEVICES": "3,3,1"},
        {"ROCR_VISIBLE_DEVICES": "3,1,0", "HIP_VISIBLE_DEVICES": "1,2"},
        {"HIP_VISIBLE_DEVICES": "GPU-7100000000000003,0"},
    ],
)
def test_a_pinned_amd_worker_sees_exactly_its_device(machine, environ):
    for bus in (1, 2, 3, 4):
        machine.amd(bus=bus)
    for device in machine.detect(**environ):
        pins = visibility(device, environ)
        assert pins["HIP_VISIBLE_DEVICES"] == pins["CUDA_VISIBLE_DEVICES"]
        (seen,) = machine.detect(**{**environ, **pins})
        assert seen.bdf == device.bdf


def test_pinning_under_variables_that_do_not_show_the_device_is_refused(machine):
    machine.amd(bus=1)
    machine.amd(bus=2)
    second = machine.detect()[1]
    with pytest.raises(ValueError, match="HIP_VISIBLE_DEVICES='0' shows 1"):
        visibility(second, {"HIP_VISIBLE_DEVICES": "0"})


def test_a_worker_on_the_cpu_sees_no_gpu(machine):
    machine.amd()
    cpu = machine.detect(HIP_VISIBLE_DEVICES="-1")[0]
    pins = visibility(cpu, {})
    assert [device.vendor for device in machine.detect(**pins)] == ["cpu"]
    assert "" not in pins.values()


# --- NVIDIA ------------------------------------------------------------------------------


def test_an_nvidia_gpu_is_described_by_nvml(machine, nvml):
    nvml(nvml_entry())
    (gpu,) = machine.detect()
    assert (gpu.key, gpu.vendor, gpu.name) == ("h200", "nvidia", "NVIDIA H200")
    assert (gpu.pci_device_id, gpu.bdf, gpu.arch) == ("2335", "0000:3b:00.0", "sm_90")
    assert (gpu.compute_units, gpu.power_cap_w) == (132, 700.0)
    assert gpu.peak_tflops["bf16"] == pytest.approx(989)
    assert gpu.peak_gb_per_s == pytest.approx(4800)


def test_an_instance_of_a_divided_gpu_claims_none_of_its_figures(machine, nvml):
    nvml(nvml_entry(mig=True))
    (gpu,) = machine.detect()
    assert (gpu.key, gpu.peak_tflops, gpu.memory_bytes) == ("h200-mig", {}, None)


def test_figures_that_nvml_does_not_have_are_none(machine, nvml):
    nothing = dict.fromkeys(nvml_entry(), None)
    nvml({**nothing, "mig": False})
    (gpu,) = machine.detect()
    assert (gpu.key, gpu.uuid, gpu.bdf, gpu.compute_units) == ("nvidia-gpu", None, None, None)


@pytest.mark.parametrize(
    ("figures", "policy"),
    [
        ({"sm_clock_mhz": 1200, "default_sm_clock_mhz": 1980}, "sm 1200 MHz"),
        ({"sm_clock_mhz": 1980, "default_sm_clock_mhz": 1980}, "default"),
        ({"sm_clock_mhz": None, "default_sm_clock_mhz": 1980}, None),
        ({"sm_clock_mhz": 0, "default_sm_clock_mhz": 0}, None),
        ({}, None),
    ],
)
def test_what_holds_an_nvidia_gpus_clocks_is_its_application_clock(machine, nvml, figures, policy):
    nvml(nvml_entry(**figures))
    assert machine.detect()[0].clock_policy == policy


UUIDS = [f"GPU-{digit * 8}-aaaa-bbbb-cccc-00000000000{digit}" for digit in "123"]


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        (" 1", [1]),
        ("1gpu,2x", [1, 2]),
        ("GPU-22222222,GPU-1", [1, 0]),
        ("GPU-", []),
        ("1,1", []),
        ("0,7,1", [0]),
        ("", []),
        ("MIG-77", []),
    ],
)
def test_variables_hide_and_renumber_nvidia_gpus(machine, nvml, value, chosen):
    nvml(*(nvml_entry(uuid=uuid) for uuid in UUIDS))
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    found = [device for device in machine.detect(**environ) if device.vendor == "nvidia"]
    assert [gpu.uuid for gpu in found] == [UUIDS[index] for index in chosen]
    assert [gpu.index for gpu in found] == list(range(len(chosen)))


def test_an_nvidia_worker_is_pinned_by_uuid(machine, nvml):
    nvml(*(nvml_entry(uuid=uuid) for uuid in UUIDS))
    environ = {"CUDA_VISIBLE_DEVICES": "2,1"}
    device = machine.detect(**environ)[1]
    assert visibility(device, environ) == {"CUDA_VISIBLE_DEVICES": UUIDS[1]}


def test_an_nvidia_gpu_without_uuid_is_pinned_by_its_word(machine, nvml):
    nvml(*(nvml_entry(uuid=None, bdf=f"00000000:0{n}:00.0") for n in range(3)))
    environ = {"CUDA_VISIBLE_DEVICES": "2,1"}
    device = machine.detect(**environ)[1]
    assert visibility(device, environ) == {"CUDA_VISIBLE_DEVICES": "1"}
    assert visibility(machine.detect()[1], {}) == {"CUDA_VISIBLE_DEVICES": "1"}


def test_indices_among_different_nvidia_gpus_are_warned_of(machine, nvml):
    nvml(nvml_entry(), nvml_entry(uuid=UUIDS[1], pci_id=0x20B010DE))
    with pytest.warns(RuntimeWarning, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        machine.detect(CUDA_VISIBLE_DEVICES="1")
    assert len(machine.detect(CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID")) == 1


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("echo Segmentation fault >&2; exit 139", "Segmentation fault"),
        ("exit 3", "NVML ended with status 3: nothing"),
        ("echo '[]'", r"the process that queries NVML answered '\[\]'"),
        ("echo '{}'", r"the process that queries NVML answered '\{\}'"),
        ("echo loading", "the process that queries NVML did not print JSON .*loading"),
        ("echo '{\"devices\": [7]}'", "no NVIDIA GPU"),
        (
            'echo \'{"error": "NVML: Driver/library version mismatch"}\'',
            "^no NVIDIA GPU is used: NVML: Driver/library version mismatch$",
        ),
    ],
)
def test_an_nvml_that_fails_is_no_gpu_and_a_warning(machine, nvml, script, cause):
    nvml(script=script)
    with pytest.warns(RuntimeWarning, match=cause):
        (device,) = machine.detect()
    assert device.vendor == "cpu"


def test_an_nvml_that_hangs_is_given_up(machine, nvml, monkeypatch):
    monkeypatch.setattr(nvidia, "TIMEOUT_S", 0.2)
    nvml(script="exec sleep 600")
    expected = r"^no NVIDIA GPU is used: NVML did not answer in 0\.2 s$"
    with pytest.warns(RuntimeWarning, match=expected):
        (device,) = machine.detect()
    assert device.vendor == "cpu"


def test_the_same_cause_is_warned_of_once(machine, nvml):
    nvml(script="exit 1")
    with pytest.warns(RuntimeWarning) as caught:
        assert machine.detect() == machine.detect()
    assert len(caught) == 1


def test_nvml_is_not_asked_where_there_is_no_driver(machine, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert machine.detect()[0].vendor == "cpu"


def test_the_asking_process_answers_in_json_whatever_it_finds():
    done = subprocess.run(
        [sys.executable, "-c", "from bench_lib.backends.nvidia.devices import *; ask_here()"],
        capture_output=True,
        check=True,
        cwd=Path(__file__).parents[1],
        timeout=60,
    )
    assert set(json.loads(done.stdout)) in ({"devices"}, {"error"})


def test_nvml_is_asked_figure_by_figure(monkeypatch, capsys):
    class NVMLError(Exception):
        pass

    def get_handle(index: int) -> str:
        if index == 0:
            raise NVMLError("GPU is lost")
        return "handle"

    def refuse(_: str) -> None:
        raise NVMLError("Not Supported")

    fake = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": get_handle,
        "nvmlDeviceGetName": lambda _: b"NVIDIA Old",
        "nvmlDeviceGetEnforcedPowerLimit": lambda _: 250_000,
        "nvmlDeviceGetCudaComputeCapability": lambda _: (8, 0),
        "nvmlDeviceGetUUID": refuse,
        "nvmlDeviceGetApplicationsClock": lambda _, clock: {1: 1200}[clock],
    }
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**fake))
    nvidia.ask_here()
    (entry,) = json.loads(capsys.readouterr().out)["devices"]
    assert (entry["name"], entry["arch"], entry["power_cap_w"]) == ("NVIDIA Old", "sm_80", 250.0)
    assert (entry["uuid"], entry["bdf"], entry["mig"]) == (None, None, False)
    assert (entry["sm_clock_mhz"], entry["default_sm_clock_mhz"]) == (1200, None)


# --- the CPU -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Intel(R) Core(TM) i7-9700K CPU @ 3.60GHz", "intel-core-i7-9700k"),
        ("QEMU Virtual CPU version 2.5+", "qemu-virtual-version-2-5"),
        ("(TM)", "unknown"),
    ],
)
def test_a_cpu_is_keyed_by_its_model_and_the_cpus_we_may_use(machine, name, slug):
    machine.write("proc/cpuinfo", f"processor\t: 0\nmodel name\t: {name}\n")
    (cpu,) = machine.detect()
    count = len(os.sched_getaffinity(0))
    assert cpu.key == f"cpu-{slug}-{count}c"
    assert (cpu.vendor, cpu.index, cpu.compute_units) == ("cpu", 0, count)
    assert cpu.memory_bytes == 8 * GIB


def test_a_machine_that_says_nothing_is_still_a_cpu(tmp_path):
    (cpu,) = detect(tmp_path, {})
    assert cpu.key.startswith("cpu-")
    assert cpu.memory_bytes is None


# --- confirming --------------------------------------------------------------------------

MI300X = Hardware(
    vendor="amd",
    name="AMD Instinct MI300X",
    key="mi300x",
    arch="gfx942",
    bdf="0000:0c:00.0",
    uuid="GPU-9ab1c2d3e4f50617",
    compute_units=304,
    memory_bytes=192 * GIB,
)
SEEN = Device(
    type="cuda",
    name="",
    arch="gfx942:sramecc+:xnack-",
    compute_units=304,
    memory_bytes=int(191.9 * GIB),
    # The characters "9ab1…" as torch prints a HIP uuid: the code of each one.
    uuid="39616231-6332-6433-6534-663530363137",
    bdf="0000:0c:00.0",
)


def changed(**changes: object) -> Device:
    return Device(**{**asdict(SEEN), **changes})


def test_what_is_not_known_is_not_compared():
    assert confirm(MI300X, Device(type="cuda", name="")) == []
    assert confirm(Hardware(vendor="amd", name="", key="amd-gpu"), SEEN) == []


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"type": "cpu", "name": "Some CPU"}, "opened cpu Some CPU"),
        ({"arch": "sm_90"}, "sm_90"),
        ({"uuid": "GPU-0000000000000001"}, "uuid"),
        ({"uuid": "38616231-6332-6433-6534-663530363137"}, "uuid"),
        ({"bdf": "0000:0d:00.0"}, "0000:0d:00.0"),
        ({"memory_bytes": 256 * GIB}, "256.0"),
        ({"compute_units": 38}, "38"),
        ({"uuid": "00000000-0000-0000-0000-000000000000"}, None),
        ({"uuid": "not a uuid"}, None),
        ({"bdf": "00000000:0C:00.3"}, None),
        ({"memory_bytes": int(187 * GIB)}, None),
    ],
)
def test_a_disagreement_is_said_in_words_and_another_spelling_is_none(changes, word):
    sentences = confirm(MI300X, changed(**changes))
    assert [word in sentence for sentence in sentences] == [True] * (word is not None)


def test_the_memory_of_an_apu_is_not_compared():
    apu = Hardware(vendor="amd", name="", key="mi300a", memory_bytes=94 * GIB)
    assert confirm(apu, Device(type="cuda", name="", memory_bytes=128 * GIB)) == []


def test_rdna_counts_pairs_of_compute_units():
    rdna = Hardware(vendor="amd", name="", key="amd-gfx1100-744c", arch="gfx1100", compute_units=96)
    assert confirm(rdna, Device(type="cuda", name="", arch="gfx1100", compute_units=48)) == []


def test_of_a_cpu_only_that_it_is_one_is_checked():
    cpu = Hardware(vendor="cpu", name="A", key="cpu-a-2c", memory_bytes=GIB)
    assert confirm(cpu, Device(type="cpu", name="B", memory_bytes=9 * GIB)) == []
    assert confirm(cpu, SEEN) != []
