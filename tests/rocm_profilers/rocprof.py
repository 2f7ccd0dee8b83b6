"""``rocprof``, the first one."""

import sys
from pathlib import Path

from around import COUNTERS, counters_in, refuse, release, run, statistics, write


def main() -> int:
    """Do what the command line says; return the exit status."""
    words = sys.argv[1:]
    asked: dict[str, str] = {}
    while words and words[0].startswith("-"):
        flag = words.pop(0)
        if flag == "--version":
            sys.stdout.write(f"ROCm version: {'.'.join(map(str, release()))}\n")
            sys.stdout.write("ROCProfiler version: 2.0\n")
            return 0
        if flag == "--stats":
            asked[flag] = ""
        elif flag in ("-i", "-o", "--timestamp") and words:
            asked[flag] = words.pop(0)
        else:
            refuse(f"rocprof: Error: Wrong option '{flag}'")
    out = Path(asked.get("-o", "results.csv"))
    if out.suffix != ".csv":
        refuse("error: file name must have .CSV extension")
    counters = counters_in(asked["-i"]) if "-i" in asked else []
    timed = "--stats" in asked or asked.get("--timestamp") == "on"
    status, told = run(words)
    # It merges all processes.
    kernels = [(pid, *kernel) for pid, did in told.items() for kernel in did["kernels"]]
    header = ["Index", "KernelName", "gpu-id", "pid", *counters]
    header += ["DispatchNs", "BeginNs", "EndNs", "CompleteNs"] if timed else []
    rows = [header]
    for at, (pid, name, begin, end) in enumerate(kernels):
        times = [begin - 5, begin, end, end + 5] if timed else []
        rows.append([at, name, 0, pid, *(COUNTERS[c] for c in counters), *times])
    write(out, rows)
    if "--stats" in asked:
        each = statistics([kernel[1:] for kernel in kernels])
        columns = ["Name", "Calls", "TotalDurationNs", "AverageNs", "Percentage"]
        write(out.with_suffix(".stats.csv"), [columns, *each])
    return status
