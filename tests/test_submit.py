"""Jobs for Slurm: what is asked for, the script, Slurm's answers, and what is told of them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import typer
from builders import make_hardware, make_record, write_run
from command import ran
from documents import document_in
from processes import wait_until

from bench_lib.backends.amd import devices as kfd
from bench_lib.cli import app
from bench_lib.model import Status, UserError
from bench_lib.slurm import asked, collecting, job, tools
from bench_lib.slurm.asked import JobRequest, Resources, Task, sbatch_script
from bench_lib.slurm.collecting import Submission
from bench_lib.slurm.job import Got, Used
from bench_lib.slurm.tools import JobState, SlurmError
from bench_lib.storage import history as runs

MIB, GIB = 2**20, 2**30

# --- what is asked for ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "time_s"),
    [
        ("45", 2700),
        ("7:30", 450),
        ("2:00:00", 7200),
        ("1-12", 129600),
        ("1-0:30", 88200),
        ("2-03:04:05", 183845),
    ],
)
def test_a_time_is_read_as_sbatch_reads_it(text, time_s):
    assert asked.seconds(text) == time_s


@pytest.mark.parametrize("text", ["", "0", "0:00", "soon", "1:2:3:4", "-5", "1.5", "2h", "1-"])
def test_what_is_no_time_is_named_with_an_example(text):
    with pytest.raises(UserError, match=r"^--time '.*' is no time; write .*2:00:00 for example$"):
        asked.seconds(text)


def test_a_time_is_written_as_it_is_read():
    assert [asked.clock(s) for s in (59, 3600, 129600)] == ["0:00:59", "1:00:00", "1-12:00:00"]
    assert asked.seconds(asked.clock(183845)) == 183845


@pytest.mark.parametrize(
    ("text", "size"),
    [("64G", 64 * GIB), ("700", 700 * MIB), ("1.5g", 1536 * MIB), ("2T", 2**41), ("9GiB", 9 * GIB)],
)
def test_memory_is_read_with_and_without_a_unit(text, size):
    assert asked.memory(text) == size


@pytest.mark.parametrize("text", ["", "0", "64Q", "lots", "-1G", "100K"])
def test_what_is_no_memory_is_named_with_an_example(text):
    with pytest.raises(UserError, match=r"^--mem '.*' is no amount of memory; write 64G or 500M"):
        asked.memory(text)


def test_tiers_are_a_list_of_different_known_ones():
    assert asked.named_tiers("gate, nightly") == ("gate", "nightly")
    assert asked.named_tiers(None) == ()
    with pytest.raises(UserError, match="'weekly' is none of smoke, gate, nightly"):
        asked.named_tiers("gate,weekly")
    with pytest.raises(UserError, match="--tier 'gate,gate' names a tier twice"):
        asked.named_tiers("gate,gate")


@pytest.mark.parametrize("text", ["", "a b", "-x", "$(id)", "a\nb", "a;b"])
def test_a_name_that_slurm_cannot_know_is_refused(text):
    with pytest.raises(UserError, match=r"^--partition .* is no name that Slurm knows$"):
        asked.name("--partition", text)
    assert asked.name("--partition", "mi300x,mi325-a") == "mi300x,mi325-a"


def test_pytests_arguments_are_kept_and_the_tests_named_where_they_are_not(tmp_path):
    (tmp_path / "perf_tests").mkdir()
    (tmp_path / "mine.py").touch()

    def arguments(*given):
        return asked.pytest_arguments(given, tmp_path, "perf_tests")

    assert arguments() == ("perf_tests",)
    assert arguments("-k", "mine.py") == ("perf_tests", "-k", "mine.py")
    other = ("--perf-baselines", "perf_tests", "--rootdir", str(tmp_path))
    assert arguments(*other) == ("perf_tests", *other)
    assert arguments("-x", "mine.py::test_one") == ("-x", "mine.py::test_one")
    with pytest.raises(UserError, match=r"^--perf-history is the job's own; give .* --history"):
        arguments("--perf-history=elsewhere")


# --- the script ----------------------------------------------------------------------------


def request(**fields):
    """Build a request for a suite in /srv/suite."""
    given = {"resources": Resources(), "pytest": ("perf_tests",), "directory": Path("/srv/suite")}
    return JobRequest(**{**given, **fields})


def lines_of(*, folder=Path("/srv/history/slurm/one"), **fields):
    """Return the lines of a request's script."""
    return sbatch_script(request(**fields), folder, ["bench-lib", "submit"]).splitlines()


def test_what_is_asked_for_stands_in_the_scripts_head():
    wanted = Resources(2, cpus=24, gpus=8, memory_bytes=64 * GIB, time_s=7200)
    lines = lines_of(resources=wanted, partition="mi300x", account="perf")
    assert [line for line in lines if line.startswith("#SBATCH")] == [
        "#SBATCH --job-name=bench-lib",
        "#SBATCH --output=/srv/history/slurm/one/task-1.log",
        "#SBATCH --partition=mi300x",
        "#SBATCH --account=perf",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=24",
        "#SBATCH --gres=gpu:8",
        "#SBATCH --mem=65536M",
        "#SBATCH --time=2:00:00",
        "#SBATCH --no-requeue",
    ]
    asked_for = "--nodes 2 --cpus 24 --gpus 8 --mem 65536M --time 2:00:00"
    assert "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=24 \\" in lines
    assert f'  "${{python[@]}}" -m bench_lib.slurm check {asked_for} "$folder"' in lines
    assert "export BENCH_LIB_LAUNCHER='torchrun --nnodes 2'" in lines
    assert 'export BENCH_LIB_SHARED="$folder"' in lines
    assert "cd /srv/suite" in lines


def test_what_is_not_asked_for_is_left_to_the_cluster():
    lines = lines_of()
    assert [line for line in lines if line.startswith("#SBATCH")][2:] == [
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --no-requeue",
    ]
    assert '"${python[@]}" -m bench_lib.slurm check --nodes 1 "$folder"' in lines
    assert not any("BENCH_LIB_SHARED" in line or line.startswith("srun") for line in lines)


