"""The program: alone, a rank under torchrun, or starting a process for each device.

Exit status: 0 done, 1 it could not be measured or fails its judgement, 2 the question was
wrong.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bench_lib.micro.flags import Options, read_options
from bench_lib.micro.places import Place, place_of, places_here, under_torchrun
from bench_lib.model import Hardware, UserError

if TYPE_CHECKING:
    from bench_lib.micro.beside import Beside
    from bench_lib.micro.keeping import Keeper
    from bench_lib.micro.session import Seen
    from bench_lib.roofline import Roofline


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    try:
        options = read_options(sys.argv[1:] if words is None else words)
    except UserError as error:
        if os.environ.get("RANK", "0") == "0":  # every rank reads the same flags
            _complain(error)
        return 2
    try:
        if under_torchrun(os.environ) or not options.distributed_dataparallel:
            return _rank(options, place_of(options, os.environ))
        return _start_ranks(options)
    except UserError as error:
        _complain(error)
        return 2


def _complain(error: Exception, place: Place | None = None) -> None:
    where = f"rank {place.rank}: " if place is not None and place.ranks > 1 else ""
    sys.stderr.write(f"bench-lib micro: error: {where}{error}\n")
    sys.stderr.flush()


def _start_ranks(options: Options) -> int:
    """Start a process for each device of this invocation, and wait for them."""
    import torch
    from torch.multiprocessing.spawn import ProcessExitedException, spawn

    places = places_here(options, torch.cuda.device_count())
    if len(places) == 1:
        return _rank(options, places[0])
    try:
        spawn(_spawned, args=(options, places), nprocs=len(places))  # type: ignore[no-untyped-call]
    except ProcessExitedException as error:
        return int(error.exit_code)
    return 0


def _spawned(index: int, options: Options, places: Sequence[Place]) -> None:
    sys.exit(_rank(options, places[index]))


def _rank(options: Options, place: Place) -> int:
    from bench_lib.micro.session import NotMeasuredError

    try:
        return _measured(options, place)
    except (UserError, NotMeasuredError) as error:
        _complain(error, place)
        if place.ranks > 1:  # the others may wait for this one, in a collective or at the door
            os._exit(2 if isinstance(error, UserError) else 1)
        return 2 if isinstance(error, UserError) else 1


def _measured(options: Options, place: Place) -> int:
    from bench_lib import hardware
    from bench_lib.micro import lines
    from bench_lib.micro.keeping import keeper as keeping
    from bench_lib.micro.session import printer, run

    say = printer(place, to_stderr=options.json)
    plain = printer(Place(), to_stderr=options.json)
    with contextlib.ExitStack() as stack:
        # One that torch cannot open is the session's to name.
        found = hardware.detect() if place.is_first else []
        device = found[min(place.device_index, len(found) - 1)] if found else None
        other = stack.enter_context(_other_context(place, device))
        keeper = stack.enter_context(keeping(options, place, device, other, say))
        seen = run(options, place, say, other.give_way)
        for text in lines.iterations(seen.warmup, seen.warmup_steps, seen.measured):
            say(text)
        plain("\n".join(seen.captured))
        plain("\n".join(lines.rank_summary(options, place, lines.figures_of(seen.measurement))))
        if device is None:
            return 0
        return _conclude(options, seen, device, keeper, plain)


@contextlib.contextmanager
def _other_context(place: Place, device: Hardware | None) -> Iterator[Beside]:
    """Lend another context of a GPU; ranks have none, nor do processes that are profiled."""
    from bench_lib.micro.beside import NOBODY, beside
    from bench_lib.worker.capture import external_profiler

    alone = place.ranks == 1 and external_profiler() is None
    if device is None or device.vendor == "cpu" or not alone:
        yield NOBODY
        return
    with beside(device) as other:
        yield other


def _conclude(
    options: Options,
    seen: Seen,
    device: Hardware,
    keeper: Keeper | None,
    say: Callable[[str], None],
) -> int:
    """Print and write what the first rank does for all; returns the exit status."""
    from bench_lib.micro import lines
    from bench_lib.roofline import place as place_on_roofline

    folded, precision = seen.folded, str(seen.case.params["precision"])
    figures = lines.figures_of(folded)
    if seen.place.is_rank:
        say("\n".join(lines.overall_summary(options, seen.place, figures)))
    result = lines.result(options, seen.place, figures)
    _write(options, result)
    say(f"Benchmark result saved to {options.csv}\n")
    roofline = place_on_roofline(folded, device, precision)
    below = lines.performance(
        options,
        folded,
        seen.measured,
        precision=f"{options.dtype.partition(':')[0]} ({precision})",
        classes=seen.classes,
        auxiliary=seen.auxiliary,
        roofline=roofline,
    )
    say("\n".join(below))
    passes = keeper is None or keeper.keep(seen)
    if keeper is not None:
        say("\n".join(keeper.in_words()))
    if options.json:
        _print_json(options, seen, result, roofline, keeper)
    return 0 if passes else 1


def _write(options: Options, result: dict[str, Any]) -> None:
    try:
        if options.result is not None:
            options.result.write_text(json.dumps(result, indent=2))
        is_new = not options.csv.exists()
        with options.csv.open("a", newline="") as file:
            writer = csv.writer(file)
            if is_new:
                writer.writerow(result.keys())
            writer.writerow(result.values())
    except OSError as error:
        raise UserError(f"{error.filename} cannot be written: {error.strerror}") from error


def _print_json(
    options: Options, seen: Seen, result: dict[str, Any], roofline: Roofline, keeper: Keeper | None
) -> None:
    import msgspec

    record = keeper.record if keeper else None
    told: dict[str, Any] = {
        "case": seen.case,
        "dtype": options.dtype,
        "result": result,
        "measurement": seen.folded,
        "device": seen.device,
        "roofline": roofline,
        "iterations": seen.measured,
        "warmup": seen.warmup,
        "remarks": options.remarks,
        "status": record.status if record else None,
        "verdicts": record.verdicts if record else [],
        "history": str(keeper.series.path) if keeper else None,
    }
    text = msgspec.json.format(msgspec.json.encode(told), indent=2).decode()
    sys.stdout.write(f"{text}\n")
