#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: target_info
short_description: Look at a host that serves with SGLang, before it is tuned
version_added: 0.1.0
description:
  - Reads, in one round trip, all that a run has to know of a host.
    The known-good configuration (or the one that first contact would adopt), who holds the lock, the interpreter and the
    sitecustomize it imports, the versions of SGLang, torch and NCCL, the GPUs and who uses them, the production unit.
  - Changes nothing.
options:
  state_dir:
    description: Ringmaster's state directory on the host.
    type: path
    default: /var/lib/ringmaster
  server:
    description:
      - What the inventory says of the server.
        Used where no unit and no known-good version says it.
    type: dict
    suboptions:
      python:
        description: The interpreter that runs SGLang.
        type: path
      flags:
        description: Flags of the server without dashes, V(true) for one without value.
        type: dict
        default: {}
      environment:
        description: Environment variables of the server.
        type: dict
        default: {}
      host:
        description: Address on which the production server listens.
        type: str
      port:
        description: Port on which the production server listens.
        type: int
      user:
        description: User that runs the server; default is who runs Ringmaster.
        type: str
  scope:
    description: Where NCCL settings are to live.
    type: str
    choices: [service, interpreter]
    default: service
  unit:
    description: Name of the systemd unit that serves; empty for none.
    type: str
    default: ""
  trial_port:
    description: Port for trials; V(0) takes a free one.
    type: int
    default: 0
  benchmark_tool:
    description: What is to ask; it has to be there.
    type: str
    choices: [ringmaster, sglang, aiperf]
    default: ringmaster
  aiperf:
    description: The C(aiperf) executable, for O(benchmark_tool=aiperf).
    type: str
    default: ""
extends_documentation_fragment:
  - ringmaster.gpu.read_only
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Look at the host
  ringmaster.gpu.target_info:
    unit: sglang
  register: target
"""

RETURN = r"""
target:
  description:
    - RV(ignore:status), RV(ignore:configuration), RV(ignore:unit), RV(ignore:engine), RV(ignore:site), RV(ignore:gpus) and what is wrong,
      as RV(ignore:problems) and RV(ignore:warnings).
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import answer, survey
from ..module_utils.state import State


def argument_spec():
    server = {
        "python": {"type": "path"},
        "flags": {"type": "dict", "default": {}},
        "environment": {"type": "dict", "default": {}},
        "host": {"type": "str"},
        "port": {"type": "int"},
        "user": {"type": "str"},
    }
    return {
        "state_dir": {"type": "path", "default": "/var/lib/ringmaster"},
        "server": {"type": "dict", "apply_defaults": True, "options": server},
        "scope": {"type": "str", "choices": ["service", "interpreter"], "default": "service"},
        "unit": {"type": "str", "default": ""},
        "trial_port": {"type": "int", "default": 0},
        "benchmark_tool": {"type": "str", "choices": ["ringmaster", "sglang", "aiperf"], "default": "ringmaster"},
        "aiperf": {"type": "str", "default": ""},
    }


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True)
    directory = module.params["state_dir"]
    answer.give(module, lambda: {"target": survey.survey(State(directory), module.params)}, directory, "use")


if __name__ == "__main__":
    main()
