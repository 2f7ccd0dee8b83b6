"""What a night's time was spent on: by phase, by case, in a sentence."""

from __future__ import annotations

from dataclasses import replace

from builders import make_attempt, make_case, make_record
from nights import make_night, regressed

from bench_lib.report import spent
from bench_lib.report.html import page
from bench_lib.report.markdown import as_markdown


def record(case_id="resnet50-b64", *attempts):
    tried = [make_attempt(process=n, phases_s=phases) for n, phases in enumerate(attempts)]
    return make_record(case=make_case(id=case_id), attempts=tried)


RECORDS = [
    record("resnet50-b64", {"build": 1.0, "measure": 3.0}),
    record("vgg16-b64", {"build": 0.5, "measure": 2.5, "numerics": 3.0}),
]


def test_phases_add_up_and_the_longest_comes_first():
    assert spent.rows(spent.spent(RECORDS)) == [
        ("measure", "5.50", "55%"),
        ("numerics", "3.00", "30%"),
        ("build", "1.50", "15%"),
        ("all", "10.00", "100%"),
    ]


def test_a_look_again_counts_apart():
    once_more = make_attempt(process=0, phases_s={"measure": 2.0})
    confirming = make_attempt(process=1, confirms=True, phases_s={"measure": 4.0})
    first = make_attempt(phases_s={"measure": 4.0})
    found = spent.spent([make_record(attempts=[first, once_more, confirming])])
    assert (found.attempts, found.phases_s, found.again_s) == (3, {"measure": 10.0}, 6.0)
    assert spent.sentence([make_record(attempts=[first, once_more, confirming])]) == (
        "3 attempts took 10 s: measure 100%; 60% was spent on looking again."
    )


def test_cases_are_listed_by_what_they_took():
    assert spent.case_rows(RECORDS) == [
        ("vgg16-b64", "1", "6.00", "numerics 3.00, measure 2.50, build 0.50"),
        ("resnet50-b64", "1", "4.00", "measure 3.00, build 1.00"),
    ]


def test_a_history_from_before_says_nothing_of_phases():
    assert spent.sentence([make_record()]) == ""
    assert spent.case_rows([make_record()]) == []


def test_the_report_says_what_the_night_was_spent_on():
    entry = regressed()
    attempts = [replace(each, phases_s={"measure": 2.0}) for each in entry.record.attempts]
    told = replace(entry, record=replace(entry.record, attempts=attempts))
    night = make_night([told])
    assert night.spent.endswith(": measure 100%.")
    assert night.spent in as_markdown(night)
    assert f"<p>{night.spent}</p>" in page(night)
    assert " took " not in page(make_night([entry]))
