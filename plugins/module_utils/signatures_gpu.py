# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fatal signatures of GPUs, memory and NCCL. Data only, in order of causal depth.

Wording of SGLang 0.5.9 to 0.5.23, FlashInfer, torch 2.8 to 2.14 (CUDA and HIP), NCCL 2.27 to 2.32 and the CUDA runtime.
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
    r"OutOfMemoryError: |(?:CUDA|HIP) (?:error: )?out of memory|cudaErrorMemoryAllocation|hipErrorOutOfMemory"
    r"|C[UO]BLAS_STATUS_ALLOC_FAILED|HSA_STATUS_ERROR_OUT_OF_RESOURCES"
)
_SYMMETRIC_MEMORY = (
    r"SymmetricMemory (?:does not|is not|requires)|[Ss]ymmetric memory (?:is not|requires|registration failed)"
    r"|symm_mem\S* .{0,60}(?:not supported|unsupported)|PYTORCH_C10_DRIVER_API_SUPPORTED"
)
_DRIVER = (
    r"CUDA driver version is insufficient|The NVIDIA driver on your system is too old"
    r"|unsupported display driver / cuda driver combination|forward compatibility was attempted on non supported HW"
    r"|PTX was compiled with an unsupported toolchain|cudaErrorInsufficientDriver"
)
_NO_GPU = (
    r"No CUDA GPUs are available|no CUDA-capable device is detected|Found no NVIDIA driver on your system"
    r"|Torch not compiled with CUDA enabled|No (?:supported )?accelerator \(.*available|hipErrorNoDevice"
)
_HARDWARE = (
    r"(?:CUDA|HIP) error: (?P<error>.*(?:hardware error|uncorrectable|ECC error|fallen off the bus|GPU is lost).*)"
    r"|(?P<error2>GPU (?:is lost|has fallen off the bus).*)|Xid \(\S+\): (?P<error3>\d+.*)"
)
_ILLEGAL = (
    r"an illegal memory access was encountered|illegal instruction was encountered|misaligned address|unspecified launch failure"
    r"|device-side assert triggered|Memory access fault by GPU"
)
_JIT = (
    r"Ninja build failed|CalledProcessError: Command '\['ninja'|Error building extension '"
    r"|NVCC compilation failed|nvcc fatal +:|ptxas fatal +:"
    r"|CUDA_HOME environment variable is not set|Could not find nvcc|Failed to compile .*kernel|CompilationError"
)

