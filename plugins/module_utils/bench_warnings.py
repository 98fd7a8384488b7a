# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What makes one doubt a workload's row although nothing failed. Pure.

Flag names: SGLang took `--cuda-graph-max-bs` until 0.5.19 and takes `--cuda-graph-max-bs-decode` from 0.5.20 on.
"""

from __future__ import annotations

import json
import re
from typing import Any

AGREEMENT = 0.02
RENAMED_IN = (0, 5, 20)


def warnings(row: dict[str, Any], facts: dict[str, Any] | None = None, *, flags: dict[str, Any] | None = None) -> list[str]:
    """Sentences, most important first; [] for a row that nothing speaks against.

    facts: server_log's, of which graph_batch_sizes ([int] or None) and sglang (version or None) are used; flags: the server's
    {name: value}. A server whose flags disable graphs for decoding is not warned about them."""
    facts, flags = facts or {}, flags or {}
    graph = [] if graphs_disabled(flags) else [_graph(row, facts)]
    return [text for text in (*graph, _load(row), _agreement(row)) if text]


def graphs_disabled(flags: dict[str, Any]) -> bool:
    """Whether the server was told to decode without graphs (or on a CPU, which has none unless asked for)."""
    backend = flags.get("cuda-graph-backend-decode")
    try:
        config = json.loads(flags.get("cuda-graph-config") or "{}")
        backend = backend or config["decode"]["backend"]
    except (KeyError, TypeError, ValueError):
        pass  # not said there
    return bool(flags.get("disable-cuda-graph")) or backend == "disabled" or flags.get("device") == "cpu"


def _graph(row: dict[str, Any], facts: dict[str, Any]) -> str | None:
    concurrency, sizes = row["concurrency"], facts.get("graph_batch_sizes")
    largest = max(sizes) if sizes else None
    if largest is not None and concurrency > largest:
        cause = f"concurrency {concurrency} is beyond the largest batch with a captured CUDA graph ({largest})"
    elif row.get("graph_replayed") is False:
        cause = f"at concurrency {concurrency} the server decoded without CUDA graph, although it captured batches up to {largest}"
        cause = cause if largest else f"at concurrency {concurrency} the server decoded without CUDA graph"
    elif row.get("graph_replayed") is None and row.get("server_tok_s") is None and row.get("server_running") is not None:
        return f"no line of the server's log shows {concurrency} requests decoding: whether a CUDA graph was replayed is not known"
    else:
        return None
    flag = "cuda-graph-max-bs-decode" if _version(facts.get("sglang")) >= RENAMED_IN else "cuda-graph-max-bs"
    return f"{cause}: slower, and not what production would do. Set tune_flags: {{{flag}: {concurrency}}}, or a lower concurrency."


def _load(row: dict[str, Any]) -> str | None:
    """Requests that waited in the server's queue instead of decoding."""
    concurrency, running, queued = row["concurrency"], row.get("server_running"), row.get("server_queued")
    if running is not None and running < concurrency:
        cause = f"never more than {running} of {concurrency} requests decoded together"
    elif queued:
        cause = f"{queued} requests were waiting while {concurrency} should decode"
    else:
        return None
    return (
        f"{cause}, by the server's log. Set tune_flags: {{max-running-requests: {concurrency}}}, give the KV cache more room "
        "(mem-fraction-static), or set a lower concurrency."
    )


def _agreement(row: dict[str, Any]) -> str | None:
    client, server = row.get("decode_tok_s"), row.get("server_tok_s")
    if not client or not server or abs(client / server - 1) <= AGREEMENT:
        return None
    return (
        f"client and server disagree by {client / server - 1:+.1%} about the decode rate ({client:.1f} and {server:.1f} tok/s; "
        f"{AGREEMENT:.0%} is allowed): the run may be too short (output_len, requests), or other work took the CPU."
    )


def _version(text: str | None) -> tuple[int, ...]:
    """(0, 5, 20) of "0.5.20.post1+cu130"; an unknown version is taken for a new one."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", text or "")
    return tuple(map(int, found.groups())) if found else RENAMED_IN
