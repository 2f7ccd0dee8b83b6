"""The progress of a run: the case, its number of how many, about how long still.

A terminal shows it in one line below what pytest writes; a log gets a line now and then.  It is
written between cases and never while one is measured in this process: no thread refreshes it, so
that it costs the measurement nothing.  The time of day at which a phase may end stays true without.
A failure to show it ends the showing and nothing else.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

import pytest
from _pytest._io import TerminalWriter
from _pytest._io.wcwidth import wcswidth

from bench_lib.engine.pace import Pace, name_of

SILENT = -2
"""The verbosity, ``-q -q``, from which on nothing is shown."""
OFTEN_S, SELDOM_S = 60.0, 300.0
"""How far apart the lines of a log are, in a phase's first ten minutes and later."""
MEASURING = "measuring"


@dataclass(frozen=True)
class RunState:
    """How far a phase is."""

    phase: str
    done: int
    total: int
    now: Sequence[str]
    """The cases that are measured now, one a device."""
    left_s: float | None
    """None if unknown."""


class RunProgress:
    """Keeps count of a phase: its tasks, on how many devices, how long it takes."""

    def __init__(
        self, display: Display | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Show nothing before ``begin``; ``clock`` gives seconds."""
        self._display = display
        self._clock = clock
        self.began = False
        self._phase = ""
        self._total = 0
        self._lanes: list[_Lane] = []
        self._taken: list[float] = []

    def begin(self, phase: str, lanes: Sequence[Sequence[str]], pace: Pace | None = None) -> None:
        """Begin a phase that does each lane's tests, or cases, one after the other."""
        known = pace or Pace({})
        now = self._clock()
        self._phase, self._taken = phase, []
        self._lanes = [_Lane({name: known.of(name) for name in lane}, now) for lane in lanes]
        self._total = sum(len(lane.left) for lane in self._lanes)
        self.began = True
        self._show()

    def finish(self, name: str) -> None:
        """Note that a test is over; one that is in no lane changes nothing."""
        now = self._clock()
        for lane in self._lanes:
            if name in lane.left:
                del lane.left[name]
                self._taken.append(now - lane.since)
                lane.since = now
                self._show()

    def close(self) -> None:
        """End the last phase."""
        self._lanes = []
        if self._display is not None:
            self._display.close()

    def _show(self) -> None:
        if self._total and self._display is not None:
            self._display.show(self.state())

    def state(self) -> RunState:
        """Say how far the phase is."""
        lanes = [lane for lane in self._lanes if lane.left]
        return RunState(
            self._phase,
            len(self._taken),
            self._total,
            [name_of(next(iter(lane.left))) for lane in lanes],
            self._left_s(lanes),
        )

    def _left_s(self, lanes: Sequence[_Lane]) -> float | None:
        """Return the seconds that the longest lane needs; unknown times count like the others."""
        mean = sum(self._taken) / len(self._taken) if self._taken else None
        longest = 0.0
        for lane in lanes:
            known = [seconds for seconds in lane.left.values() if seconds is not None]
            unknown = len(lane.left) - len(known)
            if unknown and mean is None:
                return None
            first = next(iter(lane.left.values()))
            running = min(self._clock() - lane.since, (mean or 0.0) if first is None else first)
            longest = max(longest, sum(known) + unknown * (mean or 0.0) - running)
        return longest


@dataclass
class _Lane:
    """The remaining tasks of one device, in turn."""

    left: dict[str, float | None]
    """Seconds that each may take, if known."""
    since: float


def duration(seconds: float) -> str:
    """Return about how long: ``40 s``, ``8 min``, ``1 h 20 min``."""
    if seconds < 60:
        return f"{max(5, 5 * math.ceil(seconds / 5))} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def in_words(state: RunState, now: dt.datetime, *, short: bool = False) -> str:
    """Return how long it lasts still, and until when; empty where nothing tells."""
    if state.left_s is None or state.done == state.total:
        return ""
    words = f"about {duration(state.left_s)} left"
    if short:
        return words
    end = now + dt.timedelta(seconds=state.left_s)
    return (
        f"{words}, until {end:%a %H:%M}" if state.left_s > 43_200 else f"{words}, until {end:%H:%M}"
    )


def _now() -> dt.datetime:
    return dt.datetime.now().astimezone()


class ProgressLines:
    """A line now and then, for logs."""

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], dt.datetime] = _now,
    ) -> None:
        """Hand each line to ``say``."""
        self._say = say
        self._clock = clock
        self._now = now
        self._phase: str | None = None
        self._began = self._last = 0.0

    def show(self, state: RunState) -> None:
        """Say it at a phase's begin, where it is to last, and later where it is time again."""
        now = self._clock()
        begins = state.phase != self._phase
        if begins:
            self._phase, self._began, self._last = state.phase, now, now
        apart = OFTEN_S if now - self._began < 10 * OFTEN_S else SELDOM_S
        lasts = begins and state.left_s is not None and state.left_s >= OFTEN_S
        if lasts or now - self._last >= apart:
            self._last = now
            words = in_words(state, self._now())
            self._say(f"{state.phase}: {state.done} of {state.total} done{words and ', '}{words}")

    def close(self) -> None:
        """Do nothing: lines stay."""


