# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the SGLang server does to NCCL settings: which it overwrites, and which all-reduces it takes off NCCL. Pure.

Facts: SGLang's srt/entrypoints/engine.py, server_args.py and srt/distributed (0.5.9 to 0.5.23). A server is a mapping as `check` of
the catalogue takes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .nccl_values import Version, at_least

BYPASSES = {"enable_torch_symm_mem": "torch symmetric memory", "enable_mscclpp": "MSCCL++",
            "enable_flashinfer_allreduce_fusion": "FlashInfer's all-reduce fusion"}
CUSTOM_ALL_REDUCE_SIZES = (None, 2, 4, 6, 8)  # ranks, all on one node; None: not known


def size(server: Mapping[str, Any] | None, key: str) -> int | None:
    """A parallel size of the server; None when it is not given, or not a number (SGLang will say so)."""
    text = str((server or {}).get(key) or "")
    return int(text) if text.isdecimal() else None


class Overwrite(NamedTuple):
    """A value that SGLang puts in place of the user's (`always`), or where nothing is set."""

    name: str
    value: str
    always: bool
    reason: str


def sglang_sets(server: Mapping[str, Any] | None, sglang: Version = None) -> list[Overwrite]:
    """What SGLang itself writes into the environment of its schedulers. Nothing when the server is not known."""
    if server is None:
        return []
    symm = bool(server.get("symm_mem") or server.get("enable_symm_mem"))
    nvls = symm or bool(server.get("enable_nccl_nvls"))
    cumem_flag, nvls_flag = "--enable-symm-mem", "--enable-symm-mem" if symm else "--enable-nccl-nvls"
    found = [
        Overwrite("NCCL_CUMEM_ENABLE", str(int(symm)), symm, cumem_flag),
        Overwrite("NCCL_NVLS_ENABLE", str(int(nvls)), nvls, nvls_flag),
    ]
    if (size(server, "dcp") or 1) > 1 and at_least(sglang, "0.5.15"):
        found.append(Overwrite("NCCL_GRAPH_MIXING_SUPPORT", "0", symm, "--dcp-size above 1"))
    if at_least(sglang, "0.5.20", unknown=False):
        found.append(Overwrite("NCCL_GRAPH_REGISTER", "0", False, "captured graphs"))
    if server.get("enable_deterministic_inference") and (size(server, "tp") or 2) > 1:
        flag = "--enable-deterministic-inference"
        found.append(Overwrite("NCCL_ALGO", "allreduce:tree", True, flag))
        if at_least(sglang, "0.5.18"):
            count = str((server.get("environment") or {}).get("SGLANG_DETERMINISTIC_NCCL_NCHANNELS", "8"))
            flag += "" if sglang else " (SGLang 0.5.18 and newer)"
            found += [Overwrite(name, count, True, flag) for name in ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")]
    return found


def one_gpu(server: Mapping[str, Any] | None) -> str | None:
    """Why no NCCL setting can matter here at all."""
    if size(server, "tp") == 1 and size(server, "pp") in (None, 1):
        return "the server runs on one GPU: no collective crosses a link, so NCCL settings cannot matter. Measure them with tp above 1."
    return None


def custom_all_reduce(server: Mapping[str, Any] | None) -> tuple[str | None, bool]:
    """(what takes the small all-reduces off NCCL, whether that is certain). Symmetric memory through NCCL goes before it."""
    tp, server = size(server, "tp"), server or {}
    link = server.get("link")
    alone = tp in CUSTOM_ALL_REDUCE_SIZES and size(server, "nnodes") in (None, 1)
    on = alone and server.get("custom_all_reduce", True) and not (
        server.get("enable_deterministic_inference") or server.get("symm_mem") or server.get("enable_symm_mem"))
    small = "small messages, those of decode steps, never reach NCCL"
    remedy = "Measure with --disable-custom-all-reduce."
    if on and (link == "NVLink" or (link == "PCIe with P2P" and tp == 2)):
        return f"SGLang's custom all-reduce is on: {small}, and the setting cannot matter there. {remedy}", True
    if on and not link and server.get("custom_all_reduce"):
        return f"SGLang's custom all-reduce is on and the GPUs' link is not known: over NVLink {small}. {remedy}", False
    for key, what in BYPASSES.items():
        if server.get(key) and tp != 1:
            return f"{what} is on: where the platform supports it, small all-reduces do not reach NCCL.", False
    return None, False
