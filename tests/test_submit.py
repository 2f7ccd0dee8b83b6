"""Jobs for Slurm: what a user asks for, the script, sbatch, and the check inside the job."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from builders import make_hardware
from command import ran
from documents import document_in

from bench_lib.backends.amd import devices as kfd
from bench_lib.cli import app
from bench_lib.cli.submit import _pytest_arguments
from bench_lib.model import UserError
from bench_lib.slurm import check
from bench_lib.slurm import script as jobs
from bench_lib.slurm.script import JobRequest, Resources, sbatch_script

MIB, GIB = 2**20, 2**30

# --- the script ----------------------------------------------------------------------------


def request(*, folder=Path("/srv/history/slurm/one"), **fields):
    """Build a request for a suite in /srv/suite."""
    given = {"resources": Resources(), "pytest": ("perf_tests",), "directory": Path("/srv/suite")}
    return JobRequest(**{**given, "history": folder.parents[1], "folder": folder, **fields})


def lines_of(**fields):
    """Return the lines of a request's script."""
    return sbatch_script(request(**fields), ["bench-lib", "submit"]).splitlines()


def test_what_is_asked_for_stands_in_the_scripts_head():
    wanted = Resources(2, cpus=24, gpus=8, mem="64G")
    lines = lines_of(resources=wanted, partition="mi300x", account="perf", time="2:00:00")
    assert [line for line in lines if line.startswith("#SBATCH")] == [
        "#SBATCH --job-name=bench-lib",
        "#SBATCH --output=/srv/history/slurm/one/task-1.log",
        "#SBATCH --partition=mi300x",
        "#SBATCH --account=perf",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=24",
        "#SBATCH --gres=gpu:8",
        "#SBATCH --mem=64G",
        "#SBATCH --time=2:00:00",
        "#SBATCH --no-requeue",
    ]
    asked_for = "--nodes 2 --cpus 24 --gpus 8 --mem 64G"
    assert "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=24 \\" in lines
    assert f'  "${{python[@]}}" -m bench_lib.slurm.check {asked_for}' in lines
    assert "export BENCH_LIB_LAUNCHER='torchrun --nnodes 2'" in lines
    assert "export BENCH_LIB_SHARED=/srv/history/slurm/one/shared-$task" in lines
    assert "cd /srv/suite" in lines


def test_what_is_not_asked_for_is_left_to_the_cluster():
    lines = lines_of()
    assert [line for line in lines if line.startswith("#SBATCH")][2:] == [
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --no-requeue",
    ]
    assert '"${python[@]}" -m bench_lib.slurm.check --nodes 1' in lines
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
        '  *) echo "bench-lib: error: this job has no task $task" >&2; exit 2 ;;',
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
    folder = tmp_path / "it's $HOME" / "slurm" / "one"
    asked = request(
        folder=folder,
        python=str(python),
        pytest=tuple(nasty),
        tiers=("gate",),
        directory=tmp_path,
    )
    script = sbatch_script(asked, ["x", *nasty])
    subprocess.run(["bash"], input=script, text=True, cwd=tmp_path, check=True)
    check, suite = map(json.loads, (tmp_path / "seen").read_text().splitlines())
    assert check == ["-m", "bench_lib.slurm.check", "--nodes", "1"]
    history = str(folder.parents[1])
    assert suite == ["-m", "pytest", *nasty, "--perf-history", history, "--perf-tier", "gate"]
    assert not (tmp_path / "pwned").exists()


def test_words_that_would_end_a_line_of_the_script_are_refused():
    with pytest.raises(UserError, match="has a line break or a control character in it"):
        sbatch_script(request(), ["bench-lib", "--\nrm -rf /"])
    with pytest.raises(UserError, match="has a line break or a control character in it"):
        lines_of(time="3\n#SBATCH --uid=0")


def test_a_folder_that_slurm_cannot_name_is_refused():
    with pytest.raises(UserError, match="has a backslash in it"):
        lines_of(folder=Path("/srv/a\\b/slurm/one"))


