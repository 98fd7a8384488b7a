# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The load generator on real sockets, against a server of known pacing in a process of its own."""

from __future__ import annotations

import json
import socket
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import paced_server
import pytest
import yaml
from ansible_collections.ringmaster.gpu.plugins.module_utils import http_client, loadgen
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

pytestmark = pytest.mark.measures  # a generator that does not get the cores falls behind, and says so

CASES = yaml.safe_load((Path(__file__).parent / "data" / "streams.yml").read_text())
CONCURRENCIES = [1, 8, 64]
GAP_SCALE = {1: 1, 8: 1, 64: 4}  # 64 streams of 5 ms would be 13 000 chunks a second: too much for the server on one core
TTFT_ERROR_MS = {1: 1.0, 8: 3.0, 64: 20.0}  # 64 requests at once wait for the server to accept them
TRIES = 6


def work(**changes: Any) -> dict[str, Any]:
    plain = {"name": "w", "concurrency": 1, "input_len": 64, "output_len": 16, "requests": 1, "timeout_s": 30}
    return {**plain, **changes}


def truth(url: str) -> dict[str, Any]:
    return json.loads(http_client.request("GET", url + "/truth", timeout_s=5)[1])


def deviations(row: dict[str, Any], real: list[dict[str, Any]], itl_ms: float | None, after_first: int) -> dict[str, tuple[float, float]]:
    """What the row says and what is true, where they are further apart than the accuracy we promise."""
    ttft_ms = 1e3 * statistics.median(one["first_s"] - one["received_s"] for one in real)
    pairs = {"ttft_ms": (row["ttft_ms"]["p50"], ttft_ms, TTFT_ERROR_MS[row["concurrency"]])}
    if itl_ms is not None:
        real_itl_ms = 1e3 * statistics.median((one["last_s"] - one["first_s"]) / after_first for one in real)
        measured_ms = statistics.median(1e3 / sample for sample in row["samples"])
        pairs["itl_ms of requests"] = (measured_ms, real_itl_ms, 0.01 * real_itl_ms)
        pairs["itl_ms nominal"] = (measured_ms, itl_ms, 0.01 * itl_ms)
        pairs["itl_ms mean"] = (row["itl_ms"]["mean"], itl_ms, 0.02 * itl_ms)
        wall_s = max(one["last_s"] for one in real) - min(one["received_s"] for one in real)
        output_tok_s = row["output_len"] * len(real) / wall_s
        pairs["output_tok_s"] = (row["output_tok_s"], output_tok_s, 0.05 * output_tok_s)
    return {name: (said, true) for name, (said, true, margin) in pairs.items() if abs(said - true) > margin}


