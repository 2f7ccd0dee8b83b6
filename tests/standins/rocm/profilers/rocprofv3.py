"""``rocprofv3`` of ROCm 6.2 to 7."""

import argparse
import json
import os
import sqlite3
import sys
from pathlib import Path

from around import COUNTERS, refuse, release, run, statistics, write

STATS = ["Name", "Calls", "TotalDurationNs", "AverageNs", "Percentage", "MinNs", "MaxNs", "StdDev"]
TRACE = [
    *("Kind", "Agent_Id", "Queue_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id", "Kernel_Name"),
    *("Correlation_Id", "Start_Timestamp", "End_Timestamp", "LDS_Block_Size"),
]
COPIES = [
    *("Kind", "Direction", "Source_Agent_Id", "Destination_Agent_Id", "Correlation_Id"),
    *("Start_Timestamp", "End_Timestamp"),
]
MARKERS = [
    *("Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id", "Start_Timestamp"),
    "End_Timestamp",
]
COUNTED = [
    *("Correlation_Id", "Dispatch_Id", "Agent_Id", "Process_Id", "Kernel_Name", "Counter_Name"),
    *("Counter_Value", "Start_Timestamp", "End_Timestamp"),
]
SCHEMA = """
CREATE TABLE rocpd_string_u (id INTEGER, guid TEXT, string TEXT);
CREATE TABLE rocpd_event_u (id INTEGER, guid TEXT, category_id INTEGER, extdata TEXT);
CREATE TABLE rocpd_region_u (id INTEGER, guid TEXT, start BIGINT, "end" BIGINT, event_id INTEGER);
CREATE TABLE rocpd_info_kernel_symbol_u (id INTEGER, guid TEXT, display_name TEXT);
CREATE TABLE rocpd_kernel_dispatch_u
  (id INTEGER, guid TEXT, kernel_id INTEGER, start BIGINT, "end" BIGINT);
CREATE TABLE rocpd_memory_copy_u
  (id INTEGER, guid TEXT, name_id INTEGER, start BIGINT, "end" BIGINT, size INTEGER);
"""


def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Take the flags of this release, and the application behind them."""
    rocm = release()
    known = argparse.ArgumentParser(prog="rocprofv3", allow_abbrev=False)
    for flag in ("--stats", "--kernel-trace", "--marker-trace", "--memory-copy-trace"):
        known.add_argument(flag, action="store_true")
    known.add_argument("-d", "--output-directory")
    known.add_argument("-o", "--output-file")
    formats = ["csv", "json", "pftrace"] + ["otf2"] * (rocm >= (6, 3)) + ["rocpd"] * (rocm >= (7,))
    short = ["-f"] * (rocm >= (7,))
    known.add_argument(*short, "--output-format", nargs="+", choices=formats)
    if rocm >= (6, 3):
        known.add_argument("--pmc", nargs="*")
    if rocm >= (7,) and words == ["--version"]:
        release_text = ".".join(map(str, rocm))
        sys.stdout.write(f"          version: 1.0.0\n     rocm_version: {release_text}\n")
        sys.exit(0)
    if "--" not in words or words[-1] == "--":
        refuse("rocprofv3: no application: give it after --")
    at = words.index("--")
    return known.parse_args(words[:at]), words[at + 1 :]


def database(path: Path, did: dict) -> None:
    """Write what rocprofv3 writes of ROCm 7 where no format is named."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as made:
        made.executescript(SCHEMA)
        tables = [row[0] for row in made.execute("SELECT name FROM sqlite_master")]
        for table in tables:
            made.execute(f"CREATE VIEW {table.removesuffix('_u')} AS SELECT * FROM {table}")
        ids: dict[str, int] = {}

        def string(text: str) -> int:
            if text not in ids:
                ids[text] = len(ids) + 1
                made.execute("INSERT INTO rocpd_string_u VALUES (?, 'g', ?)", (ids[text], text))
            return ids[text]

        symbols = {name: at for at, name in enumerate(dict.fromkeys(k[0] for k in did["kernels"]))}
        for name, at in symbols.items():
            made.execute("INSERT INTO rocpd_info_kernel_symbol_u VALUES (?, 'g', ?)", (at, name))
        for at, (name, begin, end) in enumerate(did["kernels"]):
            row = (at, symbols[name], begin, end)
            made.execute("INSERT INTO rocpd_kernel_dispatch_u VALUES (?, 'g', ?, ?, ?)", row)
        for at, (name, begin, end, size) in enumerate(did["copies"]):
            row = (at, string(f"MEMORY_COPY_{name}"), begin, end, size)
            made.execute("INSERT INTO rocpd_memory_copy_u VALUES (?, 'g', ?, ?, ?, ?)", row)
        ranges = [
            ("MARKER_CORE_RANGE_API", json.dumps({"message": n}), b, e) for n, b, e in did["ranges"]
        ]
        ranges.append(("HIP_RUNTIME_API", json.dumps({"message": "steps"}), 1, 10**17))
        for at, (category, about, begin, end) in enumerate(ranges):
            event = (at, string(category), about)
            made.execute("INSERT INTO rocpd_event_u VALUES (?, 'g', ?, ?)", event)
            row = (at, begin, end, at)
            made.execute("INSERT INTO rocpd_region_u VALUES (?, 'g', ?, ?, ?)", row)
    made.close()


