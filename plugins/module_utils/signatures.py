# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What lines of an SGLang log mean: fatal signatures, benign lines, marks of the phases. Data only; server_log.py reads with it.

Wording of SGLang 0.5.9 to 0.5.23, and of torch, NCCL and FlashInfer beside it. A later catalogue grows by entries of these tables.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Signature(NamedTuple):
    """One way to die.

    `regex` is searched in one line without its time stamp; its group `rank` is the rank where the stamp names none. `summary` and
    `advice` are templates of its groups (`path2` stands for `path`) and of {sglang} ("SGLang 0.5.16", or "this SGLang"). `details` are
    (regex, template) searched in the line and the unstamped lines after it: each one found is appended to the summary.
    """

    id: str
    regex: re.Pattern
    summary: str
    advice: str
    details: tuple = ()
    consequence: bool = False  # says only that something died before
    outlives_ready: bool = False  # still the cause when the ready line came after it
    uncaught: bool = False  # often caught and logged: counts only as the exception that ended the scheduler or the log


def _signature(name, regex, summary, advice, details=(), **flags):
    return Signature(name, re.compile(regex), summary, advice, tuple((re.compile(r), text) for r, text in details), **flags)


_MEMORY_ADVICE = "lower --mem-fraction-static or --cuda-graph-max-bs-decode, and look for other processes on the GPUs"
_SIGNAL_9_ADVICE = "look for the OOM killer in the kernel log (dmesg) and in memory.events of the cgroup; else somebody killed it"
_CRASH_ADVICE = "read the lines before it; a core dump or PYTHONFAULTHANDLER=1 names the place"

