# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Role cuda without a host: its files as they come out, its names of packages, and what it refuses. Scenario cuda runs it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import yaml
from role_lab import ROOT, refusals, renderings, values

ROLE = ROOT / "roles/cuda"
DEFAULTS = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
sys.path.insert(0, str(ROOT / "extensions/molecule/cuda/files"))

import toolkits  # noqa: E402

# What a compute-only driver of 580 to 595 from NVIDIA's repository for Debian consists of, and what lies beside it there.
DRIVER = [
    "firmware-nvidia-gsp", "libcuda1", "libcudadebugger1", "libnvidia-allocator1", "libnvidia-cfg1", "libnvidia-gpucomp",
    "libnvidia-ml1", "libnvidia-nvvm4", "libnvidia-nvvm704", "libnvidia-pkcs11-openssl3", "libnvidia-ptxjitcompiler1",
    "libnvidia-sandboxutils", "libnvidia-tileiras", "nvidia-driver-cuda", "nvidia-open", "nvidia-kernel-dkms",
    "nvidia-kernel-open-dkms", "nvidia-kernel-support", "nvidia-modprobe", "nvidia-opencl-icd", "nvidia-persistenced",
    "cuda-drivers", "cuda-drivers-580", "nvidia-fabricmanager", "nvidia-driver-libs", "nvidia-smi", "libnvidia-opticalflow1",
    "libnvidia-encode1", "libnvcuvid1",
]  # fmt: skip
BESIDE = [
    "nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container1", "libnvidia-container-tools",
    "cuda-toolkit-12-8", "libcublas-12-8", "libnvidia-egl-wayland21", "libcuda1-extra", "pve-nvidia-vgpu-helper",
    "cuda-cudart-12-8",
]  # fmt: skip
# What one of Ubuntu's 22.04 and 24.04 has, before and from 590 on.
UBUNTU = [
    "libnvidia-cfg1-580", "libnvidia-common-580", "libnvidia-compute-580", "libnvidia-decode-580", "libnvidia-encode-580",
    "libnvidia-extra-580", "libnvidia-fbc1-580", "libnvidia-gl-580", "libnvidia-gpucomp-580", "nvidia-compute-utils-580",
    "nvidia-dkms-580-open", "nvidia-driver-580-open", "nvidia-firmware-580-580.105.08", "nvidia-kernel-common-580",
    "nvidia-kernel-source-580-open", "nvidia-utils-580", "xserver-xorg-video-nvidia-580", "cuda-drivers-580",
    "libnvidia-cfg1", "libnvidia-common", "libnvidia-compute", "libnvidia-decode", "libnvidia-encode", "libnvidia-extra",
    "libnvidia-fbc1", "libnvidia-gl", "libnvidia-gpucomp", "nvidia-dkms-open", "nvidia-driver-open", "nvidia-firmware",
    "nvidia-kernel-common", "nvidia-kernel-source-open", "nvidia-open", "nvidia-modprobe", "nvidia-persistenced", "nvidia-settings",
    "xserver-xorg-video-nvidia",
]  # fmt: skip
# Beside toolkits, and none of them.
BESIDE_TOOLKITS = [
    "cuda-keyring", "cuda-drivers", "cuda-drivers-580", "cuda-toolkit", "libcudnn9-cuda-12", "libcudnn9-dev-cuda-12", "libcuda1",
    "libnvidia-compute-580", "libnvidia-ml1", "nvidia-driver-cuda", "libnccl2", "libnvinfer10", "libcutensor2", "gcc-12",
    "nvidia-cuda-toolkit", "libcurl4", "libcups2", "libnvme1",
]  # fmt: skip
HOSTS = {
    "debian": {"distribution": "Debian", "distribution_version": "12.12", "distribution_major_version": "12", "architecture": "x86_64"},
    "ubuntu": {"distribution": "Ubuntu", "distribution_version": "24.04", "distribution_major_version": "24", "architecture": "aarch64"},
}


def test_unattended_upgrades_leave_driver_and_toolkits_and_nothing_else(tmp_path):
    toolkit = sorted({package["package"] for package in toolkits.packages()})
    assert len(toolkit) > 120
    cases = [("cuda_driver_members", DRIVER + UBUNTU, BESIDE), ("cuda_toolkit_members", toolkit, BESIDE_TOOLKITS)]
    texts = renderings(ROLE, "unattended.conf.j2", tmp_path, [{"_cuda_set": {"members": DEFAULTS[name]}} for name, _, _ in cases])
    for number, ((name, mine, others), text) in enumerate(zip(cases, texts, strict=True)):
        patterns = re.findall(r'^    "(.*)";$', text, flags=re.MULTILINE)
        assert len(patterns) == len(DEFAULTS[name])
        assert [one for one in mine + others if any(re.match(pattern, one) for pattern in patterns)] == mine
        if shutil.which("apt-config"):
            command = ["apt-config", "-c", str(tmp_path / f"out{number}"), "dump"]
            dump = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            assert set(re.findall('Unattended-Upgrade::Package-Blacklist:: "(.*)";', dump)) >= set(patterns)


