"""``bench-lib adopt``: what it makes of a network and a config, and what it writes."""

import sys
from types import SimpleNamespace

import pytest
import torch
from builders import make_attempt, make_case, make_measurement, make_record
from command import ran
from torch import nn

from bench_lib.cases.matrix import cases_in
from bench_lib.cli import adopt
from bench_lib.model import Status
from bench_lib.plugin.summary import _too_unsteady
from bench_lib.worker import adopting
from bench_lib.worker.workload import Setting
from bench_lib.worker.workloads import build

OWN = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, stride=8)
        self.last = nn.Linear(width, 5)

    def forward(self, image, mask=None):
        return self.last(self.first(image).mean((2, 3)))

class Words(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.table = nn.Embedding(words, 6)

    def forward(self, ids):
        return self.table(ids)

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 2, 3)
        self.last = nn.Linear(2 * 26 * 26, 5)

    def forward(self, image):
        return self.last(self.first(image).flatten(1))

class Spared(nn.Module):
    def forward(self, a=None):
        return a.relu()

class Odd(nn.Module):
    def forward(self, a, b):
        return a @ b

class Wrong(nn.Module):
    def __init__(self, raises=True):
        super().__init__()
        self.last = nn.Linear(4, 5)
        self.weights = {}["weights"] if raises else None

    def forward(self, x):
        return self.last(x.nothing)

class Config:
    model_type = "tiny"
    vocab_size = 50
    max_position_embeddings = 16

    def to_dict(self):
        return {}

number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    class Model(nn.Module):
        main_input_name = "input_ids"

        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(50, 3)

        def forward(self, input_ids=None):
            assert input_ids.shape[1] <= 16
            return self.table(input_ids)

    auto = SimpleNamespace(from_config=lambda _config: Model())
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoModel=auto))
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in ("mine", "perf_tests")]:
        del sys.modules[name]


@pytest.fixture
def run(own, monkeypatch, capsys):
    def answer(words, **_options):
        error = ""
        try:
            adopting.main(words[3])
        except SystemExit as ended:
            error = str(ended)
        out = capsys.readouterr().out
        return SimpleNamespace(returncode=int(bool(error)), stdout=out, stderr=error)

    monkeypatch.setattr(adopt.subprocess, "run", answer)
    monkeypatch.setattr(adopt.subprocess, "call", lambda *_, **__: 0)
    return lambda words: ran(["adopt", *words.split()], monkeypatch, capsys)


@pytest.mark.parametrize(
    ("words", "case_id"),
    [
        ("Net --batch-size 2", "net-b2"),
        ("Words --arg words=30 --batch-size 2", "words-b2"),
        ("Words --arg words=30 --input ids=int64:30 --batch-size 2", "words-b2"),
        ("Small --batch-size 2", "small-b2"),
        ("Odd --input a=4,8 --input b=8,4 --batch-size 2", "odd-b2"),
        ("Config --batch-size 2", "config-b2"),
    ],
)
def test_what_is_written_builds_a_step_that_runs(own, run, words, case_id):
    answer = run(f"mine:{words}")
    assert answer.status == 0, answer.err
    assert "gate" in (own / "perf_tests" / "matrix.toml").read_text()
    (case,) = cases_in(own / "perf_tests" / "matrix.toml").values()
    assert case.id == case_id
    workload = build(case, Setting(torch.device("cpu")))
    workload.step()
    assert workload.items_per_step == 2
    assert "perf_cases" in (own / "perf_tests" / "test_factories.py").read_text()
    assert "not known: how much slower is too slow" in answer.out


