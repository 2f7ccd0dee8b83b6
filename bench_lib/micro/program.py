"""The program: a single process, a launcher's rank, or one that starts a process for each device.

Exit status: 0 success, 1 not measured, stored or written, 2 usage error, 130 interrupted, 141 the
reader of the output closed it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
from collections.abc import Sequence

from bench_lib.launch.launchers import who_am_i
from bench_lib.micro.flags import MicroOptions, RankPlace, place_of, places_here, read_options
from bench_lib.model import UserError
from bench_lib.worker.zygote import importing_torch

INTERRUPTED, CLOSED = 130, 141
THEIRS = ("INFO: ", "Initializing process group", "Rendezvous complete")
"""Prefixes of the lines that ROCm's tool prints for each rank."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    speaks = True
    try:
        speaks = who_am_i(os.environ).rank == 0
        options = read_options(sys.argv[1:] if argv is None else argv)
        if who_am_i(os.environ).launcher or not options.distributed_dataparallel:
            return _rank(options, place_of(options, os.environ))
        return _start_ranks(options)
    except UserError as error:
        if speaks:  # every rank reads the same flags
            _complain(error)
        return 2
    except KeyboardInterrupt:
        if speaks:
            _complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # such as head or grep -m1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED


def _complain(error: object, rank: str = "") -> None:
    where = f"{rank}: " if rank else ""
    print(f"bench-lib micro: error: {where}{error}", file=sys.stderr, flush=True)


def _start_ranks(options: MicroOptions) -> int:
    """Start a process for each device of this invocation, and wait for them."""
    with importing_torch():
        import torch
        from torch.multiprocessing.spawn import ProcessExitedException, spawn

    places = places_here(options, torch.cuda.device_count())
    if len(places) == 1:
        return _rank(options, places[0])
    try:
        spawn(_spawned, args=(options, places), nprocs=len(places))  # type: ignore[no-untyped-call]  # torch's own
    except ProcessExitedException as error:
        return int(error.exit_code)
    return 0


def _spawned(index: int, options: MicroOptions, places: Sequence[RankPlace]) -> None:
    sys.exit(_rank(options, places[index]))


def _rank(options: MicroOptions, place: RankPlace) -> int:
    """Run one rank; on failure it exits at once, since the others may wait for it."""
    with importing_torch():
        from bench_lib.micro.session import NotMeasuredError

    try:
        return _measured(options, place)
    except (UserError, NotMeasuredError) as error:
        status = 2 if isinstance(error, UserError) else 1
        _complain(error, place.name)
    except KeyboardInterrupt:
        if place.ranks == 1:
            raise
        status = INTERRUPTED  # the parent prints the message
    finally:
        gc.unfreeze()  # otherwise extensions report leaks on stderr
    if place.ranks > 1:
        os._exit(status)
    return status


def _print(text: str) -> None:
    """Print a line in one piece: print() writes its end apart where Python does not buffer."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _say(mark: str, text: str) -> None:
    """Print a line, marked unless ROCm's tool prints it for each rank."""
    _print(text if not text or text.startswith(THEIRS) else f"{mark}{text}")


def _measured(options: MicroOptions, place: RankPlace) -> int:
    from bench_lib import backends
    from bench_lib.engine.engine import opened
    from bench_lib.engine.settings import Settings
    from bench_lib.micro import lines
    from bench_lib.micro.ending import Ending
    from bench_lib.micro.session import check_compiling, run

    check_compiling(options, place)
    say = functools.partial(_say, f"[GPU {place.rank}] " if place.ranks > 1 else "")
    trouble: list[str] = []
    with contextlib.ExitStack() as stack:
        ending = None
        if place.is_first:
            # If torch cannot open the device, the session reports that.
            devices = backends.detect()
            device = devices[min(place.device_index, len(devices) - 1)]
            engine = None
            if options.history is not None:
                settings = Settings(options.history, command="micro", judged=False, say=say)
                engine = stack.enter_context(opened(device, settings))
            ending = Ending(options, device, engine, _print, trouble)
        seen = run(options, place, say)
        trouble += seen.failed
        _print("\n".join(seen.captured))
        _print("\n".join(lines.rank_summary(options, place, seen.measurement)))
        if ending is not None:
            ending.conclude(seen)
    for message in dict.fromkeys(trouble):
        _complain(message, place.name)
    return 1 if trouble else 0
