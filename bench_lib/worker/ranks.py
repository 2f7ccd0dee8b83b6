"""The program that launchers start: each rank stays, and forks processes that measure cases."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import socket
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from bench_lib.launch.launchers import LOCALHOST, Placement, device_index
from bench_lib.launch.wire import write_whole
from bench_lib.model import UserError
from bench_lib.worker.caches import COMPILERS
from bench_lib.worker.clock import clock_of
from bench_lib.worker.device import cudnn_version, open_device, versions
from bench_lib.worker.host import RankLog
from bench_lib.worker.measure import MeasuringContext
from bench_lib.worker.process import answer, fault_of
from bench_lib.worker.workloads import Setting
from bench_lib.worker.zygote import LOOK_S, is_there

MEETING_S = 300.0
"""Nodes of a cluster may start minutes apart; the case's own time limit is often shorter."""
MEETING_FILE = "meeting"
WATCHDOG_S = 0.2
"""NCCL's watchdog looks for finished collectives every 0.1 s."""
STORES: Any = dist
"""Its stores have no type annotations."""


class MeetingError(RuntimeError):
    """The ranks cannot meet."""


def serve_cases(group: Path, place: Placement, log: RankLog) -> None:
    """Answer a group's orders on this rank as they come, until a case ends in a fault.

    The i-th is in the file ``i.json``, and its outcome goes into ``i/rank-N.json``.
    """
    context: Any = None
    facts: dict[str, Any] = {}
    failed: dict[str, Any] = {}
    first = _order(group, 0)
    if first.get("discards"):
        os.environ.update({name: str(group / name) for name in COMPILERS})
    case = first.get("measure") or first["profile"]
    try:
        context, facts = prepared(case["launch"]["ranks"], group, place, log.enter)
    except (RuntimeError, OSError, UserError) as error:
        traceback.print_exc()
        failed = {"fault": fault_of(error)}
        if isinstance(error, (MeetingError, UserError)):
            failed["fault"] |= {"kind": "protocol", "message": str(error)}
    for number in itertools.count():
        order = _order(group, number)
        if not failed:
            if number > 0:
                _let_go(context.setting)
            context = dataclasses.replace(context, known=order.get("known", ()))
        outcome = {**(failed or answer(order, context)), **facts}
        outcome |= {"rank": place.rank, "ended_s": time.time(), "phase": log.phase}
        answers = group / str(number)
        answers.mkdir(exist_ok=True)
        write_whole(answers / f"rank-{place.rank}.json", outcome)
        if "fault" in outcome:
            # The other ranks may be in a collective that will not end now, and so may our device.
            return


def _let_go(setting: Setting) -> None:
    """Have NCCL free the tensors of the last collective, which it keeps until the next one.

    They would count as held before the next case, and be gone in it: its memory was 100 MiB less
    after ResNet-50's training.
    """
    if setting.ranks > 1 and setting.device.type == "cuda":
        torch.cuda.synchronize(setting.device)
        time.sleep(WATCHDOG_S)
        dist.all_reduce(torch.zeros(1, device=setting.device))


def _order(group: Path, number: int) -> dict[str, Any]:
    """Wait for the order of a group's case."""
    file = group / f"{number}.json"
    while not is_there(file):
        time.sleep(LOOK_S)
    order: dict[str, Any] = json.loads(file.read_text())
    return order


def prepared(
    ranks: int, out: Path, place: Placement, enter: Callable[[str], None]
) -> tuple[MeasuringContext, dict[str, Any]]:
    """Open the device and join the others; returns the measuring context and this rank's facts.

    ``ranks`` is the case's number of ranks.  Raises MeetingError if the ranks cannot meet,
    RuntimeError if the device does not open.
    """
    if ranks != place.ranks:
        raise MeetingError(f"the case has {ranks} ranks, but {place.ranks} were started")
    enter("open the device")
    device, description = open_device(device_index(place, os.environ))
    if place.ranks > 1:
        enter("meet the other ranks")
    store = met(place, out)
    group = joined(device, place.ranks, rank=place.rank, store=store)
    setting = Setting(device, rank=place.rank, local_rank=place.local_rank, ranks=place.ranks)
    context = MeasuringContext(
        setting=setting,
        clock=clock_of(device),
        context_id=f"rank-{place.rank}",
        device_uuid=description.uuid,
        phase=enter,
        agree=group.agree,
    )
    return context, about_rank(setting)


