"""The workflows: their form, their rights, and shell steps of theirs, run with stand-ins."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders import make_attempt, make_record, write_run
from repositories import Repository
from ruamel.yaml import YAML

from bench_lib.model import Status
from bench_lib.report.overview import MARKER

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".github" / "workflows"
PATHS = sorted(FOLDER.glob("*.yml"))
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}", re.DOTALL)
SHELL = "bash --noprofile --norc -euo pipefail {0}"
REPOSITORY = "someone/bench-lib"


@functools.cache
def workflow(name: str) -> dict:
    return YAML(typ="safe").load(FOLDER / f"{name}.yml")


def jobs():
    return [
        pytest.param(path.stem, name, id=f"{path.stem}-{name}")
        for path in PATHS
        for name in workflow(path.stem)["jobs"]
    ]


def shell_steps():
    return [
        pytest.param(path.stem, name, step["name"], id=f"{path.stem}-{name}-{step['name']}")
        for path in PATHS
        for name, job in workflow(path.stem)["jobs"].items()
        for step in job.get("steps", ())
        if "run" in step
    ]


def step_of(name: str, job: str, step: str) -> dict:
    (found,) = (s for s in workflow(name)["jobs"][job]["steps"] if s.get("name") == step)
    return found


def holds(condition: str, values: dict[str, str]) -> bool:
    def value(word: str) -> str:
        return word[1:-1] if word.startswith("'") else values[word]

    def compares(text: str) -> bool:
        left, operator, right = re.split(r"\s+(==|!=)\s+", text.strip())
        return (value(left) == value(right)) == (operator == "==")

    return any(all(map(compares, part.split("&&"))) for part in condition.split("||"))


@dataclass
class Done:
    status: int
    log: str
    summary: str
    outputs: dict[str, str]


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    folder.mkdir()
    (tmp_path / "bin").mkdir()
    stand_in(tmp_path, "bench-lib", f'exec "{sys.executable}" -m bench_lib "$@"')
    return folder


def stand_in(tmp_path: Path, name: str, script: str, *, interpreter: str = "/bin/bash") -> None:
    path = tmp_path / "bin" / name
    path.write_text(f"#!{interpreter}\n{script}\n")
    path.chmod(0o755)


def notes(tmp_path: Path, name: str, then: str = "") -> None:
    script = (
        "import json, sys\n"
        f"with open({str(tmp_path / 'calls')!r}, 'a') as file:\n"
        f"    print(json.dumps([{name!r}, *sys.argv[1:]]), file=file)\n{then}"
    )
    stand_in(tmp_path, name, script, interpreter=sys.executable)


def calls(tmp_path: Path) -> list[list[str]]:
    path = tmp_path / "calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(checkout: Path, where: tuple[str, str, str], **values: object) -> Done:
    """Run a step as GitHub does; ``values`` are what its expressions stand for, by name.

    A name is the expression with ``_`` for every ``.`` in it; what is not named is an error.
    """
    step = step_of(*where)
    temporary = checkout.parent
    environment = {
        "PATH": f"{temporary / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(temporary),
        "RUNNER_TEMP": str(temporary),
        "GITHUB_REPOSITORY": REPOSITORY,
        "GITHUB_PATH": str(temporary / "path"),
        "GITHUB_OUTPUT": str(temporary / "output"),
        "GITHUB_STEP_SUMMARY": str(temporary / "summary"),
        "OMP_NUM_THREADS": "1",
    }

    def resolved(text: object) -> str:
        return EXPRESSION.sub(lambda match: str(values[match[1].replace(".", "_")]), str(text))

    environment |= {name: resolved(text) for name, text in step.get("env", {}).items()}
    script = temporary / "step.sh"
    script.write_text(step["run"])
    words = [str(script) if word == "{0}" else word for word in SHELL.split()]
    ended = subprocess.run(
        words,
        check=False,
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    summary, output = temporary / "summary", temporary / "output"
    lines = output.read_text().splitlines() if output.exists() else []
    return Done(
        ended.returncode,
        ended.stdout + ended.stderr,
        summary.read_text() if summary.exists() else "",
        dict(line.split("=", 1) for line in lines),
    )


# ---- their form -------------------------------------------------------------------------


def check_schema(schema: str, *paths: Path) -> None:
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run(
        [*words, *map(str, paths)], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_are_of_githubs_schema():
    check_schema("github-workflows", *PATHS)


def test_a_linter_for_attacks_on_workflows_finds_nothing():
    words = [Path(sys.executable).with_name("zizmor"), "--offline", "--no-progress"]
    words += ["--min-severity", "medium", FOLDER]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("name", "job", "step"), shell_steps())
def test_scripts_are_bash_that_stops_at_a_fault_and_gets_variables(name, job, step):
    found = workflow(name)
    own = step_of(name, job, step)
    assert "${{" not in own["run"]
    assert "shell" not in own
    default = found["jobs"][job].get("defaults", found.get("defaults"))
    assert default["run"]["shell"] == SHELL


@pytest.mark.parametrize(("name", "job"), jobs())
def test_every_job_has_a_limit_and_the_least_rights(name, job):
    found = workflow(name)
    own = found["jobs"][job]
    assert "timeout-minutes" in own or "uses" in own
    assert found.get("permissions", "all") in ({}, {"contents": "read"})
    granted = {f"{what}: {how}" for what, how in own.get("permissions", {}).items()}
    assert granted - {"contents: read"} == {
        ("perf-pull-request", "comment"): {"pull-requests: write"},
        ("perf-baseline", "propose"): {"contents: write", "pull-requests: write"},
        ("release", "publish"): {"id-token: write"},
    }.get((name, job), set())


@pytest.mark.parametrize("name", ["perf-pull-request", "perf-nightly", "perf-baseline"])
def test_callers_say_what_can_be_said(name):
    found = workflow(name)
    called = found["jobs"]["measure"]
    offered = workflow("perf-measure")["on"]["workflow_call"]
    assert called["uses"] == "./.github/workflows/perf-measure.yml"
    assert called["permissions"] == {"contents": "read"}
    assert called["with"].keys() <= offered["inputs"].keys()
    assert called.get("secrets", {}).keys() <= offered["secrets"].keys()
    ways = [found["on"].get(way) or {} for way in ("workflow_dispatch", "workflow_call")]
    own = {name: about for way in ways for name, about in way.get("inputs", {}).items()}
    asked = re.findall(r"\binputs\.(\w+)", (FOLDER / f"{name}.yml").read_text())
    assert set(asked) == own.keys()


def test_another_repository_measures_with_fifteen_lines(tmp_path):
    text = example("yaml", "# .github")
    assert len(text.splitlines()) <= 15
    path = tmp_path / "performance.yml"
    path.write_text(text)
    check_schema("github-workflows", path)
    found = YAML(typ="safe").load(path)
    assert found["permissions"] == {}
    (job,) = found["jobs"].values()
    called = job["uses"].partition("@")[0].rpartition("/")[2]
    about = workflow(called.removesuffix(".yml"))
    assert job["with"].keys() <= about["on"]["workflow_call"]["inputs"].keys()
    wanted = {}
    for own in about["jobs"].values():
        wanted |= own["permissions"]
    assert job["permissions"] == wanted


# ---- who may run, and where --------------------------------------------------------------


def pull_request(**about: str) -> dict[str, str]:
    return {
        "github.event.action": "synchronize",
        "github.event.label.name": "",
        "github.event.pull_request.head.repo.full_name": "stranger/bench-lib",
        "github.repository": REPOSITORY,
    } | {name.replace("__", "."): value for name, value in about.items()}


OWN = {"github.event.pull_request.head.repo.full_name": REPOSITORY}
LABELED = {"github.event.action": "labeled"}
APPROVED = LABELED | {"github.event.label.name": "perf-approved"}
OTHER = LABELED | {"github.event.label.name": "bug"}


@pytest.mark.parametrize(
    ("about", "runs"),
    [
        pytest.param(OWN, True, id="a push to a branch of ours"),
        pytest.param({}, False, id="a fork's push"),
        pytest.param(OTHER, False, id="a fork with another label"),
        pytest.param(APPROVED, True, id="a fork with the label"),
        pytest.param(OWN | OTHER, False, id="another label on ours"),
        pytest.param(OWN | APPROVED, True, id="the label on ours"),
    ],
)
def test_a_fork_is_measured_only_when_somebody_says_so(about, runs):
    condition = workflow("perf-pull-request")["jobs"]["measure"]["if"]
    assert holds(condition, pull_request() | about) is runs


def test_nothing_checks_out_a_pull_request_with_the_rights_of_the_repository():
    for path in PATHS:
        assert "pull_request_target" not in workflow(path.stem)["on"]
    comment = workflow("perf-pull-request")["jobs"]["comment"]
    assert not any("checkout" in step.get("uses", "") for step in comment["steps"])


def test_a_pull_request_is_given_no_secret_and_leaves_nothing_behind():
    called = workflow("perf-pull-request")["jobs"]["measure"]
    assert called["with"]["remember"] is False
    assert "secrets" not in called
    steps = workflow("perf-measure")["jobs"]["measure"]["steps"]
    keeps = [
        s
        for s in steps
        if "cache/save" in s.get("uses", "") or "sync --no-progress history" in s.get("run", "")
    ]
    assert len(keeps) == 2
    assert all("inputs.remember" in step["if"] for step in keeps)


def test_measuring_gets_secrets_only_where_the_history_goes():
    steps = workflow("perf-measure")["jobs"]["measure"]["steps"]
    with_secrets = {step["name"] for step in steps if "secrets." in str(step.get("env", ""))}
    fetches, pushes = "Fetch runs that the cache lacks", "Push the run to the object store"
    assert with_secrets == {fetches, pushes}
    (fetch,) = (step for step in steps if step.get("name") == fetches)
    assert "inputs.remember" in fetch["if"]
    assert fetch["continue-on-error"] is True


# ---- measuring --------------------------------------------------------------------------

MEASURE = ("perf-measure", "measure", "Measure")
RUN_FILE = "history/20260102T030405Z_mi300x_0a0a0a0a.jsonl"
MEASURES = f"open({RUN_FILE!r}, 'w').write('{{}}')\n"


def asked(**changes: object) -> dict[str, object]:
    asks = {
        "inputs_tests": "perf_tests",
        "inputs_tier": "",
        "inputs_select": "",
        "inputs_against": "",
        "inputs_processes": 1,
        "inputs_accept": "",
    }
    return asks | {"inputs_minutes": 1} | changes


def test_the_suite_runs_and_its_run_is_named(checkout, tmp_path):
    (checkout / "history").mkdir()
    (checkout / "history" / "20260101T030405Z_mi300x_09090909.jsonl").write_text("{}")
    notes(tmp_path, "pytest", MEASURES)
    done = run(checkout, MEASURE, **asked())
    assert (done.status, done.outputs) == (0, {"run": "0a0a0a0a"})
    assert [p.name for p in (checkout / "out" / "history").iterdir()] == [Path(RUN_FILE).name]
    (words,) = calls(tmp_path)
    assert words == [
        *("pytest", "perf_tests", "-n", "auto", "--perf-history", "history"),
        *("--junit-xml", "out/junit.xml", "--perf-processes", "1"),
    ]


def test_a_run_with_a_reference_is_named_and_both_are_kept(checkout, tmp_path):
    before = RUN_FILE.replace("0a0a0a0a", "09090909")
    notes(tmp_path, "pytest", MEASURES + f"open({before!r}, 'w').write('{{}}')\n")
    done = run(checkout, MEASURE, **asked())
    assert (done.status, done.outputs) == (0, {"run": "0a0a0a0a"}), done.log
    kept = sorted(path.name for path in (checkout / "out" / "history").iterdir())
    assert kept == [Path(before).name, Path(RUN_FILE).name]


def test_what_is_asked_for_reaches_pytest_as_single_words(checkout, tmp_path):
    notes(tmp_path, "pytest", MEASURES)
    select = "resnet50 and not 'x'; touch bad $(touch worse)"
    run(checkout, MEASURE, **asked(inputs_tier="gate", inputs_select=select, inputs_processes=5))
    (words,) = calls(tmp_path)
    assert words[-6:] == ["--perf-processes", "5", "--perf-tier", "gate", "-k", select]
    run(checkout, MEASURE, **asked(inputs_accept="a reason"))
    assert calls(tmp_path)[1][-2:] == ["-o", "perf_kernels=all"], "what is to be a baseline"
    run(checkout, MEASURE, **asked(inputs_against="HEAD^1"))
    assert calls(tmp_path)[2][-2:] == ["--perf-reference", str(tmp_path / "reference")]
    assert not (checkout / "bad").exists()
    assert not (checkout / "worse").exists()


def test_a_suite_that_takes_too_long_is_interrupted_and_its_run_is_still_named(checkout, tmp_path):
    # A shell waits within a few milliseconds, whatever else the machine does.
    stand_in(tmp_path, "pytest", f"trap 'touch judged' INT; echo '{{}}' >{RUN_FILE}; sleep 30")
    done = run(checkout, MEASURE, **asked(inputs_minutes=0.01))
    assert (done.status, done.outputs) == (124, {"run": "0a0a0a0a"})
    assert (checkout / "judged").exists()
    assert "interrupted after 0.01 minutes" in done.summary


def test_containers_get_the_device_locks_alike_and_groups_by_number():
    options = workflow("perf-measure")["jobs"]["measure"]["container"]["options"]
    page = (ROOT / "docs/ci.md").read_text()
    locks = "--volume /var/lib/bench-lib-locks:/locks --env BENCH_LIB_LOCKS=/locks"
    assert locks in options.replace("\n", " ")
    assert f"`{locks}`" in page
    for text in (options, *(file.read_text() for file in (ROOT / "docs").rglob("*.md"))):
        assert re.findall(r"--group-add (?![\d%]|NUMBER)\S+", text) == []


GROUPS = ("perf-measure", "host", "Find the groups that own the GPUs")


@pytest.mark.parametrize(
    ("named", "script", "groups"),
    [
        ("", "printf -- '--group-add 109\\n--group-add 44\\n--group-add 109\\n'", "109 44"),
        ("--group-add 7", "printf -- '--group-add 109\\n'", "7"),
        ("", "exit 1", ""),
    ],
    ids=["of the files", "named", "no GPU of AMD's"],
)
def test_a_container_gets_the_groups_that_own_the_gpus(checkout, tmp_path, named, script, groups):
    stand_in(tmp_path, "stat", script)
    done = run(checkout, GROUPS, vars_PERF_GROUPS=named)
    assert done.status == 0, done.log
    assert done.outputs["groups"] == " ".join(f"--group-add {n}" for n in groups.split())
    measure = workflow("perf-measure")["jobs"]["measure"]
    assert measure["needs"] == "host"
    assert "${{ needs.host.outputs.groups }}" in measure["container"]["options"]


def test_a_label_that_begins_another_ones_name_has_a_history_of_its_own():
    steps = workflow("perf-measure")["jobs"]["measure"]["steps"]
    restore, save = (step["with"] for step in steps if "actions/cache/" in step.get("uses", ""))
    assert restore["key"] == save["key"]
    prefix, key = (EXPRESSION.split(restore["restore-keys"]), EXPRESSION.split(save["key"]))
    asked_for = f"{prefix[0]}mi300x{prefix[2]}"
    assert f"{key[0]}mi300x{key[2]}".startswith(asked_for)
    assert not f"{key[0]}mi300x-2{key[2]}".startswith(asked_for)


def test_a_night_without_a_run_does_not_report_an_older_one(checkout, tmp_path):
    (checkout / "history").mkdir()
    (checkout / "history" / "20260101T030405Z_mi300x_09090909.jsonl").write_text("{}")
    notes(tmp_path, "pytest", "sys.exit(4)")
    done = run(checkout, MEASURE, **asked())
    assert (done.status, done.outputs) == (4, {})
    assert "nothing was measured" in done.summary


def test_the_options_are_ones_that_pytest_has(checkout, tmp_path):
    stand_in(tmp_path, "pytest", f'exec "{sys.executable}" -m pytest --help "$@"')
    done = run(checkout, MEASURE, **asked(inputs_tier="smoke", inputs_select="x"))
    assert done.status == 0, done.log


@pytest.mark.parametrize(
    ("about", "runs"),
    [
        pytest.param({"github.event_name": "push"}, True, id="a push"),
        pytest.param({"github.event_name": "pull_request"}, True, id="a fork's"),
        pytest.param({"github.event_name": "pull_request"} | OWN, False, id="pushed before"),
    ],
)
def test_every_push_is_checked_once(about, runs):
    found = workflow("check")
    assert found["on"]["push"] == {"branches": ["**"]}
    assert "pull_request" in found["on"]
    assert holds(found["jobs"]["check"]["if"], pull_request() | about) is runs


def test_the_check_runs_on_the_oldest_and_the_newest_python_that_the_package_names():
    pythons = re.findall(r'Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    tried = workflow("check")["jobs"]["check"]["strategy"]["matrix"]["python"]
    assert tried == [pythons[0], pythons[-1]]


INSTALL = ("perf-measure", "measure", "Install")


def test_the_torch_that_is_there_stays(checkout, tmp_path):
    listing = "torch==2.10.0+rocm7.2.4\\ntorchvision==0.25.0\\ntorchmetrics==1.9\\nnumpy==2.1"
    shows = f"if 'list' in sys.argv: print('{listing}')\n"
    shows += "if 'install' in sys.argv: print(open(sys.argv[-1]).read())"
    notes(tmp_path, "python3", shows)
    done = run(checkout, INSTALL, inputs_install="--editable . bench-lib@git+https://host/x@v1")
    assert done.status == 0, done.log
    assert done.log.split() == ["torch==2.10.0+rocm7.2.4", "torchvision==0.25.0"]
    listed, installed, _ = calls(tmp_path)
    assert listed == ["python3", "-m", "pip", "list", "--format", "freeze"]
    assert installed[:6] == ["python3", "-m", "pip", "install", "--editable", "."]
    assert installed[6:8] == ["bench-lib@git+https://host/x@v1", "--constraint"]


AGAINST = ("perf-measure", "measure", "Install what to compare with")
PACKAGE = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
BACKEND = """
import zipfile