# In order of causal depth: the first that is found is the cause.
SIGNATURES = (
    _signature(
        "flag_renamed",
        r"error: ambiguous option: (?P<flag>--[\w-]+)\S* could match (?P<options>--.+)",
        "flag {flag} was renamed: {sglang} has {options}",
        "use one of {options}",
    ),
    _signature(
        "flag_unknown",
        r"error: unrecognized arguments: (?P<flag>--?[\w-]+)",
        "{sglang} knows no {flag}",
        "remove {flag}, or find its name in `python -m sglang.launch_server --help` of the target's interpreter",
    ),
    _signature(
        "flag_value",
        r"error: argument (?P<flag>--?[\w-]+)\S*: (?P<problem>(?:invalid|expected|not allowed).*)",
        "flag {flag}: {problem}",
        "give {flag} a value that {sglang} accepts",
    ),
    _signature(
        "port_in_use",
        r"\[Errno 98\] error while attempting to bind on address \('(?P<address>[^']*)', (?P<port>\d+)",
        "port in use: {address}:{port}",
        "end the process that listens there (ss -ltnp), or choose another port",
        outlives_ready=True,
    ),
    _signature(
        "address_in_use",
        r"Errno 98\] Address already in use|EADDRINUSE|The server socket has failed to (?:listen|bind)",
        "port in use",
        "a port of this server (HTTP, or the one its ranks meet at) is taken: end the process that listens there (ss -ltnp)",
        outlives_ready=True,
    ),
    _signature(
        "model_path",
        r"Repo id must be in the form .*?: '(?P<path>[^']*)'|^(?:OSError: )?(?P<path2>\S+) is not a local folder and is not a valid model",
        "model path does not exist: {path}",
        "correct model-path; it is looked up on the target, inside its container",
    ),
    _signature(
        "no_weights",
        r"Cannot find any model weights with `(?P<path>[^`]*)`",
        "no model weights in the model path {path}",
        "finish the download (*.safetensors), or use load-format dummy for a try without weights",
    ),
    _signature(
        "flashinfer_capability",
        r"No supported CUDA architectures found for major versions \[(?P<majors>[^\]]*)\]",
        "FlashInfer has no kernels for this GPU's compute capability (only for major versions {majors})",
        "all-reduce fusion off, or a newer CUDA and FlashInfer",
    ),
    _signature(
        "jit_build",
        r"Ninja build failed",
        "a JIT kernel build failed (ninja)",
        "reinstall the package whose source or compiler is missing, or choose another backend for that kernel",
        details=(
            (r"flashinfer/[^\n]*/cached_ops/(?P<kernel>\w+)", ", FlashInfer {kernel} kernel"),
            (r"missing and no known rule to make it", ": source file missing"),
            (r"nvcc: (?:command )?not found", ": nvcc not found"),
            (r"fatal error: (?P<header>\S+): No such file", ": header {header} missing"),
            (r"Unsupported gpu architecture '(?P<arch>[^']*)'", ": nvcc does not know {arch}"),
        ),
    ),
    _signature(
        "no_kernel_image",
        r"no kernel image is available for execution on the device",
        "a CUDA library has no kernels for this GPU's compute capability",
        "install a build of torch, sgl-kernel or the named package for this GPU and CUDA version",
    ),
    _signature(
        "driver_too_old",
        r"CUDA driver version is insufficient|The NVIDIA driver on your system is too old \(found version (?P<found>\d+)",
        "the NVIDIA driver is too old for this CUDA",
        "upgrade the driver, or install torch built for an older CUDA",
    ),
    _signature(
        "gpu_memory_unbalanced",
        r"The memory capacity is unbalanced",
        "GPU memory is unbalanced: another process holds some of it",
        "find and end what still uses the GPUs (nvidia-smi; a zombie worker of a former server?)",
    ),
    _signature(
        "gpu_out_of_memory",
        r"(?:Error|failed): (?:CUDA|HIP) (?:error: )?out of memory",
        "GPU out of memory",
        _MEMORY_ADVICE,
        details=(
            (r"Tried to allocate (?P<wanted>[\d.]+ \w+)", ": {wanted} wanted"),
            (r"of which (?P<free>[\d.]+ \w+) is free", ", {free} free"),
        ),
    ),
    _signature(
        "static_memory_too_small",
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "no memory is left for the KV cache after the weights",
        "raise --mem-fraction-static, or free the GPUs",
    ),
    _signature(
        "nccl_cumem_host",
        r"ncclCuMemHostEnable|NCCL WARN .*peer access is not supported",
        "NCCL could not map peer or host memory",
        "try NCCL_CUMEM_HOST_ENABLE=0, and check peer-to-peer access between the GPUs",
    ),
    _signature(
        "nccl_timeout",
        r"ProcessGroupNCCL.*(?:caught collective operation timeout|detected by watchdog)",
        "a collective timed out (NCCL watchdog)",
        "a slow load: raise --dist-timeout; else a rank hangs or died: read its lines, and check peer-to-peer access (ACS, IOMMU)",
    ),
    _signature(
        "nccl_error",
        r"(?P<error>nccl(?:UnhandledCuda|System|Internal|InvalidUsage|InvalidArgument|Remote)Error)",
        "NCCL failed: {error}",
        "run with NCCL_DEBUG=INFO and read the first NCCL WARN line",
    ),
    _signature(
        "illegal_memory_access",
        r"an illegal memory access was encountered",
        "a CUDA kernel made an illegal memory access",
        "run with CUDA_LAUNCH_BLOCKING=1 to find the kernel, or turn off the feature under trial",
    ),
    _signature(
        "disk_full",
        r"OSError: \[Errno 28\] No space left on device",
        "a disk is full",
        "free space where the server writes (caches, /dev/shm, temporary directory)",
        uncaught=True,
    ),
    _signature(
        "scheduler_watchdog",
        r"Scheduler watchdog timeout \(self\.watchdog_timeout=(?P<timeout>[\d.]+), self\.soft=False",
        "the scheduler made no step for {timeout} s and its watchdog ended it",
        "a rank hangs, often in a collective: see which rank's lines end first",
    ),
    _signature(
        "missing_module",
        r"^(?:ModuleNotFoundError|ImportError): No module named '?(?P<module>[\w.]+)'?",
        "ModuleNotFoundError: {module}",
        "install the package that holds {module} in the server's environment",
        uncaught=True,
    ),
    # Exceptions that no entry above names: server_log.py finds the line that ends their traceback.
    _signature("scheduler_exception", r"(?!)", "{error}", "see the traceback in the log"),
    _signature("exception", r"(?!)", "{error}", "see the traceback in the log"),
    _signature(
        "warm_up_failed",
        r"Initialization failed\. warmup error:",
        "the server's own warm-up request failed",
        "read the lines before it",
    ),
    _signature(
        "rank_killed",
        r"Rank (?P<rank>\d+) scheduler died during initialization \(exit code: -9\)",
        "rank {rank} was killed by signal 9, reason unproven",
        _SIGNAL_9_ADVICE,
    ),
    _signature(
        "rank_signal",
        r"Rank (?P<rank>\d+) scheduler died during initialization \(exit code: -(?P<signal>\d+)\)",
        "rank {rank} was killed by signal {signal}",
        _CRASH_ADVICE,
    ),
    _signature(
        "rank_exit",
        r"Rank (?P<rank>\d+) scheduler died during initialization \(exit code: (?P<code>\d+)\)",
        "rank {rank} ended with exit code {code} while starting",
        "read the lines before it",
    ),
    _signature(
        "subprocess_killed",
        r"Subprocess (?P<role>[a-z]+)(?:_(?P<rank>\d+))? \(pid=\d+\) crashed with exit code -9\b",
        "{role} was killed by signal 9, reason unproven",
        _SIGNAL_9_ADVICE,
    ),
    _signature(
        "subprocess_signal",
        r"Subprocess (?P<role>[a-z]+)(?:_(?P<rank>\d+))? \(pid=\d+\) crashed with exit code -(?P<signal>\d+)",
        "{role} was killed by signal {signal}",
        _CRASH_ADVICE,
    ),
    _signature(
        "subprocess_exit",
        r"Subprocess (?P<role>[a-z]+)(?:_(?P<rank>\d+))? \(pid=\d+\) crashed with exit code (?P<code>\d+)",
        "{role} ended with exit code {code}",
        "read the lines before it",
    ),
    _signature(
        "process_exception",
        r"(?P<role>Scheduler|DetokenizerManager|TokenizerManager) hit an exception",
        "{role} hit an exception",
        "see the traceback in the log",
        consequence=True,
    ),
    _signature(
        "child_failed",
        r"Received sigquit from a child process|SIGQUIT received\. .*one child failed",
        "a child process of the server failed without saying why",
        "read the lines before it, and the kernel log",
        consequence=True,
    ),
)