def test_srun_gets_a_task_for_each_gpu_with_its_part_of_the_cores():
    with_gpus = lines_of(resources=Resources(cpus=24, gpus=8), launcher="srun")
    assert "#SBATCH --ntasks-per-node=8" in with_gpus
    assert "#SBATCH --cpus-per-task=3" in with_gpus
    assert "export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}" in with_gpus
    on_cpus = lines_of(resources=Resources(cpus=6), launcher="srun")
    assert "#SBATCH --ntasks-per-node=6" in on_cpus
    with pytest.raises(UserError, match=r"^--cpus 20 cannot be divided evenly .*; give 24$"):
        lines_of(resources=Resources(cpus=20, gpus=8), launcher="srun")


def test_an_array_has_a_task_for_each_tier_or_each_gpu():
    tiers = lines_of(tiers=("gate", "nightly"), array="tiers")
    assert "#SBATCH --array=1-2" in tiers
    assert "#SBATCH --output=/srv/history/slurm/one/task-%a.log" in tiers
    assert tiers[-10:-1] == [
        "case $task in",
        "  1)",
        "    suite --perf-tier gate || status=$?",
        "    ;;",
        "  2)",
        "    suite --perf-tier nightly || status=$?",
        "    ;;",
        '  *) echo "bench-lib: error: task $task is none of this job\'s" >&2; exit 2 ;;',
        "esac",
    ]
    gpus = lines_of(tiers=("smoke", "gate"), array="gpus", shares=2, resources=Resources(gpus=1))
    assert "#SBATCH --array=1-2" in gpus
    assert gpus[-7:-4] == [
        "  2)",
        "    suite --perf-tier smoke --perf-share 2/2 || status=$?",
        "    suite --perf-tier gate --perf-share 2/2 || status=$?",
    ]


def test_a_percent_sign_in_the_folder_is_no_pattern_of_slurms():
    lines = lines_of(folder=Path("/srv/5%j of it/slurm/one"), array="tiers", tiers=("gate",))
    assert "#SBATCH --output='/srv/5%%j of it/slurm/one/task-%a.log'" in lines


def test_the_script_hands_every_word_on_as_it_was_typed(tmp_path):
    nasty = ["a b", "$(touch pwned)", "`touch pwned`", "it's", '"', "*", "; touch pwned", "-k"]
    python = tmp_path / "py thon"
    python.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"print(json.dumps(sys.argv[1:]), file=open({str(tmp_path / 'seen')!r}, 'a'))\n"
    )
    python.chmod(stat.S_IRWXU)
    folder = tmp_path / "it's $HOME" / "one"
    text = sbatch_script(
        request(python=str(python), pytest=tuple(nasty), tiers=("gate",), directory=tmp_path),
        folder,
        ["x", *nasty],
    )
    done = subprocess.run(["bash"], input=text, text=True, cwd=tmp_path, check=True)
    assert done.returncode == 0
    check, suite = map(json.loads, (tmp_path / "seen").read_text().splitlines())
    own = f"{folder}/task-1"
    assert check == ["-m", "bench_lib.slurm", "check", "--nodes", "1", own]
    assert suite[suite.index("--") + 1 :] == [
        *("-m", "pytest", *nasty, "--perf-history", own, "--perf-tier", "gate"),
    ]
    assert not (tmp_path / "pwned").exists()


def test_words_that_would_end_a_line_of_the_script_are_refused():
    with pytest.raises(UserError, match="has a line break or a control character in it"):
        sbatch_script(request(), Path("/srv/one"), ["bench-lib", "--\nrm -rf /"])


def test_a_folder_that_slurm_cannot_name_is_refused():
    with pytest.raises(UserError, match="has a backslash in it"):
        lines_of(folder=Path("/srv/a\\b/slurm/one"))


def test_the_script_ends_with_the_status_of_a_run_that_failed(tmp_path):
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/bash\necho "$3 ${{@: -1}}" >>{tmp_path}/seen\n'
        'if [ "$3 ${@: -1}" = "$FAILS" ]; then exit 3; fi\n'
    )
    python.chmod(stat.S_IRWXU)
    text = sbatch_script(
        request(python=str(python), tiers=("smoke", "gate"), directory=tmp_path),
        tmp_path / "one",
        ["x"],
    )

    def status_where(fails):
        environment = {**os.environ, "FAILS": fails}
        return subprocess.run(["bash"], input=text, text=True, env=environment, check=False)

    assert status_where("run smoke").returncode == 3
    assert (tmp_path / "seen").read_text().splitlines()[1:] == ["run smoke", "run gate"]
    (tmp_path / "seen").unlink()
    assert status_where(f"check {tmp_path}/one/task-1").returncode == 3
    assert len((tmp_path / "seen").read_text().splitlines()) == 1


