# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fatal signatures of memory: of the GPUs, the host, and what the ranks share. Data only, in order of causal depth.

Wording of SGLang 0.5.9 to 0.5.23, torch 2.8 to 2.14 (CUDA and HIP), NCCL 2.27 to 2.32 and the CUDA runtime.
"""

from __future__ import annotations

from .signature_type import signature

_FLAGS = "sglang_flags (or tune_flags)"
_OTHERS = "look for other processes on the GPUs (nvidia-smi)"
_LESS_STATIC = f"{_FLAGS}: {{{{mem-fraction-static: ...}}}} (--mem-fraction-static) lower"
_GRAPHS = "cuda-graph-max-bs-decode (cuda-graph-max-bs before 0.5.15)"
_SHARED_MEMORY = (
    "enlarge /dev/shm of the container (Docker --shm-size, LXC a tmpfs mount entry with size=) and remove stale files from it; "
    "nccl_shm_disable: true does without, slowly"
)
_NO_CACHE_MEMORY = (
    r"Not enough memory\. Please try to increase --mem-fraction-static|Loaded weights leave no GPU memory for the KV cache"
    r"|cannot fit ONE worst-case request|leaves no room for the full KV pool|Not enough GPU memory for hybrid"
    r"|state cache is too small to serve|max_running_requests? is zero|max_running_requests > 0"
)
_OUT_OF_MEMORY = (
    r"OutOfMemoryError: |\b(?i:cuda(?!host)\w*|hip|curesult|triton error)\b[^.'\"]{0,30}\bout of memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|cudaErrorMemoryAllocation|hipErrorOutOfMemory"
    r"|C[UO]BLAS_STATUS_ALLOC_FAILED|HSA_STATUS_ERROR_OUT_OF_RESOURCES"
)

SIGNATURES = (
    signature(
        "symmetric_memory_allocation",
        r"ERROR: NCCL symmetric memory (?:allocation|registration) failed",
        "NCCL could not allocate symmetric memory",
        f"{_LESS_STATIC}, or set enable-symm-mem to null",
        scope="line",
    ),
    signature(
        "gpu_memory_unbalanced",
        r"The memory capacity is unbalanced",
        "GPU memory is unbalanced: another process holds some of it",
        "find and end what still uses the GPUs (nvidia-smi; a zombie worker of a former server?)",
        details=(
            (r"(?:min_per_gpu_memory|pre_model_load_memory)=(?P<least>[\d.]+)", "; least free {least} GB"),
            (r"\blocal_gpu_memory=(?P<free>[\d.]+)", ", here {free} GB"),
        ),
    ),
    signature(
        "static_memory_too_small",
        _NO_CACHE_MEMORY,
        "no memory is left for the KV cache after the weights",
        f"{_FLAGS}: {{{{mem-fraction-static: ...}}}} higher, max-running-requests or context-length lower; or {_OTHERS}",
        details=(
            (r"mem[_-]fraction[_-]static=(?P<now>[\d.]+\d)", " (mem-fraction-static {now})"),
            (r"Raise --mem-fraction-static above (?P<least>[\d.]+\d)", ", more than {least} is needed"),
        ),
    ),
    signature(
        "kv_cache_full",
        r"(?P<what>Prefill|Decode|alloc_req_slots) (?:runs )?out of memory\.",
        "the KV cache ran full ({what})",
        f"{_FLAGS}: {{{{max-running-requests: ...}}}} lower, or mem-fraction-static higher",
    ),
    signature(
        "nccl_gpu_memory",
        r"NCCL WARN .*(?:Cuda|HIP|CUDA) failure.*out of memory",
        "GPU out of memory inside NCCL",
        f"{_LESS_STATIC}; nccl_channels and nccl_buffsize decide how much NCCL takes",
        scope="nccl",
    ),
    signature(
        "gpu_out_of_memory",
        _OUT_OF_MEMORY,
        "GPU out of memory",
        f"{_LESS_STATIC}, or {_GRAPHS} or max-running-requests lower; {_OTHERS}",
        details=(
            (r"Tried to allocate (?P<wanted>[\d.]+ \w+)", ": {wanted} wanted"),
            (r"of which (?P<free>[\d.]+ \w+) is free", ", {free} free"),
        ),
        advice_in=(
            (
                ("import", "distributed", "weights"),
                f"the weights do not fit: {_OTHERS}; {_FLAGS}: {{{{tp-size: ...}}}} higher, or a quantised sglang_model_path "
                "(--mem-fraction-static does not help here)",
            ),
            (
                ("prefill_graphs", "decode_graphs"),
                f"{_LESS_STATIC}, or {_GRAPHS} and cuda-graph-max-bs-prefill lower; {_OTHERS}",
            ),
            (
                ("warm_up", "ready_line"),
                f"{_LESS_STATIC}, or max-running-requests or chunked-prefill-size lower; {_OTHERS}",
            ),
        ),
    ),
    signature(
        "host_memory_refused",
        r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)|std::bad_alloc|^MemoryError\b"
        r"|\[Errno 12\] Cannot allocate memory",
        "host out of memory: an allocation was refused",
        "give the host or container more memory, or load with less (fewer loader threads, no hierarchical cache)",
    ),
    signature(
        "shared_memory",
        r"unable to (?:open|mmap|write|allocate) shared memory|unable to write to file </torch_|insufficient shared memory"
        r"|Fatal Python error: Bus error"
        r"|signal 7 \(Bus error|\(exit code: -7\)|crashed with exit code -7\b|No space left on device: '/dev/shm",
        "shared memory is too small (/dev/shm)",
        _SHARED_MEMORY,
    ),
    signature(
        "nccl_shared_memory",
        r"NCCL WARN .*(?:while creating shared memory segment|failed to extend /dev/shm|posix_fallocate failed)",
        "NCCL's shared memory does not fit: /dev/shm is too small",
        _SHARED_MEMORY,
        details=((r"\(size (?P<size>\d+)\)", ", {size} bytes wanted"),),
        scope="nccl",
    ),
)
