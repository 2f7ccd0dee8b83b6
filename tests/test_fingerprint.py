"""What is recorded of an environment, how two differ, and what the checks say."""

import importlib
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from repositories import Repository

from bench_lib.backends import folders as cached
from bench_lib.backends.amd import machine
from bench_lib.environment import commits as environment_module
from bench_lib.environment.fingerprint import caches, collect, difference, with_versions
from bench_lib.environment.readiness import checks
from bench_lib.environment.variables import CACHE_FOLDERS
from bench_lib.model import Environment, Hardware

GPU = Hardware(vendor="amd", name="", key="mi300x")
CPU = Hardware(vendor="cpu", name="", key="cpu-test-2c")
NVIDIA = Hardware(vendor="nvidia", name="", key="h200")


@pytest.fixture
def write(tmp_path):
    def write(path, content):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return file

    return write


# --- collecting --------------------------------------------------------------------------


def test_an_amd_machine_is_described_by_its_files(tmp_path, write):
    write("sys/module/amdgpu/version", "6.99.1\n")
    write("opt/rocm/.info/version", "7.9.1-42\n")
    write("proc/cpuinfo", "processor : 0\nmodel name\t: Test CPU 9000\n")
    found = collect(tmp_path, {}, tmp_path)
    assert (found.driver, found.rocm, found.cpu) == ("amdgpu 6.99.1", "7.9.1-42", "Test CPU 9000")
    assert found.cpu_count == len(os.sched_getaffinity(0))
    assert found.host
    assert found.kernel
    assert found.python.count(".") == 2


def test_rocm_is_looked_for_where_the_variable_says(tmp_path, write):
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
def test_the_nvidia_driver_is_read_from_its_banner(tmp_path, write, banner, version):
    write("proc/driver/nvidia/version", banner + "GCC version:  gcc version 99.1.0\n")
    assert collect(tmp_path, {}, tmp_path).driver == f"nvidia {version}"


def test_an_empty_machine_is_described_by_none(tmp_path):
    found = collect(tmp_path, {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}, tmp_path)
    assert (found.driver, found.rocm, found.commit, found.dirty) == (None, None, None, None)
    assert (found.torch, found.hip, found.variables) == (None, None, {})
    assert (found.firmware, found.governor, found.numa_balancing) == (None, None, None)
    assert (found.huge_pages, found.kernel_options, found.libraries) == (None, None, {})
    assert set(found.caches.values()) == {"cold"}


def test_settings_of_the_host_are_read_from_the_kernel(tmp_path, write):
    write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "schedutil\n")
    write("proc/sys/kernel/numa_balancing", "1\n")
    write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    found = collect(tmp_path, {}, tmp_path)
    assert (found.governor, found.numa_balancing) == ("schedutil", True)
    assert found.huge_pages == "madvise"
    write("proc/sys/kernel/numa_balancing", "0\n")
    write("sys/kernel/mm/transparent_hugepage/enabled", "torn")
    found = collect(tmp_path, {}, tmp_path)
    assert (found.numa_balancing, found.huge_pages) == (False, None)


def test_of_the_kernel_s_command_line_only_the_listed_options_are_kept(tmp_path, write):
    write(
        "proc/cmdline",
        "BOOT_IMAGE=/vmlinuz root=UUID=0000-1111 luks.key=hunter2 iommu=pt nosmt "
        'hugepagesz=1G hugepages=8 hugepagesz=2M intel-iommu=on note="a mitigations=off b" '
        "amdgpu.noretry=0 pci=realloc=off quiet -- mitigations=off\n",
    )
    assert collect(tmp_path, {}, tmp_path).kernel_options == {
        "amdgpu.noretry": "0",
        "hugepages": "8",
        "hugepagesz": "1G,2M",
        "intel_iommu": "on",
        "iommu": "pt",
        "nosmt": "set",
        "pci": "realloc=off",
    }
    write("proc/cmdline", "quiet\n")
    assert collect(tmp_path, {}, tmp_path).kernel_options == {}


