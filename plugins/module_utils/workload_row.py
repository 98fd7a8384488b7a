# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a measurement is asked for, and the row of what came out; the same whichever program sent the requests. Pure.

Decode lines of the server's log are SGLang's `Decode batch, #running-req: N, ..., #queue-req: M`.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from .errors import RingmasterError
from .streams import percentiles, server_figures

CACHED_SHARE = 0.02
BATCH_LINE = re.compile(r"Decode batch\W+#running-req: (\d+)(?:.*#queue-req: (\d+))?")


class Workload(NamedTuple):
    """requests: measured ones, at least `concurrency`; warmup_requests come before and are not in any figure; timeout_s: a request."""

    name: str
    concurrency: int
    input_len: int
    output_len: int
    requests: int
    warmup_requests: int
    timeout_s: float


class Measured(NamedTuple):
    """What the good requests of a measurement gave, seconds and tokens; None where the program that measured does not tell.

    rates: decode tokens/s of each request. ttft_s and token_gaps_s: all values, to make percentiles of. contaminated: requests whose
    prompt came from the cache."""

    rates: Sequence[float]
    decode_tok_s: float | None
    output_tok_s: float | None
    ttft_s: Sequence[float]
    token_gaps_s: Sequence[float]
    accept_length: float | None
    contaminated: int | None


NOTHING = Measured((), None, None, (), (), None, None)


def checked(workload: dict[str, Any]) -> Workload:
    """The Workload of {name, concurrency, input_len, output_len, requests, warmup_requests (default: concurrency), timeout_s (default
    600)}. Raises RingmasterError for one that is impossible."""
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


def row(work: Workload, measured: Measured, *, errors: Sequence[str], log: str = "") -> dict[str, Any]:
    """The workload row of a trial result (its fields: see loadgen.measure). log: what the server wrote while it was measured."""
    server_tok_s, graph_replayed = server_figures(log, work.concurrency)
    running, queued = batches(log)
    return {
        "name": work.name,
        "concurrency": work.concurrency,
        "input_len": work.input_len,
        "output_len": work.output_len,
        "samples": [round(rate, 4) for rate in measured.rates],
        "decode_tok_s": _rounded(measured.decode_tok_s),
        "output_tok_s": _rounded(measured.output_tok_s),
        "ttft_ms": percentiles(measured.ttft_s, 1e3),
        "itl_ms": percentiles(measured.token_gaps_s, 1e3),
        "server_tok_s": server_tok_s,
        "server_running": running,
        "server_queued": queued,
        "accept_length": _rounded(measured.accept_length),
        "graph_replayed": graph_replayed,
        "contaminated": measured.contaminated,
        "errors": list(errors),
    }


def batches(log: str) -> tuple[int | None, int | None]:
    """(most requests that decoded together, requests waiting in the middle one of the decode lines) by the server's log; None: no line
    says it. The middle one, because at the start of a wave requests wait for a moment on any server."""
    found = BATCH_LINE.findall(log)
    queued = [int(waiting) for _running, waiting in found if waiting]
    return max((int(running) for running, _waiting in found), default=None), statistics.median_low(queued) if queued else None


def is_contaminated(cached_tokens: int, work: Workload) -> bool:
    """Whether so many tokens of a prompt from the cache are more than a page boundary."""
    return cached_tokens > max(1.0, CACHED_SHARE * work.input_len)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
