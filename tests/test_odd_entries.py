"""Whatever somebody puts into a folder: no command hangs or breaks, and the good entries are shown.

Each odd entry goes where a run, a file of baselines, a profile or timings would be, and every
command that reads such a folder meets it.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import CASE_ID, accept, make_hardware, make_record, night, run_id, write_run
from command import ran

from bench_lib import files
from bench_lib.model import Kernel, KernelTable
from bench_lib.profiling import store, traces
from bench_lib.storage import history

HANGS_S = 30
MOST_UNPACKED = 2**22
"""Instead of the commands' own limits, which take seconds to unpack on a busy machine."""
LINE = 64 * gzip.compress(b"x" * 2**24)
"""A line of 1 GB, compressed to 1 MB."""


class Hung(BaseException):
    """A command took so long that it is waiting for something."""


def of_300_gb(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(300 * 2**30)


def a_long_line(path: Path) -> None:
    if path.suffix == ".gz":
        path.write_bytes(LINE)
    else:
        with path.open("wb") as file:
            file.truncate(2**30)


ODD: dict[str, Callable[[Path], object]] = {
    "a link": lambda path: path.symlink_to(path.parent.parent / "private" / "file"),
    "a dangling link": lambda path: path.symlink_to("nothing"),
    "a loop": lambda path: path.symlink_to(path.name),
    "a pipe": os.mkfifo,
    "a sparse file": of_300_gb,
    "a folder": Path.mkdir,
    "an unreadable file": lambda path: path.write_bytes(b"unreadable"),
    "a line of 1 GB": a_long_line,
}
RUN = "20260131T000000Z_mi300x_0dd0dd00.jsonl"
READS_RUNS = (
    ("history", "list"),
    ("history", "show", "latest"),
    ("history", "query", "SELECT DISTINCT run FROM lines"),
    ("history", "export", "--format", "csv"),
    ("history", "export", "latest", "--format", "pytest-benchmark"),
    ("history", "export", "latest", "--format", "pytorch"),
    ("history", "export", "latest", "--format", "openmetrics"),
    ("report",),
    ("report", "--html", "page.html"),
    ("report", "--markdown", "-"),
    ("baseline", "accept", "--dry-run", "--run", "latest"),
    ("baseline", "accept", "--run", "latest", "--reason", "a test"),
    ("compare", "baseline", "latest"),
    ("profile", CASE_ID, "--tool", "ranges"),
)
READS_BASELINES = (
    ("baseline", "show", "--hardware", "mi325x"),
    ("baseline", "quarantine", CASE_ID, "--lift", "--hardware", "mi325x"),
)


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """Run a command among good runs and baselines; what is called unreadable cannot be opened."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    accept(tmp_path / "baselines", make_hardware(), CASE_ID)
    private = write_run(tmp_path / "private", [make_record()], now=night(3))
    private.rename(tmp_path / "private" / "file")
    usual = os.open

    def opened(path, *more, **others):
        descriptor = usual(path, *more, **others)
        if Path(path).is_file() and os.fstat(descriptor).st_size == len(b"unreadable"):
            os.close(descriptor)
            raise PermissionError(13, "Permission denied", str(path))  # root may read all
        return descriptor

    def hung(*_):
        raise Hung

    monkeypatch.setattr(files.os, "open", opened)
    monkeypatch.setattr(history, "LARGEST", MOST_UNPACKED)
    monkeypatch.setattr(traces, "ANY_BYTES", MOST_UNPACKED)
    monkeypatch.setattr(traces, "MOST_TIMES", 1)
    before = signal.signal(signal.SIGALRM, hung)

    def run(*words):
        signal.alarm(HANGS_S)
        try:
            return ran(words, monkeypatch, capsys)
        finally:
            signal.alarm(0)

    yield run
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", [RUN, f"{RUN}.gz"])
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_entry_beside_runs_hides_none_and_is_named(cli, tmp_path, odd, name):
    good = write_run(tmp_path / "history", [make_record()], now=night(1))
    ODD[odd](tmp_path / "history" / name)
    for words in READS_RUNS:
        answer = cli(*words)
        assert answer.status in (0, 1), (words, answer)
        said = answer.out + answer.err
        assert any(shown in said for shown in (CASE_ID, run_id(good), "1 case on mi300x")), words
        assert "Traceback" not in said, words
        if words[0] != "profile":  # which looks for a case and not for runs
            assert name in said.replace("\\", ""), words


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_file_in_the_place_of_baselines_is_named(cli, tmp_path, odd):
    write_run(tmp_path / "history", [make_record()], now=night(1))
    (tmp_path / "good").mkdir()
    kernels = KernelTable("torch", 1, [Kernel("gemm", 1, 0.001)])
    store.keep(store.Profile(kernels, hardware="mi325x"), tmp_path / "good" / store.FILE)
    ODD[odd](tmp_path / "baselines" / "mi325x.json")
    for words in READS_BASELINES:
        answer = cli(*words)
        assert "Traceback" not in answer.err, words
        assert (answer.status, "mi325x.json" in answer.err) == (2, True), (words, answer)
    assert CASE_ID in cli("baseline", "show", "--hardware", "mi300x").out


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["kernels.json", "trace.json.gz", "kernel_stats.csv"])
def test_an_odd_file_in_the_place_of_a_profile_is_named(cli, tmp_path, odd, name):
    (tmp_path / "there").mkdir()
    ODD[odd](tmp_path / "there" / name)
    answer = cli("profile", "--diff", f"there/{name}", f"there/{name}")
    assert (answer.status, name in answer.err, "Traceback" in answer.err) == (2, True, False)


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_file_in_the_place_of_timings_is_named(cli, tmp_path, odd):
    (tmp_path / "b").mkdir()
    ODD[odd](tmp_path / "b" / "odd.json")
    recorded = Path(__file__).parent / "recorded" / "foreign" / "vllm-serve.json"
    shutil.copy(recorded, "b/good.json")
    for words in (
        ["b/odd.json"],
        ["--format", "vllm", "--baseline", "b/good.json", "b/odd.json", "b/good.json"],
    ):
        answer = cli("judge", *words)
        said = answer.out + answer.err
        assert (answer.status, "b/odd.json" in said, "Traceback" in said) == (2, True, False)


@pytest.mark.parametrize("odd", ["a link", "a dangling link", "a loop", "a pipe", "a folder"])
@pytest.mark.parametrize(
    "words",
    [
        ("report", "--html"),
        ("report", "--markdown"),
        ("history", "export", "--format", "csv", "-o"),
    ],
)
def test_nothing_is_written_through_an_odd_entry(cli, tmp_path, odd, words):
    write_run(tmp_path / "history", [make_record()], now=night(1))
    (tmp_path / "x").mkdir()
    before = (tmp_path / "private" / "file").read_bytes()
    ODD[odd](tmp_path / "x" / "odd")
    answer = cli(*words, "x/odd")
    assert (answer.status, "x/odd" in answer.err) == (2, True)
    assert (tmp_path / "private" / "file").read_bytes() == before
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["odd"]


def test_a_run_ends_well_where_links_wait_for_its_files(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    writer = history.Writer(tmp_path / "history", "mi300x", now=night(1))
    for name in (f".{writer.path.name}.gz.part", f"{writer.path.name}.gz"):
        (tmp_path / "history" / name).symlink_to(victim)
    writer.end({}, 0)
    assert victim.read_text() == "mine"
    assert json.loads(writer.path.read_bytes())["kind"] == "end"


def test_folders_that_are_links_are_read(cli, tmp_path):
    write_run(tmp_path / "runs", [make_record()], now=night(1))
    (tmp_path / "history").symlink_to("runs")
    (tmp_path / "baselines").rename(tmp_path / "accepted")
    (tmp_path / "baselines").symlink_to("accepted")
    assert CASE_ID in cli("baseline", "show", "--hardware", "mi300x").out
    assert CASE_ID in cli("history", "show", "latest").out
