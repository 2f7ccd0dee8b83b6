"""Documents of every kind that others write, and their readers: what benchmarks/fuzz.py spoils."""

from __future__ import annotations

import datetime as dt
import functools
import gzip
import json
import random
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import msgspec
from builders import (
    make_attempt,
    make_baseline,
    make_case,
    make_environment,
    make_hardware,
    make_measurement,
)

from bench_lib.backends.amd import metrics
from bench_lib.backends.amd.rocprof import counters
from bench_lib.backends.amd.tools import amd_smi, rocm_smi, rocminfo
from bench_lib.cases import matrix
from bench_lib.cases.axes import WorkloadAxes
from bench_lib.cases.declared import declared_axes
from bench_lib.cli.history import _details
from bench_lib.engine.telemetry import sample
from bench_lib.micro import compiling
from bench_lib.model import Attempt, Case, UserError
from bench_lib.profiling import answers, store, traces
from bench_lib.report import console
from bench_lib.report.tables import table
from bench_lib.slurm import asked, tools
from bench_lib.storage import acceptance, baselines, foreign, history, samples
from bench_lib.storage.archive import Archive, imports, months, tables
from bench_lib.storage.archive.lines import COLUMNS, split

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
    return make_case(id=f"{draw.choice(('resnet18', 'vgg16'))}-b{draw.randrange(1, 64)}")


RUN, TIME = "0a0a0a0a", "2026-01-02T03:04:05Z"
HISTORY_FILE = f"20260102T030405Z_mi300x_{RUN}.jsonl"


def an_attempt(draw: Draw, case: Case, process: int) -> Attempt:
    """Draw a process of a case."""
    times = [0.01 * (1 + draw.random() / 100) for _ in range(draw.randrange(1, 6))]
    measurement = make_measurement(
        case_id=case.id, iteration_s=times, probe={"launch_us": 2.0}, peak_memory_bytes=2**30
    )
    return make_attempt(case_id=case.id, process=process, measurement=measurement)


def a_history(draw: Draw) -> Tree:
    """Draw a run's file."""
    case, hardware = a_case(draw), make_hardware()
    environment = make_environment(variables={"TRITON_CACHE": "x"})
    attempts = [an_attempt(draw, case, process) for process in range(draw.randrange(1, 3))]
    verdict = {
        "metric": "latency",
        "status": draw.choice(("OK", "REGRESSED", "NOISY")),
        "reason": "as it was",
        "ratio": 1.0,
        "interval": [0.99, 1.01],
    }
    lines = [
        ("environment", {"ref": "e0e0e0e0", "environment": environment, "hardware": hardware}),
        *(("attempt", {"case": case, "nodeid": None, "attempt": each}) for each in attempts),
        ("tuned", {"case_id": case.id, "database": "41 entries"}),
        ("verdict", {"case_id": case.id, "status": "OK", "verdicts": [verdict]}),
        ("end", {"counts": {"OK": 1}, "exit_status": 0, "caches": {"triton": "cold"}}),
    ]
    head = {"schema": 1, "run": RUN, "time": TIME}
    return plain([{**head, "kind": kind, **about} for kind, about in lines])


def read_history(path: Path) -> None:
    """Read a run's file as the archive does, and show it."""
    data = path.read_bytes()
    split(path, data, 0)
    run = history.unfold(path, data)
    records = list(run.records.values())
    table(console.HEADINGS, console.summary_rows(records), 100)
    for record in records:
        _details(record, run.hardware)
        acceptance.processes_of(record)


