# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Streams and HTTP answers taken apart: bytes and clock readings made here, no sockets."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import paced_server
import pytest
import yaml
from ansible_collections.ringmaster.gpu.plugins.module_utils.http_client import HttpError, Response
from ansible_collections.ringmaster.gpu.plugins.module_utils.streams import Stream, StreamError, percentiles, server_figures, token_count

CASES = yaml.safe_load((Path(__file__).parent / "data" / "streams.yml").read_text())
LOADGEN_ERRORS = ("ended after", "came at once")  # judged against what was asked for, so not by the stream alone


def follow(chunks: list[bytes], gap_s: float, piece: int = 1 << 20) -> Stream:
    """Feeds chunk n, cut in pieces, at 0.02 + n * gap_s."""
    stream = Stream()
    for number, chunk in enumerate(chunks):
        for at in range(0, len(chunk), piece):
            stream.feed(chunk[at : at + piece], 0.02 + number * gap_s)
    return stream


def sse(*events: Any, end: str = "\n\n") -> list[bytes]:
    return [b"data: " + (event if isinstance(event, str) else json.dumps(event)).encode() + end.encode() for event in events]


def openai(text: str | None, tokens: int | None = None, finish: str | None = None, **usage: Any) -> dict[str, Any]:
    choices = [] if text is None else [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]
    counted = {} if tokens is None else {"usage": {"prompt_tokens": 5, "completion_tokens": tokens, **usage}}
    return {"id": "x", "choices": choices, **counted}


@pytest.mark.parametrize("piece", [1, 2, 3, 64, 1 << 20])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_kind_of_stream_cut_at_any_byte(case: dict[str, Any], piece: int) -> None:
    options = {**paced_server.OPTIONS, **case["server"]}
    chunks, gap_s = paced_server.events(options, case["tokens"], 64), options["gap_ms"] / 1e3
    expect, error = case["expect"], case["expect"].get("error")
    if error and error not in LOADGEN_ERRORS and not error.startswith(LOADGEN_ERRORS):
        with pytest.raises(StreamError, match=error):
            follow(chunks, gap_s, piece).figures(0.0)
        return
    stream = follow(chunks, gap_s, piece)
    figures = stream.figures(0.0)
    assert stream.done == options["done"]
    assert figures.tokens == case["tokens"] - options["lacks_tokens"]
    assert figures.ttft_s == pytest.approx(0.02)
    assert (figures.prompt_tokens, figures.cached_tokens, figures.finish_reason) == (64, options["cached_tokens"], "length")
    assert figures.accept_length == expect.get("accept_length")
    assert sum(figures.token_gaps_s()) == pytest.approx(figures.times_s[-1] - figures.times_s[0])
    assert len(figures.token_gaps_s()) == figures.tokens - figures.counts[0]
    if "itl_ms" in expect:
        wanted = expect["itl_ms"]
        assert figures.itl_s == (None if wanted is None else pytest.approx(wanted / 1e3))
        assert figures.decode_tok_s == (None if wanted is None else pytest.approx(1e3 / wanted))


def test_events_that_arrive_together_are_one_chunk() -> None:
    chunks = paced_server.events({}, 64, 64)
    figures = follow([b"".join(chunks[at : at + 4]) for at in range(0, 64, 4)], 0.02).figures(0.0)
    assert list(figures.counts) == list(range(4, 65, 4))
    assert figures.itl_s == pytest.approx(0.005)
    assert figures.token_gaps_s() == pytest.approx([0.005] * 60)


def test_chunks_of_unequal_size() -> None:
    figures = follow(paced_server.events({"tokens_per_chunk": 3}, 64, 64), 0.015).figures(0.0)
    assert list(figures.counts)[-2:] == [63, 64]
    assert figures.itl_s == pytest.approx(21 * 0.015 / 61)
    assert figures.token_gaps_s() == pytest.approx([0.005] * 60 + [0.015])


