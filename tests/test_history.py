"""What a run leaves behind, however it ended, and how it is found and read again."""

import datetime as dt
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
from hypothesis import given
from hypothesis import strategies as st
from processes import no_file_beyond

import bench_lib
from bench_lib import reasons
from bench_lib.findings import Bounded, LaterFinding, Overruled
from bench_lib.model import Attempt, Launch, Numerics, RankSample, Record, Status
from bench_lib.storage import history
from bench_lib.storage.history import Writer, content, files, read, reference, unfold
from bench_lib.storage.lines import HistoryError


def run_python(code, *words, **options):
    paths = [str(Path(bench_lib.__file__).parents[1]), str(Path(__file__).parent)]
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def lines_of(path):
    return [json.loads(line) for line in content(path).splitlines()]


# ---- a whole run ------------------------------------------------------------------------


def test_a_run_is_read_back_as_it_was_written(tmp_path):
    case = make_case(launch=Launch(ranks=2), params={"a": 1, "b": 1.5, "c": "x", "d": True})
    measurement = make_measurement(
        numerics=Numerics(finite=True, cosine=0.999, reference_batch=4),
        per_rank=[RankSample(0, 0, "GPU-0", [0.5, 0.25], 7)],
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
        [
            make_verdict(status=Status.ERROR, interval=(0.5, 2.0)),
            make_verdict(metric="memory", findings=[Bounded("memory", 7.0), Overruled("baseline")]),
        ],
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
    writer = Writer(tmp_path, "mi300x")
    writer.end({"OK": 1}, 0, caches={"inductor": "warm, 41 entries"})
    assert read(writer.path).caches == {"inductor": "warm, 41 entries"}
    assert read(write_run(tmp_path)).caches == {}
    torn = content(writer.path).replace(b'{"inductor":"warm, 41 entries"}', b'"warm"')
    run = unfold(writer.path, torn)
    assert not run.finished
    assert "caches" in run.problems[0]


def test_the_end_of_a_run_counts_what_became_of_its_cases(tmp_path):
    writer = Writer(tmp_path, "mi300x")
    writer.end({"OK": 2, "REGRESSED": 1}, 1)
    (line,) = lines_of(writer.path)
    assert (line["counts"], line["exit_status"]) == ({"OK": 2, "REGRESSED": 1}, 1)


def test_today_is_the_day_in_greenwich(monkeypatch):
    asked = []

    class Clock(dt.datetime):
        @classmethod
        def now(cls, tz=None):
            asked.append(tz)
            return cls(2026, 1, 2, 23, 59, tzinfo=tz)

    monkeypatch.setattr(history.dt, "datetime", Clock)
    assert history.utc_today() == dt.date(2026, 1, 2)
    assert history.utc_now() == "2026-01-02T23:59:00Z"
    assert asked == [dt.timezone.utc] * 2


def test_a_file_is_named_by_its_time_its_hardware_and_its_run(tmp_path):
    path = write_run(tmp_path / "not" / "there", now="2026-01-02T03:04:05Z")
    assert re.fullmatch(r"20260102T030405Z_mi300x_[0-9a-f]{8}\.jsonl", path.name)
    run = read(path)
    assert (run.key, run.run_id) == ("mi300x", path.stem.rpartition("_")[2])


def test_every_line_says_schema_kind_run_and_time(tmp_path):
    path = write_run(tmp_path, [make_record(status=Status.OK, verdicts=[make_verdict()])])
    lines = lines_of(path)
    assert [line["kind"] for line in lines] == ["environment", "attempt", "verdict", "end"]
    assert {line["schema"] for line in lines} == {1}
    assert {line["run"] for line in lines} == {path.stem.rpartition("_")[2]}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line["time"]) for line in lines)


def test_an_environment_is_noted_once_for_each_device(tmp_path):
    writer = Writer(tmp_path, "mi300x")
    environment = make_environment()
    for uuid in ("GPU-0", "GPU-0", "GPU-1", "GPU-0"):
        assert writer.environment(environment, make_hardware(uuid=uuid)) == reference(environment)
    writer.close()
    run = read(writer.path)
    assert len(lines_of(writer.path)) == 2
    assert [hardware.uuid for hardware in run.hardware] == ["GPU-0", "GPU-1"]


def test_equal_environments_have_the_same_reference_and_others_another():
    assert reference(make_environment()) == reference(make_environment())
    assert reference(make_environment()) != reference(make_environment(torch="2.10.0"))
    assert re.fullmatch("[0-9a-f]{8}", reference(make_environment()))


def test_a_run_that_measured_nothing_leaves_no_file(tmp_path):
    writer = Writer(tmp_path, "mi300x")
    writer.close()
    assert files(tmp_path) == []
    writer.close()


def test_a_value_that_is_no_number_is_written_as_unknown(tmp_path):
    verdict = make_verdict(value=float("nan"), ratio=float("inf"))
    path = write_run(tmp_path, [make_record(status=Status.OK, verdicts=[verdict])])
    assert b"NaN" not in path.read_bytes()
    (found,) = read(path).records[CASE_ID].verdicts
    assert (found.value, found.ratio) == (None, None)


def test_bytes_that_are_no_text_are_written_as_question_marks(tmp_path):
    environment = make_environment(variables={"HOME": "/home/j\udcf6rg"})
    run = read(write_run(tmp_path, [make_record()], environment=environment))
    assert run.problems == []
    assert run.environments[reference(environment)].variables == {"HOME": "/home/j?rg"}