def a_baseline(draw: Draw) -> Tree:
    """Draw a file of baselines."""
    cases = {}
    for case in (a_case(draw) for _ in range(2)):
        accepted = make_baseline([-4.6] * draw.randrange(1, 4), case_id=case.id)
        cases[case.id] = known(plain(accepted))
    return {
        "schema": draw.choice((1, 2)),
        "key": "mi300x",
        "hardware": plain(make_hardware()),
        "environments": {"e0e0e0e0": plain(make_environment())},
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


@functools.cache
def _axes_but(workloads: frozenset[str]) -> dict[str, WorkloadAxes]:
    return declared_axes(workloads)


def read_matrix(path: Path) -> None:
    """Read a matrix's cases; the program's own workloads, which are no input, are read once."""
    with mock.patch.object(matrix, "declared_axes", lambda but: _axes_but(frozenset(but))):
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


def a_benchmark_file(draw: Draw) -> Tree:
    """Draw pytest-benchmark's JSON."""
    times = [0.5 + draw.random() for _ in range(3)]
    stats = {"median": times[1], "rounds": 3, "data": draw.choice((times, None))}
    about = {"name": "test_sort[10]", "fullname": "x.py::test_sort[10]", "params": {"case": "a"}}
    return {
        "machine_info": {
            "node": "node-1",
            "python_version": "3.12.1",
            "cpu": {"brand_raw": "A CPU"},
            "gpu": {"name": "AMD Instinct MI300X", "key": "mi300x", "uuid": "GPU-1"},
        },
        "commit_info": {"id": "abc", "dirty": True},
        "benchmarks": [{**about, "stats": stats}],
        "datetime": "2026-01-02T04:04:05+01:00",
        "version": "5.1.0",
    }


def a_benchmark_table(draw: Draw) -> Tree:
    """Draw the CSV of ROCm's micro benchmark."""
    row = ["resnet50", 2, 64, 32, 1000.0, draw.random() + 0.1]
    return [[*imports.ROCM_COLUMNS], row, row]


def read_import(path: Path) -> None:
    """Read what ``history import`` is given."""
    imports._understood(path, path.read_bytes(), dt.datetime.now(dt.timezone.utc))


def some_looks(draw: Draw) -> Tree:
    """Draw what watches a device prints."""
    return [
        {
            "t": 1.0 + n,
            "source": "sysfs",
            "clock_mhz": 2100.0,
            "utilization": draw.random(),
            "throttle": ["thermal"],
            "pids": [7],
            "busy": [7],
            "names": {"7": "x"},
            "counters": {"ppt": 1.0},
            "dies_mhz": {"0": 2100.0},
            "due": 6.0,
        }
        for n in range(2)
    ]


def read_looks(path: Path) -> None:
    """Read them line by line; a line that is none is said to be none."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            sample.parse(line)


def a_metrics_file(draw: Draw) -> Tree:
    """Draw the kernel's ``gpu_metrics``, whose head is size and revision."""
    revision, size = draw.choice(((3, 120), (4, 288), (5, 360), (6, 1664), (8, 3872), (9, 200)))
    return [[size & 255, size >> 8, 1, revision], list(draw.randbytes(size - 4))]


def read_metrics(path: Path) -> None:
    """Read all of a card's sensors."""
    metrics.read(path.read_bytes())


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
            words, *values = statement if statement and isinstance(statement, list) else [statement]
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
    """Write whatever is a byte."""
    rows = [row for row in tree if isinstance(row, list)] if isinstance(tree, list) else []
    return bytes(n & 255 for row in rows for n in row if isinstance(n, int))


def as_compressed(write: Callable[[Tree], bytes]) -> Callable[[Tree], bytes]:
    """Return what compresses what another writes."""
    return lambda tree: gzip.compress(write(tree), 1)


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


RECORDED = Path(__file__).resolve().parents[1] / "tests" / "recorded" / "foreign"


def a_recording(pattern: str, between: str | None = None) -> Callable[[Draw], Tree]:
    """Return what draws one of the recordings of other people's benchmarks, as lines and cells."""

    def drawn(draw: Draw) -> Tree:
        path = draw.choice(sorted(RECORDED.glob(pattern)))
        if path.suffix == ".txt":
            return [line.split(between) for line in path.read_text().splitlines()]
        if path.suffix == ".json":
            return json.loads(path.read_text())
        return [json.loads(line) for line in path.read_text().splitlines()]

    return drawn


def read_foreign(form: str) -> Callable[[Path], object]:
    """Return what reads a file as both sides of ``judge --format``."""

    def read(path: Path) -> None:
        sides = {"baseline": [path], "candidate": [path]}
        found = foreign.read(foreign.FORMATS[form], sides)
        for name, case in found.cases.items():
            name.encode()
            case.case.encode()
            found.problems += case.problems
        for problem in found.problems:
            if "\n" in problem:
                raise AssertionError(f"no one sentence: {problem}")

    return read


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
    Parser("imports", a_benchmark_file, as_json, read_import, "benchmark.json"),
    Parser("imported CSV", a_benchmark_table, as_table(","), read_import, "benchmark.csv"),
    Parser("traces", a_trace, as_json, read_trace, "trace.json"),
    Parser(
        "compressed traces", a_trace, as_compressed(as_json), read_trace, "trace.json.gz", share=10
    ),
    Parser("rocprof kernels", a_kernel_table, as_table(","), read_kernels, "kernel_trace.csv"),
    Parser("rocprof counters", a_counter_table, as_table(","), read_counters, "counters.csv"),
    Parser("rocprof-compute", a_report, as_table(" │ ", "│"), read_report, "report.txt"),
    Parser("rocpd databases", a_database, as_database, read_kernels, "results.db", share=20),
    Parser("amd-smi", some_gpus, as_json, read_amd_smi, "amd-smi.json"),
    Parser("rocm-smi", some_cards, as_json, read_rocm_smi, "rocm-smi.json"),
    Parser("rocminfo", some_agents, as_table(": "), read_rocminfo, "rocminfo.txt"),
    Parser("gpu_metrics", a_metrics_file, as_bytes, read_metrics, "gpu_metrics"),
    Parser("telemetry", some_looks, as_json_lines, read_looks, "looks.jsonl"),
    Parser("scontrol", a_job, as_table(" "), read_scontrol, "scontrol.txt"),
    Parser("sacct", an_account, as_table("|"), read_sacct, "sacct.txt"),
    Parser("sinfo", some_nodes, as_table("|"), read_sinfo, "sinfo.txt"),
    Parser("amounts", an_amount, as_table(" "), read_amounts, "amount.txt"),
    Parser("compileContext", a_context, as_literal, read_context, "context.txt"),
    Parser("data sets", a_data_set, as_compressed(as_bytes), read_data_set, "images.gz", share=10),
    *(
        Parser(form, a_recording(pattern, between), write, read_foreign(form), f"file{kind}")
        for form, kind, pattern, between, write in (
            ("vllm", ".json", "vllm-*.json", None, as_json),
            ("sglang", ".jsonl", "sglang-*.jsonl", None, as_json_lines),
            ("pytest-benchmark", ".json", "pytest-benchmark.json", None, as_json),
            ("rccl-tests", ".txt", "rccl-tests*.txt", None, as_table("  ")),
            ("hipblaslt-bench", ".txt", "hipblaslt-bench*.txt", ",", as_table(",")),
        )
    ),
    Parser("Parquet", some_lines, as_parquet, read_archive, "2026-01.parquet", share=100),
)
"""One for each kind of file or answer that others write; slow ones try fewer inputs."""