def stand_in(tmp_path, does):
    """Write an interpreter that notes its first and last word, and then does something."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\necho "$3 ${{@: -1}}" >>{tmp_path}/seen\n{does}\n')
    python.chmod(stat.S_IRWXU)
    return str(python)


def test_a_job_that_is_told_to_end_begins_no_further_tier(tmp_path):
    python = stand_in(tmp_path, 'if [ "$3" = run ]; then kill -TERM $PPID; sleep 0.1; fi; exit 0')
    text = sbatch_script(
        request(python=python, tiers=("smoke", "gate"), directory=tmp_path), tmp_path / "one", ["x"]
    )
    assert subprocess.run(["bash"], input=text, text=True, check=False).returncode == 143
    assert (tmp_path / "seen").read_text().splitlines()[1:] == ["run smoke"]


@pytest.mark.parametrize(("array", "status"), [(None, 0), ("tiers", 2)])
def test_a_task_that_the_job_does_not_have_is_no_success(tmp_path, array, status):
    python = stand_in(tmp_path, "")
    text = sbatch_script(
        request(python=python, tiers=("smoke", "gate"), array=array, directory=tmp_path),
        tmp_path / "one",
        ["x"],
    )
    done = subprocess.run(
        ["bash"],
        input=text,
        text=True,
        env={**os.environ, "SLURM_ARRAY_TASK_ID": "7"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == status
    if array is None:
        check, *runs_seen = (tmp_path / "seen").read_text().splitlines()
        assert (check, runs_seen) == (
            f"check {tmp_path}/one/task-1",
            ["run smoke", "run gate"],
        )
    else:
        assert "task 7 is none of this job's" in done.stderr


# --- what Slurm says -----------------------------------------------------------------------

SCONTROL = """\
JobId=7731 ArrayJobId=7730 ArrayTaskId=1 JobName=bench-lib UserId=ada(1002) Priority=11 \
Account=perf QOS=normal JobState=FAILED Reason=NonZeroExitCode Dependency=(null) Requeue=0 \
ExitCode=1:0 RunTime=1-01:02:03 TimeLimit=2-00:00:00 Partition=mi300x NodeList=kea07 \
BatchHost=kea07 NumNodes=1 NumCPUs=24 NumTasks=1 CPUs/Task=24 TRES=cpu=24,mem=64G,node=1 \
Command=/srv/a JobState=COMPLETED b WorkDir=/srv StdOut=/srv/task-1.log Power=
JobId=7730 ArrayJobId=7730 ArrayTaskId=2-3,5%1 ArrayTaskThrottle=1 JobName=bench-lib \
JobState=PENDING Reason=Resources ExitCode=0:0 RunTime=00:00:00 TimeLimit=UNLIMITED \
NodeList=(null) NumNodes=1-1 NumCPUs=24-48 NumTasks=1
"""


def test_scontrols_lines_are_tasks_and_those_that_wait_are_told_apart():
    failed, *waiting = tools.read_scontrol(SCONTROL)
    assert failed == JobState(
        job_id="7730_1",
        task=1,
        state="FAILED",
        reason="NonZeroExitCode",
        exit_status=1,
        signal=0,
        wall_s=90123.0,
        limit_s=172800.0,
        nodes="kea07",
        cpus=24,
    )
    assert [each.job_id for each in waiting] == ["7730_2", "7730_3", "7730_5"]
    assert {(each.state, each.reason, each.limit_s, each.nodes) for each in waiting} == {
        ("PENDING", "Resources", None, "")
    }


def test_a_job_that_is_no_array_is_its_own_only_task():
    text = "JobId=88 JobName=bench-lib JobState=COMPLETED Reason=None ExitCode=0:0\n\nNo more.\n"
    (only,) = tools.read_scontrol(text)
    assert (only.job_id, only.task, only.state, only.reason) == ("88", 1, "COMPLETED", "")
    assert (only.wall_s, only.cpus) == (None, None)


SACCT = """\
7730_1|FAILED|1:0|90123|2880|24|12-03:00:01|0|kea07
7730_1.batch|FAILED|1:0|90123||24|12-03:00:00|37748736K|kea07
7730_1.extern|COMPLETED|0:0|90123||24|00:00.004|0|kea07
7730_1.0|COMPLETED|0:0|512||24|00:01.250|1.5G|kea07
7730_2|CANCELLED by 1002|0:15|17|Partition_Limit|24|00:21.500||kea08
7730_[3-4%1]|PENDING|0:0|0|2880|0|00:00:00||None assigned
garbage
"""


def test_saccts_steps_give_the_memory_and_its_jobs_the_rest():
    failed, cancelled, third, fourth = tools.read_sacct(SACCT)
    assert (failed.job_id, failed.state, failed.exit_status) == ("7730_1", "FAILED", 1)
    assert (failed.peak_bytes, failed.cpu_s) == (36 * GIB, 1047601.0)
    assert (failed.wall_s, failed.limit_s, failed.cpus) == (90123.0, 172800.0, 24)
    assert (cancelled.state, cancelled.signal, cancelled.peak_bytes) == ("CANCELLED", 15, None)
    assert (cancelled.cpu_s, cancelled.limit_s) == (21.5, None)
    assert (third.task, fourth.task, third.state, third.nodes) == (3, 4, "PENDING", "")


def test_sstat_names_the_step_that_held_most():
    assert tools.read_sstat("118784K\n3.25M\n\n") == 118784 * 1024
    assert tools.read_sstat("\n") is None


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Return a function that lays out Slurm's commands: each prints, complains and ends as told."""
    folder = tmp_path / "commands"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    real = tools.shutil.which
    monkeypatch.setattr(tools.shutil, "which", lambda name: real(name, path=str(folder)))

    def lay(name, out="", err="", status=0, seconds=0.0):
        (folder / f"{name}.out").write_text(out)
        (folder / f"{name}.err").write_text(err)
        command = folder / name
        command.write_text(
            f'#!/bin/bash\necho "$@" >>{folder}/{name}.asked\nsleep {seconds}\n'
            f"cat {folder}/{name}.out\ncat {folder}/{name}.err >&2\nexit {status}\n"
        )
        command.chmod(stat.S_IRWXU)
        return folder / f"{name}.asked"

    return lay


NODES = (
    "debug|2|8|31000|(null)|30:00\nmi300x*|3|96|2000000+|gpu:mi300x:8(S:0-1),shard:64|infinite\n"
)


def test_sinfos_lines_are_kinds_of_nodes(commands):
    commands("sinfo", NODES)
    debug, big = tools.partitions()
    assert debug == tools.NodeKind("debug", False, 2, 8, 31000 * MIB, 0, 1800.0)
    assert big == tools.NodeKind("mi300x", True, 3, 96, 2000000 * MIB, 8, None)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"resources": Resources(gpus=9)},
            "--gpus 9 is more than any node gives; the cluster has 3 nodes",
        ),
        (
            {"resources": Resources(4)},
            "--nodes 4: what is asked for is on 3 nodes only; the cluster h",
        ),
        (
            {"resources": Resources(cpus=16), "partition": "debug"},
            (
                "--cpus 16 is more than any node gives; the cluster has 2 nodes in debug with 8 "
                "cores, 31000M and 0 GPUs for 0:30:00"
            ),
        ),
        ({"partition": "mi250"}, "--partition 'mi250' is none of this cluster's: debug, mi300x"),
    ],
)
def test_what_no_node_has_is_not_submitted(commands, fields, said):
    commands("sinfo", NODES)
    sbatch = commands("sbatch", "17\n")
    with pytest.raises(SlurmError) as raised:
        tools.submit(Path("one.sbatch"), request(**fields))
    assert str(raised.value).startswith(said)
    assert not sbatch.exists()