def test_firmware_is_every_version_that_the_drivers_tell_once(tmp_path, write):
    for slot, version in (("05", "113-X-002"), ("26", "113-X-001"), ("46", "113-X-002")):
        write(f"sys/bus/pci/drivers/amdgpu/0000:{slot}:00.0/vbios_version", version)
    (tmp_path / "sys/bus/pci/drivers/amdgpu/0000:65:00.0").mkdir()
    write("proc/driver/nvidia/gpus/0000:01:00.0/information", "Video BIOS: \t 9a.00.1\nIRQ: 1\n")
    write("proc/driver/nvidia/gpus/0000:02:00.0/information", "Video BIOS: \t ??.??.?\n")
    assert collect(tmp_path, {}, tmp_path).firmware == "113-X-001, 113-X-002, 9a.00.1"


def test_rocm_s_libraries_are_told_by_the_names_of_their_files(tmp_path, write):
    for name in (
        "libMIOpen.so",
        "libMIOpen.so.1",
        "libMIOpen.so.1.0",
        "libMIOpen.so.1.0.79901",
        "librccl.so.1.9.1",
        "librccl.so.1.10.1",
        "librccl.so.1.10.1.debug",
        "libother.so.5.0.1",
    ):
        write(f"opt/rocm-7.9/lib/{name}", "")
    found = collect(tmp_path, {"ROCM_PATH": "/opt/rocm-7.9"}, tmp_path).libraries
    assert found == {"MIOpen": "1.0.79901", "rccl": "1.10.1"}


def test_kernels_that_replace_a_library_s_own_are_told_apart(tmp_path, write):
    environ = {"HIPBLASLT_TENSILE_LIBPATH": str(tmp_path / "tuned")}
    assert collect(tmp_path, environ, tmp_path).libraries == {}
    write("tuned/a.co", "1")
    first = collect(tmp_path, environ, tmp_path).libraries["hipblaslt kernels"]
    write("tuned/gfx942/b.dat", "22")
    second = collect(tmp_path, environ, tmp_path).libraries["hipblaslt kernels"]
    assert (first[:8], second[:9]) == ("1 file, ", "2 files, ")
    write("tuned/gfx942/b.dat", "333")
    third = collect(tmp_path, environ, tmp_path).libraries["hipblaslt kernels"]
    assert len({first[8:], second[9:], third[9:]}) == 3


def test_variables_that_change_speed_are_kept_and_no_others(tmp_path):
    kept = {
        "HIP_VISIBLE_DEVICES": "0",
        "HSA_XNACK": "1",
        "MIOPEN_FIND_MODE": "2",
        "NCCL_ALGO": "Ring",
        "PYTORCH_HIP_ALLOC_CONF": "expandable_segments:True",
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


# --- what is private -----------------------------------------------------------------------------


PRIVATE = {
    "TRITON_STORE_PASS": "hunter2",
    "TRITON_STORE_PASSPHRASE": "hunter2",
    "NCCL_PROXY_PAT": "hunter2",
    "NCCL_PSK": "hunter2",
    "TORCHINDUCTOR_BEARER": "hunter2",
    "MIOPEN_PRIVATE": "hunter2",
    "TRITON_X": "12345",
    "TORCHINDUCTOR_REDIS": "redis://me:hunter2@host/0",
    "TORCHINDUCTOR_CACHE_DIR": "redis://hunter2@host/0",
    "NCCL_SOCKET_IFNAME": "me:hunter2@host",
    "TRITON_HOME": "https://hooks.slack.com/services/T0/B0/hunter2",
    "LD_PRELOAD": "ftp://hunter2/a.so",
}


@pytest.mark.parametrize(("name", "value"), PRIVATE.items())
def test_of_a_private_value_it_is_recorded_that_it_is_set(tmp_path, name, value):
    found = collect(tmp_path, {name: value}, tmp_path)
    assert found.variables == {name: "set"}
    unset = difference(replace(found, variables={}), found)
    assert unset == ([] if name in CACHE_FOLDERS else [f"{name} unset -> set"])


def test_what_was_set_on_purpose_is_recorded_whatever_it_is_called(tmp_path):
    environ = {"MINE": "redis://me:hunter2@host", "MY_TOKEN": "hunter2", "OTHER": "1"}
    told = ("MINE", "MY_TOKEN")
    found = collect(tmp_path, environ, tmp_path, told).variables
    assert found == dict.fromkeys(told, "set")


@pytest.mark.parametrize(
    "name",
    ["MIOPEN_ACCESS_KEY_ID", "TRITON_API_KEY", "TORCHINDUCTOR_PASSWORD", "MIOPEN_AUTH_TOKEN"],
)
def test_a_secret_by_its_name_is_not_recorded_at_all(tmp_path, name):
    assert collect(tmp_path, {name: "hunter2"}, tmp_path).variables == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYTORCH_ALLOC_CONF", "expandable_segments:True,a:b"),
        ("LD_PRELOAD", "/opt/a.so:/opt/b.1.2.so"),
        ("TORCHINDUCTOR_CACHE_DIR", "/tmp/me"),
        ("TRITON_ANYTHING", "True"),
    ],
)
def test_what_holds_nothing_private_is_recorded_as_it_is(tmp_path, name, value):
    assert collect(tmp_path, {name: value}, tmp_path).variables == {name: value}


