"""A run that is told to end says what it measured, and that it did not come to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from processes import wait_until

from bench_lib.launch.started import ended_by


class LeavingError(BaseException):
    """Somebody told this process to end."""


def leave(status):
    raise LeavingError(status)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_being_told_to_end_ends_what_is_under_way(number, status):
    with pytest.raises(LeavingError) as left, ended_by(leave):
        signal.raise_signal(number)
    assert left.value.args == (status,)
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_that_is_ignored_or_handled_stays_so():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by(leave):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


ENDLESS = "SELECT count(*) FROM range(100000000) AS a, range(100000000) AS b"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_query_that_is_told_to_end_leaves_no_temporary_files(tmp_path, number):
    (tmp_path / "history").mkdir()
    (tmp_path / "tmp").mkdir()
    words = [sys.executable, "-m", "bench_lib.cli", "history", "query", ENDLESS]
    query = subprocess.Popen(
        [*words, "--history", str(tmp_path / "history")],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        stderr=subprocess.PIPE,
    )
    assert wait_until(lambda: any((tmp_path / "tmp").iterdir()))
    query.send_signal(number)
    query.communicate()
    assert query.returncode == 128 + number
    assert list((tmp_path / "tmp").iterdir()) == []
