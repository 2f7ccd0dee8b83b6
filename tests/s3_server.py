"""A stand-in for an object store: as much of S3 as reading, listing and uploading takes.

Only on loopback.  It takes one key id, and knows one bucket.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from serving import answering

KEY_ID = "AKIDEXAMPLE"
BUCKET = "perf"


class Store(ThreadingHTTPServer):
    """The objects of one bucket, and what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        """Listen on a free port."""
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.refuse_from: int | None = None
        """How many objects it holds when it takes no more."""
        self.broken: set[str] = set()
        """Keys of objects that it cannot send."""

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Store
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """List, or send an object or a part of it."""
        self._answer()

    def do_HEAD(self) -> None:
        """Tell of an object."""
        self._answer()

    def do_PUT(self) -> None:
        """Take an object."""
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._refused():
            return
        _, key = self._names()
        self.server.asked.append(f"PUT {key}")
        most = self.server.refuse_from
        if most is not None and len(self.server.objects) + 1 >= most:
            self._fail(403, "QuotaExceeded", "The disk is full")
            return
        self.server.objects[key] = data
        self._send(200, b"", ETag=f'"{md5(data).hexdigest()}"')

    def _names(self) -> tuple[str, str]:
        bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        return bucket, key

    def _refused(self) -> bool:
        bucket, _ = self._names()
        if f"Credential={KEY_ID}/" not in self.headers.get("Authorization", ""):
            self._fail(403, "AccessDenied", "Access Denied")
        elif bucket != BUCKET:
            self._fail(404, "NoSuchBucket", "The specified bucket does not exist")
        else:
            return False
        return True

    def _answer(self) -> None:
        if self._refused():
            return
        _, key = self._names()
        self.server.asked.append(f"{self.command} {key}")
        asked = parse_qs(urlsplit(self.path).query)
        if not key:
            self._send(200, self._listing(asked.get("prefix", [""])[0]))
            return
        data = self.server.objects.get(key)
        if data is None or (key in self.server.broken and self.command == "GET"):
            self._fail(404, "NoSuchKey", "The specified key does not exist.")
            return
        headers = {
            "ETag": f'"{md5(data).hexdigest()}"',
            "Last-Modified": formatdate(0, usegmt=True),
        }
        if (span := self.headers.get("Range")) is not None:
            first, _, last = span.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last or len(data)), len(data) - 1)
            headers["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
            self._send(206, data[begin : end + 1], **headers)
            return
        self._send(200, data, **headers)

    def _listing(self, prefix: str) -> bytes:
        found = [
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z"
            f'</LastModified><ETag>"0"</ETag><Size>{len(data)}</Size>'
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for key, data in sorted(self.server.objects.items())
            if key.startswith(prefix) and "/" not in key[len(prefix) :]
        ]
        return (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(found)}</KeyCount>"
            f"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{''.join(found)}"
            "</ListBucketResult>"
        ).encode()

    def _fail(self, status: int, code: str, words: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>{words}</Message></Error>"
        self._send(status, body.encode())

    def _send(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@contextlib.contextmanager
def running() -> Iterator[Store]:
    """Yield a store that answers."""
    with Store() as store, answering(store):
        yield store