@pytest.mark.parametrize("old", ["ring graph", "hidden 12ab-0123456789ab", "set"])
@pytest.mark.parametrize("new", ["set", "hidden 12ab-ba9876543210"])
def test_a_value_that_is_not_recorded_is_no_difference(old, new):
    a, b = (replace(ENVIRONMENT, variables={"NCCL_X": value}) for value in (old, new))
    assert difference(a, b) == difference(b, a) == []


def test_caches_are_counted_where_the_variables_put_them(tmp_path, write):
    write("inductor/fxgraph/ab/k1/graph", "")
    write("inductor/fxgraph/ab/k2/graph", "")
    write("inductor/fxgraph/cd/k3/graph", "")
    write("inductor/zz/code.py", "")
    write("home/.triton/cache/k1/x", "")
    write("home/.config/miopen/3.9/gfx.HIP.ufdb.txt", "a=1\n\nb=2\n")
    write("home/.config/miopen/gfx.HIP.udb.txt", "c=3")
    write("home/.config/miopen/gfx.HIP.ufdb.txt.time", "17\n")
    write("kernels/3.9/gfx.ukdb", "SQLite")
    write("kernels/3.9/gfx.ukdb.lock", "")
    environ = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "MIOPEN_CUSTOM_CACHE_DIR": "~/../kernels",
        "HOME": str(tmp_path / "home"),
    }
    found = caches(environ, tmp_path)
    assert found.pop("miopen").startswith("warm, 3 entries, ")
    assert found == {
        "inductor": "warm, 3 entries",
        "triton": "warm, 1 entry",
        "miopen kernels": "warm, 1 file",
    }


