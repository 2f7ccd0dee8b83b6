"""Sensors that lie are set aside by name; those that do not still spoil measurements."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import make_case, make_telemetry
from scripted import Contexts, Watch, gpus, held

from bench_lib.engine import device as device_module
from bench_lib.engine.telemetry import TelemetrySample
from bench_lib.engine.telemetry.trust import sort_out, without
from bench_lib.storage import devices

DEVICE = gpus(1)[0]
LOOKS = 20
AT_REST = "it says 100% of the time at rest, at 45 °C"
TICKS = 50


def looks(begin: int, *, busy: float = 0.0, heat_c: float = 40.0, **changes: Any) -> list[Any]:
    """Look so often; counters of (start, growth) by reason, and flags."""
    counters = changes.pop("counters", {"thermal": (0, 0.0)})
    found = []
    for n in range(begin, begin + LOOKS):
        ticks = n * TICKS
        counts = {reason: start + growth * ticks for reason, (start, growth) in counters.items()}
        sample = TelemetrySample(
            t=n / 20, utilization=busy, temperature_c=heat_c, counters=counts, ticks=ticks
        )
        found.append(replace(sample, **changes))
    return found


def contact(**changes: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Look at rest, at work, and at rest."""
    return (
        looks(0, **changes),
        looks(LOOKS, busy=0.99, heat_c=70.0, **changes),
        looks(2 * LOOKS, heat_c=45.0, **changes),
    )


def test_healthy_sensors_are_all_believed() -> None:
    before, work, after = contact()
    capped = [
        replace(s, counters={**s.counters, "power cap": s.ticks - LOOKS * TICKS}) for s in work
    ]
    rested = [replace(s, counters={**s.counters, "power cap": LOOKS * TICKS}) for s in after]
    first = [replace(s, counters={**s.counters, "power cap": 0}) for s in before]
    assert sort_out(first, capped, rested) == {}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (
            {"counters": {"thermal": (7, 1.0)}},
            {"thermal": AT_REST},
        ),
        ({"counters": {"thermal": (9000, -0.1)}}, {"thermal": "its counter runs backwards"}),
        (
            {"throttle": ("thermal, memory",)},
            {"thermal, memory": AT_REST},
        ),
        ({"ticks": 7000.0}, {"thermal": "the clock of the counters stands"}),
        ({"throttle": ("hardware slowdown",)}, {}),
    ],
    ids=["grows at rest", "backwards", "flag at rest", "clock stands", "true at rest too"],
)
def test_what_lies_is_named_with_a_sentence(changes: dict[str, Any], found: dict[str, str]) -> None:
    assert sort_out(*contact(**changes)) == found


@pytest.mark.parametrize(
    "spoilt",
    [{"utilization": 0.4}, {"temperature_c": 80.0}],
    ids=["somebody works", "hot"],
)
def test_a_device_that_does_not_rest_is_no_witness(spoilt: dict[str, Any]) -> None:
    before, work, after = contact(counters={"thermal": (7, 1.0)})
    assert sort_out([replace(s, **spoilt) for s in before], work, after) is None
    assert sort_out(before[:3], work, after) is None


def test_what_was_true_in_one_rest_alone_is_believed() -> None:
    before, work, after = contact()
    hot = looks(2 * LOOKS, counters={"thermal": (-2 * LOOKS * TICKS, 1.0)})
    assert sort_out(before, work, hot) == {}
    assert len(after) == LOOKS


def test_a_reason_that_is_left_out_is_left_out_of_all_fields() -> None:
    seen = make_telemetry(
        throttle=["thermal", "power cap"],
        throttled={"thermal": 1.0, "power cap": 0.2},
        counters={"thermal": 5.0, "power cap": 1.0},
    )
    left = without(seen, {"thermal": "lies"})
    assert (left.throttle, left.throttled, left.counters) == (
        ["power cap"],
        {"power cap": 0.2},
        {"power cap": 1.0},
    )


# --- in a run ----------------------------------------------------------------------------

HOT = {"throttle": ["thermal"], "throttled": {"thermal": 1.0}}


class Looked(Watch):
    """Telemetry whose single looks follow a script, too."""

    def __init__(self, script: tuple[list[Any], ...]) -> None:
        """See ``thermal`` in every window."""
        super().__init__(make_telemetry(**HOT))
        self.looks = [[script[0][0]], *script]

    def samples(self, begin_s: float, end_s: float) -> list[Any]:
        """Give the next stretch of looks."""
        return self.looks.pop(0)


@pytest.fixture
def measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Any, list[str]]]:
    """Measure one case on a device with such looks; return its last attempt and what was said."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(device_module.HeldDevice, "_calibrated", lambda _self: None)

    def measure(*script: list[Any]) -> tuple[Any, list[str]]:
        said: list[str] = []
        workers = Contexts({"a": [[0.01] * 20]}, DEVICE)
        one = held(
            DEVICE,
            workers,
            tmp_path,
            watch=lambda _: Looked(script) if script else Watch(make_telemetry(**HOT)),
            sleep=lambda _s: None,
            say=said.append,
            cool_s=0,
        )
        with contextlib.closing(one):
            return one.measure(make_case(id="a")).attempts[-1], said

    return measure


def test_a_lying_sensor_spoils_nothing_and_is_remembered(measured: Any) -> None:
    attempt, said = measured(*contact(counters={"thermal": (7, 1.0)}))
    assert attempt.accepted
    assert said == [
        f"{DEVICE.key}: thermal is set aside: it says 100% of the time at rest, at 45 °C"
    ]
    again, said = measured()
    assert (again.accepted, again.telemetry.throttle, said) == (True, [], [])


def test_a_sensor_that_tells_the_truth_still_spoils(measured: Any) -> None:
    attempt, said = measured(*contact())
    assert attempt.discarded.startswith("throttled: thermal for 100% of the time")
    assert said == []
    assert devices.set_aside_of(DEVICE, None, attempt.telemetry.source) == {}


def test_what_is_known_of_a_device_is_kept_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    devices.keep_set_aside(DEVICE, "6.10", "gpu_metrics", {"thermal": "lies"})
    with pytest.raises(KeyError):
        devices.bursts_of(DEVICE, "6.10")
    devices.keep_bursts(DEVICE, "6.10", None)
    devices.keep_set_aside(DEVICE, "6.10", "amd-smi", {})
    assert devices.bursts_of(DEVICE, "6.10") is None
    assert devices.set_aside_of(DEVICE, "6.10", "gpu_metrics") == {"thermal": "lies"}
    assert devices.set_aside_of(DEVICE, "6.10", "amd-smi") == {}
    with pytest.raises(KeyError):
        devices.set_aside_of(DEVICE, "6.12", "amd-smi")
