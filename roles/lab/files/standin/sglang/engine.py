# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The launcher's side of generation: tokens of a prompt, the prefix cache, and the way of each token back to its request."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import zlib

BLOCK = 16  # tokens; the prefix cache knows whole blocks
VOCABULARY = 32000


def encode(text: str) -> list:
    """Token ids of a text: one for about four characters. The same text always gives the same ids."""
    data = text.encode("utf-8", "surrogatepass")
    return [1 + zlib.crc32(data[i:i + 4]) % (VOCABULARY - 1) for i in range(0, len(data), 4)] or [1]


class PrefixCache:
    """Which blocks of tokens have been seen after the same blocks before them."""

    def __init__(self, enabled: bool) -> None:
        self.enabled, self.seen = enabled, set()

    def take(self, ids: list) -> int:
        """Number of leading tokens that are cached (never all of them), and remembers this prompt."""
        if not self.enabled:
            return 0
        cached, key, hit = 0, 0, True
        for start in range(0, len(ids) - BLOCK + 1, BLOCK):
            key = hash((key, *ids[start:start + BLOCK]))
            hit = hit and key in self.seen
            cached += BLOCK if hit else 0
            self.seen.add(key)
        return min(cached, len(ids) - 1)


class Request:
    """One prompt on its way: `get()` gives (token id, word, flag) as they come; flag 1 length, 2 stop."""

    def __init__(self, rid: str, ids: list, cached: int) -> None:
        self.rid, self.ids, self.cached = rid, ids, cached
        self.queue = asyncio.Queue()
        self.get = self.queue.get


class Engine:
    """Sends requests to rank 0 and hands out what the detokenizer sends back."""

    def __init__(self, requests_fd: int, text_fd: int, cache: PrefixCache) -> None:
        self.requests_fd, self.text_fd, self.cache = requests_fd, text_fd, cache
        self.requests, self.count, self.left = {}, 0, b""
        self.throughput, self.last_output_s = 0.0, 0.0
        os.set_blocking(text_fd, False)
        asyncio.get_running_loop().add_reader(text_fd, self._read)

    def submit(self, ids: list, max_new: int, ignore_eos: bool = True, temperature: float = 0.0, kind: str = "r") -> Request:
        """A request for at most `max_new` tokens. `kind`: r (a user's) or h (health, warm-up). The answer depends on the prompt alone
        at temperature 0. Unless `ignore_eos` it may end earlier, after 32 to 511 tokens."""
        self.count += 1
        seed = zlib.crc32(repr(ids).encode()) % 100003
        if temperature > 0:
            seed = int.from_bytes(os.urandom(2), "little")
        request = Request(f"{kind}{self.count}", ids, self.cache.take(ids) if kind == "r" else 0)
        self.requests[request.rid] = request
        stop_at = max_new if ignore_eos else 32 + seed % 480
        self._send(f"{request.rid} {len(ids)} {request.cached} {max(1, max_new)} {seed} {max(1, stop_at)}\n")
        return request

    def drop(self, request: Request) -> None:
        """Forgets a request whose client is gone, or that has ended."""
        if self.requests.pop(request.rid, None):
            self._send(f"-{request.rid}\n")

    def _send(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # rank 0 is gone: the watchdog ends the server, requests get no answer
            os.write(self.requests_fd, line.encode())

    def _read(self) -> None:
        data = os.read(self.text_fd, 1 << 16)
        if not data:
            asyncio.get_running_loop().remove_reader(self.text_fd)
            return
        self.last_output_s = time.monotonic()
        *lines, self.left = (self.left + data).split(b"\n")
        for line in lines:
            if line.startswith(b"="):
                self.throughput = float(line[1:])
                continue
            rid, token, flag, word = line.decode().split(":")
            request = self.requests.get(rid)
            if request:
                request.queue.put_nowait((int(token), word, int(flag)))
                if flag != "0":
                    del self.requests[rid]
