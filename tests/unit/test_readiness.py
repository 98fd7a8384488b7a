# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Loading or hung, from samples; and the prober against servers that hang, refuse and wake up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import procfs, readiness, sockets

STALL_S = 600
GIB = 1 << 30
IDLE = {"log_bytes": {"log": 4096}, "read_bytes": {1: GIB}, "rss_bytes": {1: GIB}, "gpu_bytes": {"gpu": GIB}, "major_faults": {1: 900}}


def silence(samples, *, every_s=1.0, for_s=STALL_S):
    """Seconds without progress after FOR_S of samples(second), and the longest in between."""
    progress, now, longest = readiness.Progress(0.0), 0.0, 0.0
    while now < for_s:
        now += every_s
        longest = max(longest, progress.feed(samples(now), now))
    return progress.feed(samples(now), now), longest


def growing(name, source, rate):
    return lambda now: {**IDLE, name: {source: IDLE.get(name, {}).get(source, 0) + int(rate * now)}}


def flapping(now):
    """Memory that goes up and down between the same two values, as a garbage collector does."""
    return {**IDLE, "rss_bytes": {1: GIB + (64 << 20) * (int(now) % 2)}}


def short_compilers(now):
    """A new ptxas every second, gone before it is seen twice."""
    return {**IDLE, "compiler_cpu_s": {1000 + int(now): 0.15}}


HUNG = {
    "idle": lambda now: IDLE,
    "a deadlocked all-reduce spins: CPU of schedulers is no signal": lambda now: {**IDLE, "compiler_cpu_s": {}},
    "a launcher that polls files of /proc": growing("read_bytes", 1, 5_000),
    "a page now and then": growing("rss_bytes", 1, 4096),
    "a compiler that waits": growing("compiler_cpu_s", 7, 0.001),
    "memory that comes and goes": flapping,
}
LOADING = {
    "log": growing("log_bytes", "log", 1),
    "weights over a slow network": growing("read_bytes", 1, 300_000),
    "weights mapped into memory": growing("major_faults", 1, 20),
    "memory of the host": growing("rss_bytes", 1, 1 << 20),
    "memory of a GPU": growing("gpu_bytes", "gpu", 1 << 20),
    "a compiler at 100 %": lambda now: {**IDLE, "compiler_cpu_s": {7: now}},
    "many short compilers": short_compilers,
}


@pytest.mark.parametrize("case", HUNG)
def test_hung(case):
    assert silence(HUNG[case])[0] >= STALL_S - 2


@pytest.mark.parametrize("case", LOADING)
def test_loading(case):
    assert silence(LOADING[case])[1] < 30