def traces(out: Path, who: str, pid: int, did: dict, asked: argparse.Namespace) -> None:
    """Write what was asked for; no file for what there was nothing of."""
    if "pftrace" in asked.output_format:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{who}_results.pftrace").write_bytes(b"\n\x05trace")
    write(out / f"{who}_agent_info.csv", [["Node_Id", "Agent_Type"], [0, "CPU"]])
    kernels, copies, ranges = did["kernels"], did["copies"], did["ranges"]
    if asked.kernel_trace and kernels:
        rows = [
            ["KERNEL_DISPATCH", "Agent 1", 1, pid, at, 1, name, at, begin, end, 0]
            for at, (name, begin, end) in enumerate(kernels, 1)
        ]
        write(out / f"{who}_kernel_trace.csv", [TRACE, *rows[::-1]])
        if asked.stats:
            each = [[*row, 1, 2, 0.5] for row in statistics(kernels)]
            write(out / f"{who}_kernel_stats.csv", [STATS, *each])
    if asked.memory_copy_trace and copies:
        rows = [
            ["MEMORY_COPY", f"MEMORY_COPY_{way}", "Agent 0", "Agent 1", at, begin, end]
            for at, (way, begin, end, _) in enumerate(copies, 1)
        ]
        write(out / f"{who}_memory_copy_trace.csv", [COPIES, *rows])
    if asked.marker_trace and ranges:
        rows = [
            ["MARKER_CORE_API", name, pid, pid, at, begin, end]
            for at, (name, begin, end) in enumerate(ranges, 1)
        ]
        write(out / f"{who}_marker_api_trace.csv", [MARKERS, *rows])


def counted(out: Path, who: str, pid: int, did: dict, counters: list[str]) -> None:
    """Write a row for each counter of each call."""
    rows = [
        [at, at, "Agent 1", pid, name, counter, COUNTERS[counter], begin, end]
        for at, (name, begin, end) in enumerate(did["kernels"], 1)
        for counter in counters
    ]
    write(out / f"{who}_counter_collection.csv", [COUNTED, *rows])


def main() -> int:
    """Do what the command line says; return the exit status."""
    asked, app = parse(sys.argv[1:])
    counters = getattr(asked, "pmc", None) or []
    if set(counters) - set(COUNTERS):
        refuse(f"rocprofv3: no counters {counters}")
    chosen = asked.output_format or (["rocpd"] if release() >= (7,) else ["csv"])
    status, told = run(app)
    for pid, did in told.items():
        out = Path(
            asked.output_directory or ".", *([] if asked.output_file else [os.uname().nodename])
        )
        who = (asked.output_file or "%pid%").replace("%pid%", str(pid))
        if "rocpd" in chosen:
            database(out / f"{who}_results.db", did)
        if "csv" in chosen:
            traces(out, who, pid, did, asked)
            if counters:
                counted(out, who, pid, did, counters)
    return status
