# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long one decode step takes on the simulated machine, from the NCCL settings that a worker sees.

step = compute + layers x 2 all-reduces of (batch x hidden x 2 bytes). Pure functions; every coefficient can be set in `lab.json`.
"""

from __future__ import annotations

import os
from types import MappingProxyType

COEFFICIENTS = MappingProxyType({
    "layers": 61,
    "hidden": 7168,  # an all-reduce of one token: 14336 bytes
    "compute_ms": 5.6,  # one decode step without communication, batch 1
    "compute_per_request_ms": 0.05,
    "no_graph_factor": 1.35,  # step time when no captured CUDA graph fits the batch
    "no_overlap_ms": 0.4,  # host time a step that --disable-overlap-schedule lays bare
    "prefill_ms": 5.0,
    "prefill_per_token_ms": 0.012,
    "start_noise": 0.003,  # relative, drawn once a server start
    "token_jitter": 0.004,  # relative, drawn for every step
    # all-reduce, in microseconds
    "launch_us": 10.9,
    "hop_us": {"LL": 1.0, "LL128": 1.3, "Simple": 2.6},
    "bandwidth_share": {"LL": 0.5, "LL128": 0.92, "Simple": 1.0},
    "channel_us": 0.28,  # each channel more has to be started and waited for
    "channel_gb_s": 40.0,
    "bus_gb_s": 80.0,
    "channels": 16,  # what NCCL takes here when nobody says otherwise
    "threads": 512,
    "threads_enough": 256,  # more bring nothing, fewer starve a channel
    "starved_hop": 0.36,  # how much longer a hop takes for each time the threads are too few
    "indirect_hop": 1.15,  # hop through host memory, unless NCCL_P2P_LEVEL lets peers talk across the sockets
    "custom_us": 11.0,  # SGLang's own all-reduce, which takes all messages up to 8 MiB when it is on
    "custom_gb_s": 40.0,
})
CUSTOM_LIMIT_BYTES = 8 * 1024 * 1024
PROTOCOLS = ("LL", "LL128", "Simple")
ALGORITHMS = ("Ring", "Tree")


def _number(env: dict, name: str, default: int) -> int:
    """An environment integer as NCCL reads it: text that is no number counts as not set."""
    try:
        return int(env.get(name, default))
    except ValueError:
        return default


def _choice(env: dict, name: str, known: tuple) -> tuple:
    """NCCL_PROTO and NCCL_ALGO: a comma list, `^` excludes, `allreduce:` may lead; what is left of `known`."""
    text = env.get(name, "").lower().rpartition("allreduce:")[2]
    wanted = {word.strip() for word in text.lstrip("^").split(",")}
    left = tuple(one for one in known if (one.lower() in wanted) != text.startswith("^"))
    return left if text and left else known


def peer_to_peer(env: dict) -> bool:
    """Whether peers talk across the sockets; else their data go through host memory."""
    return env.get("NCCL_P2P_LEVEL", "").upper() in ("SYS", "5") and env.get("NCCL_P2P_DISABLE") != "1"


def channels(env: dict, coefficients: dict = COEFFICIENTS) -> int:
    """Number of channels in use: the default, cut by MAX, raised by MIN."""
    count = coefficients["channels"]
    count = min(count, max(1, _number(env, "NCCL_MAX_NCHANNELS", count)))
    return max(count, min(64, _number(env, "NCCL_MIN_NCHANNELS", 1)))


def threads(env: dict, coefficients: dict = COEFFICIENTS) -> int:
    """Threads of a channel; a value that is no multiple of 32 is ignored, as NCCL does."""
    count = _number(env, "NCCL_NTHREADS", coefficients["threads"])
    return min(512, max(64, count)) if count % 32 == 0 and count > 0 else coefficients["threads"]


def allreduce_us(size_bytes: int, ranks: int, env: dict, coefficients: dict = COEFFICIENTS) -> tuple:
    """(microseconds, algorithm, protocol) of NCCL's fastest allowed way for one all-reduce; (0.0, "", "") for one rank."""
    if ranks < 2:
        return (0.0, "", "")
    c = coefficients
    count = channels(env, c)
    starved = max(1.0, c["threads_enough"] / threads(env, c))
    hop_factor = 1.0 + c["starved_hop"] * (starved - 1.0)
    if not peer_to_peer(env):
        hop_factor *= c["indirect_hop"]
    bytes_per_us = min(c["bus_gb_s"], count * c["channel_gb_s"] / starved) * 1000.0
    hops = {"Ring": 2 * (ranks - 1), "Tree": 2.7 * (ranks - 1).bit_length() + 1.0}
    best = None
    for algorithm in _choice(env, "NCCL_ALGO", ALGORITHMS):
        for protocol in _choice(env, "NCCL_PROTO", PROTOCOLS):
            time_us = (
                c["launch_us"] + c["channel_us"] * count + hops[algorithm] * c["hop_us"][protocol] * hop_factor
                + size_bytes / (bytes_per_us * c["bandwidth_share"][protocol])
            )
            if best is None or time_us < best[0]:
                best = (time_us, algorithm, protocol)
    return best


def step_ms(batch: int, ranks: int, env: dict, flags: dict, coefficients: dict = COEFFICIENTS) -> float:
    """Milliseconds of one decode step of `batch` requests. `flags`: custom_all_reduce, overlap, graph_max_bs (0: no graphs)."""
    c = coefficients
    size_bytes = batch * c["hidden"] * 2
    if flags["custom_all_reduce"] and size_bytes <= CUSTOM_LIMIT_BYTES and ranks > 1:
        reduce_us = c["custom_us"] + size_bytes / (c["custom_gb_s"] * 1000.0)
    else:
        reduce_us = allreduce_us(size_bytes, ranks, env, c)[0]
    compute_ms = c["compute_ms"] + c["compute_per_request_ms"] * (batch - 1)
    if not flags["overlap"]:
        compute_ms += c["no_overlap_ms"]
    time_ms = compute_ms + 2 * c["layers"] * reduce_us / 1000.0
    return time_ms if batch <= flags["graph_max_bs"] else time_ms * c["no_graph_factor"]


def gauss() -> float:
    """A draw from about the standard normal distribution (twelve uniform ones), without the cost of importing `random`."""
    data = os.urandom(24)
    return sum(int.from_bytes(data[i:i + 2], "little") for i in range(0, 24, 2)) / 65536.0 - 6.0
