"""What a run's time was spent on: by phase and by case."""

from __future__ import annotations

from builders import make_attempt, make_case, make_record

from bench_lib.report import spent
from bench_lib.report.render import cells


def record(case_id="resnet50-b64", *attempts):
    tried = [make_attempt(process=n, phases_s=phases) for n, phases in enumerate(attempts)]
    return make_record(case=make_case(id=case_id), attempts=tried)


RECORDS = [
    record("resnet50-b64", {"build": 1.0, "measure": 3.0}),
    record("vgg16-b64", {"build": 0.5, "measure": 2.5, "numerics": 3.0}),
]


def test_phases_add_up_and_the_longest_comes_first():
    table = spent.phases(spent.spent(RECORDS))
    assert table.rows == [
        ("measure", 5.5, 10.0),
        ("numerics", 3.0, 10.0),
        ("build", 1.5, 10.0),
        ("all", 10.0, 10.0),
    ]
    assert cells(table)[2] == ("share", ["55.0%", "30.0%", "15.0%", "100.0%"])


def test_a_history_from_before_says_nothing_of_phases():
    assert spent.spent([make_record()]).attempts == 0