def build_wheel(folder, *_):
    with zipfile.ZipFile(f"{folder}/mynet-1-py3-none-any.whl", "w") as wheel:
        wheel.write("mynet.py")
        about = "Metadata-Version: 2.1\\nName: mynet\\nVersion: 1"
        wheel.writestr("mynet-1.dist-info/METADATA", about)
        wheel.writestr("mynet-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any")
        wheel.writestr("mynet-1.dist-info/RECORD", "")
    return "mynet-1-py3-none-any.whl"
"""


@pytest.mark.parametrize("install", [".", "pytest"], ids=["a package", "nothing is installed"])
@pytest.mark.usefixtures("checkout")
def test_the_target_branch_is_installed_on_top_of_what_is_here(tmp_path, install):
    repository = Repository(tmp_path / "repository")
    (repository.folder / "pyproject.toml").write_text(PACKAGE)
    repository.commit("target", backend=BACKEND, mynet="SIDE = 'target'")
    repository.git("switch", "--quiet", "--create", "change")
    repository.commit("change", mynet="SIDE = 'change'")
    repository.git("switch", "--quiet", "main")
    repository.git("merge", "--quiet", "--no-ff", "--message", "merge", "change")
    stand_in(tmp_path, "python3", f'exec "{sys.executable}" "$@"')
    (tmp_path / "kept").touch()
    against = workflow("perf-pull-request")["jobs"]["measure"]["with"]["against"]
    values = {"inputs_against": against, "inputs_install": f"--no-index {install}"}
    done = run(repository.folder, AGAINST, **values)
    assert done.status == 0, done.log
    script = "import mynet, pytest; print(mynet.SIDE, mynet.__file__)"
    answer = subprocess.run(
        [tmp_path / "reference" / "bin" / "python", "-c", script],
        check=True,
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
    )
    side, file = answer.stdout.split()
    place = "site-packages" if install == "." else "target"
    assert (side, Path(file).parent.name) == ("target", place)


# ---- keeping and reporting ----------------------------------------------------------------

PUSH = ("perf-measure", "measure", "Push the run to the object store")
REPORT = ("perf-measure", "measure", "Report")
KEYS = {"secrets_store_key_id": "", "secrets_store_key": "", "vars_PERF_HISTORY_ENDPOINT": ""}


def a_run(checkout: Path, processes: int = 1) -> str:
    attempts = [make_attempt(process=n) for n in range(processes)]
    path = write_run(
        checkout / "history", [make_record(attempts=attempts, status=Status.NO_BASELINE)]
    )
    (checkout / "out").mkdir()
    return path.stem.rpartition("_")[2]


def report(checkout: Path, name: str) -> Done:
    return run(checkout, REPORT, steps_measure_outputs_run=name)


def test_the_report_is_a_page_and_the_summary(checkout):
    done = report(checkout, a_run(checkout))
    assert done.status == 0, done.log
    assert "resnet18-b4-fp32-eager-infer" in (checkout / "out" / "report.html").read_text()
    assert done.summary == (checkout / "out" / "report.md").read_text()
    assert json.loads((checkout / "out" / "report.json").read_text())["command"] == "report"
    assert "resnet18-b4-fp32-eager-infer" in done.summary


FETCH = ("perf-measure", "measure", "Fetch runs that the cache lacks")


STORE, HERE = "s3://bucket/runs", "history"


@pytest.mark.parametrize(("step", "where"), [(FETCH, [STORE, HERE]), (PUSH, [HERE, STORE])])
def test_the_object_store_is_told_by_the_environment(checkout, tmp_path, step, where):
    shows = "import os\nprint(os.environ['AWS_ACCESS_KEY_ID'], 'AWS_ENDPOINT_URL' in os.environ)"
    notes(tmp_path, "aws", shows)
    keys = KEYS | {"secrets_store_key_id": "key"}
    done = run(checkout, step, vars_PERF_HISTORY=STORE, **keys)
    assert done.log.split() == ["key", "False"]
    assert calls(tmp_path) == [["aws", "s3", "sync", "--no-progress", *where]]
    keys |= {"vars_PERF_HISTORY_ENDPOINT": "https://store"}
    done = run(checkout, step, vars_PERF_HISTORY=STORE, **keys)
    assert done.log.split() == ["key", "True"]


ACCEPT = ("perf-measure", "measure", "Accept the baseline")


def test_a_run_becomes_the_baseline_and_says_what_changes(checkout):
    name = a_run(checkout, processes=5)
    done = run(
        checkout,
        ACCEPT,
        steps_measure_outputs_run=name,
        inputs_accept='it\'s "new"',
        inputs_force="false",
    )
    assert done.status == 0, done.log
    accepted = json.loads((checkout / "baselines" / "mi300x.json").read_text())
    assert 'it\'s \\"new\\"' in json.dumps(accepted)
    assert "| resnet18-b4-fp32-eager-infer |" in (checkout / "out" / "baseline.md").read_text()
    assert "resnet18-b4-fp32-eager-infer" in done.summary


# ---- commenting -------------------------------------------------------------------------

READ = ("perf-pull-request", "comment", "Read the report")
WRITE = ("perf-nightly", "post", "Write the message")
RUN = "https://github.com/someone/bench-lib/actions/runs/1"
OF_RUN = {
    "github_server_url": "https://github.com",
    "github_repository": REPOSITORY,
    "github_run_id": 1,
}
UNCHANGED = "<!-- bench-lib: nothing changed -->"


def written(checkout: Path, name: str, text: str) -> Path:
    path = checkout / "report" / "out" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "output"),
    [
        (f"{MARKER}\n# 1 REGRESSED\n", {}),
        (f"{MARKER}\n{UNCHANGED}\n\n", {"unchanged": "true"}),
    ],
)
def test_where_nothing_changed_no_new_comment_is_made(checkout, text, output):
    path = written(checkout, "report.md", text)
    done = run(checkout, READ, **OF_RUN)
    assert (done.status, done.outputs, path.read_text()) == (0, output, text)
    step = step_of("perf-pull-request", "comment", "Comment")
    assert step["with"]["only_update"] == "${{ steps.report.outputs.unchanged || 'false' }}"


def test_a_comment_says_that_nothing_was_measured(checkout):
    done = run(checkout, READ, **OF_RUN)
    assert (done.status, done.outputs) == (0, {})
    path = step_of("perf-pull-request", "comment", "Comment")["with"]["path"]
    assert (checkout / path).read_text() == f"Nothing was measured: [the log]({RUN}) says why.\n"


@pytest.mark.skipif(shutil.which("jq") is None, reason="GitHub's machines have jq")
@pytest.mark.parametrize(
    ("address", "changed", "wanted"),
    [("https://x", True, "true"), ("https://x", False, "false"), ("", True, "")],
)
def test_a_message_is_posted_where_something_changed(checkout, address, changed, wanted):
    told = {"sentence": "1 of 2 <cases>", "changed": changed}
    written(checkout, "report.json", json.dumps(told))
    done = run(checkout, WRITE, secrets_PERF_SLACK=address, **OF_RUN)
    assert (done.status, done.outputs) == (0, {"wanted": wanted})
    message = json.loads((checkout / "message.json").read_text())
    assert message == {"text": f"1 of 2 <cases>\n{RUN}", "mrkdwn": False}


# ---- proposing --------------------------------------------------------------------------

PROPOSE = ("perf-baseline", "propose", "Open a pull request")


def git(folder: Path, *words: str) -> str:
    nobody = ["-c", "user.name=somebody", "-c", "user.email=some@body"]
    done = subprocess.run(
        ["git", *nobody, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture
def repository(checkout, tmp_path):
    git(tmp_path, "init", "--quiet", "--bare", "remote.git")
    git(checkout, "init", "--quiet", "--initial-branch", "main")
    git(checkout, "remote", "add", "origin", str(tmp_path / "remote.git"))
    (checkout / "baselines").mkdir()
    (checkout / "baselines" / "mi300x.json").write_text("old")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "all")
    (checkout / "report" / "baselines").mkdir(parents=True)
    (checkout / "report" / "out").mkdir()
    (checkout / "report" / "out" / "baseline.md").write_text("what changes")
    notes(tmp_path, "gh")
    return checkout


def propose(repository: Path, baseline: str | None) -> Done:
    if baseline is not None:
        (repository / "report" / "baselines" / "mi300x.json").write_text(baseline)
    return run(
        repository,
        PROPOSE,
        github_token="a token",
        inputs_reason="ROCm 7.2.4; $(touch bad)",
        github_ref_name="main",
        github_run_id=1,
        github_run_attempt=2,
    )


def test_a_new_baseline_is_a_branch_and_a_pull_request(repository, tmp_path):
    done = propose(repository, "new")
    assert done.status == 0, done.log
    remote = tmp_path / "remote.git"
    assert git(remote, "show", "baseline/1-2:baselines/mi300x.json") == "new"
    changed = git(repository, "show", "--name-only", "--format=%s", "baseline/1-2").split("\n")
    assert changed[0] == "New baseline: ROCm 7.2.4; $(touch bad)"
    assert changed[2:-1] == ["baselines/mi300x.json"]
    words = calls(tmp_path)[-1]
    assert words[:7] == ["gh", "pr", "create", "--base", "main", "--head", "baseline/1-2"]
    assert words[-2:] == ["--body-file", "report/out/baseline.md"]
    assert not (repository / "bad").exists()


def test_a_run_without_any_baseline_says_that_nothing_was_accepted(repository, tmp_path):
    git(repository, "rm", "--quiet", "-r", "baselines")
    git(repository, "commit", "--quiet", "--message", "none yet")
    (repository / "report" / "baselines").rmdir()
    done = propose(repository, None)
    assert (done.status, calls(tmp_path)) == (1, [])
    assert "nothing was accepted" in done.summary


# ---- the examples of docs/ci.md ------------------------------------------------------------


def example(language: str, of: str = "") -> str:
    (found,) = re.findall(
        rf"^```{language}\n({of}.*?)^```",
        (ROOT / "docs" / "ci.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    return found


def test_gitlabs_example_is_of_gitlabs_schema(tmp_path):
    path = tmp_path / ".gitlab-ci.yml"
    path.write_text(example("yaml", "# .gitlab"))
    check_schema("gitlab-ci", path)


def shell_of(language: str) -> str:
    text = example(language, "# .gitlab" if language == "yaml" else "")
    if language == "yaml":
        job = YAML(typ="safe").load(text)["performance"]
        return "\n".join([*job["script"], *job["after_script"]])
    return text


@pytest.mark.parametrize("language", ["yaml", "bash"])
def test_the_examples_run_from_end_to_end(checkout, tmp_path, language):
    for program in ("python3", "pytest", "bench-lib", "sbatch"):
        notes(tmp_path, program)
    environment = {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    words = ["bash", "-euo", "pipefail", "-c", shell_of(language)]
    done = subprocess.run(
        words, check=False, cwd=checkout, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    called = calls(tmp_path)
    assert called[-1][:2] == ["bench-lib", "report"]
    assert any(words[:1] == ["pytest"] or words[:2] == ["sbatch", "--wait"] for words in called)
