# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of NVIDIA's kernel modules a host's GPUs need."""

from __future__ import annotations

DOCUMENTATION = r"""
name: gpu_kernel_module
short_description: The kernel module for a host's NVIDIA GPUs
version_added: 0.1.0
description:
  - Chooses V(open) or V(proprietary) by the generation of the GPUs, and fails where they cannot run together, with this driver, or with
    the module that was asked for.
positional: _asked, _version
options:
  _input:
    description: The RV(ringmaster.gpu.pcie_info#module:gpus) of the host.
    type: list
    elements: dict
    required: true
  _asked:
    description: V(auto), V(open) or V(proprietary).
    type: str
    required: true
  _version:
    description: Version of the driver, such as V(580.105.08); empty where it is not chosen here.
    type: str
    default: ""
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Choose
  ansible.builtin.debug:
    msg: "{{ pcie.gpus | ringmaster.gpu.gpu_kernel_module('auto', '580.105.08') }}"
"""

RETURN = r"""
_value:
  description: V(open) or V(proprietary).
  type: str
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.ringmaster.gpu.plugins.module_utils import gpu_generations
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError


def _gpu_kernel_module(gpus, asked, version=""):
    try:
        return gpu_generations.kernel_module([(gpu["address"], int(gpu["device_id"], 16)) for gpu in gpus], asked, version)
    except RingmasterError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    def filters(self):
        return {"gpu_kernel_module": _gpu_kernel_module}
