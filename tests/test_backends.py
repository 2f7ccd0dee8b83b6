"""A vendor is one folder: nobody else knows its name, and an installed package adds another."""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_case, make_environment, make_hardware, make_telemetry

from bench_lib import backends
from bench_lib.backends import sysfs
from bench_lib.backends.tool import ToolError
from bench_lib.engine.telemetry import look_once
from bench_lib.environment.fingerprint import collect
from bench_lib.model import Device, MachineWarning, UserError
from bench_lib.profiling.profilers import UnprofiledError, with_vendors
from bench_lib.storage.acceptance import conditions_of
from bench_lib.verdict import validity

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "bench_lib"
GUIDE = ROOT / "docs/adding-a-backend.md"


@pytest.fixture(autouse=True)
def _forget():
    backends.every.cache_clear()
    sysfs.warn_once.cache_clear()
    yield
    backends.every.cache_clear()


# --- nobody else knows a vendor's name ---------------------------------------------------

NAMED = re.compile(
    r"""["'](?:amd|nvidia|intel)["']|\.vendor\b|\.name\b.*["']cpu["']"""
    r"""|\bbackends(?:\.| import .*\b)(?:amd|nvidia|cpu)\b"""
)
"""What asks for a vendor's name, or for its package; torch calls the type of a device cpu, too."""


def test_nobody_but_a_backend_knows_a_vendors_name_or_imports_its_package():
    found = [
        f"{file.relative_to(ROOT)}: {line}"
        for file in sorted(PACKAGE.rglob("*.py"))
        if PACKAGE / "backends" not in file.parents
        for line in file.read_text().splitlines()
        if NAMED.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    "asking",
    [
        'device.vendor == "cpu"',
        'if "amd" in vendors: pass',
        'backends.of(device).name == "cpu"',
        "import bench_lib.backends.amd.kfd",
        "from bench_lib.backends import nvidia",
    ],
)
def test_a_vendors_name_is_seen(asking):
    assert NAMED.search(asking)
    assert not NAMED.search(
        'device.type == "cpu" or "intel-mkl"; from bench_lib.backends import of'
    )


# --- another vendor, in one package ------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch):
    site = tmp_path / "site-packages"
    info = site / "bench_xpu-1.0.dist-info"
    info.mkdir(parents=True)
    blocks = dict(re.findall(r"```\w+\n# (\S+)\n(.*?)```", GUIDE.read_text(), re.DOTALL))
    (site / "bench_xpu.py").write_text(blocks["bench_xpu.py"])
    (group,) = re.findall(r'entry-points\."(.+)"\]\n((?:\w+ = .*\n)+)', blocks["pyproject.toml"])
    points = f"[{group[0]}]\n{group[1]}".replace('"', "")
    (info / "entry_points.txt").write_text(points)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bench-xpu\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(site), str(ROOT))))
    yield site
    sys.modules.pop("bench_xpu", None)


@pytest.fixture
def machine(tmp_path):
    root = tmp_path / "machine"
    for slot, clock, capped in (("03", 1550, 0), ("1a", 1100, 1)):
        pci = root / f"sys/bus/pci/devices/0000:{slot}:00.0"
        frequency = pci / "tile0/gt0/freq0"
        (frequency / "throttle").mkdir(parents=True)
        (pci / "device").write_text("0x0bd5\n")
        (frequency / "act_freq").write_text(f"{clock}\n")
        (frequency / "throttle/reason_pl1").write_text(f"{capped}\n")
        (frequency / "throttle/reason_thermal").write_text("0\n")
    return root


def detected(machine, **environ):
    return backends.detect(machine, environ)


def test_an_installed_backend_finds_its_devices(package, machine):
    assert [(gpu.vendor, gpu.key, gpu.index, gpu.bdf) for gpu in detected(machine)] == [
        ("intel", "intel-0bd5", 0, "0000:03:00.0"),
        ("intel", "intel-0bd5", 1, "0000:1a:00.0"),
    ]


def test_its_variable_hides_devices_and_pins_a_worker(package, machine):
    (second,) = detected(machine, ZE_AFFINITY_MASK="1")
    assert (second.index, second.bdf) == (0, "0000:1a:00.0")
    pinned = backends.visibility(second, {"ZE_AFFINITY_MASK": "1"})
    assert pinned == {"ZE_AFFINITY_MASK": "1"}
    assert detected(machine, **pinned) == [second]
    cpu = make_hardware(vendor="cpu")
    assert backends.visibility(cpu)["ONEAPI_DEVICE_SELECTOR"] == "opencl:cpu"
    assert collect(machine, {"ZE_AFFINITY_MASK": "1"}).variables == {"ZE_AFFINITY_MASK": "1"}


