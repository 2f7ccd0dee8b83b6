"""``bench-lib profile``: which kernels a case's step is made of, and what changed in them."""

from __future__ import annotations

import contextlib
import difflib
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from bench_lib.cli.output import (
    DEFAULT_BASELINES,
    DEFAULT_HISTORY,
    DEFAULT_MATRIX,
    BaselinesDir,
    HistoryDir,
    Json,
    Matrix,
    print_json,
    print_tables,
)
from bench_lib.model import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench_lib.model import Case, Kernel, KernelTable
    from bench_lib.profiling.kernels import Change
    from bench_lib.profiling.run import Look, Seen
    from bench_lib.profiling.store import Comparison, Profile

TORCH, ROCM, RANGES = "torch", "rocm", "ranges"
TOOLS = (TORCH, ROCM, "rocprofv3", "rocprofv2", "rocprof", "rocprof-compute", RANGES)
DEFAULT_OUT = Path("profiles")
LEAST_NAME = 24
"""Characters of a kernel's name that are shown however narrow the terminal."""
WIDTH = 100
"""Of a table where the output is no terminal."""
LOCK_WAIT_S = 600.0
STEPS = 5
NSYS = "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0 --capture-range=nvtx"
"""Without the variable nsys sees only ranges with registered names, which torch's are not."""


def profile(
    case: Annotated[
        str | None, typer.Argument(help="Id of a case in the matrix or in the history.")
    ] = None,
    *,
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--diff",
            metavar="A B",
            help="Compare two profiles: folders, kernels.json, traces, CSVs, or 'baseline'.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder to keep it in (default: profiles/CASE)."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Steps to profile (default: 5); of --diff, the steps in a CSV."),
    ] = None,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Keep stack traces too, for flame graphs.")
    ] = False,
    tool: Annotated[str, typer.Option(help=f"Profiler: {', '.join(TOOLS)}.")] = TORCH,
    counters: Annotated[
        bool, typer.Option("--counters", help="Hardware counters too, by one of ROCm's profilers.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Kernels to show.")] = 10,
    matrix: Matrix = DEFAULT_MATRIX,
    history: HistoryDir = DEFAULT_HISTORY,
    baselines: BaselinesDir = DEFAULT_BASELINES,
    json: Json = False,
) -> None:
    """Profile a case, or say which kernels two profiles differ in.

    Keeps a Chrome trace, tables and kernels.json.  Exit status 1 where the case cannot be
    profiled here.
    """
    began = time.monotonic()
    if steps is not None and steps < 1:
        raise UserError(f"--steps {steps}: at least 1")
    with _ended_with_a_status():
        if diff is not None:
            _refuse_with_diff(out=out, stacks=stacks, counters=counters, tool=tool != TORCH)
            _compare(diff, case, baselines, steps=steps or 1, top=top, json=json)
            return
        if case is None:
            raise UserError("which case? bench-lib profile CASE, or --diff A B")
        _check(tool, stacks=stacks, counters=counters)
        found = _find(case, matrix, history)
        folder = out or DEFAULT_OUT / found.id
        if tool == RANGES:
            _hand_over(found, folder, steps or STEPS)
            return
        say = _timed_since(began)
        look = _look(
            found, folder, tool, say, steps=steps or STEPS, stacks=stacks, counted=counters
        )
        say("told")
        _tell(look, top, json=json)


def _check(tool: str, *, stacks: bool, counters: bool) -> None:
    if tool not in TOOLS:
        raise UserError(f"--tool {tool!r}: there is {', '.join(TOOLS)}")
    if stacks and tool != TORCH:
        raise UserError(f"--stacks: {tool} keeps none; torch does")
    if counters and tool in (TORCH, RANGES):
        raise UserError("--counters: of the hardware, which --tool rocm reads on AMD GPUs")


def _refuse_with_diff(**given: object) -> None:
    if wrong := [name for name, value in given.items() if value]:
        raise UserError(f"--diff measures nothing; leave out --{', --'.join(wrong)}")


