# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines that NCCL 2.28.9 prints with NCCL_DEBUG=INFO, as far as they prove which settings a rank has read."""

from __future__ import annotations

import os

from .latency import allreduce_us, channels

# Read as numbers: NCCL's line ends with a dot. Read as text: it does not. Names that are in neither NCCL never looks at.
NUMBERS = (
    "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE",
    "NCCL_LL128_BUFFSIZE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_CUMEM_ENABLE", "NCCL_CUMEM_HOST_ENABLE", "NCCL_NVLS_ENABLE",
    "NCCL_IB_DISABLE", "NCCL_LAUNCH_MODE", "NCCL_GRAPH_REGISTER", "NCCL_GRAPH_MIXING_SUPPORT", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_CROSS_NIC",
    "NCCL_MIN_P2P_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS", "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_SET_THREAD_NAME", "NCCL_P2P_DIRECT_DISABLE",
)
TEXTS = ("NCCL_PROTO", "NCCL_ALGO", "NCCL_P2P_LEVEL", "NCCL_SOCKET_IFNAME", "NCCL_NET_GDR_LEVEL", "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")


def lines(rank: int, ranks: int, env: dict, size_bytes: int, coefficients: dict) -> list:
    """NCCL's INFO lines of one rank without their prefix; empty with one rank (no communicator), or without NCCL_DEBUG=INFO."""
    if ranks < 2 or env.get("NCCL_DEBUG", "").upper() not in ("INFO", "TRACE"):
        return []
    subsystems = env.get("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV").upper()

    def wants(name: str) -> bool:
        listed = subsystems.lstrip("^").split(",")
        return (name in listed or "ALL" in listed) != subsystems.startswith("^")

    out = ["NCCL version 2.28.9+cuda13.0"]
    if wants("ENV"):
        out += [f"{name} set by environment to {env[name]}." for name in NUMBERS if name in env]
        out += [f"{name} set by environment to {env[name]}" for name in TEXTS if name in env]
    if wants("INIT"):
        count = channels(env, coefficients)
        out.append(f"{count} coll channels, {count} collnet channels, 0 nvls channels, {count} p2p channels, 2 p2p channels per peer")
        out.append(f"ncclCommInitRankConfig comm 0x5eed{rank:04x} rank {rank} nranks {ranks} cudaDev {rank} - Init COMPLETE")
    if wants("TUNING") and rank == 0:
        _unused, algorithm, protocol = allreduce_us(size_bytes, ranks, env, coefficients)
        last = channels(env, coefficients) - 1
        out.append(f"AllReduce: {size_bytes} Bytes -> Algo {algorithm.upper()} proto {protocol} channel{{Lo..Hi}}={{0..{last}}}")
    return out


def write(rank: int, found: list, env: dict) -> None:
    """To NCCL_DEBUG_FILE (%h host, %p pid) if set, else to stdout."""
    host, pid = os.uname().nodename, os.getpid()
    data = "".join(f"{host}:{pid}:{pid} [{rank}] NCCL INFO {line}\n" for line in found).encode()
    if not data:
        return
    path = env.get("NCCL_DEBUG_FILE", "").replace("%h", host).replace("%p", str(pid))
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if path else 1
    os.write(target, data)
