"""How the project's own tests run, whoever starts them: threads, processes, temporary files."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
MOST_WORKERS = 16
"""More than these wait for the longest file, and each holds a torch of its own."""
DEAR_PLUGINS = ("hypothesispytest", "html", "metadata", "pytest_jsonreport")
"""What is installed and takes longer to import than most runs that a test starts last."""

# Here, before any test imports torch, and for every process that a test starts.
os.environ["OMP_NUM_THREADS"] = "1"  # two threads that wait for each other take ten times as long
# A run in the background, or under nohup, inherits that these are ignored; here they end things.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.environ["PYTHONDONTWRITEBYTECODE"] = ""  # or each process would compile the same modules again


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Start a worker of pytest-xdist more than there are cores, unless files or ``-n`` are given.

    Tests that start processes wait for them: on two cores three workers need 391 s, two 407 s.
    """
    option = config.option
    asked = (Path(config.invocation_params.dir, each).resolve() for each in config.args)
    is_worker = hasattr(config, "workerinput")
    if HERE in asked and not is_worker and getattr(option, "numprocesses", 0) is None:
        option.numprocesses = len(os.sched_getaffinity(0)) + 1
        option.maxprocesses = option.maxprocesses or MOST_WORKERS
        option.dist = "loadfile"  # the tests of a file share what is dear to lay out
        option.loadscopereorder = False  # or files of few tests, the longest, would come last


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have every run try the same inputs, in whatever time, and a night so many others."""
    if config.pluginmanager.hasplugin("hypothesispytest"):
        from hypothesis import HealthCheck, settings

        ours = settings(
            deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
        )
        settings.register_profile("ours", ours)
        settings.register_profile("nightly", ours, derandomize=False, max_examples=17_000)
        settings.load_profile("ours")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Have the garbage collector skip what is imported, as a zygote does.

    Every measured case collects garbage three times. With torch's objects that takes 0.2 s each.
    The interpreter takes everything down as it always does, but pytest, which collects twice at
    its end, does not go through all that was imported.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)


@pytest.fixture(scope="session", autouse=True)
def _as_if_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have no test notice that a worker runs it.

    It has folders of its own for temporary files and for the locks of devices; and no
    plugin of a run that it starts takes that run for a part of ours.  Such a run leaves out
    plugins that it is not about.  None looks around for who keeps the CPUs busy: the other
    workers do.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WORKER", "WORKER_COUNT", "TESTRUNUID"):
            patch.delenv(f"PYTEST_XDIST_{name}", raising=False)
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp", numbered=False)))
        patch.setenv("BENCH_LIB_LOCKS", str(tmp_path_factory.mktemp("locks", numbered=False)))
        patch.setenv("PYTEST_ADDOPTS", " ".join(f"-p no:{name}" for name in DEAR_PLUGINS))
        patch.setattr(tempfile, "tempdir", None)
        patch.setattr("bench_lib.engine.device.others_now", lambda _device: None)
        yield


TESTS_SO_FAR: list[str] = []


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note which test runs; a fixture of each would take four times as long."""
    TESTS_SO_FAR.append(item.name)


@pytest.fixture(scope="session", autouse=True)
def _nothing_was_counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what scripted workers count of a case from other tests, and from this machine's runs."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        folder = "bench_lib.storage.facts.folder"
        patch.setattr(folder, lambda: base / f"facts-{len(TESTS_SO_FAR)}")
        yield


@pytest.fixture(scope="module")
def nothing_is_stolen() -> Iterator[None]:
    """Have no case that is really measured be lost because a hypervisor is busy with others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bench_lib.verdict.validity.MOST_STOLEN", 1.0)
        yield


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return what runs ``bench-lib`` with some words in a folder of its own."""
    from command import ran

    monkeypatch.chdir(tmp_path)
    return lambda *words: ran(words, monkeypatch, capsys)
