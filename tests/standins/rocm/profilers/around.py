"""What the stand-ins of ROCm's profilers have in common: running, and writing files."""

import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def release() -> tuple[int, ...]:
    """Return that of the ROCm around the stand-in."""
    text = Path(sys.argv[0]).parents[1].joinpath(".info/version").read_text()
    return tuple(int(part) for part in text.split("-")[0].split("."))


def run(app: list[str]) -> tuple[int, dict[int, dict]]:
    """Run the application; return its status and what each of its processes had a GPU do."""
    with tempfile.TemporaryDirectory() as folder:
        status = subprocess.run(app, env={**os.environ, "PROFILED": folder}, check=False).returncode
        told = {int(p.stem): json.loads(p.read_text()) for p in sorted(Path(folder).glob("*"))}
    return status, told


def refuse(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.exit(2)


def write(path: Path, rows: list, *, quoted: bool = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    how = csv.QUOTE_NONNUMERIC if quoted else csv.QUOTE_MINIMAL
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=how, lineterminator="\n").writerows(rows)


def statistics(spans: list) -> list:
    """Return name, calls, total, average and share of each, the longest first."""
    times: dict[str, list[int]] = {}
    for name, begin, end, *_ in spans:
        times.setdefault(name, []).append(end - begin)
    whole = sum(sum(each) for each in times.values())
    ordered = sorted(times.items(), key=lambda pair: -sum(pair[1]))
    return [[n, len(t), sum(t), sum(t) / len(t), 100 * sum(t) / whole] for n, t in ordered]
