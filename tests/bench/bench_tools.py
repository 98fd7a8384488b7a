# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our load generator beside sglang.bench_serving and AIPerf, on the same server of known pacing: how exact, and at what cost.

    python tests/bench/bench_tools.py [--nice N] [TOOL ...]      (any Python from 3.9; about 5 minutes with all tools)

Client on one core, server on another; `--nice -10` (root) keeps other work away from both. The server's own clock readings are the
truth. Each tool runs twice, with many tokens and with few: the difference is what a chunk costs, without imports and start. SGLang and
AIPerf are those of `tests/real/build aiperf` (RINGMASTER_REAL_DIR); a tool that is not there is left out.

What we hold ourselves to: ITL within 1 %, TTFT median within 1 ms and p99 within 3 ms; at most 60 us a chunk from 8 streams on, and 1 % of
a core with one at 85 tok/s (at 400, recv alone costs more than that). The last line says what receiving alone costs here, a Python loop
of nothing but recv and the clock: no client in Python costs less.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests" / "unit")]

import paced_server  # noqa: E402 - found by the line above
from ansible_collections.ringmaster.gpu.plugins.module_utils import bench_tools, http_client, loadgen, streams, workload_row  # noqa: E402

REAL = Path(os.environ.get("RINGMASTER_REAL_DIR") or ROOT / ".cache" / "real")
PYTHON, AIPERF, MODEL = REAL / "env" / "bin" / "python", REAL / "aiperf" / "bin" / "aiperf", REAL / "model"
ENVIRONMENT = {"TORCHDYNAMO_DISABLE": "1"}
NEEDS = {"ringmaster": ROOT, "sglang": PYTHON, "aiperf": AIPERF}
TOKENS, FEW_TOKENS = 256, 8
# Streams, gap between chunks in ms (11.8: 85 tok/s, a trillion parameters on 8 GPUs; 5: a small model), waves of requests.
CASES = [(1, 11.8, 2), (1, 5.0, 4), (8, 5.0, 2), (64, 20.0, 2)]
LIMITS = {"itl": 1.0, "ttft_p50": 1.0, "ttft_p99": 3.0}
HEADS = ["tool", "streams", "ITL p50", "error", "TTFT p50", "error", "TTFT p99", "error", "errors", "CPU us/chunk", "x ours", "of a core"]
COLUMNS = "{:<11}{:>8}{:>10}{:>9}{:>10}{:>9}{:>10}{:>9}{:>8}{:>14}{:>8}{:>11}"


def cpu_s() -> float:
    """Of this process and of its children that were waited for."""
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def start(gap_ms: float, cores: list[int]) -> Any:
    """The server on the second core; this process, and so every tool, on the first."""
    os.sched_setaffinity(0, cores[1:2])
    server = paced_server.serve(ttft_ms=50.0, gap_ms=gap_ms, prompt_tokens=64)
    url = server.__enter__()
    os.sched_setaffinity(0, cores[:1])
    return server, url


def run(tool: str, streams_: int, gap_ms: float, waves: int, tokens: int, cores: list[int]) -> tuple[dict[str, Any], list[Any], float]:
    """(row, what the server really did in the measured part, CPU seconds)."""
    work = {"name": "bench", "concurrency": streams_, "input_len": 64, "output_len": tokens, "requests": streams_ * waves, "timeout_s": 60}
    server, url = start(gap_ms, cores)
    try:
        with tempfile.TemporaryDirectory() as directory:
            before_s = cpu_s()
            row = bench_tools.measure(
                tool, url, work, python=str(PYTHON), directory=directory, aiperf=str(AIPERF), model=str(MODEL), environment=ENVIRONMENT
            )
            used_s = cpu_s() - before_s
        truth = json.loads(http_client.request("GET", url + "/truth", timeout_s=10)[1])["streams"]
    finally:
        server.__exit__(None, None, None)
    return row, truth[streams_:], used_s


