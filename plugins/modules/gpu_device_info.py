#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_device_info
short_description: Find the device nodes of NVIDIA GPUs on a node
version_added: 0.1.0
description:
  - Tells which nodes below C(/dev) a container needs for the GPUs it is to have, for Proxmox's C(devN).
    A minor number can be another after a boot, so it is read from the driver each time.
  - A GPU that cannot be used is named in RV(missing) with the reason and is not in RV(devices), for one missing node keeps a whole
    container from starting.
  - Changes nothing, and opens no GPU.
options:
  gpus:
    description:
      - V(all), a number (so many that can be used, by PCI bus id), or a list of UUIDs (C(GPU-...)) and PCI bus ids
        (C(0000:41:00.0) or C(41:00.0)) in capital or small letters.
    type: raw
    default: all
  proc:
    description: The driver's directory.
    type: path
    default: /proc/driver/nvidia
  dev:
    description: Where device nodes are looked for; RV(devices) are below C(/dev) all the same.
    type: path
    default: /dev
extends_documentation_fragment:
  - ringmaster.gpu.read_only
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Find the nodes of two GPUs
  ringmaster.gpu.gpu_device_info:
    gpus:
      - GPU-11111111-2222-3333-4444-555555555555
      - "0000:c1:00.0"
  delegate_to: "{{ proxmox_node }}"
  register: gpu
"""

RETURN = r"""
driver:
  description: Version of the kernel module that is loaded; nothing where none is.
  returned: success
  type: str
  sample: 580.95.05
kernel_module:
  description: V(open) or V(proprietary).
  returned: success
  type: str
gpus:
  description: Every GPU that the driver knows, in the order of bus ids.
  returned: success
  type: list
  elements: dict
  contains:
    uuid:
      description: Its UUID; nothing where the driver has none.
      type: str
    bus_id:
      description: Its PCI bus id, such as V(0000:41:00.0).
      type: str
    minor:
      description: Number of its node, now.
      type: int
    model:
      description: Its name.
      type: str
    path:
      description: Its node, such as V(/dev/nvidia0).
      type: str
    present:
      description: Whether the node is there.
      type: bool
    problem:
      description: Why it cannot be used; nothing when it can.
      type: str
chosen:
  description: Those of RV(gpus) that were asked for and can be used, in the order of bus ids.
  returned: success
  type: list
  elements: dict
devices:
  description:
    - Paths for a container. The nodes of RV(chosen), then nvidiactl, nvidia-uvm, nvidia-uvm-tools, nvidia-modeset and those below
      nvidia-caps, as far as they are there.
    - Empty when no GPU is chosen.
  returned: success
  type: list
  elements: str
missing:
  description: What was asked for, or is needed with it, and is not in RV(devices).
  returned: success
  type: list
  elements: dict
  contains:
    asked:
      description: The UUID or bus id as it was asked for, the bus id of a GPU that O(gpus=all) leaves out, or the path of a node.
      type: str
    why:
      description: The reason.
      type: str
problems:
  description: What is wrong on this node, asked for or not, as sentences.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import answer, gpu_devices


def argument_spec():
    return {
        "gpus": {"type": "raw", "default": "all"},
        "proc": {"type": "path", "default": gpu_devices.PROC},
        "dev": {"type": "path", "default": gpu_devices.DEV},
    }


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True)
    proc, dev, gpus = (module.params[name] for name in ("proc", "dev", "gpus"))
    answer.give(module, lambda: gpu_devices.resolve(gpu_devices.look(proc, dev), gpus), proc)


if __name__ == "__main__":
    main()
