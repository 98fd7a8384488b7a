# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server of known pacing for tests and benches: answers like SGLang's /generate, each chunk at an absolute deadline.

Runs as a process of its own (`with serve(gap_ms=5) as url:`), so that its work is not done by the interpreter under test. It keeps what
it really did (GET /truth), so that a client's error can be told from the server's.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

OPTIONS: dict[str, Any] = {
    "ttft_ms": 20.0,
    "gap_ms": 5.0,  # between chunks
    "tokens_per_chunk": 1,
    "line_end": "\n",
    "split_bytes": 0,  # send pieces of so many bytes
    "noise": False,  # comments and blank keep-alives between events
    "cumulative": True,  # text and output_ids grow, as SGLang's do
    "line_bytes": 0,  # pad the text so that a line has at least so many bytes
    "text": " word",  # of a token
    "final_usage": True,
    "cached_tokens": 0,
    "slow_first_s": 0.0,  # how much later a first token is when so many streams never ran together before
    "flush_busy": 0,  # how often /flush_cache says 400
    "die_after": 0,  # close the connection after so many chunks
    "mute": False,  # accept and never answer
    "status": 200,
    "chunked": True,  # else the end of the connection ends the body
    "lacks_tokens": 0,  # end so many tokens early
    "spec_accept_length": 0.0,
    "openai": True,  # has /v1/completions
}


def events(options: dict[str, Any], tokens: int, prompt_tokens: int) -> list[bytes]:
    """The server-sent events of one stream, one entry a chunk; the last entry includes [DONE]."""
    opts = {**OPTIONS, **options}
    end = opts["line_end"].encode()
    noise = b": ping" + end + end + end if opts["noise"] else b""
    tokens -= opts["lacks_tokens"]
    chunks, sent = [], 0
    while sent < tokens:
        new = min(opts["tokens_per_chunk"], tokens - sent)
        sent += new
        shown = sent if opts["cumulative"] else new
        last = sent == tokens
        meta = {"id": "x", "finish_reason": {"type": "length", "length": tokens} if last else None, "prompt_tokens": prompt_tokens}
        meta.update(completion_tokens=sent, cached_tokens=opts["cached_tokens"])
        if opts["spec_accept_length"] and last:
            meta["spec_accept_length"] = opts["spec_accept_length"]
        if last and not opts["final_usage"]:
            break
        text = (opts["text"] * shown).ljust(opts["line_bytes"], "x")
        event = {"text": text, "output_ids": list(range(200, 200 + shown)), "meta_info": meta}
        chunks.append(noise + b"data: " + json.dumps(event, separators=(",", ":")).encode() + end + end)
    chunks.append(chunks.pop() + b"data: [DONE]" + end + end)
    return chunks