def run_script(tmp_path, does, **fields):
    """Run a script whose interpreter notes its second and last word, and then does something."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\necho "$2 ${{@: -1}}" >>{tmp_path}/seen\n{does}\n')
    python.chmod(stat.S_IRWXU)
    asked = request(python=str(python), tiers=("smoke", "gate"), directory=tmp_path, **fields)
    done = subprocess.run(
        ["bash"],
        input=sbatch_script(asked, ["x"]),
        env={**os.environ, "SLURM_ARRAY_TASK_ID": "7"},
        text=True,
        capture_output=True,
        check=False,
    )
    seen = tmp_path / "seen"
    return done, seen.read_text().splitlines() if seen.exists() else []


CHECKED = "bench_lib.slurm.check 1"


def test_the_script_ends_with_the_status_of_a_run_that_failed(tmp_path):
    done, seen = run_script(tmp_path, 'if [ "${@: -1}" = smoke ]; then exit 3; fi')
    assert (done.returncode, seen) == (3, [CHECKED, "pytest smoke", "pytest gate"])


def test_nothing_is_measured_where_the_check_fails(tmp_path):
    done, seen = run_script(tmp_path, 'if [ "$2" = bench_lib.slurm.check ]; then exit 1; fi')
    assert (done.returncode, seen) == (1, [CHECKED])


def test_a_job_that_is_told_to_end_begins_no_further_tier(tmp_path):
    does = 'if [ "$2" = pytest ]; then kill -TERM $PPID; sleep 0.1; fi; exit 0'
    done, seen = run_script(tmp_path, does)
    assert (done.returncode, seen) == (143, [CHECKED, "pytest smoke"])


def test_a_task_that_the_job_does_not_have_is_no_success(tmp_path):
    done, _ = run_script(tmp_path, "", array="tiers")
    assert done.returncode == 2
    assert "this job has no task 7" in done.stderr


# --- sbatch ------------------------------------------------------------------------------


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """Return a function that lays out an sbatch: it prints, complains and ends as told."""
    folder = tmp_path / "commands"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    real = jobs.shutil.which
    monkeypatch.setattr(jobs.shutil, "which", lambda name: real(name, path=str(folder)))

    def lay(out="", err="", status=0):
        command = folder / "sbatch"
        command.write_text(
            f'#!/bin/bash\necho "$@" >>{folder}/asked\nprintf %s {shlex.quote(out)}\n'
            f"printf %s {shlex.quote(err)} >&2\nexit {status}\n"
        )
        command.chmod(stat.S_IRWXU)
        return folder / "asked"

    return lay


@pytest.fixture
def submit(tmp_path, monkeypatch, capsys):
    """Return a function that runs ``bench-lib submit`` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: ran(["submit", *words], monkeypatch, capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name what to submit to: --slurm"),
        (("--slurm", "--array", "nodes"), "--array: 'nodes' is none of tiers, gpus"),
        (("--slurm", "--array", "tiers"), "--array tiers makes a task of each tier; name them: "),
        (("--slurm", "--array", "gpus"), "--array gpus makes a task of one GPU each; give --gpus"),
        (("--slurm", "--array", "gpus", "--gpus", "2", "--nodes", "2"), "--array gpus makes a tas"),
        (("--slurm", "--tier", "gate,weekly"), "--tier: 'weekly' is none of smoke, gate, nightly"),
        (("--slurm", "--launcher", "mpirun"), "--launcher: 'mpirun' is none of torchrun, srun"),
        (("--slurm", "--cpus", "0"), "--cpus: "),
        (("--slurm", "--mem", "lots"), "--mem 'lots' is no amount of memory; write 64G or 500M"),
        (("--slurm", "--container", "run 'x"), '--container "run \'x" cannot be split into word'),
    ],
)
def test_a_wrong_question_names_the_option_and_its_value(submit, sbatch, words, said):
    status, out, err = submit(*words)
    assert (status, out) == (2, "")
    assert err.startswith(f"bench-lib: error: {said}")
    assert not Path("history").exists()


def test_pytests_arguments_are_kept_and_the_tests_named_where_they_are_not(tmp_path):
    (tmp_path / "perf_tests").mkdir()
    (tmp_path / "mine.py").touch()

    def arguments(*given):
        return _pytest_arguments(given, tmp_path)

    assert arguments() == ("perf_tests",)
    assert arguments("-k", "resnet50") == ("perf_tests", "-k", "resnet50")
    assert arguments("-x", "mine.py::test_one") == ("-x", "mine.py::test_one")
    with pytest.raises(UserError, match=r"^--perf-history is the job's own; give .* --history"):
        arguments("--perf-history=elsewhere")