@pytest.mark.parametrize(
    ("err", "said"),
    [
        (
            (
                "sbatch: error: Batch job submission failed: Invalid account or account/partition "
                "combination specified\n"
            ),
            (
                "sbatch: Batch job submission failed: Invalid account or account/partition "
                "combination specified; name one with --account: "
            ),
        ),
        (
            (
                "sbatch: error: Batch job submission failed: Requested node configuration is not "
                "available\n"
            ),
            (
                "sbatch: Batch job submission failed: Requested node configuration is not "
                "available; ask for less: sinfo "
            ),
        ),
        (
            (
                "sbatch: error: Batch job submission failed: Requested time limit is invalid "
                "(missing or exceeds some limit)\n"
            ),
            (
                "sbatch: Batch job submission failed: Requested time limit is invalid (missing or "
                "exceeds some limit); give a shorter --time: "
            ),
        ),
        ("", "sbatch: exit status 1"),
    ],
)
def test_sbatchs_refusal_is_told_with_the_remedy(commands, err, said):
    commands("sinfo", NODES)
    commands("sbatch", err=err, status=1)
    with pytest.raises(SlurmError) as raised:
        tools.submit(Path("one.sbatch"), request())
    assert str(raised.value).startswith(said)


def test_a_federations_answer_names_job_and_cluster(commands):
    commands("sinfo", NODES)
    sbatch = commands("sbatch", "5150;north\n")
    assert tools.submit(Path("one.sbatch"), request()) == "5150"
    assert sbatch.read_text() == "--parsable one.sbatch\n"
    commands("sbatch", "all is well\n")
    with pytest.raises(SlurmError, match="answered 'all is well', which is no job's number"):
        tools.submit(Path("one.sbatch"), request())


def test_a_cluster_that_hides_its_nodes_is_submitted_to_all_the_same(commands):
    commands("sinfo", err="slurm_load_partitions: Access denied\n", status=1)
    commands("sbatch", "88\n")
    assert tools.submit(Path("one.sbatch"), request(partition="hidden")) == "88"


def test_where_there_is_no_slurm_the_command_and_its_package_are_named(commands):
    with pytest.raises(SlurmError, match=r"^sbatch is not here; .*apt-get install slurm-client"):
        tools.submit(Path("one.sbatch"), request())


def test_a_command_that_hangs_is_given_up(commands, monkeypatch):
    monkeypatch.setattr(tools, "TIMEOUT_S", 0.05)
    commands("sinfo", seconds=0.3)
    with pytest.raises(SlurmError, match=r"^sinfo did not answer within 0.05 s; .*scontrol ping"):
        tools.partitions()


def test_accounting_adds_what_the_controller_does_not_know(commands):
    commands("scontrol", "JobId=88 JobState=COMPLETING Reason=None NumCPUs=4\n")
    commands(
        "sacct", "88|RUNNING|0:0|9|60|4|00:31.5||kea01\n88.batch|RUNNING|0:0|9||4||77M|kea01\n"
    )
    (found,) = tools.states("88")
    assert (found.state, found.cpus, found.peak_bytes, found.cpu_s) == (
        *("COMPLETING", 4, 77 * MIB, 31.5),
    )
    commands("scontrol", err="slurm_load_jobs error: Invalid job id specified\n", status=1)
    assert [each.state for each in tools.states("88")] == ["RUNNING"]
    commands("sacct", err="Slurm accounting storage is disabled\n", status=1)
    assert tools.states("88") == []


def test_a_controller_that_is_down_is_no_job_that_is_gone(commands):
    commands(
        "scontrol", err="slurm_load_jobs error: Unable to contact slurm controller\n", status=1
    )
    with pytest.raises(SlurmError, match="Unable to contact slurm controller"):
        tools.states("88")


# --- inside the job ------------------------------------------------------------------------

GRANTED = {
    "SLURM_JOB_ID": "7731",
    "SLURM_ARRAY_JOB_ID": "7730",
    "SLURM_ARRAY_TASK_ID": "1",
    "SLURM_JOB_NUM_NODES": "1",
    "SLURM_CPUS_ON_NODE": "6",
    "SLURM_MEM_PER_NODE": "7000",
    "SLURMD_NODENAME": "kea07",
}


@pytest.fixture
def gpus(monkeypatch):
    """Show two AMD GPUs to whatever the variables leave."""
    there = [make_hardware(vendor="amd", index=n, uuid=f"GPU-31{n}f") for n in range(2)]
    monkeypatch.setattr(kfd, "devices", lambda *_: there)
    return there


def look(tmp_path, wanted, *, cores=6, **environ):
    """Return what a job got whose node has nothing but what is in ``tmp_path``."""
    return job.look(wanted, environ={**GRANTED, **environ}, root=tmp_path, cores=cores)


def test_a_job_that_got_what_it_asked_for_lacks_nothing(tmp_path, gpus):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:       65000000 kB\nMemFree: 1 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/job_7731/step_batch\n")
    group = tmp_path / "sys/fs/cgroup/system.slice/job_7731"
    (group / "step_batch").mkdir(parents=True)
    (group / "step_batch/memory.max").write_text("max\n")
    (group / "memory.max").write_text(f"{6900 * MIB}\n")
    wanted = Resources(cpus=6, gpus=1, memory_bytes=6900 * MIB, time_s=60)
    got = look(tmp_path, wanted, ROCR_VISIBLE_DEVICES="1", SLURM_JOB_GPUS="1")
    assert (got.node, got.nodes, got.cpus, got.memory_bytes) == ("kea07", 1, 6, 6900 * MIB)
    assert got.lacks == []
    assert len(got.gpus) == 1
    assert "GPU-311f" in got.gpus[0]
    assert got.variables == {"ROCR_VISIBLE_DEVICES": "1", "SLURM_JOB_GPUS": "1"}


