# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures how fast a running SGLang decodes: a closed loop of streams, in one thread, with nothing but the standard library.

One selectors loop over plain sockets, because one thread a stream costs three times the CPU, and a load generator that is short of CPU
measures itself. Clock readings are taken right after each recv, before anything is parsed.
"""

from __future__ import annotations

import json
import os
import selectors
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple

from .errors import RingmasterError
from .http_client import STOP_CHECK_S, Address, Exchange, HttpError, Stopped, build_request, request, resolve
from .streams import Figures, Stream, StreamError, percentiles, server_figures

__all__ = ["Stopped", "complete", "flush_cache", "measure"]

FLUSH_WAIT_S = 10.0
FLUSH_RETRY_S = 0.1
ERROR_CHARS = 300
BUSY_SHARE = 0.8  # of one core: above it our own queueing shows in the figures
CACHED_SHARE = 0.02
TOKEN_IDS = [b"%d" % (200 + byte) for byte in range(256)]  # in any vocabulary of 512 or more, clear of the special ids at its start


class Workload(NamedTuple):
    """requests: measured ones, at least `concurrency`; warmup_requests come before and are not in any figure; timeout_s: a request."""

    name: str
    concurrency: int
    input_len: int
    output_len: int
    requests: int
    warmup_requests: int
    timeout_s: float


class Outcome(NamedTuple):
    """One request: figures and no error, or an error."""

    slot: int
    started_s: float
    figures: Figures | None
    error: str | None


def measure(
    base_url: str,
    workload: dict[str, Any],
    *,
    api_key: str | None = None,
    log_tail: Callable[[], str] | None = None,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Runs one workload against base_url and returns its row (a workload row of the trial result).

    workload: {name, concurrency, input_len, output_len, requests, warmup_requests (default: concurrency), timeout_s (a request,
    default 600)}. log_tail() gives the end of the server's log; stop() is asked at least every 0.2 s; progress(done, total) counts
    requests, warm-up included; all three run in the measuring thread and must be quick.

    Order: flush the cache, warm up at the same concurrency, flush again, measure. Prompts are fresh random token ids of exactly
    input_len; every request asks for exactly output_len tokens.

    The row:
    samples        tokens/s of each good request: tokens after its first chunk over the time from its first to its last chunk
    decode_tok_s   concurrency 1: the median of samples. More: the sum over the concurrent streams of each stream's median sample:
                   a request's own prefill is not in it, what others' prefills cost it is. None when no request was good
    output_tok_s   all tokens of good requests over the time from the first request to the last token; prefill is in it
    ttft_ms        {mean, p50, p90, p99} from sending a request (connected) to its first token
    itl_ms         the same of the inter-token latency, one value a token: a chunk's gap spread over the chunk's tokens
    server_tok_s, graph_replayed   from the server's log during the measured part, see server_figures()
    accept_length  mean tokens a verify pass (speculative decoding), or None
    contaminated   number of good requests with more than max(1, 2 % of the prompt) tokens from the cache
    errors         one string for each failed request (also: ended early, fewer tokens than asked, a prompt of another length), and
                   for each thing that makes the row doubtful: cache not flushed, warm-up failed, load generator short of CPU

    Raises Stopped, RingmasterError for an impossible workload, OSError for a base_url that is none."""
    work = _checked(workload)
    base_url = base_url.rstrip("/")
    address = resolve(base_url + "/generate")
    headers = _headers(api_key)
    total, done = work.warmup_requests + work.requests, 0

    def finished() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    problems = [flush_cache(base_url, headers=headers, stop=stop)]
    warm = run_streams(address, request_bytes(address, work, headers, work.warmup_requests, stop), work, stop=stop, finished=finished)
    problems += [f"warm-up: {outcome.error}" for outcome in warm if outcome.error]
    if warm and not any(outcome.figures for outcome in warm):
        return _row(work, [], problems, "")
    problems.append(flush_cache(base_url, headers=headers, stop=stop))
    measured = request_bytes(address, work, headers, work.requests, stop)
    log_before = log_tail() if log_tail else ""
    wall_s, cpu_s = time.monotonic(), time.thread_time()
    outcomes = run_streams(address, measured, work, stop=stop, finished=finished)
    if len(outcomes) < work.requests:
        problems.append(f"gave up with {work.requests - len(outcomes)} requests not sent, after {len(outcomes)} that all failed")
    share = (time.thread_time() - cpu_s) / max(time.monotonic() - wall_s, 1e-9)
    if share > BUSY_SHARE:
        problems.append(f"the load generator used {share:.0%} of a core: these figures may be its own limit, not the server's")
    log = _new_text(log_before, log_tail()) if log_tail else ""
    return _row(work, outcomes, problems, log)


