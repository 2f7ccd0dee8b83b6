"""What a terminal shows: every cell, every line, and never more than the width."""

from dataclasses import replace

import pytest
from builders import (
    CASE_ID,
    make_attempt,
    make_case,
    make_fault,
    make_measurement,
    make_record,
    make_verdict,
)
from hypothesis import given
from hypothesis import strategies as st

from bench_lib.findings import NotInterleaved
from bench_lib.formats import many, percent, printable, quantity, seconds, signed_percent, some
from bench_lib.model import Status
from bench_lib.report.console import changes, explanations, in_words, summary
from bench_lib.report.render import cells, summary_lines

MIB = 2**20


# ---- rows -------------------------------------------------------------------------------


def row(record):
    """Return a record's cells by heading; empty ones are left out."""
    return {name: below[0] for name, below in cells(summary([record]))}


def test_a_row_holds_the_middle_of_the_accepted_processes():
    record = make_record(
        status=Status.OK,
        attempts=[
            make_attempt(measurement=make_measurement(iteration_s=[s] * 4, peak_memory_bytes=m))
            for s, m in ((0.5, 10 * MIB), (0.25, 30 * MIB), (0.125, 20 * MIB))
        ],
        verdicts=[
            make_verdict(metric="memory", ratio=2.0),
            make_verdict(ratio=1.0123, detectable_effect=0.0155),
        ],
    )
    assert row(record) == {
        "case": CASE_ID,
        "status": "OK",
        "median": "250 ms",
        "change": "+1.2%",
        "detects": "1.6%",
        "rate": "16 img/s",
        "spread": "0.0%",
        "memory": "30.0 MiB",
    }


def test_a_row_has_what_is_known():
    unjudged = make_record(status=Status.NO_BASELINE, verdicts=[make_verdict(ratio=None)])
    assert {"change", "detects", "memory"}.isdisjoint(row(unjudged))
    failed = make_record(status=Status.ERROR, attempts=[make_attempt(fault=make_fault())])
    assert row(failed) == {"case": CASE_ID, "status": "ERROR"}
    discarded = make_attempt(measurement=make_measurement(), accepted=False)
    assert row(make_record(attempts=[discarded])) == {"case": CASE_ID, "status": "not judged"}


def test_the_worst_stand_first_and_the_rest_as_measured():
    order = ["OK", "SUSPECT", "NOISY", "REGRESSED", "IMPROVED", "INVALID", "ERROR", "INCOMPARABLE"]
    order.append("REDRAWN")
    records = [make_record(case=make_case(id=name), status=Status(name)) for name in order]
    records.insert(2, make_record(case=make_case(id="none"), status=None))
    assert " ".join(record.case.id for record in summary(records).rows) == (
        "ERROR REGRESSED INVALID INCOMPARABLE SUSPECT NOISY REDRAWN IMPROVED OK none"
    )


@given(
    ids=st.lists(
        st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=150),
        max_size=5,
    )
)
def test_no_line_of_a_summary_is_wider_than_asked_for(ids):
    lines = summary_lines(summary(make_record(case=make_case(id=each)) for each in ids), 100)
    assert len(lines) == (len(ids) + 1 if ids else 0)
    assert all(len(line) <= 100 for line in lines)


# ---- words ------------------------------------------------------------------------------


def test_what_a_reader_should_know_is_a_line_each():
    measurement = make_measurement(warnings=["was not steady"])
    record = make_record(
        attempts=[make_attempt(measurement=measurement)] * 2 + [make_attempt(fault=make_fault())],
        verdicts=[
            make_verdict(),
            make_verdict(status=Status.REGRESSED, metric="memory", reason="peak 2 MiB\nmore"),
            make_verdict(status=Status.SKIPPED, metric="tail", reason="too few"),
        ],
    )
    assert explanations([record]) == [
        f"{CASE_ID}: REGRESSED memory: peak 2 MiB",
        f"{CASE_ID}: warning: was not steady",
    ]


def test_what_was_measured_once_more_warns_of_what_is_taken():
    def warned(*accepted):
        attempts = [
            make_attempt(accepted=taken, measurement=make_measurement(warnings=[f"look {look}"]))
            for look, taken in enumerate(accepted, 1)
        ]
        return explanations([make_record(attempts=attempts)])

    assert warned(False, True) == [f"{CASE_ID}: warning: look 2"]
    assert warned(True, True) == [f"{CASE_ID}: warning: look 1"]
    assert warned(False, False) == [f"{CASE_ID}: warning: look 1"]


