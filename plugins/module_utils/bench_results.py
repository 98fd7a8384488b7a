# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What other benchmark programs wrote, as the figures of our own. Pure: text in, (Measured, [error]) out.

sglang   one JSON object a line, the last one is the run's (`--output-details`): output_lens, ttfts (s), itls (s, one a token after the
         first chunk), errors, cached_tokens (`--cache-report`), output_throughput, accept_length. `Infinity` and `NaN` occur.
aiperf   profile_export.jsonl, one object a request: metadata.{benchmark_phase, request_start_ns, request_end_ns},
         metrics.NAME.{value, unit}, error. Its inter_token_latency divides by all tokens but one, also when the first chunk had more:
         the gaps of inter_chunk_latency are taken instead.

Neither tells which of the concurrent streams a request was: decode_tok_s is the median rate times the concurrency.
"""

from __future__ import annotations

import json
import math
import statistics
from typing import Any, NamedTuple

from .workload_row import Measured, Workload, is_contaminated

CHANCE_TOKENS = 8  # two pieces of one text may begin alike
PROMPT_TOLERANCE = 4  # tokens, or 2 %: a prompt sent as text is cut into tokens again
PROMPT_SHARE = 0.02
TO_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


class Request(NamedTuple):
    """One request by another program's account; None where it does not tell. gaps_s: of each token after the first chunk."""

    error: str | None
    tokens: int
    prompt_tokens: int | None
    cached_tokens: int | None
    ttft_s: float
    gaps_s: list[float]


def read_sglang(text: str, work: Workload) -> tuple[Measured, list[str]]:
    """The figures of sglang.bench_serving's output file. Raises ValueError for one that is none."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError("its result is empty")
    result = json.loads(lines[-1])
    try:
        cached = result.get("cached_tokens") or [None] * len(result["output_lens"])
        columns = zip(result["errors"], result["output_lens"], cached, result["ttfts"], result["itls"])
        requests = [Request(_last_line(error), tokens, None, hit, ttft, itl) for error, tokens, hit, ttft, itl in columns]
        accept_length, output_tok_s = result.get("accept_length"), result["output_throughput"]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"its result lacks details ({type(error).__name__}: {error})") from None
    return _figures(work, requests, output_tok_s=output_tok_s, accept_length=accept_length)


def read_aiperf(text: str, work: Workload) -> tuple[Measured, list[str]]:
    """The figures of AIPerf's profile_export.jsonl. Raises ValueError for one that is none."""
    requests, starts_s, ends_s = [], [], []
    for line in text.splitlines():
        record = json.loads(line)
        try:
            if record["metadata"]["benchmark_phase"] != "profiling":
                continue
            requests.append(_aiperf_request(record))
            starts_s.append(record["metadata"]["request_start_ns"] * 1e-9)
            ends_s.append(record["metadata"]["request_end_ns"] * 1e-9)
        except (KeyError, TypeError) as error:
            raise ValueError(f"its record lacks a field ({type(error).__name__}: {error})") from None
    wall_s = max(ends_s) - min(starts_s) if starts_s else 0.0
    tokens = sum(request.tokens for request in requests if not request.error)
    return _figures(work, requests, output_tok_s=tokens / wall_s if wall_s > 0 else None, accept_length=None)


def _aiperf_request(record: dict[str, Any]) -> Request:
    metrics, problem = record["metrics"], record.get("error")
    if problem:
        code, message = problem.get("code"), str(problem.get("message") or problem.get("type") or "failed")
        return Request(f"HTTP {code}: {message.strip()}" if code else message.strip(), 0, None, None, 0.0, [])

    def seconds(name: str) -> list[float]:
        metric = metrics.get(name) or {"value": [], "unit": "s"}
        values = metric["value"] if isinstance(metric["value"], list) else [metric["value"]]
        return [value * TO_SECONDS[metric["unit"]] for value in values]

    def count(name: str) -> int | None:
        return int(metrics[name]["value"]) if name in metrics else None

    tokens = count("usage_completion_tokens") or count("output_sequence_length") or 0
    gaps_s = seconds("inter_chunk_latency")
    after_first = round(tokens - tokens / (len(gaps_s) + 1))  # as if all chunks were alike: of which size the first was is not told
    if len(gaps_s) != after_first and sum(gaps_s) > 0:
        gaps_s = [sum(gaps_s) / after_first] * after_first
    ttft_s = (seconds("time_to_first_token") or [0.0])[0]
    return Request(None, tokens, count("usage_prompt_tokens"), count("usage_prompt_cache_read_tokens"), ttft_s, gaps_s)


def _figures(work: Workload, requests: list[Request], *, output_tok_s: Any, accept_length: Any) -> tuple[Measured, list[str]]:
    """Sound requests make the figures; what is wrong with each of the others, and with their number, are the errors."""
    faults = [_fault(request, work) for request in requests]
    good = [request for request, fault in zip(requests, faults) if fault is None]
    errors = [fault for fault in faults if fault]
    if len(requests) != work.requests:
        errors.append(f"tells of {len(requests)} requests instead of {work.requests}")
    rates = [len(request.gaps_s) / sum(request.gaps_s) for request in good if request.gaps_s]
    hits = [request.cached_tokens for request in good if request.cached_tokens is not None]
    measured = Measured(
        rates=rates,
        decode_tok_s=statistics.median(rates) * work.concurrency if rates else None,
        output_tok_s=_finite(output_tok_s) if good else None,
        ttft_s=[request.ttft_s for request in good],
        token_gaps_s=[gap for request in good for gap in request.gaps_s],
        accept_length=_finite(accept_length),
        contaminated=sum(hit > CHANCE_TOKENS and is_contaminated(hit, work) for hit in hits) if hits else None,
    )
    return measured, errors


def _fault(request: Request, work: Workload) -> str | None:
    if request.error:
        return request.error
    if request.tokens != work.output_len:
        return f"ended after {request.tokens} of {work.output_len} tokens"
    if not 0 < request.ttft_s < math.inf:
        return f"{request.tokens} tokens, but no time to the first one: was their text empty?"
    if work.output_len > 1 and not sum(request.gaps_s) > 0:
        return f"all {request.tokens} tokens came at once: no decode rate"
    allowed = max(PROMPT_TOLERANCE, PROMPT_SHARE * work.input_len)
    if request.prompt_tokens is not None and abs(request.prompt_tokens - work.input_len) > allowed:
        return f"the server counts {request.prompt_tokens} prompt tokens instead of {work.input_len}"
    return None


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) and value > 0 else None


def _last_line(text: str) -> str | None:
    """A traceback's last line says what it was."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1][:300] if lines else None
