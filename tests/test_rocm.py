"""Where ROCm is found: in system packages, in AMD's wheels, and among torch's own files."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from standins.rocm.machine import hip_of, mi300x, mi325x, mi350x, system_rocm
from test_kernel_in_a_box import MACHINES

from bench_lib import backends
from bench_lib.backends.amd import machine, package, profilers, rocm
from bench_lib.backends.amd.rocm import release
from bench_lib.environment import fingerprint, readiness
from bench_lib.worker.device import libraries

PYTHON = sys.executable


@pytest.fixture
def enter(tmp_path, monkeypatch):
    """Lay a machine out, and go on as if this were the Python of its torch."""

    def entered(made):
        site = made.lay_out(tmp_path / "machine")
        environ = site.environ(HOME=str(tmp_path))
        for name in set(os.environ) - set(environ):
            monkeypatch.delenv(name)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.syspath_prepend(str(site.folder / "site"))
        monkeypatch.setattr(package.sys, "path", [*sys.path, str(site.folder / "lib")])
        monkeypatch.setattr(sys, "executable", str(site.folder / "venv/bin/python"))
        return site

    return entered


def root_of(site):
    return site.folder / "root"


def checks(site):
    devices = backends.detect(root_of(site), {})
    found = readiness.checks(root_of(site), dict(os.environ), devices)
    return {check.name: check for check in found}


def started(site):
    return list(site.folder.rglob("*.ran"))


INSTALLED = {
    "system 6.4": {"rocm": "6.4.1"},
    "system 7.1": {"rocm": "7.1.0"},
    "system 7.14": {"rocm": "7.14.0"},
    "system 10.1": {"rocm": "10.1.0"},
    "wheels 7.14": {"rocm": "7.14.0", "has_wheels": True},
    "wheels 10.1": {"rocm": "10.1.0", "has_wheels": True},
    "wheels 7.14, legacy": {"rocm": "7.14.0", "has_wheels": True, "legacy": "6.4.1"},
    "wheels 10.1, legacy": {"rocm": "10.1.0", "has_wheels": True, "legacy": "6.4.1"},
}
FIRST_OF_CORE = (7, 14)


@pytest.mark.parametrize("installed", INSTALLED)
@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_is_found_with_every_rocm_and_nothing_is_started(enter, name, installed):
    make, keys, _ = MACHINES[name]
    site = enter(make(**{"torch_rocm": None, **INSTALLED[installed]}))
    version = site.machine.rocm
    devices = backends.detect(root_of(site), {})
    assert [device.key for device in devices] == keys
    looked = backends.of(devices[0]).telemetry(devices[0], root_of(site), 0)
    assert looked.name == "gpu_metrics"
    found = machine.software(root_of(site), {})
    assert found.rocm == version
    is_bare = (release(version) or ()) >= FIRST_OF_CORE
    expected = "1 " if is_bare else f"1.0.{''.join(f'{int(n):02}' for n in version.split('.'))[1:]}"
    for library in ("MIOpen", "hipblaslt", "rocblas", "rccl"):
        assert found.libraries[library].startswith(expected)
    assert found.libraries["aotriton_v2"] == "0.11.2"
    assert ("MIOpenCKGroupedConv" in found.libraries) is is_bare
    tool = profilers.find()
    folder = "venv/bin" if site.machine.has_wheels else "root/opt/rocm/bin"
    assert tool.path == str(site.folder / folder / "rocprofv3")
    told = checks(site)
    assert (told["torch"].ok, told["AMD driver"].ok) == (True, True)
    assert version in told["AMD driver"].detail
    assert started(site) == []


def test_an_upgrade_of_rocm_is_named_where_its_libraries_have_bare_names(enter, tmp_path):
    old = fingerprint.collect(root_of(enter(mi350x(rocm="10.1.0"))), {}, tmp_path)
    library = tmp_path / "machine/root/opt/rocm/core-10.1/lib/libhipblaslt.so.1"
    library.write_text("another build")
    (library.parents[1] / ".info/version").write_text("10.1.1\n")
    new = fingerprint.collect(tmp_path / "machine/root", {}, tmp_path)
    first, second = fingerprint.difference(old, new)
    assert first == "rocm 10.1.0 -> 10.1.1"
    assert second.startswith("hipblaslt 1 ")


def test_the_newer_place_wins_over_a_legacy_installation(tmp_path):
    system_rocm(tmp_path, "10.1.0")
    legacy = tmp_path / "opt/rocm/.info/version"
    legacy.parent.mkdir()
    legacy.write_text("6.4.1-83\n")
    assert rocm.find(tmp_path, {}).version == "10.1.0"
    assert rocm.find(tmp_path, {"ROCM_PATH": "/opt/rocm"}).version == "6.4.1-83"


def test_the_wheels_amdsmi_is_found(enter):
    site = enter(mi300x(rocm="10.1.0", has_wheels=True, legacy="6.4.1", has_package=True))
    with package.quiet():
        smi = package.load(root_of(site))
    assert Path(smi.__file__).is_relative_to(site.folder / "site/_rocm_sdk_core")


def test_a_profiler_that_wheels_lack_is_named_by_its_wheel(enter):
    site = enter(mi300x(rocm="10.1.0", has_wheels=True))
    (site.folder / "venv/bin/rocprofv3").unlink()
    with pytest.raises(profilers.ToolError, match=r"AMD's wheel rocm-sdk-core of ROCm 10\.1\.0"):
        profilers.require()


@pytest.mark.parametrize("version", ["6.4.1", "10.1.0"])
def test_a_torch_that_brings_its_rocm_is_no_mismatch_and_is_not_downgraded(enter, version):
    site = enter(mi300x(rocm=version, torch_rocm="7.2.0", torch_brings_rocm=True))
    assert checks(site)["torch"].ok is True
    found = machine.software(root_of(site), {})
    assert found.rocm == "7.2"
    assert set(found.libraries) == {"amdhip64", "MIOpen", "aotriton_v2"}
    assert "rocm7.2" in backends.of(backends.detect(root_of(site), {})[0]).torch_index(found)


def test_a_torch_of_another_rocm_than_the_system_s_is_named(enter):
    told = checks(enter(mi300x(rocm="10.1.0", torch_rocm="7.14.0")))["torch"]
    assert (told.ok, told.fatal) == (False, False)
    assert "built for amd (7.14), but ROCm 10.1.0 is installed" in told.detail


def test_hip_s_version_is_not_taken_for_rocm_s(enter):
    site = enter(mi300x(rocm="10.0.0"))
    (about,) = (site.folder / "site").glob("torch-*.dist-info/METADATA")
    about.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0a0+gitabcdef\n")
    told = checks(site)["torch"]
    assert told.ok is True
    assert f"HIP {hip_of('10.0.0')}" in told.detail


@pytest.mark.parametrize(
    ("machine", "known"),
    [
        (mi300x(rocm="10.0.0"), None),  # and so the system's, which whoever started it knows
        (mi300x(rocm="10.0.0", has_wheels=True, legacy="6.4.1"), "10.0.0"),
    ],
    ids=["system", "wheels"],
)
def test_a_worker_tells_rocm_s_version_beside_hip_s(enter, machine, known):
    site = enter(machine)
    words = "import json; from bench_lib.worker import device; print(json.dumps(device.versions()))"
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    told = subprocess.run(
        [PYTHON, "-c", words],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    versions = json.loads(told.stdout)
    assert (versions["rocm"], versions["hip"]) == (known, hip_of(site.machine.rocm))


def test_a_worker_tells_the_libraries_that_it_has_loaded(tmp_path):
    names = ["libMIOpen.so.1", "libMIOpenCKGroupedConv_gfx950.so", "libaotriton_v2.so.0.11.2"]
    names += ["libhipblaslt-0a1b2c3d.so.1.2", "libother.so.3"]
    for name in names:
        (tmp_path / name).write_text(name)
    maps = tmp_path / "maps"
    maps.write_text("".join(f"7f0-7f1 r-xp 0 08:01 42 {tmp_path / name}\n" for name in names))
    found = libraries(maps)
    assert (found.pop("aotriton_v2"), found.pop("hipblaslt")) == ("0.11.2", "1.2")
    assert set(found) == {"MIOpen", "MIOpenCKGroupedConv"}
    assert found["MIOpen"].startswith("1 (")


@pytest.mark.parametrize("kernels", [(), ("gfx90a",), ("gfx950",)])
def test_a_torch_for_many_architectures_without_the_device_s_kernels_is_named(enter, kernels):
    site = enter(mi350x(rocm="10.1.0", has_wheels=True, kernels=kernels))
    told = checks(site).get("kernels")
    if "gfx950" in kernels:
        assert told is None
        return
    assert told.fatal
    names = "amd-torch-device-gfx950", "rocm-sdk-device-gfx950"
    assert all(name in told.detail and name in told.remedy for name in names)


def test_cards_of_one_kind_ask_for_their_kernels_once(enter):
    site = enter(replace(mi325x(4), rocm="10.1.0", has_wheels=True, kernels=()))
    devices = backends.detect(root_of(site), {})
    found = readiness.checks(root_of(site), {}, devices)
    assert [check.name for check in found].count("kernels") == 1
