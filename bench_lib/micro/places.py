"""A process's rank and device, and how it meets the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench_lib.launch.launchers import device_index, meeting_point, who_am_i
from bench_lib.micro.flags import MicroOptions
from bench_lib.model import UserError


@dataclass(frozen=True)
class RankPlace:
    """One rank's place among all."""

    rank: int = 0
    local_rank: int = 0
    ranks: int = 1
    share: int = 1
    """Ranks that the batch is split over."""
    device_index: int = 0
    backend: str | None = None
    url: str | None = None
    launched: bool = False
    """Whether a launcher started this process."""

    @property
    def is_rank(self) -> bool:
        """Whether it was started as one of several, which may be one."""
        return self.ranks > 1 or self.launched

    @property
    def name(self) -> str:
        """``rank 1``; empty where there is but one."""
        return f"rank {self.rank}" if self.ranks > 1 else ""

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks and writes for all."""
        return self.rank == 0


def place_of(options: MicroOptions, environ: Mapping[str, str]) -> RankPlace:
    """Return the place of a process that nobody else has to be started for.

    Raises UserError, on every rank the same, for fewer devices than ranks of this host.
    """
    here = who_am_i(environ)
    if here.launcher is None:
        index = options.device_ids[0] if options.device_ids else 0
        return RankPlace(device_index=index)
    index = device_index(here, environ)
    if options.device_ids:
        # Of all ranks here, so that every one of them says the same.
        needed = max(here.local_rank + 1, here.local_ranks or 1)
        if needed > len(options.device_ids):
            raise UserError(
                f"--device_ids names {len(options.device_ids)} devices, and {needed} ranks of this "
                "host need one each"
            )
        index = options.device_ids[here.local_rank]
    return RankPlace(
        rank=here.rank,
        local_rank=here.local_rank,
        ranks=here.ranks,
        share=here.ranks,
        device_index=index,
        backend=options.dist_backend,
        url=None if here.ranks == 1 else meeting_point(here, environ).url,
        launched=True,
    )


def places_here(options: MicroOptions, devices: int) -> list[RankPlace]:
    """Return the places of the processes that ``--distributed_dataparallel`` starts here.

    As ROCm's tool has it, ``--rank`` and ``--world-size`` count invocations, each with a
    process for each of its devices, and the batch is split over the devices of one.
    """
    assert options.rank is not None
    assert options.world_size is not None
    ids = options.device_ids or tuple(range(max(1, devices)))
    return [
        RankPlace(
            rank=options.rank * len(ids) + local_rank,
            local_rank=local_rank,
            ranks=options.world_size * len(ids),
            share=len(ids),
            device_index=index,
            backend=options.dist_backend,
            url=options.dist_url,
            launched=True,
        )
        for local_rank, index in enumerate(ids)
    ]


def batch_of(options: MicroOptions, place: RankPlace) -> int:
    """Return one rank's images; raises UserError where the ranks' would not be equal."""
    each, left = divmod(options.batch_size, place.share)
    if left or not each:
        near = [n * place.share for n in (each, each + 1) if n]
        raise UserError(
            f"--batch-size {options.batch_size} cannot be split over {place.share} ranks evenly, "
            f"and no image is dropped; take {' or '.join(map(str, near))}"
        )
    return each
