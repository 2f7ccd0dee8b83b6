"""What scripts say with ``--compileContext``, as a case's mode and options; never run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_lib.cases.axes import case_of, network_axes
from bench_lib.micro.compiling import EXAMPLE, KEYS, LONGEST, MODES, Compiling, read_context
from bench_lib.model import COMPILE_MODES, Case, UserError, is_case_id

AXES = network_axes({"resnet18": 224})


def case_that_is(compiling: Compiling, task: str = "infer") -> Case:
    """Return the case that is compiled so; raises UserError where there is none."""
    values = {
        "network": "resnet18",
        "batch_size": 1,
        "compile_mode": compiling.mode,
        "compile_options": compiling.options,
        "task": task,
    }
    return case_of(AXES, values)


def refusal(text: str) -> str:
    """Read what is refused; return the words."""
    with pytest.raises(UserError) as caught:
        read_context(text)
    return str(caught.value)


# ---- what is read -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mode", "options"),
    [
        ("{}", "default", ""),
        ("", "default", ""),
        ("  ", "default", ""),
        ("{'mode': None, 'options': None}", "default", ""),
        ("{'mode': 'max-autotune', 'fullgraph': 'True'}", "max-autotune", "fullgraph"),
        ("{'mode': 'max-autotune', 'fullgraph': 'False'}", "max-autotune", ""),
        ("{'mode': 'reduce-overhead'}", "reduce-overhead", ""),
        ("{'mode': 'default', 'dynamic': True, 'fullgraph': 1}", "default", "fullgraph,dynamic"),
        ("{'dynamic': 0, 'fullgraph': None}", "default", "dynamic=False"),
        ("{'dynamic': '0', 'fullgraph': '1'}", "default", "fullgraph,dynamic=False"),
        ("{'dynamic': None}", "default", ""),
        ("{'mode': 'graph', 'dynamic': False}", "graph", ""),
        ("{'backend': 'inductor'}", "default", ""),
        ("{'backend': None}", "default", ""),
        ("{'backend': 'aot_eager'}", "default", "backend=aot_eager"),
        ("{'mode': 'max-autotune', 'backend': 'cudagraphs'}", "max-autotune", "backend=cudagraphs"),
        ("{'mode': 'graph'}", "graph", ""),
        ("{'mode': 'max-autotune-folded'}", "max-autotune-folded", ""),
        ("{'options': {}}", "default", ""),
        ("{'options': {'shape-padding': 'True'}}", "default", "shape_padding=True"),
        ("{'options': {'shape_padding': False}}", "default", "shape_padding=False"),
        ("{'options': {'triton.cudagraphs': 'true'}}", "default", "triton.cudagraphs=True"),
        ("{'options': {'a': 2, 'b': 0.5, 'c': 'ATEN'}}", "default", "a=2,b=0.5,c=ATEN"),
        ("{'options': {'a': '', 'b': 1.0}}", "default", "a=False,b=1.0"),
        ("{'options': {'a': -1, 'b': 1e-05, 'c': 1e16}}", "default", "a=-1,b=1e-05,c=1e+16"),
        (
            "{'fullgraph': True, 'options': {'freezing': True}}",
            "default",
            "fullgraph,freezing=True",
        ),
        (' {\n"mode":\n"default"\n} # mine', "default", ""),
        ("{'disable': 'False', 'mode': 'max-autotune'}", "max-autotune", ""),
    ],
)
def test_a_context_is_a_mode_and_options_of_a_case(text: str, mode: str, options: str) -> None:
    compiling = read_context(text)
    assert compiling == Compiling(mode, options)
    assert is_case_id(case_that_is(compiling).id)


@pytest.mark.parametrize("word", ["True", "true", "TRUE", " tRuE ", "1", True, 1, 1.0])
def test_truth_may_be_written_in_any_way(word: Any) -> None:
    assert read_context(str({"fullgraph": word})).options == "fullgraph"
    assert read_context(str({"disable": word})).mode == "eager"


@pytest.mark.parametrize("word", ["False", "false", "FALSE", " fAlSe ", "0", False, 0, None])
def test_falsehood_is_not_truth(word: Any) -> None:
    assert read_context(str({"fullgraph": word, "disable": word})) == Compiling("default")


@pytest.mark.parametrize(
    ("word", "value"), [("TRUE", "True"), (" false ", "False"), (True, "True"), (False, "False")]
)
def test_an_option_that_is_a_truth_value_in_words_is_one(word: Any, value: str) -> None:
    assert read_context(str({"options": {"freezing": word}})).options == f"freezing={value}"


def test_the_notes_of_old_get_what_there_is_today() -> None:
    text = "{'options': {'static-memory': 'True', 'matmul-padding': 'True'}}"
    compiling = read_context(text)
    assert (compiling.mode, compiling.options) == ("default", "shape_padding=True")
    ignored, renamed = compiling.remarks
    assert ignored == (
        "--compileContext: static-memory is ignored: Inductor has no such option today; what keeps "
        "memory in place are graphs, {'triton.cudagraphs': True}"
    )
    assert renamed == "--compileContext: matmul-padding is Inductor's shape_padding today"


@pytest.mark.parametrize("spelt", ["static_memory", "matmul_padding"])
def test_the_notes_words_may_have_underscores(spelt: str) -> None:
    (remark,) = read_context(str({"options": {spelt: True}})).remarks
    assert remark.startswith(f"--compileContext: {spelt} is ")


def test_what_is_disabled_is_not_compiled_and_says_so() -> None:
    remarks = ["--compileContext has disable, so nothing is compiled"]
    for text in ("{'disable': True}", "{'disable': 'True', 'mode': 'max-autotune'}"):
        assert read_context(text) == Compiling("eager", "", remarks)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_that_a_case_may_have_can_be_asked_for(mode: str) -> None:
    compiling = read_context(str({"mode": mode}))
    assert (compiling.mode, compiling.options) == (mode, "")
    assert set(MODES) == set(COMPILE_MODES) - {"eager"}
    assert case_that_is(compiling).params["compile_mode"] == mode


TRUTHS = {"shape_padding": True, "triton.cudagraphs": True, "epilogue": False}


@pytest.mark.parametrize("value", [1, "1", 1.0, True, "true"])
def test_what_is_a_truth_value_to_inductor_is_read_as_one(value: Any) -> None:
    written = {"shape-padding": value, "epilogue": 1}
    compiling = read_context(str({"options": written})).typed(TRUTHS)
    assert compiling == Compiling("default", "shape_padding=True,epilogue=1")


@pytest.mark.parametrize("value", [0, "0", 0.0, False, ""])
def test_what_is_nothing_to_inductor_is_false(value: Any) -> None:
    compiling = read_context(str({"options": {"triton.cudagraphs": value}})).typed(TRUTHS)
    assert compiling == Compiling("default", "triton.cudagraphs=False")


def test_what_is_no_truth_value_is_refused_by_the_name_that_was_written() -> None:
    compiling = read_context("{'options': {'matmul-padding': 2}}")
    with pytest.raises(UserError) as caught:
        compiling.typed(TRUTHS)
    assert str(caught.value) == (
        "--compileContext: matmul-padding is '2'; it has to be True or False"
    )


def test_what_inductor_says_of_an_option_is_told_in_the_words_that_were_written() -> None:
    compiling = read_context("{'options': {'matmul-padding': 2}}")
    said = compiling.in_their_words("attr shape_padding, not shape_padding_2 or a.shape_padding")
    assert said == "attr matmul-padding, not shape_padding_2 or a.shape_padding"


def test_options_that_are_none_stay_none() -> None:
    for text in ("{}", "{'fullgraph': True, 'dynamic': False}", "{'mode': 'max-autotune'}"):
        assert read_context(text).typed(TRUTHS) == read_context(text)


# ---- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "{",
        "}",
        "{'mode': max-autotune}",
        "{mode: 'default'}",
        "{'mode': 'default'}; 1",
        "mode=default",
        "dict(mode='default')",
        "{'mode': str('default')}",
        "{'mode': 'default'}['mode']",
        "{**{}}",
        "{'mode': f'default'}",
        "{'mode': [] + []}",
        "{'mode': 'a' * 9}",
        "{x: 1 for x in 'ab'}",
        "lambda: {}",
        "True if True else {}",
        "(x := {})",
        "{[]: 1}",
        "{{}: 1}",
        "{'mode': '\0'}",
        "{'mode': '\ud800'}",
        "\ufeff{}",
        "{'mode': 0777}",
        "'" * 3,
        "[" * 300,
        "(" * 1999,
        "-" * 1999 + "1",
        "{'mode': " * 200,
    ],
)
def test_what_is_no_literal_is_refused(text: str) -> None:
    words = refusal(text)
    assert words.startswith("--compileContext is ")
    assert words.endswith(f"; it has to be a Python literal, such as {EXAMPLE}")
    assert "\n" not in words
    assert len(words) < 500


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch called')",
        "{'mode': __import__('os').system('touch called')}",
        "{__import__('pathlib').Path('called').touch(): 1}",
        "[open('called', 'w') for _ in 'a']",
        'exec(\'open("called", "w")\')',
        "(lambda: open('called', 'w'))()",
    ],
)
def test_what_calls_something_is_refused_and_not_called(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "it has to be a Python literal" in refusal(text)
    assert not Path("called").exists()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[]", "list"),
        ("()", "tuple"),
        ("set()", "set"),
        ("{'mode'}", "set"),
        ("'mode'", "str"),
        ("b'mode'", "bytes"),
        ("1", "int"),
        ("-1.5", "float"),
        ("1+2j", "complex"),
        ("None", "NoneType"),
        ("...", "ellipsis"),
        ("True", "bool"),
        ("{}, {}", "tuple"),
    ],
)
def test_a_literal_that_is_no_dictionary_is_refused(text: str, kind: str) -> None:
    expected = f"--compileContext is {text!r}; it has to be a dictionary, and is a {kind}, such as"
    assert refusal(text) == f"{expected} {EXAMPLE}"


def test_a_text_too_long_is_refused_unread() -> None:
    for text in ("0x" + "f" * LONGEST, "[" * 100_000, "1+" * 100_000 + "1"):
        assert f"it has {len(text)} characters, and has to be of {LONGEST} at most" in refusal(text)
    context = "{'mode': 'default'}"
    assert read_context(context.ljust(LONGEST)) == Compiling("default")


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("'mod'", "did you mean mode?"),
        ("'Mode'", "did you mean mode?"),
        ("'fullgraf'", "did you mean fullgraph?"),
        ("'option'", "did you mean options?"),
        ("b'mode'", "did you mean mode?"),
        ("'x'", f"there is {', '.join(KEYS)}"),
        ("''", f"there is {', '.join(KEYS)}"),
        ("1", f"there is {', '.join(KEYS)}"),
        ("None", f"there is {', '.join(KEYS)}"),
        ("True", f"there is {', '.join(KEYS)}"),
        ("('mode',)", "did you mean mode?"),
        ("'triton.cudagraphs'", f"there is {', '.join(KEYS)}"),
        ("'static-memory'", f"there is {', '.join(KEYS)}"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest(key: str, hint: str) -> None:
    text = f"{{{key}: True}}"
    assert refusal(text) == f"--compileContext: unknown key {key}; {hint}"


@pytest.mark.parametrize(
    ("mode", "hint"),
    [
        ("'max_autotune'", "did you mean max-autotune or max-autotune-f"),
        ("'reduce-overheads'", "did you mean reduce-overhead or reduce-overhead-f"),
        ("'eager'", f"there is {', '.join(MODES)}"),
        ("''", f"there is {', '.join(MODES)}"),
        ("['default']", "did you mean default"),
        ("{'default': 1}", "did you mean default"),
        ("True", f"there is {', '.join(MODES)}"),
        ("0", f"there is {', '.join(MODES)}"),
    ],
)
def test_an_unknown_mode_is_named_with_the_nearest(mode: str, hint: str) -> None:
    expected = f"--compileContext: unknown mode {mode}; {hint}"
    assert refusal(f"{{'mode': {mode}}}").startswith(expected)


@pytest.mark.parametrize("options", ["{}", "{'freezing': True}", "[]", "False"])
def test_mode_and_options_exclude_each_other(options: str) -> None:
    assert refusal(f"{{'mode': 'default', 'options': {options}}}") == (
        "--compileContext: mode and options exclude each other, since a mode is a set of options; "
        "leave one out"
    )


@pytest.mark.parametrize("name", ["dynamic", "fullgraph", "disable"])
@pytest.mark.parametrize(
    "value", ["'yes'", "''", "2", "-1", "[]", "{}", "1.5", "'None'", "b'True'"]
)
def test_what_is_neither_true_nor_false_is_refused(name: str, value: str) -> None:
    expected = f"--compileContext: {name} is {value}; it has to be True or False"
    assert refusal(f"{{'{name}': {value}}}") == expected


@pytest.mark.parametrize(
    "value", ["''", "'a b'", "'a,b'", "'a=b'", "'ä'", "[]", "0", "False", "{}"]
)
def test_a_backend_is_a_name(value: str) -> None:
    expected = f"--compileContext: backend is {value}; it has to be a name"
    assert refusal(f"{{'backend': {value}}}") == expected


@pytest.mark.parametrize(
    "value", ["[]", "'freezing'", "1", "True", "('freezing',)", "{'freezing'}"]
)
def test_options_are_a_dictionary(value: str) -> None:
    expected = f"--compileContext: options is {value}; it has to be a dictionary"
    assert refusal(f"{{'options': {value}}}") == expected


@pytest.mark.parametrize(
    "name", ["''", "1", "None", "'a b'", "'1a'", "'a,b'", "'a=b'", "b'a'", "'ä'"]
)
def test_an_option_that_is_no_name_is_refused(name: str) -> None:
    expected = f"--compileContext: {name} in options is no name"
    assert refusal(f"{{'options': {{{name}: True}}}}") == expected


@pytest.mark.parametrize(
    "value", ["[]", "[True]", "{}", "None", "' '", "'a b'", "'a,b'", "(1,)", "1j", "b'True'"]
)
def test_an_option_that_no_case_can_hold_is_refused(value: str) -> None:
    assert refusal(f"{{'options': {{'shape-padding': {value}}}}}") == (
        f"--compileContext: shape-padding in options is {value}; it has to be a truth value, a "
        "number or a word"
    )


@pytest.mark.parametrize("name", KEYS)
def test_what_belongs_beside_the_options_is_refused_among_them(name: str) -> None:
    expected = f"--compileContext: {name} does not go into options but beside them"
    assert refusal(f"{{'options': {{'{name}': 'True'}}}}") == expected


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        ("shape-padding", "shape_padding", "shape_padding"),
        ("matmul-padding", "shape_padding", "shape_padding"),
        ("shape_padding", "matmul-padding", "shape_padding"),
    ],
)
def test_one_option_in_two_spellings_is_refused(one: str, other: str, name: str) -> None:
    text = str({"options": {one: True, other: False}})
    assert refusal(text) == f"--compileContext: options has {name} twice"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("{'mode': 'default', 'mode': 'max-autotune'}", "'mode'"),
        ("{'fullgraph': True, 'mode': None, 'fullgraph': True}", "'fullgraph'"),
        ("{'options': {'freezing': True, 'freezing': False}}", "'freezing'"),
        ("{1: 2, True: 3}", "True"),
    ],
)
def test_a_key_that_is_there_twice_is_refused(text: str, key: str) -> None:
    assert refusal(text) == f"--compileContext: {key} is there twice; leave one out"


@pytest.mark.parametrize(
    "text",
    [
        "{'mode': '%s'}",
        "{'%s': 1}",
        "{'backend': '%s,'}",
        "{'options': '%s'}",
        "{'fullgraph': '%s'}",
        "{'options': {'%s': []}}",
        "{'options': {'a': '%s '}}",
        "'%s'",
        "%s",
    ],
)
def test_a_long_value_is_cut(text: str) -> None:
    words = refusal(text % ("x" * 1900))
    assert len(words) < 400
    assert "x…x" in words


@pytest.mark.parametrize(
    ("beside", "named"),
    [
        ("'fullgraph': True", "fullgraph"),
        ("'dynamic': True", "dynamic"),
        ("'backend': 'aot_eager'", "backend=aot_eager"),
    ],
)
def test_a_graph_has_nothing_to_tell_a_compiler(beside: str, named: str) -> None:
    expected = f"--compileContext: mode graph compiles nothing, and has no {named}"
    assert refusal(f"{{'mode': 'graph', {beside}}}") == expected


# ---- anything ---------------------------------------------------------------------------------


def read_or_refuse(text: str) -> None:
    """Read it; what is accepted can be named as a case, and what is not has one line."""
    try:
        compiling = read_context(text)
    except UserError as error:
        assert str(error).startswith("--compileContext")  # noqa: PT017 - most are refused
        assert "\n" not in str(error)  # noqa: PT017
        return
    assert is_case_id(case_that_is(compiling).id)
    assert all("\n" not in remark for remark in compiling.remarks)


@given(st.text(st.characters()))
@settings(deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    read_or_refuse(text)


@given(st.text("{}[]()'\":,.0123456789abefxTr-+*# \n\\=", max_size=60))
@settings(deadline=None)
def test_any_text_that_is_nearly_python_is_read_or_refused(text: str) -> None:
    read_or_refuse(text)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**1500, max_value=10**1600),
    st.floats(),
    st.complex_numbers(),
    st.binary(max_size=4),
    st.text(st.characters(), max_size=8),
    st.sampled_from([*MODES, *KEYS, "True", "false", "inductor", "aot_eager", "matmul-padding"]),
)
HASHABLE = st.one_of(LEAVES, st.tuples(LEAVES, LEAVES), st.sampled_from([*KEYS, "freezing"]))
VALUES: st.SearchStrategy[Any] = st.deferred(
    lambda: st.one_of(
        LEAVES,
        st.lists(VALUES, max_size=2),
        st.tuples(VALUES),
        st.dictionaries(HASHABLE, VALUES, max_size=2),
        st.sets(HASHABLE, max_size=2),
    )
)
LIKELY = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from([*MODES, None]),
        "dynamic": st.sampled_from([True, "False", None, 1]),
        "fullgraph": st.sampled_from([False, "true"]),
        "backend": st.sampled_from(["inductor", "eager", "a.b-c+d"]),
        "options": st.one_of(
            st.none(),
            st.dictionaries(
                st.from_regex(r"[a-z_][a-z0-9_.-]{0,12}", fullmatch=True),
                st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=6)),
                max_size=4,
            ),
        ),
        "disable": st.sampled_from([False, "False", "true"]),
    },
)


@given(st.one_of(st.dictionaries(HASHABLE, VALUES, max_size=4), LIKELY))
@settings(max_examples=300, deadline=None)
def test_any_dictionary_is_read_or_refused(context: dict[Any, Any]) -> None:
    read_or_refuse(repr(context))


def test_deep_nesting_is_refused() -> None:
    for depth in (1, 50, 99, 150, 400, 999):
        read_or_refuse("{'options': " + "[" * depth + "]" * depth + "}")
        read_or_refuse("{'mode': " * depth + "1" + "}" * depth)
        read_or_refuse("-" * depth + "1")
        read_or_refuse("1" + "+1j" * (depth // 3))
