"""Collectives: which there are, how sizes are counted, nccl-tests' columns, checked answers."""

from pathlib import Path

import pytest
import torch
from asked import asked
from standins.ranks import ThreadGroup

from bench_lib.cases.collectives import bytes_in, collective_axes, collective_case, sizes
from bench_lib.cases.matrix import MatrixError, read_matrix
from bench_lib.formulas.collective import ITEM_BYTES, OPS, Collective, rounded
from bench_lib.model import UserError
from bench_lib.worker import device
from bench_lib.worker.workload import Setting, UnsupportedError
from bench_lib.worker.workloads import collectives as module
from bench_lib.worker.workloads.collectives import DTYPES, calls_in_a_step, collective

CPU = torch.device("cpu")


def one(op="all_reduce", size=1024, **fields):
    return Collective(**{"op": op, "size": size, "dtype": "float", "ranks": 4, **fields})


# ---- how sizes are counted --------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "count", "given", "got"),
    [
        ("all_reduce", 256, 256, 256),
        ("broadcast", 256, 256, 256),
        ("all_gather", 64, 64, 256),
        ("reduce_scatter", 64, 256, 64),
        ("all_to_all", 64, 256, 256),
    ],
)
def test_a_size_is_that_of_the_larger_buffer_and_a_count_that_of_a_part(op, count, given, got):
    call = one(op)
    assert (call.count, call.given, call.got) == (count, given, got)
    assert max(given, got) * 4 == call.size


@pytest.mark.parametrize(
    ("op", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 2, 0.5),
        ("reduce_scatter", 8, 0.875),
        ("all_to_all", 4, 0.75),
        ("broadcast", 8, 1.0),
    ],
)
def test_bus_bandwidth_is_algorithm_bandwidth_times_the_links_share(op, ranks, factor):
    call = one(op, ranks=ranks)
    assert call.algorithm_bandwidth(2.0) == 512.0
    assert call.bus_bandwidth(2.0) == 512.0 * factor


def test_memory_is_counted_before_anything_is_allocated():
    assert one("all_gather").held_bytes == 1024 + 256
    assert one("all_to_all").held_bytes == 2048
    assert one("all_reduce").held_bytes == 1024


@pytest.mark.parametrize(
    ("op", "size", "dtype", "ranks", "expected"),
    [
        ("all_reduce", 9, "float", 3, 8),
        ("all_gather", 1000, "float", 3, 960),
        ("all_gather", 1000, "int8", 3, 960),
        ("reduce_scatter", 47, "int8", 3, 0),
        ("broadcast", 7, "half", 3, 6),
    ],
)
def test_sizes_are_rounded_as_nccl_tests_rounds_them(op, size, dtype, ranks, expected):
    assert rounded(op, size, dtype, ranks) == expected


# ---- cases ------------------------------------------------------------------------------


def test_an_id_says_what_is_not_as_usual():
    plain = collective_case(op="all_reduce", bytes="64M", ranks=8)
    assert plain.id == "all_reduce-64M-float-x8"
    assert plain.workload == "collective"
    assert plain.params == {"op": "all_reduce", "bytes": 64 * 2**20, "dtype": "float"}
    assert plain.launch.ranks == 8


@pytest.mark.parametrize(
    ("words", "size"),
    [("8", 8), ("64K", 65536), ("1.5k", 1536), ("2M", 2**21), ("1G", 2**30), (12, 12)],
)
def test_sizes_may_be_words(words, size):
    assert bytes_in(words) == size


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("op=all_redcue", "unknown op 'all_redcue'; did you mean all_reduce"),
        ("dtype=fp32", "unknown dtype 'fp32'"),
        ("bytes=0", "bytes is 0; it must be 1 to"),
        ({"bytes": "12 apples"}, "bytes is '12 apples'; write a number"),
        ("bytes=1022", "bytes is 1022; all_reduce has elements of 4 bytes, so it must be a"),
        ("op=all_gather ranks=3", "bytes is 1024; all_gather has elements of 4 bytes in 3 parts,"),
        ("ranks=1", "all_reduce needs 2 ranks or more, but ranks is 1"),
    ],
)
def test_what_cannot_be_meant_is_a_line(values, words):
    with pytest.raises(UserError) as raised:
        collective_case(**{"op": "all_reduce", "bytes": 1024, "ranks": 2, **asked(values)})
    assert str(raised.value).startswith(words)


def test_a_matrix_names_sizes_in_words(tmp_path):
    matrix = tmp_path / "matrix.toml"
    workloads = {"collectives": collective_axes()}
    table = '[[gate.collectives]]\nop = "all_reduce"\nbytes = ["8", "1M"]\nranks = 2\n'
    matrix.write_text(table)
    ids = [case.id for case in read_matrix(matrix, workloads)["gate"]]
    assert ids == ["all_reduce-8-float-x2", "all_reduce-1M-float-x2"]
    matrix.write_text(table.replace("ranks = 2", ""))
    with pytest.raises(MatrixError, match="all_reduce needs 2 ranks or more, but ranks is 1"):
        read_matrix(matrix, workloads)