def flush_cache(base_url: str, *, headers: dict[str, str] | None = None, stop: Callable[[], bool] | None = None) -> str | None:
    """Empties the server's prefix cache; None, or why it could not. SGLang answers 400 while a request is still in its queues, also a
    moment after the last answer: tried again for FLUSH_WAIT_S."""
    deadline_s = time.monotonic() + FLUSH_WAIT_S
    while True:
        try:
            status, body = request("POST", base_url + "/flush_cache", headers=headers, timeout_s=FLUSH_WAIT_S, stop=stop)
        except OSError as error:
            return f"flush_cache: {error}"
        if status == 200:
            return None
        if status != 400 or time.monotonic() > deadline_s:
            return f"flush_cache: HTTP {status}: {_short(body)}"
        time.sleep(FLUSH_RETRY_S)


def complete(
    base_url: str, *, api_key: str | None = None, timeout_s: float, max_tokens: int = 8, stop: Callable[[], bool] | None = None
) -> dict[str, Any]:
    """One real completion, not streamed: {prompt_tokens, completion_tokens, seconds, text}. /v1/completions, or /generate where a server
    has no such endpoint (404).

    Raises HttpError for a status other than 200, an answer without usage or with zero tokens; OSErrors and Stopped as request()."""
    prompt, base_url = "The quick brown fox", base_url.rstrip("/")
    tries = (
        ("/v1/completions", {"model": "default", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}),
        ("/generate", {"text": prompt, "sampling_params": {"max_new_tokens": max_tokens, "temperature": 0}}),
    )
    started_s = time.monotonic()
    for path, body in tries:
        left_s = max(started_s + timeout_s - time.monotonic(), 0.001)
        status, answer = request("POST", base_url + path, body=body, headers=_headers(api_key), timeout_s=left_s, stop=stop)
        if status != 404:
            break
    seconds = time.monotonic() - started_s
    if status != 200:
        raise HttpError(f"{path}: HTTP {status}: {_short(answer)}")
    try:
        event = json.loads(answer)
        usage = event.get("usage") or event.get("meta_info") or {}
        text = event["choices"][0]["text"] if event.get("choices") else event.get("text", "")
        tokens = int(usage.get("completion_tokens") or 0)
    except (ValueError, TypeError, AttributeError, LookupError):
        raise HttpError(f"{path}: not a completion: {_short(answer)}") from None
    if tokens <= 0:
        raise HttpError(f"{path}: an answer without tokens or without usage: {_short(answer)}")
    return {"prompt_tokens": usage.get("prompt_tokens"), "completion_tokens": tokens, "seconds": seconds, "text": text}


class _Request:
    """One stream under way in a slot."""

    def __init__(self, address: Address, wire: bytes, slot: int, work: Workload) -> None:
        self.slot = slot
        self.work = work
        self.deadline_s = time.monotonic() + work.timeout_s
        self.stream = Stream()
        self.exchange = Exchange(address, wire)
        self._refusal = b""

    def take(self, data: bytes, now_s: float) -> bool:
        """Digests what arrived at now_s (b"": the connection was closed); True at the end of the answer."""
        response = self.exchange.response
        if not data:
            response.end()
            return True
        body = response.feed(data)
        if response.status == 200:
            self.stream.feed(body, now_s)
        else:
            self._refusal = (self._refusal + body)[:ERROR_CHARS]
        return response.done or self.stream.done

    def outcome(self, error: str | None) -> Outcome:
        """How it went; error: what cut it short."""
        status, started_s = self.exchange.response.status, self.exchange.started_s or 0.0
        if error is None and status != 200:
            error = f"HTTP {status}: {_short(self._refusal)}"
        if error is None:
            try:
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
    outcomes: list[Outcome] = []
    waiting = iter(requests)
    free = list(range(work.concurrency - 1, -1, -1))
    active: set[_Request] = set()
    check_s = 0.0
    with selectors.DefaultSelector() as selector:

        def end(one: _Request, error: str | None = None) -> None:
            selector.unregister(one.exchange.sock)
            one.exchange.close()
            active.remove(one)
            settle(one.outcome(error))

        def settle(outcome: Outcome) -> None:
            free.append(outcome.slot)
            outcomes.append(outcome)
            if finished is not None:
                finished()

        def hopeless() -> bool:
            return len(outcomes) >= work.concurrency and all(outcome.error for outcome in outcomes)

        try:
            while True:
                while free and not hopeless():
                    wire = next(waiting, None)
                    if wire is None:
                        break
                    slot = free.pop()
                    try:
                        one = _Request(address, wire, slot, work)
                    except OSError as error:
                        settle(Outcome(slot, 0.0, None, str(error)))
                        continue
                    active.add(one)
                    selector.register(one.exchange.sock, selectors.EVENT_WRITE, one)
                if not active:
                    return outcomes
                ready = selector.select(STOP_CHECK_S)
                arrived: list[tuple[_Request, bytes, float]] = []
                for key, events in ready:
                    try:
                        if events & selectors.EVENT_WRITE:
                            if key.data.exchange.on_writable():
                                selector.modify(key.fileobj, selectors.EVENT_READ, key.data)
                            continue
                        data = key.data.exchange.receive()
                        if data is not None:
                            arrived.append((key.data, data, time.monotonic()))
                    except OSError as error:
                        end(key.data, str(error))
                for one, data, now_s in arrived:
                    try:
                        if one.take(data, now_s):
                            end(one)
                    except (OSError, StreamError) as error:
                        end(one, str(error))
                if time.monotonic() >= check_s:
                    if stop is not None and stop():
                        raise Stopped(work.name)
                    check_s = time.monotonic() + STOP_CHECK_S
                    for one in [one for one in active if one.deadline_s < check_s - STOP_CHECK_S]:
                        end(one, f"no whole answer in {work.timeout_s:g} s")
        finally:
            for one in active:
                one.exchange.close()


