# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings that NCCL reads and that yet cannot change anything here: other settings or the machine leave them no work. Pure.

Facts: NCCL's src/graph/tuning.cc (threads), init.cc (buffers), transport/nvls.cc, paths.cc (levels), transport.cc (order of transports).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .nccl_rules import IMPLEMENTED, SIMPLE_ONLY, Context, protocols_left
from .nccl_server import size
from .nccl_values import enabled, parse_lists

RING_TREE, NVLS = frozenset({"Ring", "Tree"}), frozenset({"NVLS", "NVLSTree"})
LL, LL128, SIMPLE = frozenset({"LL"}), frozenset({"LL128"}), frozenset({"Simple"})


class Acts(NamedTuple):
    """Where a variable acts: with these algorithms and protocols (empty: any), and whether send/recv feels it too."""

    algorithms: frozenset[str] = frozenset()
    protocols: frozenset[str] = frozenset()
    send_recv: bool = False


ACTS = {
    "NCCL_BUFFSIZE": Acts(protocols=SIMPLE, send_recv=True),
    "NCCL_LL_BUFFSIZE": Acts(protocols=LL, send_recv=True),
    "NCCL_LL128_BUFFSIZE": Acts(protocols=LL128),
    "NCCL_NTHREADS": Acts(RING_TREE, LL | SIMPLE),
    "NCCL_LL128_NTHREADS": Acts(RING_TREE, LL128),
    "NCCL_NVLS_ENABLE": Acts(NVLS),
    "NCCL_NVLS_NCHANNELS": Acts(NVLS),
    "NCCL_NVLS_CHUNKSIZE": Acts(NVLS),
    "NCCL_NVLSTREE_MAX_CHUNKSIZE": Acts(frozenset({"NVLSTree"})),
    "NCCL_PAT_ENABLE": Acts(frozenset({"PAT"})),
}
# On one node data go from peer to peer or through shared memory; NCCL_NET_PLUGIN may bring a tuner along.
NETWORK = ("NCCL_IB_", "NCCL_SOCKET_", "NCCL_NSOCKS_", "NCCL_NET", "NCCL_CROSS_NIC", "NCCL_GDR", "NCCL_PXN_", "NCCL_COLLNET_",
           "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_P2P_NET_CHUNKSIZE")
NETWORK_TOO = frozenset({"NCCL_NET_PLUGIN"})


def idle(ctx: Context, names: list[str], in_force: Mapping[str, str]) -> dict[str, str]:
    """{name: why it cannot change anything} for those of NAMES. `in_force`: what they replace."""
    found = {}
    for name in names:
        reason = _without_way(name, ctx) or _without_network(name, ctx) or _on_nvlink(name, ctx, in_force)
        if reason:
            found[name] = f"{name} cannot matter: {reason}"
    return found


def _without_way(name: str, ctx: Context) -> str | None:
    acts = ACTS.get(name)
    if acts is None or (acts.send_recv and _sends(ctx)):
        return None
    ways = _ways(ctx, with_nvls=name == "NCCL_NVLS_ENABLE" or ctx.values.get("NCCL_NVLS_ENABLE") != "0")
    if any((not acts.algorithms or algorithm in acts.algorithms) and (not acts.protocols or protocol in acts.protocols)
           for algorithm, protocol in ways):
        return None
    by = [f"{one}={ctx.values[one]}" for one in ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE") if one in ctx.values and one != name]
    what = " with ".join(" or ".join(sorted(words)) for words in (acts.algorithms, acts.protocols) if words)
    return f"no collective is left that runs {what} ({', '.join(by)})."


def _ways(ctx: Context, *, with_nvls: bool) -> set[tuple[str, str]]:
    """The pairs of algorithm and protocol in which any collective may still run."""
    param = ctx.params["NCCL_ALGO"]
    entries = parse_lists(ctx.values["NCCL_ALGO"], param, ctx.version) if "NCCL_ALGO" in ctx.values else []
    algorithms, protocols = enabled(entries, param["values"], param["values"]), protocols_left(ctx)
    return {
        (algorithm, protocol)
        for function, implemented in IMPLEMENTED.items()
        for algorithm in (algorithms[function] & implemented) - (set() if with_nvls else NVLS)
        for protocol in protocols[function] & ({"Simple"} if algorithm in SIMPLE_ONLY else {"LL", "LL128", "Simple"})
    }


def _sends(ctx: Context) -> bool:
    """Whether the server may use send/recv: pipeline and expert parallelism do. Not known: yes."""
    return ctx.server is None or any((size(ctx.server, key) or 1) > 1 for key in ("pp", "ep"))


def _without_network(name: str, ctx: Context) -> str | None:
    if ctx.server is None or (size(ctx.server, "nnodes") or 1) > 1 or ctx.values.get("NCCL_SHM_DISABLE") == "1":
        return None
    if name in NETWORK_TOO or not name.startswith(NETWORK):
        return None
    return "on one node NCCL's data do not take the network."


def _on_nvlink(name: str, ctx: Context, in_force: Mapping[str, str]) -> str | None:
    if (ctx.server or {}).get("link") != "NVLink" or ctx.values.get("NCCL_P2P_DISABLE") == "1":
        return None
    if "LOC" in (ctx.values.get("NCCL_P2P_LEVEL"), in_force.get("NCCL_P2P_LEVEL")):
        return None
    return {
        "NCCL_P2P_LEVEL": "over NVLink GPUs talk to each other at every level but LOC.",
        "NCCL_SHM_DISABLE": "over NVLink nothing goes through shared memory.",
    }.get(name)