def test_warnings_that_differ_in_figures_alone_are_one_line():
    def warned(case_id, *warnings):
        measurement = make_measurement(warnings=list(warnings))
        attempts = [make_attempt(measurement=measurement)]
        return make_record(case=make_case(id=case_id), attempts=attempts)

    records = [
        warned("a", "not steady after 10.5 s: by 2%"),
        warned("b", "not steady after 9 s: by 2%", "the answer holds NaN"),
        *(warned(case_id, "not steady after 9.5 s: by 2%") for case_id in "cde"),
    ]
    assert explanations(records) == [
        "a, b, c and 2 more: warning: not steady after 10.5 s: by 2%",
        "b: warning: the answer holds NaN",
    ]


def test_a_warning_that_is_the_reason_is_said_once():
    measurement = make_measurement(warnings=["other programs kept the CPUs 95% busy"])
    reason = "other programs kept the CPUs 88% busy"
    record = make_record(
        attempts=[make_attempt(measurement=measurement)],
        status=Status.INVALID,
        verdicts=[make_verdict(status=Status.INVALID, metric="run", reason=reason)],
    )
    assert explanations([record]) == [f"{CASE_ID}: INVALID run: {reason}"]


def test_why_cases_are_noisy_is_one_line():
    def noisy(case_id, change, sd, agreeing=""):
        low = f"so a slowdown below {5 * sd}% may go unnoticed"
        reason = f"{change} slower than the reference in 4 pairs (95% interval -1% to +9%); "
        reason += f"{agreeing}runs vary by {sd}%, {low}"
        verdict = make_verdict(status=Status.NOISY, reason=reason)
        return make_record(case=make_case(id=case_id), status=Status.NOISY, verdicts=[verdict])

    records = [noisy("a", "3%", 1, "3 of 4 pairs agree; "), noisy("b", "0.5%", 2)]
    runs = "runs vary by 1%, so a slowdown below 5% may go unnoticed"
    assert explanations(records) == [f"a, b: NOISY latency: {runs}"]


def test_why_new_cases_have_no_pairs_is_one_line():
    lacking = make_verdict(status=Status.NO_BASELINE, findings=[NotInterleaved("no such module")])
    records = [
        make_record(case=make_case(id=name), status=Status.NO_BASELINE, verdicts=[lacking])
        for name in "ab"
    ]
    assert explanations(records) == ["a, b: not compared with the reference: no such module"]


def test_of_several_sets_of_changes_each_names_its_cases():
    def changed(case_id, change, accepted):
        return make_record(
            case=make_case(id=case_id),
            status=Status.OK,
            changes=[change],
            baseline_accepted=accepted,
        )

    a, b = (changed(name, "torch 1 -> 2", f"2026-01-0{n}") for n, name in enumerate("ab", 1))
    c = changed("c", "driver 3 -> 4", None)
    torch = "since the baseline of 2026-01-01: torch 1 -> 2"
    assert list(changes([a, b])) == [torch]
    assert list(changes([a, b, c])) == [f"a, b: {torch}", "c: since the baseline: driver 3 -> 4"]


def test_of_a_case_with_a_reference_its_own_differences_are_told():
    verdict = make_verdict(against="reference")
    record = make_record(status=Status.OK, verdicts=[verdict], changes=["torch 1 -> 2"])
    assert list(changes([record])) == ["against the reference: torch 1 -> 2"]
    assert "\n  against the reference: torch 1 -> 2" in in_words(record)
    other = replace(record, case=make_case(id="b"), verdicts=[make_verdict()])
    assert list(changes([record, other])) == [
        f"{record.case.id}: against the reference: torch 1 -> 2",
        "b: since the baseline: torch 1 -> 2",
    ]


def test_a_verdict_that_both_baselines_give_is_explained_once():
    def verdict(against, metric, status):
        return make_verdict(status=status, metric=metric, against=against, reason=against)

    verdicts = [
        verdict("pinned", "latency", Status.REGRESSED),
        verdict("rolling", "latency", Status.REGRESSED),
        verdict("pinned", "throughput", Status.SUSPECT),
        verdict("rolling", "throughput", Status.REGRESSED),
    ]
    assert explanations([make_record(verdicts=verdicts)]) == [
        f"{CASE_ID}: REGRESSED latency: pinned",
        f"{CASE_ID}: SUSPECT throughput: pinned",
        f"{CASE_ID}: REGRESSED throughput: rolling",
    ]


def test_a_comparison_with_what_was_published_is_a_line_though_nothing_is_judged():
    records = [
        make_record(
            status=Status.NO_BASELINE,
            verdicts=[make_verdict(status=Status.NO_BASELINE, ratio=None, reason=reason, **fields)],
        )
        for reason, fields in (("5 ms", {}), ("5 ms; published: 3", {"against": "published"}))
    ]
    assert explanations(records) == [f"{CASE_ID}: NO_BASELINE latency: 5 ms; published: 3"]


