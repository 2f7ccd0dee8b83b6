"""Ranks that are threads of one process: what collectives are is tested without starting any."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from bench_lib.worker.workload import Setting

WAIT_S = 30.0


class ThreadGroup:
    """Stands in for ``torch.distributed``: its default group is the threads of ``run``."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.calls: list[str] = []
        self.spoil: Callable[[int, Tensor], None] = lambda _rank, _result: None
        """May change what a rank gets."""
        self._here = threading.local()
        self._barrier = threading.Barrier(ranks)
        self._given: list[Any] = [None] * ranks

    def run(self, program: Callable[[Setting], Any]) -> list[Any]:
        """Run a program on every rank; returns what each returned."""

        def be(rank: int) -> Any:
            self._here.rank = rank
            try:
                return program(Setting(torch.device("cpu"), rank, rank, self.ranks))
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(self.ranks) as pool:
            return [done.result(WAIT_S) for done in [pool.submit(be, r) for r in range(self.ranks)]]

    def get_backend(self) -> str:
        return "threads"

    def all_reduce(self, tensor: Tensor) -> None:
        self._meet("all_reduce", tensor, tensor, self._sum)

    def broadcast(self, tensor: Tensor, src: int) -> None:
        self._meet("broadcast", tensor, tensor, lambda given, _rank: given[src].clone())

    def all_gather_into_tensor(self, output: Tensor, given: Tensor) -> None:
        self._meet("all_gather", given, output, lambda parts, _rank: torch.cat(parts))

    def reduce_scatter_tensor(self, output: Tensor, given: Tensor) -> None:
        """Sum, and leave each rank its part."""
        self._meet(
            "reduce_scatter", given, output, lambda parts, rank: self._part(self._sum(parts), rank)
        )

    def all_to_all_single(self, output: Tensor, given: Tensor) -> None:
        """Leave each rank its part of all."""
        self._meet(
            "all_to_all",
            given,
            output,
            lambda parts, rank: torch.cat([self._part(part, rank) for part in parts]),
        )

    def _meet(
        self,
        name: str,
        given: Tensor,
        output: Tensor,
        result: Callable[..., Tensor],
    ) -> None:
        rank = self._here.rank
        if rank == 0:
            self.calls.append(name)
        self._given[rank] = given.clone()
        self._barrier.wait(WAIT_S)
        answer = result(list(self._given), rank)
        if output.dtype != torch.int64 or name != "all_reduce":  # which is a count of them
            self.spoil(rank, answer)
        self._barrier.wait(WAIT_S)
        output.copy_(answer)

    def _sum(self, parts: list[Tensor], _rank: int = 0) -> Tensor:
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return total

    def _part(self, whole: Tensor, rank: int) -> Tensor:
        return whole.chunk(self.ranks)[rank].clone()
