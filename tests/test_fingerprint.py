"""What is recorded of an environment, how two differ, and what the checks say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench_lib.fingerprint import Check, checks, collect, difference, readiness, with_versions
from bench_lib.fingerprint import environment as environment_module
from bench_lib.model import Environment, Hardware

Write = Callable[[str, str], Path]
GPU = Hardware(vendor="amd", name="", key="mi300x")
CPU = Hardware(vendor="cpu", name="", key="cpu-test-2c")
NVIDIA = Hardware(vendor="nvidia", name="", key="h200")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file below the root of a machine."""

    def write(path: str, content: str) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return file

    return write


def git(folder: Path, *arguments: str) -> str:
    """Git without anybody's configuration."""
    names = {
        f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    environ = {**os.environ, **names, "GIT_CONFIG_GLOBAL": os.devnull}
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environ).stdout


# --- collecting --------------------------------------------------------------------------


def test_an_amd_machine_is_described_by_its_files(tmp_path: Path, write: Write) -> None:
    """Driver, ROCm and CPU, each from the file that holds it."""
    write("sys/module/amdgpu/version", "6.99.1\n")
    write("opt/rocm/.info/version", "7.9.1-42\n")
    write("proc/cpuinfo", "processor : 0\nmodel name\t: Test CPU 9000\n")
    found = collect(tmp_path, {}, tmp_path)
    assert (found.driver, found.rocm, found.cpu) == ("amdgpu 6.99.1", "7.9.1-42", "Test CPU 9000")
    assert found.cpu_count == len(os.sched_getaffinity(0))
    assert found.host
    assert found.kernel
    assert found.python.count(".") == 2


def test_rocm_is_looked_for_where_the_variable_says(tmp_path: Path, write: Write) -> None:
    """Several versions are installed side by side."""
    write("opt/rocm/.info/version", "7.9.1\n")
    write("opt/rocm-6.9.0/.info/version", "6.9.0\n")
    assert collect(tmp_path, {"ROCM_PATH": "/opt/rocm-6.9.0"}, tmp_path).rocm == "6.9.0"
    assert collect(tmp_path, {"ROCM_PATH": "/nowhere"}, tmp_path).rocm is None


@pytest.mark.parametrize(
    ("banner", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  599.11.02  Mon Jan 1 UTC 2029\n",
            "599.11.02",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  601.5  Release Build\n",
            "601.5",
        ),
    ],
)
def test_the_nvidia_driver_is_read_from_its_banner(
    tmp_path: Path, write: Write, banner: str, version: str
) -> None:
    """The closed and the open driver word it differently."""
    write("proc/driver/nvidia/version", banner + "GCC version:  gcc version 99.1.0\n")
    assert collect(tmp_path, {}, tmp_path).driver == f"nvidia {version}"


def test_a_torn_banner_leaves_the_module_s_own_version(tmp_path: Path, write: Write) -> None:
    """And where neither is there, the driver is not known."""
    write("proc/driver/nvidia/version", "NVRM ver")
    assert collect(tmp_path, {}, tmp_path).driver is None
    write("sys/module/nvidia/version", "600.1\n")
    assert collect(tmp_path, {}, tmp_path).driver == "nvidia 600.1"


def test_the_kernel_s_own_amdgpu_has_no_version(tmp_path: Path, write: Write) -> None:
    """Which is not the same as no driver."""
    write("sys/module/amdgpu/refcnt", "3\n")
    assert collect(tmp_path, {}, tmp_path).driver == "amdgpu of the kernel"


def test_an_empty_machine_is_described_by_none(tmp_path: Path) -> None:
    """Nothing to read is nothing known, not an error."""
    found = collect(tmp_path, {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}, tmp_path)
    assert (found.driver, found.rocm, found.commit, found.dirty) == (None, None, None, None)
    assert (found.torch, found.hip, found.variables) == (None, None, {})
    assert found.caches == {"inductor": "none", "triton": "none", "miopen": "none"}


