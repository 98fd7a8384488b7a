# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fatal signatures of GPUs, their driver and their kernels. Data only, in order of causal depth.

Wording of SGLang 0.5.9 to 0.5.23, FlashInfer, torch 2.8 to 2.14 (CUDA and HIP), NVML and the CUDA runtime.
"""

from __future__ import annotations

from .signature_type import signature

_FLAGS = "sglang_flags (or tune_flags)"
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
        "driver_mismatch",
        r"Driver/library version mismatch",
        "the NVIDIA driver in the kernel and its libraries are of different versions",
        "after an update of the driver restart the host (or load the new module); a container needs the libraries of the version in "
        "/proc/driver/nvidia/version",
    ),
    signature(
        "driver_unknown_error",
        r"NVML(?:Error_Unknown)?: Unknown Error",
        "the NVIDIA driver does not answer (NVML: Unknown Error)",
        "a container loses the right to its GPUs when its host reloads systemd (daemon-reload): restart it; then nvidia-smi must work "
        "there",
    ),
    signature(
        "fabric_not_ready",
        r"Error 802\b|system not yet initialized|cudaErrorSystemNotReady",
        "the GPUs' NVSwitch fabric is not ready (error 802)",
        "start nvidia-fabricmanager of the driver's version on the host, and wait until nvidia-smi -q says of Fabric: Completed",
    ),
    signature(
        "cuda_unknown_error",
        r"CUDA (?:error: )?unknown error",
        "CUDA fails: unknown error",
        "look for /dev/nvidia-uvm in the container (on the host `nvidia-modprobe -u -c0` makes it) and at the kernel log; a restart of the "
        "host helps a driver that is stuck",
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
        "custom_all_reduce",
        r"custom_all_reduce\S*:\d+ '(?P<problem>[^']*)'",
        "custom all-reduce failed: {problem}",
        f"{_FLAGS}: {{{{disable-custom-all-reduce: true}}}}",
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
)
