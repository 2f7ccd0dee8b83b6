"""A second look, when the last test has run: fresh processes for what looks different, kernels."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from bench_lib.engine import profiles
from bench_lib.engine.chronicle import Chronicle
from bench_lib.engine.devicelock import DeviceBusyError
from bench_lib.engine.runner import Bench, Outcome
from bench_lib.launch.faults import LaunchError
from bench_lib.model import Case, Hardware, KernelTable, Record
from bench_lib.plugin.pace import Pace
from bench_lib.plugin.session import PerfSession


def confirm(session: PerfSession, chronicle: Chronicle) -> None:
    """Measure what looks different again, in fresh processes that all such cases share.

    A case leaves as soon as it does not look different any more.  Under xdist its
    workers have ended by now, and their devices are idle.  Cases of several ranks come
    after the others, when no device is held by a bench of its own.
    """
    _confirm(session, chronicle, of_several_ranks=False)
    _confirm(session, chronicle, of_several_ranks=True)


def _confirm(session: PerfSession, chronicle: Chronicle, *, of_several_ranks: bool) -> None:
    everything, options = len(chronicle.records), session.options
    benches = {} if session.bench is None else {_place(session.bench.device): session.bench}
    with contextlib.ExitStack() as stack:
        for process in range(options.processes, options.planned):
            records = chronicle.suspicious()
            if process == options.processes:
                records += chronicle.spoilt()  # whatever it was may be over by now
            records = [r for r in records if (r.case.launch.ranks > 1) == of_several_ranks]
            if not records:
                return
            session.say(
                f"looking again at {len(records)} of {everything} cases, in fresh process "
                f"{process + 1} of at most {options.planned}"
            )
            queues: dict[str, list[Record]] = {}
            for record in records:
                device = chronicle.hardware_of(record)
                queues.setdefault(_place(device), []).append(record)
                if _place(device) not in benches:
                    bench = benches[_place(device)] = session.open_bench(device)
                    stack.callback(bench.close)
            _measure_again(session, benches, queues, process)


def _measure_again(
    session: PerfSession,
    benches: Mapping[str, Bench],
    queues: Mapping[str, list[Record]],
    process: int,
) -> None:
    """Measure each device's queue, the devices at the same time."""
    outcomes: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
    nodeids = {r.case.id: r.nodeid for records in queues.values() for r in records}
    lanes = [[record.case.id for record in records] for records in queues.values()]
    session.progress.begin("looking again", lanes, Pace(session.past))

    def work(place: str) -> None:
        try:
            cases = [record.case for record in queues[place]]
            for outcome in benches[place].measure_again(cases, process):
                outcomes.put(outcome)
        finally:
            outcomes.put(None)

    with ThreadPoolExecutor(len(queues)) as pool:
        devices = [pool.submit(work, place) for place in queues]
        try:
            for _ in devices:
                while (outcome := outcomes.get()) is not None:
                    session.take_in(outcome, nodeids[outcome.case.id])
                    session.progress.finish(outcome.case.id)
        except BaseException:
            for bench in benches.values():
                bench.close()  # or the pool would wait for what is being measured
            raise
        for device in devices:
            device.result()


def look_into(session: PerfSession, chronicle: Chronicle) -> None:
    """Profile what changed and what has no baseline, each device's cases in one context."""
    records = chronicle.to_look_into(session.options.kernels)
    if not records:
        return
    everything = len(chronicle.records)
    session.say(f"looking into the kernels of {len(records)} of {everything} cases")
    session.progress.begin("looking into kernels", [[record.case.id for record in records]])
    try:
        _look_into(session, chronicle, records)
    except (LaunchError, DeviceBusyError) as error:  # the verdicts stand without
        session.say(f"kernels could not be looked into: {error}")


def _look_into(session: PerfSession, chronicle: Chronicle, records: list[Record]) -> None:
    def note(case: Case, found: KernelTable | str) -> None:
        chronicle.note_kernels(case.id, found)
        session.progress.finish(case.id)

    for place in dict.fromkeys(_place(chronicle.hardware_of(r)) for r in records):
        here = [r for r in records if _place(chronicle.hardware_of(r)) == place]
        with contextlib.ExitStack() as stack:
            bench = session.bench
            if bench is None or _place(bench.device) != place:
                bench = session.open_bench(chronicle.hardware_of(here[0]))
                stack.callback(bench.close)
            cases = [record.case for record in here]
            alone = [case for case in cases if case.launch.ranks == 1]
            for case, found in profiles.look_into(bench, alone):
                note(case, found)
            for case in (case for case in cases if case.launch.ranks > 1):
                with bench.holding(case):
                    ((_, found),) = profiles.look_into(bench, [case])
                note(case, found)


def _place(device: Hardware) -> str:
    """Name one device among those of this machine."""
    return device.uuid or f"{device.key} {device.index}"