SIGNATURES = (
    signature(
        "flashinfer_capability",
        r"No supported CUDA architectures found for major versions \[(?P<majors>[^\]]*)\]"
        r"|FlashInfer requires (?:GPUs with )?(?P<majors2>sm\d+)|(?P<majors3>TllmGenFmhaRunner).*Unsupported arch",
        "FlashInfer has no kernels for this GPU's compute capability (only for {majors})",
        "all-reduce fusion off, or a newer CUDA and FlashInfer "
        f"({_FLAGS}: {{{{enable-flashinfer-allreduce-fusion: null, flashinfer-allreduce-fusion-backend: null, "
        "attention-backend: triton}})",
    ),
    signature(
        "jit_build",
        _JIT,
        "a JIT kernel build failed",
        "reinstall the package whose source or compiler is missing in the environment of sglang_python, or choose another backend for "
        f"that kernel in {_FLAGS}",
        details=(
            (r"\b[Nn]inja\b", " (ninja)"),
            (r"flashinfer/[^\n]*/cached_ops/(?P<kernel>\w+)", ", FlashInfer {kernel} kernel"),
            (r"missing and no known rule to make it", ": source file missing"),
            (r"(?:nvcc: (?:command )?not found|Could not find nvcc|CUDA_HOME environment variable is not set)", ": nvcc not found"),
            (r"fatal error: (?P<header>\S+): No such file", ": header {header} missing"),
            (r"Unsupported gpu architecture '(?P<arch>[^']*)'", ": nvcc does not know {arch}"),
            (r"Killed signal|\bKilled\b", ": a compiler was killed"),
        ),
    ),
    signature(
        "driver_too_old",
        _DRIVER,
        "the NVIDIA driver is too old for this CUDA",
        "upgrade the driver (on the Proxmox host too), or point sglang_python to a torch built for an older CUDA",
        details=((r"found version (?P<found>\d+)", " (driver's CUDA {found})"),),
    ),
    signature(
        "no_gpu",
        _NO_GPU,
        "the server sees no GPU",
        "look at nvidia-smi in the container and its device nodes; CUDA_VISIBLE_DEVICES in sglang_environment; a CUDA build of torch in "
        "the environment of sglang_python",
    ),
    signature(
        "gpu_count",
        r"invalid device ordinal",
        "the server asks for more GPUs than it sees",
        f"{_FLAGS}: {{{{tp-size: ...}}}} at most the number of GPUs; CUDA_VISIBLE_DEVICES in sglang_environment",
    ),
    signature(
        "no_kernel_image",
        r"no kernel image is available for execution on the device",
        "a CUDA library has no kernels for this GPU's compute capability",
        "install a build of torch, sgl-kernel or the named package for this GPU and CUDA version in the environment of sglang_python",
    ),
    signature(
        "symmetric_memory",
        _SYMMETRIC_MEMORY,
        "symmetric memory is not supported on this GPU or driver",
        f"in {_FLAGS} set enable-symm-mem, enable-torch-symm-mem and enable-nccl-nvls to null",
    ),
    signature(
        "symmetric_memory_table",
        r"^KeyError: (?P<capability>\d+)$",
        "symmetric memory is not supported on this GPU: SGLang's table has no entry for {capability}",
        f"in {_FLAGS} set enable-torch-symm-mem to null",
        scope="error",
        frame=r"symm_mem|all_reduce_utils",
    ),
    signature(
        "symmetric_memory_allocation",
        r"ERROR: NCCL symmetric memory (?:allocation|registration) failed",
        "NCCL could not allocate symmetric memory",
        f"{_LESS_STATIC}, or set enable-symm-mem to null",
        scope="line",
    ),
    signature(
        "custom_all_reduce",
        r"custom_all_reduce\S*:\d+ '(?P<problem>[^']*)'",
        "custom all-reduce failed: {problem}",
        f"{_FLAGS}: {{{{disable-custom-all-reduce: true}}}}",
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
        r"unable to (?:open|mmap|write|allocate) shared memory|insufficient shared memory|Fatal Python error: Bus error"
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
        "gpu_hardware",
        _HARDWARE,
        "a GPU failed: {error}",
        "look for Xid lines in the kernel log and for ECC errors (nvidia-smi -q), reset or drain the GPU",
    ),
    signature(
        "illegal_memory_access",
        _ILLEGAL,
        "a GPU kernel failed: illegal memory access, or an assertion in it",
        "sglang_environment: {{CUDA_LAUNCH_BLOCKING: '1'}} names the kernel; or turn off the feature under trial",
        details=((r"CUDA error: (?P<error>[^\n]*)", " ({error})"),),
    ),
    signature(
        "not_a_number",
        r"NaN in the logits|contains either `inf`, `nan`|NaN happened",
        "the model computes NaN",
        "turn off the feature under trial (kernels, quantisation, nccl_proto: LL128 where it is unsafe); compare with dtype bfloat16",
    ),
    signature(
        "nccl_timeout",
        r"ProcessGroupNCCL.*(?:caught collective operation timeout|detected by watchdog)|Watchdog caught collective operation timeout",
        "a collective timed out (NCCL watchdog)",
        f"a slow load: {_FLAGS}: {{{{dist-timeout: ...}}}} (--dist-timeout, in seconds) higher; else a rank hangs or died: read its "
        "lines, and check peer-to-peer access (ACS, IOMMU; nccl_p2p_disable: true as a try)",
        details=((r"WorkNCCL\(SeqNum=\d+, OpType=(?P<op>\w+)", " in {op}"), (r"ran for (?P<ms>\d+) milliseconds", " after {ms} ms")),
        scope="line",
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
    signature(
        "disk_full",
        r"OSError: \[Errno 28\] No space left on device",
        "a disk is full",
        "free space where the server writes (caches, /dev/shm, temporary directory, ringmaster_state_dir)",
        scope="error",
    ),
)
