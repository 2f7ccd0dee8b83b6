"""``bench-lib profile``: the kernels of a case's step, and how two profiles differ."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench_lib.cli.ending import complain
from bench_lib.cli.options import refuse
from bench_lib.cli.output import (
    DEFAULT_HISTORY,
    DEFAULT_MATRIX,
    HistoryDir,
    Json,
    Matrix,
    say,
    tell,
)
from bench_lib.cli.reading import case_of
from bench_lib.formats import printable
from bench_lib.launch.faults import CaseFault, CaseSkipped, LaunchError
from bench_lib.model import Case, UserError

if TYPE_CHECKING:
    from bench_lib.profiling.profilers import CaseProfile

TORCH, RANGES = "torch", "ranges"
ROCM_S = ("rocm", "rocprofv3")
RETIRED = ("rocprof", "rocprofv2")
"""AMD's retired profilers; rocprofv3 runs instead."""
TOOLS = (TORCH, *ROCM_S, RANGES)
DEFAULT_OUTPUT = Path("profiles")
LOCK_WAIT_S = 600.0
_MEASURING_ONLY = ("output", "steps", "timeline", "tool")
NSYS = "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0 --capture-range=nvtx"
"""Without the variable nsys sees only ranges with registered names, which torch's are not."""


def profile(
    context: typer.Context,
    case: Annotated[
        str | None, typer.Argument(help="Id of a case in the matrix or in the history.")
    ] = None,
    *,
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B",
            help="Compare two profiles: folders, kernels.json or traces.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for the profile (default: profiles/CASE)."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps to profile.")] = 5,
    tool: Annotated[str, typer.Option(help=f"Profiler: {', '.join(TOOLS)}.")] = TORCH,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Also keep a trace for Perfetto (--tool rocm).")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Kernels to show.")] = 10,
    matrix: Matrix = DEFAULT_MATRIX,
    history: HistoryDir = DEFAULT_HISTORY,
    json: Json = False,
) -> None:
    """Profile a case, or show which kernels differ between two profiles.

    It keeps a Chrome trace, tables and kernels.json.  The exit status is 1 if the case cannot be
    profiled here.
    """
    began = time.monotonic()
    with _ended_with_a_status():
        if diff is not None:
            refuse(context, _MEASURING_ONLY, "--diff only compares profiles")
            from bench_lib.cli.kernels import difference
            from bench_lib.profiling import store

            changes = store.compare(*diff)
            tell(difference(diff, changes, top), json=json)
        if case is None:
            raise UserError(
                "name a case, as in bench-lib profile CASE, or two profiles with --diff A B"
            )
        if tool in RETIRED:
            say(f"--tool {tool}: AMD has retired it; using rocprofv3 instead")
            tool = "rocprofv3"
        _check(tool, timeline=timeline)
        chosen = case_of(case, matrix, history)
        folder = output or DEFAULT_OUTPUT / chosen.id
        if tool == RANGES:
            _hand_over(chosen, folder, steps)
            return

        def progress(line: str) -> None:
            say(f"{time.monotonic() - began:5.1f} s  {line}")

        result = look(chosen, folder, tool, progress, steps=steps, timeline=timeline)
        from bench_lib.cli.kernels import answer_of

        tell(answer_of(result, top), json=json)


def _check(tool: str, *, timeline: bool) -> None:
    from bench_lib import backends

    tools = dict.fromkeys((*TOOLS, *(name for p in backends.profilers() for name in p.names)))
    if tool not in tools:
        raise UserError(f"--tool {tool!r}: choose from {', '.join(tools)}")
    if timeline and tool in (TORCH, RANGES):
        raise UserError(
            "--timeline needs --tool rocm; torch's profiler always writes a Chrome trace"
        )


# ---- profiling ----------------------------------------------------------------------------------


def look(
    case: Case,
    folder: Path,
    tool: str,
    say: Callable[[str], None],
    *,
    steps: int,
    timeline: bool,
) -> CaseProfile:
    """Profile a case on the first device.

    Raises CaseSkipped, CaseFault, LaunchError, DeviceBusyError or UnprofiledError.
    """
    from bench_lib.backends import detect, is_gpu, visibility
    from bench_lib.engine.devicelock import DeviceLock
    from bench_lib.launch.wire import ProfileRequest
    from bench_lib.profiling import profilers

    device = detect()[0]
    if tool != TORCH and not is_gpu(device):
        raise profilers.UnprofiledError(
            f"--tool {tool} profiles GPUs, and there is none here; leave it out to use torch's "
            "profiler"
        )
    say(f"profiling {case.id} on {device.key} with {tool}; results in {folder}")
    if str(case.params.get("compile_mode", "eager")) not in ("eager", "graph"):
        say("compiling with cold caches takes 1 to 3 minutes, max-autotune 5 to 10")
    # Ranks see all devices, and choose.
    environment = visibility(device) if case.launch.ranks == 1 else None
    lock = DeviceLock(device)
    lock.acquire(LOCK_WAIT_S, say)
    try:
        if tool == TORCH:
            return profilers.with_torch(
                case, device, folder, ProfileRequest(steps), environment=environment, say=say
            )
        return profilers.with_vendors(
            case,
            device,
            folder,
            tool,
            steps=steps,
            timeline=timeline,
            environment=environment,
            say=say,
        )
    finally:
        lock.release()


def _hand_over(case: Case, folder: Path, steps: int) -> None:
    """Print the command to append to any other profiler's command line."""
    from bench_lib.launch.profiled import order
    from bench_lib.launch.wire import MEASURED, ProfileRequest

    print(shlex.join(order(case, folder, ProfileRequest(steps, ranges=True))))
    say(
        f"append this to a profiler's command; the measured steps are in the NVTX or ROCTX range "
        f"{MEASURED!r}, as in: nsys profile {NSYS} --nvtx-capture={MEASURED!r}"
    )


@contextlib.contextmanager
def _ended_with_a_status() -> Iterator[None]:
    """Leave with 1 if the case cannot be profiled here."""
    from bench_lib.engine.devicelock import DeviceBusyError
    from bench_lib.profiling.profilers import UnprofiledError

    try:
        yield
    except CaseSkipped as reason:
        say(f"bench-lib: skipped: {reason}")
        raise typer.Exit(1) from None
    except CaseFault as error:
        complain(printable(str(error)))
        if error.fault.last_output:
            say(f"last output of the worker:\n{printable(error.fault.last_output)}")
        raise typer.Exit(1) from None
    except (LaunchError, DeviceBusyError, UnprofiledError) as error:
        complain(str(error))
        raise typer.Exit(1) from None