def test_a_container_runs_its_own_interpreter(submit, sbatch):
    words = ("--slurm", "--dry-run", "--container", "apptainer exec --rocm 'a b.sif'")
    assert "python=(apptainer exec --rocm 'a b.sif' python3)\n" in submit(*words)[1]
    named = submit(*words, "--python", "/opt/venv/bin/python")[1]
    assert "python=(apptainer exec --rocm 'a b.sif' /opt/venv/bin/python)\n" in named


def test_an_array_over_gpus_has_one_gpu_a_task(submit, sbatch):
    out = submit("--slurm", "--dry-run", "--array", "gpus", "--gpus", "5")[1]
    assert "#SBATCH --array=1-5\n" in out
    assert "#SBATCH --gres=gpu:1\n" in out


def test_a_submitted_job_is_told_with_how_to_follow_it(submit, sbatch):
    sbatch("31337\n")
    words = ("--slurm", "--tier", "gate", "--gpus", "8", "--history", "kept")
    status, out, err = submit(*words)
    assert (status, err) == (0, "")
    (script,) = Path("kept/slurm").glob("*.sbatch")
    log = script.with_suffix("").absolute() / "task-1.log"
    assert out.splitlines() == [
        f"submitted job 31337: {script.absolute()}",
        "",
        f"task   part  {'log'.ljust(len(str(log)))}".rstrip(),
        f"31337  gate  {log}",
        "",
        f"follow: squeue --job 31337; tail -F {log}",
        "afterwards: sacct -j 31337; seff 31337",
    ]
    assert script.read_text().splitlines()[1] == f"# Written by: bench-lib submit {' '.join(words)}"


def test_a_script_does_not_tell_the_secrets_of_its_command_line(submit, sbatch, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "correct horse")
    _, script, _ = submit("--slurm", "--dry-run", "--", "perf_tests", "-k", "correct horse")
    assert script.splitlines()[1].endswith("-- perf_tests -k '[HF_TOKEN]'")


def test_each_document_of_a_job_is_as_its_schema_says(submit, sbatch):
    sbatch("31337;north\n")
    words = ("--slurm", "--json", "--tier", "gate", "--gpus", "2")
    assert document_in(submit(*words, "--dry-run")[1])["command"] == "submit --dry-run"
    submitted = document_in(submit(*words)[1])
    assert (submitted["command"], submitted["job"]) == ("submit", "31337")


@pytest.mark.parametrize("status", [0, 1, 143])
def test_waiting_ends_with_the_jobs_own_exit_status(submit, sbatch, status):
    asked = sbatch("31337\n", status=status)
    ended = submit("--slurm", "--wait")
    assert ended.status == status
    assert ended.out.startswith("submitted job 31337: ")
    assert asked.read_text().startswith("--parsable --wait ")


def test_what_is_asked_for_is_stronger_than_the_variables_of_sbatch(submit, sbatch):
    asked = sbatch("31337\n")
    submit("--slurm", "--time", "3", "--partition", "debug", "--history", "it's kept")
    (path,) = Path("it's kept/slurm").glob("*.sbatch")
    head = [line for line in path.read_text().splitlines() if line.startswith("#SBATCH ")]
    words = " ".join(word for line in head for word in shlex.split(line)[1:])
    assert asked.read_text().removesuffix("\n") == f"--parsable {words} {path.absolute()}"
    assert " --partition=debug " in words
    assert " --time=3 " in words


def test_sbatchs_refusal_is_shown_with_how_to_list_what_there_is_and_nothing_is_kept(
    submit, sbatch
):
    sbatch(err="sbatch: error: Batch job submission failed: Invalid account\n", status=1)
    status, out, err = submit("--slurm")
    assert (status, out) == (2, "")
    assert err.startswith(
        "bench-lib: error: sbatch: Batch job submission failed: Invalid account; sinfo -o "
    )
    assert list(Path("history/slurm").iterdir()) == []


def test_where_there_is_no_slurm_the_command_and_its_package_are_named(submit, sbatch):
    err = submit("--slurm")[2]
    assert err.startswith("bench-lib: error: sbatch is not installed here; ")
    assert "apt-get install slurm-client" in err


def test_a_history_that_cannot_be_written_is_named(submit, sbatch):
    asked = sbatch("31337\n")
    Path("kept").touch()
    status, _, err = submit("--slurm", "--history", "kept")
    assert status == 2
    assert "; name another, or another folder" in err
    assert not asked.exists()


def test_the_page_has_every_option():
    page = (Path(__file__).parents[1] / "docs" / "slurm.md").read_text()
    command = typer.main.get_command(app).get_command(None, "submit")
    options = {name for each in command.params for name in each.opts if name.startswith("--")}
    assert "--launcher" in options
    assert sorted(name for name in options - {"--help"} if name not in page) == []