def test_a_limit_of_the_older_control_groups_counts_as_well(tmp_path, gpus):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("5:cpu:/slurm\n4:memory:/slurm/job_7731/step_0\n")
    memory = tmp_path / "sys/fs/cgroup/memory/slurm"
    (memory / "job_7731/step_0").mkdir(parents=True)
    (memory / "job_7731/step_0/memory.limit_in_bytes").write_text("9223372036854771712\n")
    (memory / "memory.limit_in_bytes").write_text(f"{500 * MIB}\n")
    got = look(tmp_path, Resources(memory_bytes=600 * MIB))
    assert got.memory_bytes == 500 * MIB
    assert got.lacks == ["600 MiB of memory asked for, 500 MiB can be used on kea07"]


@pytest.mark.parametrize(
    ("wanted", "cores", "said"),
    [
        (Resources(2), 6, "2 nodes asked for, the job has 1"),
        (Resources(cpus=8), 64, "8 cores asked for, 6 can be used on kea07 (Slurm granted them, "),
        (Resources(cpus=6), 1, "6 cores asked for, 1 can be used on kea07 (Slurm granted them, "),
        (Resources(gpus=3), 6, "3 GPUs asked for, 2 can be used on kea07 (no variable names any)"),
        (Resources(memory_bytes=8 * GIB), 6, "8.0 GiB of memory asked for, 6.8 GiB can be used on"),
    ],
)
def test_less_than_was_asked_for_is_named(tmp_path, gpus, wanted, cores, said):
    (lack,) = look(tmp_path, wanted, cores=cores).lacks
    assert lack.startswith(said)


def test_gpus_that_are_renumbered_twice_are_explained(tmp_path, gpus):
    both = {"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}
    first, second = look(tmp_path, Resources(gpus=1), **both).lacks
    assert first == (
        "1 GPU asked for, 0 can be used on kea07 (ROCR_VISIBLE_DEVICES=1, CUDA_VISIBLE_DEVICES=1)"
    )
    assert second.startswith("ROCR_VISIBLE_DEVICES has renumbered the GPUs, and CUDA_VISIBLE_DEVIC")


def test_the_log_has_what_was_got_beside_what_was_asked_for(tmp_path, gpus, monkeypatch):
    for name, value in GRANTED.items():
        monkeypatch.setenv(name, value)
    wanted = Resources(cpus=6, gpus=2, time_s=5400)
    lines = list(job.shown(wanted, look(tmp_path, wanted, CUDA_VISIBLE_DEVICES="0")))
    assert lines[:5] == [
        "bench-lib: job 7730_1 on kea07, 1:30:00 at most",
        "  nodes: 1 asked for, 1 got",
        "  cores of the node: 6 asked for, 6 got",
        "  GPUs of the node: 2 asked for, 1 got",
        "  memory of the node: not asked for, 6.8 GiB got",
    ]
    assert "  CUDA_VISIBLE_DEVICES=0" in lines
    assert "  HIP_VISIBLE_DEVICES is not set" in lines
    assert lines[-1].startswith("bench-lib: error: 2 GPUs asked for, 1 can be used on kea07")


def process(proc, pid, name, parent, *, pages, ticks, title=""):
    """Write what the kernel says of a process."""
    (proc / str(pid)).mkdir(parents=True)
    fields = ["S", str(parent), *["0"] * 9, str(ticks), "0", *["0"] * 6, str(7 * pid), "0"]
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join([*fields, str(pages)])} 0\n")
    (proc / str(pid) / "cmdline").write_text(title)


def test_ranks_of_srun_count_although_they_descend_from_slurms_daemon(tmp_path):
    process(tmp_path, 10, "slurmstepd", 1, pages=9, ticks=9, title="slurmstepd: [7731.batch]")
    process(tmp_path, 11, "python) 3", 10, pages=100, ticks=50)
    process(tmp_path, 12, "python3", 11, pages=30, ticks=50)
    process(tmp_path, 20, "slurmstepd", 1, pages=1, ticks=0, title="slurmstepd: [7731.0]")
    process(tmp_path, 21, "python3", 20, pages=200, ticks=300)
    process(tmp_path, 30, "slurmstepd", 1, pages=5, ticks=5, title="slurmstepd: [7732.0]")
    process(tmp_path, 31, "python3", 30, pages=5, ticks=5)
    watch = job.Watch(11, "7731", tmp_path)
    watch.look()
    (tmp_path / "21/stat").unlink()
    watch.look()
    assert watch.peak_bytes == 331 * os.sysconf("SC_PAGE_SIZE")
    assert watch.steps_cpu_s == pytest.approx(300 / os.sysconf("SC_CLK_TCK"))


def test_what_was_used_is_told_against_what_was_asked_for():
    used = Used(0, wall_s=100.0, cpu_s=500.0, peak_bytes=3 * GIB)
    wanted = Resources(nodes=2, cpus=5, memory_bytes=6 * GIB, time_s=200)
    assert job.in_words(used, wanted) == (
        "3.0 GiB of memory at most, 25% of 12.0 GiB; 500 s of CPU time, 50% of 10 cores; "
        "0:01:40 of 0:03:20"
    )
    assert job.in_words(used, Resources()) == (
        "3.0 GiB of memory at most; 500 s of CPU time; 0:01:40"
    )
    assert job.in_words(used, Resources(), cpus=20, limit_s=300).endswith(
        "25% of 20 cores; 0:01:40 of 0:05:00"
    )


