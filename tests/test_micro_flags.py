"""The command line of ROCm's tool as we take it: frozen, read, and refused in clear words."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench_lib.cases.axes import LARGEST
from bench_lib.micro.flags import AMP, MicroOptions, parser, read_options
from bench_lib.model import PRECISIONS, UserError

TEXT, NUMBER, SWITCH = "text", "number", "switch"
NEEDED = "needed"

THEIRS: dict[str, tuple[Any, ...]] = {
    "--network": (TEXT, None, None, NEEDED),
    "--batch-size": (NUMBER, 64, None),
    "--iterations": (NUMBER, 20, None),
    "--flops-prof-step": (NUMBER, 0, None),
    "--kineto": (SWITCH, False, None),
    "--autograd_profiler": (SWITCH, False, None),
    "--fp16": (NUMBER, 0, (0, 1)),
    "--distributed_dataparallel": (SWITCH, False, None),
    "--device_ids": (TEXT, None, None),
    "--rank": (NUMBER, None, None),
    "--world-size": (NUMBER, None, None),
    "--dist-backend": (TEXT, None, None),
    "--dist-url": (TEXT, None, None),
    "--compile": (SWITCH, False, None),
    "--compileContext": (TEXT, "{}", None),
    "--amp": (SWITCH, False, None),
    "--csv-file": (TEXT, None, None),
    "--mode": (TEXT, "training", ("training", "inference")),
    "--nhwc": (SWITCH, False, None),
    "--opt-step": (NUMBER, 1, None),
    "--output-dir": (TEXT, "", None),
    "--output-file": (TEXT, "", None),
    "--profiler-output": (TEXT, "", None),
}
"""Every flag of micro_benchmarking_pytorch.py: what it takes, its default, its choices.

``--network`` has choices there too, and ``--compileContext`` an empty dictionary; what may be
said with ``--network`` is torchvision's to say here, and is looked up when torch is there."""

GUIDES: dict[str, tuple[Any, ...]] = {
    "--autograd-profiler": (SWITCH, False, None),
    "--amp-opt-level": (NUMBER, 0, (0, 1, 2, 3)),
}
"""Flags that the workshop's guide and the tool's own README have, and the tool has not."""

OURS: dict[str, tuple[Any, ...]] = {
    "--history": (Path, None, None),
}

NETWORK = ["--network", "resnet50"]

DISTRIBUTED = (
    *("--rank", "0", "--world-size", "1"),
    *("--dist-backend", "gloo", "--dist-url", "tcp://127.0.0.1:4332"),
)

SEVERAL = ["--distributed_dataparallel"]

SAID: dict[str, list[str]] = {
    "--network": ["resnet18"],
    "--batch-size": ["8"],
    "--iterations": ["5"],
    "--flops-prof-step": ["3"],
    "--fp16": ["1"],
    "--device_ids": ["1"],
    "--rank": ["1", "--world-size", "4"],
    "--world-size": ["4", "--rank", "1"],
    "--dist-backend": ["gloo"],
    "--dist-url": ["tcp://127.0.0.1:4332"],
    "--compileContext": ["{'mode': 'max-autotune'}", "--compile"],
    "--csv-file": ["mine.csv"],
    "--mode": ["inference"],
    "--opt-step": ["2"],
    "--output-dir": ["/"],
    "--output-file": ["mine"],
    "--profiler-output": ["mine"],
    "--amp-opt-level": ["1"],
    "--distributed_dataparallel": [*DISTRIBUTED],
}
"""What follows each flag in a command line that can be meant; nothing after the others."""


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def read(*words: str) -> MicroOptions:
    return read_options([*NETWORK, *words])


def refusal(*words: str) -> str:
    with pytest.raises(UserError) as caught:
        read(*words)
    return str(caught.value)


# ---- the surface ------------------------------------------------------------------------------


def surface(action: argparse.Action) -> tuple[Any, ...]:
    takes: Any = TEXT if action.type in (None, str) else action.type
    takes = NUMBER if takes is int else takes
    takes = SWITCH if action.nargs == 0 and action.const is True else takes
    assert takes is SWITCH or action.nargs is None
    choices = None if action.choices is None else tuple(action.choices)
    return (takes, action.default, choices, *([NEEDED] if action.required else []))