def test_random_cuts_give_the_same_tokens() -> None:
    whole = b"".join(paced_server.events({"line_end": "\r\n", "noise": True, "tokens_per_chunk": 5}, 64, 64))
    dice = random.Random(3)
    for _ in range(200):
        cuts = sorted(dice.sample(range(1, len(whole)), 12))
        stream = Stream()
        for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(whole)], strict=True)):
            stream.feed(whole[start:end], float(number))
        assert stream.figures(-1.0).tokens == 64
        assert stream.done


@pytest.mark.parametrize(
    ("event", "count"),
    [
        ({"text": 'says "completion_tokens":7', "meta_info": {"completion_tokens": 3}}, 3),
        ({"text": '\\"completion_tokens":7', "meta_info": {"completion_tokens": 3}}, 3),
        ({"meta_info": {"completion_tokens": 3}, "text": 'says "completion_tokens":7'}, 3),
        ({"text": "completion_tokens", "meta_info": {"completion_tokens": 3}}, 3),
        ({"usage": {"completion_tokens": 3, "completion_tokens_details": {"x": 9}}}, 3),
        ({"text": 'says "completion_tokens":7'}, None),
        ({"meta_info": {"completion_tokens": 3}, "text": "completion_tokens"}, None),
        ({"choices": [], "usage": None}, None),
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,", " : ")])
def test_a_token_count_is_found_without_parsing_and_never_in_text(event: dict, count: int | None, separators: tuple[str, str]) -> None:
    assert token_count(json.dumps(event, separators=separators).encode()) == count


def test_a_key_that_only_looks_like_text_is_still_counted() -> None:
    events = [{"meta_info": {"completion_tokens": n, "finish_reason": "stop"}, "text": "completion_tokens"} for n in (1, 2, 3)]
    assert follow(sse(*events), 0.5).figures(0.0).itl_s == pytest.approx(0.5)


def test_openai_usage_in_every_event() -> None:
    events = [openai("", 0), openai("a", 1), openai("b", 17), openai("c", 31, "stop"), openai(None, 31), "[DONE]"]
    figures = follow(sse(*events), 0.1).figures(0.0)
    assert (figures.tokens, list(figures.counts), figures.finish_reason) == (31, [1, 17, 31], "stop")
    assert figures.ttft_s == pytest.approx(0.12)
    assert figures.itl_s == pytest.approx(0.2 / 30)


@pytest.mark.parametrize("piece", [1, 3, 1 << 20])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("api", ["completions", "chat"])
def test_openai_endpoints_with_continuous_usage_give_the_same_figures_as_generate(api: str, line_end: str, piece: int) -> None:
    options = {"tokens_per_chunk": 3, "line_end": line_end, "noise": True, "cached_tokens": 2}
    figures = follow(paced_server.events(options, 63, 64, api, "continuous"), 0.015, piece).figures(0.0)
    assert (figures.tokens, figures.prompt_tokens, figures.cached_tokens, figures.finish_reason) == (63, 64, 2, "length")
    assert figures.itl_s == pytest.approx(0.005)
    assert figures.ttft_s == pytest.approx(0.02)


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_openai_endpoints_without_usage_are_an_error(api: str) -> None:
    with pytest.raises(StreamError, match="without its final usage"):
        follow(paced_server.events({}, 8, 64, api, "none"), 0.01).figures(0.0)


def test_an_empty_event_keeps_a_connection_alive_and_is_none() -> None:
    chunks = sse(openai("a", 1), openai("b", 2, "stop"), openai(None, 2), "[DONE]")
    assert follow([chunks[0], b"data:\n\n", b"data: \r\n\r\n", *chunks[1:]], 0.1).figures(0.0).tokens == 2


@pytest.mark.parametrize("error", [{"error": {"message": "lost"}}, {"object": "error", "message": "lost"}])
def test_an_error_that_counts_the_tokens_so_far_is_one(error: dict) -> None:
    with pytest.raises(StreamError, match="lost"):
        follow(sse(openai("a", 1), {**error, "usage": {"completion_tokens": 1}}, openai("b", 2, "stop"), "[DONE]"), 0.1)


@pytest.mark.parametrize("delta", [{"reasoning": "hm"}, {"reasoning_content": "hm"}, {"tool_calls": [{"index": 0}]}])
def test_the_first_token_may_be_a_thought_or_a_call(delta: dict) -> None:
    events = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}, {"choices": [{"delta": delta}]}, openai("a", finish="stop")]
    assert follow(sse(*events, openai(None, 3), "[DONE]"), 0.1).figures(0.0).ttft_s == pytest.approx(0.12)


