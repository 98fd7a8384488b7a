# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A closed loop of token streams in one thread, with nothing but the standard library.

One selectors loop over plain sockets, because one thread a stream costs three times the CPU, and a load generator that is short of CPU
measures itself. Clock readings are taken right after each recv. Parsing waits until nothing is left to receive, and for several chunks
of a stream: code that runs once in 5 ms finds the CPU's caches cold and takes three times as long.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Iterable
from typing import Any, Callable, NamedTuple

from .http_client import STOP_CHECK_S, Address, Exchange, Stopped
from .streams import Figures, Stream, StreamError
from .workload_row import Workload

ERROR_CHARS = 300
HELD_CHUNKS = 64  # of all streams together
LEAST_HELD = 4
LAST_CHUNK = b"0\r\n\r\n"


@contextlib.contextmanager
def sensible():
    """Turns what an event of another shape does to its reader into a StreamError."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise StreamError(f"an event that makes no sense ({type(error).__name__}: {error})") from error


class Outcome(NamedTuple):
    """One request: figures and no error, or an error."""

    slot: int
    started_s: float
    figures: Figures | None
    error: str | None


class _Request:
    """One stream under way in a slot."""

    def __init__(self, address: Address, wire: bytes, slot: int, work: Workload) -> None:
        self.slot = slot
        self.work = work
        self.deadline_s = time.monotonic() + work.timeout_s
        self.stream = Stream()
        self.exchange = Exchange(address, wire)
        self._refusal = b""
        self.held: list[tuple[bytes, float]] = []  # what arrived and when, not yet parsed
        self._most_held = max(LEAST_HELD, HELD_CHUNKS // work.concurrency)

    def hold(self, data: bytes, now_s: float) -> bool:
        """Keeps what arrived at now_s (b"": the connection was closed); True when it is time to parse."""
        self.held.append((data, now_s))
        return not data or len(self.held) >= self._most_held or data.endswith(LAST_CHUNK)

    def silent_since(self, moment_s: float) -> bool:
        """Whether something is held and nothing came after that moment."""
        return bool(self.held) and self.held[-1][1] <= moment_s

    def digest(self) -> bool:
        """Parses what is held; True at the end of the answer. Raises StreamError, HttpError."""
        held, self.held = self.held, []
        response, stream = self.exchange.response, self.stream
        for data, now_s in held:
            if not data:
                response.end()
                return True
            body = response.feed(data)
            if response.status == 200:
                with sensible():
                    stream.feed(body, now_s)
            else:
                self._refusal = (self._refusal + body)[:ERROR_CHARS]
        return response.done or stream.done

    def outcome(self, error: str | None) -> Outcome:
        """How it went; error: what cut it short."""
        try:
            self.digest()  # what came before it was cut short
        except (OSError, StreamError) as reason:
            error = str(reason)
        status, started_s = self.exchange.response.status, self.exchange.started_s or 0.0
        if error is None and status != 200:
            error = f"HTTP {status}: {short(self._refusal)}"
        if error is None:
            try:
                with sensible():
                    return self._judged(self.stream.figures(started_s), started_s)
            except StreamError as reason:
                error = str(reason)
        elif self.stream.tokens:
            error += f" (after {self.stream.tokens} of {self.work.output_len} tokens)"
        return Outcome(self.slot, started_s, None, error)

    def _judged(self, figures: Figures, started_s: float) -> Outcome:
        error = None
        if figures.tokens < self.work.output_len:
            error = f"ended after {figures.tokens} of {self.work.output_len} tokens (finish reason {figures.finish_reason})"
        elif figures.itl_s is None and self.work.output_len > 1:
            error = f"all {figures.tokens} tokens came at once: no decode rate"
        elif figures.prompt_tokens not in (None, self.work.input_len):
            error = f"the server counts {figures.prompt_tokens} prompt tokens instead of {self.work.input_len}"
        return Outcome(self.slot, started_s, None if error else figures, error)


class _Loop:
    def __init__(self, address: Address, work: Workload, finished: Callable[[], None] | None) -> None:
        self.address, self.work, self.finished = address, work, finished
        self.outcomes: list[Outcome] = []
        self.free = list(range(work.concurrency - 1, -1, -1))
        self.active: set[_Request] = set()
        self.due: dict[_Request, None] = {}  # to be parsed, in this order
        self.selector = selectors.DefaultSelector()

    def run(self, waiting: Iterable[bytes], stop: Callable[[], bool] | None) -> list[Outcome]:
        waiting, check_s = iter(waiting), 0.0
        while True:
            self._fill(waiting)
            if not self.active:
                return self.outcomes
            if self.work.concurrency == 1 and not self.selector.get_map():  # the only stream, and its request is sent
                (one,) = self.active
                self._advance(one, self._follow, one)
            else:
                self._receive_all()
                if self.due:  # one at a time: then what has arrived meanwhile
                    one = next(iter(self.due))
                    del self.due[one]
                    self._advance(one, one.digest)
            if time.monotonic() >= check_s:
                if stop is not None and stop():
                    raise Stopped(self.work.name)
                self._look_after_all()
                check_s = time.monotonic() + STOP_CHECK_S

    def close(self) -> None:
        for one in self.active:
            one.exchange.close()
        self.selector.close()

    def _fill(self, waiting: Iterable[bytes]) -> None:
        while self.free and not self._hopeless():
            wire = next(waiting, None)
            if wire is None:
                return
            slot = self.free.pop()
            try:
                one = _Request(self.address, wire, slot, self.work)
            except OSError as error:
                self._settle(Outcome(slot, 0.0, None, str(error)))
                continue
            self.active.add(one)
            self.selector.register(one.exchange.sock, selectors.EVENT_WRITE, one)

    def _receive_all(self) -> None:
        for key, events in self.selector.select(0 if self.due else STOP_CHECK_S):
            self._advance(key.data, self._sent if events & selectors.EVENT_WRITE else self._received, key.data)

    def _sent(self, one: _Request) -> bool:
        if one.exchange.on_writable():
            if self.work.concurrency == 1:
                self.selector.unregister(one.exchange.sock)
                one.exchange.wait_in_receive(STOP_CHECK_S)
            else:
                self.selector.modify(one.exchange.sock, selectors.EVENT_READ, one)
        return False

    def _received(self, one: _Request) -> bool:
        data = one.exchange.receive()
        if data is not None and one.hold(data, time.monotonic()):
            self.due[one] = None
        if data == b"":
            self.selector.unregister(one.exchange.sock)  # it would be ready for ever
        return False

    def _follow(self, one: _Request) -> bool:
        """For STOP_CHECK_S, or until something is to be parsed, nothing but receiving: so little code stays in the caches."""
        receive, hold, clock = one.exchange.receive, one.held.append, time.monotonic
        until_s = clock() + STOP_CHECK_S
        while len(one.held) < HELD_CHUNKS:
            data = receive()
            if data is None:
                return False
            now_s = clock()
            hold((data, now_s))
            if not data or data.endswith(LAST_CHUNK):
                break
            if now_s > until_s:
                return False
        return one.digest()

    def _advance(self, one: _Request, step: Callable[..., bool], *arguments: Any) -> None:
        try:
            if step(*arguments):
                self._end(one)
        except (OSError, StreamError) as error:
            self._end(one, str(error))

    def _look_after_all(self) -> None:
        """Ends what is late, and parses what is held of a stream that has gone silent: perhaps the server has said all and keeps the
        connection open."""
        now_s = time.monotonic()
        for one in list(self.active):
            if one.silent_since(now_s - STOP_CHECK_S):
                self._advance(one, one.digest)
            if one in self.active and one.deadline_s < now_s:
                self._end(one, f"no whole answer in {self.work.timeout_s:g} s")

    def _end(self, one: _Request, error: str | None = None) -> None:
        if one.exchange.sock in self.selector.get_map():
            self.selector.unregister(one.exchange.sock)
        one.exchange.close()
        self.active.remove(one)
        self.due.pop(one, None)
        self._settle(one.outcome(error))

    def _settle(self, outcome: Outcome) -> None:
        self.free.append(outcome.slot)
        self.outcomes.append(outcome)
        if self.finished is not None:
            self.finished()

    def _hopeless(self) -> bool:
        return len(self.outcomes) >= self.work.concurrency and all(outcome.error for outcome in self.outcomes)


def run_streams(
    address: Address,
    requests: Iterable[bytes],
    work: Workload,
    *,
    stop: Callable[[], bool] | None = None,
    finished: Callable[[], None] | None = None,
) -> list[Outcome]:
    """Sends the requests, always work.concurrency at a time, and returns their outcomes in the order in which they ended.

    Gives up when the first `concurrency` all failed: the rest would do no better. Raises Stopped."""
    loop = _Loop(address, work, finished)
    try:
        return loop.run(requests, stop)
    finally:
        loop.close()


def short(body: bytes) -> str:
    """The beginning of an answer, for a message."""
    return body[:ERROR_CHARS].decode("utf-8", "replace").strip()
