"""The one door for files: what it opens, what it writes, and that nothing goes around it."""

import ast
import os
import stat
from pathlib import Path

import pytest
from processes import no_file_beyond

from bench_lib import files

PACKAGE = Path(files.__file__).parent
ROOMS = (
    *("storage", "report", "profiling", "cli", "micro", "worker", "backends"),
    *("plugin", "studies", "engine"),
)
AROUND = {
    *("open", "read_text", "read_bytes", "write_text", "write_bytes", "copyfile", "copytree"),
    *("mkstemp", "mkdtemp", "TemporaryDirectory", "NamedTemporaryFile"),
    *("export_chrome_trace", "savefig"),
}
OURS = {
    "storage/facts.py": {"path.read_bytes()"},  # files of this package, as peaks are
    "storage/archive.py": {"VIEWS.read_text()"},
    "report/html.py": {
        "(importlib.resources.files('bench_lib.report') / 'templates' / name).read_text('utf-8')"
    },
    "backends/catalogue.py": {"path.read_text(encoding='utf-8')"},
    "profiling/traces.py": {"gzip.open(file)"},  # which the door has opened
    "worker/profiling.py": {"profiler.export_chrome_trace(str(part))"},  # which it has lent
    "worker/tracing.py": {
        "profiler.export_chrome_trace(str(partial))",
        "order.read_text()",  # in the folder of its runner
    },
    "storage/history.py": {"self.path.open('xb', buffering=0)"},  # a run's file, which is new
    # The null device, the kernel's files, and programs' and their libraries' own.
    "cli/ending.py": {"os.open(os.devnull, os.O_WRONLY)"},
    "micro/program.py": {"os.open(os.devnull, os.O_WRONLY)"},
    "engine/telemetry/__main__.py": {"os.open(os.devnull, os.O_WRONLY)"},
    "backends/amd/package.py": {"Path(os.devnull).open('w', encoding='utf-8')"},
    "backends/sysfs.py": {"path.read_bytes()"},
    "worker/host.py": {
        "(proc / 'self/clear_refs').write_text('5')",
        "file.read_text()",
        "(proc / str(pid) / 'status').read_text()",
        # The rest of the worker's are in the folder of its runner, which is theirs alone.
        "Path(f'{stem}.phases').open('a', buffering=1)",
        "os.open(f'{stem}.log', os.O_WRONLY | os.O_CREAT | os.O_APPEND, 384)",
        "Path(f'{stem}.stack').open('w')",
    },
    "worker/device.py": {
        "Path(spec.origin).with_name('version.py').read_text(encoding='utf-8')",
        "maps.read_text(encoding='utf-8', errors='replace')",
        "file.open('rb')",
    },
    "worker/graph.py": {"maps.read_text(errors='replace')"},
    "backends/amd/machine.py": {"Path(library.path).open('rb')"},
    "backends/folders.py": {"Path(file.path).read_bytes()"},  # a cache, whose links are the user's
    "worker/ranks.py": {"file.read_text()"},
    "worker/workloads/command.py": {
        "output.open('wb')",
        "output.read_bytes()",
        "self._log.open('ab')",
        "self._log.write_bytes(output.read_bytes()[-MOST_BYTES:])",
        "self._log.read_text(encoding='utf-8', errors='replace')",
    },
    "worker/zygote.py": {"os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 384)"},
}
"""What nobody else may have put there, or what is opened by a name that links may have."""
NO_FILES = (
    "opener.open",
    "engine.open",
    "held.open",
    "self.open",
    "self._sides[name].open",
    "self.read_bytes",
)
"""Devices are opened, and bytes of weights are read."""


def pipe(path):
    os.mkfifo(path)


def sparse(path):
    with path.open("wb") as file:
        file.truncate(300 * 2**30)


ODD = {
    "a link": (
        lambda path: path.symlink_to("real"),
        "it is a link; name the file itself, or replace the link with it",
    ),
    "a dangling link": (
        lambda path: path.symlink_to("none"),
        "it is a link; name the file itself, or replace the link with it",
    ),
    "a loop": (
        lambda path: path.symlink_to(path),
        "it is a link; name the file itself, or replace the link with it",
    ),
    "a pipe": (pipe, "it is not a regular file"),
    "a folder": (Path.mkdir, "it is not a regular file"),
    "a sparse file": (sparse, "it holds 322123 MB; the limit is 1 MB"),
}


@pytest.mark.parametrize(("plant", "why"), ODD.values(), ids=ODD)
def test_only_a_regular_file_of_some_size_is_opened(tmp_path, plant, why):
    (tmp_path / "real").write_bytes(b"private")
    plant(tmp_path / "odd")
    with pytest.raises(OSError, match=why) as refused:
        files.content(tmp_path / "odd", 2**20)
    assert refused.value.filename == str(tmp_path / "odd")
    assert files.content(tmp_path / "real", 7) == b"private"


def test_a_file_that_grows_while_it_is_read_is_cut_at_the_limit(tmp_path):
    (tmp_path / "file").write_bytes(b"1234")
    with files.open_regular(tmp_path / "file", 4) as file:
        (tmp_path / "file").write_bytes(b"12345678")
        assert file.read(4) == b"1234"


def test_a_file_is_replaced_by_one_with_the_mode_that_the_umask_asks_for(tmp_path, request):
    before = os.umask(0o027)
    request.addfinalizer(lambda: os.umask(before))
    (tmp_path / "page").write_bytes(b"old")
    files.replace(tmp_path / "page", b"new")
    assert (tmp_path / "page").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "page").stat().st_mode) == 0o640
    assert len(list(tmp_path.iterdir())) == 1


def test_a_line_is_added_to_what_is_there(tmp_path):
    for line in (b"one\n", b"two\n"):
        files.append(tmp_path / "table", line)
    assert (tmp_path / "table").read_bytes() == b"one\ntwo\n"


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "page").write_bytes(b"old")
    with no_file_beyond(1000), pytest.raises(OSError, match="too large"):
        files.replace(tmp_path / "page", b"n" * 10_000)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"page": b"old"}


@pytest.mark.parametrize("write", [files.replace, files.append])
@pytest.mark.parametrize("odd", [name for name in ODD if name != "a sparse file"])
def test_nothing_is_written_through_or_over_what_is_no_regular_file(tmp_path, odd, write):
    plant, _ = ODD[odd]
    (tmp_path / "real").write_bytes(b"mine")
    plant(tmp_path / "odd")
    with pytest.raises(OSError, match=r"it is not a regular file|it is a link|Is a directory"):
        write(tmp_path / "odd", b"theirs")
    assert (tmp_path / "real").read_bytes() == b"mine"
    assert not (tmp_path / "none").exists()


def test_a_link_that_waits_under_the_name_of_a_half_written_file_is_not_followed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    (tmp_path / ".part-guessed").symlink_to("victim")
    with pytest.raises(FileExistsError):
        files.replace(tmp_path / "page", b"new")
    assert not (tmp_path / "victim").exists()


def test_no_reader_or_writer_of_these_rooms_goes_around_the_door():
    around = {}
    for path in (path for room in ROOMS for path in (PACKAGE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called.rpartition(".")[2] in AROUND and not called.endswith(NO_FILES):
                    name = str(path.relative_to(PACKAGE))
                    around.setdefault(name, set()).add(ast.unparse(node))
    assert around == OURS
