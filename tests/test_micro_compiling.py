"""``--compileContext`` as a case's mode and options; it is read and never run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_lib.cases.axes import case_of, network_axes
from bench_lib.micro.flags import CONTEXT_KEYS, MODES, Compiling, read_context
from bench_lib.model import COMPILE_MODES, Case, UserError, is_case_id

AXES = network_axes({"resnet18": 224})


def case_that_is(compiling: Compiling) -> Case:
    values = {
        "network": "resnet18",
        "batch_size": 1,
        "compile_mode": compiling.mode,
        "compile_options": compiling.options,
        "task": "infer",
    }
    return case_of(AXES, values)


@pytest.mark.parametrize(
    ("text", "mode", "options"),
    [
        ("{}", "default", ""),
        ("{'mode': None, 'options': None}", "default", ""),
        ("{'mode': 'max-autotune', 'fullgraph': 'True'}", "max-autotune", "fullgraph"),
        ("{'mode': 'default', 'dynamic': True, 'fullgraph': 1}", "default", "fullgraph,dynamic"),
        ("{'dynamic': 0, 'fullgraph': None}", "default", "dynamic=False"),
        ("{'mode': 'graph', 'dynamic': False}", "graph", ""),
        ("{'backend': 'aot_eager'}", "default", "backend=aot_eager"),
        ("{'options': {'shape-padding': 'True'}}", "default", "shape_padding=True"),
        ("{'options': {'triton.cudagraphs': 'true'}}", "default", "triton.cudagraphs=True"),
        ("{'options': {'a': 2, 'b': 0.5, 'c': 'ATEN'}}", "default", "a=2,b=0.5,c=ATEN"),
        ("{'disable': 'False', 'mode': 'max-autotune'}", "max-autotune", ""),
        ("{'disable': 'True', 'mode': 'max-autotune'}", "eager", ""),
    ],
)
def test_a_context_is_a_mode_and_options_of_a_case(text, mode, options):
    compiling = read_context(text)
    assert compiling == Compiling(mode, options)
    assert is_case_id(case_that_is(compiling).id)


def test_the_notes_of_old_get_what_there_is_today():
    text = "{'options': {'static-memory': 'True', 'matmul-padding': 'True'}}"
    assert read_context(text) == Compiling("default", "shape_padding=True", ["static-memory"])


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_that_a_case_may_have_can_be_asked_for(mode):
    compiling = read_context(str({"mode": mode}))
    assert (compiling.mode, compiling.options) == (mode, "")
    assert set(MODES) == set(COMPILE_MODES) - {"eager"}
    assert case_that_is(compiling).params["compile_mode"] == mode


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "'[]' is not a dictionary"),
        ("{", "'{' is not a Python literal"),
        ("{'mod': 1}", "unknown key 'mod'; did you mean mode?"),
        ("{'mode': 'max-autotun'}", "unknown mode 'max-autotun'; did you mean max-autotune"),
        ("{'mode': 'default', 'options': {}}", "mode and options cannot be combined"),
        ("{'fullgraph': 'maybe'}", "fullgraph is 'maybe'; it must be True or False"),
        ("{'backend': 'a b'}", "backend is 'a b'; it must be a name"),
        ("{'options': 1}", "options is 1; it must be a dictionary"),
        ("{'options': {'a b': 1}}", "options has no 'a b'"),
        ("{'options': {'a': [1]}}", "a is [1]; it must be a Boolean, a number or a word"),
        (
            "{'mode': 'graph', 'fullgraph': True}",
            "mode graph compiles nothing, so it has no fullgra",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(text, why):
    with pytest.raises(UserError) as caught:
        read_context(text)
    assert str(caught.value).startswith(f"--compileContext: {why}")


@pytest.mark.parametrize("text", ["open('made', 'w')", "{'mode': open('made', 'w').name}"])
def test_what_calls_something_is_refused_and_not_called(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="is not a Python literal"):
        read_context(text)
    assert not list(tmp_path.iterdir())


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(), max_size=8),
    st.sampled_from([*MODES, *CONTEXT_KEYS, "True", "inductor", "aot_eager", "matmul-padding"]),
)
CONTEXTS: st.SearchStrategy[dict[Any, Any]] = st.dictionaries(
    st.one_of(LEAVES, st.sampled_from([*CONTEXT_KEYS, "freezing"])),
    st.one_of(LEAVES, st.dictionaries(LEAVES, LEAVES, max_size=3)),
    max_size=4,
)


@given(CONTEXTS)
def test_any_dictionary_is_read_or_refused(context):
    try:
        compiling = read_context(repr(context))
    except UserError as error:
        assert str(error).startswith("--compileContext")  # noqa: PT017 - most are refused
        return
    assert is_case_id(case_that_is(compiling).id)
