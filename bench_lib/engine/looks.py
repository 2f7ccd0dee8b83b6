"""A look into the kernels of cases that a device has measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from bench_lib.engine.device import HeldDevice
from bench_lib.launch.faults import CaseFault, CaseSkipped
from bench_lib.launch.files import temporary_folder
from bench_lib.launch.wire import ProfileRequest
from bench_lib.model import Case, Hardware, KernelTable, UserError
from bench_lib.profiling.profilers import with_torch

LATE = "time limit"
"""The kind of a fault after which trying again would take as long again."""


def look_into(
    held: HeldDevice,
    cases: Iterable[Case],
    side: str | None = None,
) -> Iterator[tuple[Case, KernelTable | str]]:
    """Profile cases that a device has measured: the kernels of each, or why there are none.

    They are those of the side in question unless another ``side`` is named, for cases of one rank.
    With several ranks they are the first one's.  If it fails in the context that the cases share,
    another tries once more, unless it took all its time.  Raises LaunchError if workers cannot be
    started at all, DeviceBusyError if somebody keeps a device of several ranks.
    """
    cases = list(cases)
    again = []
    for case, found in held.profile((c for c in cases if c.launch.ranks == 1), side):
        if isinstance(found, str) and not found.startswith(LATE):
            again.append(case)
        else:
            yield case, found
    yield from held.profile(again, side)
    for case in cases:
        if case.launch.ranks > 1:
            held.hold_for(case)
            held.close_ranks()
            yield case, _of_ranks(case, held.device)


def _of_ranks(case: Case, device: Hardware) -> KernelTable | str:
    with temporary_folder() as folder:
        try:
            return with_torch(case, device, Path(folder), ProfileRequest(5)).seen[0].kernels
        except (CaseFault, CaseSkipped, UserError) as error:
            return str(error)
