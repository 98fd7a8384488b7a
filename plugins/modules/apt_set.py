#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_set
short_description: Install packages that belong together, and hold them
version_added: 0.1.0
description:
  - Does what M(ringmaster.gpu.apt_plan) has planned. Everything is fetched before the first package is touched.
  - Waits for a package manager that runs, and names the one that does not end.
options:
  specs:
    description: The RV(ringmaster.gpu.apt_plan#module:specs) of a plan; none leaves the packages as they are.
    type: list
    elements: str
    default: []
  remove:
    description: Names of packages that go with it.
    type: list
    elements: str
    default: []
  members:
    description: Shell patterns of the packages that belong together. Those that are installed are held.
    type: list
    elements: str
    required: true
  lock_timeout_s:
    description: Longest time to wait for another package manager, in seconds.
    type: float
    default: 300
attributes:
  check_mode:
    description: Tells what it would hold.
    support: full
  diff_mode:
    description: Shows the packages that are held.
    support: full
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Carry out a plan
  become: true
  ringmaster.gpu.apt_set:
    specs: "{{ plan.specs }}"
    members: [nvidia-*, libnvidia-*, libcuda1]
"""

RETURN = r"""
installed:
  description: What was handed to apt.
  returned: success
  type: list
  elements: str
held:
  description: Packages that are held now and were not before.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import answer, apt_set


def argument_spec():
    return {
        "specs": {"type": "list", "elements": "str", "default": []},
        "remove": {"type": "list", "elements": "str", "default": []},
        "members": {"type": "list", "elements": "str", "required": True},
        "lock_timeout_s": {"type": "float", "default": 300},
    }


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True)
    given = module.params

    def work():
        result = apt_set.settle(given["specs"], given["remove"], given["members"], given["lock_timeout_s"], module.check_mode)
        return {**result, "diff": {"before": "", "after": "".join(f"{name} hold\n" for name in result["held"])}}

    answer.give(module, work, "/var/lib/dpkg", "write")


if __name__ == "__main__":
    main()