def in_job(*words, **options):
    """Start what the job's script starts."""
    command = [sys.executable, "-m", "bench_lib.slurm", *map(str, words)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
    return subprocess.Popen(command, env=environment, text=True, **options)


def test_a_run_keeps_its_status_and_what_it_used(tmp_path):
    for status in (0, 5):
        words = ("run", tmp_path, "--", "-c", f"raise SystemExit({status})")
        assert in_job(*words, stdout=subprocess.DEVNULL).wait() == status
    lines = (tmp_path / "used.jsonl").read_text().splitlines()
    both = [msgspec.json.decode(line, type=Used) for line in lines]
    assert [each.exit_status for each in both] == [0, 5]
    assert all(each.peak_bytes > 0 and each.peak_by == "its own reading" for each in both)
    assert job.together(both).exit_status == 5


def test_a_run_that_is_told_to_end_hands_it_on_and_says_what_was_used(tmp_path):
    code = (
        f"import pathlib, time; pathlib.Path({str(tmp_path / 'begun')!r}).touch(); time.sleep(60)"
    )
    started = in_job("run", tmp_path, "--", "-c", code, stdout=subprocess.PIPE)
    assert wait_until((tmp_path / "begun").exists)
    started.send_signal(signal.SIGTERM)
    out, _ = started.communicate()
    assert started.returncode == 128 + signal.SIGTERM
    assert out.startswith("bench-lib: used ")


def test_a_check_that_cannot_write_says_what_the_folder_has_to_be(tmp_path):
    (tmp_path / "file").touch()
    started = in_job("check", tmp_path / "file" / "task-1", stderr=subprocess.PIPE)
    _, err = started.communicate()
    assert started.returncode == 2
    assert "--history has to be a folder that every node can write" in err


# --- what became of it ---------------------------------------------------------------------

WANTED = Resources(cpus=2, memory_bytes=4 * GIB, time_s=3600)


def state_of(state, **fields):
    """Build what Slurm says of the first task."""
    return JobState(**{"job_id": "7730_1", "task": 1, "state": state, **fields})


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (state_of("RUNNING"), "RUNNING"),
        (state_of("PENDING", reason="Priority"), "PENDING (Priority)"),
        (
            state_of("PENDING", reason="PartitionTimeLimit"),
            (
                "PENDING (PartitionTimeLimit): it never starts as it is; scancel 7730_1, and ask "
                "for less"
            ),
        ),
        (state_of("COMPLETED"), "COMPLETED: all passed"),
        (state_of("CANCELLED"), "CANCELLED: somebody ended it with scancel"),
        (
            state_of("TIMEOUT"),
            (
                "TIMEOUT: not done within its limit of 1:00:00; give it a longer --time, or fewer "
                "cases"
            ),
        ),
        (
            state_of("OUT_OF_MEMORY"),
            (
                "OUT_OF_MEMORY: it wanted more memory than the 4.0 GiB asked for; ask for more "
                "with --mem"
            ),
        ),
        (
            state_of("NODE_FAIL", nodes="kea07"),
            "NODE_FAIL: kea07 went down under it; submit it again",
        ),
        (state_of("PREEMPTED"), "PREEMPTED"),
        (state_of("FAILED", exit_status=127), "FAILED with exit status 127: the log says why"),
        (state_of("FAILED", exit_status=0, signal=9), "FAILED: ended by signal 9"),
        (
            state_of("FAILED", exit_status=0, signal=53, nodes="kea07"),
            "FAILED: kea07 cannot write its log; --history has to be a folder it sees",
        ),
    ],
)
def test_every_state_has_its_words(state, words):
    assert collecting.in_words(state, WANTED, [], None) == words


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (1, "FAILED with exit status 1: cases failed, or regressed"),
        (
            4,
            (
                "FAILED with exit status 4: "
                "no device, or an option, the matrix, the history or a baseline is wrong"
            ),
        ),
        (139, "FAILED with exit status 139: the log says why"),
    ],
)
def test_pytests_statuses_are_told_where_the_suite_was_run(status, words):
    state = state_of("FAILED", exit_status=status)
    assert collecting.in_words(state, WANTED, [], Used(status, 9.0, 9.0)) == words


def test_a_job_that_got_less_says_what():
    got = [Got("kea07"), Got("kea08", lacks=["3 GPUs asked for, 2 can be used on kea08"])]
    state = state_of("FAILED", exit_status=1)
    assert collecting.in_words(state, WANTED, got, None) == (
        "FAILED: it got less than it asked for: 3 GPUs asked for, 2 can be used on kea08"
    )


@pytest.fixture
def submitted(tmp_path, commands):
    """Lay out what is kept of an array of two tiers that ended long ago; Slurm forgot it."""
    commands("scontrol", err="slurm_load_jobs error: Invalid job id specified\n", status=1)
    commands("sacct", err="Slurm accounting storage is disabled\n", status=1)
    kept = tmp_path / "kept"
    name = "20310203T040506Z_0badcafe"
    submission = Submission(
        job="7730",
        name=name,
        submitted="2031-02-03T04:05:06Z",
        command=["bench-lib", "submit"],
        resources=WANTED,
        tasks=[Task(1, ("smoke",)), Task(2, ("gate", "nightly"))],
        is_array=True,
    )
    for number in (1, 2):
        (kept / "slurm" / name / f"task-{number}").mkdir(parents=True)
    collecting.keep(kept, submission)
    return kept, submission


def used_in(kept, submission, number, *all_used):
    """Note what the runs of a task used."""
    path = kept / "slurm" / submission.name / f"task-{number}" / "used.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, all_used)) + b'\n{"exit_st')
    return path.parent


def test_a_job_that_slurm_forgot_is_told_by_its_own_words(submitted):
    kept, submission = submitted
    used_in(kept, submission, 1, Used(0, 60.0, 90.0, 2 * GIB, "sstat"))
    used_in(kept, submission, 2, Used(0, 60.0, 90.0, 2 * GIB, "sstat"))
    first, second = collecting.collect(submission, kept)
    assert (first.job_id, first.words) == ("7730_1", "COMPLETED: nothing was measured")
    assert first.used_words == (
        "2.0 GiB of memory at most, 50% of 4.0 GiB; 90 s of CPU time, 75% of 2 cores; "
        "0:01:00 of 1:00:00"
    )
    assert second.words.startswith("GONE: Slurm has forgotten it and it left no word")
    assert (first.is_well, second.is_well) == (True, False)


