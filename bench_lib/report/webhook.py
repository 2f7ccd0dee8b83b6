"""JSON to and from one address, with a secret in it or beside it: tried again, bounded in time."""

from __future__ import annotations

import http.client
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from bench_lib import __version__

BUDGET_S = 60.0
"""In all, waiting included."""
ATTEMPT_S = 10.0
"""For one attempt, however slowly the other end answers."""
PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""Before the second attempt, the third and so on."""
MOST_ANSWER = 1_000
"""Bytes that are read of an answer that refuses."""
LEAST_SECRET = 4
"""Characters from which on a part of an address is one that an answer may not repeat."""
_TOO_MANY = 429
_PLAIN = re.compile(r"[A-Za-z0-9 _.-]{1,60}")
"""The part of an answer that is repeated: a word such as Slack's ``no_service``, and no echo."""


class UndeliverableError(Exception):
    """The document was not taken; says why, without the address."""

    status: int | None = None
    """Status of the answer that refused it; None if there was none."""


class _RetryableError(UndeliverableError):
    """Trying again may help, after so many seconds where the other end said so."""

    def __init__(self, words: str, after_s: float | None = None) -> None:
        super().__init__(words)
        self.after_s = after_s


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, because following one would tell the secret to somebody else."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


@dataclass(frozen=True)
class WaitingClock:
    """The clock for waiting."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


CLOCK = WaitingClock()


def host_of(url: str) -> str:
    """Return the host of an address, in lower case.

    Raises UndeliverableError where it is no address that could be posted to.
    """
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        raise UndeliverableError("the address cannot be read") from None
    if parts.scheme not in ("https", "http"):
        raise UndeliverableError("the address has to begin with https:// or http://")
    if not host or re.search(r"[\x00-\x20\x7f-\U0010ffff]", url):
        raise UndeliverableError("the address has no host, or holds what no address may hold")
    if parts.username is not None or parts.password is not None:
        raise UndeliverableError("the address holds a user's name or password, which is not sent")
    return host


def post(
    url: str, body: bytes, *, attempt_s: float = ATTEMPT_S, clock: WaitingClock = CLOCK
) -> None:
    """Post JSON; return when it was taken.  Raises UndeliverableError, as ``ask`` does."""
    # What a good answer says is not read: it could only make a delivery look like none.
    ask("POST", url, body, attempt_s=attempt_s, clock=clock)


def ask(
    method: str,
    url: str,
    body: bytes | None = None,
    *,
    headers: Mapping[str, str] = MappingProxyType({}),
    most: int = 0,
    attempt_s: float = ATTEMPT_S,
    clock: WaitingClock = CLOCK,
) -> bytes:
    """Send JSON, or nothing; return at most ``most`` bytes of the answer.

    It is tried again after an answer of 500 and above, after 429 (as ``Retry-After`` says), and
    where no connection can be made or held.  A lost answer may so cause a second message.  Raises
    UndeliverableError otherwise, and after BUDGET_S seconds.
    """
    host_of(url)
    deadline = clock.now() + BUDGET_S
    request = _Request(method, url, body, headers, most)
    pauses_s = list(PAUSES_S)
    while True:
        answer = _tried(request, min(attempt_s, max(0.1, deadline - clock.now())))
        if isinstance(answer, bytes):
            return answer
        error = answer
        if not isinstance(error, _RetryableError):
            raise error
        if not pauses_s:
            raise UndeliverableError(f"{error}; tried {len(PAUSES_S) + 1} times")
        pause_s = pauses_s.pop(0)
        wait_s = pause_s if error.after_s is None else error.after_s
        if clock.now() + wait_s >= deadline:
            raise UndeliverableError(f"{error}; no time is left to try again in {wait_s:.0f} s")
        clock.sleep(wait_s)


@dataclass(frozen=True)
class _Request:
    method: str
    url: str
    body: bytes | None
    headers: Mapping[str, str]
    most: int
    """Bytes of the answer that are read."""


def _tried(request: _Request, limit_s: float) -> bytes | UndeliverableError:
    """Ask once; return the answer, or what went wrong.

    It gives up after ``limit_s``, since a server may keep a connection busy byte by byte.
    """
    outcome: list[bytes | UndeliverableError] = []

    def attempt() -> None:
        try:
            answer = _once(request, limit_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is for who waits
            outcome.append(_explained(error, urlsplit(request.url).hostname or ""))
        else:
            outcome.append(answer)

    thread = threading.Thread(target=attempt, name="webhook", daemon=True)
    thread.start()
    thread.join(limit_s)
    return outcome[0] if outcome else _RetryableError(f"no answer within {limit_s:.0f} s")


def _once(asked: _Request, limit_s: float) -> bytes:
    headers = {"User-Agent": f"bench-lib/{__version__}", **asked.headers}
    if asked.body is not None:
        headers["Content-Type"] = "application/json"
    # Its scheme was looked at; a file is nothing to ask.
    request = urllib.request.Request(  # noqa: S310 - see above
        asked.url, asked.body, headers, method=asked.method
    )
    opener = urllib.request.build_opener(_NoRedirect)
    with opener.open(request, timeout=limit_s) as response:
        answer: bytes = response.read(asked.most) if asked.most else b""
        return answer


def _explained(error: Exception, host: str) -> UndeliverableError:
    """Say what went wrong in words of ours: an exception's own may hold the address."""
    if isinstance(error, urllib.error.HTTPError):
        return _refused(error)
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        why = cause.verify_message.replace(host, "the host")
        return UndeliverableError(f"its certificate is not accepted: {why}")
    if isinstance(cause, ssl.SSLError):
        return UndeliverableError(f"no TLS with it: {cause.reason or 'refused'}")
    if isinstance(cause, TimeoutError):
        return _RetryableError("no answer in time")
    if isinstance(cause, OSError):
        return _RetryableError(cause.strerror or type(cause).__name__)
    if isinstance(cause, http.client.HTTPException):
        return _RetryableError(f"its answer is not HTTP ({type(cause).__name__})")
    return UndeliverableError(type(cause).__name__)


def _refused(error: urllib.error.HTTPError) -> UndeliverableError:
    found = _refusal(error)
    found.status = error.code
    return found


def _refusal(error: urllib.error.HTTPError) -> UndeliverableError:
    with error:
        try:
            said = error.read(MOST_ANSWER).decode(errors="replace").strip()
        except (OSError, http.client.HTTPException):
            said = ""
    words = f"it answered {error.code}"
    if 300 <= error.code < 400:
        return UndeliverableError(f"{words}, a redirect, which is not followed with a secret")
    if _PLAIN.fullmatch(said) and not _tells(said, error.url or ""):
        words += f" ({said})"
    if error.code == _TOO_MANY:
        return _RetryableError(words, _seconds(error.headers.get("Retry-After")))
    return _RetryableError(words) if error.code >= 500 else UndeliverableError(words)


def _tells(said: str, url: str) -> bool:
    """Whether words hold a part of an address, or are one."""
    said, url = said.lower(), url.lower()
    parts = re.split(r"[^a-z0-9]+", url)
    return said in url or any(part in said for part in parts if len(part) >= LEAST_SECRET)


def _seconds(text: str | None) -> float | None:
    """Read ``Retry-After`` where it is a number; a date is as good as nothing."""
    return float(text) if text is not None and re.fullmatch(r"\d{1,6}", text.strip()) else None
