# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fatal signatures of NCCL. Data only, in order of causal depth.

Wording of NCCL 2.27 to 2.32, torch 2.8 to 2.14 and SGLang's own wrapper.
"""

from __future__ import annotations

from .signature_type import signature

_FLAGS = "sglang_flags (or tune_flags)"

SIGNATURES = (
    signature(
        "nccl_no_algorithm",
        r"no algorithm/protocol available",
        "NCCL has no algorithm",
        "nccl_algo and nccl_proto leave it none: widen them (nccl_algo: ring,tree;allreduce:tree), or null for NCCL's own choice",
        details=(
            (r"for function (?P<function>\w+)", " for {function}"),
            (r"NCCL_ALGO was set to (?P<algo>[^\s.]+)", " (NCCL_ALGO={algo})"),
        ),
        scope="nccl",
    ),
    signature(
        "nccl_peer_access",
        r"ncclCuMemHostEnable|NCCL WARN .*peer access is not supported",
        "NCCL could not map peer or host memory",
        "nccl_extra: {{NCCL_CUMEM_HOST_ENABLE: '0'}}, then nccl_p2p_disable: true; and check peer-to-peer access between the GPUs "
        "(ACS, IOMMU)",
        scope="nccl",
    ),
    signature(
        "nccl_timeout",
        r"ProcessGroupNCCL.*(?:caught collective operation timeout|detected by watchdog|watchdog got stuck|watchdog hang)"
        r"|Watchdog caught collective operation timeout",
        "a collective timed out (NCCL watchdog)",
        f"a slow load: {_FLAGS}: {{{{dist-timeout: ...}}}} (--dist-timeout, in seconds) higher; else a rank hangs or died: read its "
        "lines, and check peer-to-peer access (ACS, IOMMU; nccl_p2p_disable: true as a try)",
        details=(
            (r"WorkNCCL\(SeqNum=\d+, OpType=(?P<op>\w+)", " in {op}"),
            (r"ran for (?P<ms>\d+) milliseconds", " after {ms} ms"),
            (r"got stuck for (?P<seconds>\d+) seconds", ", stuck for {seconds} s"),
        ),
        scope="line",
    ),
    signature(
        "nccl_duplicate_gpu",
        r"Duplicate GPU detected\W+(?P<ranks>rank \d+ and rank \d+) both on (?:CUDA )?device (?P<device>\w+)",
        "two ranks use one GPU: {ranks} both have device {device}",
        f"give each its own: CUDA_VISIBLE_DEVICES in sglang_environment names enough different GPUs; base-gpu-id and tp-size in {_FLAGS}",
        scope="nccl",
    ),
    signature(
        "nccl_invalid_usage",
        r"ncclInvalid(?P<kind>Usage|Argument)|NCCL error.*\binvalid (?P<kind2>usage|argument)",
        "NCCL refused a setting or a call (invalid {kind})",
        "look at the nccl_* variables under trial (nccl_algo, nccl_proto, nccl_extra); nccl_debug: WARN names the setting",
    ),
    signature(
        "nccl_cuda_error",
        r"ncclUnhandledCudaError|NCCL error.*unhandled cuda error",
        "NCCL failed: unhandled CUDA error",
        "nccl_debug: INFO and read the first NCCL WARN line; often memory (mem-fraction-static lower), peer-to-peer access "
        "(nccl_p2p_disable: true) or the driver",
    ),
    signature(
        "nccl_system_error",
        r"ncclSystemError|NCCL error.*unhandled system error",
        "NCCL failed: system error (a socket, shared memory or a limit)",
        "nccl_debug: INFO and read the first NCCL WARN line; often nccl_socket_ifname, /dev/shm, nccl_ib_disable or the memlock limit",
    ),
    signature(
        "nccl_error",
        r"NCCL error(?: in)?: (?:\S+:\d+, )?(?!remote process exited)(?P<error>[a-z][\w ]+)|nccl(?P<error2>Internal)Error",
        "NCCL failed: {error}",
        "nccl_debug: INFO and read the first NCCL WARN line",
        scope="error",
    ),
)
