"""The worlds that the verdict's error rates are played in, on a few nights."""

import json

import numpy as np
import pytest
from scripts import script

error_rates = script("benchmarks/error_rates.py")
worlds = error_rates.worlds


def world(name):
    return next(each for each in worlds.WORLDS if each.name == name)


def test_the_same_entropy_plays_the_same_nights():
    played = [worlds.play(world("case 0.5%"), 1, entropy) for entropy in ([1], [1])]
    assert played[0] == played[1]


def test_runs_resemble_each_other_as_their_world_says():
    pool = worlds.Pool(world("nights alike: case 0.5%, 0.8"), np.random.default_rng(1))
    effects = np.array([pool.run(f"night-{n}", n).effect for n in range(60)])
    assert effects.std() == pytest.approx(0.005, rel=0.1)
    assert (effects[1:] * effects[:-1]).mean() == pytest.approx(0.8 * effects.var(), rel=0.05)


def test_a_night_of_its_own_makes_no_false_alarm_and_two_percent_is_found_without_one():
    apart = worlds.figures(world("case 0.5%"), worlds.play(world("case 0.5%"), 3, [3]))
    assert apart["false_per_night"] == 0
    plain = worlds.figures(worlds.NOTHING, worlds.play(worlds.NOTHING, 1, [3]))
    assert plain["found"]["first"][0.02] == 1.0
    assert plain["processes_per_case"] < 1.05


def test_a_broken_promise_is_named():
    row = {"world": "case 0.5%", "false_per_night": 0.03, "found": {"first": {0.02: 0.0}}}
    clean = {"world": worlds.NOTHING.name, "false_per_night": 0.0, "found": {"first": {0.02: 0.8}}}
    assert worlds.missed([row, clean]) == [
        "case 0.5%: 0.030 false alarms a night",
        "process noise only: 80% of 2% found at first",
    ]
    assert not worlds.missed([{**row, "world": "drift of 0.02% a night"}])


def test_the_command_plays_worlds_by_name(capsys):
    assert error_rates.main(["--worlds", "process", "--nights", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["world"] for row in document["worlds"]] == ["process noise only"]
    with pytest.raises(SystemExit):
        error_rates.main(["--worlds", "nowhere"])
    assert (
        "no world begins with 'nowhere'; there are process noise only, " in capsys.readouterr().err
    )


def test_a_night_is_played_beside_a_reference_and_without_one(capsys):
    for name in ("no baseline, 3 wild", "without a reference: process"):
        assert error_rates.main(["--interleaved", name, "--nights", "1"]) == 0
        assert f"| {name}" in capsys.readouterr().out
