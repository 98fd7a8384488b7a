# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalogue of fatal signatures, in order of causal depth: the first that counts is the cause. Data only; log_cause judges with it."""

from __future__ import annotations

from . import signatures_gpu, signatures_memory, signatures_nccl, signatures_setup
from .signature_type import signature

_SIGNAL_9 = "look for the OOM killer in the kernel log (dmesg) and in memory.events of the cgroup; else somebody killed it"
_CRASH = "read the lines before it; sglang_environment: {{PYTHONFAULTHANDLER: '1'}} or a core dump names the place"
_BEFORE = "read the lines before it"
_DIED = r"(?:Rank|rank) (?P<rank>\d+) scheduler died during initialization \(exit code: "
_CRASHED = r"Subprocess (?P<role>[a-z]+)(?:_(?P<rank>\d+))? \(pid=\d+\) crashed with exit code "

ENDINGS = (
    signature(
        "scheduler_watchdog",
        r"[Ww]atchdog timeout \(self\.watchdog_timeout=(?P<timeout>[\d.]+)(?!.*self\.soft=True)",
        "a process made no step for {timeout} s and its watchdog ended it",
        "a rank hangs, often in a collective: see which rank's lines end first; a slow first step needs a larger watchdog-timeout in "
        "sglang_flags (or tune_flags)",
        details=((r"(?P<role>\w+) watchdog timeout", " ({role})"),),
        scope="line",
    ),
    # An exception that no entry above names: server_log.py finds the line that ends its traceback.
    signature("exception", r"(?!)", "{error}", "see the traceback in the log"),
    signature("warm_up_failed", r"Initialization failed\. warmup error:", "the server's own warm-up request failed", _BEFORE, scope="line"),
    signature("rank_killed", _DIED + r"-9\)", "rank {rank} was killed by signal 9, reason unproven", _SIGNAL_9, scope="line"),
    signature("subprocess_killed", _CRASHED + r"-9\b", "{role} was killed by signal 9, reason unproven", _SIGNAL_9, scope="line"),
    signature(
        "crash",
        r"^Fatal Python error: (?P<problem>(?!Aborted).+)|^!{3,} (?P<problem2>Segfault) encountered"
        r"|^(?P<problem3>terminate called after throwing .*)",
        "a process crashed: {problem}",
        _CRASH,
        details=((r"what\(\): +(?P<what>.*)", ": {what}"),),
        scope="line",
    ),
    signature("rank_signal", _DIED + r"-(?P<signal>(?!9\b)\d+)\)", "rank {rank} was killed by signal {signal}", _CRASH, scope="line"),
    signature("subprocess_signal", _CRASHED + r"-(?P<signal>(?!9\b)\d+)", "{role} was killed by signal {signal}", _CRASH, scope="line"),
    signature("rank_exit", _DIED + r"(?P<code>\d+)\)", "rank {rank} ended with exit code {code} while starting", _BEFORE, scope="line"),
    signature("subprocess_exit", _CRASHED + r"(?P<code>\d+)", "{role} ended with exit code {code}", _BEFORE, scope="line"),
    signature("aborted", r"^Fatal Python error: Aborted", "a process aborted itself", _CRASH, scope="line"),
    signature("interrupted", r"^KeyboardInterrupt", "the server was interrupted (SIGINT)", "somebody stopped it", scope="error"),
    signature(
        "rank_dead",
        r"Rank (?P<rank>\d+) scheduler is dead\.",
        "rank {rank} ended while starting",
        _BEFORE,
        details=((r"Exit code: (?P<code>-?\d+)", " (exit {code})"),),
        scope="line",
        consequence=True,
    ),
    signature(
        "peer_lost",
        r"Connection (?:closed|reset) by peer|ncclRemoteError|NCCL error.*remote process exited|DistNetworkError|TCPStore|recvValue failed"
        r"|Broken pipe|wait timeout after \d+ms|gloo/transport/\w+/(?:pair|context|\w*buffer)\.cc|DistStoreError",
        "a process lost the connection to another one",
        "another rank ended or hangs: see which rank's lines end first",
        scope="error",
        consequence=True,
    ),
    signature(
        "process_exception",
        r"(?P<role>\w+) hit an exception",
        "{role} hit an exception",
        "see the traceback in the log",
        scope="line",
        consequence=True,
    ),
    signature(
        "child_failed",
        r"Received sigquit from a child process|SIGQUIT received\. .*one child failed",
        "a child process of the server failed without saying why",
        "read the lines before it, and the kernel log",
        scope="line",
        consequence=True,
    ),
)

_KINDS = (signatures_setup, signatures_gpu, signatures_memory, signatures_nccl)
SIGNATURES = (*(entry for kind in _KINDS for entry in kind.SIGNATURES), *ENDINGS)

# Not in a server's log: the caller's proof that the kernel's OOM killer chose a process of this tree.
HOST_OUT_OF_MEMORY = signature(
    "host_out_of_memory",
    r"(?!)",
    "host out of memory: the kernel's OOM killer ended a process of the server",
    "give the host or container more memory, or load with less (fewer loader threads, no page-locked copies)",
)

# id -> (place in the causal order, signature)
BY_ID = {entry.id: (index, entry) for index, entry in enumerate(SIGNATURES)}
