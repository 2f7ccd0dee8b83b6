"""How every command ends: its exit status, and one line on stderr where something is wrong."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import typer

DONE, WRONG = 0, 2
"""Done, or the answer is yes; the question was wrong.  1 is a command's own: its answer is no."""
INTERRUPTED, READER_GONE = 130, 141
"""By SIGINT, by SIGPIPE (``| head``): 128 and the signal's number, as shells say."""

COMPLETES = "_BENCH_LIB_COMPLETE"
"""Set by a shell that asks for the words that may follow."""

_UsageError: Any = typer.BadParameter.__base__
_ClickError: Any = _UsageError.__base__
"""Older typers have click's, newer ones a copy of their own."""


def run(program: Any) -> NoReturn:
    """Run a command line, and leave with its exit status."""
    from bench_lib import removed
    from bench_lib.cli.output import shown

    for warning in removed.warnings(os.environ):
        print(f"bench-lib: warning: {warning}", file=sys.stderr)
    with shown():
        status = _flushed(_status(program))
    sys.exit(status)


def complain(words: str) -> None:
    """Report an error, in the shape that every command has."""
    print(f"bench-lib: error: {words}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def leaving_when_told() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end what is under way as Ctrl-C does: nothing half-made stays."""
    from bench_lib.launch.signals import ended_by

    def leave(status: int) -> NoReturn:
        raise SystemExit(status)

    with ended_by(leave):
        yield


def _status(program: Any) -> int:
    try:
        if COMPLETES in os.environ:
            from typer.completion import completion_init  # type: ignore[attr-defined]  # no other way

            completion_init()
            program.main(prog_name="bench-lib")  # answers the shell, and leaves
        # Not program.main, which has endings of its own.
        with program.make_context("bench-lib", sys.argv[1:]) as context:
            program.invoke(context)
    except typer.Exit as end:
        return int(end.exit_code)
    except _ClickError as error:
        return _misused(error, program)
    except KeyboardInterrupt as interrupt:
        what = "; ".join(["bench-lib: interrupted", *map(str, interrupt.args)])
        print(what, file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _close_output()
        return READER_GONE
    except (OSError, RuntimeError, ImportError) as error:
        words = in_words(error)
        if words is None:
            raise
        complain(words)
        return WRONG
    except SystemExit as error:
        if isinstance(error.code, str):
            raise
        return int(error.code or DONE)
    return DONE


@contextlib.contextmanager
def answering(status: int) -> Iterator[None]:
    """Print an answer whose exit status is known: it stays so if the reader had enough."""
    try:
        yield
    except BrokenPipeError:
        _close_output()
        raise typer.Exit(status) from None


def in_words(error: Exception) -> str | None:
    """Return the error and the remedy; None for an error that nobody in front of it can mend."""
    from bench_lib.model import UserError

    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = "cannot write: "
        return f"{where}{error.strerror}{_remedy(error)}"
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("bench_lib"):
        package = (error.name or "").partition(".")[0]
        return f"the package {package} is not installed; pip install {package}"
    return None


def _remedy(error: OSError) -> str:
    remedies = {
        errno.ENOSPC: "free some space, or write elsewhere",
        errno.EDQUOT: "free some space, or write elsewhere",
        errno.EACCES: "name another, or see who may read and write it (ls -l)",
        errno.EPERM: "name another, or see who may read and write it (ls -l)",
        errno.EROFS: "name a place that can be written",
        errno.ENOENT: "see that it is there, or name another",
        errno.EISDIR: "name a file",
        errno.ENOTDIR: "name a folder",
    }
    remedy = remedies.get(error.errno or 0)
    return f"; {remedy}" if remedy else ""


def _misused(error: Any, program: Any) -> int:
    """Say what of the command line cannot be understood, and where to look."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return WRONG
    from bench_lib import removed

    if instead := removed.replacement(sys.argv[1:]):
        complain(instead)
        return WRONG
    context = getattr(error, "ctx", None)
    path = _called(program, sys.argv[1:]) if context is None else context.command_path
    complain(usage_in_words(error.format_message(), path, sys.argv[1:]))
    return WRONG


def _called(program: Any, words: Sequence[str]) -> str:
    """Return the command that words call; an option without its value does not tell it."""
    path, group = ["bench-lib"], program
    for word in words:
        group = group.get_command(None, word) if hasattr(group, "get_command") else None
        if group is None:
            break
        path.append(word)
    return " ".join(path)


def usage_in_words(message: str, command: str, words: Sequence[str] = ()) -> str:
    """Return typer's message about a command line in our shape: the fault; the remedy."""
    message = " ".join(message.split()).removesuffix(".")
    if message.startswith("Invalid value for "):
        hint, _, why = message.removeprefix("Invalid value for ").partition(": ")
        hint = hint.replace("'", "")
        message = f"{hint}: {_with_value(why, hint, words)}"
    elif message.startswith("Invalid value: "):
        message = message.removeprefix("Invalid value: ")
    else:
        message = message[:1].lower() + message[1:]
    for mark in (" Did you mean ", " (Possible options: "):
        if mark in message:
            what, _, near = message.partition(mark)
            return f"{what.rstrip('.;')}; did you mean {near.rstrip(')?')}?"
    return message if "; " in message else f"{message}; see {command} --help"


def _with_value(why: str, hint: str, words: Sequence[str]) -> str:
    """Return a reason that names the value; some typers leave it to be guessed."""
    if not why.startswith("Input "):
        return why
    names = hint.split(" / ")
    pairs = [
        word.partition("=")[::2] if "=" in word else (word, following)
        for word, following in zip(words, [*words[1:], ""], strict=True)
    ]
    values = [value for name, value in pairs if name in names]
    rule = why.removeprefix("Input ").partition(", unable")[0]
    return f"{values[-1]!r} {rule}" if values else f"it {rule}"


def _flushed(status: int) -> int:
    """Write the printed text out; if that fails, the status says so."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader had enough, which is nobody's mistake
        _close_output()
    except OSError as error:
        _close_output()
        complain(f"cannot write: {error.strerror}{_remedy(error)}")
        return WRONG
    return status


def _close_output() -> None:
    """Have Python's own last flush go nowhere: it would complain again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
