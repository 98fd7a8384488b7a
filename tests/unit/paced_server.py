# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server of known pacing for tests and benches: answers like SGLang's /generate and the OpenAI endpoints, each chunk at an absolute
deadline.

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
import struct
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
    "prompt_tokens": 0,  # says so many, whatever was sent
    "error_after": 0,  # an error event instead of the chunk after so many
    "reset_after": 0,  # reset the connection after so many chunks
    "fail_from": 0,  # HTTP 500 from this request on, the first one being 1
    "done": True,  # end with [DONE]
    "keep_open": False,  # leave the connection open after the end of the answer
    "trailers": False,
    "gzip": False,  # claim it, without having been asked
    "api_key": "",  # 401 without it
}
APIS = {"/generate": "generate", "/v1/completions": "completions", "/v1/chat/completions": "chat"}


def events(options: dict[str, Any], tokens: int, prompt_tokens: int, api: str = "generate", usage: str = "final") -> list[bytes]:
    """The server-sent events of one stream, one entry a chunk; the last entry includes [DONE].

    api: generate, completions or chat; usage of the latter two: none, final (an event of its own), continuous (in every event too)."""
    opts = {**OPTIONS, **options}
    end = opts["line_end"].encode()
    noise = b": ping" + end + end + end if opts["noise"] else b""
    tokens, asked = tokens - opts["lacks_tokens"], tokens
    chunks, sent = [], 0

    def event(content: dict[str, Any]) -> bytes:
        return noise + b"data: " + json.dumps(content, separators=(",", ":")).encode() + end + end

    while sent < tokens:
        new = min(opts["tokens_per_chunk"], tokens - sent)
        sent += new
        last = sent == tokens
        counts = {"prompt_tokens": opts["prompt_tokens"] or prompt_tokens, "completion_tokens": sent}
        if last and not opts["final_usage"] and api == "generate":
            break
        if api == "generate":
            shown = sent if opts["cumulative"] else new
            meta = {"id": "x", "finish_reason": {"type": "length", "length": asked} if last else None, **counts}
            meta["cached_tokens"] = opts["cached_tokens"]
            if opts["spec_accept_length"] and last:
                meta["spec_accept_length"] = opts["spec_accept_length"]
            text = (opts["text"] * shown).ljust(opts["line_bytes"], "x")
            chunks.append(event({"text": text, "output_ids": list(range(200, 200 + shown)), "meta_info": meta}))
            continue
        text = opts["text"] * new
        choice = {"index": 0, "finish_reason": "length" if last else None}
        choice.update({"text": text} if api == "completions" else {"delta": {"role": "assistant", "content": text}})
        plain = {"id": "x", "object": "chat.completion.chunk" if api == "chat" else "text_completion", "created": 1, "model": "paced"}
        usages = {**counts, "total_tokens": sum(counts.values()), "prompt_tokens_details": {"cached_tokens": opts["cached_tokens"]}}
        chunks.append(event({**plain, "choices": [choice], "usage": usages if usage == "continuous" else None}))
        if last and usage != "none" and opts["final_usage"]:
            chunks.append(chunks.pop() + event({**plain, "choices": [], "usage": usages}))
    if opts["error_after"]:
        chunks[opts["error_after"] :] = [event({"error": {"message": "the scheduler is gone", "code": 500}})]
    if opts["done"]:
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
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ, None)
        self.due: list[tuple[float, int, Any]] = []
        self.running = 0
        self.seen: set[int] = set()
        self.prompts: list[list[Any]] = []
        self.truth: list[dict[str, Any]] = []
        self.made = functools.lru_cache(self.wires)  # made once, so that a wave of requests starts on time
        self.asked = 0
        self.kept: list[socket.socket] = []

    def run(self) -> None:
        """All that came is received, and the clock read, before any of it is answered: a wave of requests starts on time."""
        print(self.listener.getsockname()[1], flush=True)
        while True:
            left_s = max(self.due[0][0] - time.monotonic(), 0) if self.due else None
            arrived = []
            ready = self.selector.select(left_s)
            while ready:
                for key, _ in ready:
                    if key.data is None:
                        self.accept()
                    else:
                        arrived.append((key.fileobj, key.data, key.fileobj.recv(1 << 16), time.monotonic()))
                        if not arrived[-1][2]:
                            self.selector.unregister(key.fileobj)
                ready = self.selector.select(0)
            for piece in arrived:
                self.read(*piece)
            while self.due and self.due[0][0] <= time.monotonic():
                _, _, step = heapq.heappop(self.due)
                at_s = next(step, None)
                if at_s is not None:
                    heapq.heappush(self.due, (at_s, id(step), step))

    def accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                conn, _ = self.listener.accept()
                conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.selector.register(conn, selectors.EVENT_READ, bytearray())

    def read(self, conn: socket.socket, held: bytearray, data: bytes, now_s: float) -> None:
        held += data
        if not data:
            conn.close()
            return
        head, mark, body = bytes(held).partition(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
        if mark and len(body) >= length:
            self.selector.unregister(conn)
            self.answer(conn, head, body, now_s)

    def answer(self, conn: socket.socket, head: bytes, raw: bytes, now_s: float) -> None:
        opts = self.opts
        path = head.split(b" ")[1].decode()
        body = json.loads(raw) if raw else {}
        usage = {"prompt_tokens": 4, "completion_tokens": 8}
        models = {"object": "list", "data": [{"id": "paced", "object": "model"}]}
        info = {"model_path": "paced", "version": "paced", "internal_states": [{}]}
        plain = {"/v1/models": models, "/model_info": info, "/get_model_info": info, "/server_info": info, "/get_server_info": info}
        api = APIS.get(path) if opts["openai"] or path == "/generate" else None
        if opts["mute"]:
            self.held = [*getattr(self, "held", []), conn]
        elif opts["api_key"] and f"Bearer {opts['api_key']}".encode() not in head:
            self.reply(conn, 401, "no key")
        elif path == "/flush_cache":
            self.flush_busy -= 1
            busy = self.flush_busy >= 0 or self.running > 0
            self.reply(conn, 400 if busy else 200, "busy" if busy else "flushed")
        elif path == "/truth":
            self.reply(conn, 200, {"streams": self.truth, "prompts": self.prompts})
        elif path in plain:
            self.reply(conn, 200, plain[path])
        elif api and body.get("stream"):
            self.asked += 1
            if opts["status"] != 200 or 0 < opts["fail_from"] <= self.asked:
                self.reply(conn, opts["status"] if opts["status"] != 200 else 500, "no")
                return
            step = self.stream(conn, api, body, now_s)
            heapq.heappush(self.due, (next(step), id(step), step))
        elif api == "generate":
            self.reply(conn, opts["status"], {"text": " jumps", "meta_info": usage})
        elif api:
            answer = {"choices": [{"text": " jumps", "message": {"content": " jumps"}}]}
            self.reply(conn, opts["status"], {**answer, "usage": usage} if opts["final_usage"] else answer)
        elif path == "/moved":
            conn.sendall(b"HTTP/1.1 302 Found\r\nLocation: /truth\r\nContent-Length: 0\r\n\r\n")
            conn.close()
        else:
            self.reply(conn, 404, "unknown")

    def reply(self, conn: socket.socket, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        conn.sendall(
            f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
            + data
        )
        conn.close()

    def wires(self, *kind: Any) -> list[bytes]:
        """The chunks as they go over the line."""
        chunks = events(self.opts, *kind)
        return [b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks] if self.opts["chunked"] else chunks

    def stream(self, conn: socket.socket, api: str, body: dict[str, Any], received_s: float) -> Iterator[float]:
        """Yields when it wants to run next."""
        opts = self.opts
        self.running += 1
        prompt, tokens, usage = asked_for(body)
        self.prompts.append(prompt)
        first_s = received_s + opts["ttft_ms"] / 1e3
        if opts["slow_first_s"] and self.running not in self.seen:
            first_s += opts["slow_first_s"]
        self.seen.add(self.running)
        chunks = self.made(tokens, len(prompt), api, usage)
        fields = "Transfer-Encoding: chunked\r\n" if opts["chunked"] else ""
        fields += "Content-Encoding: gzip\r\n" if opts["gzip"] else ""
        trailers = b"X-Sum: 1\r\nY: 2\r\n" if opts["trailers"] else b""
        sent_s = []
        try:
            conn.sendall(f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n{fields}\r\n".encode())
            for number, wire in enumerate(chunks):
                yield first_s + number * opts["gap_ms"] / 1e3
                if opts["die_after"] and number == opts["die_after"]:
                    return
                if opts["reset_after"] and number == opts["reset_after"]:
                    conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return
                size = opts["split_bytes"] or len(wire)
                for at in range(0, len(wire), size):
                    conn.sendall(wire[at : at + size])
                sent_s.append(time.monotonic())
            if opts["chunked"]:
                conn.sendall(b"0\r\n" + trailers + b"\r\n")
        except OSError:
            pass  # the client left
        finally:
            if opts["keep_open"]:
                self.kept.append(conn)
            else:
                conn.close()
            self.running -= 1
            if sent_s:
                self.truth.append({"received_s": received_s, "first_s": sent_s[0], "last_s": sent_s[-1], "chunks": len(sent_s)})


def asked_for(body: dict[str, Any]) -> tuple[list[Any], int, str]:
    """(prompt as token ids or words, tokens, kind of usage) of a request to any of the endpoints."""
    prompt = body.get("input_ids") or body.get("text") or body.get("prompt") or body.get("messages")
    if prompt and isinstance(prompt, list) and isinstance(prompt[0], dict):
        prompt = str(prompt[0]["content"])
    words = prompt.split() if isinstance(prompt, str) else prompt
    options = body.get("stream_options") or {}
    usage = "continuous" if options.get("continuous_usage_stats") else "final" if options.get("include_usage") else "none"
    tokens = (body.get("sampling_params") or {}).get("max_new_tokens") or body.get("max_tokens") or body.get("max_completion_tokens")
    return words, tokens, usage


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