@pytest.mark.parametrize("concurrency", CONCURRENCIES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_kind_of_stream(case: dict[str, Any], concurrency: int) -> None:
    """What is counted must be right every time; times once in a few tries, as another process may hold the cores for a moment: a wrong
    formula is wrong every time."""
    scale, expect = GAP_SCALE[concurrency], case["expect"]
    tokens = case["tokens"] // 2 if concurrency == 64 and case["tokens"] > 32 else case["tokens"]
    options = {"ttft_ms": 50, **case["server"]}
    options["gap_ms"] = options.get("gap_ms", 5) * scale
    itl_ms = None if expect.get("itl_ms") is None else expect["itl_ms"] * scale
    wrong: dict[str, tuple[float, float]] = {}
    for _ in range(TRIES):
        with paced_server.serve(**options) as url:
            row = loadgen.measure(url, work(concurrency=concurrency, output_len=tokens, requests=concurrency))
            real = truth(url)["streams"]
        if "error" in expect:
            assert row["errors"]
            assert all(expect["error"] in error for error in row["errors"])
            assert (row["samples"], row["decode_tok_s"], row["output_tok_s"], row["ttft_ms"]["p50"]) == ([], None, None, None)
            return
        assert row["errors"] == []
        assert row["contaminated"] == (concurrency if expect.get("contaminated") else 0)
        assert row["accept_length"] == expect.get("accept_length")
        assert len(row["samples"]) == (0 if itl_ms is None else concurrency)
        if itl_ms is None:
            assert (row["decode_tok_s"], row["itl_ms"]["p50"]) == (None, None)
        else:
            assert row["decode_tok_s"] == pytest.approx(sum(row["samples"]), rel=1e-4)
        if "line_bytes" in options:
            assert row["ttft_ms"]["p99"] < 5000  # 13 MB at 64 streams: no stall, more cannot be said
            return
        wrong = deviations(row, real[concurrency:], itl_ms, tokens - options.get("tokens_per_chunk", 1))
        if not wrong:
            return
    pytest.fail(f"(measured, true) after {TRIES} tries: {wrong}")


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_slow_first_batch_is_warmed_away(concurrency: int) -> None:
    wanted = work(concurrency=concurrency, requests=2 * concurrency)
    with paced_server.serve(slow_first_s=0.6) as url:
        warmed = loadgen.measure(url, wanted)
    with paced_server.serve(slow_first_s=0.6) as url:
        cold = loadgen.measure(url, {**wanted, "warmup_requests": 0})
    assert warmed["errors"] == cold["errors"] == []
    assert warmed["ttft_ms"]["p99"] < 300
    assert cold["ttft_ms"]["p99"] > 600


def test_prompts_are_of_the_asked_length_and_never_the_same() -> None:
    with paced_server.serve(gap_ms=1) as url:
        row = loadgen.measure(url, work(concurrency=8, input_len=33, requests=24))
        prompts = truth(url)["prompts"]
    assert (len(row["samples"]), row["errors"]) == (24, [])
    assert len(prompts) == 32
    assert {len(prompt) for prompt in prompts} == {33}
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 32
    assert 10 <= min(map(min, prompts)) <= max(map(max, prompts)) < 500


def test_the_loop_stays_closed() -> None:
    with paced_server.serve(gap_ms=5) as url:
        row = loadgen.measure(url, work(concurrency=4, requests=20, output_len=8, warmup_requests=0))
        streams = sorted(truth(url)["streams"], key=lambda one: one["received_s"])
    assert len(row["samples"]) == 20
    assert 0.5 * 4 * 200 < row["decode_tok_s"] < 1.5 * 4 * 200, "the sum over four streams"
    for at, one in enumerate(streams):
        running = sum(other["received_s"] <= one["received_s"] < other["last_s"] for other in streams[: at + 1])
        assert running <= 4
    assert streams[4]["received_s"] > min(one["last_s"] for one in streams[:4])


def test_a_busy_cache_is_flushed_a_little_later() -> None:
    with paced_server.serve(gap_ms=1, flush_busy=3) as url:
        assert loadgen.measure(url, work())["errors"] == []


def test_a_cache_that_stays_busy_is_a_problem_of_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loadgen, "FLUSH_WAIT_S", 0.5)
    with paced_server.serve(gap_ms=1, flush_busy=10**6) as url:
        row = loadgen.measure(url, work())
    assert len(row["samples"]) == 1
    assert row["errors"] == ['flush_cache: HTTP 400: "busy"']


@pytest.mark.parametrize("concurrency", CONCURRENCIES)
def test_a_server_that_dies_in_midstream(concurrency: int) -> None:
    with paced_server.serve(gap_ms=5, die_after=4) as url:
        row = loadgen.measure(url, work(concurrency=concurrency, requests=4 * concurrency))
    assert row["decode_tok_s"] is None
    assert set(row["errors"]) == {"warm-up: connection closed before the end of the answer (after 4 of 16 tokens)"}
    assert len(row["errors"]) == 1, "the same error is said once"


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_connection_that_is_reset_tells_how_far_it_came(concurrency: int) -> None:
    with paced_server.serve(gap_ms=5, reset_after=4) as url:
        row = loadgen.measure(url, work(concurrency=concurrency, requests=2 * concurrency))
    (error,) = row["errors"]
    assert row["samples"] == []
    assert error.startswith("warm-up: ")
    assert "reset" in error
    assert error.endswith("(after 4 of 16 tokens)")


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_server_that_fails_from_some_request_on(concurrency: int) -> None:
    with paced_server.serve(gap_ms=2, fail_from=2 * concurrency + 2) as url:
        row = loadgen.measure(url, work(concurrency=concurrency, requests=4 * concurrency))
    assert len(row["samples"]) == concurrency + 1
    assert row["errors"] == ['HTTP 500: "no"'] * (3 * concurrency - 1)
    assert row["decode_tok_s"] > 0


