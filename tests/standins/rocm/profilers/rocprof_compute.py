"""``rocprof-compute`` of ROCm 6.2 to 10.1: profiles by running often, and prints tables."""

import argparse
import csv
import gzip
import itertools
import re
import sys
from pathlib import Path

from around import COUNTERS, refuse, release, run, write

PASSES = 2
RAW = ["TCC_EA0_RDREQ_sum", "TCC_EA0_RDREQ_32B_sum", "TCC_BUBBLE_sum"]
FIGURES = (10_000.0, 2000.0, 3000.0)
BLOCKS = ("SQ", "SQC", "TA", "TD", "TCP", "TCC", "SPI", "CPC", "CPF")
TABLE = """
--------------------------------------------------------------------------------
0. Top Stats
0.1 Top Kernels
╒════╤════════════════════════╤═════════╤═══════════╕
│    │ Kernel_Name            │   Count │   Sum(ns) │
╞════╪════════════════════════╪═════════╪═══════════╡
│  0 │ {name}      │ {calls}      │ {ns}    │
│    │ continued              │         │           │
╘════╧════════════════════════╧═════════╧═══════════╛

2. System Speed-of-Light
2.1 System Speed-of-Light
╒═════════════╤════════════════════════════╤═════════╤══════════════════╤═════════╤═══════════════╕
│ Metric_ID   │ Metric                     │ Avg     │ Unit             │ Peak    │ Pct of Peak   │
╞═════════════╪════════════════════════════╪═════════╪══════════════════╪═════════╪═══════════════╡
│ 2.1.14      │ IPC                        │ 1.25    │ Instr/cycle      │ 5.0     │ 25.0          │
├─────────────┼────────────────────────────┼─────────┼──────────────────┼─────────┼───────────────┤
│ 2.1.15      │ Wavefront Occupancy        │ 2432.0  │ Wavefronts       │ 9728.0  │ 25.0          │
├─────────────┼────────────────────────────┼─────────┼──────────────────┼─────────┼───────────────┤
│ 2.1.17      │ LDS Bank Conflicts/Access  │ 1.5     │ Conflicts/access │ 32.0    │ 4.69          │
├─────────────┼────────────────────────────┼─────────┼──────────────────┼─────────┼───────────────┤
│ 2.1.20      │ L2 Cache Hit Rate          │ 60.0    │ Pct              │ 100.0   │ 60.0          │
├─────────────┼────────────────────────────┼─────────┼──────────────────┼─────────┼───────────────┤
│ 2.1.22      │ L2-Fabric Read BW          │ 2650.0  │ Gb/s             │ 5300.0  │ 50.0          │
├─────────────┼────────────────────────────┼─────────┼──────────────────┼─────────┼───────────────┤
│ 2.1.23      │ L2-Fabric Write BW         │ 2120.0  │ Gb/s             │ 5300.0  │ 40.0          │
├─────────────┼────────────────────────────┼─────────┼──────────────────┼─────────┼───────────────┤
│ 2.1.24      │ L2-Fabric Read Latency     │         │ Cycles           │         │               │
╘═════════════╧════════════════════════════╧═════════╧══════════════════╧═════════╧═══════════════╛
"""


def parse() -> argparse.Namespace:
    """Take the flags of this release."""
    known = argparse.ArgumentParser(prog="rocprof-compute", allow_abbrev=False)
    version = {6: "3.1.1", 7: "3.2.1", 10: "3.8.0"}[release()[0]]
    line = "-" * 40
    text = f"{line}\nrocprofiler-compute version: {version} (release)\n{line}\n"
    known.add_argument("-v", "--version", action="version", version=text)
    modes = known.add_subparsers(dest="mode", required=True)
    profile = modes.add_parser("profile", allow_abbrev=False)
    profile.add_argument("-n", "--name", default="")
    if release() < (7, 14):
        profile.add_argument("-p", "--path", default="workloads")
    if release() >= (7, 12):
        profile.add_argument("-d", "--output-directory", dest="path")
    profile.add_argument("-b", "--block", nargs="+", default=[])
    profile.add_argument("--no-roof", action="store_true")
    profile.add_argument("remaining", nargs=argparse.REMAINDER)
    analyze = modes.add_parser("analyze", allow_abbrev=False)
    analyze.add_argument("-p", "--path", nargs="+", action="append", required=True)
    analyze.add_argument("-b", "--block", nargs="+")
    return known.parse_args()


