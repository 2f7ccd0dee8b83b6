"""The page of ``bench-lib env``: what a person reads of a machine, whatever is not known of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import make_environment, make_hardware

from bench_lib.backends.backend import Check
from bench_lib.cli.machine import (
    WIDTH,
    DeviceLook,
    Machine,
    Reference,
    page,
)
from bench_lib.model import Hardware

FIGURES = {
    "source": "amdsmi",
    "clock_mhz": 2100.4,
    "memory_clock_mhz": 1300,
    "power_w": 140.5,
    "temperature_c": 41.0,
    "utilization": 0.125,
    "steal": None,
    "throttle": [],
}
GOOD = Check("visible devices", ok=True, detail="0: mi300x")
DOUBTFUL = Check("CPU governor", ok=False, detail="powersave", remedy="set performance")
WRONG = Check("torch", ok=False, detail="not installed", remedy="install it", fatal=True)
CPU = Hardware(vendor="cpu", name="Test CPU", key="cpu-test-4c", compute_units=4)


def machine(*devices: Hardware, **fields) -> Machine:
    devices = devices or (make_hardware(),)
    references = {d.key: Reference(f"baselines/{d.key}.json") for d in devices}
    seen = [DeviceLook(FIGURES)] * len(devices)
    return replace(
        Machine(
            devices=list(devices),
            baselines=references,
            telemetry=seen,
            environment=make_environment(),
            checks=[GOOD],
            fit=True,
        ),
        **fields,
    )


def section(lines: list[str], title: str) -> list[str]:
    start = lines.index(title) + 1
    return lines[start : lines.index("", start)]


def test_a_device_is_described_with_units_and_aligned():
    reference = Reference("baselines/mi300x.json", exists=True, measured=29, published=1)
    lines = page(machine(baselines={"mi300x": reference}))
    assert section(lines, "Devices") == [
        "  mi300x: AMD Instinct MI300X",
        "    PCI id        74a1, gfx942",
        "    partition     SPX, NPS1",
        "    units         304 compute units",
        "    memory        192.0 GiB, 5300 GB/s at best",
        "    power cap     750 W",
        "    clock policy  unknown",
        "    peak TFLOPS   fp16 1307.4, fp32 163.4",
        "    baselines     baselines/mi300x.json: 29 cases, 1 published",
        "    device 0      0000:0c:00.0, GPU-0123",
    ]


def test_devices_that_are_alike_are_described_once():
    cards = [make_hardware(index=n, bdf=f"0000:{n:02x}:00.0", uuid=f"GPU-{n}") for n in range(8)]
    cards[5] = replace(cards[5], power_cap_w=500.0)
    lines = section(page(machine(*cards)), "Devices")
    assert lines[0] == "  mi300x: AMD Instinct MI300X, 7 devices"
    assert [line for line in lines if line.startswith("  mi300x")][1:] == [
        "  mi300x: AMD Instinct MI300X"
    ]
    assert [line.split()[1] for line in lines if line.startswith("    device")] == list("01234675")
    assert "    device 4      0000:04:00.0, GPU-4" in lines


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"key": "mi300x-cpx-nps4", "compute_units": 38}, "CPX, NPS4"),
        ({"compute_partition": "TPX", "memory_partition": None}, "TPX"),
        (
            {"key": "mi250x", "compute_partition": None, "memory_partition": None},
            "GCD: one of the two dies of a card",
        ),
        (
            {"vendor": "nvidia", "compute_partition": "MIG", "memory_partition": None},
            "MIG",
        ),
        ({"compute_partition": None, "memory_partition": None}, None),
    ],
)
def test_what_of_a_card_a_device_is_is_said_in_words(fields, words):
    modes = {"compute_partition": "CPX", "memory_partition": "NPS4"}
    lines = section(page(machine(make_hardware(**{**modes, **fields}))), "Devices")
    found = [line.split(maxsplit=1)[1] for line in lines if line.startswith("    partition")]
    assert found == ([words] if words else [])


def test_what_is_not_known_of_a_gpu_is_said_so():
    bare = Hardware(vendor="amd", name="amd-gpu", key="amd-gpu")
    assert section(page(machine(bare)), "Devices")[1:] == [
        "    memory        unknown",
        "    power cap     unknown",
        "    clock policy  unknown",
        "    peak TFLOPS   unknown: not in the catalogue",
        (
            "    baselines     baselines/amd-gpu.json is not there yet; "
            "bench-lib baseline record makes it"
        ),
        "    device 0      PCI address unknown, uuid unknown",
    ]


def test_a_cpu_has_no_rows_that_only_a_gpu_could_fill():
    environment = make_environment(
        driver=None, rocm=None, hip=None, caches={"miopen": "cold", "triton": "cold"}
    )
    lines = page(machine(CPU, environment=environment))
    rows = [line.split()[0] for line in section(lines, "Devices")[1:]]
    assert rows[:2] == ["units", "baselines"]
    assert "device" not in rows
    assert section(lines, "Caches") == ["  triton  cold"]
    assert not [line for line in lines if "ROCm" in line or "driver" in line]


def test_a_baseline_file_that_cannot_be_read_is_named_with_the_cause():
    broken = Reference("baselines/mi300x.json", exists=True, problem="x.json is not JSON: here")
    lines = page(machine(baselines={"mi300x": broken}))
    assert "    baselines     x.json is not JSON: here" in lines


def test_telemetry_shows_one_look_with_units_or_the_cause():
    devices = [make_hardware(index=n) for n in range(4)]
    held = {"source": "nvml", "power_w": 700.0, "throttle": ["thermal", "power brake"]}
    silent = {"source": "none", "clock_mhz": None}
    seen = [DeviceLook(FIGURES), DeviceLook(held), DeviceLook(None, "amdsmi was not found")]
    assert section(page(machine(*devices, telemetry=seen)), "Telemetry") == [
        (
            "  0  amdsmi  clock 2100 MHz, memory clock 1300 MHz, power 140 W, "
            "temperature 41 °C, utilization 12%"
        ),
        "  1  nvml    power 700 W, held back by thermal and power brake",
        "  2  none    amdsmi was not found",
        "  …          1 more, not looked at",
    ]
    lines = page(machine(telemetry=[DeviceLook(silent)]))
    assert section(lines, "Telemetry") == ["  0  none  no figure is known"]


def test_the_environment_is_shown_with_what_is_known_of_it():
    environment = make_environment(
        cpu="Test CPU",
        cpu_count=96,
        numa_balancing=True,
        kernel_options={"iommu": "pt", "nosmt": "set"},
        libraries={"MIOpen": "1.0.79901", "rccl": "1.0.79901"},
        cudnn="3009000",
        commit="c0ffee0c0ffee0c0ffee",
        dirty=True,
        variables={"HSA_XNACK": "1"},
        caches={"miopen": "warm, 41 entries, 0123456789ab"},
    )
    lines = page(machine(environment=environment))
    for line in (
        "  CPU             Test CPU, 96 CPUs for this process",
        "  kernel options  iommu=pt, nosmt",
        "  NUMA balancing  on",
        "  driver          unknown",
        "  ROCm libraries  MIOpen 1.0.79901, rccl 1.0.79901",
        "  MIOpen          3009000",
        "  commit          c0ffee0c0ffe, with uncommitted changes",
        "  miopen  warm, 41 entries, 0123456789ab",
        "  HSA_XNACK  1",
    ):
        assert line in lines
    assert "  kernel options  none of note" in page(
        machine(environment=make_environment(kernel_options={}))
    )
    assert section(page(machine()), "Variables") == ["  none that change speed"]


def test_checks_are_marked_by_what_they_mean_and_have_their_remedies():
    unknown = Check("NUMA balancing", ok=None, detail="not known")
    lines = page(machine(checks=[GOOD, DOUBTFUL, unknown, WRONG], fit=False))
    assert section(lines, "Checks") == [
        "  ok    visible devices  0: mi300x",
        "  warn  CPU governor     powersave",
        "                         -> set performance",
        "  -     NUMA balancing   not known",
        "  FAIL  torch            not installed",
        "                         -> install it",
    ]


@pytest.mark.parametrize(
    ("checks", "last"),
    [
        ([GOOD], "The suite can run here."),
        ([DOUBTFUL], "The suite can run here; 1 warning above."),
        ([DOUBTFUL, GOOD, DOUBTFUL], "The suite can run here; 2 warnings above."),
        (
            [WRONG, DOUBTFUL, replace(WRONG, name="/dev/kfd")],
            "The suite cannot run here; mend first: torch, /dev/kfd.",
        ),
    ],
)
def test_the_last_line_says_whether_the_suite_can_run(checks, last):
    assert page(machine(checks=checks))[-1] == last


def test_no_line_is_longer_than_the_page():
    long = "/very/long" * 30
    environment = make_environment(
        variables={"LD_PRELOAD": long, "NCCL_ALGO": "Ring " * 40},
        kernel_options={"isolcpus": ",".join(map(str, range(2, 96)))},
    )
    found = machine(
        make_hardware(name="x" * 150, uuid="GPU-" + "0" * 120),
        environment=environment,
        telemetry=[DeviceLook(None, "why " * 60)],
        checks=[replace(WRONG, detail=long, remedy="do this " * 30), *[WRONG] * 20],
    )
    lines = page(found)
    assert max(map(len, lines)) <= WIDTH
    joined = "".join(line.strip() for line in lines)
    assert joined.count(long) == 2