def test_the_flags_of_rocms_tool_are_frozen():
    flags = {
        spelling: surface(action)
        for action in parser()._actions
        for spelling in action.option_strings
        if action.dest != "help"
    }
    assert flags == THEIRS | GUIDES | OURS


@pytest.mark.parametrize("flag", [*THEIRS, *GUIDES, *OURS])
def test_every_flag_is_told_apart_from_its_absence(flag):
    values = SAID.get(flag, ["folder"] if OURS.get(flag, (None,))[0] is Path else [])
    assert read(flag, *values) != read()


# ---- precision --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "precision", "dtype"),
    [
        ([], "fp32", "FP32"),
        (["--fp16", "1"], "fp16-bn32", "FP16"),
        (["--amp"], "amp-fp16", AMP),
        (["--fp16", "1", "--amp"], "fp16-bn32", "FP16"),
        (["--amp-opt-level", "1"], "amp-fp16", AMP),
        (["--amp-opt-level", "3"], "fp16", "FP16"),
        (["--fp16", "1", "--amp", "--amp-opt-level", "3"], "fp16-bn32", "FP16"),
    ],
)
def test_flags_of_precision_have_one_meaning_together(words, precision, dtype):
    options = read(*words)
    assert (options.precision("fp32"), options.dtype) == (precision, dtype)
    assert precision in PRECISIONS


@pytest.mark.parametrize(
    ("words", "ignored"),
    [
        ([], []),
        (["--fp16", "1", "--amp"], ["--fp16 1 overrides --amp and --amp-opt-level"]),
        (["--fp16", "1", "--amp-opt-level", "2"], ["--fp16 1 overrides --amp and --amp-opt-level"]),
        (["--fp16", "0", "--amp"], []),
        (
            ["--compileContext", "{'mode': 'max-autotune'}"],
            ["--compileContext does nothing without --compile"],
        ),
        (
            ["--compile", "--compileContext", "{'options': {'static-memory': 'True'}}"],
            ["--compileContext: Inductor no longer has static-memory"],
        ),
        (["--compile", "--compileContext", "{'mode': 'max-autotune'}"], []),
    ],
)
def test_a_flag_without_effect_is_noted(words, ignored):
    assert read(*words).notes == ignored


def test_fp32_is_what_torch_means_by_it_on_the_device():
    assert read().precision("tf32-conv") == "tf32-conv"
    assert read("--amp").precision("tf32-conv") == "amp-fp16"


# ---- single flags -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "iterations", "step"),
    [(0, 20, 0), (19, 20, 19), (20, 20, 19), (10, 1, 0), (-1, 20, 0)],
)
def test_the_profiled_step_is_clamped_to_the_iterations(asked, iterations, step):
    options = read("--flops-prof-step", str(asked), "--iterations", str(iterations))
    assert options.flops_prof_step == step


@pytest.mark.parametrize(
    ("text", "ids"), [("0", (0,)), ("0,1", (0, 1)), ("3,1", (3, 1)), ("", ()), (" ", ())]
)
def test_device_ids_are_numbers_in_their_order(text, ids):
    several = SAID["--distributed_dataparallel"]
    words = ["--distributed_dataparallel", *several, "--device_ids", text]
    assert read(*words).device_ids == ids


# ---- files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "csv", "result"),
    [
        (["--output-file", "mine"], "./benchmark_summary.csv", "mine.json"),
        (
            ["--output-dir", "out", "--output-file", "mine"],
            "out/benchmark_summary.csv",
            "out/mine.json",
        ),
        (["--csv-file", "new.csv", "--output-dir", "out"], "new.csv", None),
        (["--csv-file", ""], "./benchmark_summary.csv", None),
        (["--output-file", "a.b"], "./benchmark_summary.csv", "a.b.json"),
    ],
)
def test_results_are_written_where_rocms_tool_writes_them(words, csv, result):
    options = read(*words)
    assert options.csv_name == csv
    assert options.result == (None if result is None else Path(result))


