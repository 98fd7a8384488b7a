#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_mend
short_description: Complete what dpkg was cut off amid
version_added: 0.1.0
description:
  - Finds packages that are half unpacked or half configured, after a power cut, a full disk or C(kill -9), and completes them.
  - Removes nothing. Waits for a package manager that runs, and names the one that does not end.
options:
  lock_timeout_s:
    description: Longest time to wait for another package manager, in seconds.
    type: float
    default: 300
attributes:
  check_mode:
    description: Tells what it would complete.
    support: full
  diff_mode:
    description: There is no difference to show.
    support: none
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Complete what was cut off
  become: true
  ringmaster.gpu.apt_mend:
"""

RETURN = r"""
found:
  description: Packages that dpkg was ended amid.
  returned: success
  type: list
  elements: str
left:
  description: Those that still are, for want of others. An installation that brings these completes them.
  returned: success
  type: list
  elements: str
why:
  description: What apt or dpkg said of RV(left).
  returned: when something was found
  type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import answer, apt_set


def main():
    module = AnsibleModule({"lock_timeout_s": {"type": "float", "default": 300}}, supports_check_mode=True)
    answer.give(module, lambda: apt_set.mend(module.params["lock_timeout_s"], module.check_mode), "/var/lib/dpkg")


if __name__ == "__main__":
    main()
