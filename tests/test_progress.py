"""How far a run is: what is known of it, and how a terminal and a log are told."""

from __future__ import annotations

import datetime as dt
import io
import json
import threading
from types import SimpleNamespace

import pytest
from _pytest._io import TerminalWriter
from builders import make_attempt, make_case, make_record, write_run
from hypothesis import given
from hypothesis import strategies as st
from screen import Screen

from bench_lib.engine import pace
from bench_lib.engine.pace import Pace, name_of
from bench_lib.plugin import progress
from bench_lib.plugin.progress import (
    Footer,
    ProgressLines,
    RunProgress,
    RunState,
    display,
    duration,
    in_words,
    rendered,
)
from bench_lib.storage import history

NOON = dt.datetime(2026, 1, 2, 12, 0, tzinfo=dt.timezone.utc)


class Clock:
    """Time that passes when told to."""

    def __init__(self):
        """Begin somewhere."""
        self.now = 1000.0

    def __call__(self):
        """Give the time in seconds."""
        return self.now


class Shown:
    """A display that remembers."""

    def __init__(self):
        """Begin with nothing."""
        self.states = []
        self.closed = False

    def show(self, state):
        """Remember it."""
        self.states.append(state)

    def close(self):
        """Remember that, too."""
        self.closed = True


@pytest.fixture
def clock():
    """Seconds, by hand."""
    return Clock()


# ---- how long cases take ----------------------------------------------------------------


def test_a_test_is_called_by_its_case_and_else_by_its_function():
    assert name_of("perf_tests/test_networks.py::test_network[vgg16-b8]") == "vgg16-b8"
    assert name_of("mine/test_x.py::TestX::test_own") == "test_own"
    assert name_of("resnet18-b4") == "resnet18-b4"


def test_a_case_takes_what_it_took():
    known = Pace({"vgg16-b8": 4.0, "a.py::test_own": 7.0})
    assert known.of("x.py::test_network[vgg16-b8]") == 4.0
    assert known.of("a.py::test_own") == 7.0
    assert Pace({"vgg16-b8": 4.0}, processes=5).of("vgg16-b8") == 20.0


def test_a_new_case_takes_what_its_like_took():
    known = Pace(
        {
            "vgg16-b8-fp16-eager": 2.0,
            "vgg16-b16-fp16-eager": 4.0,
            "vgg16-b8-fp32-max": 90.0,
            "resnet50-b32-fp16-eager": 900.0,
        }
    )
    assert known.of("vgg16-b32-fp16-eager") == 3.0


@pytest.mark.parametrize("name", ["resnet50-b8-fp16-eager", "vgg16-b64-int8-graph", "a.py::test"])
def test_of_what_is_like_nothing_nothing_is_known(name):
    assert Pace({"vgg16-b8-fp16-eager": 2.0, "b.py::test": 1.0}).of(name) is None


def lines_of(folder, taken, *, day=1, key="mi300x", nodeid="a.py::test_x"):
    """Write a run of tries: each a case's id and fields of its attempt."""
    writer = history.Writer(folder, key, now=f"2026-01-{day:02}T00:00:00Z")
    for case_id, fields in taken:
        writer.attempt(make_case(id=case_id), nodeid, make_attempt(case_id=case_id, **fields))
    writer.end({}, 0)
    return writer.path


def test_what_a_process_took_is_the_middle_of_the_last_three_runs_that_measured_it(tmp_path):
    for day, took in enumerate([100.0, 1.0, 2.0, 9.0], 1):
        lines_of(tmp_path, [("a", {"took_s": took})], day=day)
    lines_of(tmp_path, [("alone", {"took_s": 8.0})], day=8, nodeid=None)
    lines_of(tmp_path, [("a", {"took_s": 50.0})], key="mi250x")
    own = lines_of(tmp_path, [("a", {"took_s": 70.0})], day=9)
    assert pace.past(tmp_path, "mi300x", but=own) == {"a": 2.0, "a.py::test_x": 2.0, "alone": 8.0}


def test_tries_of_one_process_count_together_and_second_looks_not_at_all(tmp_path):
    tries = [
        ("a", {"process": 0, "took_s": 1.0, "accepted": False, "discarded": "x"}),
        ("a", {"process": 0, "took_s": 2.0}),
        ("a", {"process": 1, "took_s": 5.0}),
        ("a", {"process": 2, "took_s": 64.0, "confirms": True}),
        ("b", {"process": 0, "took_s": 0.5}),
    ]
    lines_of(tmp_path, tries)
    assert pace.past(tmp_path, "mi300x") == {"a": 4.0, "b": 0.5, "a.py::test_x": 4.5}


