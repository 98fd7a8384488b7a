#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_server_settled
short_description: See that a server that was started stays up
version_added: 0.1.0
description:
  - Waits until the present start of a systemd unit is O(settle_s) old, which needs no time for a server that has been up for longer.
    Fails with the cause and the end of its log when it ends before.
  - It does not wait until the server answers, which takes a large model many minutes. M(ringmaster.gpu.sglang_server_info) tells that.
options:
  unit:
    description: The systemd unit that serves.
    type: str
    required: true
  settle_s:
    description: Seconds that it has to stay up.
    type: float
    default: 60
  state_dir:
    description: Ringmaster's state directory on the host.
    type: path
    default: /var/lib/ringmaster
extends_documentation_fragment:
  - ringmaster.gpu.read_only
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: The server stays up
  ringmaster.gpu.sglang_server_settled:
    unit: sglang
  become: true
"""

RETURN = r"""
pid:
  description: The main process of the unit.
  returned: success
  type: int
age_s:
  description: How long it has been up.
  returned: success
  type: float
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import answer, settling
from ..module_utils.state import State


def argument_spec():
    return {
        "unit": {"type": "str", "required": True},
        "settle_s": {"type": "float", "default": 60.0},
        "state_dir": {"type": "path", "default": "/var/lib/ringmaster"},
    }


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True)
    asked = module.params
    answer.give(module, lambda: settling.wait(asked["unit"], asked["settle_s"], State(asked["state_dir"])), asked["state_dir"])


if __name__ == "__main__":
    main()