def line(tool: str, case: tuple[int, float, int], cores: list[int], ours_us: float | None) -> tuple[list[str], float]:
    streams_, gap_ms, waves = case
    _row, _truth, few_s = run(tool, *case, FEW_TOKENS, cores)
    row, truth, many_s = run(tool, *case, TOKENS, cores)
    requests = streams_ * (waves + (tool != "sglang"))  # the warm-up that comes before sglang's is ours
    cost_us = 1e6 * (many_s - few_s) / (requests * (TOKENS - FEW_TOKENS))
    itl_ms = 1e3 * statistics.median((one["last_s"] - one["first_s"]) / (one["chunks"] - 1) for one in truth)
    ttft_ms = streams.percentiles([one["first_s"] - one["received_s"] for one in truth], 1e3)
    errors_ms = [row["ttft_ms"][name] - ttft_ms[name] for name in ("p50", "p99")] if row["samples"] else [float("nan")] * 2
    measured_ms = statistics.median(1e3 / sample for sample in row["samples"]) if row["samples"] else float("nan")
    off = 100 * (measured_ms / itl_ms - 1)
    if tool == "ringmaster":
        ours_us = cost_us
    good = (abs(off) <= LIMITS["itl"], abs(errors_ms[0]) <= LIMITS["ttft_p50"], abs(errors_ms[1]) <= LIMITS["ttft_p99"])
    marks = [" " if holds else "!" for holds in good]
    return [
        tool,
        str(streams_),
        f"{measured_ms:.3f}",
        f"{off:+.2f}%{marks[0]}",
        f"{row['ttft_ms']['p50'] or 0:.2f}",
        f"{errors_ms[0]:+.2f}{marks[1]}",
        f"{row['ttft_ms']['p99'] or 0:.2f}",
        f"{errors_ms[1]:+.2f}{marks[2]}",
        str(len(row["errors"])),
        f"{cost_us:.0f}",
        f"{cost_us / ours_us:.1f}" if ours_us else "-",
        f"{cost_us / gap_ms / 1e3 * streams_:.1%}",
    ], ours_us


def bare_us(gap_ms: float, requests: int, cores: list[int]) -> float:
    """CPU time a chunk of a client that only receives: one stream at a time, nothing parsed."""
    server, url = start(gap_ms, cores)
    try:
        work = {"name": "bare", "concurrency": 1, "input_len": 64, "output_len": TOKENS, "requests": requests, "timeout_s": 60}
        address = http_client.resolve(url + "/generate")
        wires = loadgen.request_bytes(address, workload_row.checked(work), {}, requests, None)
        before_s, held = cpu_s(), []
        for wire in wires:
            with socket.create_connection(address.sockaddr[:2]) as peer:
                peer.sendall(wire)
                while not held or held[-1][0]:
                    held.append((peer.recv(1 << 16), time.monotonic()))
            held.append((b"-", 0.0))  # the next one starts
        return 1e6 * (cpu_s() - before_s) / (requests * TOKENS)
    finally:
        server.__exit__(None, None, None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tools", nargs="*", default=list(bench_tools.TOOLS))
    parser.add_argument("--nice", type=int, default=0)
    given = parser.parse_args()
    os.setpriority(os.PRIO_PROCESS, 0, given.nice)
    cores = sorted(os.sched_getaffinity(0)) * 2  # twice: a machine of one core has to do
    tools = [tool for tool in bench_tools.TOOLS if tool in given.tools and NEEDS[tool].exists()]
    print(f"Python {sys.version.split()[0]}; {TOKENS} tokens a stream, one a chunk; TTFT of the server 50 ms; ms; ! beyond what we promise")
    print(f"cores: client {cores[0]}, server {cores[1]}; load {os.getloadavg()[0]:.1f} before; nice {given.nice}")
    print(COLUMNS.format(*HEADS))
    for case in CASES:
        ours_us = None
        for tool in tools:
            words, ours_us = line(tool, case, cores, ours_us)
            print(COLUMNS.format(*words), flush=True)
    gap_ms = CASES[1][1]
    floor_us = bare_us(gap_ms, 4, cores)
    print(f"receiving alone, 1 stream: {floor_us:.0f} us/chunk, {floor_us / gap_ms / 1e3:.1%} of a core")


if __name__ == "__main__":
    main()
