# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of SGLang 0.5.16: its commonly used flags, with its defaults. Most are accepted and have no effect here.

What has one: tp-size, host, port, api-key, mem-fraction-static (too small: refused), load-format dummy (no shards), disable-radix-cache,
disable-custom-all-reduce, disable-overlap-schedule, disable-cuda-graph, cuda-graph-max-bs-decode, max-running-requests, stream-interval,
decode-log-interval, skip-server-warmup, enable-cache-report, enable-metrics, enable-deterministic-inference, enable-nccl-nvls,
enable-symm-mem, served-model-name.
"""

from __future__ import annotations

import argparse

# option strings, type, default
VALUES = (
    ("--model-path --model", str, None), ("--tokenizer-path", str, None), ("--tokenizer-mode", str, "auto"), ("--host", str, "127.0.0.1"),
    ("--port", int, 30000), ("--tp-size --tensor-parallel-size --tp", int, 1), ("--pp-size --pipeline-parallel-size", int, 1),
    ("--dp-size --data-parallel-size", int, 1), ("--ep-size --expert-parallel-size --ep", int, 1), ("--mem-fraction-static", float, None),
    ("--load-format", str, "auto"), ("--device", str, "cuda"), ("--dtype", str, "auto"), ("--quantization", str, None),
    ("--kv-cache-dtype", str, "auto"), ("--context-length", int, None), ("--max-running-requests", int, None),
    ("--max-total-tokens", int, None), ("--chunked-prefill-size", int, 8192), ("--max-prefill-tokens", int, 16384),
    ("--schedule-policy", str, "fcfs"), ("--schedule-conservativeness", float, 1.0), ("--page-size", int, 1),
    ("--num-continuous-decode-steps", int, 1), ("--stream-interval", int, 1), ("--decode-log-interval", int, 40),
    ("--random-seed", int, None), ("--watchdog-timeout", float, 300), ("--soft-watchdog-timeout", float, None),
    ("--dist-timeout", int, None), ("--dist-init-addr --nccl-init-addr", str, None), ("--nnodes", int, 1), ("--node-rank", int, 0),
    ("--nccl-port", int, None), ("--base-gpu-id", int, 0), ("--gpu-id-step", int, 1), ("--log-level", str, "info"),
    ("--log-level-http", str, None), ("--api-key", str, None), ("--admin-api-key", str, None), ("--served-model-name", str, None),
    ("--chat-template", str, None), ("--reasoning-parser", str, None), ("--tool-call-parser", str, None),
    ("--attention-backend", str, None), ("--decode-attention-backend", str, None), ("--prefill-attention-backend", str, None),
    ("--sampling-backend", str, None),
    ("--grammar-backend", str, None), ("--moe-runner-backend", str, "auto"), ("--moe-a2a-backend", str, "none"),
    ("--flashinfer-allreduce-fusion-backend", str, None), ("--cuda-graph-max-bs-decode --cuda-graph-max-bs", int, None),
    ("--cuda-graph-max-bs-prefill", int, None), ("--cuda-graph-backend-decode", str, None), ("--cuda-graph-backend-prefill", str, None),
    ("--cuda-graph-config", str, None), ("--torch-compile-max-bs", int, 32), ("--speculative-algorithm", str, None),
    ("--speculative-draft-model-path --speculative-draft-model", str, None), ("--speculative-draft-load-format", str, None),
    ("--speculative-num-steps", int, None), ("--speculative-eagle-topk", int, None), ("--speculative-num-draft-tokens", int, None),
    ("--speculative-attention-mode", str, "prefill"), ("--json-model-override-args", str, "{}"), ("--model-loader-extra-config", str, "{}"),
    ("--revision", str, None), ("--download-dir", str, None), ("--crash-dump-folder", str, None), ("--cpu-offload-gb", int, 0),
    ("--numa-node", str, None), ("--radix-eviction-policy", str, "lru"),
)
BARE = (
    "trust-remote-code", "skip-tokenizer-init", "disable-custom-all-reduce", "disable-radix-cache", "disable-cuda-graph",
    "disable-overlap-schedule", "disable-chunked-prefix-cache", "disable-flashinfer-autotune", "disable-shared-experts-fusion",
    "disable-piecewise-cuda-graph", "enable-metrics", "enable-cache-report", "enable-nccl-nvls", "enable-symm-mem", "enable-torch-symm-mem",
    "enable-mscclpp", "enable-torch-compile", "enable-deterministic-inference", "enable-flashinfer-allreduce-fusion", "enable-dp-attention",
    "enable-mixed-chunk", "enable-p2p-check", "enable-memory-saver", "enable-hierarchical-cache", "enable-eplb", "skip-server-warmup",
    "log-requests", "sleep-on-idle", "pre-warm-nccl",
)
DEPRECATED = {
    "--cuda-graph-max-bs": "'--cuda-graph-max-bs-decode'",
    "--disable-cuda-graph": "'--cuda-graph-backend-{decode,prefill}=disabled'",
    "--enable-flashinfer-allreduce-fusion": "'--flashinfer-allreduce-fusion-backend'",
}


def parser() -> argparse.ArgumentParser:
    """The argument parser; like SGLang's it calls itself `sglang serve` and takes unambiguous abbreviations."""
    result = argparse.ArgumentParser(prog="sglang serve")
    for options, kind, default in VALUES:
        result.add_argument(*options.split(), type=kind, default=default, required=options.startswith("--model-path"))
    for name in BARE:
        result.add_argument(f"--{name}", action="store_true")
    return result


def resolve(argv: list) -> tuple:
    """(flags: {argparse name: value}, resolved as the server uses them; deprecation warnings). SystemExit(2) for what argparse refuses."""
    flags = vars(parser().parse_args(argv))
    flags["tokenizer_path"] = flags["tokenizer_path"] or flags["model_path"]
    flags["served_model_name"] = flags["served_model_name"] or flags["model_path"]
    flags["max_running_requests"] = flags["max_running_requests"] or 2048
    if flags["mem_fraction_static"] is None:
        flags["mem_fraction_static"] = 0.88
    if flags["cuda_graph_max_bs_decode"] is None:
        flags["cuda_graph_max_bs_decode"] = 512 if flags["tp_size"] >= 4 else 256
    if flags["random_seed"] is None:
        flags["random_seed"] = 15786812
    if flags["enable_deterministic_inference"]:
        flags["disable_custom_all_reduce"] = True
    off = flags["disable_cuda_graph"] or flags["cuda_graph_backend_decode"] == "disabled"
    flags["graph_max_bs"] = 0 if off else flags["cuda_graph_max_bs_decode"]
    given = {word.partition("=")[0] for word in argv}
    warnings = [f"'{old}' is deprecated and will be removed in a future release. Use {new} instead."
                for old, new in DEPRECATED.items() if old in given]
    return flags, warnings
