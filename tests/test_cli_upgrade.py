"""``bench-lib upgrade``: its steps on a machine of stand-ins, and what it tells and writes."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest
from builders import make_environment, make_measurement
from documents import document_in
from scripted import Context, Contexts, Watch, gpus

from bench_lib.backends.checks import good, spoils
from bench_lib.cli import main
from bench_lib.engine.device import HeldDevice
from bench_lib.engine.devicelock import DeviceLock
from bench_lib.launch import exchanging, inquiry
from bench_lib.launch.exchanging import Exchanged
from bench_lib.launch.faults import LaunchError
from bench_lib.launch.profiled import Profiled
from bench_lib.model import Kernel, KernelTable

DEVICE = gpus(1)[0]
OLD, NEW = "/old/bin/python", "/new/bin/python"
GEMM = "op-gemm-512x512x512-nn-bf16"
INFER = "resnet50-b64-fp32-eager-infer"
MATRIX = """
[[gate.networks]]
network = "resnet50"
batch_size = 64

[[gate.ops]]
op = "gemm"
shape = "512-512-512"
layout = "NN"
precision = "bf16"
"""
PACKAGES = ("hipblaslt", "miopen", "numpy", "torch")


class Worker(Context):
    """A context of an environment; its packages make cases slower."""

    def measure(self, case, *_):
        """Take no time."""
        machine = self.contexts.machine
        new = machine.new_in(self.contexts.python)
        step_s = 0.010 * machine.factor(case.id, new) * (1 + self.contexts.forks % 5 / 5000)
        times = [step_s * (1 + i % 3 / 1000) for i in range(20)]
        return make_measurement(case_id=case.id, iteration_s=times, device_uuid=DEVICE.uuid)

    def profile(self, case):
        """Have a kernel that is as slow as its case."""
        new = self.contexts.machine.new_in(self.contexts.python)
        total = 0.009 * self.contexts.machine.factor(case.id, new)
        return KernelTable("torch.profiler", 5, [Kernel("Cijk_gemm", 1, total)])


class Workers(Contexts):
    """What forks such contexts."""

    def __init__(self, machine, python):
        """Be of one machine and one environment."""
        super().__init__({}, DEVICE)
        self.machine, self.python = machine, python
        self.versions = {"torch": "2.10.0" if python == NEW else "2.9.0"}

    def context(self, *, draws=None):
        """Fork."""
        self.forks += 1
        return Worker(self, f"context-{self.forks}")


class Machine:
    """Two environments, and those in which packages are exchanged."""

    def __init__(self, folder: Path) -> None:
        """Have two cases that one package makes slower."""
        self.folder = folder
        self.slow = {GEMM: "hipblaslt", INFER: "hipblaslt"}
        self.made: list[list[str]] = []
        self.removed = 0
        self.refuses = False
        self.started: list[tuple[str, dict[str, str]]] = []

    def new_in(self, python: str) -> set[str]:
        """Return the packages of the new versions in an environment."""
        if python in (OLD, NEW):
            return set(PACKAGES) if python == NEW else set()
        return set(python.rsplit("/", maxsplit=1)[-1].split("+"))

    def factor(self, case_id: str, new: set[str]) -> float:
        """Return how much slower new packages make a case."""
        return 1.06 if self.slow.get(case_id) in new else 1.0

    def transplanted(self, old, new, packages, **_told):
        """Make nothing."""
        assert (old, new) == (OLD, NEW)
        if self.refuses:
            raise LaunchError("no file list\nmore")
        self.made.append(list(packages))
        return Exchanged("mixed/" + "+".join(packages), self.folder / "mixed")

    def remove(self, _made):
        """Count."""
        self.removed += 1

    def ask(self, python, *_, **__):
        """Tell the packages."""
        version = "2.0" if python == NEW else "1.0"
        return inquiry.Installed(
            ["3.11.7", "/usr"], True, [f"{name} {version}" for name in PACKAGES], {}
        )

    def run_profile(self, case, folder, asked, *, around, environment):
        """Leave a trace in which the GEMM is as slow as the environment makes the case."""
        assert asked.shapes
        assert "TRITON_CACHE_DIR" in environment
        (python, *_) = around([sys.executable, "-m"])
        new = self.new_in(python)
        launched = {
            "External id": 1,
            "Input Dims": [[512, 512], [512, 512]],
            "Input Strides": [[512, 1], [512, 1]],
            "Input type": ["c10::BFloat16"] * 2,
        }
        events = [
            {"cat": "cpu_op", "name": "aten::mm", "dur": 1, "args": launched},
            {"cat": "kernel", "dur": 900 * self.factor(case.id, new), "args": {"External id": 1}},
        ]
        folder.mkdir()
        named = [{"ph": "X", "ts": 1, "name": "k", **event} for event in events]
        (folder / "trace.json").write_text(json.dumps({"traceEvents": named}))
        return [Profiled(trace="trace.json")]

    def hold(self, device, settings, **options):
        """Hold the device with workers of each side."""

        def start(side, _device):
            self.started.append((side.python, dict(side.environment)))
            return Workers(self, side.python)

        return HeldDevice(
            device,
            settings,
            start=start,
            watch=lambda _device: Watch(),
            lock_of=lambda each: DeviceLock(each, self.folder),
            **options,
        )


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Return a machine, and be in an empty folder with a matrix."""
    made = Machine(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "perf_tests").mkdir()
    (tmp_path / "perf_tests/matrix.toml").write_text(MATRIX)
    for name, value in {
        "bench_lib.backends.detect": lambda *_: [DEVICE],
        "bench_lib.environment.fingerprint.collect": lambda **_: make_environment(),
        "bench_lib.environment.readiness.checks": lambda **_: [
            good("disk", "enough"),
            spoils("governor", "powersave", "set performance"),
        ],
        "bench_lib.launch.catalogue.network_sizes": lambda: {"resnet50": 224},
        "bench_lib.engine.engine.HeldDevice": made.hold,
        "bench_lib.launch.exchanging.transplanted": made.transplanted,
        "bench_lib.launch.exchanging.remove": made.remove,
        "bench_lib.launch.inquiry.ask": made.ask,
        "bench_lib.studies.upgrade.run_profile": made.run_profile,
    }.items():
        monkeypatch.setattr(name, value)
    return made


