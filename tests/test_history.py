"""What a run leaves behind, however it ended, and how it is found and read again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders import (
    CASE_ID,
    TIME,
    make_attempt,
    make_case,
    make_environment,
    make_fault,
    make_hardware,
    make_measurement,
    make_record,
    make_telemetry,
    make_verdict,
    write_run,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import bench_lib
from bench_lib.history import HistoryError, Writer, files, find, keys, read, reference
from bench_lib.model import Attempt, Launch, Numerics, RankSample, Record, Status

PROPERTY = settings(deadline=None)


def run_python(code: str, *words: str, **options) -> subprocess.Popen[str]:
    """Start an interpreter that can import bench_lib and the builders."""
    paths = [str(Path(bench_lib.__file__).parents[1]), str(Path(__file__).parent)]
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def lines_of(path: Path) -> list[dict]:
    """Return the lines of a file, each decoded."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


# ---- a whole run ------------------------------------------------------------------------


def test_a_run_is_read_back_as_it_was_written(tmp_path):
    """Every type that a line may hold, with every field that has one of its own."""
    case = make_case(launch=Launch(ranks=2), params={"a": 1, "b": 1.5, "c": "x", "d": True})
    measurement = make_measurement(
        numerics=Numerics(finite=True, cosine=0.999, reference_batch=4),
        per_rank=[RankSample(0, 0, "GPU-0", [0.5, 0.25], 7)],
        probe={"copy": 1.5},
        warnings=["was not steady"],
    )
    environment, hardware = make_environment(variables={"A": "1"}), make_hardware()
    name = reference(environment)
    record = Record(
        case,
        "test_x.py::test_y[z]",
        [
            make_attempt(measurement=measurement, telemetry=make_telemetry(), environment=name),
            make_attempt(process=1, fault=make_fault(), environment=name),
        ],
        Status.ERROR,
        [make_verdict(status=Status.ERROR, interval=(0.5, 2.0)), make_verdict(metric="memory")],
    )
    path = write_run(tmp_path, [record], hardware=hardware, environment=environment)
    run = read(path)
    assert run.records == {case.id: record}
    assert run.environments == {name: environment}
    assert run.hardware == [hardware]
    assert run.problems == []
    assert run.finished
    assert (run.key, run.exit_status) == ("mi300x", 0)


def test_the_end_of_a_run_says_how_full_its_caches_are_by_then(tmp_path):
    """Files of older versions do not say."""
    writer = Writer(tmp_path, "mi300x")
    writer.end({"OK": 1}, 0, caches={"inductor": "warm, 41 entries"})
    assert read(writer.path).caches == {"inductor": "warm, 41 entries"}
    assert read(write_run(tmp_path)).caches == {}
    torn = writer.path.read_text().replace('{"inductor":"warm, 41 entries"}', '"warm"')
    writer.path.write_text(torn)
    run = read(writer.path)
    assert not run.finished
    assert "caches" in run.problems[0]


def test_a_file_is_named_by_its_time_its_hardware_and_its_run(tmp_path):
    """So that a listing is in order and a run can be found by eye."""
    path = write_run(tmp_path / "not" / "there", now="2026-01-02T03:04:05Z")
    assert re.fullmatch(r"20260102T030405Z_mi300x_[0-9a-f]{8}\.jsonl", path.name)
    run = read(path)
    assert (run.key, run.run_id) == ("mi300x", path.stem.rpartition("_")[2])


def test_every_line_says_schema_kind_run_and_time(tmp_path):
    """A line is understood without the ones before it."""
    path = write_run(tmp_path, [make_record(status=Status.OK, verdicts=[make_verdict()])])
    lines = lines_of(path)
    assert [line["kind"] for line in lines] == ["environment", "attempt", "verdict", "end"]
    assert {line["schema"] for line in lines} == {1}
    assert {line["run"] for line in lines} == {path.stem.rpartition("_")[2]}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line["time"]) for line in lines)


