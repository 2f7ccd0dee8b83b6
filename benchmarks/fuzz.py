"""Hostile inputs for every parser: does each get an answer or one sentence, in 2 s and 256 MB?

    python benchmarks/fuzz.py [--inputs 2000] [--seed 1] [--parser NAME | --but NAME]
    python benchmarks/fuzz.py [--seed 1] --show NAME:NUMBER

Each parser has a grammar that draws sound documents.  A drawn document is spoilt in its grammar
(a value, a name, a row, its depth) or in its bytes, and given to the parser as a file.  An input is
told by its parser, its seed and its number, and ``--show`` prints one.  The process has no more
than 256 MB beside what it has loaded, an alarm ends an input after 2 s, and the folder it works in
has to stay as it was.  Prints a line for each parser; ends with status 1 where one failed.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fuzz_documents import PARSERS, Draw, Parser, Tree

from bench_lib.backends.tool import ToolError
from bench_lib.formats import printable
from bench_lib.model import UserError

LIMIT_S = 2.0
LIMIT_BYTES = 256 * 2**20


# --- spoiling ------------------------------------------------------------------------------------

DEEP: list[Any] = []
for _ in range(200):
    DEEP = [DEEP]
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.0, -0.0, 0.5, -1e-300),
    *(1e308, 1e-308, float("nan"), float("inf"), float("-inf")),
    *("", " ", "x", "0", "-1", "1e999", "nan", "N/A", "9" * 400, "1-999999999", "\x00", "\ud800"),
    *("\x1b]0;x\x07\x1b[2J", "=1+1", "<script>", "../../etc/passwd", "a\nb", "\u202e", "x" * 5000),
    *([], {}, [None], {"x": None}, DEEP),
)
"""Values that no parser expects where they come."""
TOKENS = (
    b"\x00",
    b"\xff\xfe",
    b"\n",
    b'"',
    b"{",
    b"]",
    b",",
    b"|",
    b"=",
    b"\\ud800",
    b"1e999",
    b"-",
)


def spoilt(draw: Draw, tree: Tree) -> Tree:
    """Return a document with one node of it changed."""
    places = _places(tree, []) if isinstance(tree, (dict, list)) else []
    if not places:
        return deepcopy(draw.choice(ODD))
    parent, at = draw.choice(places)
    match draw.randrange(6):
        case 0 | 1 | 2:
            parent[at] = deepcopy(draw.choice(ODD))
        case 3:
            del parent[at]
        case 4 if isinstance(parent, list):
            parent.insert(at, deepcopy(draw.choice([parent[at], *ODD])))
        case 4:
            parent[str(draw.choice(ODD))] = deepcopy(parent[at])
        case _:
            other, there = draw.choice(places)
            parent[at] = deepcopy(other[there])
    return tree


def _places(tree: Tree, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return ``found`` with every node below the first, by what holds it and where."""
    items: Any = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for at, value in items:
        found.append((tree, at))
        if isinstance(value, (dict, list)):
            _places(value, found)
    return found


def torn(draw: Draw, data: bytes) -> bytes:
    """Return a document with some of its bytes changed."""
    at = draw.randrange(len(data) + 1)
    end = min(len(data), at + draw.choice((1, 1, 8, 100)))
    match draw.randrange(5):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[end:]
        case 2:
            return data[:at] + data[at:end] * 3 + data[end:]
        case 3:
            return data[:at] + bytes(draw.randrange(256) for _ in range(end - at)) + data[end:]
        case _:
            return data[:at] + draw.choice(TOKENS) + data[at:]


def inputs(parser: Parser, seed: int, count: int) -> Iterator[tuple[int, bytes]]:
    """Yield inputs by their number; the first is sound."""
    for number in range(0, count, parser.share):
        yield number, input_of(parser, seed, number)


def input_of(parser: Parser, seed: int, number: int) -> bytes:
    """Return one input."""
    draw = Draw(f"{parser.name} {seed} {number}")
    tree = parser.sound(draw)
    times = 0 if number == 0 else draw.choice((0, 1, 1, 2, 3))
    for _ in range(times):
        tree = spoilt(draw, tree)
    data = parser.write(tree)
    return torn(draw, data) if number and (times == 0 or draw.random() < 0.2) else data


# --- trying --------------------------------------------------------------------------------------


@dataclass
class Findings:
    """What became of a parser's inputs."""

    tried: int = 0
    answers: int = 0
    sentences: int = 0
    slowest_s: float = 0.0
    failures: list[str] | None = None
    """By the number of the input, what was wrong."""


class _TooSlowError(BaseException):
    """An input took too long; nobody may catch it."""


def try_inputs(parser: Parser, seed: int, count: int, folder: Path) -> Findings:
    """Give a parser its inputs, each as a file in an empty folder."""
    found = Findings(failures=[])
    assert found.failures is not None

    def too_slow(*_: object) -> NoReturn:
        raise _TooSlowError

    signal.signal(signal.SIGALRM, too_slow)
    file = folder / parser.file
    for number, data in inputs(parser, seed, count):
        file.write_bytes(data)
        found.tried += 1
        begin = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
        try:
            parser.read(file)
            found.answers += 1
        except (UserError, ToolError) as error:
            found.sentences += 1
            if "\n" in printable(str(error)):
                found.failures.append(f"{number}: no one sentence: {error!r}")
        except _TooSlowError:
            found.failures.append(f"{number}: took more than {LIMIT_S:g} s")
        except Exception:  # noqa: BLE001 - which is what is looked for
            last = traceback.format_exc().strip().splitlines()
            found.failures.append(f"{number}: {last[-1][:200]} at {last[-3].strip()[:120]}")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        found.slowest_s = max(found.slowest_s, time.perf_counter() - begin)
        left = sorted(path.name for path in folder.iterdir() if path != file)
        if left:
            found.failures.append(f"{number}: left {left}")
            break
        file.unlink()
    return found


def confine_after_loading(parser: Parser, folder: Path) -> None:
    """Read one sound document, which has to be taken; give the process that, and the limit."""
    unlimited = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (unlimited, unlimited))
    file = folder / parser.file
    file.write_bytes(input_of(parser, 0, 0))
    parser.read(file)
    file.unlink()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, unlimited))


def main(arguments: list[str] | None = None) -> int:
    """Try all inputs; returns the exit status."""
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parse.add_argument("--inputs", type=int, default=2000)
    parse.add_argument("--seed", type=int, default=1)
    names = [parser.name for parser in PARSERS]
    parse.add_argument("--parser", choices=names, help="try this one alone")
    parse.add_argument("--but", choices=names, help="try all others")
    parse.add_argument("--show", metavar="NAME:NUMBER", help="print one input and end")
    asked = parse.parse_args(arguments)
    by_name = {parser.name: parser for parser in PARSERS}
    if asked.show:
        name, _, number = asked.show.rpartition(":")
        sys.stdout.buffer.write(input_of(by_name[name], asked.seed, int(number)))
        return 0
    failed = 0
    for parser in PARSERS:
        if parser.name == asked.but or asked.parser not in (None, parser.name):
            continue
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            confine_after_loading(parser, Path(folder))
            found = try_inputs(parser, asked.seed, asked.inputs, Path(folder))
        failures = found.failures or []
        print(
            f"{parser.name:18} {found.tried:7} inputs {found.answers:7} answers "
            f"{found.sentences:7} sentences {len(failures):5} failures, "
            f"slowest {found.slowest_s:.3f} s",
            flush=True,
        )
        for failure in failures[:5]:
            print(f"    {failure}")
        failed += len(failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
