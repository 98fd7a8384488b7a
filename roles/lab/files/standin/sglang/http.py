# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Just enough HTTP/1.1 on asyncio: keep-alive, JSON bodies, server-sent events as chunks."""

from __future__ import annotations

import asyncio
import json

from .procs import log

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Answer:
    """`body`: bytes or an object for JSON; or `events`, an async iterator of bytes, sent as text/event-stream."""

    def __init__(self, status: int = 200, body=b"", kind: str = "application/json", events=None) -> None:
        self.status, self.kind, self.events = status, kind, events
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()


async def read_message(reader: asyncio.StreamReader) -> tuple:
    """(first line, {header in lower case: value}, body bytes) of a request or an answer with a length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {}
    for line in head[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return head[0], headers, await reader.readexactly(int(headers.get("content-length", 0)))


async def handle(api, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers the requests of one connection. `api.answer(method, target, headers, body)` gives an Answer."""
    host, port = writer.get_extra_info("peername")[:2]
    try:
        while True:
            first, headers, body = await read_message(reader)
            method, target, _unused = first.split(" ")
            answer = await api.answer(method, target, headers, body)
            status = f"{answer.status} {REASONS[answer.status]}"
            log(f'INFO:     {host}:{port} - "{method} {target} HTTP/1.1" {status}')
            close = headers.get("connection", "").lower() == "close"
            head = f"HTTP/1.1 {status}\r\nserver: uvicorn\r\nconnection: {'close' if close else 'keep-alive'}\r\n"
            if answer.events is None:
                writer.write(f"{head}content-type: {answer.kind}\r\ncontent-length: {len(answer.body)}\r\n\r\n".encode() + answer.body)
            else:
                writer.write(f"{head}content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n".encode())
                await send_events(answer.events, reader, writer)
            await writer.drain()
            if close:
                break
    except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        pass  # the client is gone or speaks no HTTP
    finally:
        writer.close()


async def send_events(events, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All events, then the last chunk; ConnectionError (and the iterator closed) when the client leaves early."""
    try:
        async for event in events:
            if writer.is_closing() or reader.at_eof():
                raise ConnectionResetError
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
    finally:
        await events.aclose()


async def request_json(host: str, port: int, method: str, path: str, body, headers: dict) -> int:
    """Status of one request on a connection of its own; OSError, ValueError or IncompleteReadError when there is no answer."""
    reader, writer = await asyncio.open_connection(host, port)
    data = json.dumps(body).encode() if body is not None else b""
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}:{port}", f"content-length: {len(data)}", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()] + ["connection: close"]
    try:
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        first, _unused, _unused = await read_message(reader)
        return int(first.split(" ")[1])
    finally:
        writer.close()