def test_events_that_neither_count_nor_end_may_stand_anywhere() -> None:
    ping, states = {"type": "ping"}, {"choices": [{"delta": {"hidden_states": [0.5]}, "finish_reason": None}]}
    events = [ping, openai("a", 1), ping, openai("b", 2, "stop"), states, ping, openai(None, 2), ping, "[DONE]"]
    figures = follow(sse(*events), 0.1).figures(0.0)
    assert (figures.tokens, figures.finish_reason) == (2, "stop")
    with pytest.raises(StreamError, match="before its first event"):
        follow(sse(ping, "[DONE]"), 0.1).figures(0.0)


def test_openai_usage_at_the_end_gives_the_first_token_but_no_decode_rate() -> None:
    events = [openai(""), openai("a"), openai("b"), openai("c", finish="length")]
    details = {"prompt_tokens_details": {"cached_tokens": 4}}
    figures = follow(sse(*events, openai(None, 12, **details), "[DONE]"), 0.1).figures(0.0)
    assert (figures.tokens, figures.itl_s, figures.decode_tok_s, figures.cached_tokens) == (12, None, None, 4)
    assert figures.ttft_s == pytest.approx(0.12)
    with pytest.raises(StreamError, match="without its final usage"):
        follow(sse(*events, "[DONE]"), 0.1).figures(0.0)


def test_continuous_usage_whose_last_event_has_none_is_an_error() -> None:
    with pytest.raises(StreamError, match="without its final usage, after 63 tokens"):
        follow(sse(openai("a", 63), openai("b", finish="stop"), "[DONE]"), 0.1).figures(0.0)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "before its first event"),
        (["[DONE]"], "before its first event"),
        ([{"error": {"message": "out of memory", "code": 500}}], "the server reports: out of memory"),
        ([{"error": "gone"}], "the server reports: gone"),
        ([{"object": "error", "message": "no such model", "code": 404}], "the server reports: no such model"),
        (["{half"], "not JSON"),
        (["[1]"], "not an object"),
        ([{"meta_info": {"completion_tokens": 0, "finish_reason": {"type": "abort", "message": "full"}}}], "zero tokens .*abort: full"),
    ],
)
def test_a_stream_that_is_no_measurement_says_why(events: list, message: str) -> None:
    def whole() -> None:
        follow(sse(*events), 0.1).figures(0.0)

    with pytest.raises(StreamError, match=message):
        whole()


def test_accept_length_from_the_number_of_verify_passes() -> None:
    meta = {"completion_tokens": 30, "finish_reason": "length", "spec_verify_ct": 12}
    assert follow(sse({"meta_info": meta}), 0.1).figures(0.0).accept_length == 2.5


@pytest.mark.parametrize("piece", [1, 4096])
def test_a_longer_line_costs_in_proportion(piece: int) -> None:
    def cost_s(length: int) -> float:
        chunk = paced_server.events({"line_bytes": length}, 1, 64)
        best = 1e9
        for _ in range(2):
            start = time.process_time()
            assert follow(chunk, 0.1, piece).figures(0.0).tokens == 1
            best = min(best, time.process_time() - start)
        return best

    assert cost_s(400_000) < 30 * cost_s(50_000) + 0.02  # 8 times the bytes; a quadratic parser takes 64 times


def test_text_in_between_is_not_parsed() -> None:
    """Shown by text that no parser would take: only the last two events are read whole."""
    chunks = paced_server.events({}, 64, 64)
    broken = [chunk.replace(b'{"text":', b'{"text":oops', 1) for chunk in chunks[:-2]]
    assert b"oops" in broken[40]
    assert follow([*broken, *chunks[-2:]], 0.005).figures(0.0).itl_s == pytest.approx(0.005)


