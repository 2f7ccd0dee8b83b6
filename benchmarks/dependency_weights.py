"""What does each dependency weigh: its own files, and those of what only it brings?

    python benchmarks/dependency_weights.py

Sizes are of the files that each installed package lists, without what Python compiled of them, in
MB of 10^6 bytes.  What a second dependency needs as well counts for neither, unless that one needs
the first.  Of the dependencies of an extra or of development, what run time needs counts for none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Print a line for each dependency, heaviest first in each group."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"run time": project["dependencies"], **project["optional-dependencies"]}
    running: set[str] = set()
    print(f"{'dependency':24} {'itself':>8} {'brings':>8}  MB; what only it brings")
    for group, words in groups.items():
        needs = {name: _all_that(each) for each in _requirements(words) for name in [_name(each)]}
        print(f"\n{group}")
        for name, own, brings in sorted(_weighed(needs, running), key=lambda row: -row[1]):
            others = sorted(brings, key=_size, reverse=True)
            print(f"{name:24} {own:8.1f} {sum(map(_size, others)):8.1f}  {', '.join(others)}")
        if group == "run time":
            running = set().union(*needs.values())
            print(f"{'all':24} {sum(map(_size, running)):8.1f}")


def _weighed(
    needs: dict[str, set[str]], running: set[str]
) -> Iterator[tuple[str, float, set[str]]]:
    for name, closure in needs.items():
        others = (found for found in needs.values() if name not in found)
        yield name, _size(name), closure - set().union(*others, running, needs)


def _requirements(words: Iterable[str]) -> list[Requirement]:
    """Return those of the words that hold here, but for the project's own extras."""
    found = [Requirement(each) for each in words]
    return [
        each
        for each in found
        if _name(each) != "bench-lib" and (each.marker is None or each.marker.evaluate())
    ]


def _name(requirement: Requirement) -> str:
    return str(canonicalize_name(requirement.name))


def _all_that(wanted: Requirement) -> set[str]:
    """Return the names of all that a requirement installs here, its own among them."""
    found: set[tuple[str, str]] = set()
    ahead = [(_name(wanted), extra) for extra in ("", *wanted.extras)]
    while ahead:
        name, extra = each = ahead.pop()
        if each in found:
            continue
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # for another system, or not asked for
            continue
        found.add(each)
        for need in map(Requirement, needs):
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                ahead += [(_name(need), more) for more in ("", *need.extras)]
    return {name for name, _ in found}


def _size(name: str) -> float:
    """Return how much the files of an installed package take, in MB; 0 where it is not here."""
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        return 0.0
    paths = [Path(str(each.locate())) for each in files if not re.search(r"\.pyc$", each.name)]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


if __name__ == "__main__":
    main()