def _row(work: Workload, outcomes: Sequence[Outcome], problems: Sequence[str | None], log: str) -> dict[str, Any]:
    good = [(outcome, outcome.figures) for outcome in outcomes if outcome.figures is not None]
    samples = [figures.decode_tok_s for _unused, figures in good if figures.decode_tok_s]
    by_slot: dict[int, list[float]] = {}
    for outcome, figures in good:
        if figures.decode_tok_s:
            by_slot.setdefault(outcome.slot, []).append(figures.decode_tok_s)
    decode_tok_s = sum(statistics.median(rates) for rates in by_slot.values())
    accepts = [figures.accept_length for _unused, figures in good if figures.accept_length]
    server_tok_s, graph_replayed = server_figures(log, work.concurrency)
    wall_s = max(figures.times_s[-1] for _unused, figures in good) - min(outcome.started_s for outcome, _unused in good) if good else 0.0
    cached_limit = max(1.0, CACHED_SHARE * work.input_len)
    return {
        "name": work.name,
        "concurrency": work.concurrency,
        "input_len": work.input_len,
        "output_len": work.output_len,
        "samples": [round(sample, 4) for sample in samples],
        "decode_tok_s": round(decode_tok_s, 4) if by_slot else None,
        "output_tok_s": round(sum(figures.tokens for _unused, figures in good) / wall_s, 4) if good else None,
        "ttft_ms": percentiles([figures.ttft_s for _unused, figures in good], 1e3),
        "itl_ms": percentiles([gap for _unused, figures in good for gap in figures.token_gaps_s()], 1e3),
        "server_tok_s": server_tok_s,
        "accept_length": round(statistics.fmean(accepts), 4) if accepts else None,
        "graph_replayed": graph_replayed,
        "contaminated": sum(figures.cached_tokens > cached_limit for _unused, figures in good),
        "errors": list(dict.fromkeys(filter(None, problems))) + [outcome.error for outcome in outcomes if outcome.error],
    }


def _checked(workload: dict[str, Any]) -> Workload:
    name = str(workload.get("name", ""))
    counts = {key: workload.get(key) for key in ("concurrency", "input_len", "output_len", "requests")}
    counts["warmup_requests"] = workload.get("warmup_requests", counts["concurrency"])
    for key, value in counts.items():
        least = 0 if key == "warmup_requests" else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise RingmasterError(f"workload {name!r}: {key} is {value!r}.", f"Give a whole number of at least {least}.")
    if counts["requests"] < counts["concurrency"]:
        what = f"workload {name!r}: {counts['requests']} requests cannot keep {counts['concurrency']} streams running."
        raise RingmasterError(what, "Give at least as many requests as concurrency.")
    timeout_s = workload.get("timeout_s", 600)
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
        raise RingmasterError(f"workload {name!r}: timeout_s is {timeout_s!r}.", "Give seconds, more than 0.")
    return Workload(name, timeout_s=float(timeout_s), **counts)


def request_bytes(
    address: Address, work: Workload, headers: dict[str, str], number: int, stop: Callable[[], bool] | None = None
) -> list[bytes]:
    """All requests, made before the clock runs; Stopped when stop() says so. os.urandom: no two runs and no two streams share a prompt."""
    params = json.dumps({"max_new_tokens": work.output_len, "ignore_eos": True, "temperature": 0}).encode()
    fields = {"Content-Type": "application/json", **headers}

    def one() -> bytes:
        if stop is not None and stop():
            raise Stopped(work.name)
        ids = b",".join([TOKEN_IDS[byte] for byte in os.urandom(work.input_len)])
        body = b'{"input_ids":[' + ids + b'],"sampling_params":' + params + b',"stream":true}'
        return build_request("POST", address, body=body, headers=fields)

    return [one() for _unused in range(number)]


def _headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def _new_text(before: str, after: str) -> str:
    """What was appended to a log whose tail was `before`. When that is out of sight, all of it is new."""
    mark = before[-1024:]
    at = after.rfind(mark) if mark else -1
    return after if at < 0 else after[at + len(mark) :]


def _short(body: bytes) -> str:
    return body[:ERROR_CHARS].decode("utf-8", "replace").strip()
