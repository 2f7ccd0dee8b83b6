"""How the runner and its workers speak: one JSON object a line, over a real socket."""

import itertools
import json
import socket
import threading
from dataclasses import asdict, replace

import pytest
from builders import make_case
from hypothesis import given
from hypothesis import strategies as st

from bench_lib.launch import wire
from bench_lib.launch.wire import ClosedError, Connection, decode_case


@pytest.fixture
def pair():
    here, there = socket.socketpair()
    connection = Connection(here)
    yield connection, there
    connection.close()
    there.close()


@given(
    messages=st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=20))),
    cuts=st.lists(st.integers(0, 400)),
)
def test_lines_are_received_whole_however_the_stream_is_cut(messages, cuts):
    data = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    here, there = socket.socketpair()
    connection = Connection(here)
    received = []
    with here, there:
        for begin, end in itertools.pairwise(edges):
            there.sendall(data[begin:end])
            whole = data[:end].count(b"\n") - len(received)
            received.extend(connection.receive() for _ in range(whole))
    assert received == messages


def test_no_whole_line_in_time_is_a_timeout(pair):
    connection, there = pair
    there.sendall(b'{"n":')
    with pytest.raises(TimeoutError):
        connection.receive(timeout_s=0.001)
    there.sendall(b"1}\n")
    assert connection.receive(timeout_s=60) == {"n": 1}


def test_an_object_longer_than_any_buffer_arrives_whole(pair):
    connection, there = pair
    message = {"samples": [0.123456789] * 200_000}
    sender = threading.Thread(target=connection.send, args=(message,))
    sender.start()
    assert Connection(there).receive() == message
    sender.join()


@pytest.mark.parametrize("half", [b"", b'{"n":'])
def test_the_end_of_the_stream_is_said(pair, half):
    connection, there = pair
    there.sendall(half)
    there.close()
    with pytest.raises(ClosedError, match="end of stream"):
        connection.receive()


def test_sending_to_nobody_is_said(pair):
    connection, there = pair
    there.close()
    with pytest.raises(ClosedError, match="Broken pipe"):
        connection.send({"n": 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_no_number_is_not_sent(pair, value):
    connection, there = pair
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        connection.send({"a": 1, "n": value})
    there.setblocking(False)
    with pytest.raises(BlockingIOError):
        there.recv(1)


# ---- greeting ---------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 20])
def test_a_worker_says_who_calls_however_long_the_path_is(tmp_path, monkeypatch, depth):
    folder = tmp_path.joinpath(*["a-folder"] * depth)
    folder.mkdir(parents=True)
    monkeypatch.setenv(wire.LOGS_VARIABLE, str(folder))
    with socket.socket(socket.AF_UNIX) as listener:
        with wire.address(folder, wire.SERVED) as path:
            listener.bind(path)
        listener.listen()
        connection = wire.connect(hello="context-1", pid=1)
        accepted, _ = listener.accept()
    greeting = Connection(accepted)
    assert greeting.receive() == {"hello": "context-1", "pid": 1}
    greeting.close()
    connection.close()


# ---- cases ------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["", "launch", "sampling", "limits"])
def test_a_field_that_is_not_known_is_refused(part):
    fields = asdict(make_case())
    (fields[part] if part else fields)["surprise"] = 1
    with pytest.raises(TypeError, match="surprise"):
        decode_case(fields)


def test_a_part_that_is_missing_is_refused():
    fields = asdict(replace(make_case(), tier="gate"))
    del fields["limits"]
    with pytest.raises(KeyError, match="limits"):
        decode_case(fields)
