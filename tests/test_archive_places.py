"""Runs in object stores and on web servers: read, queried, and pushed there; on loopback only."""

from __future__ import annotations

import functools
import http.server
from pathlib import Path

import pytest
import s3_server
from builders import (
    CASE_ID,
    make_case,
    make_hardware,
    make_record,
    make_verdict,
    night,
    run_id,
    write_run,
)
from serving import answering

from bench_lib.model import Record, Status
from bench_lib.storage import history
from bench_lib.storage.archive import Archive
from bench_lib.storage.archive.compaction import compact, restore
from bench_lib.storage.archive.places import HistoryPlace
from bench_lib.storage.archive.pushing import pull, push
from bench_lib.storage.history import HistoryError, read

s3fs = pytest.importorskip("s3fs", reason="s3:// needs the extra object-store")

NOW = "2026-03-01T00:00:00Z"
ADDRESS = f"s3://{s3_server.BUCKET}/runs"


def record(case_id: str = CASE_ID) -> Record:
    """Return a judged record."""
    return make_record(case=make_case(id=case_id), status=Status.OK, verdicts=[make_verdict()])


@pytest.fixture
def credentials(monkeypatch, tmp_path):
    """Let nothing of this machine decide how stores are reached."""
    s3fs.S3FileSystem.clear_instance_cache()
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    yield monkeypatch
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def store(credentials):
    """Yield a store that is reached with the right credentials."""
    with s3_server.running() as store:
        credentials.setenv("AWS_ENDPOINT_URL", store.url)
        credentials.setenv("AWS_ACCESS_KEY_ID", s3_server.KEY_ID)
        credentials.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield store


# ---- reading ----------------------------------------------------------------------------


def test_runs_of_a_store_are_read_as_those_of_a_folder(tmp_path, store):
    paths = [write_run(tmp_path, [record()], now=night(day)) for day in (1, 2)]
    compact(tmp_path, keep=0)
    paths.append(write_run(tmp_path, [record()], now=night(3)))
    for path in tmp_path.iterdir():
        if not path.name.startswith("."):
            store.objects[f"runs/{path.name}"] = path.read_bytes()
    with Archive(ADDRESS, now=NOW) as found, Archive(tmp_path, now=NOW) as local:
        assert found.series(CASE_ID, "mi300x") == local.series(CASE_ID, "mi300x")
        assert list(found.all_series()) == list(local.all_series())
        assert [run.run_id for run in found.runs()] == [run.run_id for run in local.runs()]
        for view in ("attempts", "verdicts", "environments", "lines"):
            counted = f"SELECT count(*) FROM {view}"
            assert found.query(counted).rows == local.query(counted).rows
        newest, oldest = found.run("latest"), found.find(found.runs()[0].run_id)
        assert newest.records == read(paths[2]).records
        assert found.data(oldest) == restore(tmp_path, oldest.run_id).read_bytes()
        assert found.problems == []
        with pytest.raises(HistoryError, match="the query failed: "):
            found.query(f"SELECT * FROM read_text('{ADDRESS}/secret')")


def test_a_path_that_swallowed_a_slash_is_the_address_that_was_meant(tmp_path, store):
    path = write_run(tmp_path, [record()], now=night(1))
    store.objects[f"runs/{path.name}"] = path.read_bytes()
    with Archive(Path(ADDRESS), now=NOW) as found:
        assert found.place.address == ADDRESS
        assert len(found.runs()) == 1


def test_what_a_store_has_compacted_is_not_fetched_line_by_line(tmp_path, store):
    path = write_run(tmp_path, [record()], now=night(1))
    compact(tmp_path, keep=1)
    push(tmp_path, ADDRESS)
    store.objects[f"runs/{path.name}"] = path.read_bytes()
    store.asked.clear()
    with Archive(ADDRESS, now=NOW) as found:
        assert len(found.series(CASE_ID, "mi300x")) == 1
    assert not [asked for asked in store.asked if asked.endswith(".jsonl")]


