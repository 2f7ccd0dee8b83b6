"""One device, one holder, and a word on who that is."""

from __future__ import annotations

import fcntl
import os
import pwd
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from builders import make_hardware

import bench_lib
from bench_lib.engine import devicelock
from bench_lib.engine.devicelock import DeviceBusyError, DeviceLock
from bench_lib.model import MachineWarning

NAME = "GPU-0123-0000-0c-00-0.lock"
"""Of the lock of a made device, in a folder that somebody names."""


@pytest.fixture
def lock(tmp_path):
    """Return a function that makes a lock of a device; all are let go of at the end."""
    made = []

    def make(**fields) -> DeviceLock:
        made.append(DeviceLock(make_hardware(**fields), tmp_path / "locks"))
        return made[-1]

    yield make
    for one in made:
        one.release()


def nobody_waits(line: str) -> None:
    """Fail, because nobody should have to wait."""
    pytest.fail(f"waited: {line}")


def test_a_device_that_is_free_is_taken_without_a_word(lock):
    lock().acquire(0, nobody_waits)


def test_a_device_in_use_is_refused_with_its_holder_and_the_cure(lock):
    lock().acquire(0, nobody_waits)
    said: list[str] = []
    with pytest.raises(DeviceBusyError) as caught:
        lock().acquire(0, said.append)
    holder = f"process {os.getpid()} of {pwd.getpwuid(os.geteuid()).pw_name}"
    assert said == [f"waiting for mi300x, in use by {holder}"]
    assert str(caught.value) == (
        f"mi300x (GPU-0123) is in use by {holder} and was not free within 0 s; "
        "wait for that run to end; pytest waits longer with --perf-lock-wait SECONDS"
    )


def test_a_device_that_becomes_free_while_waiting_is_taken(lock):
    first, second = lock(), lock()
    first.acquire(0, nobody_waits)
    second.acquire(60, lambda _line: first.release())
    with pytest.raises(DeviceBusyError):
        first.acquire(0, lambda _line: None)


def test_a_device_that_was_let_go_of_is_free(lock):
    first, second = lock(), lock()
    first.acquire(0, nobody_waits)
    first.release()
    second.acquire(0, nobody_waits)


def test_two_devices_are_held_at_once(lock):
    lock(uuid="GPU-0").acquire(0, nobody_waits)
    lock(uuid="GPU-1").acquire(0, nobody_waits)


def test_a_device_without_a_uuid_is_told_by_key_and_index(lock, tmp_path):
    lock(vendor="cpu", key="cpu-x", uuid=None, index=0).acquire(0, nobody_waits)
    assert (tmp_path / "locks" / "cpu-x-0.lock").exists()
    with pytest.raises(DeviceBusyError, match=r"^cpu-x \(this host\) is in use"):
        lock(vendor="cpu", key="cpu-x", uuid=None, index=0).acquire(0, lambda _line: None)
    lock(vendor="cpu", key="cpu-x", uuid=None, index=1).acquire(0, nobody_waits)


def test_partitions_of_one_card_are_held_apart(lock):
    lock(bdf="0000:0c:00.0").acquire(0, nobody_waits)
    lock(bdf="0000:0c:00.1").acquire(0, nobody_waits)


def test_a_name_that_no_file_can_have_makes_a_file_all_the_same(lock, tmp_path):
    lock(uuid="../0x:1 2", bdf=None).acquire(0, nobody_waits)
    assert (tmp_path / "locks" / "-0x-1-2.lock").exists()


