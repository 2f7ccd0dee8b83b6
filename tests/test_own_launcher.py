"""A launcher of another package: the file that docs/launchers.md shows, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import HERE, LONG_S, ON_THE_CPU

DOCUMENT = (HERE.parent / "docs" / "launchers.md").read_text()
FLUX = '''#!{python}
"""``flux run -n N WORDS``: start N processes, each told its place, and wait for them."""
import os, subprocess, sys

_, run, n, ranks, *words = sys.argv
assert (run, n) == ("run", "-n")
shared = {{**os.environ, "FLUX_JOB_ID": "f2bR", "FLUX_JOB_SIZE": ranks, "FLUX_JOB_NNODES": "1"}}
started = []
for rank in range(int(ranks)):
    own = {{"FLUX_TASK_RANK": str(rank), "FLUX_TASK_LOCAL_ID": str(rank)}}
    pmi = {{"PMI_RANK": str(rank), "PMI_SIZE": ranks}}  # for MPI, which is MPICH's as well
    started.append(subprocess.Popen(words, env={{**shared, **own, **pmi}}))
sys.exit(max(process.wait() for process in started))
'''


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (module,) = re.findall(r"```python\n(.*?class Flux.*?)```", DOCUMENT, re.DOTALL)
    (tmp_path / "flux_launcher.py").write_text(module)
    (group,), (point,) = (
        re.findall(pattern, DOCUMENT)
        for pattern in (r'\[project\.entry-points\."(.*)"\]', r'\n(flux = ".*")')
    )
    about = tmp_path / "flux_launcher-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: flux-launcher\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{point.replace(chr(34), '')}\n")
    program = tmp_path / "flux"
    program.write_text(FLUX.format(python=sys.executable))
    program.chmod(0o755)
    ranks = re.compile(r"(LOCAL_)?RANK|WORLD_SIZE|MASTER_\w+|(SLURM|OMPI|PMI)_\w+")
    outside = {name: value for name, value in os.environ.items() if not ranks.fullmatch(name)}
    return {
        **outside,
        **ON_THE_CPU,
        "OMP_NUM_THREADS": "1",
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(HERE), str(HERE.parent)]),
    }


def printed(environment: dict[str, str], *words: str, status: int = 0) -> str:
    done = subprocess.run(
        words,
        env=environment,
        cwd=environment["PATH"].partition(os.pathsep)[0],
        capture_output=True,
        text=True,
        timeout=4 * LONG_S,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


MEASURE = """
import sys
from bench_lib.launch.ranks import run_ranks
from bench_lib.model import Case, Launch, Sampling
soon = Sampling(warmup_s=0, warmup_max_s=0, iterations=2, max_iterations=2, measure_s=0)
case = Case("two", sys.argv[1], {}, launch=Launch(ranks=2), sampling=soon, time_limit_s=60)
measured = run_ranks(case)
for rank in measured.per_rank:
    print(rank.rank, rank.local_rank, len(rank.iteration_s))
"""


def test_a_case_of_two_ranks_is_measured_with_it(environment: dict[str, str]) -> None:
    chosen = {**environment, "BENCH_LIB_LAUNCHER": "flux"}
    told = printed(chosen, sys.executable, "-c", MEASURE, "tiny:relu")
    assert told == "0 0 2\n1 1 2\n"


HARDLY_WARM_UP = """
import functools, sys
if "bench_lib.micro" in sys.orig_argv:
    from bench_lib.micro import session
    short = functools.partial(session.Sampling, warmup_s=0.01, warmup_max_s=0.02)
    session.Sampling, session.disturbance = short, lambda _measurement: None
"""


def test_micro_knows_its_rank_under_it(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HARDLY_WARM_UP)
    told = printed(
        environment,
        *("flux", "run", "-n", "2", sys.executable, "-m", "bench_lib.cli", "micro"),
        *("--network", "squeezenet1_1", "--batch-size", "4", "--iterations", "2"),
        *("--dist-backend", "gloo", "--mode", "inference"),
    )
    assert [told.count(f"--------This process: rank {rank}--------") for rank in (0, 1)] == [1, 1]
    assert told.count("--------Overall (all ranks)") == 1
    assert "Num devices: 2\n" in told


def test_a_command_that_starts_ranks_itself_refuses_to_be_several(
    environment: dict[str, str],
) -> None:
    words = ("flux", "run", "-n", "2", sys.executable, "-m", "bench_lib.cli", "exercise", "compile")
    assert printed(environment, *words, status=2) == (
        "bench-lib: error: flux started bench-lib exercise 2 times; start it once, without flux: "
        "it starts the ranks of a case itself, by flux with BENCH_LIB_LAUNCHER=flux\n"
    )


REGISTRY = """
import os, sys
from bench_lib.launch import launchers
from bench_lib.model import UserError
try:
    print({expression})
except UserError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (
            "launchers.without_ranks({'FLUX_TASK_RANK': '1', 'FLUX_URI': 'x', 'RANK': '0'})",
            "{'FLUX_URI': 'x'}",
        ),
        (
            "launchers.meeting_point(launchers.Placement(1, 1, 2, 2, 'flux'), {})",
            "Meeting(host='127.0.0.1', port=29500, served=False)",
        ),
        ("launchers.name_of('flux -o x')", "flux"),
    ],
)
def test_the_registry_has_it_beside_ours(
    environment: dict[str, str], expression: str, value: str
) -> None:
    told = printed(environment, sys.executable, "-c", REGISTRY.format(expression=expression))
    assert told == f"{value}\n"


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("import lacking", "(flux_launcher:Flux) cannot be loaded: ModuleNotFoundError("),
        ("class Flux: pass", "has to be a subclass of Launcher whose name is 'flux'"),
    ],
)
def test_one_that_cannot_be_used_is_named(
    environment: dict[str, str], tmp_path: Path, module: str, words: str
) -> None:
    (tmp_path / "flux_launcher.py").write_text(f"{module}\n")
    program = REGISTRY.format(expression="launchers.read('flux')")
    assert words in printed(environment, sys.executable, "-c", program, status=1)


def test_a_rank_of_ours_does_not_look_for_it(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "flux_launcher.py").write_text("import lacking\n")
    place = "launchers.who_am_i({'RANK': '0', 'LOCAL_RANK': '0', 'WORLD_SIZE': '1'}).launcher"
    told = printed(environment, sys.executable, "-c", REGISTRY.format(expression=place))
    assert told == "torchrun\n"


def test_those_there_are_include_it(environment: dict[str, str]) -> None:
    program = REGISTRY.format(expression="launchers.read('prun')")
    assert "it has to be torchrun, mpirun, srun or flux" in printed(
        environment, sys.executable, "-c", program, status=1
    )