def test_inductor_without_graphs_is_counted_by_its_generated_code(tmp_path, write):
    environ = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    write("inductor/locks/a.lock", "")
    (tmp_path / "inductor/fxgraph").mkdir()
    assert caches(environ, tmp_path)["inductor"] == "cold"
    write("inductor/zz/code.py", "")
    assert caches(environ, tmp_path)["inductor"] == "warm, 1 entry"


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "ceph", "fuse.ceph", "ext4"])
def test_miopen_s_databases_of_a_networked_home_are_in_the_temporary_folder(
    tmp_path, write, monkeypatch, kind
):
    home, temporary = tmp_path / "home of mine", tmp_path / "tmp"
    at = str(home).replace(" ", "\\040")
    mounts = write("mounts", f"/dev/sda / ext4 rw 0 0\nserver:/home {at} {kind} rw 0 0\n")
    monkeypatch.setattr(machine, "MOUNTS", mounts)
    write("tmp/.config/miopen/3.9/gfx.HIP.ufdb.txt", "a=1\nb=2\n")
    write("home of mine/.config/miopen/3.9/gfx.HIP.ufdb.txt", "a=1\n")
    environ = {"HOME": str(home), "TMPDIR": str(temporary)}
    is_networked = kind not in ("ext4", "fuse.ceph")
    entries = "2 entries" if is_networked else "1 entry"
    assert caches(environ, tmp_path)["miopen"].startswith(f"warm, {entries}, ")
    name = "MIOpen's databases"
    told = [each for each in checks(tmp_path, environ, [GPU]) if each.name == name]
    assert [each.ok for each in told] == [False] * is_networked
    environ["MIOPEN_USER_DB_PATH"] = str(home / ".config/miopen")
    assert caches(environ, tmp_path)["miopen"].startswith("warm, 1 entry, ")
    assert name not in [each.name for each in checks(tmp_path, environ, [GPU])]


def miopen(folder):
    return caches({"MIOPEN_USER_DB_PATH": str(folder)}, folder)["miopen"]


def test_a_database_is_told_by_its_records_in_any_order(tmp_path, write):
    write("a/gfx.ufdb.txt", "x=1\ny=2\n")
    write("b/gfx.ufdb.txt", "y=2\nx=1")
    write("c/gfx.ufdb.txt", "x=1\ny=3\n")
    write("d/other.ufdb.txt", "x=1\ny=2\n")
    found = [miopen(tmp_path / name) for name in "abcd"]
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_databases_without_a_record_are_cold(tmp_path, write):
    write("gfx.ufdb.txt", "\n")
    (tmp_path / "folder.udb.txt").mkdir()
    assert miopen(tmp_path) == "cold"
    assert miopen(tmp_path / "nowhere") == "cold"


def test_large_databases_are_told_by_names_and_sizes(tmp_path, write, monkeypatch):
    monkeypatch.setattr(cached, "CONTENT_BYTES", 3)
    write("gfx.ufdb.txt", "x=1\n")
    first = miopen(tmp_path)
    assert first.startswith("warm, 1 file, ")
    write("gfx.ufdb.txt", "x=2\n")
    assert miopen(tmp_path) == first
    write("gfx.ufdb.txt", "x=22\n")
    assert miopen(tmp_path) != first


def test_no_more_files_are_looked_at_than_is_cheap(tmp_path, write, monkeypatch):
    monkeypatch.setattr(cached, "MOST_FILES", 2)
    for number in range(4):
        write(f"{number}.ukdb", "")
    environ = {"MIOPEN_CUSTOM_CACHE_DIR": str(tmp_path)}
    assert caches(environ, tmp_path)["miopen kernels"] == "warm, 2 files"


@pytest.mark.parametrize("setting", ["results.csv", "results%d.csv"])
def test_tuned_results_are_told_apart_by_their_content(tmp_path, write, setting):
    environ = {"PYTORCH_TUNABLEOP_ENABLED": "1", "PYTORCH_TUNABLEOP_FILENAME": setting}
    validator = "Validator,PT_VERSION,9.1.0\n"
    write("results0.csv", validator)
    write("results_of_last_year.csv", "GemmTunableOp,nn,Default,0.1\n")
    assert caches(environ, tmp_path)["tunableop"] == "cold"
    write("results0.csv", f"{validator}GemmTunableOp,nn,Default,0.1\n")
    first = caches(environ, tmp_path)["tunableop"]
    write("results0.csv", f"{validator}GemmTunableOp,nn,Gemm_Hipblaslt_7,0.1\n")
    second = caches(environ, tmp_path)["tunableop"]
    assert first.startswith("warm, 1 entry, ")
    assert first != second
    assert "tunableop" not in caches({**environ, "PYTORCH_TUNABLEOP_ENABLED": "0"}, tmp_path)


