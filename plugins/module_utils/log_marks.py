# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What lines of an SGLang log mean that are not fatal: benign ones, marks of the phases, progress bars, facts. Data only.

Wording of SGLang 0.5.9 to 0.5.23, and of Python, torch and NCCL beside it.
"""

from __future__ import annotations

import re

# (regex, whether a traceback right after it is harmless too). Searched before the signatures.
BENIGN = tuple(
    (re.compile(regex), traceback)
    for regex, traceback in (
        (r"Ignore import error when loading ", True),
        (r"\(/v1/responses\) disabled: ", True),
        (r"(?:Syntax|User|Future|Deprecation|Runtime|Resource|Import)Warning: (?!CUDA initialization: )", False),
        (r"Setup Custom allreduce failed with ", True),
        (r"[Cc]ustom ?(?:quick )?[Aa]ll-?[Rr]educe\w* is disabled ", False),
        (r"SymmMemCommunicator: .*communicator is not available", False),
        (r"post-warmup freeze_gc failed", True),
        (r"^Exception ignored (?:in|while)\b", True),
        (r"Error in sitecustomize; set PYTHONVERBOSE for traceback:", False),
        (r"Fail(?:ed)? to set RLIMIT_NOFILE", False),
        (r"watchdog timeout \(.*self\.soft=True", False),
        (r"is deprecated and will be removed", False),
        (r"destroy_process_group\(\) was not called|resource_tracker: There appear to be", False),
    )
)

# What only says how a process goes on. For a stamped line of its own: in the text of an exception it would say nothing.
GOES_ON = re.compile(
    r"\b[Dd]isabl(?:ing|ed)\b|\b(?:[Ff]all|[Rr]oll)(?:s|ing)? ?back\b|[,;] using \w|\b[Uu]sing [\w.-]+(?: \w+)? instead\b"
    r"|\b[Ii]gnor(?:ing|ed)\b|\b[Ss]kipp(?:ing|ed)\b|\b[Ww]ill (?:not )?be used\b"
    r"|\b(?:[Rr]etry|[Dd]efault|[Ss]witch|[Rr]evert|[Cc]ontinu|[Pp]roceed)ing\b|\b[Ii]f you (?:see|get|encounter|hit)\b|\bcan be avoided\b"
)

# How the first line of each phase begins; `spawn` is what comes before them all. Laggards and draft models do not return to one.
# To 0.5.19 server_args is printed as ServerArgs(...), from 0.5.20 as a dictionary; 0.5.21 says "Init parallel". Before 0.5.15
# "Capture cuda graph begin" is decode and "Capture piecewise CUDA graph begin" prefill. From 0.5.20 the KV cache may get its memory only
# after the graphs ("VA upper bound").
PHASE_BEGINS = (
    ("import", r"server_args=(?:ServerArgs\(|\{)"),
    ("distributed", r"Init torch distributed begin|Init parallel begin|sglang is using nccl=="),
    ("weights", r"Load weight begin"),
    ("kv_cache", r"(?:[\w-]+ )*(?:KV|Mamba) Cache (?:is allocated|VA upper bound|skipped)|Memory pool end"),
    ("prefill_graphs", r"Capture (?:[\w-]+ )*(?:prefill|piecewise) (?:\w+ )*graph begin"),
    ("decode_graphs", r"Capture (?:[\w-]+ )*(?:graph|draft extend) begin"),
    ("warm_up", r"Uvicorn running on |Application startup complete"),
    ("ready_line", r"The server is fired up and ready to roll"),
)
PHASES = ("spawn",) + tuple(name for name, regex in PHASE_BEGINS)

# How lines begin in which the log itself says how long a phase took a rank: "... elapsed=3.64 s", earlier "... Time elapsed: 3.64 s".
PHASE_ENDS = (
    ("distributed", r"Init (?:torch distributed|parallel) ends?\b"),
    ("weights", r"Load weight end\b"),
    ("prefill_graphs", r"Capture (?:[\w-]+ )*(?:prefill|piecewise) (?:\w+ )*graph end\b"),
    ("decode_graphs", r"Capture (?:[\w-]+ )*(?:graph|draft extend) end\b"),
)

# Whose progress bar it is, by its label; any other bar counts for the phase the log is in.
BARS = (
    ("weights", r"checkpoint shards|loading shards|^Loading (?:safetensors|pt|np_cache)\b"),
    ("prefill_graphs", r"num[_ ]tokens|prefill shape"),
    ("decode_graphs", r"Capturing batches"),
)

_TIMING = re.compile(r"(\w+)=(\d+(?:\.\d+)?)")


def _batch_sizes(text):
    return [int(size) for size in text.split(",") if size.strip()]


# (name, regex, value of its group that is not None). The last line that says it counts, but for FIRST_WORDS.
FACTS = tuple(
    (name, re.compile(regex), convert)
    for name, regex, convert in (
        ("nccl", r"using nccl==(\d+(?:\.\d+)+)|NCCL version (\d+(?:\.\d+)+)", str),
        ("sglang", r"sglang(?:==| version:? )v?(\d+\.\d+\.\d+[\w.+]*)", str),
        ("tp_size", r"[(,{] ?(?:tp_size=|'tp_size': )(\d+)", int),
        ("model_path", r"(?:ServerArgs\(model_path=|[{,] ?'model_path': )'([^']*)'", str),
        ("max_total_num_tokens", r"\bmax_total_num_tokens=(\d+), ", int),
        ("custom_all_reduce", r"\bdisable_custom_all_reduce(?:=|': )(True|False)", lambda text: text == "False"),
        ("custom_all_reduce", r"(Custom ?[Aa]ll-?[Rr]educe\w* is disabled .*)", str),
        ("custom_all_reduce", r"(Setup Custom allreduce failed .*)", str),
        # To 0.5.12 (on CPUs always) a line of its own; then where the capture begins, in 0.5.23 where it ends. A draft model has its own.
        ("graph_batch_sizes", r"^Capture (?:cuda|cpu|npu|xpu|hip) graph bs \[([\d, ]+)\]", _batch_sizes),
        ("graph_batch_sizes", r"^Capture target (?:decode|verify) \w+ graph (?:begin|end)\..*?\bbs=\[([\d, ]+)\]", _batch_sizes),
        ("startup_timings", r"Engine startup timings \(s\): (.*)", lambda text: {k: float(v) for k, v in _TIMING.findall(text)}),
        ("drained", r"Gracefully exiting\.\.\. Remaining number of requests (0)\.", lambda text: True),
    )
)
FIRST_WORDS = {"graph_batch_sizes"}
