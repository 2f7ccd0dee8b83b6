"""Servers that answer while a test asks them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from socketserver import BaseServer


@contextlib.contextmanager
def answering(server: BaseServer) -> Iterator[None]:
    """Have a server answer, in a thread of its own."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
