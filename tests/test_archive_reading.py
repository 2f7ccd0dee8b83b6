"""Commands that are told a run by its name read it wherever it is: a file, or compacted."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import (
    CASE_ID,
    make_attempt,
    make_measurement,
    make_record,
    make_verdict,
    run_id,
    write_run,
)
from command import ran

from bench_lib.model import Record, Status
from bench_lib.storage import baselines, history
from bench_lib.storage.archive.compaction import compact


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """Return a function that runs a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: ran(words, monkeypatch, capsys)


def measured(seconds: float) -> Record:
    """Return a judged record of five processes."""
    seen = make_measurement(iteration_s=[seconds] * 20)
    attempts = [make_attempt(process=n, measurement=seen) for n in range(5)]
    return make_record(attempts=attempts, status=Status.OK, verdicts=[make_verdict()])


@pytest.fixture
def nights(cli) -> list[Path]:
    """Return the files of two nights."""
    times = {0.5: "2026-01-01T02:00:00Z", 0.25: "2026-01-02T02:00:00Z"}
    return [write_run(Path("history"), [measured(s)], now=now) for s, now in times.items()]


def test_what_accepting_a_compacted_run_would_change_is_what_it_would_have_before(cli, nights):
    for name in (run_id(nights[0]), run_id(nights[0])[:7], "latest"):
        before = cli("baseline", "diff", "--run", name)
        assert before.status == 0
        compact(Path("history"), keep=0)
        assert history.files(Path("history")) == []
        assert cli("baseline", "diff", "--run", name)[:2] == before[:2]
        for path in nights:
            cli("history", "restore", run_id(path))


def test_the_latest_run_is_the_newest_though_an_older_one_was_restored(cli, nights):
    compact(Path("history"), keep=0)
    cli("history", "restore", run_id(nights[0]))
    assert history.files(Path("history")) == nights[:1]
    assert cli("history", "show", "latest", "--json").json["run"] == run_id(nights[1])


def test_a_compacted_run_is_accepted_alone_and_with_one_that_is_not(cli, nights):
    compact(Path("history"), keep=1)
    assert history.files(Path("history")) == nights[1:]
    ids = [run_id(path) for path in nights]
    for runs, count in ((ids[:1], 5), (ids, 10)):
        words = [word for run in runs for word in ("--run", run)]
        answer = cli("baseline", "accept", *words, "--reason", "as it is", "--force", "--json")
        assert (answer.status, answer.json["accepted"]) == (0, 1)
        accepted = baselines.load(Path("baselines"), "mi300x").baselines[CASE_ID]
        assert accepted.accepted.run_id == " ".join(runs)
        assert len(accepted.processes) == count


def test_a_run_that_is_nowhere_is_a_wrong_question_that_names_the_compacted_ones(cli, nights):
    compact(Path("history"), keep=1)
    answer = cli("baseline", "diff", "--run", "zzz")
    assert (answer.status, answer.out) == (2, "")
    known = ", ".join(run_id(path) for path in nights)
    assert answer.err == f"bench-lib: error: 'zzz' is not a run here; in history there is {known}\n"


def test_the_latest_run_is_no_other_where_its_file_cannot_be_read(cli, nights):
    compact(Path("history"), keep=2)
    nights[1].write_text('{"schema": 99}\n')
    answer = cli("baseline", "accept", "--run", "latest", "--reason", "as it is")
    assert (answer.status, answer.out) == (2, "")
    assert f"{nights[1]}, line 1: schema 99 is newer than" in answer.err


@pytest.mark.parametrize("words", [("baseline", "diff", "--run"), ("history", "show")])
def test_a_file_that_this_version_cannot_read_is_named_beside_compacted_ones(cli, nights, words):
    nights[1].write_text('{"schema": 99}\n')
    compact(Path("history"), keep=0)
    answer = cli(*words, run_id(nights[1]))
    assert answer.status == 2
    assert f"{nights[1]}, line 1: schema 99 is newer than" in answer.err


def test_every_command_goes_on_past_a_damaged_month_and_says_so(cli, nights):
    compact(Path("history"), keep=0)
    month = Path("history", "2026-01.parquet")
    damaged = month.read_bytes()[:-100]
    month.write_bytes(damaged)
    newest = [measured(0.5)]
    kept = write_run(Path("history"), newest, now="2026-01-03T02:00:00Z")
    other = write_run(Path("history"), newest, now="2026-02-01T02:00:00Z")
    kept.write_bytes(kept.read_bytes() + b"{}\n")
    said = "2026-01.parquet: cannot be read: "
    for words in (
        ("history", "list"),
        ("history", "list", "--json"),
        ("history", "query", "SELECT * FROM points"),
        ("history", "export", "--csv"),
        ("history", "compact"),
        ("report", "--markdown", "-"),
    ):
        answer = cli(*words)
        assert answer.status == 0, words
        assert said in answer.out + answer.err, words
    for words in (("history", "show", run_id(kept)), ("compare", str(other), str(kept))):
        answer = cli(*words)
        assert answer.status == 0, words
        assert "cannot be read: " in answer.out + answer.err, words
    assert month.read_bytes() == damaged
    assert kept.exists()