def test_the_pin_is_of_one_version_or_of_what_was_found(tmp_path):
    found = [{"name": "libcuda1:amd64", "version": "550.163.01-2"}, {"name": "nvidia-smi", "version": "550.163.01-2"},
             {"name": "nvidia-settings", "version": "535.1-1"}]  # fmt: skip
    cases = [{"_cuda_set": {"members": ["libcuda1", "nvidia-*"], "version": "580.105.08-*"}, "__cuda_rows": []},
             {"_cuda_set": {"members": [], "version": "", "exact": False}, "__cuda_rows": found},
             {"_cuda_set": {"members": ["libcuda1", "nvidia-*"], "version": "", "exact": False}, "__cuda_rows": [
                 {"name": "libcuda1", "version": "580.105.08-1"}, {"name": "nvidia-smi", "version": "580.105.08-2"}]},
             {"_cuda_set": {"members": ["*"], "version": "", "exact": True}, "__cuda_rows": found[:1]}]  # fmt: skip
    one, rows, adopted, exact = renderings(ROLE, "preferences.j2", tmp_path, cases)
    assert one.endswith("\nPackage: libcuda1 nvidia-*\nPin: version 580.105.08-*\nPin-Priority: 1001\n")
    assert "Package: libcuda1 nvidia-smi\nPin: version 550.163.01-2\n" in rows
    assert "Package: nvidia-settings\nPin: version 535.1-1\n" in rows
    assert adopted == one  # what is installed, and adopted by a later run, is the same
    assert exact.endswith("\nPackage: libcuda1\nPin: version 550.163.01-2\nPin-Priority: 1001\n")


OPEN = ["nvidia-modprobe", "nvidia-persistenced"]


NAMES = [
    ("debian", "580.105.08", "open", ["nvidia-driver-cuda", "nvidia-kernel-open-dkms", *OPEN], ["nvidia-driver-cuda"]),
    ("debian", "550.54.15-1", "proprietary", ["nvidia-driver-cuda", "nvidia-kernel-dkms", *OPEN], ["nvidia-driver-cuda"]),
    ("ubuntu", "570.195.03", "open", ["libnvidia-compute-570", "nvidia-utils-570", "nvidia-dkms-570-open", *OPEN],
     ["libnvidia-compute-570", "nvidia-utils-570"]),
    ("ubuntu", "580.105.08", "proprietary", ["libnvidia-compute-580", "nvidia-utils-580", "nvidia-dkms-580", *OPEN],
     ["libnvidia-compute-580", "nvidia-utils-580"]),
    ("ubuntu", "590.48.01", "open", ["libnvidia-compute", "nvidia-dkms-open", *OPEN], ["libnvidia-compute"]),
    ("ubuntu", "610.43.02", "proprietary", ["libnvidia-compute", "nvidia-dkms", *OPEN], ["libnvidia-compute"]),
]  # fmt: skip


def test_names_of_the_drivers_packages(tmp_path):
    cases = [
        {"ansible_facts": HOSTS[host], "cuda_driver_version": version, "__cuda_module": module} for host, version, module, _, _ in NAMES
    ]
    wanted = ["_cuda_driver_names", "_cuda_userland_names", "_cuda_driver_others"]
    for (_host, version, _module, names, userland), found in zip(NAMES, values(ROLE, wanted, tmp_path, cases), strict=True):
        assert (found["_cuda_driver_names"], found["_cuda_userland_names"]) == (names, userland), version
        assert not set(found["_cuda_driver_others"]) & {name for name in names if "dkms" in name}


def test_what_is_derived(tmp_path):
    names = [
        "_cuda_repository_url",
        "_cuda_toolkit_asked",
        "_cuda_toolkit_folder",
        "_cuda_in_container",
        "_cuda_headers",
    ]
    lxc = {"virtualization_role": "guest", "virtualization_type": "lxc", "kernel": "6.8.12-4-pve"}
    machine = {"virtualization_role": "guest", "virtualization_type": "kvm", "kernel": "6.1.0-39-amd64"}
    cases = [
        {"ansible_facts": {**HOSTS["debian"], **lxc}, "cuda_version": "12.8", "cuda_repository_url": "nvidia"},
        {"ansible_facts": {**HOSTS["ubuntu"], **machine}, "cuda_version": "13.0.2", "cuda_repository_url": "nvidia"},
        {
            "ansible_facts": {**HOSTS["ubuntu"], **lxc},
            "cuda_version": "13.0",
            "cuda_repository_url": "file:/r",
            "cuda_container": False,
            "cuda_toolkit_packages": ["cuda-toolkit-13-0", "cuda-nvcc-13-0=13.0.88-1"],
        },
    ]
    repository = "https://developer.download.nvidia.com/compute/cuda/repos"
    assert [list(found.values()) for found in values(ROLE, names, tmp_path, cases)] == [
        [f"{repository}/debian12/x86_64/", ["cuda-toolkit-12-8=12.8.*"], "/usr/local/cuda-12.8", True,
         "proxmox-headers-6.8.12-4-pve | pve-headers-6.8.12-4-pve"],
        [f"{repository}/ubuntu2404/sbsa/", ["cuda-toolkit-13-0=13.0.2-*"], "/usr/local/cuda-13.0", False,
         "linux-headers-6.1.0-39-amd64"],
        ["file:/r", ["cuda-toolkit-13-0=13.0.*", "cuda-nvcc-13-0=13.0.88-1"], "/usr/local/cuda-13.0", False,
         "proxmox-headers-6.8.12-4-pve | pve-headers-6.8.12-4-pve"],
    ]  # fmt: skip


