"""``bench-lib report``: what it prints, what it writes, and how it ends."""

import builders
import nights
import pytest
from command import ran
from documents import document_in

from bench_lib.model import Status


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bench_lib.storage.history.utc_now", lambda: nights.stamp(minutes=360))

    def run(*words):
        return ran(["report", *words], monkeypatch, capsys)

    return run


@pytest.fixture
def night(tmp_path):
    records = [nights.make_entry().record, nights.regressed().record]
    return builders.write_run(tmp_path / "history", records, now="20261120T020000Z")


def test_the_night_is_told_in_a_few_lines(cli, night):
    status, out, err = cli()
    assert (status, err) == (0, "")
    lines = out.splitlines()
    name = "resnet50-b64-fp16-max-autotune-infer"
    assert lines[0] == f"1 of 2 cases on mi300x failed: {name} regressed by 8.0%."
    assert lines[1].startswith(f"{name}: GEMM")
    assert lines[4].startswith(f"{name}  mi300x    REGRESSED")
    reasons = [line for line in lines if line.startswith(f"{name}: REGRESSED latency: ")]
    assert "; +640 us in kernels: matrix products 4 ms" in reasons[0]
    assert lines[-1] == "next: bench-lib report --html report.html"


def test_a_long_reason_is_whole_so_that_its_remedy_can_be_read(cli, tmp_path):
    words = "measured under other conditions: " + "a rather long account of them " * 20
    entry = nights.make_entry(status=Status.REGRESSED, ratio=1.08, reason=f"{words}: do this")
    builders.write_run(tmp_path / "history", [entry.record], now="20261120T020000Z")
    assert ": do this\n" in cli()[1]


def test_a_page_and_markdown_are_written(cli, night, tmp_path):
    status, out, _ = cli("--html", "out/report.html", "--markdown", "out/report.md")
    assert status == 0
    assert "1 of 2 cases" in (tmp_path / "out/report.html").read_text()
    assert "1 of 2 cases" in (tmp_path / "out/report.md").read_text()
    assert "written: out/report.html" in out


def test_after_the_page_comes_the_search_for_the_change(cli, night, tmp_path):
    assert "bisect" not in cli("--html", "report.html")[1]
    good = [nights.make_entry(nights.make_case(compile_mode="max-autotune")).record]
    builders.write_run(tmp_path / "history", good, now="20261118T020000Z")
    lines = cli("--html", "report.html")[1].splitlines()
    name = "resnet50-b64-fp16-max-autotune-infer"
    assert lines[-1] == f"next: bench-lib bisect {name} --good last-ok"


@pytest.mark.parametrize(
    ("form", "first"),
    [("--markdown", "<!-- bench-lib: report -->"), ("--html", "<!DOCTYPE html>")],
)
def test_a_page_or_markdown_can_go_to_standard_output(cli, night, tmp_path, form, first):
    status, out, _ = cli(form, "-")
    assert status == 0
    assert out.startswith(first)
    assert "written" not in out
    assert [path.name for path in tmp_path.iterdir()] == ["history"]


def test_json_is_for_machines(cli, night):
    status, out, _ = cli("--json")
    told = document_in(out)
    assert status == 0
    assert told["schema"] == 3
    assert told["counts"] == {"REGRESSED": 1, "OK": 1}
    assert [entry["failing"] for entry in told["entries"]] == [True, False]
    assert told["entries"][0]["median_s"] == pytest.approx(0.00864)


def test_without_a_history_there_is_a_page_all_the_same(cli, tmp_path):
    status, out, _ = cli("--html", "report.html")
    assert status == 0
    assert out.startswith("Nothing was measured.")
    assert "Nothing was measured." in (tmp_path / "report.html").read_text()


def test_a_history_that_is_not_there_is_a_user_s_error(cli, tmp_path):
    status, out, err = cli("--history", "nowhere", "--html", "report.html")
    assert (status, out) == (2, "")
    assert err == (
        "bench-lib: error: there is no folder nowhere; name the one that holds the runs\n"
    )
    assert not (tmp_path / "report.html").exists()


def test_what_was_left_out_is_printed(cli, night):
    with night.open("ab") as file:
        file.write(b'{"schema": 1, "ki')
    _, out, _ = cli()
    assert any(line.startswith("! ") and "incomplete" in line for line in out.splitlines())


def test_a_run_that_is_not_there_is_a_user_s_error(cli, night):
    status, out, err = cli("--run", "ffffffff")
    assert (status, out) == (2, "")
    assert err.startswith("bench-lib: error:")


@pytest.mark.parametrize("form", ["--markdown", "--html"])
def test_a_page_that_cannot_be_written_is_a_user_s_error(cli, night, tmp_path, form):
    (tmp_path / "file").write_text("")
    status, _, err = cli(form, "file/report")
    assert status == 2
    assert "cannot write file/report" in err


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [
        ("--json", "--markdown -", "standard output"),
        ("--html -", "--markdown -", "standard output"),
        ("--html o.x", "--markdown o.x", "o.x"),
        ("--html link/../o.x", "--markdown o.x", "o.x"),
    ],
)
@pytest.mark.usefixtures("night")
def test_two_outputs_to_one_place_are_refused(cli, tmp_path, first, second, place):
    (tmp_path / "link").symlink_to(tmp_path / "history")
    status, out, err = cli(*first.split(), *second.split())
    assert (status, out) == (2, "")
    assert err == (
        f"bench-lib: error: {first} and {second} both write to {place}; "
        "name another file for --markdown\n"
    )
    assert {path.name for path in tmp_path.iterdir()} == {"history", "link"}


@pytest.mark.usefixtures("night")
def test_what_is_no_file_is_refused_as_such_however_many_outputs_it_is_to_take(cli):
    status, _, err = cli("--html", "/dev/null", "--markdown", "/dev/null")
    assert status == 2
    assert err.startswith("bench-lib: error: cannot write /dev/null: it is not a regular file")


def test_json_can_be_printed_beside_markdown_in_a_file(cli, night, tmp_path):
    assert document_in(cli("--json", "--markdown", "report.md")[1])["counts"]
    assert (tmp_path / "report.md").read_text().startswith("<!-- bench-lib: report -->")