def test_a_checkout_is_its_commit_and_whether_it_was_edited(tmp_path):
    folder = tmp_path / "checkout"
    commit = Repository(folder).commit("first", a="1")
    (folder / "results.jsonl").write_text("untracked")
    found = collect(tmp_path, {}, folder)
    assert (found.commit, found.dirty) == (commit, False)
    (folder / "a.py").write_text("2")
    assert collect(tmp_path, {}, folder).dirty is True


def test_a_checkout_without_a_commit_has_none(tmp_path):
    assert collect(tmp_path, {}, Repository(tmp_path / "checkout").folder).commit is None
    assert collect(tmp_path, {}, tmp_path / "nowhere").commit is None


def test_a_git_that_hangs_or_is_missing_leaves_no_commit(tmp_path, write, monkeypatch):
    monkeypatch.setattr(environment_module, "GIT_TIMEOUT_S", 0.2)
    write("bin/git", "#!/bin/sh\nexec sleep 600\n").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert collect(tmp_path, {}, tmp_path).commit is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert collect(tmp_path, {}, tmp_path).commit is None


# --- versions and differences ------------------------------------------------------------

ENVIRONMENT = Environment(python="3.12.1", host="node1", torch="2.11.0", hip="7.2.1")


def test_a_worker_s_versions_are_filled_in():
    found = with_versions(ENVIRONMENT, {"torch": "2.12.0", "hip": None, "python": "3.13.0"})
    assert (found.torch, found.hip, found.python) == ("2.12.0", "7.2.1", "3.13.0")
    with_torchao = with_versions(ENVIRONMENT, {"torchao": "0.17.0"})
    assert with_torchao.torchao == "0.17.0"
    later = replace(with_torchao, torchao="0.18.0")
    assert difference(with_torchao, later) == ["torchao 0.17.0 -> 0.18.0"]
    assert difference(ENVIRONMENT, later) == []


def test_differences_are_said_in_words():
    a = replace(
        ENVIRONMENT,
        cpu_count=4,
        commit="a" * 40,
        dirty=False,
        numa_balancing=True,
        huge_pages="always",
        kernel_options={"iommu": "pt", "nosmt": "set"},
        libraries={"MIOpen": "1.0.79901", "rccl": "1.0"},
        variables={"NCCL_ALGO": "Ring", "HSA_XNACK": "1", "OMP_NUM_THREADS": "4"},
        caches={"miopen": "warm, 3 entries, 0123456789ab"},
    )
    b = replace(
        a,
        torch="2.12.0",
        cpu_count=8,
        commit="b" * 40,
        dirty=True,
        numa_balancing=False,
        huge_pages="madvise",
        kernel_options={"iommu": "pt", "mitigations": "off"},
        libraries={"MIOpen": "1.0.80001", "rccl": "1.0"},
        variables={"NCCL_ALGO": "Tree", "OMP_NUM_THREADS": "4", "MIOPEN_FIND_MODE": "2"},
        caches={"miopen": "cold"},
    )
    assert difference(a, b) == [
        "torch 2.11.0 -> 2.12.0",
        "cpu count 4 -> 8",
        "commit aaaaaaaaaaaa -> bbbbbbbbbbbb",
        "checkout clean -> with uncommitted changes",
        "numa balancing on -> off",
        "huge pages always -> madvise",
        "kernel option mitigations unset -> off",
        "kernel option nosmt set -> unset",
        "MIOpen 1.0.79901 -> 1.0.80001",
        "HSA_XNACK 1 -> unset",
        "MIOPEN_FIND_MODE unset -> 2",
        "NCCL_ALGO Ring -> Tree",
        "miopen cache warm, 3 entries, 0123456789ab -> cold",
    ]