def test_its_devices_are_watched_by_a_process_of_their_own(package, machine, monkeypatch):
    monkeypatch.setenv("BENCH_LIB_ROOT", str(machine))
    seen, cause = look_once(detected(machine)[1])
    assert cause is None
    assert (seen["source"], seen["clock_mhz"], seen["throttle"]) == ("xe", 1100, ["power cap"])


def test_its_conditions_and_its_words_reach_verdicts(package, machine):
    gpu, case = detected(machine)[0], make_case()
    environment = make_environment(variables={"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"})
    assert conditions_of(case, gpu, environment)["tiles"] == "COMPOSITE"


def test_a_context_on_another_kind_of_device_is_not_taken_for_it(package, machine):
    gpu = detected(machine)[0]
    assert backends.confirm(gpu, Device(type="xpu", name="Intel Max 1550")) == []
    assert backends.confirm(gpu, Device(type="cpu", name="Xeon")) == [
        "detected intel-0bd5, but the process opened cpu Xeon"
    ]


@pytest.mark.parametrize(
    ("module", "cause"),
    [
        ("import missing_driver\n", "No module named 'missing_driver'"),
        ("XPU = None\n", "AttributeError"),
        ("class XPU:\n    name, is_gpu = 'amd', True\n", "the name 'amd' is taken"),
    ],
)
def test_a_backend_that_cannot_be_used_is_a_warning(package, machine, module, cause):
    (package / "bench_xpu.py").write_text(module)
    with pytest.warns(MachineWarning, match=f"bench_xpu:XPU is not used: .*{re.escape(cause)}"):
        assert [device.vendor for device in detected(machine)] == ["cpu"]


def test_a_backend_that_fails_to_look_is_a_warning(package, machine):
    module = package / "bench_xpu.py"
    module.write_text(module.read_text().replace("found = []", "raise OSError('no bus')"))
    with pytest.warns(MachineWarning, match="no intel GPU is used: OSError: no bus"):
        assert [device.vendor for device in detected(machine)] == ["cpu"]


# --- its profilers -----------------------------------------------------------------------


class VTune:
    names = ("intel", "vtune")

    def require(self, name):
        raise ToolError(f"{name} is not installed")


@pytest.fixture
def profilers(package, machine, monkeypatch):
    (gpu, _) = detected(machine)
    monkeypatch.setattr(type(backends.of(gpu)), "profilers", lambda _self: VTune())


@pytest.mark.usefixtures("profilers")
@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("vtune", "vtune is not installed"),
        ("nvprof", "no installed backend has a profiler 'nvprof'"),
    ],
)
def test_a_profiler_is_asked_of_whoever_has_its_name(tmp_path, tool, words):
    with pytest.raises(UnprofiledError, match=words):
        with_vendors(
            make_case(),
            make_hardware(),
            tmp_path,
            tool,
            steps=1,
            timeline=False,
            environment=None,
            say=print,
        )


# --- a vendor that nobody knows ----------------------------------------------------------

STRANGE = make_hardware(vendor="intel", key="intel-0bd5")


def test_a_device_of_an_unknown_vendor_is_not_measured():
    with pytest.raises(UserError) as caught:
        backends.visibility(STRANGE)
    assert str(caught.value) == (
        "intel-0bd5 cannot be measured: there is no backend for the vendor 'intel', only for amd, "
        "cpu, nvidia; install a package that provides one (docs/adding-a-backend.md)"
    )


def test_a_device_of_an_unknown_vendor_is_not_watched_as_something_else():
    seen, cause = look_once(STRANGE)
    assert seen is None
    assert "cannot be monitored: there is no backend for the vendor 'intel'" in cause


def test_what_was_recorded_on_an_unknown_vendor_is_shown_and_judged():
    assert backends.is_gpu(STRANGE)
    assert conditions_of(make_case(), STRANGE, make_environment())["ranks"] == 1
    assert validity.blame(make_telemetry(), STRANGE) is None
    assert not backends.is_gpu(replace(STRANGE, vendor=""))


# --- what every backend answers ----------------------------------------------------------


def test_the_cpu_is_the_last_and_the_only_one_that_is_no_gpu():
    assert [(each.name, each.is_gpu) for each in backends.every()] == [
        ("amd", True),
        ("nvidia", True),
        ("cpu", False),
    ]