def test_a_compressed_answer_is_refused() -> None:
    with paced_server.serve(gap_ms=2, gzip=True) as url:
        row = loadgen.measure(url, work())
    assert row["errors"] == ["warm-up: HTTP 200 with Content-Encoding gzip, which was not asked for"]


def test_a_key_is_sent_with_every_request() -> None:
    with paced_server.serve(gap_ms=1, api_key="k") as url:
        assert loadgen.measure(url, work(), api_key="k")["errors"] == []
        assert "HTTP 401" in loadgen.measure(url, work())["errors"][0]


def test_a_server_that_never_answers() -> None:
    with paced_server.serve(mute=True) as url:
        url_work = loadgen.Workload("w", 8, 64, 16, 24, 8, 0.5)
        address = http_client.resolve(url + "/generate")
        start = time.monotonic()
        outcomes = loadgen.run_streams(address, loadgen.request_bytes(address, url_work, {}, 24), url_work)
        assert time.monotonic() - start < 1.0
    assert [outcome.error for outcome in outcomes] == ["no whole answer in 0.5 s"] * 8, "gives up when the first 8 all failed"


@pytest.mark.parametrize("status", [401, 500, 503])
def test_a_server_that_refuses(status: int) -> None:
    with paced_server.serve(status=status) as url:
        row = loadgen.measure(url, work(requests=5))
        with pytest.raises(http_client.HttpError, match=f"HTTP {status}"):
            loadgen.complete(url, timeout_s=5)
    assert row["errors"] == [f'warm-up: HTTP {status}: "no"']


def test_no_server_at_all() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
    with pytest.raises(ConnectionRefusedError):
        http_client.request("GET", url, timeout_s=2)
    row = loadgen.measure(url, work(concurrency=2, requests=50))
    assert row["decode_tok_s"] is None
    assert all("refused" in error for error in row["errors"])


def test_some_failures_leave_the_good_samples() -> None:
    """One server for two kinds of requests: those it finds too long get 400, the rest run."""
    with paced_server.serve(gap_ms=5) as url:
        address = http_client.resolve(url + "/generate")
        wanted = loadgen.Workload("w", 2, 64, 16, 6, 2, 10.0)
        wires = loadgen.request_bytes(address, wanted, {}, 6)
        wires[1] = http_client.build_request("POST", address._replace(path="/nowhere"), body=b"{}")
        wires[4] = wires[4].replace(b'"max_new_tokens": 16', b'"max_new_tokens": 12')
        outcomes = loadgen.run_streams(address, wires, wanted)
    errors = sorted(outcome.error for outcome in outcomes if outcome.error)
    assert errors == ['HTTP 404: "unknown"', "ended after 12 of 16 tokens (finish reason length)"]
    assert [outcome.figures.tokens for outcome in outcomes if outcome.figures] == [16] * 4


@pytest.mark.parametrize("options", [{"mute": True}, {"gap_ms": 500}, {"gap_ms": 1}, {"flush_busy": 10**6}], ids=str)
def test_stop_is_heard_at_once_wherever_it_comes(options: dict[str, Any]) -> None:
    asked_s: list[float] = []
    with paced_server.serve(**options) as url:
        start = time.monotonic()

        def stop() -> bool:
            asked_s.append(time.monotonic())
            return asked_s[-1] - start > 0.7

        with pytest.raises(loadgen.Stopped):
            loadgen.measure(url, work(concurrency=8, output_len=100, requests=10**4), stop=stop)
        assert time.monotonic() - start < 1.0
    assert statistics.quantiles([later - earlier for earlier, later in zip(asked_s, asked_s[1:], strict=False)], n=10)[-1] < 0.2


