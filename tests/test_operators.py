"""Operators by formula and as cases: shapes, FLOPs, bytes, ids, and what is refused."""

import itertools

import pytest
from asked import asked
from hypothesis import given
from hypothesis import strategies as st

from bench_lib.cases.matrix import MatrixError, read_matrix, tables
from bench_lib.cases.operators import label, model_operators, operator_case, resolved
from bench_lib.formulas.operation import MOST_ELEMENTS, OPERATORS, Operation, broadcast, sizes_in
from bench_lib.model import UserError, is_case_id

MIB = 2**20


def refused(**values):
    with pytest.raises(UserError) as caught:
        Operation(**values)
    return str(caught.value)


def amounts(**values):
    counted = Operation(**values).amounts
    return counted.flops, counted.moved_bytes, counted.held_bytes


# ---- shapes -----------------------------------------------------------------------------


def test_a_shape_is_sizes_with_dashes_between():
    assert sizes_in("64-1024-1024") == (64, 1024, 1024)
    assert sizes_in("1") == (1,)
    assert sizes_in("b8h16s2048d64") == (8, 16, 2048, 64)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("64-x-1", "shape '64-x-1': 'x' is not a size; write whole numbers separated by dashes"),
        ("", "shape '': '' is not a size"),
        ("-64", "shape '-64': '' is not a size"),
        ("64,1024", "'64,1024' is not a size"),
        ("٣-4", "'٣' is not a size"),
        ("64-0-1", "shape '64-0-1': a size must be above 0"),
        ("1-1-1-1-1-1-1-1-1", "has 9 sizes; the limit is 8"),
        (f"2-{MOST_ELEMENTS + 1}", f"a size is above {MOST_ELEMENTS}"),
        ("9" * 5000, f"a size is above {MOST_ELEMENTS}"),
        (64, "shape is 64; write whole numbers separated by dashes, as in 64-1024-1024"),
    ],
)
def test_what_is_no_shape_is_refused_in_words(text, why):
    with pytest.raises(UserError) as caught:
        sizes_in(text)
    assert why in str(caught.value)
    assert len(str(caught.value)) < 250


def test_shapes_broadcast_as_in_torch():
    assert broadcast((32, 16, 128, 128), (32, 1, 1, 128)) == (32, 16, 128, 128)
    assert broadcast((32, 128, 1024), (1024,)) == (32, 128, 1024)
    assert broadcast((1,), (4, 1)) == (4, 1)
    assert broadcast((3, 4), (4, 3)) is None


# ---- what a call computes, moves and needs ----------------------------------------------