# --- inside the job ------------------------------------------------------------------------

GRANTED = {
    "SLURM_JOB_ID": "7731",
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


def granted(tmp_path, wanted, *, affinity=6, **environ):
    """Return the log and the lacks of a job whose node has nothing but what is in a folder."""
    return check.report(wanted, environ={**GRANTED, **environ}, root=tmp_path, affinity=affinity)


@pytest.mark.parametrize(
    ("text", "size"),
    [("64G", 64 * GIB), ("700", 700 * MIB), ("1.5g", 1536 * MIB), ("2T", 2**41), ("9GiB", 9 * GIB)],
)
def test_memory_is_read_with_and_without_a_unit(text, size):
    assert check.size(text) == size


@pytest.mark.parametrize("text", ["", "0", "64Q", "lots", "-1G", "100K", "9" * 400])
def test_what_is_no_memory_is_named_with_an_example(text):
    with pytest.raises(UserError, match=r"^--mem '.*' is no amount of memory; write 64G or 500M"):
        check.size(text)


def test_the_log_has_what_was_granted_beside_what_was_asked_for(tmp_path, gpus):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:       65000000 kB\nMemFree: 1 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/job_7731/step_batch\n")
    group = tmp_path / "sys/fs/cgroup/system.slice/job_7731"
    (group / "step_batch").mkdir(parents=True)
    (group / "step_batch/memory.max").write_text("max\n")
    (group / "memory.max").write_text(f"{6900 * MIB}\n")
    wanted = Resources(cpus=6, gpus=1, mem="6900M")
    lines, lacks = granted(tmp_path, wanted, ROCR_VISIBLE_DEVICES="1", SLURM_JOB_GPUS="1")
    assert lacks == []
    assert lines[:5] == [
        "bench-lib: job 7731 on kea07",
        "  nodes: 1 asked for, 1 granted",
        "  cores of the node: 6 asked for, 6 granted",
        "  GPUs of the node: 1 asked for, 1 granted",
        "  memory of the node: 6.7 GiB asked for, 6.7 GiB granted",
    ]
    assert "GPU-311f" in lines[5]
    assert "  ROCR_VISIBLE_DEVICES=1" in lines
    assert "  HIP_VISIBLE_DEVICES is not set" in lines


def test_a_limit_of_the_older_control_groups_counts_as_well(tmp_path, gpus):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("5:cpu:/slurm\n4:memory:/slurm/job_7731/step_0\n")
    memory = tmp_path / "sys/fs/cgroup/memory/slurm"
    (memory / "job_7731/step_0").mkdir(parents=True)
    (memory / "job_7731/step_0/memory.limit_in_bytes").write_text("9223372036854771712\n")
    (memory / "memory.limit_in_bytes").write_text(f"{500 * MIB}\n")
    _, (lack,) = granted(tmp_path, Resources(mem="600M"))
    assert lack.endswith("memory of the node: 600 MiB, got 500 MiB")


@pytest.mark.parametrize(
    ("wanted", "affinity", "said"),
    [
        (Resources(2), 6, "nodes: 2, got 1"),
        (Resources(cpus=8), 64, "cores of the node: 8, got 6"),
        (Resources(cpus=6), 1, "cores of the node: 6, got 1"),
        (Resources(gpus=3), 6, "GPUs of the node: 3, got 2"),
        (Resources(mem="8G"), 6, "memory of the node: 8.0 GiB, got 6.8 GiB"),
    ],
)
def test_less_than_was_asked_for_is_named(tmp_path, gpus, wanted, affinity, said):
    _, (lack,) = granted(tmp_path, wanted, affinity=affinity)
    assert lack == f"kea07 grants less than the job asked for: {said}"


def test_gpus_that_are_renumbered_twice_are_explained(tmp_path, gpus):
    both = {"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}
    _, (first, second) = granted(tmp_path, Resources(gpus=1), **both)
    assert first.endswith("GPUs of the node: 1, got 0")
    assert second.startswith("ROCR_VISIBLE_DEVICES has renumbered the GPUs, and CUDA_VISIBLE_DEVIC")


def test_a_job_that_got_less_ends_at_once():
    command = [sys.executable, "-m", "bench_lib.slurm.check", "--cpus", "99999"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "bench-lib: error: " in done.stderr


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
