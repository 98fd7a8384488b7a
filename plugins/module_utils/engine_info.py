# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which SGLang an interpreter has, with which torch and NCCL, and the names of its flags: read from files, nothing is imported."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess

from .errors import RingmasterError

# Importing SGLang's own parser takes seconds and, on a host without CUDA, may fail. Its flags are literal strings or field
# names in a few files.
_SCRIPT = r"""
import glob, hashlib, importlib.metadata as metadata, importlib.util, json, os, re, sysconfig
def version(*names):
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
spec = importlib.util.find_spec("sglang")
flags = set()
if spec is not None and spec.origin:
    root = os.path.dirname(spec.origin)
    for path in [os.path.join(root, "srt", "server_args.py"), os.path.join(root, "launch_server.py")] + sorted(
            glob.glob(os.path.join(root, "srt", "arg_groups", "**", "*.py"), recursive=True)):
        try:
            text = open(path, encoding="utf-8").read()
        except OSError:
            continue
        flags.update(re.findall(r"[\"']--([a-z][a-z0-9-]+)[\"']", text))
        flags.update(name.replace("_", "-") for name in re.findall(r"^    ([a-z][a-z0-9_]+)\s*:", text, re.M))
digest = None
for path in sorted(glob.glob(os.path.join(sysconfig.get_path("purelib"), "nvidia", "nccl*", "lib", "libnccl.so*"))):
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    break
cuda = None
try:
    cuda = re.search(r"^cuda[^=\n]*= *'([^']+)'", open(os.path.join(sysconfig.get_path("purelib"), "torch", "version.py")).read(), re.M)
except OSError:
    pass
print(json.dumps({
    "sglang": version("sglang") if spec else None, "torch": version("torch"), "flags": sorted(flags),
    "nccl": version("nvidia-nccl-cu13", "nvidia-nccl-cu12"), "flashinfer": version("flashinfer-python"),
    "bench_serving": bool(spec and spec.origin) and any(
        os.path.exists(os.path.join(root, *name)) for name in (("bench_serving.py",), ("benchmark", "serving.py"))),
    "path": spec.origin if spec else None, "cuda": cuda and cuda.group(1), "libnccl_sha256": digest,
}))
"""


def read(python):
    """What the interpreter PYTHON has: {sglang, torch, nccl, cuda, flashinfer (versions or None), libnccl_sha256, flags [str],
    bench_serving (bool), path}.

    Raises RingmasterError when it cannot be run.
    """
    try:
        done = subprocess.run(
            [python, "-I", "-c", _SCRIPT], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL, cwd="/"
        )
    except FileNotFoundError as error:
        raise RingmasterError(f"sglang_python: {python} does not exist.", "Set sglang_python to the server's interpreter.") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        remedy = "Set sglang_python to the server's interpreter."
        raise RingmasterError(f"sglang_python: {python} cannot be run: {error}.", remedy) from error
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RingmasterError(f"sglang_python: {python} fails at once: {last}", "Start it by hand to see more.")
    return json.loads(lines[-1])


def model_problem(path):
    """Why PATH can be no model, or None: a file of GGUF, or a directory as the hub or Mistral has it. A relative one may be a name."""
    if not path or not os.path.isabs(path) or (path.lower().endswith(".gguf") and os.path.isfile(path)):
        return None
    if not os.path.isdir(path):
        return f"sglang_model_path: {path} is no directory on this host."
    if not any(os.path.isfile(os.path.join(path, name)) for name in ("config.json", "params.json")):
        return f"sglang_model_path: {path} has no config.json."
    return None


def fingerprint(engine, found_gpus, workloads):
    """What two results must share to be worth comparing: {hardware, software, workload} and a short digest of it all."""
    parts = {
        "hardware": [gpu["name"] for gpu in found_gpus] if found_gpus else [platform.machine(), f"{os.cpu_count()} cpus"],
        "driver": engine["driver"],
        "software": [engine[name] for name in ("name", "version", "torch", "nccl", "libnccl_sha256", "cuda")],
        "workload": workloads,
    }
    return {**parts, "digest": hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()[:16]}