def test_variables_that_change_speed_are_kept_and_no_others(tmp_path: Path) -> None:
    """By name and by family; what else is set is nobody's business."""
    kept = {
        "BENCH_LIB_CONTEXTS": "any",
        "HIP_VISIBLE_DEVICES": "0",
        "HSA_XNACK": "1",
        "MIOPEN_FIND_MODE": "2",
        "MKL_NUM_THREADS": "2",
        "NCCL_ALGO": "Ring",
        "OMP_NUM_THREADS": "4",
        "PYTORCH_CUDA_ALLOC_CONF": "a:b",
        "PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_TUNABLEOP_ENABLED": "0",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
        "TORCH_BLAS_PREFER_HIPBLASLT": "1",
        "TRITON_INTERPRET": "0",
    }
    environ = {
        **kept,
        "AWS_ACCESS_KEY_ID": "x",
        "BENCH_LIB_PRELOAD": "no",
        "EDITOR": "vi",
        "GITHUB_TOKEN": "x",
        "NCCLX": "1",
    }
    assert collect(tmp_path, environ, tmp_path).variables == kept


@pytest.mark.parametrize(
    ("name", "value", "recorded"),
    [
        ("TRITON_API_KEY", "hunter2", None),
        ("TORCHINDUCTOR_REDIS_PASSWORD", "hunter2", None),
        ("MIOPEN_AUTH_TOKEN", "hunter2", None),
        ("TORCHINDUCTOR_CACHE_DIR", "redis://me:hunter2@host/0", "redis://***@host/0"),
    ],
)
def test_secrets_of_a_family_are_not_recorded(
    tmp_path: Path, name: str, value: str, recorded: str | None
) -> None:
    """History is shared; a password in a variable that we record would be too."""
    assert collect(tmp_path, {name: value}, tmp_path).variables.get(name) == recorded


def test_caches_are_counted_where_the_variables_put_them(tmp_path: Path, write: Write) -> None:
    """Entries at the top only."""
    write("inductor/a/deep/file", "")
    write("inductor/b", "")
    write("home/.triton/cache/k1/x", "")
    (tmp_path / "home/.config/miopen").mkdir(parents=True)
    environ = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "HOME": str(tmp_path / "home"),
    }
    caches = collect(tmp_path, environ, tmp_path).caches
    assert caches == {"inductor": "2 entries", "triton": "1 entries", "miopen": "none"}


@pytest.mark.parametrize("setting", ["results.csv", "results%d.csv"])
def test_tuned_results_are_told_apart_by_their_content(
    tmp_path: Path, write: Write, setting: str
) -> None:
    """They decide which kernels run, so another file is another environment."""
    environ = {"PYTORCH_TUNABLEOP_ENABLED": "1", "PYTORCH_TUNABLEOP_FILENAME": setting}
    assert collect(tmp_path, environ, tmp_path).caches["tunableop"] == "none"
    write("results0.csv", "GemmTunableOp,nn,Default,0.1\n")
    first = collect(tmp_path, environ, tmp_path).caches["tunableop"]
    write("results0.csv", "GemmTunableOp,nn,Gemm_Hipblaslt_7,0.1\n")
    second = collect(tmp_path, environ, tmp_path).caches["tunableop"]
    assert first.startswith("1 files")
    assert first != second


def test_a_checkout_is_its_commit_and_whether_it_was_edited(tmp_path: Path) -> None:
    """Files that git does not track do not count as edits."""
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "first")
    (tmp_path / "results.jsonl").write_text("untracked")
    found = collect(tmp_path, {}, tmp_path)
    assert found.commit == git(tmp_path, "rev-parse", "HEAD").strip()
    assert found.dirty is False
    (tmp_path / "a").write_text("2")
    assert collect(tmp_path, {}, tmp_path).dirty is True


def test_a_checkout_without_a_commit_has_none(tmp_path: Path) -> None:
    """Nor does a folder that is no checkout, or that does not exist."""
    git(tmp_path, "init", "-q")
    assert collect(tmp_path, {}, tmp_path).commit is None
    assert collect(tmp_path, {}, tmp_path / "nowhere").commit is None