class Footer:
    """One line below what pytest writes, gone when the phase is.

    Pytest writes lines in parts, a dot at a time, so nothing that redraws whole lines, as rich's
    own display does, may share the terminal with it.  The cursor stays where pytest left it;
    before pytest writes on, all that is behind the cursor is cleared, and afterwards the line is
    drawn again.  While a test's output is captured the stream is no terminal, and left alone.
    """

    def __init__(
        self, writer: TerminalWriter, stream: TextIO, *, now: Callable[[], dt.datetime] = _now
    ) -> None:
        """Draw on ``stream``, which is the one that ``writer`` writes to."""
        self._writer = writer
        self._stream = stream
        self._now = now
        self._lock = threading.RLock()  # looking again, each device has a thread that may speak
        self._write = writer.write
        self._column = writer.width_of_current_line
        self._text = ""
        self._drawn = self._ended = False
        writer.write = self._written  # type: ignore[method-assign]  # until it is closed

    def show(self, state: RunState) -> None:
        """Draw a state in place of the last."""

        def redraw() -> None:
            self._clear()
            self._text = self._rendered(state)
            self._draw()

        self._try(redraw)

    def close(self) -> None:
        """Clear the line, and let the writer write as before."""
        self._try(self._clear)
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._writer.write = self._write  # type: ignore[method-assign]

    def _try(self, draw: Callable[[], None]) -> None:
        """Draw, unless that failed before; whatever goes wrong here must not end a run."""
        with self._lock:
            if self._ended:
                return
            try:
                draw()
            except Exception:  # noqa: BLE001 - of any kind, as said above
                self._end()

    def _written(self, msg: str, *, flush: bool = False, **markup: bool) -> None:
        """Write what pytest writes, with the line out of its way."""
        with self._lock:
            self._try(self._clear)
            self._write(msg, flush=flush, **markup)
            self._column = _column_after(msg, self._column)
            self._try(self._draw)

    def _clear(self) -> None:
        if self._drawn and self._stream.isatty():
            self._stream.write("\x1b[J")
            self._drawn = False

    def _draw(self) -> None:
        if not self._text or not self._stream.isatty():
            return
        columns = _columns(self._stream)
        column = self._column % columns
        if self._column and not column:  # full to the edge: which line the cursor is in, who knows
            return
        below = f"\n{self._text}\x1b[A" if column else self._text
        back = f"\r\x1b[{column}C" if column else "\r"
        self._stream.write(below + back)
        self._stream.flush()
        self._drawn = True

    def _rendered(self, state: RunState) -> str:
        columns = min(_columns(self._stream), shutil.get_terminal_size().columns)
        left = in_words(state, self._now(), short=columns < 80)
        # Not up to the edge, where the cursor would hang between two lines.
        line = rendered(state, columns - 1, left, colour=self._writer.hasmarkup)
        encoding = self._stream.encoding or "ascii"
        return line.encode(encoding, "replace").decode(encoding)


def rendered(state: RunState, width: int, left: str, *, colour: bool) -> str:
    """Return a state as one line of at most ``width`` columns, with a terminal's escapes."""
    # Takes 60 ms to import, and most runs have no terminal.
    from rich.console import Console, RenderableType  # noqa: PLC0415 - slow
    from rich.progress_bar import ProgressBar  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    system: Literal["auto"] | None = "auto" if colour else None
    console = Console(width=width, force_terminal=True, color_system=system, highlight=False)
    words: list[RenderableType] = [Text(state.phase, "bold"), f"{state.done} of {state.total}"]
    if width > 88:
        bar = ProgressBar(state.total, state.done, width=20, complete_style="green")
        words.insert(1, bar)
    words += [Text(left, "cyan")] if left else []
    line = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for _ in words:
        line.add_column(no_wrap=True)
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_row(*words, Text(", ".join(state.now), "dim"))
    with console.capture() as capture:
        console.print(line, end="")
    return capture.get().partition("\n")[0].rstrip()


def _columns(stream: TextIO) -> int:
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or 80
    return 80


def _column_after(text: str, column: int) -> int:
    """Return where the cursor is when a text was written from a column on."""
    _before, newline, last = text.rpartition("\n")
    start = 0 if newline else column
    _, back, last = last.rpartition("\r")
    return wcswidth(last) + (0 if back else start)


Display = ProgressLines | Footer


def display(config: pytest.Config, say: Callable[[str], None]) -> Display | None:
    """Choose what fits where pytest writes: a line that moves, lines, or nothing."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or config.get_verbosity() <= SILENT:
        return None
    stream = sys.stdout
    if not stream.isatty() or not _can_move() or config.getoption("capture") == "no":
        return ProgressLines(say)
    return Footer(config.get_terminal_writer(), stream)


def _can_move() -> bool:
    """Whether a terminal moves its cursor, and somebody looks at it now and not at a log later.

    With ``-s`` tests write past pytest, which would leave pieces of the line behind.
    """
    return os.environ.get("TERM", "dumb") not in ("dumb", "unknown") and not os.environ.get("CI")
