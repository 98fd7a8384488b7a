# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP/1.1 towards a server on this machine: an incremental response parser, one exchange without blocking, one request.

http.client is not used because it blocks (a stop could not be heard) and costs 60 to 90 us a streamed chunk. No proxy, no redirect,
no TLS, one connection a request: the server is on the loopback interface.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import struct
import time
from typing import Any, Callable, NamedTuple
from urllib.parse import urlsplit

STOP_CHECK_S = 0.1
RECV_BYTES = 1 << 16  # larger ones are mapped and unmapped by malloc each time
HEAD_BYTES = 1 << 16
BODY_BYTES = 64 << 20  # of request(); a stream's is not kept
LINE_BYTES = 1 << 12


class HttpError(OSError):
    """The peer does not speak HTTP as it should, or ended in the middle of an answer."""


class Stopped(Exception):
    """The caller's stop() said so: nothing was finished."""


class Address(NamedTuple):
    """Where a base URL points to: what socket.socket() and connect() want, and what the request line and Host header want."""

    family: int
    sockaddr: tuple
    host: str
    path: str


def resolve(url: str) -> Address:
    """The address of an http:// URL. A name with both kinds of address gives IPv4 ("localhost": servers bind 127.0.0.1).

    Raises HttpError for another scheme or a URL without host, OSError for a name that is not known."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise HttpError(f"{url}: not an http:// address")
    found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    family, _unused, _unused, _unused, sockaddr = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Address(family, sockaddr, parts.netloc.rpartition("@")[2], path)


def build_request(method: str, address: Address, *, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
    """The bytes of one request; the server is asked to close the connection after its answer."""
    fields = {"Host": address.host, "Connection": "close", "Accept": "*/*", "Accept-Encoding": "identity", **(headers or {})}
    fields["Content-Length"] = str(len(body))
    lines = [f"{method} {address.path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise HttpError("line break in a request header")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class Response:
    """Parses one response from pieces split at any byte. Work is linear in what arrives.

    status (None until the head is there), headers (names in lower case), done."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.done = False
        self._left: int | None = None  # bytes still to come of the body or of the current chunk; None: until the end
        self._held = b""  # an unfinished line
        self._decode = self._head
        self._last_chunk = False

    def feed(self, data: bytes) -> bytes:
        """The body bytes in data (b"" while there are none). Raises HttpError."""
        return self._decode(data)

    def end(self) -> None:
        """The peer closed the connection. Raises HttpError when that was too early."""
        if self.done:
            return
        if self.status is None or self._left is not None:
            raise HttpError("connection closed before the end of the answer")
        self.done = True

    def _head(self, data: bytes) -> bytes:
        head, mark, rest = (self._held + data).partition(b"\r\n\r\n")
        while mark and head.startswith(b"HTTP/1.") and head[8:10] == b" 1":  # an interim answer, the real one follows
            head, mark, rest = rest.partition(b"\r\n\r\n")
        held = head
        if not mark:
            if len(held) > HEAD_BYTES:
                raise HttpError("no HTTP head in the answer")
            self._held = held
            return b""
        lines = head.decode("latin-1").split("\r\n")
        version, _unused, status = lines[0].partition(" ")
        if not version.startswith("HTTP/1.") or not status[:3].isdecimal():
            raise HttpError(f"not an HTTP answer: {lines[0][:80]!r}")
        self._held = b""
        self.status = int(status[:3])
        self.headers = {name.strip().lower(): value.strip() for name, _unused, value in (line.partition(":") for line in lines[1:])}
        encoding = self.headers.get("content-encoding", "identity")
        if encoding.lower() not in ("", "identity"):
            raise HttpError(f"HTTP {self.status} with Content-Encoding {encoding[:40]}, which was not asked for")
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._left, self._decode = 0, self._chunks
        else:
            length = "0" if self.status in (204, 304) else self.headers.get("content-length")
            if length is not None and not (length.isdecimal() and len(length) < 16):
                raise HttpError(f"Content-Length {length[:40]!r}")
            self._left, self._decode = None if length is None else int(length), self._plain
            self.done = self._left == 0
        return self._decode(rest) if rest else b""

    def _plain(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        data = data[: self._left]
        self._left -= len(data)
        self.done = self._left == 0
        return data

    def _chunks(self, data: bytes) -> bytes:
        if self._held:
            data, self._held = self._held + data, b""
        body, at, size = [], 0, len(data)
        while at < size and not self.done:
            if self._left:
                part = data[at : at + self._left]
                body.append(part)
                at += len(part)
                self._left -= len(part)
                continue
            end = data.find(b"\n", at)
            if end < 0:
                if size - at > LINE_BYTES:
                    raise HttpError("no chunk size in the answer")
                self._held = data[at:]
                break
            line, at = data[at:end].strip(), end + 1
            if self._last_chunk:
                self.done = not line  # trailers end with an empty line
            elif line:  # empty: the line end after a chunk
                self._left = _chunk_size(line)
                self._last_chunk = self._left == 0
        return body[0] if len(body) == 1 else b"".join(body)


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits.isalnum() or len(digits) > 15:
        raise HttpError(f"chunk size {line[:40]!r}")
    try:
        return int(digits, 16)
    except ValueError:
        raise HttpError(f"chunk size {line[:40]!r}") from None


class Exchange:
    """One request on a connection of its own, without blocking. The owner's selector says when to call on_writable/on_readable.

    started_s: monotonic clock when the request's first byte was handed to the kernel (after connecting); None before."""

    def __init__(self, address: Address, request: bytes) -> None:
        self.response = Response()
        self.started_s: float | None = None
        self._unsent = memoryview(request)
        self.sock = socket.socket(address.family, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sock.connect(address.sockaddr)
        except BlockingIOError:
            pass  # on_writable sees how it ended
        except BaseException:
            self.sock.close()
            raise

    def on_writable(self) -> bool:
        """Sends what the kernel takes; True when all is sent. Raises OSError (ConnectionRefusedError and others)."""
        error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, f"connect: {os.strerror(error)}")  # OSError picks the subclass by the number
        if self.started_s is None:
            self.started_s = time.monotonic()
        with contextlib.suppress(BlockingIOError):
            self._unsent = self._unsent[self.sock.send(self._unsent) :]
        return not self._unsent

    def receive(self) -> bytes | None:
        """What has arrived, b"" at the end, None when there is nothing yet."""
        try:
            return self.sock.recv(RECV_BYTES)
        except BlockingIOError:
            return None

    def wait_in_receive(self, timeout_s: float) -> None:
        """From now on receive() waits by itself, so long: one system call a chunk instead of two, for who has no other exchange."""
        self.sock.setblocking(True)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, int(timeout_s * 1e6)))

    def close(self) -> None:
        self.sock.close()