def test_a_case_takes_as_long_as_its_first_replay_besides(tmp_path):
    replay = {"confirms": True, "replays": True, "accepted": False, "discarded": "replayed"}
    tries = [
        ("a", {"process": 0, "took_s": 1.0}),
        ("a", {"process": 1, "took_s": 3.0}),
        ("a", {"process": 2, "took_s": 8.0, **replay}),
        ("a", {"process": 3, "took_s": 64.0, **replay}),
    ]
    lines_of(tmp_path, tries)
    assert pace.past(tmp_path, "mi300x", starts=False) == {"a": 10.0, "a.py::test_x": 10.0}


def test_where_cases_go_is_not_told_by_who_started_the_workers(tmp_path):
    phases_s = {"fork": 12.0, "measure": 1.5}
    lines_of(tmp_path, [("a", {"took_s": 13.5, "phases_s": phases_s}), ("b", {"took_s": 2.0})])
    assert pace.past(tmp_path, "mi300x")["a"] == 13.5
    known = {"a": 1.5, "b": 2.0, "a.py::test_x": 3.5}
    assert pace.past(tmp_path, "mi300x", starts=False) == known


def test_what_cannot_be_read_says_nothing(tmp_path):
    path = lines_of(tmp_path, [("a", {"took_s": 2.0})])
    odd = [
        {"kind": "attempt", "case": {"id": 5}, "attempt": {}},
        {"kind": "attempt", "case": {"id": "b"}, "attempt": {"took_s": "long"}},
        {"kind": "attempt"},
        [],
    ]
    with path.open("ab") as file:
        file.write(b"\n\xff\xfe\n" + b"\n".join(json.dumps(o).encode() for o in odd) + b'\n{"ki')
    (tmp_path / "20260109T000000Z_mi300x_01234567.jsonl").mkdir()
    assert pace.past(tmp_path, "mi300x") == {"a": 2.0, "a.py::test_x": 2.0}
    assert pace.past(tmp_path / "nowhere", "mi300x") == {}


def test_a_history_is_read_up_to_a_limit(tmp_path, monkeypatch):
    for day in (1, 2):
        path = lines_of(tmp_path, [(name, {"took_s": 2.0 * day}) for name in "ab"], day=day)
    monkeypatch.setattr(pace, "MOST_BYTES", path.read_bytes().index(b"\n") + 1)
    assert pace.past(tmp_path, "mi300x") == {"a": 4.0, "a.py::test_x": 4.0}
    monkeypatch.undo()
    monkeypatch.setattr(pace, "MOST_RUNS", 1)
    assert pace.past(tmp_path, "mi300x") == {"a": 4.0, "b": 4.0, "a.py::test_x": 8.0}


# ---- counting ---------------------------------------------------------------------------


def test_a_phase_counts_what_is_done_and_names_what_is_measured(clock):
    shown = Shown()
    counted = RunProgress(shown, clock=clock)
    counted.begin("measuring", [["a.py::t[one]", "a.py::t[two]"]])
    counted.finish("a.py::t[one]")
    counted.finish("a.py::t[one]")
    counted.finish("a.py::other")
    counted.finish("a.py::t[two]")
    assert [(s.done, s.total, s.now) for s in shown.states] == [
        (0, 2, ["one"]),
        (1, 2, ["two"]),
        (2, 2, []),
    ]


def test_what_is_left_is_what_the_cases_took_less_what_has_passed(clock):
    counted = RunProgress(clock=clock)
    counted.begin("measuring", [["a", "b"]], Pace({"a": 10.0, "b": 20.0}))
    assert counted.state().left_s == 30.0
    clock.now += 4.0
    assert counted.state().left_s == 26.0
    clock.now += 60.0
    assert counted.state().left_s == 20.0
    counted.finish("a")
    assert counted.state().left_s == 20.0