def test_an_environment_is_noted_once_for_each_device(tmp_path):
    """A thousand attempts do not repeat it; another device of the run is noted."""
    writer = Writer(tmp_path, "mi300x")
    environment = make_environment()
    for uuid in ("GPU-0", "GPU-0", "GPU-1", "GPU-0"):
        assert writer.environment(environment, make_hardware(uuid=uuid)) == reference(environment)
    writer.close()
    run = read(writer.path)
    assert len(lines_of(writer.path)) == 2
    assert [hardware.uuid for hardware in run.hardware] == ["GPU-0", "GPU-1"]


def test_equal_environments_have_the_same_reference_and_others_another():
    """The reference is what ties a baseline's process to its software."""
    assert reference(make_environment()) == reference(make_environment())
    assert reference(make_environment()) != reference(make_environment(torch="2.10.0"))


def test_a_run_that_measured_nothing_leaves_no_file(tmp_path):
    """A collection that failed is not a run."""
    writer = Writer(tmp_path, "mi300x")
    assert writer.discard_if_empty()
    assert files(tmp_path) == []
    assert not writer.discard_if_empty()


def test_a_run_that_measured_something_is_not_discarded(tmp_path):
    """However little it was."""
    writer = Writer(tmp_path, "mi300x")
    writer.attempt(make_case(), None, make_attempt())
    assert not writer.discard_if_empty()
    writer.close()
    assert list(read(writer.path).records) == [CASE_ID]


def test_a_value_that_is_no_number_is_written_as_unknown(tmp_path):
    """NaN is no JSON; a reader of any language gets null."""
    verdict = make_verdict(value=float("nan"), ratio=float("inf"))
    path = write_run(tmp_path, [make_record(status=Status.OK, verdicts=[verdict])])
    assert b"NaN" not in path.read_bytes()
    (found,) = read(path).records[CASE_ID].verdicts
    assert (found.value, found.ratio) == (None, None)


def test_bytes_that_are_no_text_are_written_as_question_marks(tmp_path):
    """A path of another encoding in an environment variable must not end the run."""
    environment = make_environment(variables={"HOME": "/home/j\udcf6rg"})
    run = read(write_run(tmp_path, [make_record()], environment=environment))
    assert run.problems == []
    assert run.environments[reference(environment)].variables == {"HOME": "/home/j?rg"}


def test_a_nodeid_of_the_attempt_is_kept_where_the_verdict_has_none(tmp_path):
    """A verdict without one is of the same test."""
    path = write_run(tmp_path, [make_record(nodeid="a::b")])
    line = {"schema": 1, "kind": "verdict", "run": "x", "time": TIME, "case_id": CASE_ID}
    with path.open("ab") as file:
        file.write(json.dumps({**line, "status": "OK", "verdicts": []}).encode() + b"\n")
    record = read(path).records[CASE_ID]
    assert (record.nodeid, record.status) == ("a::b", Status.OK)


# ---- runs that ended badly --------------------------------------------------------------

ENDLESS = """
import sys
from pathlib import Path
from builders import make_attempt, make_case, make_environment, make_hardware
from bench_lib.history import Writer
writer = Writer(Path(sys.argv[1]), "mi300x")
writer.environment(make_environment(), make_hardware())
process = 0
while True:
    writer.attempt(make_case(), None, make_attempt(process=process))
    print(process, flush=True)
    process += 1
"""


def test_a_killed_run_keeps_every_attempt_that_it_finished(tmp_path):
    """SIGKILL between or inside writes: what was reported written is there."""
    with run_python(ENDLESS, str(tmp_path)) as process:
        assert process.stdout is not None
        seen = [int(process.stdout.readline()) for _ in range(20)][-1]
        process.send_signal(signal.SIGKILL)
        seen = max([seen, *map(int, process.stdout.read().split())])
    assert process.returncode == -signal.SIGKILL
    (path,) = files(tmp_path)
    run = read(path)
    (record,) = run.records.values()
    numbers = [attempt.process for attempt in record.attempts]
    assert numbers == list(range(len(numbers)))
    assert numbers[-1] >= seen
    assert not run.finished
    assert run.hardware == [make_hardware()]


