# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Outputs of fixed texts: from the lab's stand-in, and from servers that answer what no stand-in would."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import threading

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import http_client, outputs
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.outputs_gate import judge
from test_standin import TP4, Standin


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Outputs of one start of the stand-in with four ranks, by what is in its environment; each is started once."""
    known = {}

    def outputs_of(again: int = 0, **environment: str) -> dict:
        key = (again, *sorted(environment.items()))
        if key not in known:
            server = Standin(tmp_path_factory.mktemp("start"), *TP4, "--api-key", "k3y", env=environment)
            try:
                server.ready()
                known[key] = outputs.read(f"http://127.0.0.1:{server.port}", api_key="k3y")
            finally:
                server.end()
        return known[key]

    return outputs_of


def trials(*starts: dict) -> list[dict]:
    return [{"outputs": start} for start in starts]


def test_a_start_has_every_text_and_fits_into_a_trial(read):
    found = read()
    assert found["error"] is None
    assert [entry["name"] for entry in found["prompts"]] == [name for name, _unused in outputs.PROMPTS]
    for entry in found["prompts"]:
        assert len(entry["logprobs"]) == entry["tokens"] - 1 > 10
        assert len(entry["generated_ids"]) == len(entry["generated_logprobs"]) == len(entry["generated_leads"]) == outputs.NEW_TOKENS
        assert min(entry["generated_leads"]) > 0
        assert not entry["empty"]
        assert not entry["repetitive"]
    assert len(json.dumps(found, allow_nan=False)) < 40_000


def test_starts_of_one_configuration_are_equal(read):
    assert read()["digest"] == read(again=1)["digest"]


@pytest.mark.parametrize(
    ("environment", "state", "words"),
    [
        ({}, "pass", "equal in all starts"),
        ({"NCCL_MAX_NCHANNELS": "2"}, "pass", "nats a token from the baseline"),
        ({"RINGMASTER_LAB_FAULT": "corrupt"}, "fail", "nats a token away"),
        ({"RINGMASTER_LAB_FAULT": "corrupt:0.2"}, "fail", "nats a token away"),
        ({"RINGMASTER_LAB_FAULT": "nan"}, "fail", "numbers that are not finite, in the text 'prose'"),
    ],
)
def test_the_gate_over_the_lab(read, environment, state, words):
    found = judge(trials(read(), read(again=1)), trials(read(**environment)))
    assert found["state"] == state
    assert words in found["reason"]


@contextlib.contextmanager
def server(answer):
    """A server that gives `answer(request body, headers)`: (status, body bytes). Yields its address and the requests it had."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, body = answer(asked[-1], self.headers)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_unused):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.server_address[1]}", asked
        finally:
            listener.shutdown()


def completion(text: str = " a sea", forced: str = "[null, 1, null], [-2.5, 2, null]", **more) -> bytes:
    generated = [[-0.5, 7 + place, None] for place in range(3)]
    meta = {"output_token_logprobs": generated, "output_top_logprobs": [[item, [-3.5, 9, None]] for item in generated]} | more
    return b'{"text": %s, "meta_info": {"input_token_logprobs": [%s], %s' % (
        json.dumps(text).encode(), forced.encode(), json.dumps({"meta": 0, **meta})[1:].encode() + b"}",
    )  # fmt: skip


def read_from(answer, **options) -> dict:
    with server(answer) as (url, _unused):
        return outputs.read(url, **options)


def test_what_is_asked_for():
    with server(lambda *_unused: (200, completion())) as (url, asked):
        found = outputs.read(url + "/")
    assert [body["text"] for body in asked] == [text for _unused, text in outputs.PROMPTS]
    assert all(body["return_logprob"] and body["logprob_start_len"] == 0 and body["sampling_params"]["temperature"] == 0 for body in asked)
    entry = found["prompts"][0]
    assert (entry["tokens"], entry["logprobs"], entry["generated_ids"], entry["generated_leads"]) == (2, [-2.5], [7, 8, 9], [3.0] * 3)


