"""Hostile inputs for every parser: does each get an answer or one sentence, in 2 s and 256 MB?

    python benchmarks/fuzz.py [--inputs 2000] [--seed 1] [--parser NAME | --but NAME]
    python benchmarks/fuzz.py [--seed 1] --show NAME:NUMBER

Each parser has a grammar that draws sound documents.  A drawn document is spoilt in its grammar
(a value, a name, a row, its depth) or in its bytes, and given to the parser as a file.  An input is
told by its parser, its seed and its number, and ``--show`` prints one.  The process has no more
than 256 MB beside what it has loaded, an alarm ends an input after 2 s, and the folder it works in
has to stay as it was.  Prints a line for each parser; ends with status 1 where one failed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from bench_lib.backends.amd.rocprof import counters
from bench_lib.backends.amd.tools import amd_smi, rocm_smi, rocminfo
from bench_lib.backends.tool import ToolError
from bench_lib.cases import matrix
from bench_lib.cli.history import _details
from bench_lib.formats import printable
from bench_lib.micro import compiling
from bench_lib.model import (
    Accepted,
    Attempt,
    Baseline,
    Case,
    Environment,
    Hardware,
    Measurement,
    ProcessSummary,
    UserError,
)
from bench_lib.profiling import answers, store, traces
from bench_lib.report import console
from bench_lib.slurm import asked, tools
from bench_lib.storage import acceptance, baselines, history, samples
from bench_lib.storage.archive import Archive, months, tables
from bench_lib.storage.archive.lines import COLUMNS, split

LIMIT_S = 2.0
LIMIT_BYTES = 256 * 2**20
Draw = random.Random
Tree = Any
"""A document before it is written: dictionaries, lists and what stands in them."""


@dataclass(frozen=True)
class Parser:
    """Something that reads what others wrote."""

    name: str
    sound: Callable[[Draw], Tree]
    """Draws a document of its grammar."""
    write: Callable[[Tree], bytes]
    """Writes a document, sound or spoilt."""
    read: Callable[[Path], object]
    """Reads a file and uses what it read as the program does."""
    file: str
    share: int = 1
    """One input of so many is tried, where each is slow."""


# --- spoiling ------------------------------------------------------------------------------------

DEEP: list[Any] = []
for _ in range(200):
    DEEP = [DEEP]
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.0, -0.0, 0.5, -1e-300),
    *(1e308, 1e-308, float("nan"), float("inf"), float("-inf")),
    *("", " ", "x", "0", "-1", "1e999", "nan", "N/A", "9" * 400, "1-999999999", "\x00", "\ud800"),
    *("\x1b]0;x\x07\x1b[2J", "=1+1", "<script>", "../../etc/passwd", "a\nb", "\u202e", "x" * 5000),
    *([], {}, [None], {"x": None}, DEEP),
)
"""Values that no parser expects where they come."""
TOKENS = (
    b"\x00",
    b"\xff\xfe",
    b"\n",
    b'"',
    b"{",
    b"]",
    b",",
    b"|",
    b"=",
    b"\\ud800",
    b"1e999",
    b"-",
)


def spoilt(draw: Draw, tree: Tree) -> Tree:
    """Return a document with one node of it changed."""
    places = list(_places(tree))
    if not places:
        return deepcopy(draw.choice(ODD))
    parent, at = draw.choice(places)
    match draw.randrange(6):
        case 0 | 1 | 2:
            parent[at] = deepcopy(draw.choice(ODD))
        case 3:
            del parent[at]
        case 4 if isinstance(parent, list):
            parent.insert(at, deepcopy(draw.choice([parent[at], *ODD])))
        case 4:
            parent[str(draw.choice(ODD))] = deepcopy(parent[at])
        case _:
            other, there = draw.choice(places)
            parent[at] = deepcopy(other[there])
    return tree


def _places(tree: Tree) -> Iterator[tuple[Any, Any]]:
    """Yield every node below the first, by what holds it and where."""
    items: Any = ()
    if isinstance(tree, dict):
        items = list(tree.items())
    elif isinstance(tree, list):
        items = list(enumerate(tree))
    for at, value in items:
        yield tree, at
        yield from _places(value)


def torn(draw: Draw, data: bytes) -> bytes:
    """Return a document with some of its bytes changed."""
    at = draw.randrange(len(data) + 1)
    end = min(len(data), at + draw.choice((1, 1, 8, 100)))
    match draw.randrange(5):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[end:]
        case 2:
            return data[:at] + data[at:end] * 3 + data[end:]
        case 3:
            return data[:at] + bytes(draw.randrange(256) for _ in range(end - at)) + data[end:]
        case _:
            return data[:at] + draw.choice(TOKENS) + data[at:]


def inputs(parser: Parser, seed: int, count: int) -> Iterator[tuple[int, bytes]]:
    """Yield inputs by their number; the first is sound."""
    for number in range(0, count, parser.share):
        yield number, input_of(parser, seed, number)


def input_of(parser: Parser, seed: int, number: int) -> bytes:
    """Return one input."""
    draw = Draw(f"{parser.name} {seed} {number}")
    tree = parser.sound(draw)
    times = 0 if number == 0 else draw.choice((0, 1, 1, 2, 3))
    for _ in range(times):
        tree = spoilt(draw, tree)
    data = parser.write(tree)
    return torn(draw, data) if number and (times == 0 or draw.random() < 0.2) else data


# --- documents -----------------------------------------------------------------------------------


def as_json(tree: Tree) -> bytes:
    """Write JSON, with numbers and letters that not every parser takes."""
    try:
        return json.dumps(tree).encode()
    except ValueError:  # a number with too many digits
        return b"[" * 50


def as_json_lines(tree: Tree) -> bytes:
    """Write one JSON document a line."""
    lines = tree if isinstance(tree, list) else [tree]
    return b"".join(as_json(line) + b"\n" for line in lines)


def as_table(between: str, around: str = "") -> Callable[[Tree], bytes]:
    """Return what writes rows of cells, with a text between them."""

    def write(tree: Tree) -> bytes:
        rows = tree if isinstance(tree, list) else [tree]
        cells = [row if isinstance(row, list) else [row] for row in rows]
        lines = (around + between.join(map(_text, row)) + around for row in cells)
        return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")

    return write


def _text(value: object) -> str:
    try:
        return str(value).encode(errors="replace").decode()
    except (ValueError, RecursionError):
        return "9" * 4000


def plain(value: object) -> Tree:
    """Return one of the model's objects as a tree."""
    return msgspec.to_builtins(value)