def test_a_web_server_is_read_too(tmp_path):
    write_run(tmp_path, [record()], now=night(1))
    compact(tmp_path, keep=0)
    write_run(tmp_path, [record()], now=night(2))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, answering(server):
        with Archive(f"http://127.0.0.1:{server.server_port}/", now=NOW) as found:
            times = [point.time for point in found.series(CASE_ID, "mi300x")]
            assert [run.compacted for run in found.runs()] == [True, False]
            assert found.query("SELECT count(*) FROM verdicts").rows == [(2,)]
            assert found.problems == []
        done = pull(tmp_path / "c", f"http://127.0.0.1:{server.server_port}/", most=None)
        assert len(done.files) == 2
        assert times == [night(1), night(2)]
        with pytest.raises(HistoryError, match="web servers are read from, and not written to"):
            push(tmp_path, f"http://127.0.0.1:{server.server_port}/")


# ---- what may go wrong ------------------------------------------------------------------


def test_an_empty_place_in_a_bucket_is_a_history_of_nothing(store):
    with Archive(ADDRESS) as found:
        assert (found.runs(), found.problems) == ([], [])


def test_a_bucket_that_is_not_there_is_said(store):
    with pytest.raises(
        HistoryError, match=r"^cannot read s3://other/runs: there is no such bucket"
    ):
        Archive("s3://other/runs")


