# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines that NCCL 2.28.9 prints with NCCL_DEBUG=INFO, as far as they prove which settings a rank has read and what they did."""

from __future__ import annotations

import os

from .latency import ALGORITHMS, PROTOCOLS, _choice, allreduce_us, channels, peer_to_peer, threads

# Read as numbers: NCCL's line ends with a dot. Read as text: it does not. Names that are in neither NCCL never looks at here.
NUMBERS = (
    "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_NTHREADS", "NCCL_LL128_NTHREADS", "NCCL_BUFFSIZE",
    "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_CUMEM_ENABLE", "NCCL_CUMEM_HOST_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_IB_DISABLE",
    "NCCL_GRAPH_REGISTER", "NCCL_GRAPH_MIXING_SUPPORT", "NCCL_P2P_PCI_CHUNKSIZE", "NCCL_CROSS_NIC", "NCCL_MIN_P2P_NCHANNELS",
    "NCCL_MAX_P2P_NCHANNELS", "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_SET_THREAD_NAME", "NCCL_P2P_DIRECT_DISABLE",
)
TEXTS = ("NCCL_PROTO", "NCCL_ALGO", "NCCL_LAUNCH_MODE", "NCCL_SOCKET_IFNAME", "NCCL_NET_GDR_LEVEL", "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE")
LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS")
FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
CHUNK_BYTES, BUFFER_BYTES, SLOTS = 131072, 4194304, 8
LL128_THREADS = 640


def subsystems(env: dict):
    """What NCCL_DEBUG_SUBSYS lets through: a predicate on names. Nothing without NCCL_DEBUG=INFO."""
    if env.get("NCCL_DEBUG", "").upper() not in ("INFO", "TRACE"):
        return lambda name: False
    text = env.get("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV").upper()
    listed = text.lstrip("^").split(",")
    return lambda name: (name in listed or "ALL" in listed) != text.startswith("^")


def lines(rank: int, ranks: int, env: dict, coefficients: dict) -> list:
    """What one rank says while it makes its communicator, without prefix; empty with one rank (no communicator)."""
    wants = subsystems(env)
    if ranks < 2 or not any(wants(name) for name in ("INIT", "ENV", "GRAPH", "TUNING")):
        return []
    count = channels(env, coefficients)
    place = f"cudaDev {rank} nvmlDev {rank} busId {rank + 1}000 commId 0x1ab"
    comm = f"ncclCommInitRankConfig comm 0x5eed{rank:04x} rank {rank} nranks {ranks} {place}"
    out = ["NCCL version 2.28.9+cuda13.0"] if rank == 0 else []
    if wants("INIT"):
        out.append(f"{comm} - Init START")
    if wants("ENV"):
        out += [f"{name} set by environment to {as_read(env[name])}." for name in NUMBERS if env.get(name)]
        out += [f"{name} set by environment to {env[name]}" for name in TEXTS if env.get(name)]
        level = env.get("NCCL_P2P_LEVEL", "")
        if level and env.get("NCCL_P2P_DISABLE") != "1":
            out.append(f"NCCL_P2P_LEVEL set by environment to {LEVELS[min(int(level), 4)] if level.isdecimal() else level}")
    if rank == 0 and wants("ENV") and (env.get("NCCL_PROTO") or env.get("NCCL_ALGO")):
        out.append(_enabled(env))
    if rank == 0 and wants("GRAPH"):
        ring = " ".join(map(str, range(ranks)))
        out += [f"Channel {number:02d}/{count:02d} : {ring}" for number in range(count)]
    if rank == 0 and wants("TUNING"):
        out += _thread_table(env, coefficients)
    if wants("INIT"):
        chunk = min(CHUNK_BYTES, (as_read(env.get("NCCL_BUFFSIZE", "")) or BUFFER_BYTES) // SLOTS)
        peer, way = (rank + 1) % ranks, "P2P/CUMEM" if peer_to_peer(env) else "SHM/direct/direct"
        out.append(f"P2P Chunksize set to {chunk}")
        out.append(f"{count} coll channels, {count} collnet channels, 0 nvls channels, {count} p2p channels, 2 p2p channels per peer")
        out.append(f"{comm} - Init COMPLETE")
        out += [f"Channel {number:02d}/0 : {rank}[{rank}] -> {peer}[{peer}] via {way}" for number in range(count)]
    return out


def all_reduces(rank: int, ranks: int, env: dict, sizes_bytes: list, coefficients: dict) -> list:
    """How NCCL does all-reduces of these sizes, one line a call: rank 0 alone says it."""
    out = []
    for size_bytes in sizes_bytes if rank == 0 and ranks > 1 and subsystems(env)("TUNING") else ():
        _unused, algorithm, protocol = allreduce_us(size_bytes, ranks, env, coefficients)
        last = min(channels(env, coefficients), max(1, size_bytes // 8192)) - 1
        out.append(f"AllReduce: {size_bytes} Bytes -> Algo {algorithm.upper()} proto {protocol.upper()} channel{{Lo..Hi}}={{0..{last}}}")
    return out


def as_read(text: str) -> int:
    """strtoll with base 0, what follows is ignored; text is 0."""
    import re  # only a server that logs pays for it

    found = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]+)", text)
    if not found:
        return 0
    digits = found[2].lower()
    octal = re.match(r"0[0-7]*", digits)
    return int(found[1] + (octal[0] if octal and "x" not in digits else digits), 16 if "x" in digits else 8 if octal else 10)


def _enabled(env: dict) -> str:
    protocols, algorithms = _choice(env, "NCCL_PROTO", PROTOCOLS), _choice(env, "NCCL_ALGO", ALGORITHMS)
    head = "     Function | " + "".join(f"{name:>8}  " for name in PROTOCOLS) + " | " + "".join(f"{name:>13}  " for name in ALGORITHMS)
    marks = "".join(f"{int(name in protocols):8d}  " for name in PROTOCOLS) + " | "
    marks += "".join(f"{int(name in algorithms):13d}  " for name in ALGORITHMS)
    return "\n".join(["Enabled NCCL Func/Proto/Algo Matrix:", head, *(f"{function:>13} | {marks}" for function in FUNCTIONS)]) + "\n"


def _thread_table(env: dict, coefficients: dict) -> list:
    count = threads(env, coefficients)
    per_protocol = {"LL": count, "LL128": LL128_THREADS, "Simple": count}
    return [
        "  Algorithm   | " + " | ".join(f"{name:>48}" for name in ALGORITHMS) + " |",
        "  Protocol    | " + " | ".join(f"{protocol:>14}" for _algorithm in ALGORITHMS for protocol in PROTOCOLS) + " |",
        " Max NThreads | " + " | ".join(f"{per_protocol[protocol]:14d}" for _algorithm in ALGORITHMS for protocol in PROTOCOLS) + " |",
    ]


def write(rank: int, found: list, env: dict) -> None:
    """To NCCL_DEBUG_FILE (%h host, %p pid) if set, else to stdout."""
    host, pid = os.uname().nodename, os.getpid()
    data = "".join(f"{host}:{pid}:{pid} [{rank}] NCCL INFO {line}\n" for line in found).encode()
    if not data:
        return
    path = env.get("NCCL_DEBUG_FILE", "").replace("%h", host).replace("%p", str(pid))
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if path else 1
    os.write(target, data)