def test_progress_and_the_servers_log() -> None:
    line = "[t TP0] Decode batch, #running-req: 2, #token: 9, cuda graph: True, gen throughput (token/s): {}, #queue-req: 0\n"
    logs = iter(["start\n" + line.format(111), "start\n" + line.format(111) + line.format(200) + line.format(300)])
    seen: list[tuple[int, int]] = []
    with paced_server.serve(gap_ms=1) as url:
        row = loadgen.measure(
            url,
            work(concurrency=2, requests=4),
            log_tail=lambda: next(logs),
            progress=lambda done, total: seen.append((done, total)),
        )
    assert (row["server_tok_s"], row["graph_replayed"]) == (240.0, True), "only what was written while measuring"
    assert seen == [(done, 6) for done in range(1, 7)]
    assert list(row) == [
        *("name", "concurrency", "input_len", "output_len", "samples", "decode_tok_s", "output_tok_s", "ttft_ms", "itl_ms"),
        *("server_tok_s", "server_running", "server_queued", "accept_length", "graph_replayed", "contaminated", "errors"),
    ]
    assert json.loads(json.dumps(row, allow_nan=False)) == row


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"requests": 3, "concurrency": 4}, "3 requests cannot keep 4 streams"),
        ({"output_len": 0}, "output_len is 0"),
        ({"input_len": "64"}, "input_len is '64'"),
        ({"concurrency": True}, "concurrency is True"),
        ({"warmup_requests": -1}, "warmup_requests is -1"),
        ({"timeout_s": 0}, "timeout_s is 0"),
    ],
)
def test_an_impossible_workload_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RingmasterError, match=words):
        loadgen.measure("http://127.0.0.1:9", work(**changes))


def test_one_completion() -> None:
    for openai in (True, False):
        with paced_server.serve(openai=openai) as url:
            answer = loadgen.complete(url + "/", timeout_s=5)
        assert (answer["prompt_tokens"], answer["completion_tokens"], answer["text"]) == (4, 8, " jumps")
        assert 0 < answer["seconds"] < 5
    with paced_server.serve(final_usage=False) as url, pytest.raises(http_client.HttpError, match="without usage"):
        loadgen.complete(url, timeout_s=5)
    with paced_server.serve(mute=True) as url:
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            loadgen.complete(url, timeout_s=0.4)
        assert 0.35 < time.monotonic() - start < 0.8


def test_no_proxy_no_redirect_no_header_injection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with paced_server.serve() as url:
        assert http_client.request("GET", url + "/moved", timeout_s=5) == (302, b"")
        assert http_client.request("GET", url.replace("127.0.0.1", "localhost") + "/truth", timeout_s=5)[0] == 200
        with pytest.raises(http_client.HttpError, match="line break"):
            loadgen.measure(url, work(), api_key="k\r\nX: y")
    with pytest.raises(http_client.HttpError, match="not an http:// address"):
        http_client.request("GET", "https://127.0.0.1/", timeout_s=1)


def test_the_key_goes_with_every_request_and_large_requests_arrive_whole() -> None:
    """A listener that reads slowly what one request sends, then answers."""
    got = bytearray()

    def serve(listener: socket.socket) -> None:
        conn, _ = listener.accept()
        with conn:
            while not got.endswith(b"}"):
                got.extend(conn.recv(1 << 14))
                time.sleep(0.001)
            conn.sendall(b"HTTP/1.1 200 OK\r\n\r\nfine")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x?y=1"
        body = {"text": "x" * 5_000_000}
        assert http_client.request("POST", url, body=body, headers={"Authorization": "Bearer k"}, timeout_s=20) == (200, b"fine")
        thread.join()
    head, _, sent = bytes(got).partition(b"\r\n\r\n")
    assert json.loads(sent) == body
    assert head.startswith(b"POST /x?y=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer k" in head
