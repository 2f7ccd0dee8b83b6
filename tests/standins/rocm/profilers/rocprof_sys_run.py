"""``rocprof-sys-run`` of ROCm 6.3 to 10.0: runs once and leaves a trace of each process."""

import sys
from pathlib import Path

from around import refuse, release, run


def main() -> int:
    """Take the flags of this release, run, and write."""
    words = sys.argv[1:]
    if "--" not in words:
        refuse("Usage: rocprof-sys-run <OPTIONS> -- <COMMAND> <ARGS>")
    flags, app = words[: words.index("--")], words[words.index("--") + 1 :]
    is_new = release() >= (7, 14)
    wanted = ["--output-format", "proto"] if is_new else ["--trace"]
    if flags[:-2] != wanted or flags[-2] != "--output":
        refuse(f"unknown options: {' '.join(flags)}")
    status, told = run(app)
    folder = Path(flags[-1]) / "2026-01-05_10.00"
    folder.mkdir(parents=True)
    for pid in told:
        (folder / f"perfetto-trace-{pid}.proto").write_bytes(b"\x0a\x00")
    return status
