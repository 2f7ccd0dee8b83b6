"""Exact counts of a step: kernels, graph breaks, recompilations.

They cost nothing: a recorded graph has its nodes, and Dynamo counts what it compiles.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path
from typing import Any

import torch


def of_compiler() -> dict[str, int]:
    """Return Dynamo's graph breaks and recompilations since its reset; empty if it is unused.

    ``torch._dynamo`` is private: counts that a version stores elsewhere are left out.
    """
    counts: dict[str, int] = {}
    utils: Any = sys.modules.get("torch._dynamo.utils")
    frames: Any = sys.modules.get("torch._dynamo.convert_frame")
    with contextlib.suppress(AttributeError, TypeError):
        compilations = frames.FRAME_COMPILE_COUNTER.values()
        counts["recompilations"] = sum(count - 1 for count in compilations)
        counts["graph_breaks"] = sum(utils.counters["graph_break"].values())
    return counts


def countable() -> torch.cuda.CUDAGraph:
    """Return an empty graph that ``nodes`` can count once it is recorded, from torch 2.8 on."""
    try:
        return torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError:
        return torch.cuda.CUDAGraph()


def nodes(graph: torch.cuda.CUDAGraph, maps: Path = Path("/proc/self/maps")) -> int | None:
    """Return how many kernels, copies and fills a recorded graph holds; None if unknown.

    The graph can be replayed afterwards.
    """
    instantiate = getattr(graph, "instantiate", None)
    if instantiate is None:
        return None
    try:
        raw = ctypes.c_void_p(graph.raw_cuda_graph())
    except (AttributeError, RuntimeError):  # not kept: it is instantiated already
        return None
    instantiate()
    try:
        count, number = _counting(maps), ctypes.c_size_t()
        failed = count(raw, None, ctypes.byref(number))
    except (AttributeError, OSError, StopIteration):
        return None
    return None if failed else number.value


def _counting(maps: Path) -> Any:
    """Return the function that counts, from the driver's library that this process has loaded."""
    loaded = [line.split(maxsplit=5)[-1] for line in maps.read_text(errors="replace").splitlines()]
    name, function = ("libamdhip64.so", "hipGraphGetNodes")
    if torch.version.hip is None:
        name, function = ("libcuda.so", "cuGraphGetNodes")
    path = next(path for path in loaded if Path(path).name.startswith(name))
    return getattr(ctypes.CDLL(path), function)
