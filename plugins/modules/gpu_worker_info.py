#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_worker_info
short_description: Find the processes that hold GPUs, container by container
version_added: 0.1.0
description:
  - Lists every process that has a C(/dev/nvidia*) node open and every process of SGLang, with its container, its class and the reason for
    it, and the GPUs that keep memory for nobody.
  - Run on a Proxmox or LXC host it sees the containers with the pids that processes have inside and outside.
  - M(ringmaster.gpu.gpu_worker) ends those of class V(orphaned).
options:
  container:
    description:
      - Only that container, by its VMID on Proxmox, else the name of the LXC container, or the first 12 digits of a Docker or Podman id;
        empty for the processes that are in none.
      - When left out, all.
    type: str
extends_documentation_fragment:
  - ringmaster.gpu.read_only
  - ringmaster.gpu.gpu_worker
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Look who holds GPUs on the Proxmox node
  ringmaster.gpu.gpu_worker_info:
  delegate_to: "{{ proxmox_node }}"
  become: true
  register: found

- name: Show who holds the GPUs of container 101
  ansible.builtin.debug:
    msg: "{{ item.pid }} {{ item.title }} {{ item.class }}: {{ item.reason }}"
  loop: "{{ found.workers | selectattr('container', 'eq', '101') }}"
"""

RETURN = r"""
workers:
  description: The processes, oldest first.
  returned: success
  type: list
  elements: dict
  contains:
    pid:
      description: Its pid on this machine.
      type: int
    pids_inside:
      description: Its pids inside of its container and of those within, the outermost first.
      type: list
      elements: int
    class:
      description:
        - V(serving) and V(loading) for what belongs to a live server, with a port open or not.
        - V(orphaned) for an SGLang worker without a server, V(unkillable) for such a one that waits in the kernel.
        - V(defunct) for a process whose first thread has ended, V(foreign) for everybody else.
      type: str
    reason:
      description: Why it has that class.
      type: str
    advice:
      description: What to do about it, if anything.
      type: str
    role:
      description: What it is in SGLang, V(launcher), V(scheduler), V(detokenizer) and so on; none for others.
      type: str
    title:
      description: The name that SGLang gives it, else the kernel's.
      type: str
    program:
      description: What it runs, without its arguments.
      type: str
    state:
      description: The letter that the kernel has for its state.
      type: str
    server:
      description: Pid of the launcher it belongs to.
      type: int
    parent:
      description: Pid and name of its parent.
      type: dict
    container:
      description: Its container, none for the machine itself.
      type: str
    container_kind:
      description: What that is, V(lxc), V(docker), V(podman), V(cri), V(kubernetes), V(nspawn) or V(machine).
      type: str
    unit:
      description: Its systemd unit, inside of its container if it is in one.
      type: str
    user:
      description: Its user on this machine.
      type: str
    memory_mib:
      description: Memory it has of all GPUs, where C(nvidia-smi) tells.
      type: float
    nodes:
      description: The nodes it has open.
      type: list
      elements: str
    threads:
      description: Of a defunct one the threads that live, RV(ignore:tid), RV(ignore:name), RV(ignore:state) and RV(ignore:waits_in).
      type: list
      elements: dict
    started:
      description: When it was started, in UTC.
      type: str
gpus:
  description: Memory of each GPU; none without C(nvidia-smi).
  returned: success
  type: list
  elements: dict
  contains:
    index:
      description: Its number.
      type: int
    uuid:
      description: Its UUID.
      type: str
    memory_used_mib:
      description: Memory in use.
      type: float
    memory_total_mib:
      description: Memory it has.
      type: float
    utilization_percent:
      description: How busy it is.
      type: float
wedged:
  description: GPUs with memory in use that no process has, in three samples, with advice.
  returned: success
  type: list
  elements: dict
  contains:
    index:
      description: Its number.
      type: int
    uuid:
      description: Its UUID.
      type: str
    memory_used_mib:
      description: Memory in use.
      type: float
    memory_total_mib:
      description: Memory it has.
      type: float
    utilization_percent:
      description: How busy it says it is.
      type: float
    samples_mib:
      description: Memory in use in each sample.
      type: list
      elements: float
    advice:
      description: What to do.
      type: str
notes:
  description: What could not be judged, and what else a person should know.
  returned: success
  type: list
  elements: str
seen:
  description: Whether all processes in question could be seen, and why not.
  returned: success
  type: dict
  contains:
    complete:
      description: Whether they could.
      type: bool
    why:
      description: Why not, and what to do.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import answer, containers, gpu_memory, gpu_worker_look


def argument_spec():
    return {
        "container": {"type": "str"},
        "wedged_over_s": {"type": "float", "default": gpu_memory.SAMPLE_OVER_S},
        "lxc_paths": {"type": "list", "elements": "path", "default": list(containers.LXC_PATHS)},
    }


def gather(container, wedged_over_s, lxc_paths):
    """What the module returns. Raises RingmasterError for a CONTAINER that there is not."""
    memory = gpu_memory.read()
    found = gpu_worker_look.look(container, memory.by_pid())
    gpu_worker_look.check_container(container, found, lxc_paths)
    wedged, note = gpu_memory.wedged(memory, wedged_over_s)
    return {
        "workers": [gpu_worker_look.told(worker, found.view, memory.by_pid()) for worker in found.workers],
        "gpus": memory.gpus,
        "wedged": wedged,
        "notes": [note] if note else [],
        "seen": gpu_worker_look.seen(found),
    }


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True)
    asked = module.params
    answer.give(module, lambda: gather(asked["container"], asked["wedged_over_s"], asked["lxc_paths"]), "/proc")


if __name__ == "__main__":
    main()
