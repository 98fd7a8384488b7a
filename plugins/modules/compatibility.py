#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: compatibility
short_description: Check that GPUs, driver, CUDA and SGLang go together
version_added: 0.1.0
description:
  - Compares what is on a host, or is to come there, with a table of what runs with what, each row of which names its source.
    The table is docs/compatibility.md of this collection.
  - A combination that cannot work fails with the row that says so. What the table does not know is a warning.
  - What is not given follows from what is, as far as the table says so. SGLang 0.5.16 has torch 2.11.0, which is built for CUDA 13.0,
    which needs driver 580.
  - Works on the controller only, asks nothing of the host, and changes nothing.
options:
  gpus:
    description:
      - The host's GPUs. Each is a name, such as V(NVIDIA H200), or one of those that M(ringmaster.gpu.pcie_info),
        M(ringmaster.gpu.gpu_device_info) or M(ringmaster.gpu.target_info) return.
      - The compute capability is taken from C(compute_capability), else from the PCI C(device_id), for which no driver is needed, else
        from the name.
    type: list
    elements: raw
    default: []
  link:
    description: How the GPUs reach each other, as M(ringmaster.gpu.pcie_info) returns it; nothing where it is not known.
    type: str
    choices: [NVLink, PCIe with P2P, PCIe]
  driver:
    description: Version of the NVIDIA driver that is there or is to come, such as C(cuda_driver_version).
    type: raw
  cuda:
    description: Version of the CUDA toolkit, such as C(cuda_version).
    type: raw
  sglang:
    description: Version of SGLang, such as C(sglang_version).
    type: raw
  torch:
    description: Version of torch, where it is not the one that SGLang pins.
    type: raw
  torch_cuda:
    description: The CUDA that torch is built for, such as C(sglang_cuda).
    type: raw
  nccl:
    description: Version of NCCL, where it is not the one that torch pins.
    type: raw
  flashinfer:
    description: Version of FlashInfer, where it is not the one that SGLang pins.
    type: raw
  python:
    description: Version of the Python that is to run SGLang, such as V(3.12).
    type: raw
  flags:
    description: Flags of the server, such as C(sglang_flags).
    type: raw
  patches:
    description:
      - Patches of SGLang's sources, such as C(sglang_patches). A row about one of SGLang's own checks only warns with a patch that has
        that check's word in its name, such as V(fusion).
    type: raw
  accept:
    description: Ids of rows that are to warn instead of failing.
    type: list
    elements: str
    default: []
  fail:
    description: Whether to fail when something cannot work; otherwise that is a warning, too.
    type: bool
    default: true
notes:
  - Nothing and an empty text mean that a value is not known; rows about it say nothing then.
  - Quote versions. YAML makes a number of 3.10, which is 3.1 then.
extends_documentation_fragment:
  - ringmaster.gpu.read_only
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Look for GPUs, which needs no driver
  ringmaster.gpu.pcie_info:
  become: true
  register: pcie

- name: What is to be installed goes together
  ringmaster.gpu.compatibility:
    gpus: "{{ pcie.gpus }}"
    link: "{{ pcie.link }}"
    driver: "{{ cuda_driver_version }}"
    cuda: "{{ cuda_version }}"
    sglang: "{{ sglang_version }}"
    torch_cuda: "{{ sglang_cuda }}"
    flags: "{{ sglang_flags }}"
    python: "3.12"
"""

RETURN = r"""
findings:
  description: The rows that hold, and what is not known; refusals first.
  returned: when the arguments could be read
  type: list
  elements: dict
  contains:
    row:
      description: Its id in the table.
      type: str
    severity:
      description: V(refused) cannot work, V(warning) is worth knowing.
      type: str
    text:
      description: What was found.
      type: str
    change:
      description: What to do, with the names of variables.
      type: str
    source:
      description: Where the row has it from; empty for what is not known.
      type: str
refused:
  description: Ids of the rows for which it fails, or would without O(fail=false).
  returned: when the arguments could be read
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule


def argument_spec():
    versions = ("driver", "cuda", "sglang", "torch", "torch_cuda", "nccl", "flashinfer", "python")
    return {
        "gpus": {"type": "list", "elements": "raw", "default": []},
        "link": {"type": "str", "choices": ["NVLink", "PCIe with P2P", "PCIe"]},
        **{name: {"type": "raw"} for name in versions},
        "flags": {"type": "raw"},
        "patches": {"type": "raw"},
        "accept": {"type": "list", "elements": "str", "default": []},
        "fail": {"type": "bool", "default": True},
    }


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True)
    module.fail_json(msg="ringmaster.gpu.compatibility works through its action plugin on the controller.")


if __name__ == "__main__":
    main()
