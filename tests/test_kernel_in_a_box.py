"""Every kind of Instinct as the kernel and ROCm tell of it, with what each gets wrong.

Devices, revisions of the table of metrics and sources, all in one process; and whole commands on
a machine's own ``/sys`` and ``/dev``, in a mount namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import make_case
from standins.rocm import box
from standins.rocm.machine import (
    Machine,
    Site,
    mi250x,
    mi300a,
    mi300x,
    mi300x_cpx,
    mi300x_vf,
    mi325x,
    mi350x,
    mi355x,
    mi355x_dpx,
)
from standins.rocm.present import Present

from bench_lib import backends
from bench_lib.backends.amd import package, sensors
from bench_lib.engine.telemetry.samples import TelemetrySample, summarise
from bench_lib.model import Hardware, Telemetry
from bench_lib.storage.acceptance import conditions_of
from bench_lib.verdict.validity import blame

Make = Callable[..., Machine]

MACHINES: dict[str, tuple[Make, list[str], float]] = {
    "mi250x": (mi250x, ["mi250x"] * 2, 1700),
    "mi300a": (mi300a, ["mi300a"], 2100),
    "mi300x": (mi300x, ["mi300x"], 2100),
    "mi300x-cpx-nps4": (mi300x_cpx, ["mi300x-cpx-nps4"] * 8, 2100),
    "mi300x-vf": (mi300x_vf, ["mi300x"], 2100),
    "mi325x": (lambda **changes: mi325x(1, **changes), ["mi325x"], 2100),
    "mi350x": (mi350x, ["mi350x"], 2200),
    "mi355x-dpx-nps2": (mi355x_dpx, ["mi355x-dpx-nps2"] * 2, 2400),
    "eight mi355x": (mi355x, ["mi355x"] * 8, 2400),
}
"""By name: how it is made, its keys, and its clock at work in MHz."""
REVISIONS = (4, 5, 6, 7, 8, 9)
BUSY = 97


def laid_out(folder: Path, machine: Machine) -> tuple[Site, list[Hardware]]:
    site = machine.lay_out(folder / "machine")
    return site, backends.detect(folder / "machine/root", {})


def at_work(site: Site) -> Site:
    present = Present(site.folder)
    for device in present.devices:
        present.work_until(device, time.monotonic() + 3600)
    again(site)
    return site


def again(site: Site) -> None:
    from standins.rocm import kernel

    kernel.write(Present(site.folder))


@pytest.mark.parametrize(
    ("told", "ptl"),
    [
        (None, None),
        (("enabled", "I8,F32"), "on, I8,F32"),
        (("1", ""), "on"),
        (("disabled", "I8,F32"), "off"),
        (("0", ""), "off"),
    ],
)
def test_the_limiter_of_peak_tops_is_read(tmp_path, told, ptl):
    _, (device,) = laid_out(tmp_path, mi350x(card={"ptl": told}))
    assert device.ptl == ptl
    assert conditions_of(make_case(), device)["ptl"] == ptl


def look(site: Site, device: Hardware) -> dict[str, Any]:
    return backends.of(device).telemetry(device, site.folder / "root", 0).look(with_pids=False)


def watched(site: Site, device: Hardware) -> Telemetry:
    source = backends.of(device).telemetry(device, site.folder / "root", 0)
    samples = []
    for n in range(4):
        again(site)
        seen = source.look(with_pids=False)
        fields = {
            name: seen[name]
            for name in ("clock_mhz", "dies_mhz", "power_w", "temperature_c", "utilization")
            if seen.get(name) is not None
        }
        throttling = {"throttle": tuple(seen.get("throttle", ()))}
        throttling |= {n: seen[n] for n in ("counters", "ticks") if n in seen}
        samples.append(TelemetrySample(t=float(n), source=source.name, **fields, **throttling))
        time.sleep(0.003)
    return summarise(samples, 0, len(samples))


# --- devices, tables, sources ------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
def test_every_device_has_its_key_and_tells_its_figures(tmp_path, name):
    make, keys, clock = MACHINES[name]
    site, devices = laid_out(tmp_path, make())
    assert [device.key for device in devices] == keys
    resting = [look(site, device) for device in devices]
    assert {seen["clock_mhz"] for seen in resting} == {143}
    working = [look(at_work(site), device) for device in devices]
    assert {seen["clock_mhz"] for seen in working} == {clock}
    assert {seen["utilization"] for seen in working} == {BUSY / 100}
    assert working[0]["power_w"] > resting[0]["power_w"] > 100


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("name", [name for name in MACHINES if name != "mi250x"])
def test_every_table_tells_the_same_of_every_device(tmp_path, name, revision):
    make, _, clock = MACHINES[name]
    machine = make(card={"revision": revision})
    site, devices = laid_out(tmp_path, machine)
    seen = look(at_work(site), devices[-1])
    assert (seen["clock_mhz"], seen["temperature_c"]) == (clock, 61)
    assert bool(seen.get("counters")) is (revision >= 6)


@contextlib.contextmanager
def installed(site: Site) -> Iterator[None]:
    own = sys.path[:]
    sys.path[:0] = [str(site.folder / "lib")]
    try:
        yield
    finally:
        sys.path[:] = own
        sys.modules.pop("amdsmi", None)


@pytest.mark.parametrize("name", MACHINES)
def test_the_package_and_the_files_tell_the_same(tmp_path, name):
    make, _, _ = MACHINES[name]
    site, devices = laid_out(tmp_path, make(has_package=True))
    root = site.folder / "root"
    at_work(site)
    with installed(site):
        for device in (devices[0], devices[-1]):
            seen = [way.source(device, root).look(with_pids=False) for way in (sensors, package)]
            for each in seen:
                each.pop("ticks", None)
                each["counters"] = sorted(each.get("counters", ()))
                each.setdefault("throttle", [])
            assert seen[0] == seen[1]


# --- what each gets wrong ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "card", "driver"),
    [
        (mi300x, {"quirks": ("repeated clock",)}, "6.10.5"),
        (mi250x, {"quirks": ("hotspot flag",)}, "6.10.5"),
    ],
)
def test_what_is_known_to_be_wrong_makes_no_measurement_invalid(tmp_path, make, card, driver):
    site, devices = laid_out(tmp_path, make(card=card, driver=driver))
    assert blame(watched(at_work(site), devices[0]), devices[0]) is None


@pytest.mark.parametrize(
    ("make", "card"),
    [
        (mi250x, {"held_back": {"socket_thermal": 0.5}}),
        (mi300x, {"held_back": {"socket_thermal": 0.5}}),
        (mi300x_vf, {"held_back": {"socket_thermal": 0.5}}),
        (mi300x, {"held_back": {"socket_thermal": 0.5}, "revision": 9}),
        (mi350x, {"held_back": {"socket_thermal": 0.5}}),
    ],
)
def test_thermal_throttling_is_seen_on_every_device(tmp_path, make, card):
    site, devices = laid_out(tmp_path, make(card=card))
    cause = blame(watched(at_work(site), devices[0]), devices[0])
    assert cause.startswith("throttled: thermal for ")


def test_thermal_throttling_is_seen_where_the_package_has_lost_the_flags(tmp_path):
    card = {"held_back": {"socket_thermal": 0.5}}
    site, devices = laid_out(tmp_path, mi250x(card=card, has_package=True))
    at_work(site)
    with installed(site):
        told = package.source(devices[0], site.folder / "root").look(with_pids=False)
        assert told["throttle"] == ["throttled"]
        cause = blame(watched(site, devices[0]), devices[0])
    assert cause.startswith("throttled: thermal for ")


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_slow_die_sets_the_clock(tmp_path, revision):
    card = {"quirks": ("slow die",), "revision": revision}
    site, devices = laid_out(tmp_path, mi300x(card=card))
    assert watched(at_work(site), devices[0]).clock_mhz == 1260


def test_a_slow_die_is_one_partition_s_alone(tmp_path):
    site, devices = laid_out(tmp_path, mi300x_cpx(card={"quirks": ("slow die",)}))
    at_work(site)
    clocks = [look(site, device)["clock_mhz"] for device in devices]
    assert clocks == [2100] * 5 + [1260] + [2100] * 2


# --- whole commands in a box -------------------------------------------------------------


@pytest.fixture
def boxed(tmp_path):
    reason = box.why_not()
    if reason is not None and not os.environ.get("CI"):
        pytest.skip(reason)

    def run(machine: Machine, *words: str) -> Any:
        site = machine.lay_out(tmp_path / "machine")
        environ = site.environ()
        del environ["BENCH_LIB_ROOT"]  # /sys is the machine's
        environ["PYTHONPATH"] = str(Path(__file__).parents[1])
        environ["ROCM_PATH"] = str(site.folder / "root/opt/rocm")
        answer = box.run(site.folder / "root", [sys.executable, *words], environ)
        assert answer.returncode in (0, 1), answer.stderr
        return json.loads(answer.stdout)

    return run


DETECT = """
import json
from dataclasses import asdict
from bench_lib import backends
from bench_lib.engine import telemetry
found = [each for each in backends.detect() if each.vendor == "amd"]
seen, cause = telemetry.look_once(found[-1])
print(json.dumps({"devices": [asdict(each) for each in found], "seen": seen, "cause": cause}))
"""


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_in_a_box_is_found_and_watched(boxed, name):
    make, keys, _ = MACHINES[name]
    told = boxed(make(), "-c", DETECT)
    assert [device["key"] for device in told["devices"]] == keys
    assert (told["cause"], told["seen"]["source"]) == (None, "gpu_metrics")
    assert told["seen"]["clock_mhz"] == 143
