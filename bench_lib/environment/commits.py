"""Reads git: the commits of a checkout, with their addresses on the web."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

GIT_TIMEOUT_S = 5.0
MOST = 20
"""The most commits that are listed of a range."""
_PLACES = {"bitbucket": "commits", "googlesource": "+", "gitlab": "-/commit"}
"""The path to a commit by a part of the host's name; on other hosts it is ``commit``."""
_SHORT_FORM = re.compile(r"(?:[^@/:]+@)?(?P<host>[^/:@\\]{2,}):(?P<path>(?!//).+)")
"""``git@host:owner/name.git``; a single letter before the colon is a drive."""
_HASH = re.compile(r"[0-9a-f]{7,64}")
_FORM = "%H%x00%s%x00%an%x00%cI"


@dataclass(frozen=True)
class Commit:
    """One commit."""

    hash: str
    subject: str
    """Its first line."""
    author: str
    date: str
    """When it was committed, in ISO 8601 with the time zone."""
    address: str
    """Its address on the web; empty if there is none."""


def commit_address(remote: str, commit: str) -> str:
    """Return a commit's address on the web, derived from the URL of git's remote.

    Empty if the remote is a folder or not a URL.  Users and passwords are removed.
    """
    short = _SHORT_FORM.fullmatch(remote)
    try:
        parts = urlsplit(f"ssh://{short['host']}/{short['path']}" if short else remote)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    path = parts.path.strip("/").removesuffix(".git")
    if parts.scheme not in ("https", "http", "ssh", "git") or not host or not path:
        return ""
    scheme = "http" if parts.scheme == "http" else "https"
    if port is not None and parts.scheme in ("https", "http"):
        host = f"{host}:{port}"
    place = next((place for part, place in _PLACES.items() if part in host), "commit")
    return f"{scheme}://{host}/{quote(path)}/{place}/{quote(commit)}"


class Checkout:
    """The git repository around a folder; each question is asked once."""

    def __init__(self, folder: Path) -> None:
        """Remember the folder."""
        self._folder = folder
        self._log = functools.cache(self._read)

    def between(self, old: str, new: str) -> list[Commit]:
        """Return up to MOST commits that ``new`` has and ``old`` has not, the newest first.

        Empty if either is not in this repository.
        """
        if not (_HASH.fullmatch(old) and _HASH.fullmatch(new)):
            return []
        return self._log(f"{old}..{new}", f"--max-count={MOST}")

    def line(self, old: str, new: str) -> list[Commit]:
        """Return the commits on the branch of ``new`` after ``old``, the oldest first.

        A merge counts as one commit, without the commits that it merged.
        """
        return self._read(f"{old}..{new}", "--first-parent", "--reverse")

    def _read(self, *arguments: str) -> list[Commit]:
        command = ("log", "--no-show-signature", f"--format={_FORM}", *arguments, "--")
        answer = git(self._folder, *command)
        lines = (line.split("\0") for line in (answer or "").split("\n"))
        return [
            Commit(hash_, subject, author, date, commit_address(self._origin, hash_))
            for hash_, subject, author, date in (line for line in lines if len(line) == 4)
        ]

    @functools.cached_property
    def _origin(self) -> str:
        names = (git(self._folder, "remote") or "").split()
        name = "origin" if "origin" in names else next(iter(names), "")
        return (git(self._folder, "remote", "get-url", name) or "") if name else ""


def git(folder: Path, *arguments: str, limit_s: float = GIT_TIMEOUT_S) -> str | None:
    """Return what git prints in a folder; None if it fails or exceeds ``limit_s`` seconds."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments],  # noqa: S607 - whichever git the user has
            capture_output=True,
            check=True,
            encoding="utf-8",
            errors="replace",
            # git status must not write to the checkout.
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            timeout=limit_s,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