@pytest.mark.parametrize(
    ("words", "drawn"),
    [
        ("Net", "randn(batch_size, 3, 224, 224, device"),
        ("Small", "randn(batch_size, 1, 28, 28, device"),
        ("Words --arg words=30", "randint(0, 30, (batch_size, 128), device"),
        ("Config", "randint(0, 50, (batch_size, 16), device"),
    ],
)
def test_inputs_are_drawn_from_layers_and_signature(own, run, words, drawn):
    answer = run(f"mine:{words}")
    assert drawn in (own / "perf_tests" / "adopted.py").read_text()
    assert "works; set yours with --input NAME=SHAPE" in answer.out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("mine.Net", "write it as package.module:Object"),
        ("./mine.py:Net", "write it as package.module:Object"),
        ("nowhere:Net", "No module named 'nowhere'"),
        ("mine:Nets", "has no attribute 'Nets'; its networks: mine:Net, mine:Words"),
        ("mine:number", "mine:number: it is of type int; it must be a subclass of torch.nn.Module"),
        ("mine:Words", "Words needs words; give --arg words=VALUE"),
        ("mine:Odd", "give --input a=SHAPE --input b=SHAPE; a SHAPE of 128:30000 is for int"),
        ("mine:Spared", "give --input a=SHAPE; a SHAPE of 128:30000 is for int"),
        ("mine:Odd --input c=3", "give --input a=SHAPE --input b=SHAPE instead of c"),
        ("mine:Net --input image=3,4", "RuntimeError: "),
        ("mine:Net --arg width", "--arg: 'width'; it must be NAME=VALUE"),
        ("mine:Net --input image=big", "--input: image=big; it must be NAME=3,224,224"),
    ],
)
def test_what_cannot_be_known_is_one_line_that_says_what_to_give(own, run, words, expected):
    answer = run(words)
    assert answer.status == 2
    assert expected in answer.err
    assert not (own / "perf_tests").exists()


@pytest.mark.parametrize(
    ("words", "line", "last"),
    [
        (
            "mine:Wrong",
            """self.weights = {}["weights"] if raises else None""",
            "KeyError: 'weights'",
        ),
        (
            "mine:Wrong --arg raises=False",
            "return self.last(x.nothing)",
            f"no input works so far; give --input x=SHAPE; {adopting.INTEGERS}",
        ),
        (
            "mine:Wrong --arg raises=False --input x=4",
            "return self.last(x.nothing)",
            f"no input works so far; give --input x=SHAPE; {adopting.INTEGERS}",
        ),
        (
            "broken:Net",
            "import absent_module",
            "ModuleNotFoundError: No module named 'absent_module'",
        ),
    ],
)
def test_a_model_that_raises_shows_its_own_frames_alone(own, run, words, line, last):
    (own / "broken.py").write_text("import absent_module\n")
    answer = run(words)
    lines = answer.err.splitlines()
    assert (answer.status, lines[-1]) == (2, last)
    assert len(lines) <= 8
    assert f"    {line}" in lines
    assert all(str(own) in text for text in lines if text.startswith("  File"))


def test_where_pytest_does_not_load_the_plugin_that_is_an_error_with_its_remedy(
    own, run, monkeypatch
):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    start = adopt.subprocess.Popen
    monkeypatch.setattr(adopt.subprocess, "call", lambda *args, **more: start(*args, **more).wait())
    answer = run("mine:Net")
    assert answer.status == 2
    assert "pytest ended with status 4" in answer.err
    assert "unset PYTEST_DISABLE_PLUGIN_AUTOLOAD" in answer.err


def test_where_pytest_runs_no_test_that_is_an_error_with_its_remedy(run, monkeypatch):
    monkeypatch.setattr(adopt.subprocess, "call", lambda *_, **__: 5)
    answer = run("mine:Net")
    assert answer.status == 2
    assert "pytest ended with status 5" in answer.err
    assert answer.err.endswith("have its python_files match test_factories.py\n")


@pytest.mark.parametrize(
    ("value", "written"),
    [("(3,4)", "(3, 4)"), ("{3}", "{3}"), ("{[]:3}", "'{[]:3}'"), ("3j", "3j"), ("a", "'a'")],
)
def test_an_argument_is_any_literal_or_else_text(own, run, value, written):
    constructor = "def __init__(self, size):\n        super().__init__(4, 5)\n"
    (own / "mine.py").write_text(
        f"from torch import nn\nclass Sized(nn.Linear):\n    {constructor}"
    )
    assert run(f"mine:Sized --arg size={value}").status == 0
    assert f"Sized(size={written})" in (own / "perf_tests" / "adopted.py").read_text()