@pytest.mark.parametrize(
    ("values", "flops", "moved", "held"),
    [
        ("op=add shape=512-512", 2**18, 3 * MIB, 3 * MIB),
        ("op=add_ shape=512-512", 2**18, 3 * MIB, 2 * MIB),
        ("op=add shape=4-4 shape2=4", 16, 144, 144),
        ("op=eq shape=4-4", 16, 144, 144),
        ("op=eq_ shape=4-4", 16, 192, 128),
        ("op=exp shape=4-4 precision=bf16", 16, 64, 64),
        ("op=relu_ shape=4-4", 16, 128, 64),
        ("op=sum shape=4-4", 16, 68, 68),
        ("op=var shape=4-4", 48, 68, 68),
        ("op=norm shape=4-4 precision=fp16", 32, 34, 34),
        ("op=argmax shape=4-4 precision=fp16", 16, 40, 40),
        ("op=gemm shape=2-3-4 layout=NT", 48, 104, 104),
        (
            "op=gemm shape=16-32-64 layout=NT precision=fp8",
            2 * 16 * 32 * 64,
            16 * 64 + 64 * 32 + 2 * 16 * 32,
            16 * 64 + 64 * 32 + 2 * 16 * 32,
        ),
        ("op=sdpa shape=b1h2s8d4 direction=fwd", 2048, 1024, 1024),
        ("op=sdpa shape=b1h2s8d4 direction=fwd causal=True", 1024, 1024, 1024),
        ("op=sdpa shape=b1h2s8d4 direction=bwd", 5120, 2048, 2048),
        ("op=softmax shape=4-4 direction=fwd", 80, 128, 128),
        ("op=softmax shape=4-4 direction=bwd", 64, 192, 256),
        ("op=rms_norm shape=4-4 direction=fwd", 64, 128, 128),
        ("op=rms_norm shape=4-4 direction=bwd", 144, 192, 256),
        (
            "op=grouped_gemm shape=6-8-16 shape2=3 precision=bf16",
            2 * 6 * 8 * 16,
            2 * (6 * 16 + 3 * 16 * 8 + 6 * 8),
            2 * (6 * 16 + 3 * 16 * 8 + 6 * 8),
        ),
        (  # FP8 has factors of each row and column, and a result of two bytes
            "op=grouped_gemm shape=6-16-32 shape2=3 precision=fp8",
            2 * 6 * 16 * 32,
            6 * (32 + 4 + 2 * 16) + 3 * (32 * 16 + 4 * 16),
            6 * (32 + 4 + 2 * 16) + 3 * (32 * 16 + 4 * 16),
        ),
        (  # all tokens go to one of three experts, which alone is read
            "op=grouped_gemm shape=6-8-16 shape2=3 skew=3",
            2 * 6 * 8 * 16,
            4 * (6 * 16 + 16 * 8 + 6 * 8),
            4 * (6 * 16 + 3 * 16 * 8 + 6 * 8),
        ),
        (  # two queries a sequence
            "op=sdpa_decode shape=b2h4s8d4 shape2=2-2",
            4 * 2 * 4 * 2 * 8 * 4,
            4 * (2 * 2 * 2 * 8 * 4 + 2 * 2 * 4 * 2 * 4),
            4 * (2 * 2 * 2 * 8 * 4 + 2 * 2 * 4 * 2 * 4),
        ),
        (  # eight rows of 4 + 2 for each sequence; queries as wide, results of 4
            "op=latent_decode shape=b2h4s8d4 shape2=2",
            2 * 2 * 4 * 8 * (6 + 4),
            4 * (2 * 8 * 6 + 2 * 4 * (6 + 4)),
            4 * (2 * 8 * 6 + 2 * 4 * (6 + 4)),
        ),
        (  # keys of 3 + 2 and values of 3 for each head and token are made and held
            "op=latent_prefill shape=b2h4s8d4 shape2=2-3",
            2 * 16 * 4 * (4 * 2 * 3) + 2 * (2 * 4 * 64 // 2) * (5 + 3),
            4 * (16 * (6 + 4 * 5 + 4 * 3) + 4 * 24),
            4 * (16 * (6 + 4 * 5 + 4 * 3) + 4 * 24 + 16 * 4 * (5 + 3)),
        ),
        ("op=quantize_fp8 shape=4-8", 32 * 3, 4 * (8 * 5 + 4), 4 * (8 * 5 + 4)),
        (
            "op=rms_norm_fp8 shape=4-8 precision=bf16",
            32 * 7,
            4 * (8 * 3 + 4) + 16,
            4 * (8 * 3 + 4) + 16,
        ),
        (
            "op=sdpa_decode shape=b2h4s8d4 shape2=2",
            4 * 2 * 4 * 8 * 4,
            4 * (2 * 2 * 2 * 8 * 4 + 2 * 2 * 4 * 4),
            4 * (2 * 2 * 2 * 8 * 4 + 2 * 2 * 4 * 4),
        ),
        (  # three pages of three tokens a sequence, one slot empty
            "op=sdpa_paged shape=b2h4s8d4 shape2=2-3",
            4 * 2 * 4 * 8 * 4,
            4 * (2 * 2 * 2 * 8 * 4 + 2 * 2 * 4 * 4) + 8 * 6,
            4 * (2 * 2 * 2 * 9 * 4 + 2 * 2 * 4 * 4) + 8 * 6,
        ),
        ("op=copy_h2d shape=4-4", 0, 64, 64),
        ("op=copy_d2d shape=4-4", 0, 128, 128),
        ("op=sparse_add_ shape=9-4 shape2=2", 8, 48 + 2 * 32, 48 + 144),
        ("op=sparse_add_ shape=2-4 shape2=2", 8, 48 + 2 * 32, 48 + 32),
        ("op=sparse_add shape=9-4 shape2=2", 8, 48 + 288, 48 + 288),
    ],
)
def test_flops_and_bytes_are_those_of_the_formula(values, flops, moved, held):
    assert amounts(**asked(values)) == (flops, moved, held)


@pytest.mark.parametrize(("tokens", "experts", "skew"), [(64, 8, 1), (6, 3, 3), (16384, 256, 16)])
def test_the_busiest_expert_has_as_many_shares_as_the_skew_says(tokens, experts, skew):
    shape, shape2 = f"{tokens}-8-8", str(experts)
    shares = Operation("grouped_gemm", shape, shape2, skew=skew).shares
    assert (len(shares), sum(shares)) == (experts, tokens)
    assert shares[0] == pytest.approx(skew * tokens / experts, abs=1)
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(shares))


def test_a_weight_of_fewer_channels_makes_groups():
    shapes = {"shape": "1-8-5-5", "shape2": "8-1-3-3", "memory_format": "nhwc"}
    operation = Operation("conv2d", **shapes, direction="fwd")
    assert (operation.groups, operation.padding) == (8, (1, 1))
    assert operation.amounts.flops == 2 * 8 * 25 * 9


