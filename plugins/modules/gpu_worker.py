#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_worker
short_description: End orphaned GPU workers of one container, or of the machine
version_added: 0.1.0
description:
  - Ends SGLang workers whose launcher is gone and that still hold memory of a GPU, in the one container that is named. It runs on the
    Proxmox or LXC host, because a container often cannot see who holds its GPU; without one, on the machine itself.
  - A worker is known by the name that SGLang gives it, and an orphan by having no live launcher among its ancestors or in its systemd
    unit and being no part of another live program. C(TERM) comes first, C(KILL) after O(term_timeout_s), and each only while the process
    is the very same one (pid and start time) and is found to be an orphan once more. What orphans have begotten as they ended is sent the
    same, and in the third generation C(KILL) alone. Then the memory of the GPUs has to be back.
  - Everybody else is left alone, a training job, C(nvidia-persistenced), C(nvtop) or a live server, and so is every other container.
    What is in the kernel's uninterruptible sleep is reported with advice, and never signalled.
  - Fails when an orphan could not be ended, or the memory did not come back, with what to do.
options:
  state:
    description: V(absent) ends them.
    type: str
    choices: [absent]
    default: absent
  container:
    description:
      - VMID on Proxmox, else the name of the LXC container, or the first 12 digits of a Docker or Podman id.
      - Empty for the processes of this machine that are in no container.
    type: str
    default: ""
  force:
    description:
      - Ends the live servers of O(container), too, each launcher first and what is left of it after O(term_timeout_s).
        A unit may start its server again.
      - Foreign programs are not ended, even so.
    type: bool
    default: false
  term_timeout_s:
    description: How long a process may take to end after C(TERM).
    type: float
    default: 5
  release_timeout_s:
    description: How long the memory of the GPUs may take to be back once all processes have ended.
    type: float
    default: 20
extends_documentation_fragment:
  - ringmaster.gpu.gpu_worker
attributes:
  check_mode:
    description: Says what would be ended, in RV(reaped) and the difference, and signals nothing.
    support: full
  diff_mode:
    description: The workers of O(container) before and after.
    support: full
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: End orphaned workers of container 101, on its Proxmox node
  ringmaster.gpu.gpu_worker:
    container: "101"
  delegate_to: "{{ proxmox_node }}"
  become: true

- name: End orphaned workers of a host without containers
  ringmaster.gpu.gpu_worker:
  become: true

- name: End everything of SGLang in an LXC container, live servers too
  ringmaster.gpu.gpu_worker:
    container: inference-a
    force: true
    term_timeout_s: 60
  become: true
"""

RETURN = r"""
msg:
  description: What was ended, in a sentence.
  returned: success
  type: str
  sample: "container 101: ended 1 process: pid 4001 sglang::scheduler_TP0 (TERM); their memory was back after 1.2 s"
reaped:
  description: Processes that were signalled, or would be; with O(force) also those of a server that ended with their launcher.
  returned: success
  type: list
  elements: dict
  contains:
    pid:
      description: Its pid on this machine.
      type: int
    title:
      description: The name that SGLang gives it, else the kernel's.
      type: str
    class:
      description: As in RV(workers), or V(helper) for a process of a server that holds no GPU.
      type: str
    container:
      description: Its container.
      type: str
    signals:
      description: Signals that it got, V(TERM) and V(KILL).
      type: list
      elements: str
    ended_by:
      description: After which of them it was gone, its own or its launcher's; V(itself) without any, none when it is still there.
      type: str
    ended_after_s:
      description: Seconds after that signal.
      type: float
    why:
      description: Why it could not be signalled.
      type: str
left:
  description: Workers of O(container) that are there after all, and why.
  returned: success
  type: list
  elements: dict
  contains:
    pid:
      description: Its pid on this machine.
      type: int
    title:
      description: The name that SGLang gives it, else the kernel's.
      type: str
    class:
      description: As in RV(workers).
      type: str
    why:
      description: Why it is there still.
      type: str
    advice:
      description: What to do about it.
      type: str
gpus:
  description: Memory of each GPU before and after; none without C(nvidia-smi).
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
    memory_before_mib:
      description: Memory in use before.
      type: float
    memory_after_mib:
      description: Memory in use after.
      type: float
    held_mib:
      description: What was not given back of the memory that the ended processes had.
      type: int
released_after_s:
  description: Seconds until the memory was back; none when nothing was ended, it did not come back, or there is no
    C(nvidia-smi).
  returned: success
  type: float
workers:
  description: Workers of O(container) before, with all that is known of them.
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

from ..module_utils import answer, containers, gpu_memory, gpu_reap


def argument_spec():
    return {
        "state": {"type": "str", "choices": ["absent"], "default": "absent"},
        "container": {"type": "str", "default": ""},
        "force": {"type": "bool", "default": False},
        "term_timeout_s": {"type": "float", "default": 5.0},
        "release_timeout_s": {"type": "float", "default": 20.0},
        "wedged_over_s": {"type": "float", "default": gpu_memory.SAMPLE_OVER_S},
        "lxc_paths": {"type": "list", "elements": "path", "default": list(containers.LXC_PATHS)},
    }


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True)
    asked = module.params

    def work():
        return gpu_reap.reap(
            asked["container"],
            force=asked["force"],
            term_timeout_s=asked["term_timeout_s"],
            release_timeout_s=asked["release_timeout_s"],
            wedged_over_s=asked["wedged_over_s"],
            only_say=module.check_mode,
            lxc_paths=asked["lxc_paths"],
        )

    answer.give(module, work, "/proc")


if __name__ == "__main__":
    main()