def test_a_verdict_names_the_test_it_is_of(tmp_path):
    path = write_run(tmp_path, [make_record(nodeid="a::b", status=Status.OK)])
    lines = lines_of(path)
    assert [line["nodeid"] for line in lines if line["kind"] == "verdict"] == ["a::b"]
    lines[1]["nodeid"] = None
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read(path).records[CASE_ID].nodeid == "a::b"


def test_a_file_that_was_renamed_still_knows_its_hardware(tmp_path):
    path = write_run(tmp_path).rename(tmp_path / "fetched.jsonl")
    assert read(path).key == "mi300x"


def test_a_nodeid_of_the_attempt_is_kept_where_the_verdict_has_none(tmp_path):
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
from bench_lib.storage.history import Writer
writer = Writer(Path(sys.argv[1]), "mi300x")
writer.environment(make_environment(), make_hardware())
process = 0
while True:
    writer.attempt(make_case(), None, make_attempt(process=process))
    print(process, flush=True)
    process += 1
"""


def test_a_killed_run_keeps_every_attempt_that_it_finished(tmp_path):
    with run_python(ENDLESS, str(tmp_path)) as process:
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


def test_a_full_disk_keeps_whole_lines_says_what_to_do_and_the_run_goes_on_once_space_is_freed(
    tmp_path,
):
    writer = Writer(tmp_path, "mi300x")
    writer.attempt(make_case(), None, make_attempt())
    used = writer.path.stat().st_size
    with no_file_beyond(used + 100), pytest.raises(HistoryError) as caught:
        writer.attempt(make_case(), None, make_attempt(process=1))
    assert str(caught.value) == (
        f"cannot write history to {writer.path}: File too large; everything before this case is "
        "kept. Free some space or choose another folder with --history DIR, "
        "or pytest's --perf-history DIR"
    )
    assert writer.path.stat().st_size == used
    assert [a.process for a in read(writer.path).records[CASE_ID].attempts] == [0]
    writer.attempt(make_case(), None, make_attempt(process=2))
    writer.end({}, 1)
    run = read(writer.path)
    assert [a.process for a in run.records[CASE_ID].attempts] == [0, 2]
    assert (run.problems, run.finished) == ([], True)


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_folder_that_cannot_be_written_is_said_before_anything_is_measured(tmp_path, below):
    (tmp_path / "history").write_text("")
    folder = tmp_path / "history" / below
    with pytest.raises(HistoryError) as caught:
        Writer(folder, "mi300x")
    assert str(caught.value) == (
        f"cannot write history to {folder}: {'Not a directory' if below else 'File exists'}; "
        "choose another folder with --history DIR, or pytest's --perf-history DIR"
    )


# ---- reading what is damaged ------------------------------------------------------------


def test_a_torn_last_line_is_said_and_the_rest_read(tmp_path):
    path = write_run(tmp_path, [make_record()], end=False)
    data = path.read_bytes()
    path.write_bytes(data + data[:100])
    run = read(path)
    assert run.problems == ["line 3 is incomplete: the run was killed while writing it"]
    assert len(run.records[CASE_ID].attempts) == 1
    assert not run.finished


def test_a_line_that_cannot_be_read_is_named_and_the_rest_read(tmp_path):
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
    path = write_run(tmp_path, [make_record()])
    lines = lines_of(path)
    lines[1]["attempt"]["measurement"] = "lost"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read(path)
    assert run.records == {}
    assert run.problems == [
        "line 2 cannot be read: Expected `object | null`, got `str` - at `$.attempt.measurement`"
    ]


def test_a_line_of_a_newer_schema_refuses_the_file(tmp_path):
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
    path = write_run(tmp_path, [make_record()])
    with path.open("ab") as file:
        file.write(b'{"schema": 1, "kind": "profile", "run": "x", "time": "t"}\n')
    assert read(path).problems == []


@pytest.mark.parametrize(
    "odd", [{"kind": "moonlight", "phase": 0.5}, {"kind": "renamed"}, {"kind": 7}, 7]
)
def test_a_finding_of_a_later_version_costs_no_verdict(tmp_path, odd):
    known = Overruled("baseline")
    record = make_record(status=Status.OK, verdicts=[make_verdict(findings=[known])])
    path = write_run(tmp_path, [record])
    lines = lines_of(path)
    (verdict,) = (line for line in lines if line["kind"] == "verdict")
    verdict["verdicts"][0]["findings"].append(odd)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read(path)
    (found,) = run.records[CASE_ID].verdicts
    assert (run.problems, found.findings[0]) == ([], known)
    assert isinstance(found.findings[1], LaterFinding)
    assert reasons.of(found) == f"{found.reason}; the other baseline is more precise, and decides"


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(HistoryError) as caught:
        read(tmp_path / "none.jsonl")
    assert str(caught.value) == f"cannot read {tmp_path / 'none.jsonl'}: No such file or directory"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    records = [
        make_record(
            case=make_case(id=f"case-{n}"),
            status=Status.OK,
            verdicts=[make_verdict(reason="ö" * n)],
        )
        for n in range(3)
    ]
    return write_run(tmp_path_factory.mktemp("whole"), records)


@given(data=st.data())
def test_every_whole_line_before_a_cut_stays_readable(whole, data):
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
        [f"line {len(kinds) + 1} is incomplete: the run was killed while writing it"]
        if torn
        else []
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
def damaged_lines(draw, lines):
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


@given(data=st.data())
def test_any_bytes_are_read_or_refused_with_a_history_error(whole, data):
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
