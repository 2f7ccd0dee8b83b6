"""One device, one holder, and a word on who that is."""

import os
import pwd
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from builders import make_hardware

import bench_lib
from bench_lib.engine import devicelock
from bench_lib.engine.devicelock import DeviceBusyError, DeviceLock

NAME = "GPU-0123-0000-0c-00-0.lock"
"""Of the lock of a made device, in a folder that somebody names."""


@pytest.fixture
def lock(tmp_path):
    made = []

    def make(**fields):
        made.append(DeviceLock(make_hardware(**fields), tmp_path / "locks"))
        return made[-1]

    yield make
    for one in made:
        one.release()


def nobody_waits(line):
    pytest.fail(f"waited: {line}")


def test_a_device_in_use_is_refused_with_its_holder_and_the_cure(lock):
    lock().acquire(0, nobody_waits)
    said = []
    with pytest.raises(DeviceBusyError) as caught:
        lock().acquire(0, said.append)
    holder = f"process {os.getpid()} of {pwd.getpwuid(os.geteuid()).pw_name}"
    assert said == [f"waiting up to 0 s for mi300x, in use by {holder}"]
    assert str(caught.value) == (
        f"mi300x (GPU-0123) is in use by {holder} and was not free within 0 s; "
        "wait for that run to end; pytest waits longer with -o perf_lock_wait=SECONDS"
    )


def test_a_device_that_becomes_free_while_waiting_is_taken(lock):
    first, second = lock(), lock()
    first.acquire(0, nobody_waits)
    second.acquire(60, lambda _line: first.release())
    with pytest.raises(DeviceBusyError):
        first.acquire(0, lambda _line: None)


def test_a_device_without_a_uuid_is_told_by_key_and_index(lock, tmp_path):
    lock(vendor="cpu", key="cpu-x", uuid=None, index=0).acquire(0, nobody_waits)
    assert (tmp_path / "locks" / "cpu-x-0.lock").exists()
    with pytest.raises(DeviceBusyError, match=r"^cpu-x \(this host\) is in use"):
        lock(vendor="cpu", key="cpu-x", uuid=None, index=0).acquire(0, lambda _line: None)
    lock(vendor="cpu", key="cpu-x", uuid=None, index=1).acquire(0, nobody_waits)


def test_partitions_of_one_card_are_held_apart(lock):
    lock(bdf="0000:0c:00.0").acquire(0, nobody_waits)
    lock(bdf="0000:0c:00.1").acquire(0, nobody_waits)


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