# ---- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--batch-size", "--iterations", "--opt-step"])
def test_a_count_that_no_case_may_have_is_refused(flag):
    for value in (0, -1):
        expected = f"{flag} is {value}; it must be a whole number of 1 or more"
        assert refusal(flag, str(value)) == expected
    for value in (LARGEST + 1, 10**400):
        assert refusal(flag, str(value)).startswith(f"{flag} is 1000000")
    assert read(flag, str(LARGEST)) != read()


@pytest.mark.parametrize("flag", [flag for flag in THEIRS if THEIRS[flag][0] is NUMBER])
@pytest.mark.parametrize("value", ["1.5", ""])
def test_what_is_no_number_is_refused(flag, value):
    message = refusal(flag, value)
    assert message.startswith(f"argument {flag}: invalid int value: {value!r}")
    assert message.endswith("; bench-lib micro --help lists the flags")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--fp16", "2"], r"argument --fp16: invalid choice: '?2'? \(choose from '?0"),
        (["--mode", "train"], r"argument --mode: invalid choice: 'train' \(choose from '?trai"),
        (["--no-such-flag"], r"unrecognized arguments: --no-such-flag; bench-lib micro --help"),
        (["--batch-size"], r"argument --batch-size: expected one argument; bench-lib micro"),
        (["--kineto=1"], r"argument --kineto: ignored explicit argument '1'; bench-lib micro"),
    ],
)
def test_what_argparse_refuses_is_refused_without_its_usage(words, expected, capsys):
    assert re.match(expected, refusal(*words))
    assert capsys.readouterr() == ("", "")


def test_a_backend_may_be_written_in_capitals():
    assert read("--dist-backend", "NCCL").dist_backend == "nccl"


@pytest.mark.parametrize("text", ["x", "0,x", "-1", "0,0", "0,", ",", "0;1", "1.0", "9" * 99])
def test_device_ids_that_are_not_different_numbers_are_refused(text):
    assert refusal(f"--device_ids={text}") == (
        f"--device_ids is {text!r}; it must be different numbers, counted from 0, such as 0,1"
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            [*SEVERAL, *DISTRIBUTED, "--rank", "2", "--world-size", "2"],
            "--rank is 2; with --world-s",
        ),
        ([*SEVERAL, *DISTRIBUTED, "--world-size", "0"], "--world-size is 0; it must be a whole"),
        (["--dist-backend", "mpi"], "--dist-backend is 'mpi'; choose nccl or gloo"),
        (["--distributed_dataparallel"], "--distributed_dataparallel needs --rank, --world-size,"),
        ([*SEVERAL, "--rank", "0", "--world-size", "2"], "--distributed_dataparallel needs --dist"),
        (
            ["--device_ids", "0,1"],
            "--device_ids names 2 devices, but a process uses only one; start",
        ),
    ],
)
def test_ranks_that_could_not_meet_are_refused(words, expected):
    assert refusal(*words).startswith(expected)


@pytest.mark.parametrize("words", [["--distributed_dataparallel"], ["--device_ids", "0,1"]])
def test_torchrun_says_what_these_flags_would_need(words, monkeypatch):
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    assert read(*words) != read()


def test_under_torchrun_what_it_says_itself_is_not_looked_at(monkeypatch):
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    options = read("--rank", "7", "--dist-url", "anything", "--dist-backend", "gloo")
    assert (options.rank, options.dist_url) == (None, None)


WORDS = st.one_of(
    st.sampled_from([*THEIRS, *GUIDES, *OURS]),
    st.sampled_from([value for values in SAID.values() for value in values]),
    st.sampled_from(["--batch", "--fp16=1", "--am", "--", "-", "-n", "0", "-1", "{", "{'a': 1}"]),
    st.text(max_size=12),
)


@given(st.lists(WORDS, max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_command_line_is_read_or_refused(words):
    try:
        assert isinstance(read_options([*NETWORK, *words]), MicroOptions)
    except UserError as error:
        assert str(error)  # noqa: PT017 - most are refused, and some are not
    except SystemExit as end:
        assert end.code == 0  # noqa: PT017 - asked for help
