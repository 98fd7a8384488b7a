# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The endpoints of SGLang 0.5.16, answered by the stand-in's engine."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import time
import uuid

from . import __version__
from .engine import Engine, encode
from .http import Answer
from .logprobs import Logprobs
from .procs import log

DEPRECATED = {"/get_model_info": "/model_info", "/get_server_info": "/server_info"}
FINISH = {1: "length", 2: "stop"}


class Api:
    """Routes a request to its handler. `state`: starting, up or draining; `open_streams`: answers on their way."""

    def __init__(self, engine: Engine, flags: dict, lab: dict, logprobs: Logprobs, argv: list) -> None:
        self.engine, self.flags, self.lab, self.logprobs = engine, flags, lab, logprobs
        self.command = shlex.join([sys.executable, "-m", "sglang.launch_server", *argv])
        self.state, self.open_streams = "starting", 0
        self.routes = {
            "/health": ("GET", self.health), "/health_generate": ("GET", self.health), "/model_info": ("GET", self.model_info),
            "/server_info": ("GET", self.server_info), "/v1/models": ("GET", self.models), "/generate": ("POST", self.generate),
            "/v1/completions": ("POST", self.completions), "/v1/chat/completions": ("POST", self.completions),
            "/flush_cache": ("GET POST", self.flush_cache), "/metrics": ("GET", self.metrics),
        }

    async def answer(self, method: str, target: str, headers: dict, body: bytes) -> Answer:
        path = target.partition("?")[0]
        if path in DEPRECATED:
            log(f"Endpoint '{path}' is deprecated and will be removed in a future version. Please use '{DEPRECATED[path]}' instead.")
            path = DEPRECATED[path]
        key = self.flags["api_key"]
        if key and not path.startswith("/health") and headers.get("authorization") != f"Bearer {key}":
            return Answer(401, {"error": "Unauthorized"})
        methods, handler = self.routes.get(path, ("", None))
        if handler is None or path == "/metrics" and not self.flags["enable_metrics"]:
            return Answer(404, {"detail": "Not Found"})
        if method not in methods.split():
            return Answer(405, {"detail": "Method Not Allowed"})
        try:
            asked = json.loads(body) if body else {}
            return await handler(dict(asked, _path=path, _kind="h" if "x-warm-up" in headers else "r"))
        except (ValueError, TypeError, KeyError) as error:
            return Answer(400, {"object": "error", "message": f"{type(error).__name__}: {error}", "type": "BadRequestError", "code": 400})

    async def health(self, _asked: dict) -> Answer:
        """200 as soon as anything came back since the question, as SGLang; 503 after the timeout, while starting and while draining."""
        if self.state != "up":
            return Answer(503)
        asked_s = time.monotonic()
        timeout_s = float(os.environ.get("SGLANG_HEALTH_CHECK_TIMEOUT", self.lab["health_timeout_s"]))
        request = self.engine.submit([1], 1, kind="h")
        while time.monotonic() - asked_s < timeout_s:
            await asyncio.sleep(0.01)
            if self.engine.last_output_s > asked_s:
                return Answer(200)
        self.engine.drop(request)
        log("Health check failed. Server couldn't get a response from detokenizer for last "
            f"{timeout_s:.0f} seconds.")
        return Answer(503)

    async def model_info(self, _asked: dict) -> Answer:
        return Answer(200, {
            "model_path": self.flags["model_path"], "tokenizer_path": self.flags["tokenizer_path"], "is_generation": True,
            "preferred_sampling_params": None, "weight_version": "default", "has_image_understanding": False,
        })

    async def server_info(self, _asked: dict) -> Answer:
        state = {"last_gen_throughput": self.engine.throughput, "memory_usage": {"weight": 66.0, "kvcache": 18.48, "graph": 0.07},
                 "effective_max_running_requests_per_dp": self.flags["max_running_requests"]}
        arguments = {name: value for name, value in self.flags.items() if name != "graph_max_bs"}
        return Answer(200, dict(arguments, version=__version__, launch_command=self.command, status=self.state,
                                max_total_num_tokens=int(self.lab["kv_tokens_per_fraction"] * self.flags["mem_fraction_static"]),
                                internal_states=[state]))

    async def models(self, _asked: dict) -> Answer:
        model = {"id": self.flags["served_model_name"], "object": "model", "created": int(time.time()), "owned_by": "sglang",
                 "root": self.flags["served_model_name"], "parent": None, "max_model_len": 131072}
        return Answer(200, {"object": "list", "data": [model]})

    async def metrics(self, _asked: dict) -> Answer:
        name = self.flags["served_model_name"]
        rows = {"sglang:num_running_reqs": len(self.engine.requests), "sglang:gen_throughput": self.engine.throughput}
        text = "".join(f'{key}{{model_name="{name}"}} {value}\n' for key, value in rows.items())
        return Answer(200, text.encode(), "text/plain; version=0.0.4")

    async def flush_cache(self, _asked: dict) -> Answer:
        if self.engine.requests:
            log(f"Cache not flushed because there are pending requests. #running-req: {len(self.engine.requests)}")
            return Answer(400, b"Flush cache failed: requests are running or waiting.\n", "text/plain")
        self.engine.cache.seen.clear()
        log("Cache flushed successfully!")
        return Answer(200, b"Cache flushed.\n", "text/plain")

    async def generate(self, asked: dict) -> Answer:
        """SGLang's own protocol: text and output_ids grow from event to event."""
        sampling = asked.get("sampling_params") or {}
        ids = asked["input_ids"] if asked.get("input_ids") is not None else encode(asked["text"])
        if not ids or not all(isinstance(one, int) for one in ids):
            raise ValueError("one prompt a request: text, or input_ids as a list of integers")
        request = self.submit(asked, ids, sampling.get("max_new_tokens", 128), sampling)
        if asked.get("stream"):
            return Answer(events=self.generate_events(request, asked))
        *_unused, last = [event async for event in self.generations(request, asked)]
        return Answer(200, last)

    def submit(self, asked: dict, ids: list, max_new: int, sampling: dict):
        temperature = float(sampling.get("temperature", 1.0))
        return self.engine.submit(ids, int(max_new), bool(sampling.get("ignore_eos")), temperature, asked["_kind"])

    async def tokens(self, request):
        """(token id, word, flag) of a request until it ends; forgotten by rank 0 when the consumer leaves before."""
        self.open_streams += 1
        try:
            flag = 0
            while not flag:
                token, word, flag = await request.get()
                yield token, word, flag
        finally:
            self.open_streams -= 1
            self.engine.drop(request)

    async def generations(self, request, asked: dict):
        began_s, wall_s, text, ids, rid = time.monotonic(), time.time(), "", [], uuid.uuid4().hex
        async for token, word, flag in self.tokens(request):
            ids.append(token)
            text += (" " if text else "") + word
            if not flag and len(ids) > 1 and len(ids) % self.flags["stream_interval"]:
                continue
            finish = {"type": "length", "length": len(ids)} if flag == 1 else {"type": "stop", "matched": 2} if flag else None
            meta = {"id": rid, "finish_reason": finish, "prompt_tokens": len(request.ids), "weight_version": "default",
                    "num_retractions": 0, "queue_time": 0.0, "reasoning_tokens": 0, "completion_tokens": len(ids),
                    "cached_tokens": request.cached, "cached_tokens_details": None, "dp_rank": None}
            if flag:
                took_s = time.monotonic() - began_s
                meta.update(e2e_latency=took_s, request_received_ts=wall_s, request_finished_ts=wall_s + took_s,
                            decode_throughput=len(ids) / took_s)
                if asked.get("return_logprob"):
                    meta.update(self.logprobs.meta(asked, request.ids, ids))
            yield {"text": text, "output_ids": ids, "meta_info": meta}

    async def generate_events(self, request, asked: dict):
        async for event in self.generations(request, asked):
            yield _event(event)
        yield b"data: [DONE]\n\n"

    async def completions(self, asked: dict) -> Answer:
        """/v1/completions and /v1/chat/completions."""
        chat = asked["_path"] == "/v1/chat/completions"
        if chat:
            ids = encode("".join(f"<{m['role']}>{m['content']}" for m in asked["messages"]))
        else:
            ids = encode(asked["prompt"]) if isinstance(asked["prompt"], str) else asked["prompt"]
        max_new = asked.get("max_completion_tokens") or asked.get("max_tokens") or (512 if chat else 16)
        request = self.submit(asked, ids, max_new, asked)
        base = {"id": uuid.uuid4().hex, "created": int(time.time()), "model": asked.get("model", self.flags["served_model_name"])}
        if asked.get("stream"):
            return Answer(events=self.completion_events(request, asked, base, chat))
        tokens = [one async for one in self.tokens(request)]
        text, flag = " ".join(word for _unused, word, _unused in tokens), tokens[-1][2]
        message = {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None}
        choice = {"index": 0, "logprobs": None, "finish_reason": FINISH[flag], "matched_stop": None}
        choice.update({"message": message} if chat else {"text": text})
        kind = "chat.completion" if chat else "text_completion"
        return Answer(200, dict(base, object=kind, choices=[choice], usage=self.usage(request, len(tokens))))

    async def completion_events(self, request, asked: dict, base: dict, chat: bool):
        """Deltas; with chat a first event with the role and a last one with the reason; usage at the end if asked for."""
        base = dict(base, object="chat.completion.chunk" if chat else "text_completion")

        def event(content, reason) -> bytes:
            choice = {"index": 0, "delta": content} if chat else {"index": 0, "text": content}
            return _event(dict(base, choices=[dict(choice, logprobs=None, finish_reason=reason, matched_stop=None)], usage=None))

        if chat:
            yield event({"role": "assistant", "content": ""}, None)
        count, held = 0, ""
        async for _unused, word, flag in self.tokens(request):
            held += (" " if count else "") + word
            count += 1
            if flag or count == 1 or count % self.flags["stream_interval"] == 0:
                yield event({"content": held} if chat else held, FINISH[flag] if flag and not chat else None)
                held = ""
        if chat:
            yield event({}, FINISH[flag])
        if (asked.get("stream_options") or {}).get("include_usage"):
            yield _event(dict(base, choices=[], usage=self.usage(request, count)))
        yield b"data: [DONE]\n\n"

    def usage(self, request, count: int) -> dict:
        details = {"cached_tokens": request.cached} if self.flags["enable_cache_report"] else None
        return {"prompt_tokens": len(request.ids), "completion_tokens": count, "total_tokens": len(request.ids) + count,
                "prompt_tokens_details": details, "reasoning_tokens": 0}


def _event(content: dict) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