def started(words, **more):
    """Start a process that finds the modules of tests, too."""
    paths = [str(Path(bench_lib.__file__).parents[1]), str(Path(__file__).parent)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    pipe = subprocess.PIPE
    return subprocess.Popen(words, env=environ, stdin=pipe, stdout=pipe, text=True, **more)


def test_a_holder_that_is_killed_holds_no_longer(lock, tmp_path):
    with started([sys.executable, "-c", HOLD, tmp_path / "locks"]) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(DeviceBusyError, match=f"is in use by process {other.pid} of "):
            lock().acquire(0, lambda _line: None)
        other.send_signal(signal.SIGKILL)
    lock().acquire(0, nobody_waits)


def test_a_holder_in_another_container_is_another_run(lock, monkeypatch, tmp_path):
    lock().acquire(0, nobody_waits)
    monkeypatch.setattr(devicelock, "LOCKS", tmp_path / "none")
    with pytest.raises(DeviceBusyError, match="in use by another run and"):
        lock().acquire(0, lambda _line: None)


# --- where the lock is -------------------------------------------------------------------------


@pytest.fixture
def shared(monkeypatch, tmp_path):
    monkeypatch.delenv(devicelock.VARIABLE)
    monkeypatch.setattr(devicelock, "FOLDER", tmp_path / "shared")
    return tmp_path / "shared"


def test_all_users_share_one_folder(shared):
    mine, other = (DeviceLock(make_hardware()) for _ in range(2))
    before = os.umask(0o077)
    try:
        mine.acquire(0, nobody_waits)
    finally:
        os.umask(before)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o777
    (file,) = shared.iterdir()
    assert (file.name, stat.S_IMODE(file.stat().st_mode)) == (NAME, 0o666)
    with pytest.raises(DeviceBusyError):
        other.acquire(0, lambda _line: None)
    mine.release()


def test_an_administrators_folder_comes_before_the_shared_one(shared, monkeypatch, tmp_path):
    monkeypatch.setenv(devicelock.VARIABLE, str(tmp_path / "named"))
    mine = DeviceLock(make_hardware())
    mine.acquire(0, nobody_waits)
    assert (tmp_path / "named" / NAME).exists()
    assert not shared.exists()
    mine.release()


def test_a_link_in_place_of_a_lock_is_refused(lock, tmp_path):
    (tmp_path / "locks").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "locks" / NAME).symlink_to(tmp_path / "file")
    with pytest.raises(DeviceBusyError, match=r"cannot lock mi300x with .*BENCH_LIB_LOCKS"):
        lock().acquire(0, nobody_waits)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_of_locks_keeps_its_permissions(lock, tmp_path):
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "locks").symlink_to(tmp_path / "private")
    lock().acquire(0, nobody_waits)
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_made_is_said_with_the_cure(lock, tmp_path):
    (tmp_path / "locks").write_text("")
    with pytest.raises(DeviceBusyError, match=r"cannot lock mi300x with .*: File exists.*_LOCKS"):
        lock().acquire(0, nobody_waits)


AS_ANOTHER = """
import encodings.ascii, os, sys  # whoever is not root may be unable to read Python's folder
from pathlib import Path
from builders import make_hardware
from bench_lib.engine.devicelock import DeviceBusyError, DeviceLock
os.setgid(65534); os.setuid(65534)
lock = DeviceLock(make_hardware(), Path(sys.argv[1]))
try:
    lock.acquire(0, print)
except DeviceBusyError as error:
    print(error)
else:
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_two_users_exclude_each_other_and_each_is_named(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        monkeypatch.setenv("HOME", folder)
        with started([sys.executable, "-c", AS_ANOTHER, folder]) as other:
            assert other.stdout.readline() == "held\n"
            holder = f"in use by process {other.pid} of {pwd.getpwuid(65534).pw_name} and"
            with pytest.raises(DeviceBusyError, match=holder):
                DeviceLock(make_hardware(), Path(folder)).acquire(0, lambda _line: None)
        mine = DeviceLock(make_hardware(), Path(folder))
        mine.acquire(0, nobody_waits)
        mine.release()


# --- two containers ----------------------------------------------------------------------------


SPACES = ("--user", "--map-root-user", "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup")
CONTAINER = ["unshare", *SPACES, "--fork", "bash", "-euc"]
"""Users, mounts, processes, a network and a host's name of its own, as a container has."""
MOUNTED = """
mkdir /tmp/here && mount --bind "$1" /tmp/here && mount --make-private /tmp/here
export BENCH_LIB_LOCKS=/tmp/here
exec "$2" -c "$3" /tmp/here
"""


def contained(tmp_path, name):
    """Return the words that take a lock in a container which has the shared folder elsewhere."""
    (tmp_path / name).mkdir()
    script = MOUNTED.replace("/tmp/here", str(tmp_path / name / "locks"))
    return [*CONTAINER, script, "-", str(tmp_path / "locks"), sys.executable, HOLD]


def test_two_containers_that_mount_one_folder_exclude_each_other(tmp_path):
    (tmp_path / "locks").mkdir()
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces here")
    with started(contained(tmp_path, "first")) as first:
        assert first.stdout.readline() == "held\n"
        second = started(contained(tmp_path, "second"), stderr=subprocess.PIPE)
        _, complaint = second.communicate()
        assert "DeviceBusyError: mi300x" in complaint
        first.communicate()
