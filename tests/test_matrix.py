"""What a matrix stands for, and what it refuses: with the file, the table and the key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_lib.cases.axes import case_of, network_axes
from bench_lib.cases.matrix import MatrixError, cases_in, read_matrix, tables
from bench_lib.model import TIERS, Case, Launch, Limits, Sampling, UserError

SIZES = {
    "inception_v3": 299,
    "resnet18": 224,
    "resnet50": 224,
    "resnet101": 224,
    "vit_b_16": 224,
}
SHIPPED = Path(__file__).parents[1] / "perf_tests" / "matrix.toml"


def read(folder: Path, text: str) -> dict[str, list[Case]]:
    path = folder / "matrix.toml"
    path.write_text(text, encoding="utf-8")
    return read_matrix(path, {"networks": network_axes(SIZES)})


def ids(cases: list[Case]) -> list[str]:
    return [case.id for case in cases]


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(MatrixError) as caught:
        read(folder, text)
    file, _, words = str(caught.value).partition(": ")
    assert file == str(folder / "matrix.toml")
    return words


def one_table(keys: str) -> str:
    given_keys = {line.partition("=")[0].strip() for line in keys.splitlines()}
    whole = {"network": '"resnet50"', "batch_size": "64"}
    rest = [f"{k} = {v}" for k, v in whole.items() if k not in given_keys]
    return "\n".join(["[[gate.networks]]", *rest, keys])


# ---- what a table stands for ------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("", "resnet50-b64-fp32-eager-infer"),
        ('memory_format = "nhwc"', "resnet50-b64-fp32-nhwc-eager-infer"),
        ("image_size = 96", "resnet50-b64-fp32-96px-eager-infer"),
        ("ranks = 4", "resnet50-b64-fp32-eager-infer-x4"),
        (
            (
                'precision = "amp-bf16"\nmemory_format = "nhwc"\nimage_size = 96\n'
                'compile_mode = "reduce-overhead"\ntask = "train"\nranks = 8'
            ),
            "resnet50-b64-amp-bf16-nhwc-96px-reduce-overhead-train-x8",
        ),
    ],
)
def test_an_id_names_every_parameter_that_is_not_the_default(tmp_path, keys, expected):
    assert ids(read(tmp_path, one_table(keys))["gate"]) == [expected]


def test_a_table_stands_for_the_product_of_its_lists_in_their_order(tmp_path):
    cases = read(tmp_path, one_table('batch_size = [64, 1]\ntask = ["train", "infer"]'))["gate"]
    assert ids(cases) == [
        "resnet50-b64-fp32-eager-train",
        "resnet50-b64-fp32-eager-infer",
        "resnet50-b1-fp32-eager-train",
        "resnet50-b1-fp32-eager-infer",
    ]


def test_an_exclude_leaves_out_what_has_all_its_values(tmp_path):
    text = one_table(
        'batch_size = [1, 64]\nprecision = ["fp32", "fp16", "bf16"]\n'
        'exclude = [{batch_size = 1, precision = ["fp16", "bf16"]}]'
    )
    assert ids(read(tmp_path, text)["gate"]) == [
        "resnet50-b1-fp32-eager-infer",
        "resnet50-b64-fp32-eager-infer",
        "resnet50-b64-fp16-eager-infer",
        "resnet50-b64-bf16-eager-infer",
    ]


@pytest.mark.parametrize(
    ("keys", "end", "launch"),
    [
        ("ranks = 4", "-x4", Launch(4)),
        ("ranks = 4\nstrong = true", "-x4-strong", Launch(4, strong=True)),
        ("threads = 8", "-t8", Launch(threads=8)),
        ("ranks = 2\nthreads = 3\ncold = true", "-x2-t3-cold", Launch(2, cold=True, threads=3)),
    ],
)
def test_how_a_case_is_launched_is_in_its_id(tmp_path, keys, end, launch):
    (case,) = read(tmp_path, one_table(keys))["gate"]
    assert (case.id, case.launch) == (f"resnet50-b64-fp32-eager-infer{end}", launch)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("strong = true", ": strong divides a batch among ranks, but ranks is 1"),
        ("ranks = 3\nstrong = true", ": batch_size 64 cannot be divided evenly among 3 ranks"),
        ("strong = 1", ", strong: strong is 1; it must be true or false"),
        ("threads = -1", ", threads: threads is -1; it must be a whole number of 0 or more"),
    ],
)
def test_a_batch_that_ranks_cannot_share_is_refused(tmp_path, keys, words):
    assert refusal(tmp_path, one_table(keys)).startswith(TABLE + words)


def test_no_two_combinations_share_an_id(tmp_path):
    text = """
