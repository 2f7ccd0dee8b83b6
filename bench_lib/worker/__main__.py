"""``python -m bench_lib.worker``: serves cases, alone or as a rank, profiles, or lists networks."""

from __future__ import annotations

import json
import os
import socket
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from bench_lib.launch.launchers import who_am_i
from bench_lib.launch.wire import BEHIND_VARIABLE
from bench_lib.model import UserError
from bench_lib.worker.host import RankLog
from bench_lib.worker.zygote import import_torch, importing_torch, serve, serve_ranks


def main(arguments: list[str]) -> int:
    """Run one of the worker's forms; returns the exit status."""
    if (behind := os.environ.get(BEHIND_VARIABLE)) is not None:
        _find_installed_first(behind)
    try:
        return _run(arguments)
    except UserError as error:
        sys.stderr.write(f"bench-lib: {error}\n")
        return 2


def _find_installed_first(behind: str) -> None:
    """Put our folder and others, which have another environment's code, behind all else."""
    here = str(Path.cwd())
    if sys.path[0] == here:  # from `python -m`
        del sys.path[0]
    sys.path += [here, *map(os.path.abspath, filter(None, behind.split(os.pathsep)))]
    # Editable installs may add a finder of their own, after the one of these folders.  A PYTHONPATH
    # that was chosen for this side, after bench-lib's folder, comes before them.
    if os.pathsep not in os.environ["PYTHONPATH"]:
        sys.meta_path.sort(key=lambda finder: finder is PathFinder)


def _run(arguments: list[str]) -> int:
    form, *others = arguments
    if form == "serve":
        return serve()
    if form == "ranks" and len(others) == 1:
        return _rank(Path(others[0]))
    if form == "ranks":
        return _fork_ranks(Path(others[0]), int(others[1]))
    if form == "profile":
        with importing_torch():
            from bench_lib.worker import tracing

        return tracing.main(*map(Path, others))
    with importing_torch():  # for callers that must not import torch
        from bench_lib.worker.workloads.registry import networks

    json.dump({name: network.image_size for name, network in networks().items()}, sys.stdout)
    return 0


def _fork_ranks(folder: Path, ranks: int) -> int:
    """Fork ranks, placed by torchrun's variables, and import torch once for all of them."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with importing_torch():
        import_torch()
    for rank in range(ranks):
        if os.fork() == 0:
            own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            os.environ.update({name: str(value) for name, value in own.items()})
            return _rank(folder)
    os.wait()  # ranks serve until they are ended, so one that ends has failed, and ends the others
    return 1


def _rank(folder: Path) -> int:
    """Serve as a rank; its output goes to its own log from here on, even torch's import."""
    try:
        place = who_am_i(os.environ)
        log = RankLog(folder, place.rank)
    except OSError as error:
        sys.stderr.write(
            f"bench-lib: rank {place.rank} on {socket.gethostname()}: {folder}: {error.strerror}; "
            "all hosts must share the ranks' folder: set BENCH_LIB_SHARED to such a folder\n"
        )
        return 2
    log.enter("import torch")
    with importing_torch():
        import_torch()  # and no compiler: checking that children survive it would open a GPU
    from bench_lib.worker.ranks import serve_cases

    return serve_ranks(serve_cases, folder, place, log)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