# ---- which case ---------------------------------------------------------------------------------


def _find(case_id: str, matrix: Path, folder: Path) -> Case:
    """Return the case of that id, from the matrix or else the newest run that has it."""
    from bench_lib import history
    from bench_lib.matrix import read_matrix, tables

    known: dict[str, Case] = {}
    if matrix != DEFAULT_MATRIX or matrix.is_file():
        tiers = read_matrix(matrix, tables(dict.fromkeys(_words_in(matrix), 0)))
        known = {case.id: case for cases in tiers.values() for case in cases}
    if case_id in known:
        return known[case_id]
    for path in reversed(history.files(folder)):
        with contextlib.suppress(history.HistoryError, OSError):
            if case_id.encode() in path.read_bytes():
                records = history.read(path).records
                if case_id in records:
                    return records[case_id].case
    near = difflib.get_close_matches(case_id, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "name another with --matrix FILE"
    raise UserError(f"no case {case_id!r} in {matrix}, nor in a run in {folder}; {hint}")


def _words_in(matrix: Path) -> list[str]:
    """Return the texts of a file, networks among them: the worker says whether it has one.

    To ask it beforehand takes as long as importing torchvision.
    """
    try:
        return re.findall(r"""["']([^"'\n]+)["']""", matrix.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []  # whoever reads it as a matrix tells what is wrong


# ---- looking into it ----------------------------------------------------------------------------


def _look(
    case: Case,
    folder: Path,
    tool: str,
    say: Callable[[str], None],
    *,
    steps: int,
    stacks: bool,
    counted: bool,
) -> Look:
    from bench_lib.devicelock import DeviceLock
    from bench_lib.hardware import detect, visibility
    from bench_lib.launch.profiled import Asked
    from bench_lib.profiling import run

    device = detect()[0]
    _say(f"{case.id} on {device.key}, by {tool}; kept in {folder}")
    if str(case.params.get("compile_mode", "eager")) not in ("eager", "graph"):
        _say("compiling with cold caches takes 1 to 3 minutes, max-autotune 5 to 10")
    # Ranks see all devices, and choose.
    environment = visibility(device) if case.launch.ranks == 1 else None
    lock = DeviceLock(device)
    lock.acquire(LOCK_WAIT_S, _say)
    try:
        if tool == TORCH:
            asked = Asked(steps, stacks)
            return run.with_torch(case, device, folder, asked, environment=environment, say=say)
        return run.with_rocm(
            case,
            device,
            folder,
            tool=None if tool == ROCM else tool,
            steps=steps,
            counted=counted,
            environment=environment,
            say=say,
        )
    finally:
        lock.release()


def _hand_over(case: Case, folder: Path, steps: int) -> None:
    """Print what to put behind any other profiler's command line."""
    import shlex

    from bench_lib.launch.profiled import MEASURED, Asked, order

    words = shlex.join(order(case, folder, Asked(steps, ranges=True)))
    print(words)
    _say(
        f"put this behind a profiler's own words; the steps that count lie in the NVTX or ROCTX "
        f"range {MEASURED!r}, as in: nsys profile {NSYS} --nvtx-capture={MEASURED!r}"
    )


def _timed_since(began: float) -> Callable[[str], None]:
    return lambda line: _say(f"{time.monotonic() - began:5.1f} s  {line}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _ended_with_a_status() -> Iterator[None]:
    """Leave with 1 where the case cannot be profiled here, and with 130 on Ctrl-C.

    SIGTERM ends what is under way as Ctrl-C does.
    """
    from bench_lib.devicelock import DeviceBusyError
    from bench_lib.launch.faults import CaseFault, CaseSkipped, LaunchError
    from bench_lib.profiling.run import UnprofiledError

    def leave(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except CaseSkipped as reason:
        _say(f"bench-lib: skipped: {reason}")
        raise typer.Exit(1) from None
    except CaseFault as error:
        _say(f"bench-lib: error: {error}")
        if error.fault.last_output:
            _say(f"last output of the worker:\n{error.fault.last_output}")
        raise typer.Exit(1) from None
    except (LaunchError, DeviceBusyError, UnprofiledError) as error:
        _say(f"bench-lib: error: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        _say("bench-lib: interrupted")
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


# ---- telling ------------------------------------------------------------------------------------


def _tell(look: Look, top: int, *, json: bool) -> None:
    if json:
        print_json(_as_document(look))
        return
    for number, seen in enumerate(look.seen):
        print("\n" * (number > 0) + _title(look, seen))
        print()
        _print_kernels(seen.kernels, top)
        print()
        for answer in seen.answers:
            reading = f" ({answer.reading})" if answer.reading else ""
            print(f"{answer.question}: {answer.words}{reading}")
    if look.peak_memory_bytes is not None:
        print(f"peak memory: {look.peak_memory_bytes / 2**20:.0f} MiB in the profiled steps")
    _print_counters(look)
    print()
    for problem in look.problems:
        print(f"note: {problem}")
    for seen in look.seen:
        if seen.trace is not None:
            print(f"trace: {seen.trace} (open in ui.perfetto.dev)")
    for what, path in look.files.items():
        print(f"{what}: {path}")
    print(f"kernels: {look.folder / 'kernels.json'} (compare with --diff)")


def _title(look: Look, seen: Seen) -> str:
    label = f", {seen.label}" if seen.label else ""
    what = "operations on the CPU" if _is_host(seen.kernels) else "kernels"
    return (
        f"{look.case.id} on {look.hardware.key}{label}: {what} of one step, the mean of "
        f"{seen.kernels.steps} by {seen.kernels.source}"
    )


def _is_host(kernels: KernelTable) -> bool:
    from bench_lib.profiling.traces import HOST_SOURCE

    return kernels.source == HOST_SOURCE


def _print_kernels(kernels: KernelTable, top: int) -> None:
    from bench_lib.profiling.names import REST, role, short
    from bench_lib.wording import seconds

    whole = sum(kernel.total_s for kernel in kernels.kernels)
    named = [kernel for kernel in kernels.kernels if kernel.name != REST]
    first = "operation" if _is_host(kernels) else "kernel"
    rows = [
        (
            kernel.name if _is_host(kernels) else short(kernel.name),
            f"{kernel.total_s / whole:.1%}" if whole else "",
            f"{kernel.calls:.4g}",
            seconds(kernel.total_s),
            seconds(kernel.total_s / kernel.calls) if kernel.calls else "",
            role(kernel.name),
        )
        for kernel in named[:top]
    ]
    headings = (first, "share", "calls", "total", "average", "role")
    print_tables(headings, _fitted(headings, rows))
    left = sum(kernel.total_s for kernel in kernels.kernels) - sum(
        kernel.total_s for kernel in named[:top]
    )
    if left > 0 and whole:
        print(f"all others: {seconds(left)} ({left / whole:.1%})")


def _fitted(headings: Sequence[str], rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Shorten the first column so that all the others are beside it."""
    across = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    others = sum(max(len(row[i]) for row in [headings, *rows]) + 2 for i in range(1, len(headings)))
    width = max(LEAST_NAME, across - others)
    return [(_cut(row[0], width), *row[1:]) for row in rows]


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def _print_counters(look: Look) -> None:
    for kernel in look.counters:
        for metric in kernel.metrics:
            name = f"{_short(kernel.name)}: " if kernel.name else ""
            reading = f" ({metric.reading})" if metric.reading else ""
            print(f"{name}{metric.name}: {metric.value:.4g} {metric.unit}{reading}")


def _short(name: str) -> str:
    from bench_lib.profiling.names import short

    return short(name)


def _as_document(look: Look) -> dict[str, Any]:
    return {
        "case": look.case,
        "hardware": look.hardware.key,
        "environment": look.environment,
        "tool": look.tool,
        "folder": str(look.folder),
        "peak_memory_bytes": look.peak_memory_bytes,
        "ranks": [
            {
                "label": seen.label,
                "trace": None if seen.trace is None else str(seen.trace),
                "plain_step_s": seen.plain_step_s,
                "profiled_step_s": seen.profiled_step_s,
                "kernels": seen.kernels,
                "answers": seen.answers,
            }
            for seen in look.seen
        ],
        "counters": look.counters,
        "files": {what: str(path) for what, path in look.files.items()},
        "problems": look.problems,
    }


# ---- two profiles -------------------------------------------------------------------------------


def _compare(
    sides: tuple[str, str],
    case_id: str | None,
    folder: Path,
    *,
    steps: int,
    top: int,
    json: bool,
) -> None:
    from bench_lib.hardware import detect
    from bench_lib.profiling import store

    key = detect()[0].key if store.BASELINE in sides else None
    found = store.compare(*sides, folder=folder, case_id=case_id, key=key, steps=steps)
    if json:
        print_json(_diff_document(sides, found))
        return
    _print_changes(found, top)
    print()
    print(found.reason)
    for remark in found.remarks:
        print(f"note: {remark}")


def _print_changes(found: Comparison, top: int) -> None:
    from bench_lib.wording import seconds

    changes = [change for change in found.diff.changes if change.delta_s]
    rows = [row for change in changes[:top] for row in _rows(change, found)]
    what = found.diff.what
    headings = (
        *(what.removesuffix("s"), "what", "before", "after"),
        *("change", "calls", "share", "role"),
    )
    print_tables(headings, _fitted(headings, rows))
    if rest := changes[top:]:
        print(f"{len(rest)} more: {_difference(sum(change.delta_s for change in rest))}")
    diff = found.diff
    print(
        f"all {what}: {seconds(diff.before_s)} → {seconds(diff.after_s)} a step, "
        f"{_difference(diff.delta_s)}"
    )


def _rows(change: Change, found: Comparison) -> Iterator[tuple[str, ...]]:
    """Yield a change's line, and below it the new name where that is another."""
    share = found.diff.share(change)
    *names, last = change.names
    old, *new = [*names, last + change.more]
    yield (
        old,
        change.kind,
        _time(change.before),
        _time(change.after),
        _difference(change.delta_s),
        _calls(change),
        "" if share is None else f"{share if change.delta_s > 0 else -share:+.0%}",
        change.role,
    )
    for name in new:
        yield f"  → {name}", *[""] * 7


def _time(kernel: Kernel | None) -> str:
    from bench_lib.wording import seconds

    return "-" if kernel is None else seconds(kernel.total_s)


def _difference(delta_s: float) -> str:
    from bench_lib.wording import seconds

    return f"{'-' if delta_s < 0 else '+'}{seconds(abs(delta_s))}"


def _calls(change: Change) -> str:
    each = [f"{k.calls:.4g}" if k else "0" for k in (change.before, change.after)]
    return " → ".join(dict.fromkeys(each))


def _diff_document(sides: tuple[str, str], found: Comparison) -> dict[str, Any]:
    return {
        "before": _side(sides[0], found.before, found.diff.before_s),
        "after": _side(sides[1], found.after, found.diff.after_s),
        "delta_s": found.diff.delta_s,
        "reason": found.reason,
        "remarks": found.remarks,
        "changes": [
            {
                "name": change.name,
                "kind": change.kind,
                "role": change.role,
                "before": change.before,
                "after": change.after,
                "before_kernels": change.before_kernels,
                "after_kernels": change.after_kernels,
                "delta_s": change.delta_s,
                "share": found.diff.share(change),
            }
            for change in found.diff.changes
        ],
    }


def _side(source: str, profile: Profile, total_s: float) -> dict[str, Any]:
    return {
        "from": source,
        "case": profile.case.id if profile.case else None,
        "hardware": profile.hardware,
        "source": profile.kernels.source,
        "steps": profile.kernels.steps,
        "time": profile.time,
        "total_s": total_s,
    }
