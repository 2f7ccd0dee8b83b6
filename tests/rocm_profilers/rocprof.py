"""``rocprof``, the first one."""

from pathlib import Path

from around import COUNTERS, asked_for, counters_in, refuse, run, statistics, write


def main() -> int:
    """Do what the command line says; return the exit status."""
    valued = ("-i", "-o", "--timestamp")
    asked, words = asked_for(("--stats",), valued, "rocprof: Error: Wrong option '{}'")
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