def test_a_second_object_goes_behind_the_first_and_nothing_is_written_over(own, run):
    (own / "perf_tests").mkdir()
    test = own / "perf_tests" / "test_factories.py"
    test.write_text("# mine\n")
    assert run("mine:Net").status == 0
    assert run("mine:Small").status == 0
    assert run("mine:Net --batch-size 4").status == 0
    assert list(cases_in(own / "perf_tests" / "matrix.toml")) == ["net-b8", "small-b8", "net-b4"]
    assert (own / "perf_tests" / "adopted.py").read_text().count("def net_step(") == 1
    assert test.read_text() == "# mine\n"
    answer = run("mine:Net")
    assert (answer.status, "already has net-b8" in answer.err) == (2, True)


def test_a_rerun_replaces_the_case_and_its_factory_and_nothing_else(own, run):
    for words in ("Net", "Small", "Net --batch-size 4"):
        assert run(f"mine:{words}").status == 0
    other = run("mine:Net --batch-size 16 --arg width=9")
    assert (other.status, "another net_step; --replace" in other.err) == (2, True)
    assert run("mine:Net --arg width=9 --replace").status == 0
    cases = cases_in(own / "perf_tests" / "matrix.toml")
    assert list(cases) == ["small-b8", "net-b4", "net-b8"]
    steps = (own / "perf_tests" / "adopted.py").read_text()
    assert (steps.count("Net()"), steps.count("Net(width=9)")) == (0, 1)
    for case in cases.values():
        build(case, Setting(torch.device("cpu"))).step()


def test_git_ignores_the_runs_and_pytests_settings_stay(own, run):
    (own / ".gitignore").write_text("*.pyc")
    for words in ("Net", "Small"):
        assert "left to you" not in run(f"mine:{words}").out
    assert {path.name for path in own.iterdir() if path.is_file()} == {".gitignore", "mine.py"}
    assert (own / ".gitignore").read_text() == "*.pyc\n/history/\n"


def test_a_file_that_is_not_understood_is_left_as_it_is(own, run):
    (own / ".gitignore").write_bytes(b"# caf\xe9\n")
    said = "left to you: .gitignore cannot be read: it is not UTF-8; add /history/ to it"
    assert said in run("mine:Net").out
    assert (own / ".gitignore").read_bytes() == b"# caf\xe9\n"


def test_a_link_is_left_to_the_user(own, run):
    (own / "elsewhere").write_text("*.pyc\n")
    (own / ".gitignore").symlink_to("elsewhere")
    answer = run("mine:Net")
    assert "left to you: .gitignore cannot be read: it is a link" in answer.out
    assert (own / "elsewhere").read_text() == "*.pyc\n"


def test_an_import_that_ends_python_is_said(own, monkeypatch, capsys):
    (own / "ends.py").write_text("import os\nos._exit(3)\n")
    answer = ran(["adopt", "ends:Net"], monkeypatch, capsys)
    assert "ends:Net: importing it made Python exit with 3" in answer.err


SHAKEN = [1.0, 1.6] * 10


def test_a_run_does_not_recommend_an_accept_that_would_be_refused():
    def record(name, seconds):
        measured = make_measurement(case_id=name, iteration_s=seconds)
        attempts = [make_attempt(measurement=measured)]
        return make_record(case=make_case(id=name), attempts=attempts, status=Status.NO_BASELINE)

    shaken, steady = record("shaken", SHAKEN), record("steady", [1.0] * 20)
    words = _too_unsteady([shaken])
    assert words.startswith("baseline accept would refuse 1 case (shaken: iterations spread by 24%")
    assert "make the step longer, or accept it with --force and say why" in words
    assert _too_unsteady([shaken, steady]) == ""