@pytest.fixture
def upgrade(machine, monkeypatch, capsys):
    """Return what runs the command: its status, its output and what it says meanwhile."""

    def run(*words: str, sides=(OLD, NEW)):
        monkeypatch.setattr(sys, "argv", ["bench-lib", "upgrade", *sides, *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    return run


def test_the_guilty_package_is_named_for_each_slower_case(upgrade, machine):
    status, out, err = upgrade("--json")
    answer = document_in(out)
    assert status == 1
    assert {row["case_id"]: row["status"] for row in answer["cases"]} == {
        INFER: "REGRESSED",
        GEMM: "REGRESSED",
    }
    assert [(c["case_id"], c["packages"], c["known"]) for c in answer["culprits"]] == [
        (INFER, ["hipblaslt"], True),
        (GEMM, ["hipblaslt"], True),
    ]
    assert answer["culprits"][0]["changes"] == ["hipblaslt 1.0 -> 2.0"]
    assert answer["culprits"][0]["ratio"] == pytest.approx(1.06, rel=1e-3)
    command = "bench-lib ops --op gemm --input1-dim 512-512-512 --dtype bf16 --layout NN"
    assert answer["minimal"] == {INFER: command, GEMM: command}
    assert [row["status"] for row in answer["itself"]] == ["OK"]
    assert "Cijk_gemm" in answer["kernels"][INFER]
    assert answer["unfit"] == ["governor: powersave; set performance"]
    assert answer["error"] == 0.05
    (issue,) = answer["issues"]
    text = Path(issue).read_text()
    assert text.startswith("# hipblaslt 1.0 -> 2.0: 6.0% slower on AMD Instinct MI300X\n")
    assert f"bench-lib ab --python-a {OLD} --python-b {NEW} -k" in text
    assert command in text
    assert f"`{INFER}`" in text
    assert INFER in Path(answer["proposal"]).read_text()
    assert len(machine.made) == machine.removed
    assert ["hipblaslt"] in machine.made
    assert "  1. warm the caches of both sides, about" in err
    assert "  4. the kernels and the guilty packages" in err


def test_text_names_the_culprit_and_the_next_step(upgrade):
    status, out, _ = upgrade()
    lines = out.splitlines()
    assert status == 1
    assert lines[1].split()[1] == "REGRESSED"
    assert any(line.split()[:1] == [INFER] and "hipblaslt 1.0 -> 2.0" in line for line in lines)
    assert f"issue for upstream: {Path('upgrade/issue-hipblaslt.md')}" in lines
    assert lines[-1].startswith("next: no case is fit to be accepted; ")


def test_the_command_of_an_issue_measures_the_same_again(upgrade):
    _, out, _ = upgrade("--tier", "gate", "--env", "X=a b", "--json")
    (issue,) = document_in(out)["issues"]
    again = f" --python-b {NEW} --env-a 'X=a b' --env-b 'X=a b' --tier gate -k"
    assert again in Path(issue).read_text()


def test_the_packages_that_differ_are_told_before_and_after(upgrade):
    _, out, err = upgrade("-k", "gemm")
    first = "hipblaslt 1.0 -> 2.0, miopen 1.0 -> 2.0, numpy 1.0 -> 2.0"
    assert f"4 packages differ: {first} and 1 more" in err.splitlines()
    assert f"packages, old -> new: {first}, torch 1.0 -> 2.0" in out.splitlines()
    assert "TRITON_CACHE_DIR" not in out


def test_an_operator_of_a_network_is_found_by_its_profile_and_proved(upgrade, machine):
    _, out, _ = upgrade("-k", "resnet50", "--json")
    command = "bench-lib ops --op gemm --input1-dim 512-512-512 --dtype bf16 --layout NN"
    assert document_in(out)["minimal"] == {INFER: command}
    del machine.slow[GEMM]  # it takes longer in the profile, and no longer by itself
    _, out, _ = upgrade("-k", "resnet50", "--json")
    answer = document_in(out)
    assert answer["minimal"] == {}
    assert "None is known" in Path(answer["issues"][0]).read_text()


def test_each_side_has_warm_caches_of_its_own(upgrade, machine):
    upgrade()
    caches = {python: env["TRITON_CACHE_DIR"] for python, env in machine.started}
    assert machine.made
    assert len(set(caches.values())) == 3  # the stand-ins for exchanged ones share a folder
    assert machine.started[0][0] == OLD


def test_an_upgrade_without_a_slow_down_names_nobody(upgrade, machine):
    machine.slow = {}
    status, out, _ = upgrade("--json")
    answer = document_in(out)
    assert (status, answer["culprits"], machine.made, answer["issues"]) == (0, [], [], [])
    assert answer["proposal"] is not None
    assert answer["next"][-1].startswith("next: bench-lib baseline accept --run ")


def test_an_upgrade_of_which_pairs_say_nothing_has_no_answer(upgrade, machine, monkeypatch):
    noise = itertools.cycle([1.0, 1.9, 0.6, 1.3, 0.8, 2.2, 1.1])
    monkeypatch.setattr(machine, "factor", lambda *_: next(noise))
    status, out, _ = upgrade("--json")
    answer = document_in(out)
    assert [row["status"] for row in answer["cases"]] == ["NOISY"] * 2
    assert (status, machine.made) == (2, [])
    assert answer["next"][-1].startswith("no answer: 2 of 2 cases could not be judged (2 NOISY); ")
    status, out, _ = upgrade()
    assert (status, out.splitlines()[-1][:9]) == (2, "no answer")


def test_culprits_are_left_out_where_nobody_asks(upgrade, machine):
    status, out, err = upgrade("--no-culprits", "--json")
    assert (status, document_in(out)["culprits"], machine.made) == (1, [], [])
    assert "  4. " not in err


def test_a_cause_that_no_package_explains_is_said(upgrade, machine):
    machine.refuses = True
    _, out, _ = upgrade()
    assert f"{INFER}: no culprit: it could not be measured with all packages exchanged: " in out


def test_the_comparison_is_told_before_the_search(upgrade, machine, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(machine, "transplanted", interrupted)
    monkeypatch.setattr(exchanging, "transplanted", interrupted)
    status, out, _ = upgrade("-k", "gemm")
    assert status == 130
    assert any(line.startswith(f"{GEMM}  REGRESSED") for line in out.splitlines())


def test_images_are_compared_and_their_packages_left_alone(upgrade, machine):
    machine.slow = {}
    status, out, _ = upgrade(
        *("--prefix", "docker run {image}", "--json"), sides=("rocm:6", "rocm:7")
    )
    assert status == 0
    assert {python for python, _ in machine.started} == {"python3"}
    caches = {env["TRITON_CACHE_DIR"] for _, env in machine.started}
    assert not any(Path(each).is_relative_to(Path.cwd()) for each in caches)
    assert document_in(out)["runs"].keys() == {"A", "B"}


@pytest.mark.parametrize(
    ("sides", "words", "why"),
    [
        ((OLD, OLD), (), "OLD and NEW are both /old/bin/python; name two environments"),
        ((OLD, NEW), ("--tier", "none"), "'none' is none of"),
        ((OLD, NEW), ("-k", "nobody"), f"matches none of 2 cases; there is {INFER}, {GEMM}"),
        ((OLD, NEW), ("--env", "X"), "'X' is not KEY=VALUE"),
    ],
)
def test_a_wrong_question_is_one_line(upgrade, sides, words, why):
    status, out, err = upgrade(*words, sides=sides)
    assert (status, out) == (2, "")
    assert why in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("side", "why"),
    [
        (0, "the old side, /old/bin/python: it has no torch; install torch and torchvision there"),
        (1, "the new side, /new/bin/python: it has no torch; install torch and torchvision there"),
    ],
)
def test_a_side_without_torch_is_told_before_anything_is_measured(
    upgrade, machine, monkeypatch, side, why
):
    def ask(python, *_, needs_torch=True, **__):
        if needs_torch and python == (OLD, NEW)[side]:
            raise LaunchError("it has no torch; install torch and torchvision there")
        return machine.ask(python)

    monkeypatch.setattr("bench_lib.launch.inquiry.ask", ask)
    status, out, err = upgrade()
    assert (status, out) == (2, "")
    assert err.splitlines() == [f"bench-lib: error: {why}"]
    assert machine.started == []


def test_packages_that_work_only_together_are_exchanged_together(upgrade, machine, monkeypatch):
    needs = {"torch": ["miopen==1.0"]}
    machine.slow = {INFER: "torch"}

    def ask(python, *_, **__):
        version = "2.0" if python == NEW else "1.0"
        installed = [f"{name} {version}" for name in PACKAGES]
        wants = {name: [each.replace("1.0", version) for each in of] for name, of in needs.items()}
        return inquiry.Installed(["3.11.7", "/usr"], True, installed, wants)

    def transplanted(old, new, packages, **told):
        if len({"torch", "miopen"} & set(packages)) == 1:
            raise LaunchError("torch is not importable")
        return machine.transplanted(old, new, packages, **told)

    monkeypatch.setattr(inquiry, "ask", ask)
    monkeypatch.setattr(exchanging, "transplanted", transplanted)
    _, out, _ = upgrade("-k", "resnet50")
    assert "exchanged together: miopen, torch: torch is not importable" in out