def known(tree: Tree) -> Tree:
    """Return a tree without what is not known, as files are written."""
    if isinstance(tree, dict):
        return {name: known(value) for name, value in tree.items() if value not in (None, {}, [])}
    return [known(item) for item in tree] if isinstance(tree, list) else tree


def a_case(draw: Draw) -> Case:
    """Draw a case."""
    network = draw.choice(("resnet18", "resnet50", "vgg16"))
    return Case(f"{network}-b{draw.randrange(1, 64)}", "network", {"network": network})


def a_measurement(draw: Draw, case: Case) -> Measurement:
    """Draw a measurement."""
    times = [0.01 * (1 + draw.random() / 100) for _ in range(draw.randrange(1, 6))]
    return Measurement(
        case_id=case.id,
        context_id="context-1",
        device_uuid="GPU-1",
        iteration_s=times,
        window_s=(1.0, 2.0),
        wall_s=sum(times),
        warmup_s=0.5,
        warmup_iterations=20,
        steady=True,
        first_step_s=0.25,
        enqueue_s=0.001,
        host_bound=False,
        items_per_step=4,
        item="img",
        probe={"launch_us": 2.0},
        peak_memory_bytes=2**30,
    )


MI300X = Hardware("amd", "AMD Instinct MI300X", "mi300x", arch="gfx942", uuid="GPU-1")
WHERE = Environment("3.11.7", "node-1", torch="2.9.0", variables={"TRITON_CACHE": "x"})
RUN, TIME = "0a0a0a0a", "2026-01-02T03:04:05Z"
HISTORY_FILE = f"20260102T030405Z_mi300x_{RUN}.jsonl"


