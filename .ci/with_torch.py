"""Run Python with the torch of this machine: ``with_torch.py -m pytest perf_tests``.

tox makes environments of its own, and pip would put a torch for CUDA into them.  The interpreter
is that of BENCH_LIB_PYTHON, else the one that runs tox, else the first on PATH.  It has to have
bench-lib's requirements, and a torch for the GPUs that are here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ASKED = """
import importlib.util, json, runpy, sys
def has(name): return importlib.util.find_spec(name) is not None
about = {"prefix": sys.prefix, "torch": None}
about["missing"] = [name for name in ("msgspec", "pytest") if not has(name)]
if has("torch"):
    folder = importlib.util.find_spec("torch").submodule_search_locations[0]
    version = runpy.run_path(folder + "/version.py")
    about["torch"] = {n: version.get(n) for n in ("__version__", "hip", "cuda")}
print(json.dumps(about))
"""
BUILDS = {"hip": ("dev/kfd", "AMD"), "cuda": ("dev/nvidiactl", "NVIDIA")}


def started_by(process: int) -> str | None:
    """Return the interpreter that runs a process, as it was called; None if it cannot be told.

    It may be that of a virtual environment which nobody has activated.
    """
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    called = os.fsdecode(words[0])
    return called if Path(called).name.startswith("python") else None


def candidates(environ: dict[str, str], parent: str | None) -> Iterator[str]:
    """Yield the interpreters to ask, the likeliest first."""
    if named := environ.get("BENCH_LIB_PYTHON"):
        yield named
        return
    if parent:
        yield parent
    for folder in environ.get("PATH", "").split(os.pathsep):
        for name in ("python3", "python"):
            if folder and os.access(Path(folder, name), os.X_OK):
                yield str(Path(folder, name))


def about(python: str) -> dict[str, object] | None:
    """Ask an interpreter what it has; None where it cannot be asked, or is tox's environment."""
    try:
        answer = subprocess.run(
            [python, "-c", ASKED], capture_output=True, text=True, timeout=60, check=True
        )
        found = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return None if found["prefix"] == sys.prefix else found


def problem(python: str, found: dict[str, object], root: Path) -> str | None:
    """Say why an interpreter cannot measure here; None where it can."""
    if found["missing"]:
        missing = ", ".join(found["missing"])
        return f"{python} has torch, but not {missing}; run: {python} -m pip install -e ."
    torch = found["torch"]
    present = [build for build, (node, _) in BUILDS.items() if (root / node).exists()]
    if present and not any(torch[build] for build in present):
        vendor = BUILDS[present[0]][1]
        built = next((b for b in BUILDS if torch[b]), "CPUs")
        return (
            f"the torch {torch['__version__']} of {python} is built for {built}, and this machine "
            f"has {vendor} GPUs; set BENCH_LIB_PYTHON to the Python that has their torch"
        )
    return None


def main(
    words: list[str],
    environ: dict[str, str],
    root: Path = Path("/"),
    parent: str | None = None,
) -> int:
    """Run the words with the interpreter that is found; return their status."""
    asked = list(dict.fromkeys(candidates(environ, parent)))
    for python in asked:
        found = about(python)
        if found is None or found["torch"] is None:
            continue
        if why := problem(python, found, root):
            print(f"ERROR: {why}", file=sys.stderr)
            return 2
        print(f"torch {found['torch']['__version__']} of {python}", file=sys.stderr)
        own = {name: value for name, value in environ.items() if name != "VIRTUAL_ENV"}
        return subprocess.run([python, *words], env=own, check=False).returncode
    print(
        f"ERROR: no torch in {', '.join(asked) or 'any Python on PATH'}; set BENCH_LIB_PYTHON to "
        "the Python that has it",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], dict(os.environ), parent=started_by(os.getppid())))