class Server:
    def __init__(self, options: dict[str, Any]) -> None:
        unknown = set(options) - set(OPTIONS)
        if unknown:
            raise SystemExit(f"unknown options {unknown}")
        self.opts = {**OPTIONS, **options}
        self.flush_busy = self.opts["flush_busy"]
        self.selector = selectors.SelectSelector()  # its timeout is exact to microseconds, epoll's to milliseconds
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.selector.register(self.listener, selectors.EVENT_READ, None)
        self.due: list[tuple[float, int, Any]] = []
        self.running = 0
        self.seen: set[int] = set()
        self.prompts: list[str] = []
        self.truth: list[dict[str, Any]] = []
        self.events = functools.lru_cache(functools.partial(events, self.opts))  # made once, so that a wave of requests starts on time

    def run(self) -> None:
        print(self.listener.getsockname()[1], flush=True)
        while True:
            left_s = max(self.due[0][0] - time.monotonic(), 0) if self.due else None
            for key, _ in self.selector.select(left_s):
                if key.data is None:
                    conn, _ = self.listener.accept()
                    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.selector.register(conn, selectors.EVENT_READ, bytearray())
                else:
                    self.read(key.fileobj, key.data)
            while self.due and self.due[0][0] <= time.monotonic():
                _, _, step = heapq.heappop(self.due)
                at_s = next(step, None)
                if at_s is not None:
                    heapq.heappush(self.due, (at_s, id(step), step))

    def read(self, conn: socket.socket, held: bytearray) -> None:
        data = conn.recv(1 << 18)
        now_s = time.monotonic()
        held += data
        head, mark, body = bytes(held).partition(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
        if data and (not mark or len(body) < length):
            return
        self.selector.unregister(conn)
        if not data:
            conn.close()
            return
        path = head.split(b" ")[1].decode()
        self.answer(conn, path, json.loads(body) if body else {}, now_s)

    def answer(self, conn: socket.socket, path: str, body: dict[str, Any], now_s: float) -> None:
        opts = self.opts
        usage = {"prompt_tokens": 4, "completion_tokens": 8}
        if opts["mute"]:
            self.held = [*getattr(self, "held", []), conn]
        elif path == "/flush_cache":
            self.flush_busy -= 1
            busy = self.flush_busy >= 0 or self.running > 0
            self.reply(conn, 400 if busy else 200, "busy" if busy else "flushed")
        elif path == "/truth":
            self.reply(conn, 200, {"streams": self.truth, "prompts": self.prompts})
        elif path == "/v1/completions" and opts["openai"]:
            answer = {"choices": [{"text": " jumps"}]}
            self.reply(conn, opts["status"], {**answer, "usage": usage} if opts["final_usage"] else answer)
        elif path == "/generate" and not body.get("stream"):
            self.reply(conn, opts["status"], {"text": " jumps", "meta_info": usage})
        elif path == "/generate" and opts["status"] == 200:
            step = self.stream(conn, body, now_s)
            heapq.heappush(self.due, (next(step), id(step), step))
        elif path == "/generate":
            self.reply(conn, opts["status"], "no")
        elif path == "/moved":
            conn.sendall(b"HTTP/1.1 302 Found\r\nLocation: /truth\r\nContent-Length: 0\r\n\r\n")
            conn.close()
        else:
            self.reply(conn, 404, "unknown")

    def reply(self, conn: socket.socket, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        conn.sendall(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        conn.close()

    def stream(self, conn: socket.socket, body: dict[str, Any], received_s: float) -> Iterator[float]:
        """Yields when it wants to run next."""
        opts = self.opts
        self.running += 1
        self.prompts.append(",".join(map(str, body["input_ids"])))
        first_s = received_s + opts["ttft_ms"] / 1e3
        if opts["slow_first_s"] and self.running not in self.seen:
            first_s += opts["slow_first_s"]
        self.seen.add(self.running)
        chunks = self.events(body["sampling_params"]["max_new_tokens"], len(body["input_ids"]))
        encoding = "Transfer-Encoding: chunked\r\n" if opts["chunked"] else ""
        sent_s = []
        try:
            conn.sendall(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{encoding}\r\n".encode())
            for number, chunk in enumerate(chunks):
                yield first_s + number * opts["gap_ms"] / 1e3
                if opts["die_after"] and number == opts["die_after"]:
                    return
                wire = b"%x\r\n%s\r\n" % (len(chunk), chunk) if opts["chunked"] else chunk
                size = opts["split_bytes"] or len(wire)
                for at in range(0, len(wire), size):
                    conn.sendall(wire[at : at + size])
                sent_s.append(time.monotonic())
            if opts["chunked"]:
                conn.sendall(b"0\r\n\r\n")
        except OSError:
            pass  # the client left
        finally:
            conn.close()
            self.running -= 1
            if sent_s:
                self.truth.append({"received_s": received_s, "first_s": sent_s[0], "last_s": sent_s[-1], "chunks": len(sent_s)})


@contextlib.contextmanager
def serve(**options: Any) -> Iterator[str]:
    """Runs a server with these options as a child process; gives its base URL."""
    process = subprocess.Popen([sys.executable, __file__, json.dumps(options)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()


if __name__ == "__main__":
    Server(json.loads(sys.argv[1])).run()
