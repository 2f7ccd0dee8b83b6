"""Where ROCm is found: system packages before and since 7.14, and AMD's wheels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench_lib.backends.amd import machine, profilers, rocm
from bench_lib.backends.amd.rocm import release

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(path: str, content: str = "", mode: int = 0o644) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        file.chmod(mode)
        return file

    return written


@pytest.fixture
def wheels(tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Install AMD's wheels of a version into an environment of their own."""

    def installed(version: str, *names: str) -> Path:
        for name in names or rocm.WHEELS:
            about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            write(f"venv/site/{name.replace('-', '_')}-{version}.dist-info/METADATA", about)
        write("venv/site/_rocm_sdk_core/lib/libamdhip64.so.7.14.60850")
        write("venv/site/_rocm_sdk_libraries/lib/libhipblaslt.so.1")
        write("venv/bin/rocprofv3", '#!/bin/sh\ntouch "$0.ran"\n', 0o755)
        monkeypatch.syspath_prepend(str(tmp_path / "venv/site"))
        monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/bin/python"))
        return tmp_path / "venv"

    return installed


def test_a_system_s_rocm_is_found_in_core_since_7_14(tmp_path: Path, write: Write) -> None:
    write("opt/rocm/core-7.14/.info/version", "7.14.0\n")
    write("opt/rocm/core-7.14/lib/libMIOpen.so.1")
    (tmp_path / "opt/rocm/core").symlink_to("core-7.14")
    found = machine.software(tmp_path, {})
    assert (found.rocm, found.libraries) == ("7.14.0", {"MIOpen": "1"})


def test_the_newer_place_wins_over_a_legacy_installation(tmp_path: Path, write: Write) -> None:
    write("opt/rocm/.info/version", "6.4.1-83\n")
    write("opt/rocm/core/.info/version", "10.1.0\n")
    assert rocm.find(tmp_path, {}).version == "10.1.0"
    assert rocm.find(tmp_path, {"ROCM_PATH": "/opt/rocm"}).version == "6.4.1-83"


def test_wheels_win_over_the_system_s_rocm(tmp_path: Path, write: Write, wheels: Write) -> None:
    write("opt/rocm/.info/version", "6.4.1-83\n")
    write("opt/rocm/lib/libMIOpen.so.1.0.60401")
    wheels("7.14.0")
    found = machine.software(tmp_path, {"ROCM_PATH": "/opt/rocm"})
    assert found.rocm == "7.14.0"
    assert found.libraries == {
        **dict.fromkeys(rocm.WHEELS, "7.14.0"),
        "amdhip64": "7.14.60850",
        "hipblaslt": "1",
    }


def test_a_wheel_s_profiler_is_never_run_for_its_version(
    tmp_path: Path, write: Write, wheels: Write
) -> None:
    legacy = write("opt/rocm/bin/rocprofv3", "#!/bin/sh\n", 0o755)
    venv = wheels("10.1.0a20260811")
    found = profilers.find({"PATH": str(legacy.parent)})
    assert found is not None
    assert (found.path, found.rocm) == (str(venv / "bin/rocprofv3"), (10, 1, 0))
    assert not (venv / "bin/rocprofv3.ran").exists()


def test_a_system_s_profiler_beside_wheels_keeps_its_own_version(
    tmp_path: Path, write: Write, wheels: Write
) -> None:
    write("opt/rocm/.info/version", "6.4.1-83\n")
    legacy = write("opt/rocm/bin/rocprof-compute", "#!/bin/sh\nexit 9\n", 0o755)
    wheels("7.14.0", "rocm-sdk-core")
    found = profilers.find({"PATH": str(legacy.parent)}, "rocprof-compute")
    assert found is not None
    assert found.rocm == (6, 4, 1)


def test_a_release_is_compared_as_numbers() -> None:
    versions = ["10.1.0a20260811", "7.14.0", "7.2.1", "6.4.1-83", "of my own"]
    numbers = [release(version) for version in versions]
    assert numbers == [(10, 1, 0), (7, 14, 0), (7, 2, 1), (6, 4, 1), None]