def a_history(draw: Draw) -> Tree:
    """Draw a run's file."""
    case = a_case(draw)
    head = {"schema": 1, "run": RUN, "time": TIME}
    attempts = [
        Attempt(process, "e0e0e0e0", TIME, "mi300x", "GPU-1", a_measurement(draw, case))
        for process in range(draw.randrange(1, 3))
    ]
    verdict = {
        "metric": "latency",
        "status": draw.choice(("OK", "REGRESSED", "NOISY")),
        "reason": "as it was",
        "ratio": 1.0,
        "interval": [0.99, 1.01],
    }
    lines = [
        {
            **head,
            "kind": "environment",
            "ref": "e0e0e0e0",
            "environment": WHERE,
            "hardware": MI300X,
        },
        *(
            {**head, "kind": "attempt", "case": case, "nodeid": None, "attempt": a}
            for a in attempts
        ),
        {**head, "kind": "tuned", "case_id": case.id, "database": "41 entries"},
        {**head, "kind": "verdict", "case_id": case.id, "status": "OK", "verdicts": [verdict]},
        {
            **head,
            "kind": "end",
            "counts": {"OK": 1},
            "exit_status": 0,
            "caches": {"triton": "cold"},
        },
    ]
    return plain(lines)


def read_history(path: Path) -> None:
    """Read a run's file as the archive does, and show it."""
    data = path.read_bytes()
    split(path, data, 0)
    run = history.unfold(path, data)
    records = list(run.records.values())
    console.table(console.HEADINGS, console.summary_rows(records), 100)
    for record in records:
        _details(record, run.hardware)
        acceptance.processes_of(record)


def a_baseline(draw: Draw) -> Tree:
    """Draw a file of baselines."""
    cases = {}
    for case in (a_case(draw) for _ in range(2)):
        processes = [
            ProcessSummary({"latency": 0.01, "stability": 0.01}, 20, "e0e0e0e0", "2026-01-02")
            for _ in range(draw.randrange(1, 4))
        ]
        cases[case.id] = known(plain(Baseline(case.id, processes, Accepted(RUN, "first", TIME))))
    return {
        "schema": draw.choice((1, 2)),
        "key": "mi300x",
        "hardware": plain(MI300X),
        "environments": {"e0e0e0e0": plain(WHERE)},
        "cases": cases,
        "quarantine": {"a": {"reason": "flaky", "date": "2026-01-02", "until": "2027-01-02"}},
    }


def read_baseline(path: Path) -> None:
    """Read baselines, and lay them out again."""
    baselines.layout(baselines.load(path.parent, "mi300x").raw)


def a_matrix(draw: Draw) -> Tree:
    """Draw a matrix."""
    return {
        "smoke": {
            "networks": [
                {
                    "network": draw.sample(["resnet18", "resnet50", "vgg16"], 2),
                    "batch_size": draw.choice([1, [1, 4]]),
                    "precision": ["fp32"],
                    "task": "infer",
                    "time_limit_s": 60.0,
                }
            ],
            "ops": [{"op": "gemm", "shape": "512-512-512", "layout": ["NT", "NN"]}],
        },
        "gate": {"extends": "smoke", "factory": [{"id": "own", "target": "mine:step"}]},
    }


def as_toml(tree: Tree) -> bytes:
    """Write TOML; what it has no words for is written as Python has it."""

    def value(node: Tree) -> str:
        if isinstance(node, dict):
            return (
                "{" + ", ".join(f"{json.dumps(str(k))} = {value(v)}" for k, v in node.items()) + "}"
            )
        if isinstance(node, list):
            return f"[{', '.join(map(value, node))}]"
        return as_json(node).decode().replace("NaN", "nan").replace("Infinity", "inf")

    tables = tree.items() if isinstance(tree, dict) else [("x", tree)]
    try:
        lines = [f"{json.dumps(str(name))} = {value(node)}\n" for name, node in tables]
    except RecursionError:
        lines = [f"x = {'[' * 5000}\n"]
    return "".join(lines).encode()


