# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Is a starting server getting on, and does it answer? Processes, progress and answers decide, never words in a log."""

from __future__ import annotations

import json
import threading
import time

from . import http_client, loadgen, procfs, sockets

# Programs that compile kernels while a server starts: their CPU time is progress. A scheduler's is not, because a
# deadlocked collective spins at 100 %.
COMPILERS = frozenset(
    ("nvcc", "cicc", "ptxas", "fatbinary", "nvlink", "cudafe++", "ninja", "make", "cmake", "cc1plus", "cc1", "gcc", "g++", "c++", "cc",
     "clang", "clang++", "as", "ld", "ld.lld", "collect2", "tileiras", "hipcc", "ptxas-blackwell")
)  # fmt: skip
_MIB = 1 << 20
# How much of each has to come together within WINDOW_S before it counts; what an idle, polling process adds stays far below.
WINDOW_S = 10.0
THRESHOLDS = {"log_bytes": 1, "read_bytes": _MIB, "rss_bytes": _MIB, "gpu_bytes": _MIB, "major_faults": 16, "compiler_cpu_s": 0.1}


# A source that is seen for the first time has made all of its value since the last look: many compilers live shorter than that.
FROM_ZERO = frozenset(("log_bytes", "compiler_cpu_s"))


class Progress:
    """Seconds since the last progress. Pure: fed with samples and the time, it touches nothing."""

    def __init__(self, now):
        self.last = now
        self._highest = {}
        self._pending = dict.fromkeys(THRESHOLDS, 0)
        self._window_end = now + WINDOW_S

    def feed(self, sample, now):
        """SAMPLE is {signal: {source: value}} with the signals of THRESHOLDS; a source is a pid or a device.

        Returns seconds since the last progress. Only growth above a source's former maximum counts.
        """
        if now >= self._window_end:
            self._pending = dict.fromkeys(THRESHOLDS, 0)
            self._window_end = now + WINDOW_S
        for name, values in sample.items():
            for source, value in values.items():
                former = self._highest.get((name, source))
                if former is None and name in FROM_ZERO:
                    former = 0
                if former is not None:
                    self._pending[name] += max(0, value - former)
                self._highest[name, source] = value if former is None else max(former, value)
            if self._pending[name] >= THRESHOLDS[name]:
                self._pending[name] = 0
                self.last = now
        return now - self.last

    def note(self, now):
        """Count something else as progress: a phase that began, an answer."""
        self.last = now


def sample(processes, log_bytes, gpu_bytes=None):
    """What Progress.feed wants, for the server's PROCESSES (procfs.Process)."""
    return {
        "log_bytes": {"log": log_bytes},
        "read_bytes": {process.pid: procfs.bytes_read(process.pid) for process in processes},
        "rss_bytes": {process.pid: process.rss_bytes for process in processes},
        "major_faults": {process.pid: process.major_faults for process in processes},
        "compiler_cpu_s": {process.pid: process.cpu_s for process in processes if process.comm in COMPILERS},
        "gpu_bytes": gpu_bytes or {},
    }


class Prober:
    """Asks a server whether it answers, without ever making the caller wait.

    A probe that hangs does not hide a server that woke up meanwhile: another is sent every second, eight at the most.
    """

    INTERVAL_S = 1.0
    MOST = 8

    def __init__(self, base_url, *, api_key=None, timeout_s=60.0):
        self.base_url, self.api_key, self.timeout_s = base_url, api_key, timeout_s
        self.answer = None  # {completion, server_info} of the first probe that went all the way
        self.last_problem = "not asked yet"
        self._next = 0.0
        self._pending = 0
        self._lock = threading.Lock()

    def poll(self):
        """Send a probe when one is due; the answer, or None so far."""
        due = time.monotonic()
        with self._lock:
            if self.answer is None and due >= self._next and self._pending < self.MOST:
                self._pending += 1
                if self._pending > 1:  # the one before got no answer, not even a refusal
                    self.last_problem = "it takes requests and does not answer them"
                self._next = due + self.INTERVAL_S
                threading.Thread(target=self._probe, daemon=True).start()
        return self.answer

    def _probe(self):
        try:
            answer = ask(self.base_url, api_key=self.api_key, timeout_s=self.timeout_s)
            with self._lock:
                self.answer = self.answer or answer
        except (OSError, ValueError, http_client.HttpError) as error:
            self.last_problem = str(error)
            with self._lock:
                self._next = min(self._next, time.monotonic() + 0.25)  # it refused at once: ask again soon
        finally:
            with self._lock:
                self._pending -= 1


def ask(base_url, *, api_key=None, timeout_s):
    """One whole readiness check. Returns {completion, server_info}; raises OSError, ValueError or HttpError saying what failed."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    status, _body = http_client.request("GET", f"{base_url}/health_generate", headers=headers, timeout_s=timeout_s)
    if status != 200:
        raise ValueError(f"/health_generate answers {status}")
    completion = loadgen.complete(base_url, api_key=api_key, timeout_s=timeout_s)
    for path in ("/server_info", "/get_server_info"):
        status, body = http_client.request("GET", base_url + path, headers=headers, timeout_s=timeout_s)
        if status == 200:
            info = json.loads(body)
            if not isinstance(info, dict):
                raise ValueError(f"{path} answers no object")
            return {"completion": completion, "server_info": info}
    raise ValueError(f"/server_info answers {status}")


def whose_port(port, processes, host="127.0.0.1"):
    """'free', 'ours' or 'foreign': who answers on HOST:PORT."""
    if not sockets.is_open(port, host):  # others may listen on other addresses: that hinders nobody
        return "free"
    return "ours" if sockets.holders(port, [process.pid for process in processes]) else "foreign"
