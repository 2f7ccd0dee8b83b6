"""What several ranks lose by, from the kernels of rank 0 and the ranks' own times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench_lib.model import Kernel, KernelTable, RankSample
from bench_lib.studies.losses import (
    COLLECTIVES,
    GRADIENTS,
    HOST,
    KERNELS,
    STRAGGLER,
    RankStep,
    in_words,
    losses,
)

CONV = Kernel("sm90_xmma_fprop_implicit_gemm_f16", 50, 0.008)
RELU = Kernel("vectorized_elementwise_kernel<4, threshold>", 49, 0.001)
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
DIVIDE = "vectorized_elementwise_kernel<4, MulFunctor<float>>"
ALONE = RankStep(0.010, KernelTable("torch.profiler", 5, [CONV, RELU], 0.009))


def ranks(count: int, *, exposed=0.0, hidden=0.0, waited=0.0, divided=0.0, slower=0.0, idle=0.0):
    """Return a step of so many ranks with losses planted, in seconds."""
    kernels = [
        replace(CONV, total_s=CONV.total_s + slower),
        RELU,
        Kernel(REDUCE, 4, exposed + waited + hidden),
        Kernel(DIVIDE, 4, divided),
    ]
    more = exposed + waited + divided + slower
    own = [[0.009 + (waited if rank == count - 1 else 0.0)] * 6 for rank in range(count)]
    return RankStep(
        ALONE.seconds + more + idle,
        KernelTable("torch.profiler", 5, kernels, 0.009 + more),
        [RankSample(rank, rank, None, [0.01], None, own_s=own[rank]) for rank in range(count)],
    )


PLANTED = {"exposed": 0.0004, "waited": 0.0003, "divided": 0.0002, "slower": 0.0001, "idle": 5e-5}
PARTS = {
    "exposed": COLLECTIVES,
    "waited": STRAGGLER,
    "divided": GRADIENTS,
    "slower": KERNELS,
    "idle": HOST,
}


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("planted", [{name: each} for name, each in PLANTED.items()] + [PLANTED])
def test_each_planted_loss_is_found_in_its_part_and_in_no_other(count, planted):
    several = ranks(count, hidden=0.002, **planted)
    found = {loss.part: loss for loss in losses(ALONE, several)}
    expected = {part: planted.get(name, 0.0) for name, part in PARTS.items()}
    assert {part: loss.longer_s for part, loss in found.items()} == pytest.approx(expected)
    kept = 1 - sum(loss.share for loss in found.values())
    assert kept == pytest.approx(ALONE.seconds / several.seconds)


def test_waiting_is_communication_where_ranks_have_no_times_of_their_own():
    several = ranks(4, exposed=0.0004, waited=0.0003)
    apart = [replace(sample, own_s=[]) for sample in several.per_rank]
    found = {loss.part: loss.longer_s for loss in losses(ALONE, replace(several, per_rank=apart))}
    assert found[COLLECTIVES] == pytest.approx(0.0007)
    assert found[STRAGGLER] == 0.0


def test_ranks_that_share_the_work_of_one_are_held_against_their_part_of_it():
    quarter = [replace(each, total_s=each.total_s / 4) for each in (CONV, RELU)]
    table = KernelTable("torch.profiler", 5, [*quarter, Kernel(REDUCE, 4, 0.0005)], 0.00275)
    found = {
        loss.part: loss.longer_s for loss in losses(ALONE, RankStep(0.003, table), divided_by=4)
    }
    assert found == pytest.approx(
        {COLLECTIVES: 0.0005, STRAGGLER: 0.0, GRADIENTS: 0.0, KERNELS: 0.0, HOST: 0.0}
    )


def test_without_kernels_of_both_nothing_is_known():
    several = ranks(2, exposed=0.001)
    assert losses(replace(ALONE, kernels=None), several) == []
    assert losses(ALONE, replace(several, kernels=replace(several.kernels, busy_s=None))) == []


def test_the_dearest_part_is_told_first():
    found = losses(ALONE, ranks(4, exposed=0.0002, divided=0.0003))
    assert in_words(found) == (
        "by median steps 95.2% of one rank's speed: gradients -2.9%, collectives -1.9%, "
        "straggler 0.0%, other kernels 0.0%, host 0.0%"
    )
