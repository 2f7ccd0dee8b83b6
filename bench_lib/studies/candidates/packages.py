"""Versions of one package: an environment each, all else in it as in the good one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from bench_lib.engine.settings import Side
from bench_lib.launch import exchanging, wheels
from bench_lib.launch.building import build
from bench_lib.launch.exchanging import Exchanged
from bench_lib.launch.faults import LaunchError
from bench_lib.studies.candidates import Candidate, CandidateError

LISTED = "Available versions:"
"""How pip begins the line that has them."""


class Packages:
    """The versions of a package between two, as a registry or a folder of wheels has them."""

    def __init__(
        self,
        package: str,
        python: str,
        *,
        folder: Path | None = None,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        imports: Sequence[str] = ("torch",),
    ) -> None:
        """Make nothing yet.

        ``python`` is the interpreter of the environment in which the package is exchanged, or a
        list of wheels.  Versions are those of pip's registry, or of a ``folder`` of wheels; their
        dependencies come from the registry.  ``options`` are those of ``pip install``, such as
        ``--index-url``.  A version is skipped if one of ``imports`` cannot be imported in its
        environment.
        """
        self._package = canonicalize_name(package)
        self._python = python
        self._from = folder
        self._options = [*options, *(["--find-links", str(folder)] if folder else [])]
        self._variables = dict(environment or {})
        self._imports = tuple(imports)
        self._made: dict[str, Exchanged] = {}

    def between(self, good: str, bad: str) -> list[Candidate]:
        """Return the versions from ``good`` to ``bad``, both of them included.

        An end is ``2.10.0`` or ``torch==2.10.0``.  Pre-releases are among them where an end is
        one.  Raises CandidateError, and LaunchError where the registry does not answer.
        """
        ends = [self._version(end) for end in (good, bad)]
        first, last = ends
        if first == last:
            raise CandidateError(f"{good} and {bad} are the same version of {self._package}")
        if first > last:
            why = f"{good} is newer than {bad}"
            raise CandidateError(f"{why}; name the older one first, also where it is the slow one")
        pre = any(end.is_prerelease for end in ends)
        known = self._in_folder() if self._from else self._in_registry(pre=pre)
        if missing := [str(end) for end in ends if end not in known]:
            nearest = sorted(known, key=lambda each: (each < first, each))[:5]
            there = ", ".join(map(str, nearest)) or "none"
            where = self._from or "the registry"
            raise CandidateError(f"{where} has no {self._package} {missing[0]}; there is {there}")
        return [
            Candidate(f"{self._package} {version}")
            for version in sorted(known)
            if first <= version <= last and (pre or not version.is_prerelease)
        ]

    def make(self, candidate: Candidate) -> Side:
        """Return the side of a version, installed unless that was done before.

        Raises LaunchError where it cannot be installed or imported.
        """
        if candidate.name not in self._made:
            self._made[candidate.name] = exchanging.exchanged(
                wheels.interpreter(self._python),
                [candidate.name.replace(" ", "==")],
                options=self._options,
                imports=self._imports,
            )
        return Side(self._made[candidate.name].python, self._variables)

    def close(self) -> None:
        """Remove the environments; a search that is to go on later keeps them."""
        for made in self._made.values():
            exchanging.remove(made)
        self._made.clear()

    def _version(self, end: str) -> Version:
        """Read an end; raises CandidateError."""
        name, equals, text = end.rpartition("==")
        if equals and canonicalize_name(name) != self._package:
            raise CandidateError(f"{end} is not a version of {self._package}")
        try:
            return Version(text)
        except InvalidVersion as error:
            why = f"{end!r} is no version of a package"
            raise CandidateError(f"{why}; write {self._package}==2.10.0, for example") from error

    def _in_registry(self, *, pre: bool) -> set[Version]:
        """Ask pip what its registry has; raises CandidateError and LaunchError."""
        python = wheels.interpreter(self._python)
        words = [*exchanging.pip(python), "index", "versions", self._package, *self._options]
        what = f"no versions of {self._package}"
        remedy = f"see that pip index versions {self._package} works"
        said = build([*words, *(["--pre"] if pre else [])], what, remedy=remedy)
        lines = [line for line in said.splitlines() if line.startswith(LISTED)]
        if not lines:
            raise LaunchError(f"{what}: pip does not list them; {remedy}")
        return {Version(text.strip()) for text in lines[0].removeprefix(LISTED).split(",")}

    def _in_folder(self) -> set[Version]:
        """Return what the wheels of a folder are; raises CandidateError."""
        assert self._from is not None
        if not self._from.is_dir():
            raise CandidateError(f"{self._from} is not a folder of wheels")
        found = set()
        for path in self._from.glob("*.whl"):
            try:
                name, version, _, _ = parse_wheel_filename(path.name)
            except (InvalidWheelFilename, InvalidVersion):
                continue  # someone else's file
            if name == self._package:
                found.add(version)
        return found