WRONG = [
    ({"cuda_driver_version": "580"}, "Give a whole version in quotes, such as 580.105.08 or 580.105.08-1 (those that there are:"),
    ({"cuda_driver_version": 580.1}, "cuda_driver_version is the number 580.1"),
    ({"cuda_driver_version": "latest"}, "Give a whole version in quotes"),
    ({"cuda_driver_version": "580.1.1", "cuda_driver_branch": 590}, "not of cuda_driver_branch 590. Change one"),
    ({"cuda_driver_branch": "580.105"}, "cuda_driver_branch is '580.105'. Give what a version has before its first dot"),
    ({"cuda_driver_packages": {"open": []}}, "proprietary"),
    ({"cuda_kernel_module": "closed"}, "cuda_kernel_module"),
    (
        {"cuda_repository_url": "mirror.example.net:8080/cuda", "cuda_repository_key": "k.asc"},
        "Give nvidia, or an address such as https://",
    ),
    ({"cuda_repository_url": "file:/r"}, "cuda_repository_key must be the path"),
    ({"cuda_repository_url": "file:/r", "cuda_repository_key": "key.txt"}, "found: 'key.txt'"),
    ({"cuda_repository_url": "file:/r", "cuda_repository_key": "keys/key.asc"}, "there is no file keys/key.asc on the controller"),
    ({"cuda_version": 12.1}, "cuda_version is the number 12.1, which is what YAML reads 12.10 as, too"),
    ({"cuda_version": "12"}, "cuda_version is '12'. Give \"12.8\" for the newest 12.8.x"),
    ({"cuda_version": "latest"}, "cuda_version is 'latest'"),
    ({"cuda_source": "usb"}, "cuda_source"),
]


def test_why_there_is_no_driver(tmp_path):
    machine = {"virtualization_role": "NA", "virtualization_type": "NA"}
    cases = [
        ({"cuda_container": True}, "it is a container, and its host has no NVIDIA kernel module loaded. Bring the driver"),
        ({"cuda_driver_version": None}, "and cuda_driver_version is empty, so that none is installed. Set it to one"),
        ({"cuda_driver_version": "580.105.08", "cuda_driver_install": "false"}, "and cuda_driver_install is false, so that none"),
        ({"cuda_driver_version": "580.105.08"}, "no NVIDIA kernel module is loaded. Look at `dkms status`"),
    ]
    found = values(ROLE, ["_cuda_no_driver"], tmp_path, [{"ansible_facts": machine, **variables} for variables, _words in cases])
    for (_variables, words), said in zip(cases, found, strict=True):
        assert words in said["_cuda_no_driver"]
        assert "\n" not in said["_cuda_no_driver"]


def test_what_is_wrong_is_refused_before_anything_is_looked_at(tmp_path):
    said = refusals("ringmaster.gpu.cuda", [variables for variables, _words in WRONG], tmp_path)
    for (_variables, words), part in zip(WRONG, said, strict=True):
        assert words in part
    assert "Look at PCI Express" not in " ".join(said)


ELSEWHERE = [
    ({**HOSTS["debian"], "distribution_major_version": "11", "distribution_version": "11.9"}, "runs Debian 11.9 on x86_64"),
    ({**HOSTS["ubuntu"], "distribution_version": "25.10"}, "runs Ubuntu 25.10 on aarch64"),
    ({**HOSTS["debian"], "distribution": "AlmaLinux"}, "runs AlmaLinux"),
    (
        {**HOSTS["debian"], "architecture": "ppc64le"},
        "on ppc64le. This is for Debian 12 and 13, Ubuntu 22.04 and 24.04, on x86_64 and aarch64",
    ),
]


def test_a_host_that_there_are_no_packages_for(tmp_path):
    more = {"kernel": "6.1", "virtualization_role": "NA", "virtualization_type": "NA"}
    said = refusals("ringmaster.gpu.cuda", [{"ansible_facts": {**facts, **more}} for facts, _words in ELSEWHERE], tmp_path)
    for (_facts, words), part in zip(ELSEWHERE, said, strict=True):
        assert words in part
