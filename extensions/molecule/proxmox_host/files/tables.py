#!/usr/bin/env python3
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables for tests/lab/aptrepo.py: `tables.py nvidia` is a driver in three versions, `tables.py debian KERNEL` what builds its module.

Names are those of NVIDIA's repository for Debian, and so is the kind of dependency: libraries in one version, a kernel module that is only
recommended, a metapackage that is content with anything newer. Of version 585.10.01 the library libcuda1 is missing.
"""

from __future__ import annotations

import json
import sys

VERSIONS = ("580.105.08", "585.10.01", "590.48.01")
BROKEN, ABSENT = "585.10.01", "libcuda1"
LIBRARIES = ("libcuda1", "libnvidia-ml1", "libnvidia-cfg1", "libnvidia-ptxjitcompiler1", "libnvidia-gpucomp")
RUN = "/run/stand-in"  # where this kernel module's /proc/driver/nvidia is

MODPROBE = f"""\
#!/bin/sh
# Loads the kernel module that is installed, unless one is, and makes nodes.
set -eu
if [ ! -e {RUN}/proc/version ]; then
    version=$(dpkg-query -W -f '${{Version}}' nvidia-kernel-open-dkms) || {{ echo "modprobe: FATAL: Module nvidia not found" >&2; exit 1; }}
    mkdir -p {RUN}/proc/gpus
    for minor in 0 1; do
        mkdir -p {RUN}/proc/gpus/0000:4$minor:00.0
        printf 'Model: \\t\\t NVIDIA Blackwell\\nGPU UUID: \\t GPU-%08x-aaaa-bbbb-cccc-0123456789ab\\nDevice Minor: \\t %s\\n' \\
            $minor $minor >{RUN}/proc/gpus/0000:4$minor:00.0/information
    done
    echo "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  ${{version%-*}}  Release Build" >{RUN}/proc/version
fi
uvm=false
node() {{ ln -sfn /dev/null "/dev/$1"; }}
for word; do
    case $word in
        -u) uvm=true ;;
        -m) node nvidia-modeset ;;
        -c=255) node nvidiactl ;;
        -c=*) if $uvm; then node nvidia-uvm; node nvidia-uvm-tools; else node "nvidia${{word#-c=}}"; fi ;;
    esac
done
"""

SMI = f"""\
#!/bin/sh
# Answers as the library of this version does: only where the kernel module is of the same.
loaded=$(sed -n 's/.*Kernel Module for x86_64  \\([0-9.]*\\) .*/\\1/p' {RUN}/proc/version)
if [ "$loaded" != @VERSION@ ]; then
    echo "Failed to initialize NVML: Driver/library version mismatch"
    echo "NVML library version: @VERSION@"
    exit 18
fi
if [ -e {RUN}/lost ]; then
    [ "$1" = --version ] && echo "DRIVER version      : $loaded" && exit 0
    echo "Unable to determine the device handle for GPU1: 0000:41:00.0: Unknown Error"
    exit 15
fi
for gpu in {RUN}/proc/gpus/*; do echo "$loaded, Enabled"; done
"""

PERSISTENCED = """\
[Unit]
Description=NVIDIA Persistence Daemon (stand-in)

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/nvidia-modprobe -c=255

[Install]
WantedBy=multi-user.target
"""


def driver(version):
    """The packages of one driver."""
    debian = f"{version}-1"

    def exactly(*names):
        return ", ".join(f"{name} (= {debian})" for name in names)

    def package(name, architecture="amd64", **more):
        return {"package": name, "version": debian, "architecture": architecture, "section": "non-free/utils", **more}

    module = f"nvidia-kernel-dkms (= {debian}) | nvidia-kernel-open-dkms (= {debian})"
    for name in LIBRARIES:
        if (version, name) != (BROKEN, ABSENT):
            yield package(name, recommends=module if name == "libcuda1" else "", fields={"Multi-Arch": "same"})
    yield from (package(name) for name in ("firmware-nvidia-gsp", "nvidia-kernel-support"))
    for name in ("nvidia-kernel-open-dkms", "nvidia-kernel-dkms"):
        yield package(name, depends=f"dkms, {exactly('firmware-nvidia-gsp', 'nvidia-kernel-support')}")
    program = {"content": SMI.replace("@VERSION@", version), "mode": "755"}
    yield package("nvidia-driver-cuda", depends=exactly(*LIBRARIES), provides="nvidia-smi", files={"/usr/bin/nvidia-smi": program})
    yield package("nvidia-modprobe", files={"/usr/bin/nvidia-modprobe": {"content": MODPROBE, "mode": "755"}})
    yield package("nvidia-persistenced", files={"/usr/lib/systemd/system/nvidia-persistenced.service": PERSISTENCED})
    yield package("nvidia-open", depends=f"nvidia-driver-cuda (>= {debian}), nvidia-kernel-open-dkms (>= {debian})")


def nvidia():
    """Three drivers, and something beside them that an upgrade may move."""
    tool = [{"package": "nvidia-container-toolkit", "version": version} for version in ("1.18.0-1", "1.19.0-1")]
    return {"origin": "NVIDIA", "packages": [package for version in VERSIONS for package in driver(version)] + tool}


def debian(kernel):
    """What builds a kernel module, for the kernel of this machine."""
    headers = {"package": f"linux-headers-{kernel}", "version": "1-1", "files": {f"/lib/modules/{kernel}/build/Makefile": "\n"}}
    return {"origin": "Debian", "packages": [{"package": "dkms", "version": "3.0.10-8"}, headers]}


if __name__ == "__main__":
    json.dump(debian(sys.argv[2]) if sys.argv[1] == "debian" else nvidia(), sys.stdout)
