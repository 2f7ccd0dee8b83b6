"""What earlier versions had: each old name ends with what to use instead."""

from __future__ import annotations

import pytest
from command import ran

from bench_lib import removed


@pytest.mark.parametrize("words", sorted(removed.COMMANDS))
def test_a_command_that_is_gone_names_its_replacement(words, monkeypatch, capsys):
    ended = ran(words.split(), monkeypatch, capsys)
    assert ended.status == 2
    assert ended.err == (
        f"bench-lib: error: bench-lib {words} was removed in 0.3: {removed.COMMANDS[words]}\n"
    )


@pytest.mark.parametrize(("command", "option"), sorted(removed.OPTIONS))
def test_an_option_that_is_gone_names_its_replacement(command, option, monkeypatch, capsys):
    ended = ran([*command.split(), option], monkeypatch, capsys)
    assert ended.status == 2
    assert ended.err == (
        f"bench-lib: error: {option} was removed in 0.3: {removed.OPTIONS[command, option]}\n"
    )
