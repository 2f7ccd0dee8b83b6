"""A run that is told to end says what it measured, and that it did not finish."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ON_THE_CPU, wait_until

from bench_lib.launch.started import ended_by

SUITE = Path(__file__).parents[1] / "perf_tests"


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
BENCH_LIB = ("-m", "bench_lib")
MATRIX = """
[smoke]
[[smoke.networks]]
network = "resnet18"
batch_size = 1
"""
CASE = "resnet18-b1-fp32-eager-infer"
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
TO_END = [
    *((number, "", (*BENCH_LIB, "history", "query", ENDLESS)) for number in SIGNALS),
    # A fork server, ranks, what profiles, what looks at data, and what lists the networks.
    (signal.SIGTERM, "import", (*BENCH_LIB, "ops")),
    (signal.SIGHUP, "import", (*BENCH_LIB, "collectives", "-e", "64")),
    (signal.SIGTERM, "import", (*BENCH_LIB, "profile", CASE, "--matrix", "matrix.toml")),
    (signal.SIGINT, "import", (*BENCH_LIB, "train", "cifar100", "--data", ".")),
    (signal.SIGTERM, "import", ("-m", "pytest", "-p", "no:cacheprovider", "test_networks.py")),
]


@pytest.mark.parametrize(("number", "file", "words"), TO_END)
def test_what_is_told_to_end_leaves_no_temporary_files(tmp_path, number, file, words):
    """The signal comes once a folder is there, and ``file`` in it."""
    for name in ("history", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "matrix.toml").write_text(MATRIX)
    (tmp_path / "pytest.ini").write_text("[pytest]\nperf_matrix = matrix.toml\n")
    shutil.copy(SUITE / "test_networks.py", tmp_path)
    names = {"TMPDIR": "tmp", "XDG_CACHE_HOME": "cache", "TORCHINDUCTOR_CACHE_DIR": "compiled"}
    folders = {variable: str(tmp_path / name) for variable, name in names.items()}
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=tmp_path,
        env={**os.environ, **ON_THE_CPU, **folders},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as started:
        try:
            there = f"tmp/bench-lib-*/{file}"
            assert wait_until(lambda: any(tmp_path.glob(there)) or started.poll() is not None)
            started.send_signal(number)
            _, complaint = started.communicate()
        finally:
            started.kill()
    assert (started.returncode, b"Traceback" in complaint) == (128 + number, False)
    assert list((tmp_path / "tmp").iterdir()) == []