HOLD = """
import sys
from pathlib import Path
from builders import make_hardware
from bench_lib.engine.devicelock import DeviceLock
lock = DeviceLock(make_hardware(), Path(sys.argv[1]))
lock.acquire(0, print)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_holder_that_is_killed_holds_no_longer(lock, tmp_path):
    paths = [str(Path(bench_lib.__file__).parents[1]), str(Path(__file__).parent)]
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "locks")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(DeviceBusyError, match=f"is in use by process {other.pid} of "):
            lock().acquire(0, lambda _line: None)
        other.send_signal(signal.SIGKILL)
    lock().acquire(0, nobody_waits)


def test_everybody_on_the_host_may_take_the_lock(lock, tmp_path):
    before = os.umask(0o077)
    try:
        lock().acquire(0, nobody_waits)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "locks" / NAME).stat().st_mode) == 0o444


def test_a_holder_in_another_container_is_another_run(lock, monkeypatch, tmp_path):
    lock().acquire(0, nobody_waits)
    monkeypatch.setattr(devicelock, "LOCKS", tmp_path / "none")
    with pytest.raises(DeviceBusyError, match="in use by another run and"):
        lock().acquire(0, lambda _line: None)


# --- where the lock is -------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """Return a machine's root without any devices, where nobody names a folder for locks."""
    monkeypatch.delenv(devicelock.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "root"


def own_file(root, path):
    """Make a file of sysfs below a root."""
    (root / path).parent.mkdir(parents=True)
    (root / path).write_text("")
    return root / path


def is_held(path):
    """Whether somebody holds the lock of a file."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("sys/bus/pci/devices/0000:0c:00.0/uevent", {"bdf": "0000:0c:00.0"}),
        ("sys/bus/pci/devices/0000:1b:00.0/uevent", {"vendor": "nvidia", "bdf": "0000:1b:00.0"}),
        ("sys/bus/pci/devices/0000:03:00.0/uevent", {"vendor": "intel", "bdf": "0000:03:00.0"}),
        ("sys/devices/system/cpu/uevent", {"vendor": "cpu", "uuid": None, "bdf": None}),
    ],
)
def test_a_device_is_locked_by_its_own_file_whatever_TMPDIR_is(  # noqa: N802 - a variable
    alone, monkeypatch, tmp_path, path, fields
):
    file = own_file(alone, path)
    before = sorted(tmp_path.rglob("*"))
    first, second = (DeviceLock(make_hardware(**fields), root=alone) for _ in range(2))
    first.acquire(0, nobody_waits)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "private"))
    assert is_held(file)
    with pytest.raises(DeviceBusyError):
        second.acquire(0, lambda _line: None)
    first.release()
    assert not is_held(file)
    assert sorted(tmp_path.rglob("*")) == before
    assert file.read_text() == ""


def test_a_partition_is_locked_by_its_file_in_the_topology(alone):
    node = "sys/class/kfd/kfd/topology/nodes/3"
    file = own_file(alone, f"{node}/gpu_id")
    (alone / node / "properties").write_text("location_id 3073\ndomain 0\n")
    mine = DeviceLock(make_hardware(bdf="0000:0c:00.1"), root=alone)
    mine.acquire(0, nobody_waits)
    assert is_held(file)
    mine.release()


def test_an_administrators_folder_comes_before_the_devices_file(alone, monkeypatch, tmp_path):
    file = own_file(alone, "sys/bus/pci/devices/0000:0c:00.0/uevent")
    monkeypatch.setenv(devicelock.VARIABLE, str(tmp_path / "shared"))
    mine = DeviceLock(make_hardware(), root=alone)
    mine.acquire(0, nobody_waits)
    assert is_held(tmp_path / "shared" / NAME)
    assert not is_held(file)
    mine.release()


def test_without_sysfs_a_users_own_runs_exclude_each_other_and_that_is_said(alone, tmp_path):
    device = make_hardware(key="lonely")
    with pytest.warns(MachineWarning, match=r"lonely has no file in /sys.*BENCH_LIB_LOCKS"):
        mine = DeviceLock(device, root=alone)
    mine.acquire(0, nobody_waits)
    (file,) = (tmp_path / "cache" / "bench-lib" / "locks").rglob("*.lock")
    assert is_held(file)
    mine.release()


# --- what others plant -------------------------------------------------------------------------


def plant_link(path, victim):
    """Put a symbolic link to somebody's file."""
    path.symlink_to(victim / "file")


def plant_fifo(path, _victim):
    """Put a pipe that nobody writes to."""
    os.mkfifo(path)


def plant_folder(path, _victim):
    """Put a folder."""
    path.mkdir()


@pytest.mark.parametrize("plant", [plant_link, plant_fifo, plant_folder])
def test_what_is_planted_in_place_of_a_lock_is_refused_at_once(lock, tmp_path, plant):
    (tmp_path / "locks").mkdir()
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    (victim / "file").write_text("mine")
    plant(tmp_path / "locks" / NAME, victim)
    with pytest.raises(DeviceBusyError, match=r"cannot lock mi300x by .*BENCH_LIB_LOCKS"):
        lock().acquire(0, nobody_waits)
    assert (victim / "file").read_text() == "mine"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o700


def test_a_folder_of_locks_keeps_its_permissions(lock, tmp_path):
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "locks").symlink_to(tmp_path / "private")
    lock().acquire(0, nobody_waits)
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_made_is_said_with_the_cure(lock, tmp_path):
    (tmp_path / "locks").write_text("")
    with pytest.raises(DeviceBusyError, match=r"cannot lock mi300x by .*: File exists.*_LOCKS"):
        lock().acquire(0, nobody_waits)


AS_ANOTHER = """
import fcntl, os, sys
os.setgid(65534); os.setuid(65534)
with open(sys.argv[1]) as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("busy", flush=True)
    else:
        print("held", flush=True)
        sys.stdin.read()
"""


@pytest.fixture
def another_user():
    """Return a function that starts another user's process, who tries to take a file's lock."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    started = []

    def start(path):
        words = [sys.executable, "-IS", "-c", AS_ANOTHER, str(path)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True))
        assert started[-1].stdout is not None
        return started[-1], started[-1].stdout.readline().strip()

    yield start
    for process in started:
        process.communicate()


CPU_FILE = Path("/sys/devices/system/cpu/uevent")


@pytest.mark.skipif(not CPU_FILE.exists(), reason="this machine has no sysfs")
def test_two_users_exclude_each_other_and_each_is_named(alone, another_user):
    device = make_hardware(vendor="cpu", key="cpu-x", uuid=None, bdf=None)
    process, said = another_user(CPU_FILE)
    if said == "busy":
        pytest.skip("somebody measures on this machine")
    holder = f"in use by process {process.pid} of {pwd.getpwuid(65534).pw_name} and"
    with pytest.raises(DeviceBusyError, match=holder):
        DeviceLock(device).acquire(0, lambda _line: None)
    process.communicate()
    mine = DeviceLock(device)
    mine.acquire(0, nobody_waits)
    assert another_user(CPU_FILE)[1] == "busy"
    mine.release()