def test_a_case_in_words_leads_with_what_gave_it_its_status():
    record = make_record(
        attempts=[
            make_attempt(fault=make_fault(last_output="older")),
            make_attempt(fault=make_fault(last_output="line 1\nline 2")),
            make_attempt(fault=make_fault(last_output="")),
        ],
        verdicts=[
            make_verdict(reason="as before"),
            make_verdict(status=Status.REGRESSED, metric="memory", reason="peak 2 MiB"),
        ],
    )
    assert in_words(record) == (
        f"REGRESSED {CASE_ID}: memory: peak 2 MiB\n"
        "  latency: OK: as before\n"
        "\n"
        "last output of the worker:\n"
        "line 1\nline 2"
    )


def test_a_case_in_words_without_output_ends_with_its_metrics():
    record = make_record(verdicts=[make_verdict(reason="as before")])
    assert in_words(record) == f"OK {CASE_ID}: latency: as before"


# ---- figures ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (123.456, "123.5 s"),
        (1.0, "1 s"),
        (0.006972, "6.972 ms"),
        (0.001, "1 ms"),
        (0.0000123456, "12.35 us"),
        (0.0000000123, "12.3 ns"),
    ],
)
def test_a_time_has_four_digits_and_its_unit(value, expected):
    assert seconds(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5, "0.5"),
        (9181.4, "9181"),
        (9999.4, "9999"),
        (9999.6, "10 k"),
        (22070.0, "22.07 k"),
        (1234567.0, "1235 k"),
        (9999600.0, "10 M"),
        (123456789.0, "123.5 M"),
        (12345678901.0, "12.35 G"),
    ],
)
def test_a_quantity_has_four_digits_and_no_exponent(value, expected):
    assert quantity(value) == expected


def test_a_row_of_many_names_is_cut_and_the_rest_is_counted():
    assert some(["a", "b", "c"], 3) == "a, b, c"
    assert some(["a", "b", "c", "d", "e"], 3) == "a, b, c and 2 more"


def test_the_plural_of_a_word_in_s_has_an_e():
    told = [many(number, what) for number in (0, 1, 2) for what in ("case", "process")]
    assert told == ["0 cases", "0 processes", "1 case", "1 process", "2 cases", "2 processes"]


def test_a_long_reason_is_cut_in_the_summary():
    record = make_record(
        status=Status.ERROR, verdicts=[make_verdict(status=Status.ERROR, reason="x" * 1001 + "\ny")]
    )
    (line,) = explanations([record])
    assert line == f"{CASE_ID}: ERROR latency: {'x' * 999}…"


STEERS = "\x1b[2J\x1b]0;owned\x07out\x9b31m of\x08\r\nmemory\x1b"
"""What a worker may say to a terminal: clear it, name its window, redden it, step back."""


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (STEERS, "out of\ufffd\nmemory\ufffd"),
        ("\ta\nb\u2192é", "\ta\nb\u2192é"),
        ("\x1b]8;;http://x\x1b\\link\x1b(B", "link"),
        ("\x1b]0;without an end", "0;without an end"),
        ("why\n ::error file=a::b", "why\n : :error file=a::b"),
        ("\x1b[0m::add-mask::x\n::std::vector", ": :add-mask::x\n: :std::vector"),
        ("a ##[error]b", "a ## [error]b"),
        ("at::native::add\n:: alone", "at::native::add\n:: alone"),
    ],
)
def test_what_steers_a_terminal_does_not_reach_it(said, shown):
    assert printable(said) == shown


def test_a_workers_words_are_printable_wherever_they_are_shown():
    record = make_record(
        attempts=[
            make_attempt(measurement=make_measurement(warnings=[STEERS])),
            make_attempt(fault=make_fault(last_output=STEERS)),
        ],
        status=Status.ERROR,
        verdicts=[make_verdict(status=Status.ERROR, metric="run", reason=STEERS)],
    )
    for text in (*explanations([record]), in_words(record)):
        assert "out of" in text
        assert all(each.isprintable() for each in text.splitlines())


@pytest.mark.parametrize(
    ("discarded", "line"),
    [
        ("shared with process 7; measured again", "measured again: shared with process 7"),
        ("shared with process 7", "discarded: shared with process 7"),
    ],
)
def test_what_the_hardware_spoilt_is_told_as_it_went(discarded, line):
    disturbed = make_attempt(accepted=False, invalid=True, discarded=discarded)
    record = make_record(attempts=[disturbed, make_attempt()], status=Status.OK)
    assert f"{CASE_ID}: {line}" in explanations([record])


@pytest.mark.parametrize(
    ("share", "plain", "with_sign"),
    [
        (0.08, "8.0%", "+8.0%"),
        (-0.08, "-8.0%", "-8.0%"),
        (-0.0004, "0.0%", "0.0%"),
        (0.0004, "0.0%", "0.0%"),
        (-0.1, "-10.0%", "-10.0%"),
    ],
)
def test_a_share_that_rounds_to_zero_has_no_sign(share, plain, with_sign):
    assert (percent(share), signed_percent(share)) == (plain, with_sign)
