# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the load generator costs and how exact it is: CPU per chunk, and its figures beside those of a server of known pacing.

    python tests/bench/bench_loadgen.py        (any Python from 3.9; about 20 s, one core for the server, one for the client)

The server's own clock readings are the truth, so that its lateness on a busy machine is not taken for the client's.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests" / "unit")]

import paced_server  # noqa: E402 - found by the line above
from ansible_collections.ringmaster.gpu.plugins.module_utils import http_client, loadgen  # noqa: E402

TOKENS = 256
CASES = [  # streams, gap between chunks in ms, waves of requests
    (1, 5.0, 3),
    (8, 5.0, 3),
    (64, 20.0, 1),
    (64, 10.0, 2),
]
COLUMNS = "{:>7} {:>7} {:>9} {:>10} {:>6} {:>11} {:>11} {:>7} {:>12} {:>12}"


def bench(streams: int, gap_ms: float, waves: int) -> list[str]:
    work = loadgen.Workload("bench", streams, 64, TOKENS, streams * waves, streams, 60.0)
    with paced_server.serve(ttft_ms=50.0, gap_ms=gap_ms) as url:
        address = http_client.resolve(url + "/generate")
        loadgen.run_streams(address, loadgen.request_bytes(address, work, {}, streams), work)
        requests = loadgen.request_bytes(address, work, {}, work.requests)
        cpu_s, wall_s = time.process_time(), time.monotonic()
        outcomes = loadgen.run_streams(address, requests, work)
        cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
        _, truth = http_client.request("GET", url + "/truth", timeout_s=10)
    figures = [outcome.figures for outcome in outcomes if outcome.figures]
    assert len(figures) == work.requests, [outcome.error for outcome in outcomes]
    real = json.loads(truth)["streams"][streams:]
    chunks = work.requests * TOKENS
    itl_ms = 1e3 * statistics.median(one.itl_s for one in figures)
    real_itl_ms = 1e3 * statistics.median((one["last_s"] - one["first_s"]) / (one["chunks"] - 1) for one in real)
    ttft_ms = 1e3 * statistics.median(one.ttft_s for one in figures)
    real_ttft_ms = 1e3 * statistics.median(one["first_s"] - one["received_s"] for one in real)
    return [
        str(streams),
        f"{gap_ms:g}",
        f"{chunks / wall_s:.0f}",
        f"{1e6 * cpu_s / chunks:.1f}",
        f"{cpu_s / wall_s:.0%}",
        f"{itl_ms:.4f}",
        f"{real_itl_ms:.4f}",
        f"{itl_ms / real_itl_ms - 1:+.2%}",
        f"{ttft_ms:.2f}",
        f"{real_ttft_ms:.2f}",
    ]


def main() -> None:
    print(f"Python {sys.version.split()[0]}; cumulative text, {TOKENS} tokens a stream, one a chunk; TTFT of the server 50 ms")
    heads = ["streams", "gap ms", "chunks/s", "CPU us/chk", "core", "ITL ms", "server's", "error", "TTFT p50 ms", "server's"]
    print(COLUMNS.format(*heads))
    for case in CASES:
        print(COLUMNS.format(*bench(*case)), flush=True)


if __name__ == "__main__":
    main()