def test_the_last_run_says_which_device_measured_a_case(tmp_path):
    uuids = {"2026-01-01T02:00:00Z": "GPU-1", "2026-01-02T02:00:00Z": "GPU-2"}
    for now, uuid in uuids.items():
        tried = [
            make_attempt(case_id="a", device_uuid=uuid),
            make_attempt(case_id="a", device_uuid="GPU-9", confirms=True),
        ]
        path = write_run(
            tmp_path,
            [make_record(case=make_case(id="a"), nodeid="a.py::test_x[a]", attempts=tried)],
            now=now,
        )
    known = {"a": "GPU-2", "a.py::test_x[a]": "GPU-2"}
    assert pace.last_devices(tmp_path, "mi300x") == known
    assert set(pace.last_devices(tmp_path, "mi300x", but=path).values()) == {"GPU-1"}
    assert pace.last_devices(tmp_path / "nowhere", "mi300x") == {}


def test_of_what_nothing_is_known_the_runs_own_pace_tells(clock):
    counted = RunProgress(clock=clock)
    counted.begin("measuring", [["a", "b", "c", "d"]], Pace({"c": 100.0}))
    assert counted.state().left_s is None
    clock.now += 8.0
    counted.finish("a")
    assert counted.state().left_s == 8.0 + 100.0 + 8.0
    clock.now += 4.0
    counted.finish("b")
    assert counted.state().left_s == 100.0 + 6.0


def test_devices_measure_at_the_same_time(clock):
    counted = RunProgress(clock=clock)
    counted.begin("measuring", [["a"], ["b", "c"], []], Pace({"a": 1.0, "b": 2.0, "c": 3.0}))
    assert counted.state() == RunState("measuring", 0, 3, ["a", "b"], 5.0)
    counted.finish("a")
    assert counted.state() == RunState("measuring", 1, 3, ["b"], 5.0)


def test_a_phase_without_anything_to_do_is_not_shown():
    shown = Shown()
    counted = RunProgress(shown)
    counted.begin("judging", [[]])
    counted.close()
    assert shown.states == []
    assert shown.closed


def test_a_phase_has_a_pace_of_its_own(clock):
    counted = RunProgress(clock=clock)
    counted.begin("measuring", [["a"]])
    clock.now += 100.0
    counted.finish("a")
    counted.begin("looking into kernels", [["a", "b"]])
    assert counted.state() == RunState("looking into kernels", 0, 2, ["a"], None)


# ---- words ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "5 s"),
        (31, "35 s"),
        (60, "1 min"),
        (61, "2 min"),
        (89 * 60, "89 min"),
        (90 * 60, "1 h 30 min"),
        (3600 * 25, "25 h 0 min"),
    ],
)
def test_a_duration_is_said_as_roughly_as_it_is_known(seconds, words):
    assert duration(seconds) == words


def test_what_is_left_has_its_time_of_day():
    state = RunState("measuring", 3, 9, [], 1500.0)
    assert in_words(state, NOON) == "about 25 min left, until 12:25"
    assert in_words(state, NOON, short=True) == "about 25 min left"
    far = RunState("measuring", 3, 9, [], 13 * 3600.0)
    assert in_words(far, NOON) == "about 13 h 0 min left, until Sat 01:00"
    assert in_words(RunState("measuring", 3, 9, [], None), NOON) == ""
    assert in_words(RunState("measuring", 9, 9, [], 0.0), NOON) == ""


LONG = RunState("measuring", 3, 12, ["resnet50-b64-fp16-nhwc-max-autotune-infer"], 1500.0)


def test_a_line_holds_phase_count_time_and_case():
    assert rendered(LONG, 120, "about 25 min left, until 12:25", colour=False) == (
        "measuring  ━━━━━                 3 of 12  about 25 min left, until 12:25  "
        "resnet50-b64-fp16-nhwc-max-autotune-infer"
    )
    assert rendered(LONG, 59, "about 25 min left", colour=False) == (
        "measuring  3 of 12  about 25 min left  resnet50-b64-fp16-n…"
    )


@given(st.integers(1, 200), st.integers(0, 3))
def test_a_line_is_never_wider_than_the_terminal(width, devices):
    state = RunState("looking into kernels", 10, 10000, ["a-long-id" * 9] * devices, 4e6)
    line = rendered(state, width, in_words(state, NOON), colour=False)
    assert len(line) <= width
    assert "\n" not in line