# Not in a server's log: the caller's proof that the kernel's OOM killer chose a process of this tree.
HOST_OUT_OF_MEMORY = _signature(
    "host_out_of_memory",
    r"(?!)",
    "host out of memory: the kernel's OOM killer ended a process of the server",
    "give the host or container more memory, or load with less (fewer loader threads, no page-locked copies)",
)

# (regex, whether a traceback right after it is harmless too). Searched before the signatures.
BENIGN = tuple(
    (re.compile(regex), traceback)
    for regex, traceback in (
        (r"Ignore import error when loading ", True),
        (r"\(/v1/responses\) disabled: ", True),
        (r"(?:Syntax|User|Future|Deprecation|Runtime|Resource)Warning: ", False),
        (r"Setup Custom allreduce failed with ", True),
        (r"Custom ?[Aa]ll-?[Rr]educe\w* is disabled ", False),
        (r"post-warmup freeze_gc failed", True),
        (r"^Exception ignored in: ", True),
        (r"Error in sitecustomize; set PYTHONVERBOSE for traceback:", False),
        (r"Fail to set RLIMIT_NOFILE", False),
        (r"Scheduler watchdog timeout \(.*self\.soft=True", False),
        (r"is deprecated and will be removed", False),
    )
)

# How the first line of each phase begins; `spawn` is what comes before them all. Laggards and draft models do not return to one.
# Older wordings: "Capture cuda graph begin" is decode, "Capture piecewise CUDA graph begin" prefill; 0.5.21 says "Init parallel".
PHASE_BEGINS = (
    ("import", r"server_args=ServerArgs\("),
    ("distributed", r"Init torch distributed begin|Init parallel begin|sglang is using nccl=="),
    ("weights", r"Load weight begin"),
    ("kv_cache", r"KV Cache is allocated|Memory pool end"),
    ("prefill_graphs", r"Capture (?:\w+ )*(?:prefill|piecewise) (?:\w+ )*graph begin"),
    ("decode_graphs", r"Capture (?:\w+ )*graph begin"),
    ("warm_up", r"Uvicorn running on |Application startup complete"),
    ("ready_line", r"The server is fired up and ready to roll"),
)
PHASES = ("spawn",) + tuple(name for name, regex in PHASE_BEGINS)

# How lines begin in which the log itself says how long a phase took a rank: "... elapsed=3.64 s", earlier "... Time elapsed: 3.64 s".
PHASE_ENDS = (
    ("distributed", r"Init (?:torch distributed|parallel) ends?\b"),
    ("weights", r"Load weight end\b"),
    ("prefill_graphs", r"Capture (?:\w+ )*(?:prefill|piecewise) (?:\w+ )*graph end\b"),
    ("decode_graphs", r"Capture (?:\w+ )*graph end\b"),
)

# Whose progress bar it is, by its label; any other bar counts for the phase the log is in.
BARS = (
    ("weights", r"checkpoint shards|loading shards"),
    ("prefill_graphs", r"num tokens"),
    ("decode_graphs", r"Capturing batches"),
)

# id -> (place in the causal order, signature)
BY_ID = {signature.id: (index, signature) for index, signature in enumerate(SIGNATURES)}
