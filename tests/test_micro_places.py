"""Which rank a process is, on which device, and how many of the images are its own."""

import pytest

from bench_lib.micro.flags import RankPlace, batch_of, place_of, places_here, read_options
from bench_lib.model import UserError


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in torchrun().items():  # so that flags are not held against a lone process
        monkeypatch.setenv(name, value)


def options(*words):
    return read_options(["--network", "resnet50", *words])


MEETING = {"MASTER_ADDR": "node-1", "MASTER_PORT": 29400}


def torchrun(**variables):
    given = {
        "RANK": 0,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": 1,
        "LOCAL_WORLD_SIZE": 1,
        **MEETING,
        **variables,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def manual(*words):
    meeting = ["--dist-backend", "gloo", "--dist-url", "tcp://127.0.0.1:4332"]
    with pytest.MonkeyPatch.context() as patch:
        for name in torchrun():
            patch.delenv(name)
        return options("--distributed_dataparallel", *meeting, *words)


# ---- alone ------------------------------------------------------------------------------------


def test_a_process_that_nobody_launched_is_the_only_one():
    place = place_of(options(), {})
    assert place == RankPlace()
    assert (place.rank, place.ranks, place.share, place.device_index) == (0, 1, 1, 0)
    assert (place.backend, place.url) == (None, None)
    assert place.is_first
    assert batch_of(options("--batch-size", "7"), place) == 7


def test_a_lone_process_uses_the_device_that_it_is_told():
    assert place_of(options("--device_ids", "3"), {}) == RankPlace(device_index=3)


# ---- under torchrun ---------------------------------------------------------------------------


def test_torchruns_variables_say_where_a_rank_is():
    variables = torchrun(RANK=1, LOCAL_RANK=1, WORLD_SIZE=2, LOCAL_WORLD_SIZE=2)
    place = place_of(options("--dist-backend", "gloo"), variables)
    expected = RankPlace(
        rank=1,
        local_rank=1,
        ranks=2,
        share=2,
        device_index=1,
        backend="gloo",
        url="tcp://node-1:29400",
        launched=True,
    )
    assert place == expected
    assert not place.is_first


@pytest.mark.parametrize(("node", "local"), [(0, 0), (0, 3), (2, 0), (2, 1)])
def test_on_several_hosts_the_rank_is_not_the_local_rank(node, local):
    variables = torchrun(
        RANK=4 * node + local, LOCAL_RANK=local, WORLD_SIZE=12, LOCAL_WORLD_SIZE=4, NODE_RANK=node
    )
    place = place_of(options("--batch-size", "96"), variables)
    assert (place.rank, place.local_rank, place.ranks) == (4 * node + local, local, 12)
    assert place.device_index == local
    assert place.is_first == (node == 0 and local == 0)
    assert batch_of(options("--batch-size", "96"), place) == 8


@pytest.mark.parametrize(("local", "device"), [(0, 5), (1, 2)])
def test_under_torchrun_device_ids_are_those_of_this_host(local, device):
    variables = torchrun(RANK=2 + local, LOCAL_RANK=local, WORLD_SIZE=4, LOCAL_WORLD_SIZE=2)
    assert place_of(options("--device_ids", "5,2"), variables).device_index == device


@pytest.mark.parametrize("local", [0, 1, 2])
def test_too_few_device_ids_are_refused_by_every_rank_in_the_same_words(local):
    variables = torchrun(RANK=local, LOCAL_RANK=local, WORLD_SIZE=3, LOCAL_WORLD_SIZE=3)
    with pytest.raises(UserError) as caught:
        place_of(options("--device_ids", "4,5"), variables)
    assert str(caught.value) == (
        "--device_ids names 2 devices, but the 3 ranks of this host need one each"
    )


# ---- with --distributed_dataparallel ----------------------------------------------------------


def test_an_invocation_starts_a_rank_on_each_of_its_devices():
    here = places_here(manual("--rank", "1", "--world-size", "3", "--device_ids", "2,0"), 8)
    url = "tcp://127.0.0.1:4332"
    assert here == [
        RankPlace(2, 0, ranks=6, share=2, device_index=2, backend="gloo", url=url, launched=True),
        RankPlace(3, 1, ranks=6, share=2, device_index=0, backend="gloo", url=url, launched=True),
    ]


@pytest.mark.parametrize(("devices", "ranks"), [(0, 1), (1, 1), (4, 4)])
def test_without_device_ids_all_devices_are_used(devices, ranks):
    here = places_here(manual("--rank", "0", "--world-size", "1"), devices)
    assert [place.device_index for place in here] == list(range(ranks))
    assert [place.rank for place in here] == list(range(ranks))
    assert {place.ranks for place in here} == {ranks}
    assert [place.is_first for place in here] == [True, *[False] * (ranks - 1)]


# ---- the batch --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "share", "each"), [(64, 1, 64), (64, 4, 16), (4, 4, 1), (2048, 8, 256)]
)
def test_the_batch_is_split_evenly(batch, share, each):
    place = RankPlace(ranks=share, share=share)
    assert batch_of(options("--batch-size", str(batch)), place) == each


@pytest.mark.parametrize(
    ("batch", "share", "near"),
    [
        (10, 4, "8 or 12"),
        (65, 64, "64 or 128"),
        (3, 4, "4"),
        (1, 2, "2"),
    ],
)
def test_a_batch_that_cannot_be_split_is_refused_with_the_nearest(batch, share, near):
    with pytest.raises(UserError) as caught:
        batch_of(options("--batch-size", str(batch)), RankPlace(ranks=share, share=share))
    assert str(caught.value) == (
        f"--batch-size {batch} cannot be split evenly over {share} ranks; use {near}"
    )
