"""ROCm of some release, with some of its profilers, laid out in a folder.

The profilers take the flags that their release takes and no others, run the application behind
them, and write the files that it writes; what the application "ran" it says itself (`app.py`).
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent

COMPUTE = ("6.2.0", "7.1.0", "7.12.0", "7.13.0", "7.14.0", "10.0.0", "10.1.0")
"""The releases of ROCm whose rocprof-compute differs from the one before."""


def install(folder: Path, *tools: str, version: str) -> dict[str, str]:
    """Install, and return the environment in which the tools are found."""
    (folder / "bin").mkdir(parents=True)
    (folder / ".info").mkdir()
    (folder / ".info/version").write_text(f"{version}\n")
    for tool in tools:
        write_program(folder / "bin" / tool)
    return {"PATH": str(folder / "bin"), "ROCM_PATH": str(folder)}


def write_program(path: Path) -> None:
    """Make the program of a profiler, which its file's name says."""
    path.write_text(
        f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(HERE)!r})\n"
        f"import {path.name.replace('-', '_')} as tool\nsys.exit(tool.main())\n"
    )
    path.chmod(0o755)


def application(processes: int = 1) -> list[str]:
    """Return the words that run the application."""
    return [sys.executable, "-IS", str(HERE / "app.py"), str(processes)]
