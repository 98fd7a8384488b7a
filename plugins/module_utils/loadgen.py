# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures how fast a running SGLang decodes: fresh prompts, an empty cache, a warm-up, then a closed loop of streams (load_loop)."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any, Callable

from . import workload_row
from .http_client import Address, HttpError, Stopped, build_request, request, resolve
from .load_loop import Outcome, run_streams, short
from .workload_row import Measured, Workload

__all__ = ["Outcome", "Stopped", "Workload", "complete", "flush_cache", "measure", "prepare", "request_bytes", "run_streams"]

FLUSH_WAIT_S = 10.0
FLUSH_RETRY_S = 0.1
BUSY_SHARE = 0.8  # of one core: above it our own queueing shows in the figures
TOKEN_IDS = [b"%d" % (200 + byte) for byte in range(256)]  # in any vocabulary of 512 or more, clear of the special ids at its start


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
    server_tok_s, graph_replayed   from the server's log during the measured part, see streams.server_figures()
    server_running, server_queued  the same, see workload_row.batches()
    accept_length  mean tokens a verify pass (speculative decoding), or None
    contaminated   number of good requests with more than max(1, 2 % of the prompt) tokens from the cache
    errors         one string for each failed request (also: ended early, fewer tokens than asked, a prompt of another length), and
                   for each thing that makes the row doubtful: cache not flushed, warm-up failed, load generator short of CPU

    Raises Stopped, RingmasterError for an impossible workload, OSError for a base_url that is none."""
    work = workload_row.checked(workload)
    base_url = base_url.rstrip("/")
    address, headers = resolve(base_url + "/generate"), authorization(api_key)
    total, done = work.warmup_requests + work.requests, 0

    def finished() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    problems, warm = prepare(base_url, work, api_key=api_key, stop=stop, finished=finished)
    if not warm:
        return workload_row.row(work, workload_row.NOTHING, errors=problems)
    measured = request_bytes(address, work, headers, work.requests, stop)
    log_before = log_tail() if log_tail else ""
    wall_s, cpu_s = time.monotonic(), time.thread_time()
    outcomes = run_streams(address, measured, work, stop=stop, finished=finished)
    if len(outcomes) < work.requests:
        problems.append(f"gave up with {work.requests - len(outcomes)} requests not sent, after {len(outcomes)} that all failed")
    share = (time.thread_time() - cpu_s) / max(time.monotonic() - wall_s, 1e-9)
    if share > BUSY_SHARE:
        problems.append(f"the load generator used {share:.0%} of a core: these figures may be its own limit, not the server's")
    log = new_text(log_before, log_tail()) if log_tail else ""
    errors = problems + [outcome.error for outcome in outcomes if outcome.error]
    return workload_row.row(work, _measured(work, outcomes), errors=errors, log=log)


def prepare(
    base_url: str,
    work: Workload,
    *,
    api_key: str | None = None,
    stop: Callable[[], bool] | None = None,
    finished: Callable[[], None] | None = None,
) -> tuple[list[str], bool]:
    """An empty cache and a server that has run this batch size before: flush, warm up at the same concurrency, flush.

    Returns (what went wrong, each once; whether measuring makes sense: not when every warm-up request failed)."""
    address, headers = resolve(base_url + "/generate"), authorization(api_key)
    problems = [flush_cache(base_url, headers=headers, stop=stop)]
    warm = run_streams(address, request_bytes(address, work, headers, work.warmup_requests, stop), work, stop=stop, finished=finished)
    problems += [f"warm-up: {outcome.error}" for outcome in warm if outcome.error]
    sensible = not warm or any(outcome.figures for outcome in warm)
    if sensible:
        problems.append(flush_cache(base_url, headers=headers, stop=stop))
    return list(dict.fromkeys(filter(None, problems))), sensible


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
            return f"flush_cache: HTTP {status}: {short(body)}"
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
        status, answer = request("POST", base_url + path, body=body, headers=authorization(api_key), timeout_s=left_s, stop=stop)
        if status != 404:
            break
    seconds = time.monotonic() - started_s
    if status != 200:
        raise HttpError(f"{path}: HTTP {status}: {short(answer)}")
    try:
        event = json.loads(answer)
        usage = event.get("usage") or event.get("meta_info") or {}
        text = event["choices"][0]["text"] if event.get("choices") else event.get("text", "")
        tokens = int(usage.get("completion_tokens") or 0)
    except (ArithmeticError, ValueError, TypeError, AttributeError, LookupError, RecursionError):
        raise HttpError(f"{path}: not a completion: {short(answer)}") from None
    if tokens <= 0:
        raise HttpError(f"{path}: an answer without tokens or without usage: {short(answer)}")
    return {"prompt_tokens": usage.get("prompt_tokens"), "completion_tokens": tokens, "seconds": seconds, "text": text}


def _measured(work: Workload, outcomes: Sequence[Outcome]) -> Measured:
    good = [(outcome, outcome.figures) for outcome in outcomes if outcome.figures is not None]
    by_slot: dict[int, list[float]] = {}
    for outcome, figures in good:
        if figures.decode_tok_s:
            by_slot.setdefault(outcome.slot, []).append(figures.decode_tok_s)
    accepts = [figures.accept_length for _unused, figures in good if figures.accept_length]
    wall_s = max(figures.times_s[-1] for _unused, figures in good) - min(outcome.started_s for outcome, _unused in good) if good else 0.0
    return Measured(
        rates=[figures.decode_tok_s for _unused, figures in good if figures.decode_tok_s],
        decode_tok_s=sum(statistics.median(rates) for rates in by_slot.values()) if by_slot else None,
        output_tok_s=sum(figures.tokens for _unused, figures in good) / wall_s if good else None,
        ttft_s=[figures.ttft_s for _unused, figures in good],
        token_gaps_s=[gap for _unused, figures in good for gap in figures.token_gaps_s()],
        accept_length=statistics.fmean(accepts) if accepts else None,
        contaminated=sum(workload_row.is_contaminated(figures.cached_tokens, work) for _unused, figures in good),
    )


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


def authorization(api_key: str | None) -> dict[str, str]:
    """The header that carries the key."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def new_text(before: str, after: str) -> str:
    """What was appended to a log whose tail was `before`. When that is out of sight, all of it is new."""
    mark = before[-1024:]
    at = after.rfind(mark) if mark else -1
    return after if at < 0 else after[at + len(mark) :]
