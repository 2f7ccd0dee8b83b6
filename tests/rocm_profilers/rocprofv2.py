"""``rocprofv2`` with its plugin that writes files."""

import sys
from pathlib import Path

from around import COUNTERS, asked_for, counters_in, refuse, run

RESULTS = (
    "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,Kernel_Name,Start_Timestamp,"
    "End_Timestamp,Correlation_ID"
)


def main() -> int:
    """Do what the command line says; return the exit status."""
    asked, words = asked_for(
        ("--kernel-trace", "--roctx-trace", "--hip-trace", "--hsa-trace"),
        ("-d", "-o", "-i", "--plugin"),
        'Wrong option "{}", Please use the following options:',
    )
    if not words or asked.get("--plugin") != "file":
        refuse("usage: rocprofv2 [options] application")
    counters = counters_in(asked["-i"]) if "-i" in asked else []
    folder = Path(asked.get("-d", "."), *(["pmc_1"] if counters else []))
    status, told = run(words)
    if not folder.is_dir():
        sys.stderr.write(f"Cannot open output directory '{folder}'\n")
        return status
    for pid, did in told.items():
        lines = [",".join([RESULTS, *counters]), ""]
        for at, (name, begin, end) in enumerate(did["kernels"], 1):
            cells = [at, 1, 1, pid, pid, 64, 64, f'"{name}"', begin, end, at]
            lines.append(",".join(map(str, [*cells, *(COUNTERS[c] for c in counters)])))
        if "--kernel-trace" in asked or counters:
            path = folder / f"results_{asked.get('-o', pid)}.csv"
            path.write_text("\n".join(lines) + "\n")
        if "--roctx-trace" in asked:
            lines = ["Domain,ROCTX_ID,Message,Timestamp", ""]
            for name, begin, end in did["ranges"]:
                lines += [f'ROCTX_DOMAIN,0,"{name}",{begin}', f"ROCTX_DOMAIN,0,,{end}"]
            path = folder / f"roctx_trace_{asked.get('-o', pid)}.csv"
            path.write_text("\n".join(lines) + "\n")
    return status
