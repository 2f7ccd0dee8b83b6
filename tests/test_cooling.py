"""How long a device is waited for: on a clock that a script moves."""

from __future__ import annotations

import pytest
from builders import make_hardware, make_telemetry

from bench_lib.engine.telemetry import MOST_FUTILE, WAITS, Cooling

HOT = make_telemetry(throttle=["thermal"], temperature_c=95.0)
SHARED = make_telemetry(foreign_processes=[7], temperature_c=40.0)
CALM = make_telemetry(temperature_c=40.0)


class Room:
    def __init__(self, *script) -> None:
        self.script = list(script)
        self.now = 1000.0
        self.windows: list[tuple[float, float]] = []
        self.said: list[str] = []

    def look(self, begin, end):
        self.windows.append((begin, end))
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]

    def sleep(self, seconds) -> None:
        self.now += seconds

    def cooling(self, cool_s=30.0):
        return Cooling(
            make_hardware(),
            self.look,
            cool_s=cool_s,
            say=self.said.append,
            now=lambda: self.now,
            sleep=self.sleep,
        )


def test_a_wait_ends_when_nothing_is_seen_any_more():
    room = Room(SHARED, SHARED, SHARED, SHARED, SHARED, CALM)
    assert room.cooling().wait("x: shared with process 7")
    assert room.now == 1006.0
    assert room.said == [
        "x: shared with process 7; waiting up to 30 s, then measuring again",
    ]


def test_a_cpu_is_waited_for_while_other_programs_keep_it_busy():
    busy, idle = (make_telemetry(utilization=share, temperature_c=None) for share in (0.5, 0.02))
    room = Room(*[busy] * 7, idle)
    cooling = room.cooling()
    cooling.device = make_hardware(vendor="cpu", key="cpu-x")
    assert cooling.wait("x: waited for a CPU 35% of the time: something else runs here")
    assert room.now == 1008.0


def test_a_wait_lasts_while_the_device_still_cools():
    falling = [make_telemetry(temperature_c=90.0 - 4 * n) for n in range(10)]
    room = Room(HOT, *falling, CALM, CALM)
    room.cooling().wait("hot")
    assert room.now == 1013.0


def test_a_wait_ends_at_its_time_whatever_is_seen():
    room = Room(SHARED)
    assert room.cooling().wait("shared")
    assert room.now == 1030.0


@pytest.mark.parametrize(
    ("seen", "seconds"), [(None, 30.0), (make_telemetry(temperature_c=None), 10.0)]
)
def test_what_cannot_be_seen_gets_more_time(seen, seconds):
    room = Room(seen)
    room.cooling().wait("hot")
    assert room.now == 1000.0 + seconds


def test_a_source_that_looks_seldom_is_looked_at_further_back():
    room = Room(*[None, CALM] * 4)
    room.cooling().wait("slow clock")
    assert room.windows[:4] == [
        (1000.0, 1001.0),
        (1000.0, 1001.0),
        (1001.0, 1002.0),
        (1000.0, 1002.0),
    ]
    assert room.now == 1006.0  # two looks with a temperature, and not one seen twice


def test_a_look_in_which_nothing_is_known_is_no_calm():
    room = Room(make_telemetry(clock_mhz=None, power_w=None, temperature_c=None, utilization=None))
    room.cooling().wait("hot")
    assert room.now == 1030.0


def test_waits_that_do_not_help_are_given_up_until_one_does():
    room = Room(CALM)
    cooling = room.cooling()
    for _ in range(MOST_FUTILE):
        assert cooling.wait("slow clock")
        cooling.note(helped=False)
    assert not cooling.wait("slow clock")
    cooling.note(helped=True)
    assert cooling.wait("slow clock")


def test_even_a_calm_device_gets_some_seconds():
    room = Room(CALM)
    room.cooling().wait("slow clock")
    assert room.now == 1003.0


def test_each_look_is_at_the_last_second():
    room = Room(CALM)
    room.cooling().wait("slow clock")
    assert room.windows == [(1000.0, 1001.0), (1001.0, 1002.0), (1002.0, 1003.0)]


def test_a_run_does_not_wait_for_ever():
    room = Room(SHARED)
    cooling = room.cooling(cool_s=5.0)
    waits = [cooling.wait("shared") for _ in range(WAITS + 2)]
    assert waits == [True] * WAITS + [False] * 2
    assert room.now == 1000.0 + 5.0 * WAITS
    assert len(room.said) == WAITS


def test_with_no_time_to_wait_nothing_is_said_or_waited_for():
    room = Room(SHARED)
    assert not room.cooling(cool_s=0.0).wait("shared")
    assert (room.now, room.said) == (1000.0, [])