def read_matrix(path: Path) -> None:
    """Read a matrix's cases."""
    matrix.cases_in(path)


def some_samples(draw: Draw) -> Tree:
    """Draw anybody's timings."""
    return [
        {
            "case": "solve",
            "role": role,
            "process": process,
            "iteration_s": [0.01 + draw.random() / 1e4 for _ in range(4)],
            "probe": {"launch_us": 2.0},
            "run": role,
        }
        for role in ("baseline", "candidate")
        for process in range(3)
    ]


def read_samples(path: Path) -> None:
    """Read anybody's timings."""
    with path.open("rb") as file:
        samples.read(file)


def a_trace(draw: Draw) -> Tree:
    """Draw a Chrome trace."""

    def event(cat: str, name: str, at: float, **args: Any) -> Tree:
        about = {"External id": draw.randrange(3), "correlation": draw.randrange(3), **args}
        return {"ph": "X", "cat": cat, "name": name, "ts": at, "dur": 2.0, "tid": 1, "args": about}

    return {
        "schemaVersion": 1,
        "traceEvents": [
            event("cpu_op", "aten::conv2d", 1.0),
            event("cuda_runtime", "hipLaunchKernel", 2.0),
            event("kernel", "igemm_fwd", 3.0, device=0, stream=7),
            event("gpu_memcpy", "Memcpy HtoD", 6.0, device=0, stream=7),
            event("user_annotation", "ProfilerStep#1", 0.0),
        ],
    }


def read_trace(path: Path) -> None:
    """Read a trace, and answer the guide's questions."""
    found = traces.read(path, needs_device=False)
    list(answers.of_trace(found))


def as_gzip(tree: Tree) -> bytes:
    """Write compressed JSON."""
    return gzip.compress(as_json(tree), 1)


KERNEL_COLUMNS = ["Kernel_Name", "Start_Timestamp", "End_Timestamp"]


def a_kernel_table(draw: Draw) -> Tree:
    """Draw a table of rocprofv3's."""
    began = draw.randrange(10**6)
    rows = [
        ["igemm<float>.kd", began + 100 * n, began + 100 * n + draw.randrange(90)] for n in range(3)
    ]
    return [["Kind", *KERNEL_COLUMNS], *(["KERNEL_DISPATCH", *row] for row in rows)]


def a_counter_table(draw: Draw) -> Tree:
    """Draw a table of counters."""
    header = ["Dispatch_Id", "Process_Id", *KERNEL_COLUMNS, "Counter_Name", "Counter_Value"]
    counters = ("OccupancyPercent", "MemUnitStalled", "FETCH_SIZE", "TCC_HIT_sum")
    return [header, *([1, 7, "gemm", 100, 200, name, draw.random() * 100] for name in counters)]


def read_kernels(path: Path) -> None:
    """Read what `profile --diff` is given."""
    store.read_foreign(path, 1)


def read_counters(path: Path) -> None:
    """Read counters."""
    counters.read([path], peak_gb_s=5300.0)


def a_report(draw: Draw) -> Tree:
    """Draw what ``rocprof-compute analyze`` prints."""
    rows = [["Metric_ID", "Metric", "Avg", "Unit", "Pct of Peak"]]
    for n, name in enumerate(("Wavefront Occupancy", "L2-Fabric Read BW", "L2 Cache Hit Rate")):
        rows.append([f"2.1.{n}", name, f"{draw.random():.2f}", "Pct", f"{100 * draw.random():.1f}"])
    return rows


def read_report(path: Path) -> None:
    """Read what ``rocprof-compute analyze`` prints."""
    counters.parse(path.read_text(encoding="utf-8", errors="replace"))


