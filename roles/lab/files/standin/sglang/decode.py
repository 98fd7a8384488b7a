# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rank 0's loop: takes requests, batches them, and sends one token a request and step at the pace that `latency` computes.

In (requests_fd), a line each: `RID PROMPT_TOKENS CACHED_TOKENS MAX_NEW SEED STOP_AT` or `-RID` to forget one.
Out (tokens_fd): a line a step, items `RID:TOKEN:FLAG` (FLAG 0 goes on, 1 length, 2 stop) and `=THROUGHPUT`.
"""

from __future__ import annotations

import contextlib
import os
import select
import time

from .latency import gauss, step_ms

BEHIND_S = 0.05  # further behind than this the schedule starts anew: a burst would be no decode speed


class Decoder:
    """`scheduler`: the loaded rank 0 (its configuration, flags, environment and faults)."""

    def __init__(self, scheduler) -> None:
        self.scheduler = scheduler
        conf, flags = scheduler.conf, scheduler.flags
        self.requests_fd, self.tokens_fd = conf["requests_fd"], conf["tokens_fd"]
        self.c = scheduler.lab["coefficients"]
        self.noise = 1.0 + self.c["start_noise"] * gauss()
        self.step_flags = {
            "custom_all_reduce": not flags["disable_custom_all_reduce"],
            "overlap": not flags["disable_overlap_schedule"],
            "graph_max_bs": flags["graph_max_bs"],
        }
        self.waiting, self.running = [], {}
        self.left = b""
        self.deadline_s = 0.0
        self.steps, self.tokens_since, self.logged_s = 0, 0, time.monotonic()

    def run(self) -> None:
        while True:
            if not self.waiting and not self.running:
                self.receive(None)
                self.deadline_s = time.monotonic()
                continue
            self.prefill() if self.waiting and len(self.running) < self.scheduler.flags["max_running_requests"] else self.decode()

    def receive(self, timeout_s) -> None:
        """Waits at most `timeout_s` (None: as long as it takes) for request lines and takes them in."""
        if not select.select([self.requests_fd], [], [], timeout_s)[0]:
            return
        data = os.read(self.requests_fd, 65536)
        if not data:
            os._exit(0)  # the launcher is gone
        *lines, self.left = (self.left + data).split(b"\n")
        for line in lines:
            if line == b"serve":
                self.send("serve")
            elif line.startswith(b"-"):
                self.running.pop(line[1:].decode(), None)
                self.waiting = [one for one in self.waiting if one["rid"] != line[1:].decode()]
            else:
                rid, prompt, cached, max_new, seed, stop_at = line.decode().split()
                mute = "no_answer" in self.scheduler.faults and rid.startswith("r")
                if not mute:
                    self.waiting.append({"rid": rid, "prompt": int(prompt), "cached": int(cached), "max_new": int(max_new),
                                         "seed": int(seed), "stop_at": int(stop_at), "done": 0})

    def pace(self, time_ms: float) -> None:
        """Sleeps to the next absolute deadline, taking in requests meanwhile."""
        now_s = time.monotonic()
        if now_s - self.deadline_s > BEHIND_S:
            self.deadline_s = now_s
        self.deadline_s += time_ms / 1000.0 * self.noise * (1.0 + self.c["token_jitter"] * gauss())
        while True:
            left_s = self.deadline_s - time.monotonic()
            if left_s <= 0:
                return
            self.receive(left_s)

    def prefill(self) -> None:
        room = self.scheduler.flags["max_running_requests"] - len(self.running)
        new, self.waiting = self.waiting[:room], self.waiting[room:]
        tokens, cached = sum(r["prompt"] - r["cached"] for r in new), sum(r["cached"] for r in new)
        took_ms = self.c["prefill_ms"] + tokens * self.c["prefill_per_token_ms"]
        self.scheduler.log(
            f"Prefill batch, #new-seq: {len(new)}, #new-token: {tokens}, #cached-token: {cached}, token usage: {self.usage():.2f}, "
            f"#running-req: {len(self.running)}, #queue-req: {len(self.waiting)}, #pending-token: 0, cuda graph: True, "
            f"input throughput (token/s): {tokens / took_ms * 1000:.2f}")
        self.pace(took_ms)
        self.emit(new)
        self.running.update((r["rid"], r) for r in new if r["done"] < r["last"])

    def decode(self) -> None:
        batch = list(self.running.values())
        self.pace(step_ms(len(batch), self.scheduler.ranks, self.scheduler.env, self.step_flags, self.c))
        alive = [r for r in batch if r["rid"] in self.running]  # some may have been dropped meanwhile
        self.steps += 1
        self.tokens_since += len(alive)
        item = ""
        if self.steps % self.scheduler.flags["decode_log_interval"] == 0:
            now_s = time.monotonic()
            rate = self.tokens_since / max(1e-6, now_s - self.logged_s)
            self.tokens_since, self.logged_s = 0, now_s
            used = sum(r["prompt"] + r["done"] for r in alive)
            self.scheduler.log(
                f"Decode batch, #running-req: {len(batch)}, #token: {used}, token usage: {self.usage():.2f}, "
                f"cuda graph: {len(batch) <= self.step_flags['graph_max_bs']}, gen throughput (token/s): {rate:.2f}, "
                f"#queue-req: {len(self.waiting)}")
            item = f" ={rate:.2f}"
        self.emit(alive, item)
        for r in alive:
            if r["done"] >= r["last"]:
                self.running.pop(r["rid"], None)

    def usage(self) -> float:
        total = self.scheduler.lab["kv_tokens_per_fraction"] * float(self.scheduler.flags["mem_fraction_static"] or 0.88)
        return sum(r["prompt"] + r["done"] for r in self.running.values()) / total

    def emit(self, requests: list, item: str = "") -> None:
        parts = []
        for r in requests:
            r["last"] = min(r["max_new"], r["stop_at"])
            r["done"] += 1
            token = 0 if "nan" in self.scheduler.faults else 1 + (r["seed"] * 7919 + r["done"] * (r["seed"] % 61 + 3)) % 31999
            flag = 0 if r["done"] < r["last"] else (1 if r["done"] >= r["max_new"] else 2)
            parts.append(f"{r['rid']}:{token}:{flag}")
        self.send(" ".join(parts) + item)

    def send(self, line: str) -> None:
        """To the detokenizer; when that is gone rank 0 does not care, as in SGLang."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.tokens_fd, (line + "\n").encode())