FULL = """
import resource, signal, sys
from pathlib import Path
from builders import make_attempt, make_case, make_environment, make_hardware
from bench_lib.history import HistoryError, Writer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = Writer(Path(sys.argv[1]), "mi300x")
writer.environment(make_environment(), make_hardware())
writer.attempt(make_case(), None, make_attempt())
used = writer.path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (used + 100, resource.RLIM_INFINITY))
try:
    writer.attempt(make_case(), None, make_attempt(process=1))
except HistoryError as error:
    print(error)
assert writer.path.stat().st_size == used
if sys.argv[2] == "freed":
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    writer.attempt(make_case(), None, make_attempt(process=2))
    writer.end({}, 1)
"""


def test_a_full_disk_keeps_whole_lines_and_says_what_to_do(tmp_path):
    """The half line that fitted is taken back; the file size limit stands for the disk."""
    with run_python(FULL, str(tmp_path), "full") as process:
        out, err = process.communicate()
    (path,) = files(tmp_path)
    assert (out, err, process.returncode) == (
        (
            f"cannot write history to {path}: File too large; everything before this case is kept. "
            "Free some space or choose another folder with --history DIR, "
            "or pytest's --perf-history DIR\n"
        ),
        "",
        0,
    )
    run = read(path)
    assert [a.process for a in run.records[CASE_ID].attempts] == [0]
    assert run.problems == []


def test_a_run_goes_on_where_space_was_freed(tmp_path):
    """The line after the one that did not fit begins where that one began."""
    with run_python(FULL, str(tmp_path), "freed") as process:
        _, err = process.communicate()
    assert (err, process.returncode) == ("", 0)
    (path,) = files(tmp_path)
    run = read(path)
    assert [a.process for a in run.records[CASE_ID].attempts] == [0, 2]
    assert run.problems == []
    assert run.finished


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_folder_that_cannot_be_written_is_said_before_anything_is_measured(tmp_path, below):
    """A file where the folder should be stops every user, even one whom no mode stops."""
    (tmp_path / "history").write_text("")
    folder = tmp_path / "history" / below
    with pytest.raises(HistoryError) as caught:
        Writer(folder, "mi300x")
    assert str(caught.value) == (
        f"cannot write history to {folder}: {'Not a directory' if below else 'File exists'}; "
        "choose another folder with --history DIR, or pytest's --perf-history DIR"
    )


def test_a_folder_of_a_file_system_that_takes_no_files_is_said(tmp_path):
    """/proc refuses every user alike."""
    with pytest.raises(HistoryError, match=r"^cannot write history to /proc: .*; choose another"):
        Writer(Path("/proc"), "mi300x")


# ---- reading what is damaged ------------------------------------------------------------


def test_a_torn_last_line_is_said_and_the_rest_read(tmp_path):
    """The words are for the reader of a report, who knows nothing of lines."""
    path = write_run(tmp_path, [make_record()], end=False)
    data = path.read_bytes()
    path.write_bytes(data + data[:100])
    run = read(path)
    assert run.problems == ["line 3 is torn: the run was killed while writing it"]
    assert len(run.records[CASE_ID].attempts) == 1
    assert not run.finished


def test_a_line_that_cannot_be_read_is_named_and_the_rest_read(tmp_path):
    """By number, with the reason."""
    path = write_run(tmp_path, [make_record()])
    lines = path.read_bytes().split(b"\n")
    bad = [
        b"{nonsense",
        b"[]",
        b'{"schema": 1, "kind": "verdict", "case_id": "no"}',
        b"",
        b"\xff",
        b'{"schema": "\xff"}',
    ]
    path.write_bytes(b"\n".join([lines[0], *bad, *lines[1:]]))
    run = read(path)
    assert [problem.partition(":")[0] for problem in run.problems] == [
        "line 2 cannot be read",
        "line 3 cannot be read",
        "line 4 cannot be read",
        "line 6 cannot be read",
        "line 7 cannot be read",
    ]
    assert len(run.records[CASE_ID].attempts) == 1
    assert run.finished


