"""Which rank a process is, on which device, and how it meets the others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from bench_lib.micro.flags import Options
from bench_lib.model import UserError


@dataclass(frozen=True)
class Place:
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
    def is_first(self) -> bool:
        """Whether this rank speaks and writes for all."""
        return self.rank == 0


def under_torchrun(environ: Mapping[str, str]) -> bool:
    """Whether torchrun, or what sets its variables, has started this process."""
    return "LOCAL_RANK" in environ


def place_of(options: Options, environ: Mapping[str, str]) -> Place:
    """Return the place of a process that nobody else has to be started for."""
    if not under_torchrun(environ):
        index = options.device_ids[0] if options.device_ids else 0
        return Place(device_index=index)
    local_rank = _number(environ, "LOCAL_RANK", 0)
    ranks = _number(environ, "WORLD_SIZE", 1)
    rank = _number(environ, "RANK", local_rank)
    if rank >= ranks:
        raise UserError(
            f"the rank is {rank} and WORLD_SIZE is {ranks} in the environment; a rank is below "
            "WORLD_SIZE, and torchrun sets both"
        )
    index = local_rank
    if options.device_ids:
        # Of all ranks here, so that every one of them says the same.
        needed = max(local_rank + 1, _number(environ, "LOCAL_WORLD_SIZE", 1))
        if needed > len(options.device_ids):
            raise UserError(
                f"--device_ids names {len(options.device_ids)} devices, and {needed} ranks of this "
                "host need one each"
            )
        index = options.device_ids[local_rank]
    return Place(
        rank=rank,
        local_rank=local_rank,
        ranks=ranks,
        share=ranks,
        device_index=index,
        backend=options.dist_backend,
        launched=True,
    )


def places_here(options: Options, devices: int) -> list[Place]:
    """Return the places of the processes that ``--distributed_dataparallel`` starts here.

    As ROCm's tool has it, ``--rank`` and ``--world-size`` count invocations, each with a
    process for each of its devices, and the batch is split over the devices of one.
    """
    assert options.rank is not None
    assert options.world_size is not None
    ids = options.device_ids or tuple(range(max(1, devices)))
    return [
        Place(
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


def batch_of(options: Options, place: Place) -> int:
    """Return one rank's images; raises UserError where the ranks' would not be equal."""
    each, left = divmod(options.batch_size, place.share)
    if left or not each:
        near = [n * place.share for n in (each, each + 1) if n]
        raise UserError(
            f"--batch-size {options.batch_size} cannot be split over {place.share} ranks evenly, "
            f"and no image is dropped; take {' or '.join(map(str, near))}"
        )
    return each


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise UserError(f"{name} is {text!r} in the environment; the launcher has to set a number")
    return int(text)