def a_database(draw: Draw) -> Tree:
    """Draw a database of rocprofv3's, as the statements that make it."""
    began = draw.randrange(10**6)
    return [
        "CREATE TABLE rocpd_kernel_dispatch (guid, kernel_id, start, end)",
        "CREATE TABLE rocpd_info_kernel_symbol (id, guid, display_name)",
        "CREATE TABLE rocpd_memory_copy (guid, name_id, start, end)",
        "CREATE TABLE rocpd_string (id, guid, string)",
        ["INSERT INTO rocpd_info_kernel_symbol VALUES (1, 'g', ?)", "gemm.kd"],
        ["INSERT INTO rocpd_kernel_dispatch VALUES ('g', 1, ?, ?)", began, began + 100],
        ["INSERT INTO rocpd_string VALUES (1, 'g', ?)", "MEMORY_COPY_HOST_TO_DEVICE"],
        ["INSERT INTO rocpd_memory_copy VALUES ('g', 1, ?, ?)", began, began + 50],
    ]


def as_database(tree: Tree) -> bytes:
    """Run statements in an empty database; one that cannot be run is left out."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    with closing(database):
        for statement in tree if isinstance(tree, list) else [tree]:
            words, *values = statement if isinstance(statement, list) else [statement]
            with suppress(sqlite3.Error, TypeError, ValueError, OverflowError):
                database.execute(words, values)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "x.db")
            with closing(sqlite3.connect(path)) as copy:
                database.backup(copy)
            return path.read_bytes()


def some_gpus(draw: Draw) -> Tree:
    """Draw what amd-smi prints of two GPUs, by any of its commands."""
    return [
        {
            "gpu": n,
            "bdf": f"0000:0{n + 1}:00.0",
            "uuid": "96ff74a1-0000-1000-80e8-000000000001",
            "node_id": n + 2,
            "hip_id": n,
            "asic": {"device_id": "0x74a1", "num_compute_units": 304, "asic_serial": "0xE8"},
            "vram": {"size": {"value": draw.choice((196592, 65536)), "unit": "MB"}},
            "limit": {"socket_power": {"value": 750, "unit": "W"}},
            "partition": {"accelerator_partition": "SPX", "memory_partition": "NPS1"},
            "clock": {f"gfx_{i}": {"clk": {"value": 2100, "unit": "MHz"}} for i in range(2)},
            "power": {"socket_power": {"value": 400, "unit": "W"}, "throttle_status": "N/A"},
            "temperature": {"hotspot": {"value": 60, "unit": "C"}},
            "usage": {"gfx_activity": {"value": 99, "unit": "%"}},
            "throttle": {"accumulation_counter": 5, "ppt_accumulated": 1},
            "process_list": [{"process_info": {"pid": 7, "name": "x", "mem": {"value": 1}}}],
        }
        for n in range(2)
    ]


def read_amd_smi(path: Path) -> None:
    """Read who the GPUs are, and how they do."""
    found = amd_smi.entries(path.read_text(encoding="utf-8", errors="replace"))
    amd_smi.identities(found, found, found)
    for entry in found:
        amd_smi._reading(entry, None)
    list(amd_smi._processes(found))


def some_cards(draw: Draw) -> Tree:
    """Draw what rocm-smi prints of two GPUs."""
    return {
        f"card{n}": {
            "Device ID": "0x74a1",
            "Unique ID": "0xe8",
            "PCI Bus": f"0000:0{n + 1}:00.0",
            "Node ID": str(n + 2),
            "Compute Partition": draw.choice(("SPX", "CPX", "N/A")),
            "VRAM Total Memory (B)": "206141652992",
            "sclk clock speed:": "(2100Mhz)",
            "Average Graphics Package Power (W)": "39.0",
            "Max Graphics Package Power (W)": "750.0",
            "Temperature (Sensor junction) (C)": "34.0",
            "GPU use (%)": "99",
        }
        for n in range(2)
    }


def read_rocm_smi(path: Path) -> None:
    """Read who the GPUs are, and how they do."""
    text = path.read_text(encoding="utf-8", errors="replace")
    rocm_smi.identities(text)
    for card in rocm_smi.cards(text).values():
        rocm_smi._reading(card, None)


def some_agents(draw: Draw) -> Tree:
    """Draw what rocminfo prints."""
    lines = []
    for n in range(2):
        lines += [["*******"], [f"Agent {n + 1}"], ["*******"]]
        fields = {
            "Name": draw.choice(("gfx942", "gfx90a", "EPYC")),
            "Uuid": "GPU-e8",
            "Device Type": "GPU",
            "Node": n,
            "Chip ID": "29857(0x74a1)",
            "Compute Unit": 304,
        }
        lines += [[f"  {name}", value] for name, value in fields.items()]
        lines += [["    Segment", "GLOBAL; FLAGS: COARSE"], ["    Size", "201310208(0xc) KB"]]
        lines += [["    Name", "amdgcn-amd-amdhsa--gfx942"]]
    return lines


def read_rocminfo(path: Path) -> None:
    """Read who the GPUs are."""
    rocminfo.identities(path.read_text(encoding="utf-8", errors="replace"))


def a_job(draw: Draw) -> Tree:
    """Draw what scontrol prints of an array's tasks."""
    return [
        [
            "JobId=12",
            "ArrayJobId=12",
            f"ArrayTaskId={draw.choice(('1', '1-3', '2,5%1'))}",
            "JobName=bench-lib",
            "JobState=RUNNING",
            "Reason=None",
            "ExitCode=0:0",
            "RunTime=00:01:02",
            "TimeLimit=1-00:00:00",
            "NodeList=node-1",
            "NumCPUs=4-8",
        ]
        for _ in range(2)
    ]


