"""``bench-lib ops``: TorchTensorOpsBench's command line, measured the way the suite measures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench_lib import files
from bench_lib.cases.operators import (
    PREDEFINED,
    label,
    model_operators,
    operator_case,
    resolved,
    with_usual,
)
from bench_lib.cli.measuring import Keeping, Measuring
from bench_lib.cli.options import grouped, refuse
from bench_lib.cli.output import say
from bench_lib.formulas.operation import BACKENDS, OPERATORS, asks
from bench_lib.launch.faults import CaseFault, CaseSkipped, LaunchError
from bench_lib.model import Case, Hardware, Param, Record, Sampling, UserError
from bench_lib.studies.asked import names_in

if TYPE_CHECKING:
    from bench_lib.studies.figures import Figures

HEADLINE = "========= Milliseconds per iteration for PyTorch operators with {} dtype ========="
LINE = "{:45} : {:.2f} ms/it"
OF_ONE = ("op", "op_type", "layout", "backend", "backward", "causal")
"""Options of a single operator, which a list of operators does not use."""
MOST_ITERATIONS = 10**6
"""Each has a mark that is made beforehand; the limit keeps a typo from taking all memory."""


@grouped
def ops(
    context: typer.Context,
    *,
    op: Annotated[
        str | None,
        typer.Option(help="add, add_, relu, sum, gemm, sdpa, conv2d, copy_h2d ... (default: add)."),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="fp32, tf32, fp16, bf16; for gemm also fp8, mxfp8, mxfp4.")
    ] = "fp32",
    device: Annotated[
        str | None, typer.Option(help="cuda, cuda:N or cpu (default: the first GPU, or the CPU).")
    ] = None,
    input1_dim: Annotated[
        str | None,
        typer.Option(help="Sizes (default: 64-1024-1024); gemm: M-N-K, sdpa: B-H-S-D."),
    ] = None,
    input2_dim: Annotated[
        str | None,
        typer.Option(help="Sizes of the second input of a binary operator, of weights or indices."),
    ] = None,
    op_type: Annotated[str | None, typer.Option(help="unary, binary, reduction or sparse.")] = None,
    inplace: Annotated[bool, typer.Option("--inplace", help="Measure the in-place form.")] = False,
    run_predefined: Annotated[
        bool,
        typer.Option("--run-predefined", help="Run all binary, unary and reduction operators."),
    ] = False,
    run_model_ops: Annotated[
        bool, typer.Option("--run-model-ops", help="Run the shapes of BERT and DLRM.")
    ] = False,
    num_iters: Annotated[
        int, typer.Option(min=1, max=MOST_ITERATIONS, help="Measured steps.")
    ] = 20,
    num_warmup_iters: Annotated[
        int,
        typer.Option(
            min=0,
            max=MOST_ITERATIONS,
            help="Minimum number of warm-up steps; warm-up continues until step times are steady.",
        ),
    ] = 5,
    enable_profiling: Annotated[
        bool,
        typer.Option("--enable-profiling", help="Print the profiler's table for every operator."),
    ] = False,
    append_dtype: Annotated[
        bool, typer.Option("--append-dtype", help="Append the dtype to every operator's name.")
    ] = False,
    layout: Annotated[
        str | None, typer.Option(help="gemm: NN, NT, TN, TT; images: nchw, nhwc.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(help="Attention kernels, separated by commas: flash,cudnn,flex."),
    ] = None,
    backward: Annotated[
        bool, typer.Option("--backward", help="Measure the backward pass.")
    ] = False,
    causal: Annotated[bool, typer.Option("--causal", help="Measure causal attention.")] = False,
    keeping: Keeping,
) -> None:
    """Measure operators: time per call, GB/s, TFLOP/s, share of peak."""
    from bench_lib.studies.calls import OPERATORS as STUDY

    axes = {"shape": input1_dim, "shape2": input2_dim, "precision": dtype, "layout": layout}
    variant: dict[str, Param] = {
        "direction": "bwd" if backward else "",
        "causal": causal,
    }
    dims = {"--input1-dim": input1_dim, "--input2-dim": input2_dim}
    for flag, value in {**dims, "--dtype": dtype, "--layout": layout}.items():
        if value == "":
            raise UserError(f"{flag} is empty; leave it out to use the default")
    if run_predefined and run_model_ops:
        raise UserError("--run-predefined and --run-model-ops cannot be combined; choose one")
    if run_predefined:
        refuse(context, OF_ONE, "--run-predefined decides what is measured")
        values = _predefined(axes, inplace=inplace)
    elif run_model_ops:
        of_sizes = (*OF_ONE, "input1_dim", "input2_dim")
        refuse(context, of_sizes, "--run-model-ops decides what is measured")
        if inplace:
            raise UserError("--inplace: --run-model-ops decides which operators are in place")
        values = [{**operator, "precision": dtype} for operator in model_operators()]
    else:
        operator = _operator("add" if op is None else op, op_type, axes, variant, inplace=inplace)
        names = [] if backend is None else names_in(backend, "--backend", "backend", BACKENDS)
        values = [{**operator, "backend": name} for name in names] or [operator]
    sampling = Sampling(
        warmup_steps=num_warmup_iters, iterations=num_iters, max_iterations=num_iters
    )
    base = Case("", "", sampling=sampling)
    cases = [operator_case(base, **params) for params in values]
    session = Measuring("ops", _device(device), keeping)

    def print_line(record: Record) -> None:
        print(_line(record, session.device, append_dtype=append_dtype), flush=True)

    session.say_apart(HEADLINE.format(dtype))
    figures = session.figures_of_all(cases, each=print_line)
    rows = STUDY.rows(cases, figures, session.device)
    profiles = _profiles(figures, cases, session.device) if enable_profiling else {}
    for case_id, text in profiles.items():
        session.say_apart(f"\n{case_id}\n{text}")
    session.say_apart()
    session.conclude(STUDY, rows, about={"profiles": profiles})


def _predefined(axes: dict[str, str | None], *, inplace: bool) -> list[dict[str, Param]]:
    """Return the values of TorchTensorOpsBench's list; reductions have no in-place form."""
    names = [f"{op}_" if inplace and f"{op}_" in OPERATORS else op for op in PREDEFINED]
    return [
        with_usual(op, **{k: v for k, v in axes.items() if k != "shape2" or asks(op, "shape2")})
        for op in names
    ]