@pytest.mark.parametrize(
    ("forced", "expected"),
    [
        ("[null, 1, null], [null, 2, null], [-1, 3, null]", ["nan", -1.0]),
        ("[null, 1, null], [NaN, 2, null], [-Infinity, 3, null]", ["nan", "-inf"]),
        ("[-1.23456789, 1, null], [-0.5, 2, null]", [-1.234568, -0.5]),
    ],
)
def test_numbers(forced, expected):
    found = read_from(lambda *_unused: (200, completion(forced=forced)))
    assert found["prompts"][0]["logprobs"] == expected
    json.dumps(found, allow_nan=False)


def test_an_empty_text_and_leads_that_are_missing():
    found = read_from(lambda *_unused: (200, completion(text=" \n", output_top_logprobs=None)))
    assert found["prompts"][0]["empty"]
    assert found["prompts"][0]["generated_leads"] == []
    found = read_from(lambda *_unused: (200, completion(output_top_logprobs=[[[None, 1, None], [None, 2, None]], None, []])))
    assert found["prompts"][0]["generated_leads"] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (400, b'{"error": {"message": "cannot accept text prompts"}}', "HTTP 400: .*cannot accept text"),
        (500, b"\xff" * 9000, "HTTP 500"),
        (200, b'{"text": "x", "meta_info": {}}', "no log-probabilities in the answer .KeyError"),
        (200, b"[]", "no log-probabilities"),
        (200, b"null", "no log-probabilities"),
        (200, b"not json", "no log-probabilities"),
        (200, completion(forced=""), "fewer than two tokens"),
        (200, completion(forced="[null, 1, null], [[], 2, null]"), "no log-probabilities"),
        (200, completion(text=None), "no log-probabilities"),
        (200, completion(output_top_logprobs=7), "no log-probabilities"),
    ],
)
def test_a_server_that_refuses_gives_an_error_and_no_exception(status, body, words):
    found = read_from(lambda *_unused: (status, body))
    assert (found["prompts"], found["digest"]) == ([], None)
    assert found["error"].startswith("prose: ")
    assert re.search(words, found["error"])
    assert len(found["error"]) < 1000


def test_what_was_read_before_a_refusal_is_kept():
    def answer(body: dict, _headers) -> tuple[int, bytes]:
        return (200, completion()) if body["text"] != outputs.PROMPTS[2][1] else (503, b"busy")

    found = read_from(answer)
    assert [entry["name"] for entry in found["prompts"]] == ["prose", "code"]
    assert (found["error"], found["digest"]) == ("numbers: HTTP 503: busy", None)


def test_nobody_there():
    with server(None) as (url, _unused):
        pass
    assert "refused" in outputs.read(url)["error"].lower()


def test_a_slow_server_is_asked_for_less(monkeypatch):
    monkeypatch.setattr(outputs, "SLOW_S", 0.0)
    with server(lambda *_unused: (200, completion(text=""))) as (url, asked):
        found = outputs.read(url)
    assert {body["sampling_params"]["max_new_tokens"] for body in asked} == {1}
    assert not any(entry["empty"] for entry in found["prompts"]), "one token may well be no text yet"


def test_stop_ends_it():
    class Ended(Exception):
        pass

    def stop():
        raise Ended

    with server(lambda *_unused: (200, completion())) as (url, _unused):
        with pytest.raises(Ended):
            outputs.read(url, stop=stop)
        with pytest.raises(http_client.Stopped):
            outputs.read(url, stop=lambda: True)


@pytest.mark.parametrize(
    ("ids", "loops"),
    [
        ([0] * 32, True),
        ([4, 9] * 16, True),
        ([1, 2, 3, 4] * 8, True),
        (list(range(10)) + [6, 7, 8] * 7, True),
        ([1, 2, 3, 4, 5] * 6, False),
        ([0] * 19, False),
        ([0] * 31 + [5], False),
        (list(range(32)), False),
        ([], False),
    ],
)
def test_endless_repetition(ids, loops):
    assert outputs._loops(ids) is loops
