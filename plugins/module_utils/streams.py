# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Server-sent events of a token stream, the figures of one stream and of many, and of the server's log. Pure: no clock, no I/O.

Tokens are what the server says it made (meta_info.completion_tokens of SGLang's /generate, usage.completion_tokens of the OpenAI
endpoints), never the number of chunks: speculative decoding and batching put several tokens in one.

Events end lines with LF, CRLF or CR and carry their JSON in one `data:` line, as SGLang, vLLM and OpenAI do.
"""

from __future__ import annotations

import json
import re
import statistics
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

COUNT_KEY = b'"completion_tokens"'
COUNT = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,15})')
DONE = b"[DONE]"
ERRORS = (b'{"error"', b'{"object":"error"', b'{"object": "error"')  # may hold the tokens so far, too
DECODE_LINE = re.compile(
    r"Decode batch(?: \[\d+\])?\W+#running-req: (\d+).*?(?:\w+ graph: (True|False).*?)?gen throughput \(token/s\): ([\d.]+)"
)


class StreamError(Exception):
    """The stream is no measurement: the server reported an error, or it ended without its final usage."""


class Lines:
    """Collects `data:` payloads from pieces split at any byte; every byte is looked at once, however long a line is."""

    def __init__(self) -> None:
        self._partial = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not end:
            self._partial += data
            return []
        whole = bytes(self._partial) + data[:end] if self._partial else data[:end]
        self._partial = bytearray(data[end:])
        if b"\r" in whole:
            whole = whole.replace(b"\r", b"\n")
        payloads = [line[5:].strip() for line in whole.split(b"\n") if line.startswith(b"data:")]
        return [payload for payload in payloads if payload]  # an empty one is no event: some proxies keep a connection alive by it


class Figures(NamedTuple):
    """One finished stream. times_s (monotonic clock) and counts (tokens so far) have one entry for what arrived together.

    ttft_s: from the request to the first token or text. itl_s: time from the first to the last chunk over the tokens after the first
    chunk, seconds a token; None when nothing came after the first chunk, or its token count is not known (final usage only).
    decode_tok_s: its inverse. output_tok_s: all tokens over the time from the request to the last. accept_length: tokens a verify
    pass of speculative decoding, None without. finish_reason: the server's word ("length", "stop", "abort: ...")."""

    ttft_s: float
    tokens: int
    times_s: Sequence[float]
    counts: Sequence[int]
    itl_s: float | None
    decode_tok_s: float | None
    output_tok_s: float
    prompt_tokens: int | None
    cached_tokens: int
    accept_length: float | None
    finish_reason: str

    def token_gaps_s(self) -> list[float]:
        """The inter-token latency of each token after the first chunk: a chunk's gap, spread over its tokens."""
        gaps: list[float] = []
        for at in range(1, len(self.counts)):
            new = self.counts[at] - self.counts[at - 1]
            gaps += [(self.times_s[at] - self.times_s[at - 1]) / new] * new
        return gaps


class Stream:
    """Follows one stream. Per event only the last token count is looked for; text is neither decoded nor kept, so the cumulative text
    and output_ids of /generate cost no more than their bytes."""

    def __init__(self) -> None:
        self.done = False  # [DONE] came
        self._lines = Lines()
        self._times_s, self._counts = array("d"), array("q")  # arrays: nothing for the garbage collector to walk while measuring
        self._text_s: float | None = None  # first text without a count
        self._last: list[bytes] = []  # the last two payloads with a count or an end: finish_reason may come before the usage

    @property
    def tokens(self) -> int:
        """Tokens so far, by the server's count."""
        return self._counts[-1] if self._counts else 0

    def feed(self, data: bytes, now_s: float) -> None:
        """Body bytes that arrived at now_s. Raises StreamError when the server sends an error event."""
        for payload in self._lines.feed(data):
            if payload == DONE:
                self.done = True
                return
            count = None if payload.startswith(ERRORS) else token_count(payload)
            if count is None:
                count = self._slow(payload, now_s)
            if count is None:
                continue
            self._last = [*self._last[-1:], payload]
            if count > self.tokens:
                if self._times_s and self._times_s[-1] == now_s:
                    self._counts[-1] = count
                else:
                    self._times_s.append(now_s)
                    self._counts.append(count)

    def _slow(self, payload: bytes, now_s: float) -> int | None:
        """The count by parsing; None for an event that has neither a usage nor an end."""
        event = _event(payload)
        if self._text_s is None and any(_has_text(choice) for choice in event.get("choices") or []):
            self._text_s = now_s
        usage = _usage(event)
        return (usage.get("completion_tokens") or 0) if usage or _finish_reason(event) else None

    def figures(self, started_s: float) -> Figures:
        """The figures of a stream that has ended, for a request sent at started_s. Raises StreamError."""
        if not self._last and self._text_s is None:
            raise StreamError("the stream ended before its first event")
        events = [_event(payload) for payload in self._last]
        usage = _usage(events[-1]) if events else {}
        reason = next((reason for reason in map(_finish_reason, reversed(events)) if reason), None)
        if reason is None or usage.get("completion_tokens") is None:
            raise StreamError(f"the stream ended without its final usage, after {self.tokens} tokens")
        if not self._counts:
            raise StreamError(f"the stream ended with zero tokens (finish reason {reason})")
        tokens, first_tokens = self.tokens, self._counts[0]
        times_s, last_s = self._times_s, self._times_s[-1]
        first_s, itl_s = times_s[0], None
        if self._text_s is not None and self._text_s < first_s:
            first_s = self._text_s  # counted only later: when the first tokens came is known, how many is not
        elif tokens > first_tokens:
            itl_s = (last_s - first_s) / (tokens - first_tokens)
        details = usage.get("prompt_tokens_details") or {}
        return Figures(
            ttft_s=first_s - started_s,
            tokens=tokens,
            times_s=times_s,
            counts=self._counts,
            itl_s=itl_s,
            decode_tok_s=1 / itl_s if itl_s else None,
            output_tok_s=tokens / (last_s - started_s),
            prompt_tokens=usage.get("prompt_tokens"),
            cached_tokens=usage.get("cached_tokens") or details.get("cached_tokens") or 0,
            accept_length=_accept_length(usage),
            finish_reason=reason,
        )