BODY = b"data: one\n\ndata: two\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
ANSWERS = {
    "chunked": HEAD + b"Transfer-Encoding: chunked\r\n\r\nb\r\n" + BODY[:11] + b"\r\n00B;ext=1\r\n" + BODY[11:] + b"\r\n0\r\n\r\n",
    "trailers": HEAD + b"transfer-encoding: Chunked\r\n\r\n16\r\n" + BODY + b"\r\n0\r\nX-Sum: 1\r\nY: 2\r\n\r\n",
    "length": HEAD + b"Content-Length: 22\r\n\r\n" + BODY,
    "close": HEAD + b"\r\n" + BODY,
    "identity": HEAD + b"Content-Encoding: identity\r\nContent-Length: 22\r\n\r\n" + BODY,
    "interim": b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 22\r\n\r\n" + BODY,
}


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_cut_at_any_byte(kind: str, piece: int) -> None:
    response, wire = Response(), ANSWERS[kind]
    body = b""
    for at in range(0, len(wire), piece):
        assert not response.done
        body += response.feed(wire[at : at + piece])
    assert (body, response.status, response.headers["content-type"]) == (BODY, 200, "text/event-stream")
    assert response.done == (kind != "close")
    response.end()
    assert response.done


@pytest.mark.parametrize("kind", ["chunked", "trailers", "length", "interim"])
def test_an_answer_that_breaks_off_anywhere_is_an_error(kind: str) -> None:
    for length in range(len(ANSWERS[kind])):
        response = Response()
        response.feed(ANSWERS[kind][:length])
        with pytest.raises(HttpError, match="before the end"):
            response.end()


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"x" * 70000,
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 5000,
    ],
)
def test_what_is_no_http_is_an_error(wire: bytes) -> None:
    with pytest.raises(HttpError):
        Response().feed(wire)


def test_percentiles_lie_between_neighbours() -> None:
    assert percentiles([4, 1, 3, 2], 10) == {"mean": 25, "p50": 25, "p90": 37, "p99": 39.7}
    assert percentiles([7.0]) == {"mean": 7, "p50": 7, "p90": 7, "p99": 7}
    assert percentiles([]) == {"mean": None, "p50": None, "p90": None, "p99": None}


def decode_line(running: int, rate: float, graph: str = "cuda graph: True, ") -> str:
    return (
        f"[2026-11-29 21:15:12 TP0] Decode batch, #running-req: {running}, #token: 136, token usage: 0.00, {graph}"
        f"gen throughput (token/s): {rate}, #queue-req: 0\n"
    )


PREFILL = "[2026-11-29 21:15:11 TP0] Prefill batch, #new-seq: 2, #new-token: 4, #running-req: 0, cuda graph: False\n"


@pytest.mark.parametrize(
    ("log", "found"),
    [
        ("", (None, None)),
        (PREFILL, (None, None)),
        (PREFILL + decode_line(4, 3.44) + decode_line(4, 600) + decode_line(4, 300) + decode_line(3, 900), (400.0, True)),
        ("".join(PREFILL + decode_line(4, 9) + decode_line(4, rate) for rate in (100, 400, 500)), (400.0, True)),
        (decode_line(4, 0.0) + decode_line(4, 400), (400.0, True)),
        (PREFILL + decode_line(4, 3.44), (None, True)),
        (decode_line(4, 600) + decode_line(4, 300, "cuda graph: False, "), (400.0, False)),
        (decode_line(4, 102.18, "cpu graph: False, "), (102.18, False)),
        (decode_line(4, 100, ""), (100.0, None)),
        (decode_line(4, 100, "accept len: 2.85, accept rate: 0.62, cuda graph: True, "), (100.0, True)),
        (decode_line(2, 100), (None, None)),
        (decode_line(4, 100).replace("batch,", "batch [39913],").replace("TP0]", "DP6 TP6 EP6]"), (100.0, True)),
        ("\rbar 1/2" + decode_line(4, 100).replace("\n", "\r") + "[2026-11-29 21:15:12] Decode batch, #running-req: x\n", (100.0, True)),
    ],
)
def test_the_servers_own_throughput(log: str, found: tuple) -> None:
    assert server_figures(log, 4) == found