CALL = ("GPU_ID", "Dispatch_ID", "Kernel_Name", "Start_Timestamp", "End_Timestamp")


def tables(path: Path) -> list[Path]:
    """List the tables that a profile left, as ``analyze`` looks for them."""
    kinds = ("pmc_perf.csv", "results_*.csv", "results_*.csv.gz")
    return next((found for kind in kinds if (found := sorted(path.glob(kind)))), [])


def opened(path: Path):
    """Open a table, compressed or not."""
    return gzip.open(path, "rt") if path.suffix == ".gz" else path.open()


def wide(calls: list[tuple[str, int, int]], counters: list[str]) -> list[list[object]]:
    """Lay out a row for each call, with all counters: up to ROCm 7.2."""
    rows = [["Dispatch_ID", "GPU_ID", "Kernel_Name", *counters, *RAW, *CALL[-2:]]]
    for at, (name, begin, end) in enumerate(calls):
        figures = [*(COUNTERS[counter] for counter in counters), *FIGURES]
        rows.append([at, 0, name, *figures, begin, end])
    return rows


def long(calls: list[tuple[str, int, int]], counters: list[str], at_ns: int) -> list[list[object]]:
    """Lay out a row for each counter of each call, as a run ``at_ns`` later saw it."""
    return [
        [0, n, name, begin + at_ns, end + at_ns, counter, COUNTERS[counter]]
        for n, (name, begin, end) in enumerate(calls)
        for counter in counters
    ]


def leave(path: Path, runs: list[list[list[object]]]) -> None:
    """Write tables in the long form: one of all runs, and one for each since ROCm 7.13."""
    header = [*CALL, "Counter_Name", "Counter_Value"]
    if release() < (7, 13):
        write(path / "pmc_perf.csv", [header, *itertools.chain(*runs)], quoted=False)
        return
    for number, rows in enumerate(runs):
        file = path / f"results_pmc_perf_{number}.csv"
        write(file, [header, *rows], quoted=False)
        if release() >= (10, 1):
            (path / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()


def main() -> int:
    """Do what the command line says; return the exit status."""
    asked = parse()
    if asked.mode == "analyze":
        for path in (Path(path) for group in asked.path for path in group):
            with opened(tables(path)[0]) as file:
                rows = list(csv.DictReader(file))
            told = TABLE.format(name=rows[0]["Kernel_Name"][:17], calls=len(rows), ns=7)
            if release() >= (10,):
                told = told.replace(" Pct of Peak   ", " Percent of Peak ")
            sys.stdout.write(told)
        return 0
    if release() < (7, 12) and not asked.name:
        refuse("-n/--name is required")
    if "/" in asked.name:
        refuse("'/' not permitted in profile name")
    for block in asked.block:
        if release() >= (7,) and not re.fullmatch(r"\d{1,2}(?:\.\d{1,2}){0,2}", block):
            refuse(f"Invalid metric id: {block}")
        if release() < (7,) and block not in BLOCKS:
            refuse(f"invalid choice: {block}")
    if asked.remaining[:1] != ["--"] or len(asked.remaining) < 2:
        refuse("Profiling command required. Pass application executable after --")
    path = Path(asked.path)
    if release() >= (10,) and path.is_dir() and any(path.iterdir()):
        refuse("the target directory is not empty; pass --overwrite")
    counters = ["SQ_LDS_BANK_CONFLICT", "SQ_LDS_IDX_ACTIVE", "TCC_HIT_sum", "TCC_MISS_sum"]
    status, runs = 0, []
    for number in range(PASSES):
        status, told = run(asked.remaining[1:])
        calls = [call for did in told.values() for call in did["kernels"]]
        runs.append(long(calls, counters[2 * number : 2 * number + 2], 10**9 * number))
    if release() < (7, 12):
        write(path / "pmc_perf.csv", wide(calls, counters), quoted=False)
    else:
        leave(path, runs)
    write(path / "sysinfo.csv", [["workload_name"], [asked.name]])
    return status
