"""AMD's own library and Python package on made-up machines, beside our decoding.

They need ROCm's ``amdsmi`` (``share/amd_smi``, ``lib``) and a C compiler, and no
GPU: the machine's ``/sys`` and ``/dev`` are in a box.  ``/opt/rocm`` is taken, or the folders that
BENCH_LIB_TEST_ROCM names, one a release.  Without any they are skipped.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from standins.rocm import box
from standins.rocm.machine import HERE, mi250x, mi300x
from test_kernel_in_a_box import MACHINES, at_work

NAMED = os.environ.get("BENCH_LIB_TEST_ROCM")
FOLDERS = [
    Path(folder)
    for folder in (NAMED or "/opt/rocm").split(os.pathsep)
    if NAMED or Path(folder, "share/amd_smi/amdsmi").is_dir()
]
pytestmark = pytest.mark.skipif(
    not FOLDERS, reason="AMD's library is neither in /opt/rocm nor in BENCH_LIB_TEST_ROCM"
)
FIRST_WITH_8 = (25, 3)
"""Version of the library that first knows revision 1.8 of the table: ROCm 6.4's."""
SENSORS = ("clock_mhz", "dies_mhz", "memory_clock_mhz", "power_w", "temperature_c", "utilization")

LOOK = """
import json, sys, time
from pathlib import Path
from bench_lib import backends
from bench_lib.backends.amd import package, sensors
from rocm import kernel
from rocm.present import Present

root, here, words = Path("/"), Present(Path(sys.argv[1])), sys.argv[2:]
with package.quiet():
    smi = package.load(root)
    version = smi.amdsmi_init() or smi.amdsmi_get_lib_version()
told = {"version": [version.get("year", version["major"]), version["minor"]]}
found = [each for each in backends.detect() if each.vendor == "amd"]
ways = {"files": sensors, "package": package}
for device in dict.fromkeys((found[0].bdf, found[-1].bdf)):
    hardware = next(each for each in found if each.bdf == device)
    for name, way in ways.items():
        if name in words:
            kernel.write(here)
            source = way.source(hardware, root)
            looks = []
            for _ in range(2):
                looks.append(source.look(with_pids=False))
                time.sleep(0.01)  # ten ticks of the counters
                kernel.write(here)
            told.setdefault(name, []).append(looks)
print(json.dumps(told))
"""

SHAPES = """
import json, sys
from pathlib import Path
from bench_lib.backends.amd import package

smi = package.load(Path("/"))
smi.amdsmi_init()
gpu = smi.amdsmi_get_processor_handles()[0]
asked = ("gpu_device_bdf", "gpu_metrics_info", "gpu_process_list")
def shape(value):
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return value if value == "N/A" else type(value).__name__
told = {name: shape(getattr(smi, f"amdsmi_get_{name}")(gpu)) for name in asked}
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def libdrm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("libdrm")
    compiler = shutil.which("cc")
    assert compiler, "a C compiler is needed: install gcc"
    for name in ("libdrm.so.2", "libdrm_amdgpu.so.1"):
        words = [compiler, "-shared", "-fPIC", str(HERE / "libdrm.c"), "-o", str(folder / name)]
        subprocess.run([*words, f"-Wl,-soname,{name}"], check=True)
    return folder


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def rocm(request):
    assert isinstance(request.param, Path)
    return request.param


@pytest.fixture
def ask(tmp_path, rocm, libdrm):
    reason = box.why_not()
    if reason is not None and not os.environ.get("CI"):
        pytest.skip(reason)

    def run(machine, script, *words, stands_in=False):
        site = at_work(machine.lay_out(tmp_path / f"machine-{len(list(tmp_path.iterdir()))}"))
        own = site.folder / "root/opt/rocm" if stands_in else rocm
        environ = site.environ(ROCM_PATH=str(own), LD_LIBRARY_PATH=str(libdrm))
        del environ["BENCH_LIB_ROOT"]  # /sys is the machine's
        environ["PATH"] = os.pathsep.join([str(own / "bin"), environ["PATH"]])
        environ["PYTHONPATH"] = os.pathsep.join(
            [str(Path(__file__).parents[1]), str(site.folder / "lib")]
        )
        command = [sys.executable, "-c", script, str(site.folder), *words]
        answer = box.run(site.folder / "root", command, environ)
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout.splitlines()[-1])

    return run


def told(look):
    sensors = {name: look.get(name) for name in SENSORS}
    return {**sensors, "counters": sorted(look.get("counters", ()))}


def growth(looks):
    before, after = (look.get("counters", {}) for look in looks)
    return {name: after[name] > before[name] for name in before}


def knows(version, revision):
    """Whether a library of that version is known to read a revision of the table.

    None of those that this was tried with reads 1.9; a later one may.
    """
    return revision < 8 or (revision == 8 and tuple(version) >= FIRST_WITH_8)


@pytest.mark.parametrize("name", MACHINES)
def test_the_package_tells_what_the_files_tell(ask, name):
    make, _, _ = MACHINES[name]
    machine = make()
    seen = ask(machine, LOOK, "files", "package")
    for ours, theirs in zip(seen["files"], seen["package"], strict=True):
        expected, got = told(ours[0]), told(theirs[0])
        if not knows(seen["version"], machine.cards[0].revision):
            expected = {name: expected[name] if got[name] else got[name] for name in expected}
        assert got == expected


@pytest.mark.parametrize("revision", [4, 5, 6, 7, 8, 9])
def test_every_table_is_decoded_as_the_library_does(ask, revision):
    machine = mi300x(card={"revision": revision, "quirks": ("slow die",)})
    seen = ask(machine, LOOK, "files", "package")
    (ours,), (theirs,) = seen["files"], seen["package"]
    assert told(ours[0])["clock_mhz"] == 1260
    if knows(seen["version"], revision):
        assert told(theirs[0]) == told(ours[0])
    else:
        assert told(theirs[0])["clock_mhz"] in (None, 1260)


@pytest.mark.parametrize("make", [mi300x, mi250x])
def test_throttling_is_the_same_by_the_package(ask, make):
    machine = make(card={"held_back": {"socket_thermal": 0.5}})
    seen = ask(machine, LOOK, "files", "package")
    ours, theirs = seen["files"][0], seen["package"][0]
    assert growth(theirs) == growth(ours)
    if make is mi300x:
        assert growth(theirs)["thermal"]
    else:
        assert (ours[-1]["throttle"], theirs[-1]["throttle"]) == (["thermal"], ["throttled"])


@pytest.mark.parametrize("make", [mi250x, mi300x])
def test_the_stand_in_s_types_are_the_real_package_s(ask, make):
    machine = make(has_package=True)
    real, made = ask(machine, SHAPES), ask(machine, SHAPES, stands_in=True)
    for name, about in made.items():
        theirs = real[name]
        if isinstance(about, dict):
            theirs = {key: theirs.get(key, "missing") for key in about}
        assert theirs == about, name