def an_account(draw: Draw) -> Tree:
    """Draw what sacct prints, with a step for each task."""
    tasks = draw.choice((["12_1", "12_[2-4%1]"], ["12"]))
    return [
        [f"{task}{step}", "COMPLETED", "0:0", "62", "60", "4", "01:02.5", "114136K", "node-1"]
        for task in tasks
        for step in ("", ".batch")
    ]


def read_scontrol(path: Path) -> None:
    """Read a job's state."""
    list(tools.read_scontrol(path.read_text(encoding="utf-8", errors="replace")))


def read_sacct(path: Path) -> None:
    """Read what was accounted."""
    text = path.read_text(encoding="utf-8", errors="replace")
    list(tools.read_sacct(text))
    tools.read_sstat(text)


def some_nodes(draw: Draw) -> Tree:
    """Draw what sinfo prints."""
    return [
        [f"gpu{'*' * (n == 0)}", n + 1, 64, 515000, f"gpu:mi300x:{draw.randrange(9)}", "1-00:00:00"]
        for n in range(2)
    ]


def read_sinfo(path: Path) -> None:
    """Read a cluster's partitions."""
    list(tools._partitions(path.read_text(encoding="utf-8", errors="replace")))


def an_amount(draw: Draw) -> Tree:
    """Draw what is typed behind ``--mem`` and ``--time``."""
    return [[draw.choice(("64G", "1.5T", "900", "2:00:00", "1-12", "90"))]]


def read_amounts(path: Path) -> None:
    """Read an amount of memory, and of time."""
    text = path.read_text(encoding="utf-8", errors="replace").strip("\n")
    for take in (asked.memory, asked.seconds):
        with suppress(UserError):
            take(text)


def a_context(draw: Draw) -> Tree:
    """Draw what is typed behind ``--compileContext``."""
    options = {
        "triton.cudagraphs": draw.choice((True, "True", 1)),
        "max_autotune_gemm_backends": "TRITON",
    }
    return {"fullgraph": True, "dynamic": False, "backend": "inductor", "options": options}


def as_literal(tree: Tree) -> bytes:
    """Write a Python literal."""
    try:
        return repr(tree).encode(errors="replace")
    except (ValueError, RecursionError):
        return b"[" * 50


def read_context(path: Path) -> None:
    """Read how to compile."""
    compiling.read_context(path.read_text(encoding="utf-8", errors="replace"))


def a_data_set(draw: Draw) -> Tree:
    """Draw an IDX file of MNIST's: type, dimensions, and pixels; CIFAR's is any bytes, too."""
    return [[0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28], [draw.randrange(256)] * 784]