def percentiles(values: Sequence[float], scale: float = 1.0) -> dict[str, float | None]:
    """{mean, p50, p90, p99} of values times scale, linear between neighbours, to 4 decimals; each None without values."""
    if not values:
        return dict.fromkeys(("mean", "p50", "p90", "p99"))
    ordered = sorted(values)
    found = {"mean": statistics.fmean(ordered)}
    for percent in (50, 90, 99):
        at = (len(ordered) - 1) * percent / 100
        low = int(at)
        high = min(low + 1, len(ordered) - 1)
        found[f"p{percent}"] = ordered[low] + (ordered[high] - ordered[low]) * (at - low)
    return {name: round(value * scale, 4) for name, value in found.items()}


def server_figures(log: str, concurrency: int) -> tuple[float | None, bool | None]:
    """(tokens/s, graph replayed) by SGLang's own `Decode batch` lines with #running-req == concurrency; None where no line says it.

    tokens/s is what a client sees, too: the rate over all the time between two prefills, and of these rates the median. A line stands for
    as many tokens as any other, so that is the harmonic mean: as contexts grow, each line takes longer. A line that follows a prefill is
    left out: its interval contains that and the pause before.
    Graph replayed is False as soon as one of the lines says so (`cuda graph:` on GPUs, `cpu graph:` on CPUs)."""
    steady: list[list[float]] = [[]]
    graphs: set[str] = set()
    after_prefill = False
    for line in log.splitlines():
        if "Prefill batch" in line:
            after_prefill = True
        match = DECODE_LINE.search(line)
        if match is None:
            continue
        if after_prefill:
            steady.append([])
        if int(match[1]) == concurrency:
            graphs |= {match[2]} - {None}
            if not after_prefill and float(match[3]) > 0:
                steady[-1].append(float(match[3]))
        after_prefill = False
    means = [statistics.harmonic_mean(rates) for rates in steady if rates]
    return (round(statistics.median(means), 3) if means else None), (graphs == {"True"} if graphs else None)


def token_count(payload: bytes) -> int | None:
    """The token count of an event without parsing it; None when it has none or only looks as if.

    Sure, because the key's closing quote cannot stand inside a JSON string (there it is \\"), and as a whole string value it is not
    followed by a colon. The search goes backwards: in SGLang's events meta_info comes after the long text and output_ids."""
    at = payload.rfind(COUNT_KEY)
    match = COUNT.match(payload, at) if at >= 0 else None
    return int(match[1]) if match else None


def _event(payload: bytes) -> dict[str, Any]:
    try:
        event = json.loads(payload)
    except ValueError:
        raise StreamError(f"an event that is not JSON: {payload[:80]!r}") from None
    if not isinstance(event, dict):
        raise StreamError(f"an event that is not an object: {payload[:80]!r}")
    error = event.get("error") or (event if event.get("object") == "error" else None)
    if error:
        raise StreamError(f"the server reports: {error.get('message', error) if isinstance(error, dict) else error}")
    return event


def _usage(event: dict[str, Any]) -> dict[str, Any]:
    return event.get("meta_info") or event.get("usage") or {}


def _has_text(choice: dict[str, Any]) -> bool:
    """Whether a part of the answer is in it: text, a thought or a call of a tool, by whatever name; who speaks is none."""
    return bool(choice.get("text")) or any(value for name, value in (choice.get("delta") or {}).items() if name != "role")


def _finish_reason(event: dict[str, Any]) -> str | None:
    reason = (event.get("meta_info") or {}).get("finish_reason")
    if isinstance(reason, dict):
        message = reason.get("message")
        return f"{reason.get('type')}: {message}" if message else str(reason.get("type"))
    return reason or next((choice["finish_reason"] for choice in event.get("choices") or [] if choice.get("finish_reason")), None)


def _accept_length(usage: dict[str, Any]) -> float | None:
    if usage.get("spec_accept_length"):
        return float(usage["spec_accept_length"])
    passes = usage.get("spec_verify_ct")
    return usage["completion_tokens"] / passes if passes else None