def request(
    method: str,
    url: str,
    *,
    body: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
    timeout_s: float,
    stop: Callable[[], bool] | None = None,
) -> tuple[int, bytes]:
    """One request: (status, body bytes). body is sent as JSON.

    Raises TimeoutError when the whole answer is not there after timeout_s, ConnectionRefusedError and other OSErrors of the
    connection, HttpError (an OSError) for an answer that is no HTTP or is cut short, Stopped within 0.2 s of stop() being true."""
    address = resolve(url)
    payload = b"" if body is None else json.dumps(body).encode()
    fields = {**({} if body is None else {"Content-Type": "application/json"}), **(headers or {})}
    deadline_s = time.monotonic() + timeout_s
    exchange = Exchange(address, build_request(method, address, body=payload, headers=fields))
    parts: list[bytes] = []
    size = 0
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(exchange.sock, selectors.EVENT_WRITE)
            while not exchange.response.done:
                if stop is not None and stop():
                    raise Stopped(f"{method} {url}")
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError(f"{method} {url}: no whole answer in {timeout_s:g} s")
                for _unused, events in selector.select(min(STOP_CHECK_S, left_s)):
                    if events & selectors.EVENT_WRITE:
                        if exchange.on_writable():
                            selector.modify(exchange.sock, selectors.EVENT_READ)
                        continue
                    data = exchange.receive()
                    if data:
                        parts.append(exchange.response.feed(data))
                        size += len(parts[-1])
                        if size > BODY_BYTES:
                            raise HttpError(f"an answer of more than {BODY_BYTES >> 20} MiB")
                    elif data is not None:
                        exchange.response.end()
    finally:
        exchange.close()
    if exchange.response.status is None:
        raise HttpError("connection closed before an answer")
    return exchange.response.status, b"".join(parts)