def test_both_runs_of_a_task_count(submitted):
    kept, submission = submitted
    runs_used = (Used(1, 30.0, 10.0, GIB), Used(0, 50.0, 30.0, 3 * GIB))
    used_in(kept, submission, 2, *runs_used)
    _, second = collecting.outcomes(submission, kept)
    assert second.words == "FAILED with exit status 1: cases failed, or regressed"
    assert (second.used.wall_s, second.used.cpu_s, second.used.peak_bytes) == (80.0, 40.0, 3 * GIB)


@pytest.mark.parametrize(
    ("status", "words"),
    [(Status.OK, "COMPLETED: all passed"), (Status.SKIPPED, "COMPLETED: all cases were skipped")],
)
def test_what_was_skipped_has_not_passed(submitted, status, words):
    kept, submission = submitted
    own = used_in(kept, submission, 1, Used(0, 60.0, 90.0))
    write_run(own, [make_record(status=status)])
    first, _ = collecting.collect(submission, kept)
    assert (first.words, first.counts) == (words, {status.value: 1})


@pytest.mark.parametrize("has_links", [True, False])
def test_histories_are_brought_together_and_stay_where_they_were(submitted, monkeypatch, has_links):
    kept, submission = submitted
    own = used_in(kept, submission, 1, Used(0, 60.0, 90.0))
    write_run(own, [make_record()])
    (source,) = runs.files(own)
    if not has_links:

        def refuse(*_):
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(collecting.os, "link", refuse)
    for _ in range(2):
        first, _ = collecting.collect(submission, kept)
        (found,) = runs.files(kept)
        assert found.read_bytes() == source.read_bytes()
        assert first.runs == [runs.read(source).run_id]
        assert sum(first.counts.values()) == 1
    assert found.samefile(source) == has_links


def test_what_still_runs_is_left_where_it_is(submitted, commands):
    kept, submission = submitted
    commands("scontrol", "JobId=9 ArrayJobId=7730 ArrayTaskId=1 JobState=RUNNING\n")
    own = used_in(kept, submission, 1)
    write_run(own, [make_record()])
    collecting.collect(submission, kept)
    assert runs.files(kept) == []


def test_waiting_tells_what_changes_and_ends_with_the_last_task(submitted, commands):
    kept, submission = submitted
    line = (
        "JobId={n} ArrayJobId=7730 ArrayTaskId={n} JobState={state} Reason={reason} ExitCode=0:0\n"
    )
    running = line.format(n=1, state="RUNNING", reason="None")
    stuck = line.format(n=2, state="PENDING", reason="QOSNotAllowed")
    answers = [running + stuck, running + stuck, line.format(n=1, state="COMPLETED", reason="None")]
    commands("scontrol", answers.pop(0))
    pauses, said = [], []

    def sleep(pause_s):
        pauses.append(pause_s)
        commands("scontrol", answers.pop(0) + ("" if answers else stuck))

    found = collecting.wait(submission, kept, say=said.append, sleep=sleep)
    assert [each.state for each in found] == ["COMPLETED", "PENDING"]
    assert said == [
        "7730_1: RUNNING",
        (
            "7730_2: PENDING (QOSNotAllowed): it never starts as it is; scancel 7730_2, and ask "
            "for less"
        ),
        "7730_1: COMPLETED: all passed",
    ]
    assert pauses == [0.5, 0.75]