def as_bytes(tree: Tree) -> bytes:
    """Write whatever is a byte, compressed."""
    rows = [row for row in tree if isinstance(row, list)] if isinstance(tree, list) else []
    return gzip.compress(bytes(n & 255 for row in rows for n in row if isinstance(n, int)), 1)


def read_data_set(path: Path) -> None:
    """Read data sets from a folder that somebody filled; the sums have to refuse them."""
    from bench_lib.worker.workloads import datasets  # noqa: PLC0415 - it takes seconds

    for name, file in (
        ("mnist", "MNIST/raw/train-images-idx3-ubyte.gz"),
        ("cifar10", "cifar-10-batches-py/data_batch_1"),
    ):
        with tempfile.TemporaryDirectory() as folder:
            there = Path(folder, file)
            there.parent.mkdir(parents=True)
            there.write_bytes(path.read_bytes())
            try:
                datasets.from_files(name, Path(folder))
            except datasets.DataError:
                continue
            raise AssertionError(f"{name} was taken from a file with another sum")


def some_lines(draw: Draw) -> Tree:
    """Draw a compacted month, as rows by column."""
    data = as_json_lines(a_history(draw))
    rows = split(Path(HISTORY_FILE), data, 0)
    return [{**vars(row), "raw": None if row.raw is None else row.raw.decode()} for row in rows]


def as_parquet(tree: Tree) -> bytes:
    """Write rows as a compacted month; a value that a column cannot hold is missing there."""
    rows = [row for row in tree if isinstance(row, dict)] if isinstance(tree, list) else []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "2026-01.parquet")
        with closing(tables.connect(Path(folder))) as database:
            tables.create(database, "lines")
            for row in rows:
                for name in list(row):
                    if not isinstance(row[name], (str, int, float, bytes, type(None))):
                        row[name] = None
                held = [_stored(row.get(name)) for name in COLUMNS]
                marks = ", ".join(f"try_cast(? AS {kind})" for kind in COLUMNS.values())
                database.execute(f"INSERT INTO lines SELECT {marks}", held)
            months.write(database, "lines", path)
        return path.read_bytes()


def _stored(value: Any) -> Any:
    if isinstance(value, int) and abs(value) >= 2**63:
        return None
    return _text(value) if isinstance(value, str) else value


def read_archive(path: Path) -> None:
    """Read a place with a compacted month, and ask all that commands ask."""
    with Archive(path.parent, now="2026-03-01T00:00:00Z") as archive:
        for run in archive.runs():
            with suppress(UserError):
                archive.run(run.run_id)
        list(archive.all_series())
        archive.environments(["e0e0e0e0"])
        archive.query("SELECT * FROM verdicts")


PARSERS = (
    Parser("history", a_history, as_json_lines, read_history, HISTORY_FILE),
    Parser("baselines", a_baseline, as_json, read_baseline, "mi300x.json"),
    Parser("matrix", a_matrix, as_toml, read_matrix, "matrix.toml"),
    Parser("samples", some_samples, as_json_lines, read_samples, "samples.jsonl"),
    Parser("traces", a_trace, as_json, read_trace, "trace.json"),
    Parser("compressed traces", a_trace, as_gzip, read_trace, "trace.json.gz", share=10),
    Parser("rocprof kernels", a_kernel_table, as_table(","), read_kernels, "kernel_trace.csv"),
    Parser("rocprof counters", a_counter_table, as_table(","), read_counters, "counters.csv"),
    Parser("rocprof-compute", a_report, as_table(" │ ", "│"), read_report, "report.txt"),
    Parser("rocpd databases", a_database, as_database, read_kernels, "results.db", share=20),
    Parser("amd-smi", some_gpus, as_json, read_amd_smi, "amd-smi.json"),
    Parser("rocm-smi", some_cards, as_json, read_rocm_smi, "rocm-smi.json"),
    Parser("rocminfo", some_agents, as_table(": "), read_rocminfo, "rocminfo.txt"),
    Parser("scontrol", a_job, as_table(" "), read_scontrol, "scontrol.txt"),
    Parser("sacct", an_account, as_table("|"), read_sacct, "sacct.txt"),
    Parser("sinfo", some_nodes, as_table("|"), read_sinfo, "sinfo.txt"),
    Parser("amounts", an_amount, as_table(" "), read_amounts, "amount.txt"),
    Parser("compileContext", a_context, as_literal, read_context, "context.txt"),
    Parser("data sets", a_data_set, as_bytes, read_data_set, "images.gz", share=10),
    Parser("Parquet", some_lines, as_parquet, read_archive, "2026-01.parquet", share=100),
)
"""One for each kind of file or answer that others write; slow ones try fewer inputs."""


