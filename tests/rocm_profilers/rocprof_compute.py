"""``rocprof-compute`` of ROCm 6.3 to 7: profiles by running often, and prints tables."""

import argparse
import csv
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
    version = {6: "3.1.1", 7: "3.2.1"}[release()[0]]
    line = "-" * 40
    text = f"{line}\nrocprofiler-compute version: {version} (release)\n{line}\n"
    known.add_argument("-v", "--version", action="version", version=text)
    modes = known.add_subparsers(dest="mode", required=True)
    profile = modes.add_parser("profile", allow_abbrev=False)
    profile.add_argument("-n", "--name", required=True)
    profile.add_argument("-p", "--path", default="workloads")
    profile.add_argument("-b", "--block", nargs="+", default=[])
    profile.add_argument("--no-roof", action="store_true")
    profile.add_argument("remaining", nargs=argparse.REMAINDER)
    analyze = modes.add_parser("analyze", allow_abbrev=False)
    analyze.add_argument("-p", "--path", nargs="+", action="append", required=True)
    analyze.add_argument("-b", "--block", nargs="+")
    return known.parse_args()


def main() -> int:
    """Do what the command line says; return the exit status."""
    asked = parse()
    if asked.mode == "analyze":
        for path in (Path(path) for group in asked.path for path in group):
            with (path / "pmc_perf.csv").open() as file:
                rows = list(csv.DictReader(file))
            sys.stdout.write(TABLE.format(name=rows[0]["Kernel_Name"][:17], calls=len(rows), ns=7))
        return 0
    if "/" in asked.name:
        refuse("'/' not permitted in profile name")
    for block in asked.block:
        if release() >= (7,) and not re.fullmatch(r"\d{1,2}(?:\.\d{1,2}){0,2}", block):
            refuse(f"Invalid metric id: {block}")
        if release() < (7,) and block not in BLOCKS:
            refuse(f"invalid choice: {block}")
    if asked.remaining[:1] != ["--"] or len(asked.remaining) < 2:
        refuse("Profiling command required. Pass application executable after --")
    counters = ["SQ_LDS_BANK_CONFLICT", "SQ_LDS_IDX_ACTIVE", "TCC_HIT_sum", "TCC_MISS_sum"]
    status = 0
    for _ in range(PASSES):
        status, told = run(asked.remaining[1:])
    header = ["Dispatch_ID", "GPU_ID", "Kernel_Name", *counters, *RAW]
    rows = [[*header, "Start_Timestamp", "End_Timestamp"]]
    for did in told.values():
        for at, (name, begin, end) in enumerate(did["kernels"]):
            figures = [*(COUNTERS[counter] for counter in counters), *FIGURES]
            rows.append([at, 0, name, *figures, begin, end])
    write(Path(asked.path) / "pmc_perf.csv", rows, quoted=False)
    write(Path(asked.path) / "sysinfo.csv", [["workload_name"], [asked.name]])
    return status