def test_what_one_side_does_not_know_is_no_difference():
    known = replace(
        ENVIRONMENT,
        rocm="7.2.1",
        dirty=True,
        numa_balancing=False,
        kernel_options={"iommu": "pt"},
        libraries={"rccl": "1.0"},
        caches={"triton": "cold"},
    )
    assert difference(ENVIRONMENT, known) == []
    assert difference(known, ENVIRONMENT) == []


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ("cold", "warm, 1 entry", True),
        ("none", "cold", False),
        ("warm, 41 entries", "warm, 45 entries", False),
        ("2 files, 0123456789ab", "warm, 9 entries, ab0123456789", False),
        ("warm, 9 entries, 0123456789ab", "warm, 9 entries, ab0123456789", True),
        ("warm, 9 entries, 0123456789ab", "warm, 1 file, 0123456789ab", False),
    ],
)
def test_a_cache_differs_where_it_was_cold_or_holds_other_choices(old, new, differs):
    a, b = (replace(ENVIRONMENT, caches={"miopen": state}) for state in (old, new))
    assert difference(a, b) == ([f"miopen cache {old} -> {new}"] if differs else [])


# --- checks ------------------------------------------------------------------------------


def check(name, found):
    (one,) = [each for each in found if each.name == name]
    return one


def install(folder, package, version, source=None):
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    if source is not None:
        (folder / package).mkdir()
        (folder / package / "version.py").write_text(source)


@pytest.fixture
def site(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    folder.mkdir()
    importlib.import_module("bench_lib.backends.amd.profilers")  # not found there afterwards
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
        (CUDA_BUILD, CPU, True, "built for nvidia"),
        (CPU_BUILD, GPU, False, "the GPU is amd's"),
        (CUDA_BUILD, GPU, False, "the GPU is amd's"),
        (HIP_BUILD, NVIDIA, False, "the GPU is nvidia's"),
        ("cuda: Opt", GPU, None, "unknown platform"),
        (None, GPU, None, "unknown platform"),
    ],
)
def test_a_torch_for_other_hardware_is_wrong(site, source, device, ok, word):
    install(site, "torch", "9.1.0", source)
    found = check("torch", checks(site.parent, {}, [device]))
    assert found.ok is ok
    assert word in found.detail
    assert bool(found.remedy) is (ok is False)


def test_the_remedy_names_the_wheels_of_the_installed_rocm(tmp_path, site, write):
    install(site, "torch", "9.1.0", CPU_BUILD)
    write("opt/rocm/.info/version", "7.9.1-42\n")
    assert "index for rocm7.9" in check("torch", checks(tmp_path, {}, [GPU])).remedy
    (tmp_path / "opt/rocm/.info/version").write_text("unreadable")
    assert "rocm<version>" in check("torch", checks(tmp_path, {}, [GPU])).remedy


@pytest.mark.parametrize(
    ("installed", "built", "ok"),
    [
        ("7.9.1-42", HIP_BUILD, True),
        ("7.10.0", HIP_BUILD, False),
        ("7.9.1", HIP_BUILD.replace("7.9.5", "7.11.5"), False),
        ("7.10.0", HIP_BUILD + "rocm: Optional[str] = '7.10.1'\n", True),
        ("unreadable", HIP_BUILD, True),
        (None, HIP_BUILD, True),
        ("7.9.1", HIP_BUILD.replace("7.9.5", "unreadable"), True),
    ],
)
def test_a_torch_of_another_rocm_is_worth_a_warning(tmp_path, site, write, *, installed, built, ok):
    install(site, "torch", "9.1.0", built)
    if installed is not None:
        write("opt/rocm/.info/version", installed)
    found = check("torch", checks(tmp_path, {}, [GPU]))
    assert (found.ok, found.fatal) == (ok, False)
    assert ok or f"ROCm {installed} is installed" in found.detail


