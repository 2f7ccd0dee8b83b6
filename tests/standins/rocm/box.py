"""Running programs on a made-up machine's own ``/sys`` and ``/dev``, in a mount namespace.

No root is needed, and nothing outside is changed.  AMD's own library and tools, which know no
other place for these files, run there as bench-lib does.
"""

from __future__ import annotations

import functools
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

NODES = ("null", "zero", "full", "random", "urandom", "tty")
"""Of the real ``/dev``, which every program may need."""
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


@functools.cache
def why_not() -> str | None:
    """Say why no program can be put into a box here; None where one can."""
    try:
        tried = subprocess.run(
            [*NAMESPACE, "mount", "-t", "tmpfs", "none", "/sys"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"mount namespaces: {error}"
    return f"mount namespaces: {tried.stderr.strip()}" if tried.returncode else None


def words(root: Path, command: Sequence[str]) -> list[str]:
    """Return the words that run a command over ``sys`` and ``dev`` of a machine's ``root``."""
    dev = root / "box-dev"
    lines = ["set -e", f"mkdir -p {dev}", f"mount -t tmpfs none {dev}", f"mkdir {dev}/shm"]
    for name in NODES:
        lines += [f"touch {dev}/{name}", f"mount --bind /dev/{name} {dev}/{name}"]
    for node in sorted((root / "dev").rglob("*")):
        inside = dev / node.relative_to(root / "dev")
        if node.is_dir():
            lines.append(f"mkdir -p {inside}")
        else:
            # A character device, which opens and answers nothing.
            lines += [f"mkdir -p {inside.parent}", f"touch {inside}"]
            lines.append(f"mount --bind /dev/null {inside}")
    lines += [f"mount --rbind {dev} /dev", f"mount --bind {root}/sys /sys"]
    lines.append(f"exec {shlex.join(command)}")
    return [*NAMESPACE, "sh", "-c", "\n".join(lines)]


def run(
    root: Path, command: Sequence[str], environ: Mapping[str, str], timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words(root, command),
        env=dict(environ),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
