"""How every command ends: with an exit status, and one line on stderr if something is wrong."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, NoReturn

import typer

DONE, WRONG = 0, 2
"""Done, or the answer is yes; the command line was wrong.  A command itself returns 1 for no."""
INTERRUPTED, READER_GONE = 130, 141
"""By SIGINT, by SIGPIPE (``| head``): 128 and the signal's number, as shells say."""

COMPLETES = "_BENCH_LIB_COMPLETE"
"""Set by a shell that asks for completions."""

_ClickError: Any = typer.BadParameter.__mro__[2]
"""Older typers have click's, newer ones a copy of their own."""


def run(program: Any) -> NoReturn:
    """Run a command line, and leave with its exit status.

    SIGTERM and SIGHUP end it as Ctrl-C does: nothing unfinished stays.
    """
    from bench_lib.cli.output import shown
    from bench_lib.launch.started import ended_by

    with shown(), ended_by(sys.exit):
        status = _flushed(_status(program))
    sys.exit(status)


def complain(message: str) -> None:
    """Report an error, in the shape that every command has."""
    print(f"bench-lib: error: {message}", file=sys.stderr, flush=True)


def _status(program: Any) -> int:
    try:
        if COMPLETES in os.environ:
            program.main(prog_name="bench-lib")  # answers the shell, and leaves
        # Not program.main, which handles errors in its own way.
        with program.make_context("bench-lib", sys.argv[1:]) as context:
            program.invoke(context)
    except typer.Exit as end:
        return int(end.exit_code)
    except _ClickError as error:
        return _misused(error)
    except KeyboardInterrupt as interrupt:
        line = "; ".join(["bench-lib: interrupted", *map(str, interrupt.args)])
        print(line, file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _close_output()
        return READER_GONE
    except (OSError, RuntimeError, ImportError) as error:
        message = in_words(error)
        if message is None:
            raise
        complain(message)
        return WRONG
    except SystemExit as error:
        if isinstance(error.code, str):
            raise
        return int(error.code or DONE)
    return DONE


def _misused(error: Any) -> int:
    """Report what is wrong with the command line, and where to read on."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return WRONG
    option, parameter = getattr(error, "param_hint", None), getattr(error, "param", None)
    if option is None and parameter is not None:
        option = " / ".join(parameter.opts)
    named = option is not None and error.message
    message = f"{option}: {error.message}" if named else error.format_message()
    if parameter is not None and not named:  # it is missing: its help says what it can be
        message = f"{message.removesuffix('.')}: {parameter.help}"
    message = " ".join(message.split()).removesuffix(".")
    if "; " not in message:  # otherwise it names the remedy
        context = getattr(error, "ctx", None)
        message += f"; see {context.command_path if context else 'bench-lib'} --help"
    complain(message)
    return WRONG


def in_words(error: Exception) -> str | None:
    """Return an error in words; None for one that the user cannot fix."""
    from bench_lib.model import UserError

    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        if error.filename is not None:
            return f"{error.filename}: {error.strerror}"
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return f"cannot write: {error.strerror}" if is_full else error.strerror
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("bench_lib"):
        package = (error.name or "").partition(".")[0]
        return f"the package {package} is not installed; pip install {package}"
    return None


def _flushed(status: int) -> int:
    """Flush what was printed; return the status, or that of a failure to write."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader left, which is no error
        _close_output()
    except OSError as error:
        _close_output()
        complain(f"cannot write: {error.strerror}")
        return WRONG
    return status


def _close_output() -> None:
    """Send Python's own last flush to /dev/null: it would complain again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