# --- the command ---------------------------------------------------------------------------


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """Return a function that runs a command in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        return ran([*words], monkeypatch, capsys)

    return run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name what to submit to: --slurm; or --collect JOB what was submitted"),
        (("--slurm", "--array", "nodes"), "--array: 'nodes' is none of tiers, gpus"),
        (("--slurm", "--array", "tiers"), "--array tiers makes a task of each tier; name them: "),
        (("--slurm", "--launcher", "mpirun"), "--launcher: 'mpirun' is none of torchrun, srun"),
        (("--slurm", "--cpus", "0"), "--cpus is 0; it has to be from 1 to 100000"),
        (("--slurm", "--container", "run 'x"), '--container "run \'x" cannot be split into word'),
        (("--slurm", "--array", "gpus", "--nodes", "2"), "--nodes 2: each task of --array gpus"),
        (("--collect", "7", "--slurm", "--mem", "1G"), "--slurm, --mem: --collect asks about a jo"),
        (("--collect", "7_1"), "'7_1' is no job's number; sbatch prints it"),
    ],
)
def test_a_wrong_question_names_the_option_and_its_value(cli, commands, words, said):
    status, out, err = cli("submit", *words)
    assert (status, out) == (2, "")
    assert err.startswith(f"bench-lib: error: {said}")
    assert not Path("history").exists()


def test_an_array_over_gpus_needs_to_know_of_one(cli, commands):
    commands("sinfo", NODES)
    status, _, err = cli("submit", "--slurm", "--array", "gpus", "--partition", "debug")
    assert status == 2
    assert err.startswith(
        "bench-lib: error: --array gpus: Slurm knows of no GPU in partition 'debug'; say how many"
    )
    for words, count in (((), 24), (("--gpus", "5", "--partition", "debug"), 5)):
        status, out, _ = cli("submit", "--slurm", "--dry-run", "--array", "gpus", *words)
        assert status == 0
        assert f"#SBATCH --array=1-{count}\n" in out
        assert "#SBATCH --gres=gpu:1\n" in out


def test_a_container_runs_its_own_interpreter(cli, commands):
    words = ("submit", "--slurm", "--dry-run", "--container", "apptainer exec --rocm 'a b.sif'")
    assert "python=(apptainer exec --rocm 'a b.sif' python3)\n" in cli(*words)[1]
    named = cli(*words, "--python", "/opt/venv/bin/python")[1]
    assert "python=(apptainer exec --rocm 'a b.sif' /opt/venv/bin/python)\n" in named


def test_a_submitted_job_is_told_with_how_to_follow_and_to_collect_it(cli, commands):
    commands("sinfo", NODES)
    commands("sbatch", "31337\n")
    status, out, err = cli(
        "submit", "--slurm", "--tier", "gate", "--gpus", "8", "--history", "kept"
    )
    assert (status, err) == (0, "")
    (script,) = Path("kept/slurm").glob("*.sbatch")
    log = script.with_suffix("").absolute() / "task-1.log"
    assert out.splitlines() == [
        f"submitted job 31337: {script.absolute()}",
        f"  31337: gate, log {log}",
        "follow:  squeue --job 31337",
        f"         tail -F {log}",
        f"collect: bench-lib submit --collect 31337 --history {Path('kept').absolute()}",
    ]
    command = "bench-lib submit --slurm --tier gate --gpus 8 --history kept"
    assert script.read_text().splitlines()[1] == f"# Written by: {command}"


def test_each_document_of_a_job_is_as_its_schema_says(cli, commands):
    commands("sinfo", NODES)
    commands("sbatch", "31337\n")
    commands("scontrol", "JobId=31337 JobState=PENDING Reason=Resources\n")
    commands("sacct", err="Slurm accounting storage is disabled\n", status=1)
    words = ("submit", "--slurm", "--json", "--tier", "gate", "--gpus", "2")
    assert document_in(cli(*words, "--dry-run")[1])["command"] == "submit --dry-run"
    submitted = document_in(cli(*words)[1])
    assert (submitted["command"], submitted["job"]) == ("submit", "31337")
    status, out, _ = cli("submit", "--collect", "31337", "--json")
    (task,) = document_in(out)["tasks"]
    assert (status, task["task"]["number"]) == (1, 1)


def test_what_is_asked_for_is_stronger_than_the_variables_of_sbatch(cli, commands):
    commands("sinfo", NODES)
    sbatch = commands("sbatch", "31337\n")
    cli("submit", "--slurm", "--time", "3", "--partition", "debug", "--history", "it's kept")
    (path,) = Path("it's kept/slurm").glob("*.sbatch")
    head = [line for line in path.read_text().splitlines() if line.startswith("#SBATCH ")]
    given, said = sbatch.read_text().removesuffix("\n"), path.absolute()
    words = " ".join(word for line in head for word in shlex.split(line)[1:])
    assert given == f"--parsable {words} {said}"
    assert " --partition=debug " in given
    assert " --time=0:03:00 " in given


def test_a_job_that_is_over_is_told_task_by_task(cli, submitted):
    kept, submission = submitted
    own = used_in(kept, submission, 1, Used(0, 60.0, 90.0, 2 * GIB, "sstat"))
    (own / "got-kea07.json").write_bytes(
        msgspec.json.encode(Got("kea07", 1, 2, 4 * GIB, ["AMD Instinct MI300X GPU-31af"]))
    )
    (kept / "slurm" / submission.name / "task-2.log").write_text("first\nlast words\n")
    status, out, err = cli("submit", "--collect", "7730", "--history", str(kept))
    assert (status, err) == (1, "")
    assert out.splitlines()[:3] == [
        "7730_1 (smoke) COMPLETED: nothing was measured",
        "  got on kea07: 2 cores, 4.0 GiB, AMD Instinct MI300X GPU-31af",
        (
            "  used 2.0 GiB of memory at most, 50% of 4.0 GiB; 90 s of CPU time, 75% of 2 cores; "
            "0:01:00 of 1:00:00"
        ),
    ]
    assert "7730_2 (gate, nightly) GONE: " in out
    assert "  | last words\n" in out
    used_in(kept, submission, 2, Used(0, 1.0, 1.0), Used(0, 1.0, 1.0))
    assert cli("submit", "--collect", "7730", "--history", str(kept))[0] == 0


def test_a_user_who_waits_no_longer_is_told_that_the_job_goes_on(cli, submitted, monkeypatch):
    kept, _ = submitted

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(collecting, "wait", interrupt)
    status, out, err = cli("submit", "--collect", "7730", "--wait", "--history", str(kept))
    assert (status, out) == (130, "")
    assert err.startswith(
        "bench-lib: interrupted; job 7730 goes on; bench-lib submit --collect 7730 "
    )
    assert err.endswith("scancel 7730 ends it\n")


def test_a_history_that_cannot_be_written_is_named(cli, commands):
    commands("sinfo", NODES)
    sbatch = commands("sbatch", "31337\n")
    Path("kept").touch()
    status, _, err = cli("submit", "--slurm", "--history", "kept")
    assert status == 2
    assert "; name another folder with --history" in err
    assert not sbatch.exists()


def test_the_page_has_every_option():
    page = (Path(__file__).parents[1] / "docs" / "slurm.md").read_text()
    submit = typer.main.get_command(app).get_command(None, "submit")
    options = {name for each in submit.params for name in each.opts if name.startswith("--")}
    assert "--launcher" in options
    assert sorted(name for name in options - {"--help"} if name not in page) == []


# --- a share of the cases ------------------------------------------------------------------


def test_shares_are_parts_of_the_whole(pytester):
    pytester.makepyfile(
        test_many="import pytest\n\n@pytest.mark.parametrize('n', range(9))\n"
        "def test_each(n):\n    pass\n"
    )

    def tests_of(share, *words):
        plugins = ("-p", "bench_lib.plugin")
        done = pytester.runpytest_inprocess(*plugins, "-v", "--perf-share", share, *words)
        return done.ret, {line for line in done.outlines if "PASSED" in line}

    parts = [tests_of(f"{n}/2") for n in (1, 2)]
    assert [status for status, _ in parts] == [0, 0]
    names = [{line.split()[0] for line in lines} for _, lines in parts]
    assert not names[0] & names[1]
    assert len(names[0] | names[1]) == 9
    only = [tests_of(f"{n}/2", "-k", "test_each[0]") for n in (1, 2)]
    assert sorted((status, len(lines)) for status, lines in only) == [(0, 0), (0, 1)]
    assert tests_of("3/2")[0] == pytest.ExitCode.USAGE_ERROR


def test_an_outcome_is_over_when_nothing_more_will_come_of_it():
    outcome = collecting.TaskOutcome(Task(1, ()), "7", "COMPLETED", "", "")
    assert outcome.is_over
    assert not replace(outcome, state="COMPLETING").is_over
    assert replace(outcome, state="LAUNCH_FAILED").is_over
