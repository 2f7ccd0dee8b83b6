"""The autotuner's choices for a case, and how to make the compiler choose them again.

Inductor times some configurations of each Triton kernel and keeps the fastest.  Close calls go one
way with one empty cache and the other way with the next.  The autotuner holds a kernel's
configuration in memory, whichever cache it came from.

``torch._inductor`` is private: any difference from torch 2.11 to 2.15 makes the choices unknown.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from bench_lib.model import NOTHING_CHOSEN, Choice, Choices
from bench_lib.worker import caches

CODE = "torch._inductor.codecache"
DESCENT = "coordinate_descent_tuning"
TILE = re.compile(r"^( *)([A-Z][A-Z0-9_]*)( *: *tl\.constexpr *= *)([^\n]+)$", re.MULTILINE)
"""A constant of a template, such as ``BLOCK_M : tl.constexpr = 128``."""
RESOURCES = {"registers": "n_regs", "spills": "n_spills", "shared": "shared"}
"""What a compiled kernel uses, and Triton's names for that."""
NO_MODULE, NO_KERNEL = NOTHING_CHOSEN


def compiled_so_far() -> int:
    """Return how many graphs Inductor has compiled or loaded in this process."""
    return len(_modules())


def _modules() -> list[Any]:
    code = sys.modules.get(CODE)
    return list(getattr(getattr(code, "PyCodeCache", None), "modules", ()))


def made(since: int) -> Choices:
    """Return the choices of graphs that were compiled or loaded since ``compiled_so_far``."""
    graphs = [module for module in _modules()[since:] if hasattr(module, "call")]
    if not graphs:
        return Choices({}, NO_MODULE)
    kernels = [(n, k) for graph in graphs for n, k in vars(graph).items() if _is_autotuner(k)]
    if not kernels:
        return Choices({}, NO_KERNEL)
    try:
        choices = {name: _choice(kernel) for name, kernel in _named(kernels) if kernel.launchers}
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        cause = f"{type(error).__name__}: {error}"
        return Choices({}, f"this version of torch stores them differently: {cause}")
    return Choices(dict(sorted(choices.items())), "" if choices else "no kernel has been tuned")


def _is_autotuner(value: object) -> bool:
    return not isinstance(value, type) and hasattr(value, "launchers") and hasattr(value, "configs")


def _named(kernels: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Give kernels unique names: each graph numbers its own from 0."""
    counts: dict[str, int] = {}
    for name, kernel in kernels:
        counts[name] = counts.get(name, 0) + 1
        yield (name if counts[name] == 1 else f"{name}.{counts[name]}"), kernel


def _choice(kernel: Any) -> Choice:
    """Return a kernel's configuration; raises ValueError if it has not decided yet."""
    if len(kernel.launchers) > 1:
        raise ValueError(f"{kernel.fn.__name__} still has {len(kernel.launchers)} configurations")
    config = kernel.launchers[0].config
    chosen: dict[str, Any] = {
        **config.kwargs,
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
    }
    source = str(kernel.fn.src)
    is_template = str(getattr(kernel.heuristic_type, "name", "")) == "TEMPLATE"
    if is_template:
        for tile in TILE.finditer(source):
            text = tile[4].strip()
            chosen[tile[2]] = int(text) if text.lstrip("-").isdigit() else text
        source = TILE.sub(r"\1\2", source)
    kept = {name: value for name, value in sorted(chosen.items()) if isinstance(value, (int, str))}
    key = _key(str(kernel.size_hints), source)
    # As far as Triton knows them for this device.
    values = {name: getattr(kernel.launchers[0], its, None) for name, its in RESOURCES.items()}
    resources = {name: value for name, value in values.items() if isinstance(value, int)}
    return Choice(key, kept, is_template, resources)


def _key(sizes: str, source: str) -> str:
    """Return the key by which torch looks a kernel up."""
    from torch._inductor.runtime.triton_heuristics import generate_lookup_hash_from_source_code

    return str(generate_lookup_hash_from_source_code(sizes, source))


@contextlib.contextmanager
def handed(table: Mapping[str, Mapping[str, int | str]], *, keeps: bool = True) -> Iterator[None]:
    """Have the compiler make a table's autotuning choices, in caches that only this table fills.

    They stay for the next time unless ``keeps`` is false; then the compiler tunes whatever the
    table lacks.  Works only in a process that has not compiled anything yet.  A torch that does not
    accept choices tunes everything.
    """
    import torch
    from torch._inductor import config

    chosen = {source: dict(of_kernel) for source, of_kernel in table.items()}
    identity = json.dumps([torch.__version__, chosen], sort_keys=True)
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    with contextlib.ExitStack() as stack:
        stack.enter_context(caches.apart(name) if keeps else caches.emptied(caches.COMPILERS))
        if hasattr(config, "autotune_lookup_table"):
            stack.enter_context(config.patch(autotune_lookup_table=chosen))
        if chosen:
            stack.enter_context(_without_descent(chosen))
        yield


@contextlib.contextmanager
def _without_descent(table: Collection[str]) -> Iterator[None]:
    """Keep ``max-autotune`` from tuning a given configuration further by coordinate descent.

    It would time dozens of each kernel's neighbours, and might choose another one.
    """
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    tune: Any = getattr(CachingAutotuner, DESCENT, None)

    def tune_unless_given(kernel: Any, launcher: Any, *args: Any, **kwargs: Any) -> Any:
        if _key(str(kernel.size_hints), str(kernel.fn.src)) not in table:
            return tune(kernel, launcher, *args, **kwargs)
        launcher.config.found_by_coordesc = True
        return launcher

    if tune is None:
        yield
        return
    setattr(CachingAutotuner, DESCENT, tune_unless_given)
    try:
        yield
    finally:
        setattr(CachingAutotuner, DESCENT, tune)
