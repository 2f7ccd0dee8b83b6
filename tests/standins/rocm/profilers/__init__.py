"""ROCm of some release, with its profiler, laid out in a folder.

The profiler takes the flags that its release takes and no others, runs the application behind
them, and writes the files that it writes; what the application "ran" it says itself (`app.py`).
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent


def install(folder: Path, *, version: str) -> dict[str, str]:
    (folder / "bin").mkdir(parents=True)
    (folder / ".info").mkdir()
    (folder / ".info/version").write_text(f"{version}\n")
    write_program(folder / "bin/rocprofv3")
    return {"PATH": str(folder / "bin"), "ROCM_PATH": str(folder)}


def write_program(path: Path) -> None:
    """Make the program of a profiler, which its file's name says."""
    path.write_text(
        f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(HERE)!r})\n"
        f"import {path.name} as tool\nsys.exit(tool.main())\n"
    )
    path.chmod(0o755)


def application(processes: int = 1) -> list[str]:
    return [sys.executable, "-IS", str(HERE / "app.py"), str(processes)]