@pytest.mark.parametrize(
    ("torch", "torchvision", "ok"),
    [
        ("9.1.0+rocm7.9", "0.9.0+rocm7.9", True),
        ("9.1.0+rocm7.9", "0.9.0+cu191", False),
        ("9.1.0+rocm7.9", "0.9.0", True),
        ("9.1.0+rocm7.9.1.git12345678", "0.9.0+rocm7.9.1.git87654321", True),
    ],
)
def test_a_torchvision_of_another_build_is_wrong(tmp_path, site, torch, torchvision, ok):
    install(site, "torch", torch, HIP_BUILD)
    install(site, "torchvision", torchvision)
    assert check("torchvision", checks(tmp_path, {}, [GPU])).ok is ok


def test_an_amd_driver_without_a_visible_gpu_is_wrong(tmp_path, write):
    write("sys/module/amdgpu/version", "6.99.1")
    write("sys/class/kfd/kfd/topology/system_properties", "")
    found = checks(tmp_path, {}, [CPU])
    assert check("visible devices", found).ok is False
    assert "HIP_VISIBLE_DEVICES" in check("visible devices", found).remedy
    assert "--device=/dev/kfd" in check("/dev/kfd", found).remedy
    assert "--device=/dev/dri" in check("/dev/dri/renderD*", found).remedy


@pytest.mark.parametrize(
    ("vendor", "kind", "missing"),
    [
        ("0x1002", "0x120000", True),
        ("0x1002", "0x038000", True),
        ("0x1002", "0x030000", False),
    ],
)
def test_an_instinct_without_its_driver_is_seen_on_the_bus(tmp_path, write, vendor, kind, missing):
    write("sys/bus/pci/devices/0000:05:00.0/vendor", vendor)
    write("sys/bus/pci/devices/0000:05:00.0/class", kind)
    found = [c for c in checks(tmp_path, {}, [CPU]) if c.name == "AMD driver"]
    assert [(c.ok, c.fatal) for c in found] == ([(False, True)] if missing else [])
    assert all("modprobe amdgpu" in c.remedy for c in found)


@pytest.mark.parametrize(("usable", "ok"), [({"renderD128"}, True), (set(), False)])
def test_render_nodes_have_to_be_open_to_this_user(tmp_path, write, monkeypatch, usable, ok):
    for name in ("renderD128", "renderD129"):
        write(f"dev/dri/{name}", "")
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name in usable)
    found = check("/dev/dri/renderD*", checks(tmp_path, {}, [GPU]))
    assert (found.ok, found.fatal) == (ok, not ok)
    assert found.detail.startswith("1 of 2" if ok else "none of 2")


def test_a_machine_without_gpus_is_asked_nothing_about_them(tmp_path):
    found = checks(tmp_path, {}, [CPU])
    assert check("visible devices", found).ok is None
    assert not {"/dev/kfd", "NVIDIA driver", "groups video and render"} & {c.name for c in found}


def test_an_amd_display_beside_an_nvidia_gpu_asks_for_no_rocm(tmp_path, site, write):
    write("sys/module/amdgpu/version", "6.99.1")
    write("sys/class/kfd/kfd/topology/system_properties", "")
    install(site, "torch", "9.1.0", CUDA_BUILD)
    assert check("torch", checks(tmp_path, {}, [NVIDIA])).ok is True


@pytest.mark.parametrize(
    ("group", "kfd", "ok"),
    [(44, True, True), (7, True, True), (44, False, True), (7, False, False)],
)
def test_groups_matter_where_access_is_not_granted_otherwise(tmp_path, monkeypatch, group, kfd, ok):
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
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert check("groups video and render", checks(tmp_path, {}, [GPU])).ok is True


def test_processes_on_amd_gpus_are_named(tmp_path, write):
    name = "other processes on the GPUs"
    assert check(name, checks(tmp_path, {}, [GPU])).ok is None
    (tmp_path / "sys/class/kfd/kfd/proc").mkdir(parents=True)
    assert check(name, checks(tmp_path, {}, [GPU])).ok is True
    write("sys/class/kfd/kfd/proc/4711/pasid", "32770")
    found = check(name, checks(tmp_path, {}, [GPU]))
    assert (found.ok, found.detail) == (False, "1: 4711")


