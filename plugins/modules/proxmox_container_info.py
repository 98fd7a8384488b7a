#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: proxmox_container_info
short_description: Look at LXC containers of Proxmox VE
version_added: 0.1.0
author:
  - Ringmaster contributors (@ringmaster)
description:
  - Reads the configuration and the state of containers through the API of Proxmox VE.
  - It sees what its identity may see (C(VM.Audit)).
options:
  vmid:
    description: Only this container. It is no error when there is none.
    type: int
  node:
    description: Only containers of this node.
    type: str
  addresses:
    description: Whether running containers are asked for their IP addresses; one more call for each.
    type: bool
    default: false
extends_documentation_fragment:
  - ringmaster.gpu.proxmox
  - ringmaster.gpu.read_only
seealso:
  - module: ringmaster.gpu.proxmox_container
"""

EXAMPLES = r"""
- name: All containers of the cluster
  ringmaster.gpu.proxmox_container_info:
    api_host: pve1.example.net
    api_user: ansible@pve
    api_token_id: fleet
    api_token_secret: "{{ proxmox_secret }}"
  register: found

- name: One of them, with its addresses, from the node itself
  ringmaster.gpu.proxmox_container_info:
    vmid: 101
    addresses: true
  delegate_to: pve1.example.net
"""

RETURN = r"""
containers:
  description: The containers, by number.
  returned: success
  type: list
  elements: dict
  contains:
    vmid:
      description: Number of the container.
      type: int
    node:
      description: Node that it is on.
      type: str
    name:
      description: Its host name.
      type: str
    status:
      description: V(running), V(stopped), or V(unknown) when its node cannot be asked.
      type: str
    lock:
      description: What holds it, such as V(backup); empty when nothing does.
      type: str
    pool:
      description: Its resource pool; empty when it is in none.
      type: str
    template:
      description: Whether it is a template.
      type: bool
    config:
      description:
        - The configuration in the words of the options of M(ringmaster.gpu.proxmox_container), with what waits for a restart.
          What is not set is null, or an empty list. Empty when the container could not be read.
      type: dict
      contains:
        devices:
          description: Its devices, as O(ringmaster.gpu.proxmox_container#module:devices), each with its C(key), such as V(dev0).
          type: list
          elements: dict
        mounts:
          description: Its mounts, as O(ringmaster.gpu.proxmox_container#module:mounts), each with its C(key).
          type: list
          elements: dict
        networks:
          description: Its networks, as O(ringmaster.gpu.proxmox_container#module:networks), each with its C(key).
          type: list
          elements: dict
        rootfs:
          description: Its root file system, with V(volume), V(storage) and V(size_gib).
          type: dict
        features:
          description: What it may do, as O(ringmaster.gpu.proxmox_container#module:features).
          type: dict
        extra:
          description: Keys that no option of their own stands for, as Proxmox VE writes them.
          type: dict
        lxc:
          description: Raw keys of LXC with their values, in pairs. The API shows them and does not accept them.
          type: list
          elements: list
    pending:
      description: What it takes at its next start, as RV(ringmaster.gpu.proxmox_container#module:pending).
      type: list
      elements: dict
    restart_required:
      description: Whether it runs and something waits for its next start.
      type: bool
    addresses:
      description: IP addresses with prefix length, without the loopback's. Only with O(addresses=true), empty when it does not run.
      type: list
      elements: str
    problem:
      description: Why a container could not be read; empty when it could.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ..module_utils import pve_client, pve_guest
from ..module_utils.errors import RingmasterError


def argument_spec():
    return {
        **pve_client.argument_spec(),
        "vmid": {"type": "int"},
        "node": {"type": "str"},
        "addresses": {"type": "bool", "default": False},
    }


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True, required_together=pve_client.TOGETHER)
    library, trace = pve_client.missing(module.params)
    if library:
        module.fail_json(msg=missing_required_lib(library), exception=trace)
    try:
        containers = pve_guest.survey(pve_client.connect(module.params), module.params)
    except RingmasterError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, containers=containers)


if __name__ == "__main__":
    main()