def test_looking_up_reads_no_more_rows_than_there_are():
    few = amounts(op="embedding", shape="1000-4", shape2="3-2", direction="fwd")
    assert few == (0, 6 * 8 + 6 * 16 + 6 * 16, 6 * 8 + 1000 * 16 + 6 * 16)
    many = amounts(op="embedding", shape="2-4", shape2="3-2", direction="fwd")
    assert many[1] == 6 * 8 + 2 * 16 + 6 * 16
    one = amounts(op="embedding", shape="1-4", shape2="3-2", direction="fwd")
    assert one[1] == 6 * 8 + 1 * 16 + 6 * 16
    backward = amounts(op="embedding", shape="1000-4", shape2="3-2", direction="bwd")
    assert backward[:2] == (24, 6 * 8 + 6 * 16 + 1000 * 16)


def test_a_call_touches_no_more_than_it_moves_or_holds():
    assert Operation("relu_", "4-4").amounts.distinct_bytes == 64
    few = Operation("embedding", "1000-4", "3-2", direction="fwd").amounts
    assert few.distinct_bytes == few.moved_bytes == 6 * 8 + 6 * 16 + 6 * 16


# ---- what cannot be meant ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ("op=ad shape=4", "unknown op 'ad'; did you mean add"),
        ("op=add shape=3-4 shape2=4-3", "shapes 3-4 and 4-3 do not broadcast"),
        ("op=add shape=3-4 shape2=3-4", "which equals shape"),
        ("op=add_ shape=4 shape2=3-4", "the result's shape is 3-4, but must be"),
        ("op=exp shape=4 shape2=3", "shape2 is '3'; exp has no such option"),
        ("op=exp shape=4 precision=fp61", "choose from fp32, tf32, fp16, bf16, fp8, mxfp8, mxfp4"),
        ("op=exp shape=4 precision=tf32", "only gemm and conv2d support TF32"),
        ("op=add shape=4 precision=fp8", "only gemm and grouped_gemm support FP8"),
        ("op=add shape=4 precision=mxfp4", "only gemm supports MXFP4"),
        ("op=gemm shape=64-128-128 layout=NT precision=mxfp8", "MXFP8 needs multiples of 128"),
        ("op=gemm shape=4-4-4", "gemm needs layout: NN or NT or TN or TT"),
        ("op=gemm shape=4-4 layout=NN", "it must be M-N-K"),
        ("op=gemm shape=16-16-16 layout=NN precision=fp8", "torch's FP8 product needs NT"),
        ("op=sdpa shape=b1h1s8d8 precision=tf32", "sdpa needs direction"),
        ("op=std shape=1-1", "std of 1-1: one value has no variance"),
        ("op=add shape=b1h2s3d4", "shape is 'b1h2s3d4'; letters are for sdpa"),
        ("op=exp shape=1048576-1048577", f"has more than {MOST_ELEMENTS} elements"),
        ("op=sdpa shape=8-16-64-64 direction=fwd", "as in b8h16s2048d64"),
        ("op=sdpa_decode shape=b1h4s8d8", "it must be the heads of keys and values"),
        ("op=sdpa_decode shape=b1h4s8d8 shape2=3", "not divisible by 3 key heads"),
        ("op=sdpa_paged shape=b1h4s8d8 shape2=2", "the tokens of a page, as in 8"),
        (
            "op=gemm shape=8-8-8 layout=NT backend=flash",
            "backend is 'flash'; gemm has no",
        ),
        ("op=grouped_gemm shape=8-8-8 shape2=3", "not divisible by 3 experts"),
        ("op=grouped_gemm shape=8-9-8 shape2=2", "multiples of 8"),
        ("op=grouped_gemm shape=8-8-8 shape2=2 skew=3", "skew is 3; with 2 experts"),
        ("op=latent_decode shape=b1h4s8d8", "it must be the width of the rotary part"),
        ("op=quantize_fp8 shape=4", "it must be rows-width"),
        ("op=grouped_gemm shape=8-8-8 shape2=2 precision=fp16", "torch's grouped product"),
        (
            "op=sdpa shape=b1h1s8d8 direction=fwd backend=fa4",
            "backend is 'fa4'; choose from flash, e",
        ),
        ("op=gemm shape=4-4-4 layout=NN scaling=rowwise", "scaling is 'rowwise'; it is for prec"),
        ("op=batch_norm shape=1-8-1-1 memory_format=nchw direction=fwd", "one value per channel"),
        ("op=embedding shape=4-8 direction=fwd", "embedding needs shape2"),
        ("op=sparse_add shape=4-8", "the number of rows that are added"),
        ("op=add shape=1048576-1 shape2=1048577", "the result has"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(values, why):
    assert why in refused(**asked(values))


@pytest.mark.parametrize(
    ("shape", "shape2", "why"),
    [
        ("2-3-8-8", "", "it must be K-C-R-S"),
        ("2-3-8", "4-3-3-3", "it must be N-C-H-W"),
        ("2-3-8-8", "4-2-3-3", "4-2-3-3 does not match the 3 channels of 2-3-8-8"),
        ("2-4-8-8", "3-2-3-3", "divide them into groups that divide K"),
        ("2-3-1-1", "4-3-4-4", None),
        ("2-3-1-1", "4-3-4-9", None),
    ],
)
def test_a_weight_has_to_fit_its_image(shape, shape2, why):
    values = {"shape": shape, "shape2": shape2, "memory_format": "nchw", "direction": "fwd"}
    if why is None:
        assert min(Operation("conv2d", **values).output) >= 1
    else:
        assert why in refused(op="conv2d", **values)


@given(
    op=st.sampled_from(OPERATORS),
    shape=st.text("0123456789-bhsd", max_size=16),
    shape2=st.text("0123456789-", max_size=12),
    precision=st.sampled_from(("fp32", "fp8", "tf32")),
    direction=st.sampled_from(("", "fwd", "bwd")),
    layout=st.sampled_from(("", "NT")),
    memory_format=st.sampled_from(("", "nhwc")),
)
def test_whatever_is_asked_for_is_an_operation_or_a_refusal(**values):
    try:
        case = operator_case(**values)
    except UserError:
        return
    assert is_case_id(case.id)
    assert Operation(**case.params).amounts.held_bytes > 0


# ---- cases ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "case_id"),
    [
        ("op=add shape=64-1024-1024", "op-add-64x1024x1024-fp32"),
        ("op=add_ shape=32-8 shape2=8", "op-add_-32x8-8-fp32"),
        ("op=gemm shape=8192-8192-8192 layout=NT precision=bf16", "op-gemm-8192x8192x8192-nt-bf16"),
        ("op=sdpa shape=b1h1s8d8 direction=bwd causal=True", "op-sdpa-b1h1s8d8-fp32-causal-bwd"),
        (
            "op=conv2d shape=6-3-22-22 shape2=6-3-7-7 stride=2 memory_format=nhwc direction=fwd",
            "op-conv2d-6x3x22x22-6x3x7x7-fp32-nhwc-s2-fwd",
        ),
        ("op=copy_h2d shape=64 pinned=True", "op-copy_h2d-64-fp32-pinned"),
        ("op=grouped_gemm shape=64-8-8 shape2=08 skew=4", "op-grouped_gemm-64x8x8-8-fp32-skew4"),
    ],
)
def test_an_id_says_what_is_measured(values, case_id):
    case = operator_case(**asked(values))
    assert (case.id, case.workload) == (case_id, "operator")


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ('op = "add"\nshape = "4-x"', "ops, table 1, shape: shape '4-x': 'x' is not a size"),
        ('op = "gemm"\nshape = "4-4-4"', "gemm needs layout: NN or NT or TN or TT"),
        ('op = "add"\nshape = "4"\nranks = 2', "an operator runs on one device, but ranks is 2"),
    ],
)
def test_a_matrix_refuses_operators_with_the_table_and_the_key(tmp_path, keys, why):
    path = tmp_path / "matrix.toml"
    path.write_text(f"[[gate.ops]]\n{keys}\n")
    with pytest.raises(MatrixError) as caught:
        read_matrix(path, tables({}))
    assert why in str(caught.value)


# ---- the tool's lists and spelling ------------------------------------------------------


def test_the_model_list_has_the_shapes_of_bert_and_dlrm():
    cases = [operator_case(**values) for values in model_operators()]
    assert len(cases) == 36
    labels = [label(case) for case in cases]
    assert len(set(labels)) == 36
    assert {
        "add(32-128-1024,32-128-1024)",
        "add(8-16-512-512,8-1-1-512)",
        "add_(4-512-1024,1024)",
        "add_(1,1)",
        "div(4-16-512-512,1)",
        "sum(8-512-1024)",
        "add_(sparse)(32709138-128,851968-128)",
        "relu_(32768-1024)",
    } <= set(labels)


@pytest.mark.parametrize(
    ("op", "op_type", "inplace", "name"),
    [
        ("add", None, False, "add"),
        ("add", "binary", True, "add_"),
        ("add_", "sparse", False, "sparse_add_"),
        ("add", "sparse", True, "sparse_add_"),
        ("sum", "reduction", False, "sum"),
    ],
)
def test_a_name_a_type_and_in_place_are_one_operator(op, op_type, inplace, name):
    assert resolved(op, op_type, inplace=inplace) == name
