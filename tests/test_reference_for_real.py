"""Interleaved with a second interpreter in a stand-in for a container: real workers on the CPU."""

from __future__ import annotations

import platform
import re
import sysconfig
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

import builders
import pytest
from faulty import NAPS
from processes import HERE, ON_THE_CPU, TORCH_ALONE
from standins.worker import conclude

from bench_lib.engine import engine
from bench_lib.engine.settings import REFERENCE, Settings, Side
from bench_lib.model import Environment, Hardware, Limits, Record, Sampling, Status
from bench_lib.plugin import session
from bench_lib.storage import history

AT_ONCE = Sampling(warmup_s=0, warmup_max_s=0, iterations=5, max_iterations=5, measure_s=0)
TONIGHT = "steady=10,planted=30,slow-night=30,lacking=30"
ACCEPTED = "steady=10,planted=10,slow-night=30"
LIMITS = Limits(tolerance=0.5, throughput=9.0, spread=1.0)
"""So wide that another program on the same CPU changes no verdict."""
CASES = [
    builders.make_case(
        id=name,
        workload="faulty:nap",
        params={"name": name},
        sampling=AT_ONCE,
        limits=LIMITS,
    )
    for name in ("steady", "planted", "slow-night", "lacking")
]
CONTAINER = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/ran"
exec env -i PATH="$PATH" HOME="$HOME" "$@"
"""
"""Runs the words after it, as a container does: where none of our environment arrives."""


@dataclass
class Night:
    """What a run and its reference came to."""

    records: dict[str, Record]
    said: list[str]
    runs: list[history.Run]
    started: list[str]
    """Commands that ran in the container."""


@pytest.fixture(scope="module")
def accepted(tmp_path_factory) -> Path:
    """Return the interpreter of another virtual environment, which has our torch."""
    folder = tmp_path_factory.mktemp("accepted")
    venv.create(folder, with_pip=False, symlinks=True)
    purelib = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    ours = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    (purelib / "base.pth").write_text("".join(f"{each}\n" for each in ours))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def night(accepted, nothing_is_stolen, tmp_path_factory) -> Night:
    """Measure four cases, one of which is slower tonight and not in the accepted environment."""
    folder = tmp_path_factory.mktemp("night")
    container = folder / "container"
    container.write_text(CONTAINER)
    container.chmod(0o755)
    device = Hardware("cpu", "cpu", "cpu-here")
    accepted_in = Environment(python=platform.python_version(), host="")
    ids = [case.id for case in CASES]
    builders.accept(folder / "baselines", device, *ids, environment=accepted_in, limits=LIMITS)
    variables = {**ON_THE_CPU, **TORCH_ALONE, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    said: list[str] = []
    settings = Settings(
        history=folder / "history",
        baselines=folder / "baselines",
        planned=3,
        kernels="none",
        say=said.append,
        sides={
            "": Side(environment={**variables, NAPS: TONIGHT}),
            REFERENCE: Side(str(accepted), {**variables, NAPS: ACCEPTED}, (str(container),)),
        },
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        with engine.opened(device, settings) as run:
            for case in CASES:
                run.measure(case)
            conclude(run)
            records = run.suite.records
    runs = [history.read(path) for path in history.files(folder / "history")]
    return Night(records, said, runs, (folder / "ran").read_text().splitlines())


def reason(night: Night, name: str, against: str) -> str:
    """Return why a case's latency has its verdict."""
    verdicts = night.records[name].verdicts
    (found,) = [v for v in verdicts if (v.metric, v.against) == ("latency", against)]
    return found.reason


def test_what_is_slower_than_in_the_accepted_environment_is_regressed(night):
    assert night.records["planted"].status is Status.REGRESSED
    found = reason(night, "planted", "reference")
    assert re.search(r" slower than the reference in [2-6] pairs", found), found


def test_what_is_as_slow_in_the_accepted_environment_passes(night):
    assert night.records["slow-night"].status is Status.OK
    words = r"^not the software under test \(\d pairs: .*\); slower than the baseline by "
    assert re.search(words, reason(night, "slow-night", "reference"))


def test_a_case_that_the_accepted_environment_lacks_is_judged_by_its_baseline(night):
    assert night.records["lacking"].status is Status.REGRESSED
    words = "the reference skips the case: this environment has no lacking"
    assert reason(night, "lacking", "pinned").endswith(
        f"; not compared with the reference: {words}"
    )


def test_every_case_is_measured_in_both_and_what_is_steady_once(night):
    reference, own = night.runs
    assert (own.problems, reference.problems) == ([], [])
    for run in (own, reference):
        assert {attempt.process for attempt in run.records["steady"].attempts} == {0}
    assert set(reference.records) == {case.id for case in CASES}


def test_the_reference_ran_in_its_container_and_is_named(night, accepted):
    assert any(re.match(r"against torch .*container", line) for line in night.said)
    asked, served = (line for line in night.started if str(accepted) in line)
    assert f"{accepted} -c" in asked
    assert served.endswith(f"{accepted} -m bench_lib.worker serve")


def test_the_reference_says_which_code_of_the_users_it_imported(night):
    (attempt,) = night.runs[0].records["steady"].attempts
    assert attempt.measurement.code == {"faulty": str(HERE / "faulty.py")}


def test_an_environments_folder_in_the_ini_file_is_looked_for_beside_it(pytester):
    pytester.makeini("[pytest]\nperf_reference = accepted\n")
    python = pytester.mkdir("accepted") / "bin" / "python"
    config = pytester.parseconfig("-p", "bench_lib.plugin")
    assert session.read_options(config).settings.sides[REFERENCE] == Side(str(python))