[[gate.networks]]
network = ["resnet18", "resnet101"]
batch_size = [1, 16]
precision = ["fp32", "tf32", "fp16", "bf16", "amp-fp16", "amp-bf16"]
memory_format = ["nchw", "nhwc"]
image_size = [0, 96]
compile_mode = [
  "eager", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"
]
task = ["infer", "train"]
ranks = [1, 2]
"""
    cases = read(tmp_path, text)["gate"]
    assert len(cases) == 2 * 2 * 6 * 2 * 2 * 5 * 2 * 2
    assert all(re.fullmatch(r"[a-z0-9_-]+", case.id) for case in cases)


def test_settings_of_a_table_override_the_tiers_and_those_the_defaults(tmp_path):
    text = """
[gate]
time_limit_s = 60
[gate.sampling]
iterations = 30
measure_s = 1
[gate.limits]
tolerance = 0.02
[[gate.networks]]
network = "resnet50"
batch_size = 1
[[gate.networks]]
network = "resnet50"
batch_size = 2
time_limit_s = 90
sampling = {iterations = 40}
limits = {memory = 0.2}
"""
    first, second = read(tmp_path, text)["gate"]
    assert first.time_limit_s == 60.0
    assert first.sampling == Sampling(iterations=30, measure_s=1)
    assert first.limits == Limits(tolerance=0.02)
    assert second.time_limit_s == 90.0
    assert second.sampling == Sampling(iterations=40, measure_s=1)
    assert second.limits == Limits(tolerance=0.02, memory=0.2)


def test_a_tier_that_extends_another_has_its_cases_first(tmp_path):
    text = """
[[smoke.networks]]
network = "resnet18"
batch_size = 1
[gate]
extends = "smoke"
[[gate.networks]]
network = "resnet18"
batch_size = 2
[nightly]
extends = "gate"
[[nightly.networks]]
network = "resnet18"
batch_size = 3
"""
    tiers = read(tmp_path, text)
    assert [(c.tier, c.params["batch_size"]) for c in tiers["nightly"]] == [
        ("smoke", 1),
        ("gate", 2),
        ("nightly", 3),
    ]
    assert tiers["gate"] == tiers["nightly"][:2]
    assert tiers["smoke"] == tiers["gate"][:1]


def test_a_factory_table_is_one_case_of_somebodys_own(tmp_path):
    text = """