def test_a_git_that_hangs_or_is_missing_leaves_no_commit(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead network file system must not stop a run."""
    monkeypatch.setattr(environment_module, "GIT_TIMEOUT_S", 0.2)
    write("bin/git", "#!/bin/sh\nexec sleep 600\n").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert collect(tmp_path, {}, tmp_path).commit is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert collect(tmp_path, {}, tmp_path).commit is None


# --- versions and differences ------------------------------------------------------------

ENVIRONMENT = Environment(python="3.12.1", host="node1", torch="2.11.0", hip="7.2.1")


def test_a_worker_s_versions_are_filled_in() -> None:
    """None leaves what is known."""
    found = with_versions(ENVIRONMENT, {"torch": "2.12.0", "hip": None, "python": "3.13.0"})
    assert (found.torch, found.hip, found.python) == ("2.12.0", "7.2.1", "3.13.0")


def test_a_version_that_is_none_is_refused_by_name() -> None:
    """A worker that says something else than versions is not understood."""
    with pytest.raises(ValueError, match="'host' is no version"):
        with_versions(ENVIRONMENT, {"host": "elsewhere"})


def test_equal_environments_do_not_differ() -> None:
    """Not even in words."""
    assert difference(ENVIRONMENT, replace(ENVIRONMENT)) == []


def test_differences_are_said_in_words() -> None:
    """Field by field, variable by variable, each with both sides."""
    a = replace(
        ENVIRONMENT,
        commit="a" * 40,
        dirty=False,
        variables={"NCCL_ALGO": "Ring", "HSA_XNACK": "1", "OMP_NUM_THREADS": "4"},
        caches={"miopen": "3 entries"},
    )
    b = replace(
        a,
        torch="2.12.0",
        rocm="7.2.1",
        cpu_count=8,
        commit="b" * 40,
        dirty=True,
        variables={"NCCL_ALGO": "Tree", "OMP_NUM_THREADS": "4", "MIOPEN_FIND_MODE": "2"},
        caches={"miopen": "none"},
    )
    assert difference(a, b) == [
        "torch 2.11.0 -> 2.12.0",
        "rocm unknown -> 7.2.1",
        "cpu count unknown -> 8",
        "commit aaaaaaaaaaaa -> bbbbbbbbbbbb",
        "checkout clean -> with uncommitted changes",
        "HSA_XNACK 1 -> unset",
        "MIOPEN_FIND_MODE unset -> 2",
        "NCCL_ALGO Ring -> Tree",
        "miopen cache 3 entries -> none",
    ]


# --- checks ------------------------------------------------------------------------------


def check(name: str, found: list[Check]) -> Check:
    """Find the check of that name, which must be there once."""
    (one,) = [each for each in found if each.name == name]
    return one


def install(folder: Path, package: str, version: str, source: str | None = None) -> None:
    """Install a package as pip leaves it."""
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    if source is not None:
        (folder / package).mkdir()
        (folder / package / "version.py").write_text(source)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the interpreter no packages but those of the test."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder)])
    return folder


HIP_BUILD = "__version__ = '9.1.0'\ncuda: Optional[str] = None\nhip: Optional[str] = '7.9.5'\n"
CUDA_BUILD = (
    "from typing import Optional\ncuda: Optional[str] = '19.1'\nhip: Optional[str] = None\n"
)
CPU_BUILD = "cuda = None\nhip = None\n"


@pytest.mark.parametrize(
    ("source", "device", "ok", "word"),
    [
        (HIP_BUILD, GPU, True, "built for amd"),
        (CUDA_BUILD, NVIDIA, True, "built for nvidia"),
        (CPU_BUILD, CPU, True, "built for cpu"),
        (CUDA_BUILD, CPU, True, "built for nvidia"),
        (CPU_BUILD, GPU, False, "the GPU is amd's"),
        (CUDA_BUILD, GPU, False, "the GPU is amd's"),
        (HIP_BUILD, NVIDIA, False, "the GPU is nvidia's"),
        (CPU_BUILD, NVIDIA, False, "the GPU is nvidia's"),
        ("cuda: Opt", GPU, None, "not known"),
        (None, GPU, None, "not known"),
    ],
)
def test_a_torch_for_other_hardware_is_wrong(
    site: Path, source: str | None, device: Hardware, ok: bool | None, word: str
) -> None:
    """Found without importing it, from the file in which it says what it was built for."""
    install(site, "torch", "9.1.0", source)
    found = check("torch", checks(site.parent, {}, [device]))
    assert found.ok is ok
    assert word in found.detail
    assert bool(found.remedy) is (ok is False)


def test_the_remedy_names_the_wheels_of_the_installed_rocm(
    tmp_path: Path, site: Path, write: Write
) -> None:
    """So that it can be pasted."""
    install(site, "torch", "9.1.0", CPU_BUILD)
    write("opt/rocm/.info/version", "7.9.1-42\n")
    assert "index for rocm7.9" in check("torch", checks(tmp_path, {}, [GPU])).remedy
    (tmp_path / "opt/rocm/.info/version").write_text("unreadable")
    assert "rocm<version>" in check("torch", checks(tmp_path, {}, [GPU])).remedy


def test_missing_packages_are_named_with_their_remedy(tmp_path: Path, site: Path) -> None:
    """An empty interpreter."""
    found = checks(tmp_path, {}, [CPU])
    assert check("torch", found).ok is False
    assert "pip install" in check("torch", found).remedy
    assert check("torchvision", found).ok is False


@pytest.mark.parametrize(
    ("torch", "torchvision", "ok"),
    [
        ("9.1.0+rocm7.9", "0.9.0+rocm7.9", True),
        ("9.1.0+rocm7.9", "0.9.0+cu191", False),
        ("9.1.0+rocm7.9", "0.9.0", True),
        ("9.1.0+rocm7.9.1.git12345678", "0.9.0+rocm7.9.1.git87654321", True),
    ],
)
def test_a_torchvision_of_another_build_is_wrong(
    tmp_path: Path, site: Path, torch: str, torchvision: str, ok: bool
) -> None:
    """Its operators would not load; builds from source carry a commit and are not compared."""
    install(site, "torch", torch, HIP_BUILD)
    install(site, "torchvision", torchvision)
    assert check("torchvision", checks(tmp_path, {}, [GPU])).ok is ok


def test_an_amd_driver_without_a_visible_gpu_is_wrong(tmp_path: Path, write: Write) -> None:
    """The GPU is there and this process cannot have it: say why."""
    write("sys/module/amdgpu/version", "6.99.1")
    write("sys/class/kfd/kfd/topology/system_properties", "")
    found = checks(tmp_path, {}, [CPU])
    assert check("visible devices", found).ok is False
    assert "HIP_VISIBLE_DEVICES" in check("visible devices", found).remedy
    assert "--device=/dev/kfd" in check("/dev/kfd", found).remedy


def test_an_nvidia_driver_without_a_visible_gpu_is_wrong(tmp_path: Path, write: Write) -> None:
    """A device file and nothing that answers."""
    write("dev/nvidia0", "")
    found = checks(tmp_path, {}, [CPU])
    assert check("visible devices", found).ok is False
    assert check("NVIDIA driver", found).ok is False


def test_a_machine_without_gpus_is_asked_nothing_about_them(tmp_path: Path) -> None:
    """Its device is its CPU, and that is in order."""
    found = checks(tmp_path, {}, [CPU])
    assert check("visible devices", found).ok is None
    assert not {"/dev/kfd", "NVIDIA driver", "groups video and render"} & {c.name for c in found}


def test_visible_devices_are_listed_by_their_keys(tmp_path: Path) -> None:
    """With the numbers by which torch knows them."""
    found = check("visible devices", checks(tmp_path, {}, [GPU, replace(GPU, index=1)]))
    assert (found.ok, found.detail) == (True, "0: mi300x, 1: mi300x")


def test_an_amd_display_beside_an_nvidia_gpu_asks_for_no_rocm(
    tmp_path: Path, site: Path, write: Write
) -> None:
    """Which torch is right is decided by the devices that are measured."""
    write("sys/module/amdgpu/version", "6.99.1")
    write("sys/class/kfd/kfd/topology/system_properties", "")
    install(site, "torch", "9.1.0", CUDA_BUILD)
    assert check("torch", checks(tmp_path, {}, [NVIDIA])).ok is True


@pytest.mark.parametrize(
    ("group", "kfd", "ok"),
    [(44, True, True), (7, True, True), (44, False, True), (7, False, False)],
)
def test_groups_matter_where_access_is_not_granted_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int, kfd: bool, ok: bool
) -> None:
    """A container may grant the devices without any group."""
    for folder in ("etc", "dev"):
        (tmp_path / folder).mkdir()
    (tmp_path / "etc/group").write_text("root:x:0:\nvideo:x:44:\nrender:x:44:\ntorn\n")
    if kfd:
        (tmp_path / "dev/kfd").touch()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 1000)
    monkeypatch.setattr(os, "getgroups", lambda: [group])
    found = check("groups video and render", checks(tmp_path, {}, [GPU]))
    assert found.ok is ok
    assert bool(found.remedy) is not ok


def test_root_needs_no_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may open everything."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert check("groups video and render", checks(tmp_path, {}, [GPU])).ok is True


def test_processes_on_amd_gpus_are_named(tmp_path: Path, write: Write) -> None:
    """KFD lists those of the whole machine; no list is not an empty list."""
    name = "other processes on the GPUs"
    assert check(name, checks(tmp_path, {}, [GPU])).ok is None
    (tmp_path / "sys/class/kfd/kfd/proc").mkdir(parents=True)
    assert check(name, checks(tmp_path, {}, [GPU])).ok is True
    write("sys/class/kfd/kfd/proc/4711/pasid", "32770")
    found = check(name, checks(tmp_path, {}, [GPU]))
    assert (found.ok, found.detail) == (False, "1: 4711")


def test_a_compiler_is_the_one_the_variable_names(tmp_path: Path, write: Write) -> None:
    """A compiler elsewhere does not help when CXX names one that is not there."""
    write("bin/g++", "#!/bin/sh\n").chmod(0o755)
    environ = {"PATH": str(tmp_path / "bin")}
    assert check("C++ compiler", checks(tmp_path, environ, [CPU])).ok is True
    missing = check("C++ compiler", checks(tmp_path, {**environ, "CXX": "icpx -O3"}, [CPU]))
    assert missing.ok is False
    assert "icpx" in missing.detail
    assert check("C++ compiler", checks(tmp_path, {"PATH": ""}, [CPU])).ok is False


def test_a_full_or_missing_temporary_folder_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compilers write there."""
    environ = {"TMPDIR": str(tmp_path)}
    monkeypatch.setattr(readiness, "DISK_NEEDED_BYTES", 1)
    assert check("temporary folder", checks(tmp_path, environ, [CPU])).ok is True
    monkeypatch.setattr(readiness, "DISK_NEEDED_BYTES", 2**80)
    assert check("temporary folder", checks(tmp_path, environ, [CPU])).ok is False
    gone = checks(tmp_path, {"TMPDIR": str(tmp_path / "gone")}, [CPU])
    assert "set TMPDIR" in check("temporary folder", gone).remedy


@pytest.mark.parametrize(
    ("governor", "ok"), [("performance\n", True), ("powersave\n", False), (None, None)]
)
def test_a_governor_that_saves_power_is_wrong(
    tmp_path: Path, write: Write, governor: str | None, ok: bool | None
) -> None:
    """Where it can be read."""
    if governor is not None:
        write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor)
    assert check("CPU governor", checks(tmp_path, {}, [CPU])).ok is ok


@pytest.mark.parametrize(
    ("value", "nodes", "ok"),
    [("0\n", 2, True), ("1\n", 2, False), ("1\n", 1, True), (None, 2, None)],
)
def test_numa_balancing_matters_with_more_than_one_node(
    tmp_path: Path, write: Write, value: str | None, nodes: int, ok: bool | None
) -> None:
    """With one node there is nothing to balance."""
    for node in range(nodes):
        write(f"sys/devices/system/node/node{node}/cpulist", "0")
    if value is not None:
        write("proc/sys/kernel/numa_balancing", value)
    assert check("NUMA balancing", checks(tmp_path, {}, [CPU])).ok is ok


def test_every_failed_check_says_what_to_do(tmp_path: Path, site: Path, write: Write) -> None:
    """On a machine where as much as possible is wrong."""
    write("sys/module/amdgpu/version", "6.99.1")
    write("dev/nvidia0", "")
    write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave")
    write("proc/sys/kernel/numa_balancing", "1")
    write("sys/class/kfd/kfd/topology/system_properties", "")
    failed = [c for c in checks(tmp_path, {"PATH": "", "TMPDIR": "/nowhere"}, []) if c.ok is False]
    assert len(failed) >= 8
    assert all(c.remedy for c in failed)
