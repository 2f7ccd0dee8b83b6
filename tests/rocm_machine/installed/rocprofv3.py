"""``rocprofv3``: runs an application, and writes what its kernels took."""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rocm_machine.present import Present, here

STATS = ("Name", "Calls", "TotalDurationNs", "AverageNs", "Percentage", "MinNs", "MaxNs", "StdDev")
AGENTS = ("Node_Id", "Logical_Node_Id", "Agent_Type", "Cu_Count", "Name", "Product_Name")


def write(path: Path, rows: list[list[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_NONNUMERIC).writerows(rows)


def statistics(kernels: dict[str, list[float]]) -> list[list[object]]:
    total = sum(sum(times) for times in kernels.values())
    rows: list[list[object]] = []
    for name, times in sorted(kernels.items(), key=lambda pair: -sum(pair[1])):
        own, mean = sum(times), sum(times) / len(times)
        spread = (sum((t - mean) ** 2 for t in times) / max(1, len(times) - 1)) ** 0.5
        rows.append(
            [
                name,
                len(times),
                round(own),
                round(mean, 6),
                float(f"{100 * own / total:.4g}"),
                round(min(times)),
                round(max(times)),
                round(spread, 6),
            ]
        )
    return rows


def agents(machine: Present) -> list[list[object]]:
    rows: list[list[object]] = [[0, 0, "CPU", 64, "AMD EPYC", "AMD EPYC"]]
    for number, gpu in enumerate(machine.devices, 1):
        rows.append([gpu["node"], number, "GPU", gpu["units"], gpu["arch"], gpu["name"]])
    return rows


def main(arguments: list[str]) -> int:
    machine = here(__file__)
    known = argparse.ArgumentParser(prog="rocprofv3", allow_abbrev=False)
    known.add_argument("-S", "--stats", action="store_true")
    for trace in ("--kernel-trace", "--marker-trace", "--memory-copy-trace"):
        known.add_argument(trace, action="store_true")
    known.add_argument("-d", "--output-directory", default=None)
    known.add_argument("-o", "--output-file", default=None)
    formats = ["csv", "json", "pftrace", "otf2"] + ["rocpd"] * (machine.version >= (7, 0))
    known.add_argument("-f", "--output-format", nargs="+", choices=formats)
    if "--" not in arguments:
        known.error("no application: give it after --")
    border = arguments.index("--")
    options, app = known.parse_args(arguments[:border]), arguments[border + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "kernels.json")
        environ = {**os.environ, "ROCM_MACHINE_TRACE": str(trace)}
        status = subprocess.run(app, env=environ, check=False).returncode
        kernels = json.loads(trace.read_text()) if trace.exists() else {}
    out = Path(options.output_directory or os.uname().nodename)
    out.mkdir(parents=True, exist_ok=True)
    name = (options.output_file or "%pid%").replace("%pid%", str(os.getpid()))
    chosen = options.output_format or (["rocpd"] if machine.version >= (7, 0) else ["csv"])
    if "rocpd" in chosen:
        (out / f"{name}_results.db").write_bytes(b"SQLite format 3\0")
    if "csv" in chosen:
        write(out / f"{name}_agent_info.csv", [list(AGENTS), *agents(machine)])
        if kernels and options.kernel_trace and options.stats:
            rows = statistics(kernels)
            write(out / f"{name}_kernel_stats.csv", [list(STATS), *rows])
            times = [time for each in kernels.values() for time in each]
            whole = statistics({"KERNEL_DISPATCH": times})
            write(out / f"{name}_domain_stats.csv", [list(STATS), *whole])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
