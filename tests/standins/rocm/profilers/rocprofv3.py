"""``rocprofv3`` of ROCm 6.4 and later."""

import argparse
import os
import sys
from pathlib import Path

from around import refuse, release, run, statistics, write

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
    if rocm >= (7,) and words == ["--version"]:
        release_text = ".".join(map(str, rocm))
        sys.stdout.write(f"          version: 1.0.0\n     rocm_version: {release_text}\n")
        sys.exit(0)
    if "--" not in words or words[-1] == "--":
        refuse("rocprofv3: no application: give it after --")
    at = words.index("--")
    return known.parse_args(words[:at]), words[at + 1 :]


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


def main() -> int:
    asked, app = parse(sys.argv[1:])
    chosen = asked.output_format or (["rocpd"] if release() >= (7,) else ["csv"])
    status, told = run(app)
    for pid, did in told.items():
        out = Path(
            asked.output_directory or ".", *([] if asked.output_file else [os.uname().nodename])
        )
        who = (asked.output_file or "%pid%").replace("%pid%", str(pid))
        if "csv" in chosen:
            traces(out, who, pid, did, asked)
    return status
