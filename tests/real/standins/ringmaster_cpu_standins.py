# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets a real SGLang 0.5.16 import and serve on a host without CUDA.

`ringmaster_cpu_standins.pth` beside this file imports it in every process of the environment. It is not a sitecustomize and not on
PYTHONPATH, because those two are what the test is about.
"""

from __future__ import annotations

import importlib.machinery  # the stub of triton uses it without importing it
import importlib.util
import sys
import types


def load_triton_stub() -> None:
    """Install SGLang's own stub of triton, which SGLang itself uses on Apple silicon only. Importing it the plain way would import
    all of sglang first, which already needs it."""
    package = importlib.util.find_spec("sglang")
    if package is None:
        return
    spec = importlib.util.spec_from_file_location("ringmaster_triton_stub", f"{package.submodule_search_locations[0]}/_triton_stub.py")
    stub = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stub)
    stub.install()


# Names that SGLang imports but does not call when it serves text on a CPU. Only the submodule is registered: a lookup of the package
# itself (`vllm`, `IPython`) must go on finding nothing.
UNUSED = {
    "torchvision._meta_registrations": (),  # describes operators of a CUDA library that cannot be loaded here
    "IPython.display": ("HTML", "display"),  # notebooks
    "vllm._custom_ops": ("rotary_embedding",),  # taken by the CUDA variant of rotary embeddings; the CPU runs the native one
}

load_triton_stub()
for name, symbols in UNUSED.items():
    module = types.ModuleType(name)
    module.__dict__.update(dict.fromkeys(symbols))
    sys.modules[name] = module