def test_a_case_whose_only_attempt_cannot_be_read_is_not_there(tmp_path):
    """A record without attempts would have nothing to say for itself."""
    path = write_run(tmp_path, [make_record()])
    lines = lines_of(path)
    lines[1]["attempt"]["measurement"] = "lost"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read(path)
    assert run.records == {}
    assert run.problems == [
        "line 2 cannot be read: Expected `object | null`, got `str` - at `$.measurement`"
    ]


def test_a_line_of_a_newer_schema_refuses_the_file(tmp_path):
    """Half an understanding of a run is worse than none."""
    path = write_run(tmp_path, [make_record()])
    with path.open("ab") as file:
        file.write(b'{"schema": 2, "kind": "surprise"}\n')
    with pytest.raises(HistoryError) as caught:
        read(path)
    assert str(caught.value) == (
        f"{path}, line 4: schema 2 is newer than 1, the newest that this version of bench-lib "
        "reads; upgrade bench-lib"
    )


def test_a_kind_of_line_that_is_not_known_is_passed_over(tmp_path):
    """Within a schema number lines may be added."""
    path = write_run(tmp_path, [make_record()])
    with path.open("ab") as file:
        file.write(b'{"schema": 1, "kind": "profile", "run": "x", "time": "t"}\n')
    assert read(path).problems == []


def test_a_file_that_is_not_there_is_said(tmp_path):
    """By its name and the reason."""
    with pytest.raises(HistoryError) as caught:
        read(tmp_path / "none.jsonl")
    assert str(caught.value) == f"cannot read {tmp_path / 'none.jsonl'}: No such file or directory"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Return the file of a run of three cases, whole."""
    records = [
        make_record(
            case=make_case(id=f"case-{n}"),
            status=Status.OK,
            verdicts=[make_verdict(reason="ö" * n)],
        )
        for n in range(3)
    ]
    return write_run(tmp_path_factory.mktemp("whole"), records)


@PROPERTY
@given(data=st.data())
def test_every_whole_line_before_a_cut_stays_readable(whole, data):
    """Wherever the file ends: as many attempts and verdicts as there are whole lines of them."""
    content = whole.read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    path = whole.parent / "cut.jsonl"
    path.write_bytes(content[:cut])
    kinds = [line["kind"] for line in lines_of(whole)][: content[:cut].count(b"\n")]
    run = read(path)
    assert sum(len(r.attempts) for r in run.records.values()) == kinds.count("attempt")
    assert sum(r.status is not None for r in run.records.values()) == kinds.count("verdict")
    assert run.finished is ("end" in kinds)
    torn = cut > 0 and content[cut - 1 : cut] != b"\n"
    assert run.problems == (
        [f"line {len(kinds) + 1} is torn: the run was killed while writing it"] if torn else []
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["schema", "kind", "run", "case"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def damaged_lines(draw, lines: list[dict]) -> bytes:
    """Return a line of a run in which one value, at any depth, is another or gone."""
    line = json.loads(json.dumps(draw(st.sampled_from(lines))))
    place = line
    while True:
        key = draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or not place[key] or draw(st.booleans()):
            break
        place = place[key]
    if draw(st.booleans()):
        del place[key]
    else:
        place[key] = draw(JSON)
    return json.dumps(line).encode()


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_any_bytes_are_read_or_refused_with_a_history_error(whole, data):
    """And what was whole beside them is there."""
    lines = lines_of(whole)
    line = (
        st.sampled_from(whole.read_bytes().splitlines())
        | damaged_lines(lines)
        | JSON.map(lambda value: json.dumps(value).encode())
        | st.binary().map(lambda value: value.replace(b"\n", b""))
        | st.just(b"[" * 10_000)
    )
    path = whole.parent / "any.jsonl"
    head = whole.read_bytes().splitlines()[:2]
    path.write_bytes(b"\n".join([*head, *data.draw(st.lists(line, max_size=4))]) + b"\n")
    run, refused = None, ""
    try:
        run = read(path)
    except HistoryError as error:
        refused = str(error)
    if run is None:
        assert " is newer than 1, " in refused
        return
    assert make_case(id="case-0") in [record.case for record in run.records.values()]
    assert all(isinstance(a, Attempt) for r in run.records.values() for a in r.attempts)
    assert all(record.attempts for record in run.records.values())
    assert isinstance(run.run_id, str)
    assert isinstance(run.started, str)


# ---- finding a run ----------------------------------------------------------------------


@pytest.fixture
def three(tmp_path) -> list[Path]:
    """Return the files of three runs, whose ids are known, oldest first."""
    names = [
        "20260101T000000Z_mi300x_aaaa0001.jsonl",
        "20260102T000000Z_cpu-amd-epyc-2c_aaaa0002.jsonl",
        "20260103T000000Z_mi250x_bbbb0003.jsonl",
    ]
    for name in names:
        (tmp_path / name).write_bytes(write_run(tmp_path / "from").read_bytes())
    return [tmp_path / name for name in names]


def test_runs_are_listed_oldest_first(tmp_path, three):
    """By the time in their names."""
    assert files(tmp_path) == three


def test_files_that_are_no_runs_are_not_listed(tmp_path, three):
    """Somebody's notes must not become the latest run."""
    (tmp_path / "notes.jsonl").write_text("{}\n")
    (tmp_path / "readme.txt").write_text("")
    assert files(tmp_path) == three
    assert find(tmp_path, "latest") == three[2]


