#!/usr/bin/env python3
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables for tests/lab/aptrepo.py: `tables.py nvidia` is a driver and a toolkit, `tables.py debian` what a host has and lacks.

Names are those of NVIDIA's repository and of Debian. A newer driver is there, which must not be taken; so is a package that every host has,
which must not be fetched.
"""

from __future__ import annotations

import json
import sys

DRIVER = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-modprobe", "nvidia-persistenced", "libcuda1")


def nvidia():
    for version in ("580.105.08-1", "590.48.01-1"):
        for name in DRIVER:
            depends = {"nvidia-driver-cuda": f"libcuda1 (>= {version})", "nvidia-kernel-open-dkms": "dkms"}.get(name, "")
            yield {"package": name, "version": version, "depends": depends}
    yield {"package": "cuda-toolkit-13-0", "version": "13.0.2-1", "depends": "cuda-nvcc-13-0 (>= 13.0.88)"}
    yield {"package": "cuda-nvcc-13-0", "version": "13.0.88-1", "depends": "libc6", "files": {"/usr/local/cuda-13.0/bin/nvcc": "13.0\n"}}


def debian():
    yield {"package": "libc6", "version": "2.36-9", "fields": {"Priority": "required"}}
    yield {"package": "base-files", "version": "1:12", "depends": "libc6", "fields": {"Priority": "required", "Essential": "yes"}}
    yield {"package": "dkms", "version": "3:3.0.10-8", "depends": "make"}
    for name in ("make", "python3-apt", "gcc", "g++", "libnuma1", "python3-dev"):
        yield {"package": name, "version": "4.3-4.1", "depends": "libc6"}


print(json.dumps({"origin": sys.argv[1], "packages": list({"nvidia": nvidia, "debian": debian}[sys.argv[1]]())}))
