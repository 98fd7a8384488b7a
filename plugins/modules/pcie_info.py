#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: pcie_info
short_description: Look at what slows peer-to-peer between NVIDIA GPUs on PCI Express
version_added: 0.1.0
description:
  - Tells where the GPUs sit, which ACS bits are on in the bridges above them, and whether an IOMMU translates for them.
    Between GPUs without NVLink both make NCCL slow, and it can hang.
  - Only root can read ACS bits.
  - Needs no driver, except to learn of NVLink. Changes nothing.
options:
  link:
    description:
      - How the GPUs reach each other. V(ask) asks C(nvidia-smi), where there is one.
      - With V(NVLink) between all of them nothing here slows NCCL down, and the findings say so by their severity.
    type: str
    choices: [ask, NVLink, PCIe]
    default: ask
  sys:
    description: Where sysfs is mounted.
    type: path
    default: /sys
  cmdline:
    description: The file with the kernel's parameters.
    type: path
    default: /proc/cmdline
extends_documentation_fragment:
  - ringmaster.gpu.read_only
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Look at ACS and IOMMU
  ringmaster.gpu.pcie_info:
  become: true
  register: pcie
"""

RETURN = r"""
gpus:
  description: The NVIDIA GPUs on the bus, whether or not a driver has them.
  returned: success
  type: list
  elements: dict
  contains:
    address:
      description: PCI address.
      type: str
    device_id:
      description: PCI device id, in hexadecimal.
      type: str
    generation:
      description: Such as V(Hopper); nothing where it is not known.
      type: str
    above:
      description: The bridges above it, from the root port down.
      type: list
      elements: str
    group_type:
      description: Type of its IOMMU group. V(identity) is not translated, V(DMA) and V(DMA-FQ) are; nothing without a group.
      type: str
    driver:
      description: The kernel driver that has it.
      type: str
bridges:
  description: The bridges above GPUs.
  returned: success
  type: list
  elements: dict
  contains:
    address:
      description: PCI address.
      type: str
    acs:
      description: The ACS bits that are on, nothing where it has no ACS, or V(unreadable).
      type: raw
    redirects:
      description: Those of them that send peer-to-peer traffic to the root complex.
      type: list
      elements: str
    gpus:
      description: Addresses of the GPUs below it that this host uses itself.
      type: list
      elements: str
iommus:
  description: The IOMMUs that are on.
  returned: success
  type: list
  elements: str
parameters:
  description: The kernel's parameters that bear on this, each with its values.
  returned: success
  type: dict
link:
  description: V(NVLink), V(PCIe with P2P) or V(PCIe); nothing where it is not known.
  returned: success
  type: str
findings:
  description: What a person should know.
  returned: success
  type: list
  elements: dict
  contains:
    severity:
      description: V(warning) slows NCCL down or makes it hang, V(unknown) could not be seen, V(info) is good to know.
      type: str
    what:
      description: What was found.
      type: str
    advice:
      description: What to do.
      type: str
    where:
      description: PCI addresses that it is about.
      type: list
      elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import answer, gpu_generations, gpus, pcie


def argument_spec():
    return {
        "link": {"type": "str", "choices": ["ask", "NVLink", "PCIe"], "default": "ask"},
        "sys": {"type": "path", "default": pcie.SYS},
        "cmdline": {"type": "path", "default": pcie.CMDLINE},
    }


def look(link, sys, cmdline):
    """The result's fields."""
    seen = pcie.look(sys, cmdline)
    if link == "ask":
        link = gpus.link() if len(pcie.used(seen)) > 1 else None
    return {
        "gpus": [_gpu(gpu) for gpu in seen.gpus],
        "bridges": pcie.bridges(seen),
        "iommus": seen.iommus,
        "parameters": pcie.parameters(seen.cmdline),
        "link": link,
        "findings": pcie.advise(seen, link),
    }


def _gpu(gpu):
    generation = gpu_generations.of(gpu.device)
    return {
        "address": gpu.address,
        "device_id": f"{gpu.device:04x}",
        "above": list(gpu.above),
        "generation": generation.name if generation else None,
        "group_type": gpu.group_type,
        "driver": gpu.driver,
    }


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True)
    answer.give(module, lambda: look(**module.params), module.params["sys"])


if __name__ == "__main__":
    main()
