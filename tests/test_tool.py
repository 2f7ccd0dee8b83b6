"""Asking a program that answers on its standard output."""

import signal
import subprocess
from collections.abc import Callable

import pytest

from bench_lib.backends.tool import ToolError, ask, parse

LONG_S = 60.0
Install = Callable[[str], dict[str, str]]


@pytest.fixture
def install(tmp_path):
    def write(lines):
        file = tmp_path / "bin/tool"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\n{lines}\n")
        file.chmod(0o755)
        return {"PATH": str(file.parent)}

    return write


def test_an_answer_is_what_the_tool_prints(install):
    environ = install('echo "[] $1 $#"; echo aside >&2')
    assert ask(["tool", "list -e", "--json"], timeout_s=LONG_S, environ=environ) == "[] list -e 2\n"


def test_a_tool_gets_the_environment_that_is_given_and_no_input(install):
    environ = install('read -r line || echo "$ROCR_VISIBLE_DEVICES"')
    assert (
        ask(["tool"], timeout_s=LONG_S, environ={**environ, "ROCR_VISIBLE_DEVICES": "3"}) == "3\n"
    )


def test_a_tool_that_is_not_there_is_said_to_be_so(tmp_path):
    with pytest.raises(ToolError, match=r"^tool is not installed, or not on PATH$"):
        ask(["tool"], timeout_s=LONG_S, environ={"PATH": str(tmp_path)})


def test_a_tool_that_cannot_be_run_is_said_to_be_so(install, tmp_path):
    environ = install("")
    (tmp_path / "bin/tool").write_bytes(b"\x7fELF\x00")
    with pytest.raises(ToolError, match=r"^tool cannot be run: "):
        ask(["tool"], timeout_s=LONG_S, environ=environ)


def test_a_tool_that_cannot_be_ended_is_not_waited_for(install, monkeypatch):
    spared = []

    def spare(process):
        spared.append(process)

    monkeypatch.setattr(subprocess.Popen, "kill", spare)
    with pytest.raises(ToolError, match=r"^tool did not answer in 0\.1 s$"):
        ask(["tool"], timeout_s=0.1, environ=install("exec /bin/sleep 10"))
    (stuck,) = spared
    assert stuck.poll() is None
    stuck.terminate()
    stuck.wait()


def test_an_interrupt_ends_the_tool_that_is_asked(install, monkeypatch):
    asked = []

    def interrupted(process, **_):
        asked.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask(["tool"], timeout_s=LONG_S, environ=install("exec /bin/sleep 10"))
    assert [process.wait() for process in asked] == [-signal.SIGKILL]


def test_a_refusal_is_told_by_its_last_line(install):
    environ = install("echo Traceback >&2; echo 'no permission' >&2; exit 3")
    with pytest.raises(ToolError, match=r"^tool list ended with status 3: no permission$"):
        ask(["tool", "list"], timeout_s=LONG_S, environ=environ)


def test_a_refusal_may_be_printed_like_an_answer(install):
    with pytest.raises(ToolError, match=r"status 1: no driver$"):
        ask(["tool"], timeout_s=LONG_S, environ=install("echo no driver; exit 1"))


def test_a_refusal_without_a_word_is_one(install):
    with pytest.raises(ToolError, match=r"ended with status -9: nothing$"):
        ask(["tool"], timeout_s=LONG_S, environ=install("kill -9 $$"))


def test_a_tool_that_hangs_is_ended(install):
    with pytest.raises(ToolError, match=r"^the driver did not answer in 0\.2 s$"):
        ask(["tool"], timeout_s=0.2, environ=install("exec /bin/sleep 60"), what="the driver")


def test_bytes_that_are_no_text_do_not_matter(install):
    assert ask(["tool"], timeout_s=LONG_S, environ=install(r"printf 'R\377'")) == "R\ufffd"


def test_an_answer_is_the_last_line():
    assert parse('{"a": 1}\na banner\n{"gpu": [0]}\n', "the tool") == {"gpu": [0]}


@pytest.mark.parametrize("text", ["", "no JSON", '{"gpu": [', "[" * 100_000])
def test_an_answer_that_is_torn_or_none_is_an_error(text):
    with pytest.raises(ToolError, match=r"^the tool did not print JSON \(.*\): '"):
        parse(text, "the tool")