def _operator(
    op: str,
    op_type: str | None,
    axes: dict[str, str | None],
    variant: dict[str, Param],
    *,
    inplace: bool,
) -> dict[str, Param]:
    name = resolved(op, op_type, inplace=inplace)
    values: dict[str, Param | None] = {**variant, **axes}
    if not asks(name, "shape2"):  # the tool accepts one and ignores it
        values.pop("shape2")
    layout = values.pop("layout")
    if isinstance(layout, str):
        is_of_images = layout.lower() in ("nchw", "nhwc")
        field = "memory_format" if is_of_images else "layout"
        values[field] = layout.lower() if is_of_images else layout.upper()
    return with_usual(name, **values)


def _device(name: str | None) -> Hardware:
    """Return the device that ``cuda``, ``cuda:1`` or ``cpu`` means here; raises UserError."""
    from bench_lib import backends

    devices = backends.detect()
    if name is None:
        return devices[0]
    match = re.fullmatch(r"cpu|(cuda)(?::([0-9]{1,3}))?", name)
    if match is None:
        raise UserError(f"--device {name}: choose cuda, cuda:N or cpu")
    has_gpu = backends.is_gpu(devices[0])
    if match[1] is None:
        return backends.this_cpu() if has_gpu else devices[0]
    if not has_gpu:
        raise UserError(
            f"--device {name}: no GPU was found here; use --device cpu, or ask bench-lib env why"
        )
    index = int(match[2] or 0)
    if index >= len(devices):
        raise UserError(f"--device {name}: there are {len(devices)} GPUs, counted from 0")
    return devices[index]


def _line(record: Record, device: Hardware, *, append_dtype: bool) -> str:
    """Return the tool's line of one operator."""
    from bench_lib.studies.figures import figures_of

    figures = figures_of(record, device)
    name = label(record.case, append_dtype=append_dtype)
    if figures.step_s is None or not figures.items_per_step:
        return f"{name:45} : {figures.status}: {figures.reason}"
    return LINE.format(name, figures.step_s / figures.items_per_step * 1e3)


def _profiles(
    figures: Sequence[Figures], cases: Sequence[Case], device: Hardware
) -> dict[str, str]:
    """Return the profiler's table of each case that was measured, by id; a process for each."""
    from bench_lib.backends import visibility
    from bench_lib.launch.files import temporary_folder
    from bench_lib.launch.profiled import run_profile
    from bench_lib.launch.wire import ProfileRequest

    tables = {}
    for case in (case for case, result in zip(cases, figures, strict=True) if result.is_measured):
        say(f"profiling {case.id}")
        with temporary_folder() as folder:
            try:
                first, *_ = run_profile(
                    case, Path(folder), ProfileRequest(), environment=visibility(device)
                )
            except (CaseSkipped, CaseFault, LaunchError) as reason:
                say(f"{case.id}: no profile: {reason}")
                continue
            name = first.tables.get("device time") or first.tables["cpu time"]
            tables[case.id] = files.content(Path(folder, name), 2**26).decode()
    return tables
