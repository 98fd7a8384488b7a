#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: bundle
short_description: Make a bundle of wheels and packages for hosts without a network
version_added: 0.1.0
description:
  - Fetches the wheels that a lock names with pip, and packages with apt in a world of its own, for a host that need not be this machine.
  - Verifies each against the lock or the signed index, and writes a manifest with every checksum, last of all.
  - Works on the controller. Says how it gets on. What has come is kept when it is cut off, and not fetched again.
options:
  directory:
    description: Directory for this bundle alone.
    type: path
    required: true
  name:
    description: Its name. Without it the name says what is in it.
    type: str
  profile:
    description: V(slim) has one archive of what a host with torch lacks, instead of wheels.
    type: str
    choices: [full, slim]
    default: full
  machine:
    description: Machine of the host.
    type: str
    default: x86_64
  python:
    description: Minor version of the host's Python, for wheels. Without it that of O(distribution), or 3.12.
    type: str
  distribution:
    description: Distribution of the host, such as V(debian12), for packages.
    type: str
  part_mib:
    description: Size of a part in MiB; 0 makes none.
    type: float
    default: 0
  refresh:
    description: Make it again, although the same was asked for before and is there.
    type: bool
    default: false
  sglang_version:
    description: Version of SGLang, for the manifest.
    type: str
  sglang_cuda:
    description: CUDA version of the wheels, for the manifest.
    type: str
  lock:
    description: Path of the lock, requirements with hashes.
    type: path
  locks:
    description: Names of the locks that there are, for the message that there is none.
    type: list
    elements: str
  uv_lock:
    description: Path of a lock of uv.
    type: path
  index_url:
    description: Package index. Without it those that pip is set up for.
    type: str
  system_packages:
    description: Packages that the wheels need, for a host of O(distribution). They are resolved together with those of CUDA.
    type: list
    elements: str
  cuda_version:
    description: CUDA toolkit.
    type: str
  cuda_driver_version:
    description: NVIDIA driver.
    type: str
  kernel_module:
    description: Which kernel module the driver has. V(auto) is the open one.
    type: str
    choices: [auto, open, proprietary]
    default: auto
  toolkit_packages:
    description: Packages of a toolkit, as of role C(cuda).
    type: list
    elements: str
  driver_packages:
    description: Packages of a driver for each kernel module, as of role C(cuda).
    type: dict
  build_packages:
    description: Packages that build the kernel module.
    type: list
    elements: str
  driver_members:
    description: Patterns of the packages that are kept at the driver's version.
    type: list
    elements: str
  packages:
    description: Packages to resolve, instead of those for O(cuda_version) and O(cuda_driver_version).
    type: list
    elements: str
  kernel:
    description: Kernel whose headers are taken along.
    type: str
  repositories:
    description: The distribution's repositories, each with C(url), C(key), C(suites) and C(components).
    type: list
    elements: dict
  repository_url:
    description: Address of NVIDIA's repository, V(nvidia) for its own.
    type: str
  repository_key:
    description: Path of the key that signs it.
    type: path
  dpkg_status:
    description: Path of a host's dpkg status file, for what need not be carried. Without it nothing is taken to be there.
    type: path
  host_packages:
    description: Path of a file with the Python packages of the host, for V(slim).
    type: path
  carry_anyway:
    description: Packages that V(slim) carries although the host has another version.
    type: list
    elements: str
attributes:
  check_mode:
    description: Checks what was asked for and tells whether the bundle would be made. Fetches nothing.
    support: full
  diff_mode:
    description: The files are binary.
    support: none
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Wheels for a host with Python 3.12, in parts for a stick
  ringmaster.gpu.bundle:
    directory: /srv/bundles/sglang
    lock: /srv/locks/0.5.16-cu130.txt
    sglang_version: 0.5.16
    sglang_cuda: "13.0"
    python: "3.12"
    part_mib: 58
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
directory:
  description: Where it is.
  returned: success
  type: str
name:
  description: Its name.
  returned: success
  type: str
manifest:
  description: Its manifest, without the lists of files and parts. Empty in check mode when it would be made.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule


def argument_spec():
    text, path, texts = {"type": "str"}, {"type": "path"}, {"type": "list", "elements": "str"}
    return {
        "directory": {"type": "path", "required": True},
        "name": text,
        "profile": {"type": "str", "choices": ["full", "slim"], "default": "full"},
        "machine": {"type": "str", "default": "x86_64"},
        "python": text,
        "distribution": text,
        "part_mib": {"type": "float", "default": 0},
        "refresh": {"type": "bool", "default": False},
        "sglang_version": text,
        "sglang_cuda": text,
        "lock": path,
        "locks": texts,
        "uv_lock": path,
        "index_url": text,
        "system_packages": texts,
        "cuda_version": text,
        "cuda_driver_version": text,
        "kernel_module": {"type": "str", "choices": ["auto", "open", "proprietary"], "default": "auto"},
        "toolkit_packages": texts,
        "driver_packages": {"type": "dict"},
        "build_packages": texts,
        "driver_members": texts,
        "packages": texts,
        "kernel": text,
        "repositories": {"type": "list", "elements": "dict"},
        "repository_url": text,
        "repository_key": path,
        "dpkg_status": path,
        "host_packages": path,
        "carry_anyway": texts,
    }


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True)
    module.fail_json(msg="ringmaster.gpu.bundle works through its action plugin on the controller.")


if __name__ == "__main__":
    main()