[gate]
time_limit_s = 60
[[gate.factory]]
id = "my-step.v2"
target = "my_package.steps:make"
params = {width = 3, scale = 0.5, name = "x", deep = true}
limits = {tolerance = 0.03}
"""
    assert read(tmp_path, text)["gate"] == [
        Case(
            id="my-step.v2",
            workload="my_package.steps:make",
            params={"width": 3, "scale": 0.5, "name": "x", "deep": True},
            tier="gate",
            limits=Limits(tolerance=0.03),
            time_limit_s=60.0,
        )
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"network": "resnet51", "batch_size": 1}, "unknown network 'resnet51'"),
        ({"network": "resnet50"}, "batch_size is None"),
        ({"network": "resnet50", "batch_size": 1, "colour": "red"}, "network has no colour"),
        (
            {"network": "resnet50", "batch_size": 1, "precision": "int8", "task": "train"},
            "precision int8 is for inference",
        ),
    ],
)
def test_values_that_are_no_case_are_refused_by_name(values, expected):
    with pytest.raises(UserError, match=re.escape(expected)):
        case_of(network_axes(SIZES), values)


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ('compile_mode = "default"\ncompile_options = "shape_padding"', "default-shape_padding"),
        ('compile_mode = "default"\ncompile_options = "a=True,b.c=2"', "default-a--True.b.c--2"),
        ('compile_mode = "default"\ncompile_options = "' + "o" * 60 + '"', "default-options."),
        ('task = "train"\noptimizer_every = 4', "eager-train-opt4"),
        ("cold = true", "-eager-infer-cold"),
    ],
)
def test_an_option_that_is_set_is_in_the_id_and_one_that_is_not_is_nowhere(tmp_path, keys, part):
    [case] = read(tmp_path, one_table(keys))["gate"]
    assert part in case.id
    [plain] = read(tmp_path, one_table(""))["gate"]
    assert not {"compile_options", "optimizer_every", "image_size"} & plain.params.keys()


# ---- what is refused --------------------------------------------------------------------


TABLE, FACTORY = "gate.networks, table 1", "gate.factory, table 1"
OWN = "[[gate.factory]]\nid = 'x'\n"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ('network = "resnet51"', ", network: unknown network 'resnet51'; did you mean resnet50"),
        ("batch_size = 0", ", batch_size: batch_size is 0; it must be a whole number of 1 or"),
        ('batch_size = "abc"', ", batch_size: batch_size is 'abc'; it must be a whole number"),
        ("ranks = 0", ", ranks: ranks is 0; it must be a whole number of 1 or more"),
        ('precision = "fp61"', ", precision: unknown precision 'fp61'; did you mean fp16"),
        ("batch_size = []", ": batch_size is an empty list"),
        ("batch_size = [1, 2, 1]", ", batch_size: has a value twice: [1, 2, 1]"),
        ("batchsize = 4", ": unknown key 'batchsize'; did you mean batch_size or image_size?"),
        ('compile_options = "x"', ": compile_options is 'x', but eager does not compile"),
        (
            'compile_mode = "default"\ncompile_options = "__import__(\'os\')"',
            ", compile_options: compile_options is \"__import__('os')\"; it must be names and",
        ),
        ("exclude = [{batch_size = 3}]", ", exclude 1: {'batch_size': 3} matches no case"),
        ("exclude = [{batch_size = 64}]", ", exclude: leaves no case"),
        ("exclude = {batch_size = 64}", ", exclude: must be a list of tables"),
        ("exclude = [{batch = 64}]", ", exclude: unknown key 'batch'; did you mean batch_size?"),
        ("limits = {tolerance = -0.01}", ", limits: tolerance is -0.01; it must be a number ab"),
        ("limits = 3", ", limits: must be a table"),
        ("limits = {tolerence = 0.01}", ", limits: unknown key 'tolerence'; did you mean toler"),
        ("sampling = {warmup_s = 6}", ", sampling: warmup_s is 6, above warmup_max_s 5"),
        ("time_limit_s = 0", ": time_limit_s is 0; it must be a number of seconds above 0"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused_with_its_number_and_key(tmp_path, keys, words):
    assert refusal(tmp_path, one_table(keys)).startswith(TABLE + words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[weekly]", "the top level: unknown key 'weekly'; choose from smoke, gate, nightly"),
        ("gate = 1", "gate: must be a table"),
        ("[gate.networks]", "gate.networks: must be written [[gate.networks]]"),
        ("[[gate.network]]", "gate: unknown key 'network'; did you mean networks?"),
        ('[gate]\nextends = "smoke"', "gate.extends: there is no tier 'smoke'"),
        ('[gate]\nextends = "gate"', "gate.extends: gate → gate is a cycle"),
        (
            '[smoke]\nextends = "nightly"\n[gate]\nextends = "smoke"\n[nightly]\nextends = "gate"',
            "gate.extends: smoke → nightly → gate → smoke is a cycle",
        ),
        ("[gate]\ntime_limit_s = nan", "gate: time_limit_s is nan; it must be a number of sec"),
        ("[gate.limits]\nspread = 0.11", "gate.limits: spread is 0.11; the limit is 0.1"),
        ("[[gate.networks]]\nbatch_size = 1", f"{TABLE}: network is missing"),
        ("[gate", "not TOML: Expected ']' at the end of a table declaration"),
        ('[[gate.factory]]\nid = "x"', f"{FACTORY}: target is None; it must be package.module:"),
        (f"{OWN}target = 'a..b:c'", f"{FACTORY}: target is 'a..b:c'; it must be package.module:"),
        (
            "[[gate.factory]]\ntarget = 'a:b'",
            f"{FACTORY}: id is None; it must be letters, digits",
        ),
        (f"{OWN}target = 'a:b'\nparams = 3", f"{FACTORY}, params: must be a table"),
        (
            f"{OWN}target = 'a:b'\nparams.k = [1]",
            f"{FACTORY}, params: k is [1]; it must be text,",
        ),
        (
            f"{OWN}target = 'a:b'\nparams.k = {2**63}",
            f"{FACTORY}, params: k is 9223372036854775808",
        ),
        (
            f"{OWN}target = 'a:b'\nbatch_size = 3",
            f"{FACTORY}: unknown key 'batch_size'; choose from s",
        ),
    ],
)
def test_a_tier_that_cannot_be_meant_is_refused_with_its_name(tmp_path, text, words):
    assert refusal(tmp_path, text).startswith(words)


def test_a_case_twice_in_a_tier_is_refused_with_the_second_table(tmp_path):
    text = one_table("batch_size = [1, 2]") + "\n" + one_table("batch_size = [2, 3]")
    expected = "gate.networks, table 2: declares resnet50-b2-fp32-eager-infer a second time"
    assert refusal(tmp_path, text) == expected


def test_a_factory_may_not_take_the_id_of_a_network_case(tmp_path):
    text = one_table("") + (
        '\n[[gate.factory]]\nid = "resnet50-b64-fp32-eager-infer"\ntarget = "a:b"'
    )
    expected = "gate.factory, table 1: declares resnet50-b64-fp32-eager-infer a second time"
    assert refusal(tmp_path, text) == expected


def test_a_product_beyond_reason_is_refused_before_it_is_made(tmp_path):
    batches = list(range(1, 401))
    text = one_table(f"batch_size = {batches}\nimage_size = {batches}")
    expected = f"{TABLE}: has 160000 cases; the limit is 100000"
    assert refusal(tmp_path, text) == expected


# ---- whatever is in the file ------------------------------------------------------------


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("matrix")


def read_or_refuse(path: Path, data: bytes) -> tuple[dict[str, list[Case]], str | None]:
    path.write_bytes(data)
    try:
        return read_matrix(path, {"networks": network_axes(SIZES)}), None
    except MatrixError as error:
        return {}, str(error)


def as_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {as_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    if isinstance(value, (bool, str)):
        return json.dumps(value)
    return repr(value)


WORDS = (*TIERS, *SIZES, "networks", "factory", "fp16", "nhwc", "train", "a.b:c", "eager")
KEYS = (
    *("network", "batch_size", "precision", "memory_format", "image_size", "compile_mode", "task"),
    *("ranks", "exclude", "extends", "sampling", "limits", "time_limit_s", "id", "target"),
    *("params", "iterations", "max_iterations", "warmup_s", "spread", "memory", "tolerance"),
)
PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=8)
SCALARS = (
    st.sampled_from(WORDS)
    | st.integers(-2, 300)
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.booleans()
    | PRINTABLE
)
VALUES: st.SearchStrategy[Any] = st.deferred(
    lambda: (
        SCALARS
        | st.lists(VALUES, max_size=2)
        | st.dictionaries(st.sampled_from(KEYS) | PRINTABLE, VALUES, max_size=2)
    )
)
# Half right, so that the deeper checks are reached.
NETWORK = st.fixed_dictionaries(
    {
        "network": st.sampled_from(["resnet18", "resnet50"]) | VALUES,
        "batch_size": st.lists(st.integers(1, 3), min_size=1, max_size=2) | VALUES,
    },
    optional={key: VALUES for key in KEYS if key not in ("network", "batch_size")},
)
TIER = st.fixed_dictionaries(
    {},
    optional={
        "networks": st.lists(NETWORK, max_size=3) | VALUES,
        "factory": st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES), max_size=2),
        "extends": st.sampled_from(TIERS) | VALUES,
        "sampling": st.dictionaries(st.sampled_from(KEYS), VALUES),
        "limits": VALUES,
    },
)


@given(document=st.dictionaries(st.sampled_from(TIERS), TIER | VALUES))
def test_any_document_is_either_cases_or_a_matrix_error(scratch, document):
    text = "\n".join(f"{tier} = {as_toml(body)}" for tier, body in document.items())
    tiers, refused = read_or_refuse(scratch / "matrix.toml", text.encode())
    assert refused is None or refused.startswith(f"{scratch / 'matrix.toml'}: ")
    for cases in tiers.values():
        assert len(set(ids(cases))) == len(cases)
        assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", case.id) for case in cases)
        for case in cases:
            json.dumps(case.params, allow_nan=False)


@given(data=st.binary() | st.sampled_from([b"[" * 5000, b"gate = " + b"[" * 5000, b"x = 1" * 9000]))
def test_any_bytes_are_either_cases_or_a_matrix_error(scratch, data):
    path = scratch / "matrix.toml"
    tiers, refused = read_or_refuse(path, data)
    if refused is None:
        assert tiers == {tier: [] for tier in TIERS}
    else:
        assert refused.startswith((f"{path}: not TOML: ", f"{path}: the top level: "))


# ---- without a worker -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "No such file or directory; name a matrix with --perf-matrix FILE"),
        (b"gate", "not TOML: "),
        (b"\xff", "not TOML: "),
        (b'[[gate.networks]]\nnetwork = "a"\nbatch_size = 0', "gate.networks, table 1, batch_size"),
    ],
)
def test_a_matrix_that_cannot_be_meant_is_refused_without_a_worker_too(tmp_path, data, words):
    path = tmp_path / "matrix.toml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(MatrixError) as caught:
        cases_in(path)
    assert str(caught.value).startswith(f"{path}: {words}")


def test_the_cases_that_answer_for_known_regressions_are_in_the_nightly_suite():
    page = (SHIPPED.parents[1] / "docs" / "known-regressions.md").read_text()
    named = set(re.findall(r"`((?:op|all_reduce)-[^`]+|[^` ]+-b\d+-[^` ]+)`", page))
    sizes = dict.fromkeys(re.findall(r'"([a-z]\w+)"', SHIPPED.read_text()), 224)
    nightly = set(ids(read_matrix(SHIPPED, tables(sizes))["nightly"]))
    answered = page.partition("## Covered by a nightly case")[2].partition("\n## ")[0]
    rows = [line for line in answered.splitlines() if line.startswith("| [")]
    assert rows
    for row in rows:
        case = row.split(" | ")[2]
        assert case == "every case" or set(re.findall("`([^`]+)`", case)) & nightly, row
    assert named - nightly == set()
