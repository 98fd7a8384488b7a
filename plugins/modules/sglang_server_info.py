#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_server_info
short_description: Look at every SGLang server of a host, whoever started it
version_added: 0.1.0
description:
  - Judges each server by its processes, its answers and its progress, and the host by one of its servers, in one round trip of seconds.
  - Its log only explains. What was seen is V(proven), what follows from it V(inferred), the rest V(unknown).
  - Changes nothing and generates nothing. It asks C(/model_info), C(/server_info) and C(/ready), never C(/health), which
    generates a token and can mark a busy server unhealthy.
  - Without root it sees the servers of its own user only.
options:
  unit:
    description: Name of the systemd unit that serves; empty for none.
    type: str
    default: ""
  state_dir:
    description: Ringmaster's state directory on the host.
    type: path
    default: /var/lib/ringmaster
  stall_timeout_s:
    description: A server that does not answer, and shows no sign of life for so many seconds, is V(hung).
    type: float
    default: 300
  timeout_s:
    description: Longest time for answers, C(nvidia-smi) and logs, all asked side by side. What is late is reported as such.
    type: float
    default: 2.5
  probe:
    description: Let each server that listens complete one short request, too.
    type: bool
    default: false
  probe_timeout_s:
    description: Longest time for O(probe).
    type: float
    default: 30
extends_documentation_fragment:
  - ringmaster.gpu.read_only
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Look at the servers
  ringmaster.gpu.sglang_server_info:
    unit: sglang
  register: found

- name: Wait until the production server answers
  ringmaster.gpu.sglang_server_info:
    unit: sglang
  register: found
  until: found.verdict != 'loading'
  retries: 60
  delay: 10
"""

RETURN = r"""
verdict:
  description: That of the server which speaks for the host, the first of RV(servers).
  returned: success
  type: str
  sample: serving
certainty:
  description: V(proven), V(inferred) or V(unknown).
  returned: success
  type: str
why:
  description: The reason in a sentence.
  returned: success
  type: str
servers:
  description: All servers, at least one; a unit that is down, or a host without any, is one without processes.
  returned: success
  type: list
  elements: dict
  contains:
    verdict:
      description: V(serving), V(loading), V(hung), V(crashed), V(stopped), or V(unmanaged) for one that nobody answers for.
      type: str
    state:
      description: The same for an unmanaged one, as if it were managed.
      type: str
    certainty:
      description: V(proven), V(inferred) or V(unknown).
      type: str
    why:
      description: The reason in a sentence.
      type: str
    managed_by:
      description: V(unit), V(ringmaster), or nothing.
      type: str
    pid:
      description: Its launcher.
      type: int
    pids:
      description: All its processes.
      type: list
      elements: int
    origin:
      description: User, parent, unit and container that it comes from.
      type: dict
    port:
      description: The port of its command.
      type: int
    version:
      description: Version of SGLang.
      type: str
    model:
      description: Path of its model.
      type: str
    flags:
      description: Flags of its command, secrets hidden.
      type: dict
    phase:
      description: The last phase that its log names.
      type: str
    cause:
      description: Why it crashed, RV(ignore:signature), RV(ignore:summary), RV(ignore:advice) and RV(ignore:evidence).
      type: dict
    log:
      description: Where its output goes, and how long ago it last grew.
      type: dict
    ranks:
      description: Its schedulers, title and pid.
      type: dict
    nccl:
      description: What M(ringmaster.gpu.nccl_info) says of it, but for the hash of the library.
      type: dict
    next:
      description: What to do next, a command on the host.
      type: str
gpus:
  description: Health of each GPU, with RV(ignore:problems) in words; none without GPUs.
  returned: success
  type: list
  elements: dict
gpu_problem:
  description: Why nothing is known of the GPUs.
  returned: success
  type: str
gpu_memory:
  description: Memory of the GPUs by process.
  returned: success
  type: list
  elements: dict
ringmaster:
  description: Who runs a plan here, whether one was cut off, and the version of known-good in force.
  returned: success
  type: dict
last_trial:
  description: The newest trial, its outcome, cause and log.
  returned: success
  type: dict
notes:
  description: What could not be seen.
  returned: success
  type: list
  elements: str
seconds:
  description: How long the look took.
  returned: success
  type: float
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import answer, host_look
from ..module_utils.state import State


def argument_spec():
    return {
        "unit": {"type": "str", "default": ""},
        "state_dir": {"type": "path", "default": "/var/lib/ringmaster"},
        "stall_timeout_s": {"type": "float", "default": 300.0},
        "timeout_s": {"type": "float", "default": 2.5},
        "probe": {"type": "bool", "default": False},
        "probe_timeout_s": {"type": "float", "default": 30.0},
    }


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True)
    asked = module.params

    def work():
        return host_look.look(
            State(asked["state_dir"]),
            unit=asked["unit"] or None,
            stall_timeout_s=asked["stall_timeout_s"],
            timeout_s=asked["timeout_s"],
            probe_timeout_s=asked["probe_timeout_s"] if asked["probe"] else None,
        )

    answer.give(module, work, "/proc")


if __name__ == "__main__":
    main()
