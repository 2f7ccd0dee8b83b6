"""Being told to end: SIGTERM from a scheduler, SIGHUP from a terminal that closes."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

TO_END = (signal.SIGTERM, signal.SIGHUP)
BY_SIGNAL = 128
"""A status that a signal caused is this and the signal's number, as shells say."""


@contextlib.contextmanager
def ended_by(leave: Callable[[int], NoReturn]) -> Iterator[None]:
    """Have ``leave`` raise when this process gets a signal to end; it is given the status.

    A signal that is ignored (nohup), or handled already, stays so.
    """

    def told(number: int, _frame: object) -> NoReturn:
        leave(BY_SIGNAL + number)

    ours = []
    if threading.current_thread() is threading.main_thread():
        ours = [one for one in TO_END if signal.getsignal(one) is signal.SIG_DFL]
    for one in ours:
        signal.signal(one, told)
    try:
        yield
    finally:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Have Ctrl-C wait until this is over, as it would leave something half done."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    waiting = []
    signal.signal(signal.SIGINT, lambda *_: waiting.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if waiting:
        raise KeyboardInterrupt