def test_a_run_is_found_by_its_id_the_start_of_it_or_as_the_latest(tmp_path, three):
    """As few letters as tell it from the others."""
    assert find(tmp_path, "aaaa0002") == three[1]
    assert find(tmp_path, "b") == three[2]
    assert find(tmp_path, "latest") == three[2]


def test_a_run_is_found_by_its_path_wherever_it_is(tmp_path, three):
    """A file that was fetched from a cluster needs no folder."""
    assert find(tmp_path / "none", str(three[0])) == three[0]


def test_the_start_of_several_runs_is_refused_with_their_ids(tmp_path, three):
    """One letter more decides."""
    with pytest.raises(HistoryError) as caught:
        find(tmp_path, "aaaa")
    assert str(caught.value) == (
        f"'aaaa' is the start of several runs; in {tmp_path} there is aaaa0001, aaaa0002"
    )


@pytest.mark.parametrize("name", ["cccc", "gone.jsonl"])
def test_a_run_that_is_not_there_is_refused_with_those_that_are(tmp_path, three, name):
    """The newest five, which are what people mean."""
    with pytest.raises(HistoryError) as caught:
        find(tmp_path, name)
    assert str(caught.value) == (
        f"{name!r} is not a run here; in {tmp_path} there is aaaa0001, aaaa0002, bbbb0003"
    )


def test_a_folder_without_runs_says_how_to_make_one(tmp_path):
    """Or where to look."""
    assert files(tmp_path / "none") == []
    with pytest.raises(HistoryError) as caught:
        find(tmp_path / "none", "latest")
    assert str(caught.value) == (
        f"no runs in {tmp_path / 'none'}; run pytest perf_tests, or name --history DIR"
    )


def test_a_folder_knows_its_hardware_by_the_names_of_its_files(tmp_path):
    """In order, each with its files, oldest first; a key may have underscores."""
    runs = [("mi300x", 2), ("cpu_8c", 3), ("mi300x", 1)]
    paths = [tmp_path / f"2026010{day}T000000Z_{key}_0a0a0a0a.jsonl" for key, day in runs]
    for path in [*paths, tmp_path / "notes.jsonl"]:
        path.touch()
    found = keys(tmp_path)
    assert list(found) == ["cpu_8c", "mi300x"]
    assert found == {"cpu_8c": [paths[1]], "mi300x": [paths[2], paths[0]]}
    assert keys(tmp_path / "none") == {}