def about_rank(setting: Setting) -> dict[str, Any]:
    """Return the facts of a rank that go with its measurement."""
    return {
        "rank": setting.rank,
        "local_rank": setting.local_rank,
        "pid": os.getpid(),
        "versions": versions(),
        "cudnn": cudnn_version(setting.device),
        "threads": torch.get_num_threads(),
    }


def met(place: Placement, folder: Path) -> Any | None:
    """Return the store in which the ranks of a launch find each other; None for one rank.

    Rank 0 takes a free port and writes it into the ranks' ``folder``.  On several hosts its address
    is MASTER_ADDR, or else its host's name.  Raises MeetingError if they cannot meet.
    """
    if place.ranks == 1:
        return None
    file = folder / MEETING_FILE
    if place.rank == 0:
        public = os.environ.get("MASTER_ADDR") or socket.gethostname()
        host = LOCALHOST if place.is_on_one_host else public
        store = _store(host, 0, listens=True)
        write_whole(file, [host, store.port])
        return store
    deadline = time.monotonic() + MEETING_S
    while not is_there(file):
        if time.monotonic() > deadline:
            raise MeetingError(
                f"rank 0 did not write its address to {file} within {MEETING_S:g} s; if the hosts "
                "do not share that folder, set BENCH_LIB_SHARED to one that they do"
            )
        time.sleep(LOOK_S)
    host, port = json.loads(file.read_text())
    return _store(host, port, listens=False)


def _store(host: str, port: int, *, listens: bool) -> Any:
    limit = timedelta(seconds=MEETING_S)
    try:
        return STORES.TCPStore(host, port, None, listens, limit, wait_for_workers=False)
    except RuntimeError as error:
        raise MeetingError(_why_not(host, port, error)) from error


def _why_not(host: str, port: int, error: Exception) -> str:
    """Return why the ranks cannot meet at a port."""
    if "EADDRINUSE" in str(error) or "already in use" in str(error):
        return (
            f"port {port} of {socket.gethostname()} is in use; set MASTER_PORT to another, or "
            "unset MASTER_ADDR and MASTER_PORT"
        )
    first = str(error).strip().partition("\n")[0]
    return f"the ranks cannot connect at {host}:{port}: {first}"


class RankGroup:
    """The ranks of a launch, as seen by one of them, which may be the only one."""

    def __init__(self, host: Any = None) -> None:
        """Take a process group over the host: one on the device would be timed too."""
        self._host = host

    def agree(self, value: float) -> float:
        """Return the largest of all ranks' values, in their unit."""
        if self._host is None:
            return value
        largest = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self._host)
        return float(largest)

    def gathered(self, outcome: dict[str, Any]) -> list[dict[str, Any]]:
        """Return every rank's outcome, by rank, to every rank."""
        if self._host is None:
            return [outcome]
        outcomes: list[Any] = [None] * dist.get_world_size(self._host)
        dist.all_gather_object(outcomes, outcome, group=self._host)
        return outcomes

    def leave(self) -> None:
        """Leave the others; if that fails, files already written are not lost."""
        if self._host is not None:
            with contextlib.suppress(Exception):
                dist.destroy_process_group()


def joined(
    device: torch.device,
    ranks: int,
    *,
    backend: str | None = None,
    url: str | None = None,
    rank: int = -1,
    store: Any | None = None,
) -> RankGroup:
    """Join the ranks of a launch, in a store or at a ``url``.

    Raises RuntimeError or ValueError if they cannot meet.
    """
    if ranks == 1:
        return RankGroup()
    backend = backend or ("nccl" if device.type == "cuda" else "gloo")
    own = None if store is None else STORES.PrefixStore("group", store)
    try:
        dist.init_process_group(backend, url, store=own, rank=rank, world_size=ranks)
    except RuntimeError as error:
        address = urlsplit(url or "")
        if address.scheme != "tcp" or address.hostname is None or address.port is None:
            raise
        raise MeetingError(_why_not(address.hostname, address.port, error)) from error
    return RankGroup(dist.new_group(backend="gloo"))