# --- trying --------------------------------------------------------------------------------------


@dataclass
class Findings:
    """What became of a parser's inputs."""

    tried: int = 0
    answers: int = 0
    sentences: int = 0
    slowest_s: float = 0.0
    failures: list[str] | None = None
    """By the number of the input, what was wrong."""


class _TooSlowError(BaseException):
    """An input took too long; nobody may catch it."""


def try_inputs(parser: Parser, seed: int, count: int, folder: Path) -> Findings:
    """Give a parser its inputs, each as a file in an empty folder."""
    found = Findings(failures=[])
    assert found.failures is not None

    def too_slow(*_: object) -> NoReturn:
        raise _TooSlowError

    signal.signal(signal.SIGALRM, too_slow)
    file = folder / parser.file
    for number, data in inputs(parser, seed, count):
        file.write_bytes(data)
        found.tried += 1
        begin = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
        try:
            parser.read(file)
            found.answers += 1
        except (UserError, ToolError) as error:
            found.sentences += 1
            if "\n" in printable(str(error)):
                found.failures.append(f"{number}: no one sentence: {error!r}")
        except _TooSlowError:
            found.failures.append(f"{number}: took more than {LIMIT_S:g} s")
        except Exception:  # noqa: BLE001 - which is what is looked for
            last = traceback.format_exc().strip().splitlines()
            found.failures.append(f"{number}: {last[-1][:200]} at {last[-3].strip()[:120]}")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        found.slowest_s = max(found.slowest_s, time.perf_counter() - begin)
        left = sorted(path.name for path in folder.iterdir() if path != file)
        if left:
            found.failures.append(f"{number}: left {left}")
            break
        file.unlink()
    return found


def confine_after_loading(parser: Parser, folder: Path) -> None:
    """Read one sound document, which has to be taken; give the process that, and the limit."""
    unlimited = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (unlimited, unlimited))
    file = folder / parser.file
    file.write_bytes(input_of(parser, 0, 0))
    parser.read(file)
    file.unlink()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, unlimited))


def main(arguments: list[str] | None = None) -> int:
    """Try all inputs; returns the exit status."""
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parse.add_argument("--inputs", type=int, default=2000)
    parse.add_argument("--seed", type=int, default=1)
    names = [parser.name for parser in PARSERS]
    parse.add_argument("--parser", choices=names, help="try this one alone")
    parse.add_argument("--but", choices=names, help="try all others")
    parse.add_argument("--show", metavar="NAME:NUMBER", help="print one input and end")
    asked = parse.parse_args(arguments)
    by_name = {parser.name: parser for parser in PARSERS}
    if asked.show:
        name, _, number = asked.show.rpartition(":")
        sys.stdout.buffer.write(input_of(by_name[name], asked.seed, int(number)))
        return 0
    failed = 0
    for parser in PARSERS:
        if parser.name == asked.but or asked.parser not in (None, parser.name):
            continue
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            confine_after_loading(parser, Path(folder))
            found = try_inputs(parser, asked.seed, asked.inputs, Path(folder))
        failures = found.failures or []
        print(
            f"{parser.name:18} {found.tried:7} inputs {found.answers:7} answers "
            f"{found.sentences:7} sentences {len(failures):5} failures, "
            f"slowest {found.slowest_s:.3f} s",
            flush=True,
        )
        for failure in failures[:5]:
            print(f"    {failure}")
        failed += len(failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