def test_without_credentials_it_is_said_what_is_needed(store, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(HistoryError, match=r"^cannot read .*: there are no credentials .*AWS_ACC"):
        Archive(ADDRESS)


def test_credentials_that_are_refused_are_said(store, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDSOMEBODY")
    with pytest.raises(HistoryError, match=r"^cannot read .*: it was refused \(Access Denied\)"):
        Archive(ADDRESS)
    with pytest.raises(HistoryError, match=r"^cannot read .*: it was refused"):
        push(Path(), ADDRESS)


def test_a_server_that_is_gone_is_said(credentials):
    with s3_server.running() as store:
        url = store.url
    credentials.setenv("AWS_ENDPOINT_URL", url)
    credentials.setenv("AWS_ACCESS_KEY_ID", s3_server.KEY_ID)
    credentials.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(HistoryError, match=r"^cannot read .*: Could not connect") as error:
        Archive(ADDRESS)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("address", ["ftp://host/runs", "file:///tmp", "s4://bucket", "://x"])
def test_kinds_of_addresses_that_are_not_known_are_refused(address):
    with pytest.raises(HistoryError, match="runs are kept in folders, or under s3://, gs://, http"):
        HistoryPlace(address)


def test_a_kind_of_address_whose_package_is_not_here_names_it(monkeypatch):
    import fsspec

    def missing(protocol, **_):
        raise ImportError(protocol)

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with pytest.raises(HistoryError, match=r"gs:// needs gcsfs; pip install gcsfs"):
        HistoryPlace("gs://bucket/runs")
    with pytest.raises(HistoryError, match=r"s3:// needs s3fs; pip install 'bench-lib\[object-st"):
        HistoryPlace("s3://bucket/runs")


# ---- pushing ----------------------------------------------------------------------------


def test_pushing_uploads_what_is_not_there(tmp_path, store):
    first = write_run(tmp_path, [record()], now=night(1))
    assert push(tmp_path, ADDRESS).files == [first.name]
    assert store.objects == {f"runs/{first.name}": first.read_bytes()}
    second = write_run(tmp_path, [record()], now=night(2))
    done = push(tmp_path, ADDRESS)
    assert (done.files, done.there) == ([second.name], 1)
    with first.open("ab") as file:
        file.write(b"\n")
    assert push(tmp_path, ADDRESS).files == [first.name]
    assert store.objects[f"runs/{first.name}"] == first.read_bytes()


def test_a_run_that_goes_on_is_pushed_when_it_is_done(tmp_path, store):
    path = write_run(tmp_path, [record()], now=night(1), end=False)
    done = push(tmp_path, ADDRESS)
    assert (done.files, done.going_on, store.objects) == ([], [path.name], {})


def test_a_compacted_month_goes_whole_where_nothing_of_it_is_there(tmp_path, store):
    paths = [write_run(tmp_path / "a", [record()], now=night(day)) for day in (1, 2)]
    compact(tmp_path / "a", keep=0)
    assert push(tmp_path / "a", ADDRESS).files == ["2026-01.parquet"]
    assert list(store.objects) == ["runs/2026-01.parquet"]
    assert push(tmp_path / "a", ADDRESS).there == 2
    write_run(tmp_path / "a", [record()], now=night(3))
    compact(tmp_path / "a", keep=0)
    assert push(tmp_path / "a", ADDRESS).files == ["2026-01.parquet"]
    other = write_run(tmp_path / "b", [record()], now=night(4))
    data = other.read_bytes()
    compact(tmp_path / "b", keep=0)
    assert push(tmp_path / "b", ADDRESS).files == [other.name]
    assert store.objects[f"runs/{other.name}"] == data
    with Archive(ADDRESS, now=NOW) as found:
        assert [run.started for run in found.runs()] == [night(day) for day in (1, 2, 3, 4)]
        assert found.find(found.runs()[0].run_id).file == paths[0].name


def test_somebody_elses_file_under_a_months_name_is_not_written_over(tmp_path, store):
    path = write_run(tmp_path, [record()], now=night(1))
    compact(tmp_path, keep=0)
    store.objects["runs/2026-01.parquet"] = b"mine"
    assert push(tmp_path, ADDRESS).files == [path.name]
    assert store.objects["runs/2026-01.parquet"] == b"mine"


def test_a_folder_may_be_pushed_to(tmp_path):
    path = write_run(tmp_path / "a", [record()], now=night(1))
    assert push(tmp_path / "a", str(tmp_path / "b")).files == [path.name]
    assert (tmp_path / "b" / path.name).read_bytes() == path.read_bytes()
    assert [p.name for p in (tmp_path / "b").iterdir()] == [path.name]


def test_a_push_that_fails_half_way_is_ended_by_the_next(tmp_path, store):
    paths = [write_run(tmp_path, [record()], now=night(day)) for day in (1, 2, 3)]
    store.refuse_from = 2
    with pytest.raises(HistoryError, match=rf"^cannot write to {ADDRESS}: "):
        push(tmp_path, ADDRESS)
    assert store.objects == {f"runs/{paths[0].name}": paths[0].read_bytes()}
    store.refuse_from = None
    done = push(tmp_path, ADDRESS)
    assert (done.files, done.there) == ([path.name for path in paths[1:]], 1)


# ---- pulling ----------------------------------------------------------------------------


def test_pulling_fetches_the_newest_of_each_hardware(tmp_path, store):
    paths = [write_run(tmp_path / "a", [record()], now=night(day)) for day in (1, 2)]
    compact(tmp_path / "a", keep=0)
    data = [restore(tmp_path / "a", run).read_bytes() for run in map(run_id, paths)]
    push(tmp_path / "a", ADDRESS)
    other = write_run(tmp_path / "b", now=night(1), hardware=make_hardware(key="cpu"))
    newest = write_run(tmp_path / "b", [record()], now=night(3))
    push(tmp_path / "b", ADDRESS)
    store.asked.clear()
    done = pull(tmp_path / "c", ADDRESS, most=2)
    assert sorted(path.name for path in done.files) == sorted(
        [paths[1].name, newest.name, other.name]
    )
    assert (done.here, done.left) == (0, [])
    assert (tmp_path / "c" / paths[1].name).read_bytes() == data[1]
    assert [r.started for r in history.latest(tmp_path / "c", "mi300x", 60)] == [
        read(newest).started,
        read(paths[1]).started,
    ]
    assert pull(tmp_path / "c", ADDRESS, most=2).here == 3
    done = pull(tmp_path / "c", ADDRESS, most=None)
    assert ([path.name for path in done.files], done.here) == ([paths[0].name], 3)
    assert (tmp_path / "c" / paths[0].name).read_bytes() == data[0]


def test_only_files_that_are_wanted_are_fetched(tmp_path, store):
    paths = [write_run(tmp_path / "a", [record()], now=night(day)) for day in (1, 2)]
    push(tmp_path / "a", ADDRESS)
    store.asked.clear()
    pull(tmp_path / "b", ADDRESS, most=1)
    fetched = [asked for asked in store.asked if asked.startswith("GET runs/")]
    assert fetched == [f"GET runs/{paths[1].name}"]


def test_what_is_compacted_here_is_not_fetched(tmp_path, store):
    write_run(tmp_path, [record()], now=night(1))
    push(tmp_path, ADDRESS)
    compact(tmp_path, keep=0)
    done = pull(tmp_path, ADDRESS, most=None)
    assert (done.files, done.here) == ([], 1)


def test_a_run_that_went_on_is_fetched_again_and_another_is_left(tmp_path, store):
    path = write_run(tmp_path, [record()], now=night(1))
    data = path.read_bytes()
    store.objects[f"runs/{path.name}"] = data
    path.write_bytes(data[:-30])
    assert pull(tmp_path, ADDRESS, most=1).files == [path]
    assert path.read_bytes() == data
    path.write_bytes(b"{}\n")
    done = pull(tmp_path, ADDRESS, most=1)
    assert (done.files, done.here, done.left) == (
        [],
        0,
        [f"{path.name}: not what is there under its name; left as it is"],
    )
    path.write_bytes(data + b"\n")
    assert pull(tmp_path, ADDRESS, most=1).here == 1


def test_a_run_that_is_yet_to_come_is_not_fetched(tmp_path, store):
    path = write_run(tmp_path / "a", [record()], now="2999-01-01T00:00:00Z")
    store.objects[f"runs/{path.name}"] = path.read_bytes()
    store.objects["runs/notes.txt"] = store.objects["runs/2026-01.parquet"] = b"mine"
    assert pull(tmp_path / "b", ADDRESS, most=None).files == []
    assert not (tmp_path / "b").exists()


def test_a_pull_that_fails_half_way_is_ended_by_the_next(tmp_path, store):
    paths = [write_run(tmp_path / "a", [record()], now=night(day)) for day in (1, 2)]
    push(tmp_path / "a", ADDRESS)
    key = f"runs/{paths[0].name}"
    store.broken = {key}
    with pytest.raises(HistoryError, match=rf"^cannot read {ADDRESS}: "):
        pull(tmp_path / "b", ADDRESS, most=None)
    assert [path.name for path in (tmp_path / "b").iterdir()] == [paths[1].name]
    store.broken = set()
    done = pull(tmp_path / "b", ADDRESS, most=None)
    assert ([path.name for path in done.files], done.here) == ([paths[0].name], 1)


def test_a_pull_says_what_a_push_says(tmp_path, store):
    assert pull(tmp_path, ADDRESS, most=1).files == []
    with pytest.raises(HistoryError, match=r"^cannot read s3://other: there is no such bucket"):
        pull(tmp_path, "s3://other", most=1)
    with pytest.raises(HistoryError, match=r"^s3:/perf/a is no folder; runs are fetched into one"):
        pull(Path("s3://perf/a"), ADDRESS, most=1)
    (tmp_path / "file").touch()
    with pytest.raises(HistoryError, match=r"file is not a folder; name one with --history DIR"):
        pull(tmp_path / "file", ADDRESS, most=1)
    with pytest.raises(HistoryError, match="runs are kept in folders, or under s3://"):
        pull(tmp_path, "ftp://x", most=1)


def test_runs_are_pulled_from_a_folder_as_well(tmp_path):
    path = write_run(tmp_path / "a", [record()], now=night(1))
    assert pull(tmp_path / "b", str(tmp_path / "a"), most=1).files == [tmp_path / "b" / path.name]
