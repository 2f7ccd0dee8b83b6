"""The program: alone, a rank of a launcher, or starting a process for each device.

Exit status: 0 done, 1 it could not be measured, kept or written, or fails its judgement, 2 the
question was wrong, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench_lib.launch.launchers import who_am_i
from bench_lib.micro.files import append_row, write_json
from bench_lib.micro.flags import MicroOptions, read_options
from bench_lib.micro.output import Output, complain
from bench_lib.micro.places import RankPlace, place_of, places_here
from bench_lib.model import Hardware, Measurement, UserError
from bench_lib.worker.zygote import importing_torch

if TYPE_CHECKING:
    from bench_lib.formulas.roofline import Roofline
    from bench_lib.micro.beside import Beside
    from bench_lib.micro.keeping import Keeper
    from bench_lib.micro.session import RankSeen

FIRST_SPEAKS_S = 10.0
"""How long other ranks wait with their end, which ends them all, for the first to say why."""
INTERRUPTED = 130


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    try:
        place = who_am_i(os.environ)
    except UserError as error:
        complain(error)
        return 2
    speaks = place.rank == 0
    try:
        options = read_options(sys.argv[1:] if words is None else words)
    except UserError as error:
        if speaks:  # every rank reads the same flags
            complain(error)
        return 2
    try:
        if place.launcher or not options.distributed_dataparallel:
            return _rank(options, place_of(options, os.environ))
        return _start_ranks(options)
    except UserError as error:
        complain(error)
        return 2
    except KeyboardInterrupt:
        if speaks:
            complain("interrupted")
        return INTERRUPTED


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
    """Be a rank; where it fails, the others may wait for it, in a collective or at the door."""
    with importing_torch():
        from bench_lib.micro.session import NotMeasuredError, RankError

    try:
        return _measured(options, place)
    except UserError as error:
        status = 2
        if place.is_first or isinstance(error, RankError):
            complain(error, place)
        else:
            time.sleep(FIRST_SPEAKS_S)
    except NotMeasuredError as error:
        status = 1
        complain(error, place)
    except KeyboardInterrupt:
        if place.ranks == 1:
            raise
        status = INTERRUPTED  # whoever started the ranks says so
    if place.ranks > 1:
        os._exit(status)
    return status


def _measured(options: MicroOptions, place: RankPlace) -> int:
    from bench_lib import backends
    from bench_lib.micro import lines
    from bench_lib.micro.keeping import keeper as keeping
    from bench_lib.micro.session import prepared, run

    options = prepared(options, place)
    output = Output(sys.stderr if options.json else sys.stdout)
    say, plain = output.printer(place), output.printer(RankPlace())
    passes, trouble = True, []
    with contextlib.ExitStack() as stack:
        # One that torch cannot open is the session's to name.
        found = backends.detect() if place.is_first else []
        device = found[min(place.device_index, len(found) - 1)] if found else None
        other = stack.enter_context(_other_context(place, device))
        keeper = stack.enter_context(keeping(options, place, device, other, say))
        seen = run(options, place, say, other.give_way)
        trouble += seen.failed
        plain("\n".join(seen.captured))
        plain("\n".join(lines.rank_summary(options, place, lines.figures_of(seen.measurement))))
        if device is not None:
            ending = Finish(options, seen, keeper, plain, trouble)
            passes = ending.conclude(device)
    if output.trouble is not None:
        trouble.append(output.trouble)
    for words in dict.fromkeys(trouble):
        complain(words, place)
    return 0 if passes and not trouble else 1


@contextlib.contextmanager
def _other_context(place: RankPlace, device: Hardware | None) -> Iterator[Beside]:
    """Lend another context of a GPU; ranks have none, nor do processes that are profiled."""
    from bench_lib import backends
    from bench_lib.micro.beside import NOBODY, beside
    from bench_lib.worker.capture import external_profiler

    alone = place.ranks == 1 and external_profiler() is None
    if device is None or not backends.is_gpu(device) or not alone:
        yield NOBODY
        return
    with beside(device) as other:
        yield other


@dataclass
class Finish:
    """What the first rank does for all once it is measured: print, keep, write, judge.

    Nothing measured is to be lost: each of them is done, whatever becomes of the others.
    """

    options: MicroOptions
    seen: RankSeen
    keeper: Keeper | None
    say: Callable[[str], None]
    trouble: list[str] = field(default_factory=list)
    """What went wrong."""

    def conclude(self, device: Hardware) -> bool:
        """Do all of it; returns whether the case passes."""
        from bench_lib.micro import lines

        seen, keeper = self.seen, self.keeper
        folded = seen.folded
        figures = lines.figures_of(folded)
        result = lines.result(self.options, seen.place, figures)
        if seen.place.is_rank:
            self.say("\n".join(lines.overall_summary(self.options, seen.place, figures)))
        roofline = self._summarise(folded, device)
        if keeper is not None:
            with self._going_on():
                keeper.keep(seen)
        self._write(result)
        passes = True
        if keeper is not None and keeper.record is not None:
            with self._going_on():
                passes = keeper.finish()
            self.say("\n".join(keeper.in_words()))
        if self.options.json:
            self._print_json(folded, result, roofline)
        return passes

    @contextlib.contextmanager
    def _going_on(self) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            self.trouble.append(str(error))

    def _summarise(self, folded: Measurement, device: Hardware) -> Roofline:
        from bench_lib.formulas.roofline import place as place_on_roofline
        from bench_lib.micro import lines

        params = self.seen.case.params
        precision, mode = str(params["precision"]), str(params["compile_mode"])
        roofline = place_on_roofline(folded, device, precision, mode)
        below = lines.performance(
            self.options,
            folded,
            self.seen.measured,
            precision=f"{self.options.dtype.partition(':')[0]} ({precision})",
            classes=self.seen.classes,
            auxiliary=self.seen.auxiliary,
            roofline=roofline,
        )
        self.say("\n".join(["", *below]))
        return roofline

    def _write(self, result: dict[str, Any]) -> None:
        options = self.options
        if options.result is not None:
            with self._going_on():
                write_json(options.result, result)
        with self._going_on():
            odd = append_row(options.csv, result)
            self.say(f"Benchmark result saved to {options.csv_name}")
            if odd is not None:
                self.say(f"NOTE: {odd}")

    def _print_json(self, folded: Measurement, result: dict[str, Any], roofline: Roofline) -> None:
        import msgspec

        seen, keeper = self.seen, self.keeper
        record = keeper.record if keeper else None
        told: dict[str, Any] = {
            "case": seen.case,
            "dtype": self.options.dtype,
            "result": result,
            "measurement": folded,
            "device": seen.device,
            "roofline": roofline,
            "iterations": seen.measured,
            "warmup": seen.warmup,
            "remarks": self.options.remarks,
            "status": record.status if record else None,
            "verdicts": record.verdicts if record else [],
            "history": str(keeper.path) if keeper else None,
        }
        text = msgspec.json.format(msgspec.json.encode(told), indent=2).decode()
        output = Output(sys.stdout)
        output.write(f"{text}\n")
        if output.trouble is not None:
            self.trouble.append(output.trouble)