def test_the_profiler_is_shown_with_its_words(tmp_path, write):
    environ = {"PATH": str(tmp_path / "bin"), "ROCM_PATH": str(tmp_path / "nowhere")}
    assert check("profiler", checks(tmp_path, environ, [GPU])).ok is None
    tool = write("bin/rocprofv3", "#!/bin/sh\n")
    tool.chmod(0o755)
    found = check("profiler", checks(tmp_path, environ, [GPU]))
    words = "--stats --kernel-trace --marker-trace --memory-copy-trace --output-format csv"
    where = "-d FOLDER -o case_%pid% -- APP"
    assert (found.ok, found.detail) == (True, f"{tool} {words} {where}")


def test_a_compiler_is_the_one_the_variable_names(tmp_path, write):
    write("bin/g++", "#!/bin/sh\n").chmod(0o755)
    environ = {"PATH": str(tmp_path / "bin")}
    for blank in ({}, {"CXX": ""}, {"CXX": " "}):
        assert check("C++ compiler", checks(tmp_path, {**environ, **blank}, [CPU])).ok is True
    missing = check("C++ compiler", checks(tmp_path, {**environ, "CXX": "icpx -O3"}, [CPU]))
    assert missing.ok is False
    assert "CXX" in missing.remedy


@pytest.mark.parametrize(("device", "cxx_is_fatal"), [(CPU, True), (GPU, False), (NVIDIA, False)])
def test_compilers_are_needed_for_the_device_that_is_measured(tmp_path, device, cxx_is_fatal):
    found = checks(tmp_path, {"PATH": ""}, [device])
    assert check("C++ compiler", found).ok is False
    assert check("C++ compiler", found).fatal is cxx_is_fatal
    if device is CPU:
        assert not {"C compiler", "triton"} & {each.name for each in found}
    else:
        assert check("C compiler", found).fatal is True


@pytest.mark.parametrize(
    "name", ["triton", "triton-rocm", "pytorch-triton-rocm", "pytorch-triton", None]
)
def test_triton_is_found_under_any_of_its_names(tmp_path, site, name):
    if name is not None:
        install(site, name, "9.9.0")
    found = check("triton", checks(tmp_path, {}, [GPU]))
    assert found.ok is (name is not None)
    assert found.fatal is (name is None)


@pytest.mark.parametrize(
    ("governor", "balancing", "nodes", "told"),
    [
        ("performance\n", "0\n", 2, set()),
        ("powersave\n", "1\n", 2, {"CPU governor", "NUMA balancing"}),
        (None, "1\n", 1, set()),
        (None, None, 2, set()),
    ],
)
def test_settings_of_the_kernel_that_make_times_vary_are_told(
    tmp_path, write, *, governor, balancing, nodes, told
):
    for node in range(nodes):
        write(f"sys/devices/system/node/node{node}/cpulist", "0")
    if governor is not None:
        write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor)
    if balancing is not None:
        write("proc/sys/kernel/numa_balancing", balancing)
    settings = {"CPU governor", "NUMA balancing"}
    assert {c.name for c in checks(tmp_path, {}, [CPU])} & settings == told


def test_every_failed_check_says_what_to_do(tmp_path, site, write):
    write("sys/module/amdgpu/version", "6.99.1")
    write("dev/nvidia0", "")
    write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave")
    write("proc/sys/kernel/numa_balancing", "1")
    write("sys/class/kfd/kfd/topology/system_properties", "")
    found = checks(tmp_path, {"PATH": ""}, [])
    assert all(c.remedy for c in found if c.ok is False)
    assert {c.name for c in found if c.ok is False and c.fatal} == {
        "visible devices",
        "/dev/kfd",
        "/dev/dri/renderD*",
        "NVIDIA driver",
        "torch",
        "torchvision",
        "triton",
        "C compiler",
    }
    assert {c.name for c in found if c.ok is False and not c.fatal} == {
        "C++ compiler",
        "CPU governor",
        "NUMA balancing",
    }
