"""One device, one holder, and a word on who that is."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from builders import make_hardware

import bench_lib
from bench_lib.engine.devicelock import DeviceBusyError, DeviceLock


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
    """And who took it can be read."""
    mine = lock()
    mine.acquire(0, nobody_waits)
    assert mine.holder() == f"process {os.getpid()}"


def test_a_device_in_use_is_refused_with_its_holder_and_the_cure(lock):
    """After the time that the user allows, which here is none."""
    lock().acquire(0, nobody_waits)
    said: list[str] = []
    with pytest.raises(DeviceBusyError) as caught:
        lock().acquire(0, said.append)
    holder = f"process {os.getpid()}"
    assert said == [f"waiting for mi300x, in use by {holder}"]
    assert str(caught.value) == (
        f"mi300x (GPU-0123) is in use by {holder} and was not free within 0 s; "
        "wait for that run to end; pytest waits longer with --perf-lock-wait SECONDS"
    )


def test_a_device_that_becomes_free_while_waiting_is_taken(lock):
    """The first run ends just as the second begins to wait."""
    first, second = lock(), lock()
    first.acquire(0, nobody_waits)
    second.acquire(60, lambda _line: first.release())
    with pytest.raises(DeviceBusyError):
        first.acquire(0, lambda _line: None)


def test_a_device_that_was_let_go_of_is_free(lock):
    """A file that stays behind locks nothing."""
    first, second = lock(), lock()
    first.acquire(0, nobody_waits)
    first.release()
    second.acquire(0, nobody_waits)


def test_two_devices_are_held_at_once(lock):
    """A host's eight GPUs are eight locks."""
    lock(uuid="GPU-0").acquire(0, nobody_waits)
    lock(uuid="GPU-1").acquire(0, nobody_waits)


def test_a_device_without_a_uuid_is_told_by_key_and_index(lock, tmp_path):
    """A CPU is one device, whoever asks."""
    lock(vendor="cpu", key="cpu-x", uuid=None, index=0).acquire(0, nobody_waits)
    assert (tmp_path / "locks" / "cpu-x-0.lock").exists()
    with pytest.raises(DeviceBusyError, match=r"^cpu-x \(this host\) is in use"):
        lock(vendor="cpu", key="cpu-x", uuid=None, index=0).acquire(0, lambda _line: None)
    lock(vendor="cpu", key="cpu-x", uuid=None, index=1).acquire(0, nobody_waits)


def test_partitions_of_one_card_are_held_apart(lock):
    """They may share its uuid, and differ in the function of their address."""
    lock(bdf="0000:0c:00.0").acquire(0, nobody_waits)
    lock(bdf="0000:0c:00.1").acquire(0, nobody_waits)


def test_a_name_that_no_file_can_have_makes_a_file_all_the_same(lock, tmp_path):
    """Whatever a vendor calls its device, the lock stays in its folder."""
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
    """The kernel lets go, so that a crash at night does not block the morning."""
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
        with pytest.raises(DeviceBusyError, match=f"is in use by process {other.pid} and"):
            lock().acquire(0, lambda _line: None)
        other.send_signal(signal.SIGKILL)
    lock().acquire(0, nobody_waits)


def test_everybody_on_the_host_may_take_the_lock(lock, tmp_path):
    """Two users' runs disturb each other as two of one user's do, whatever the umask."""
    before = os.umask(0o077)
    try:
        lock().acquire(0, nobody_waits)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "locks" / "GPU-0123-0000-0c-00-0.lock").stat().st_mode) == 0o666


def test_a_holder_that_cannot_be_noted_is_another_run(lock, tmp_path):
    """The lock is what counts; its note is a courtesy."""
    (tmp_path / "locks" / "GPU-0123-0000-0c-00-0.holder").mkdir(parents=True)
    mine = lock()
    mine.acquire(0, nobody_waits)
    assert mine.holder() == "another run"


def test_a_folder_that_cannot_be_made_is_said_with_the_cure(lock, tmp_path):
    """A file in its place stops every user."""
    (tmp_path / "locks").write_text("")
    with pytest.raises(DeviceBusyError) as caught:
        lock().acquire(0, nobody_waits)
    assert str(caught.value) == (
        f"cannot lock mi300x in {tmp_path / 'locks'}: File exists; let everybody write there, "
        "or name another folder for temporary files with TMPDIR"
    )


def test_a_full_folder_is_said_with_the_cure(lock, monkeypatch, tmp_path):
    """Nobody's permission is missing."""

    def full(path, **_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(DeviceBusyError) as caught:
        lock().acquire(0, nobody_waits)
    assert str(caught.value) == (
        f"cannot lock mi300x in {tmp_path / 'locks'}: No space left on device; free some space "
        "there, or name another folder for temporary files with TMPDIR"
    )


def test_where_no_folder_takes_temporary_files_that_is_said(monkeypatch):
    """Python looks for one that it can write to."""
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: ["/nowhere"])
    with pytest.raises(DeviceBusyError, match=r"cannot lock mi300x: .*/nowhere.* with TMPDIR$"):
        DeviceLock(make_hardware())


def test_locks_are_where_every_run_of_the_host_looks(monkeypatch, tmp_path):
    """In the folder for temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = DeviceLock(make_hardware())
    mine.acquire(0, nobody_waits)
    mine.release()
    assert (tmp_path / "bench-lib-locks" / "GPU-0123-0000-0c-00-0.lock").exists()