def test_a_shard_every_four_minutes_for_seventy_minutes_is_loading():
    line = len("\rLoading safetensors checkpoint shards:  19% Completed | 12/64 [02:10<09:30, 10.97s/it]")
    _left, longest = silence(lambda now: {**IDLE, "log_bytes": {"log": 4096 + line * int(now // 240)}}, for_s=4200)
    assert 230 < longest <= 240 < STALL_S


def test_what_was_there_at_first_is_no_progress_but_the_first_line_of_the_log_is():
    progress = readiness.Progress(0.0)
    assert progress.feed({**IDLE, "log_bytes": {"log": 0}}, 5.0) == 5.0
    assert progress.feed({**IDLE, "log_bytes": {"log": 1}}, 6.0) == 0.0


def test_a_phase_counts():
    progress = readiness.Progress(0.0)
    progress.feed(IDLE, 90.0)
    progress.note(100.0)
    assert progress.feed(IDLE, 130.0) == 30.0


def test_compilers_are_told_by_their_name():
    def process(pid, comm):
        return procfs.Process(pid, comm, "R", 1, 1, 3, 9.0, 1, 77)

    found = readiness.sample([process(1, "python"), process(2, "ptxas"), process(3, "sglang::schedul"), process(4, "cicc")], 10)
    assert found["compiler_cpu_s"] == {2: 9.0, 4: 9.0}
    assert (found["log_bytes"], found["rss_bytes"][3], found["major_faults"][1]) == ({"log": 10}, 77, 3)


# Real processes that load a file of 48 MiB in half-second steps. tmpfs stands for file systems without block devices (NFS, ZFS): the
# kernel counts no block read there, only what the process asked for.
READERS = {
    "read from a file system without a block device": ("/dev/shm", """
with open(path, "rb", buffering=0) as file:
    buffer = bytearray(2 << 20)
    while file.readinto(buffer):
        time.sleep(0.5)
"""),
    "mapped, from the page cache": (None, """
import mmap
with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as area:
    for start in range(0, len(area), 2 << 20):
        sum(area[start : start + (2 << 20) : 4096])
        time.sleep(0.5)
"""),
    "mapped, from the disk, and let go again": (None, """
import mmap
with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as area:
    area.madvise(mmap.MADV_RANDOM)
    for start in range(0, len(area), 2 << 20):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        sum(area[start : start + (2 << 20) : 4096])
        area.madvise(mmap.MADV_DONTNEED)
        time.sleep(0.5)
"""),
}  # fmt: skip


@pytest.mark.parametrize("case", READERS)
def test_a_real_load_is_progress(case, tmp_path):
    directory, script = READERS[case]
    with tempfile.NamedTemporaryFile(dir=directory or tmp_path) as file:
        file.write(os.urandom(1 << 20) * 48)
        file.flush()
        os.fsync(file.fileno())
        program = f"import os, sys, time\npath = sys.argv[1]\ntime.sleep(1)\n{script}"
        with subprocess.Popen([sys.executable, "-S", "-c", program, file.name]) as child:
            time.sleep(0.7)  # its start is no load
            begun = time.monotonic()
            progress, moments = readiness.Progress(begun), set()
            while time.monotonic() < begun + 6:
                now = time.monotonic()
                progress.feed(readiness.sample([procfs.read(child.pid)], 0), now)
                moments.add(progress.last)
                time.sleep(0.25)
            child.kill()
    assert len(moments) > 4, "it went on for 6 s, and that was hardly seen"


# --- the prober -----------------------------------------------------------------------------------------------------


class FakeServer:
    """A server whose answers follow SCRIPT(seconds since start): "hang", "refuse" (503) or "answer"."""

    def __init__(self, script):
        outer, begun = self, time.monotonic()
        self.awake = None
        self.requests = 0
        self.end = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.requests += 1
                word = script(time.monotonic() - begun)
                if word == "hang":
                    outer.end.wait(60)
                    return
                self.reply(503 if word == "refuse" else 200)

            do_GET = do_POST = answer

            def reply(self, status):
                meta = {"prompt_tokens": 3, "completion_tokens": 1, "finish_reason": {"type": "length"}}
                body = json.dumps({"text": "x", "meta_info": meta, "model_path": "/models/m"}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                if status == 200 and outer.awake is None:
                    outer.awake = time.monotonic()

            def log_message(self, *_arguments):
                """Nothing on the test's output."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.end.set()
        self.http.shutdown()
        self.http.server_close()


def wait(prober, seconds):
    """The prober's answer within SECONDS; poll never takes long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.monotonic()
        answer = prober.poll()
        assert time.monotonic() - begun < 0.2
        if answer:
            return answer
        time.sleep(0.05)
    return None


def test_answer_at_once():
    with FakeServer(lambda _now: "answer") as server:
        answer = wait(readiness.Prober(server.url), 3)
        assert answer["server_info"]["model_path"] == "/models/m"


def test_first_probes_that_hang_do_not_hide_a_server_that_woke_up():
    with FakeServer(lambda now: "hang" if now < 2.5 else "answer") as server:
        begun = time.monotonic()
        assert wait(readiness.Prober(server.url), 8) is not None
        assert time.monotonic() - begun < 2.5 + 2.0


def test_a_server_that_refuses_is_asked_often():
    with FakeServer(lambda now: "refuse" if now < 1.5 else "answer") as server:
        prober = readiness.Prober(server.url)
        begun = time.monotonic()
        assert wait(prober, 8) is not None
        assert time.monotonic() - begun < 1.5 + 0.8


def test_one_that_never_answers_is_not_flooded():
    with FakeServer(lambda _now: "hang") as server:
        prober = readiness.Prober(server.url, timeout_s=60)
        assert wait(prober, 3.5) is None
        assert 3 <= server.requests <= 5


def test_a_closed_port_and_a_server_of_another_kind_are_named():
    prober = readiness.Prober(f"http://127.0.0.1:{sockets.free_port()}")
    assert wait(prober, 0.6) is None
    assert "refused" in prober.last_problem.lower()
    with FakeServer(lambda _now: "refuse") as server:
        prober = readiness.Prober(server.url)
        assert wait(prober, 0.6) is None
        assert "503" in prober.last_problem