def test_colours_are_a_terminals_that_has_some(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    line = rendered(LONG, 99, "", colour=True)
    assert "\x1b[1mmeasuring\x1b[0m" in line
    screen = Screen()
    screen.feed(line)
    (seen,) = screen.lines
    assert seen.split("  3 of")[1] == (rendered(LONG, 99, "", colour=False).split("  3 of")[1])
    assert len(seen) == len(rendered(LONG, 99, "", colour=False))


# ---- a log ------------------------------------------------------------------------------


def test_a_log_gets_a_line_a_minute_and_later_one_in_five(clock):
    said = []
    log = ProgressLines(said.append, clock=clock, now=lambda: NOON)
    begin = clock.now
    times = []
    for step in range(120):
        log.show(RunState("measuring", step, 120, [], None))
        if len(said) > len(times):
            times.append(clock.now - begin)
        clock.now += 20.0
    assert times == [*range(60, 600, 60), *range(840, 2400, 300)]
    assert said[0] == "measuring: 3 of 120 done"


def test_a_log_is_told_at_once_of_what_will_last(clock):
    said = []
    log = ProgressLines(said.append, clock=clock, now=lambda: NOON)
    log.show(RunState("measuring", 0, 2, [], 1500.0))
    log.show(RunState("measuring", 1, 2, [], 700.0))
    log.show(RunState("looking again", 0, 1, [], 30.0))
    log.show(RunState("looking into kernels", 0, 1, [], None))
    assert said == ["measuring: 0 of 2 done, about 25 min left, until 12:25"]


# ---- a terminal -------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    encoding = "utf-8"
    captured = False

    def isatty(self):
        """Say so, unless a test's output is captured."""
        return not self.captured


@pytest.fixture
def writer(monkeypatch):
    """Pytest's writer, on a terminal of 80 columns."""
    monkeypatch.delenv("COLUMNS", raising=False)
    made = TerminalWriter(Terminal())
    made.hasmarkup = False
    return made


def stream_of(writer):
    """Return what the writer writes to."""
    return writer._file


def screen_of(writer):
    """Return what stands on the terminal now."""
    screen = Screen(80)
    screen.feed(stream_of(writer).getvalue().replace("\n", "\r\n"))
    return screen


def footer_on(writer):
    """Return a line below what the writer writes."""
    return Footer(writer, stream_of(writer), now=lambda: NOON)


SHORT = RunState("measuring", 1, 4, ["alpha"], 120.0)
WORDS = "measuring  1 of 4  about 2 min left, until 12:02  alpha"


def test_the_line_stands_below_what_pytest_writes_and_the_cursor_where_it_writes_on(writer):
    writer.write("a.py ")
    footer = footer_on(writer)
    for dots in ("a.py .", "a.py .."):
        footer.show(SHORT)
        writer.write(".")
        screen = screen_of(writer)
        assert screen.lines == [dots, WORDS]
        assert (screen.row, screen.column) == (0, len(dots))


@pytest.mark.parametrize(
    ("columns", "time_of_day", "bar"),
    [(79, False, False), (80, True, False), (89, True, False), (90, True, True)],
)
def test_what_there_is_room_for_is_shown(writer, monkeypatch, columns, time_of_day, bar):
    monkeypatch.setattr(progress, "_columns", lambda _stream: columns)
    monkeypatch.setenv("COLUMNS", str(columns))
    footer_on(writer).show(SHORT)
    (line,) = screen_of(writer).lines
    assert ("until 12:02" in line, "━" in line) == (time_of_day, bar)


def test_at_the_begin_of_a_line_it_stands_in_that_line(writer):
    footer_on(writer).show(SHORT)
    writer.line("a.py::test_a PASSED")
    screen = screen_of(writer)
    assert screen.lines == ["a.py::test_a PASSED", WORDS]
    assert (screen.row, screen.column) == (1, 0)


def test_nothing_of_it_is_left_when_it_is_closed(writer):
    plain = TerminalWriter(Terminal())
    plain.hasmarkup = False
    footer = footer_on(writer)
    for each, note in ((plain, lambda: None), (writer, lambda: footer.show(SHORT))):
        note()
        each.write("a.py ")
        each.write("....")
        note()
        each.line()
        each.sep("=", "x")
        note()
        each.write("gw0 [1]")
        each.write("\rgw0 ok")
        each.write(" [2]")
        note()
        each.write("!\n\n")
    footer.close()
    writer.write("end")
    plain.write("end")
    assert screen_of(writer).lines == screen_of(plain).lines
    assert writer.write.__self__ is writer


def test_a_text_wider_than_the_terminal_moves_nothing_out_of_place(writer):
    footer = footer_on(writer)
    footer.show(SHORT)
    writer.write("x" * 100)
    screen = screen_of(writer)
    assert screen.lines == ["x" * 80, "x" * 20, WORDS]
    assert (screen.row, screen.column) == (1, 20)
    writer.write("x" * 60)
    assert screen_of(writer).lines == ["x" * 80, "x" * 80]
    writer.write("!")
    assert screen_of(writer).lines == ["x" * 80, "x" * 80, "!", WORDS]


def test_what_is_captured_is_left_alone(writer):
    footer = footer_on(writer)
    stream = stream_of(writer)
    stream.captured = True
    footer.show(SHORT)
    assert stream.getvalue() == ""
    stream.captured = False
    footer.show(SHORT)
    before, stream.captured = stream.getvalue(), True
    writer.write("odd")
    assert stream.getvalue() == f"{before}odd"


def test_a_terminal_without_such_letters_gets_others(writer):
    stream_of(writer).encoding = "ascii"
    state = RunState("measuring", 1, 4, ["alpha" * 20], None)
    footer_on(writer).show(state)
    (line,) = screen_of(writer).lines
    assert line.isascii()
    assert line.startswith("measuring  1 of 4  alphaalpha")


@pytest.mark.parametrize("error", [OSError("gone"), ValueError("closed"), RuntimeError("odd")])
def test_a_line_that_cannot_be_drawn_ends_itself_and_nothing_else(writer, monkeypatch, error):
    def fail(*_arguments, **_options):
        raise error

    footer = footer_on(writer)
    writer.write("a")
    monkeypatch.setattr(progress, "rendered", fail)
    footer.show(SHORT)
    writer.write("b")
    footer.show(SHORT)
    footer.close()
    assert stream_of(writer).getvalue() == "ab"


def test_an_interrupt_is_no_trouble_of_drawing(writer, monkeypatch):
    def interrupt(*_arguments, **_options):
        raise KeyboardInterrupt

    footer = footer_on(writer)
    monkeypatch.setattr(progress, "rendered", interrupt)
    with pytest.raises(KeyboardInterrupt):
        footer.show(SHORT)


def test_devices_that_speak_at_once_do_not_tear_the_line(writer):
    footer = footer_on(writer)
    footer.show(SHORT)

    def speak(name):
        for number in range(50):
            writer.write(f"{name} {number}\n")

    threads = [threading.Thread(target=speak, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    *lines, last = screen_of(writer).lines
    assert sorted(lines) == sorted(f"{name} {n}" for name in "ab" for n in range(50))
    assert last == WORDS


# ---- which of them ----------------------------------------------------------------------


def config_of(*, verbosity=0, capture="fd", terminal=True):
    """Return as much of pytest's configuration as is asked."""
    plugins = SimpleNamespace(get_plugin=lambda name: object() if terminal else None)
    return SimpleNamespace(
        pluginmanager=plugins,
        get_verbosity=lambda: verbosity,
        getoption=lambda name: capture,
        get_terminal_writer=lambda: TerminalWriter(Terminal()),
    )


@pytest.mark.parametrize(
    ("kind", "asked", "tty", "variables"),
    [
        (Footer, {}, True, {}),
        (Footer, {"verbosity": -1}, True, {"NO_COLOR": "1"}),
        (Footer, {"capture": "sys", "verbosity": 2}, True, {}),
        (ProgressLines, {}, False, {}),
        (ProgressLines, {}, True, {"TERM": "dumb"}),
        (ProgressLines, {}, True, {"TERM": None}),
        (ProgressLines, {}, True, {"CI": "true"}),
        (ProgressLines, {"capture": "no"}, True, {}),
        (type(None), {"verbosity": -2}, True, {}),
        (type(None), {"verbosity": -2}, False, {}),
        (type(None), {"terminal": False}, True, {}),
    ],
)
def test_what_is_shown_fits_where_it_is_shown(monkeypatch, kind, asked, tty, variables):
    for name, value in {"TERM": "xterm", "CI": None, "NO_COLOR": None, **variables}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    stream = Terminal()
    stream.captured = not tty
    monkeypatch.setattr(progress.sys, "stdout", stream)
    assert type(display(config_of(**asked), lambda _line: None)) is kind