def test_a_sweep_goes_by_factors():
    assert sizes(8, 128, 2) == [8, 16, 32, 64, 128]
    assert sizes(8, 100, 4) == [8, 32]
    assert sizes(8, 8, 2) == [8]


# ---- the answers, on ranks that are threads ---------------------------------------------


@pytest.fixture
def group(monkeypatch):
    def make(ranks):
        made = ThreadGroup(ranks)
        monkeypatch.setattr(module, "dist", made)
        return made

    return make


@pytest.mark.parametrize("op", OPS)
def test_every_operation_of_every_dtype_is_right_when_it_is(group, op):
    ranks = group(3)

    def program(setting):
        seen = []
        for dtype in DTYPES:
            workload = collective(setting, op=op, bytes=3 * 8 * 40, dtype=dtype)
            workload.step()
            seen.append(workload.numerics())
        return seen

    for seen in ranks.run(program):
        for dtype, numerics in zip(DTYPES, seen, strict=True):
            assert numerics.finite, dtype
            assert numerics.max_abs_diff == 0
            assert numerics.loss == numerics.reference_loss
            call = Collective(op, 960, dtype, 3)
            assert numerics.reference_loss == call.got * 3


@pytest.mark.parametrize("op", OPS)
def test_one_wrong_element_of_one_rank_is_found_by_all(group, op):
    ranks = group(3)

    def spoil(rank, result):
        if rank == 2:
            result[5] += 2

    ranks.spoil = spoil

    def program(setting):
        return collective(setting, op=op, bytes=960, dtype="half").numerics()

    for rank, numerics in enumerate(ranks.run(program)):
        assert not numerics.finite
        assert numerics.reference_loss - numerics.loss == 1
        assert numerics.max_abs_diff == (2 if rank == 2 else 0)


def test_parts_that_changed_places_are_found(group):
    ranks = group(2)

    def spoil(rank, result):
        result.copy_(result.roll(len(result) // 2))

    ranks.spoil = spoil
    for op in ("all_gather", "all_to_all"):
        for numerics in ranks.run(lambda s, op=op: collective(s, op=op, bytes=960).numerics()):
            assert not numerics.finite


def test_what_never_came_is_found(group):
    ranks = group(2)
    ranks.all_gather_into_tensor = lambda _output, _given: None
    for numerics in ranks.run(lambda s: collective(s, op="all_gather", bytes=960).numerics()):
        assert numerics.loss == 0
        assert numerics.reference_loss == 480


def test_sums_stay_finite_however_often_they_are_taken_in_place(group):
    ranks = group(2)
    seen = []

    def spoil(_rank, result):
        seen.append(result.clone())

    ranks.spoil = spoil
    ranks.run(lambda s: [collective(s, op="all_reduce", bytes=256).step() for _ in range(1)])
    assert len(seen) == 2 * calls_in_a_step(256, CPU)
    assert all(not one.any() for one in seen)


# ---- a step -----------------------------------------------------------------------------


def test_a_step_is_so_many_calls_that_the_device_is_timed():
    gpu = torch.device("cuda")
    assert [calls_in_a_step(size, gpu) for size in (8, 2**20, 2**24, 2**26, 2**30)] == [
        50, 50, 4, 1, 1,
    ]  # fmt: skip
    assert [calls_in_a_step(size, CPU) for size in (8, 2**18, 2**20, 2**30)] == [50, 4, 1, 1]


def test_a_call_is_all_ranks_together(group):
    ranks = group(2)

    def program(setting):
        workload = collective(setting, op="all_reduce", bytes=2**19)
        workload.step()
        return workload.items_per_step, workload.item

    assert ranks.run(program) == [(2, "call"), (0, "call")]
    assert ranks.calls == ["all_reduce"] * 2


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Invalid scalar type"),
        RuntimeError("Input tensor data type is not supported for NCCL process group: UInt32"),
        NotImplementedError("no"),
    ],
)
def test_what_the_backend_cannot_do_is_a_skip(monkeypatch, error):
    stand_in = ThreadGroup(2)

    def refuse(_tensor):
        raise error

    stand_in.all_reduce = refuse
    monkeypatch.setattr(module, "dist", stand_in)
    step = collective(Setting(CPU, ranks=2), op="all_reduce", bytes=64).step
    with pytest.raises(UnsupportedError, match=f"threads does not support this: {error}"):
        step()


def test_what_does_not_fit_is_a_skip_with_both_figures(monkeypatch):
    monkeypatch.setattr(device, "memory_bytes", lambda _device: 10 * 2**30)
    with pytest.raises(UnsupportedError) as raised:
        collective(Setting(CPU, ranks=4), op="all_to_all", bytes=2**31)
    assert str(raised.value) == (
        "the buffers of all_to_all need 4.0 GiB on each rank, but only 80% of 10.0 GiB of memory "
        "may be used"
    )


PAGE = Path(__file__).parents[1] / "docs" / "collectives.md"


def test_the_page_names_every_operation_and_dtype():
    text = PAGE.read_text()
    for name in (*OPS, *ITEM_BYTES):
        assert f"`{name}`" in text, name
