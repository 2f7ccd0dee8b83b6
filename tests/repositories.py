"""Git repositories that tests write to."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

WHO = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Ada"), ("EMAIL", "ada@example.org"))
}


class Repository:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *words: str) -> str:
        """Run git as Ada, and return what it prints."""
        done = subprocess.run(
            ["git", "-C", str(self.folder), *words],
            env={**os.environ, **WHO, "GIT_CONFIG_GLOBAL": os.devnull},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def commit(self, subject: str, **files: str) -> str:
        """Commit files, by their names without ``.py``; returns the hash."""
        for name, text in files.items():
            path = self.folder / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", subject)
        return self.git("rev-parse", "HEAD")

    def worktrees(self) -> int:
        """How many git knows, besides its own."""
        return len(self.git("worktree", "list").splitlines()) - 1
