# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A play's host pattern, refused when it matches nobody: Ansible itself would end with success."""

from __future__ import annotations

DOCUMENTATION = r"""
name: matching
short_description: A host pattern that matches at least one host
version_added: 0.1.0
description:
  - Gives the pattern back, or fails when no host of the inventory matches it within the limit.
positional: _groups, _limit, _serial, _variable
options:
  _input:
    description: The pattern of a play.
    type: str
    required: true
  _groups:
    description: The magic variable C(groups).
    type: dict
    required: true
  _limit:
    description: What C(--limit) says; empty for no limit.
    type: str
    default: ""
  _serial:
    description: What the play takes as C(serial); refused when it is no number, percentage or list of these.
    type: raw
    default: 1
  _variable:
    description: The variable that gave the pattern, for messages.
    type: str
    default: tune_hosts
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: A play that never silently does nothing
  hosts: "{{ 'inference' | ringmaster.gpu.matching(groups, ansible_limit | default('')) }}"
"""

RETURN = r"""
_value:
  description: The pattern.
  type: str
"""

import re

from ansible.errors import AnsibleFilterError
from ansible.inventory.manager import InventoryManager


def matching(pattern, groups, limit="", serial=1, variable="tune_hosts"):
    """PATTERN, when at least one host of GROUPS {name: [host]} matches it within LIMIT, and SERIAL is one that Ansible can use."""
    for step in serial if isinstance(serial, list) else [serial]:
        if not re.fullmatch(r"[1-9]\d*%?", str(step)):
            raise AnsibleFilterError(f"tune_serial: {step!r} is no number of hosts; give 1, 25% or a list of such.")
    manager = InventoryManager(loader=None, parse=False)
    for group, hosts in groups.items():
        manager.add_group(group)
        for host in hosts:
            manager.add_host(host, group)
    if limit and "@" not in limit:
        manager.subset(limit)
    if not manager.get_hosts(pattern):
        within = f" within --limit {limit}" if limit else ""
        known = ", ".join(sorted(set(groups) - {"all", "ungrouped"})) or "none"
        raise AnsibleFilterError(
            f"{variable}: no host matches '{pattern}'{within}; the inventory has the groups {known}. "
            f"Put the hosts into the group 'inference', or name yours with -e {variable}=GROUP."
        )
    return pattern


class FilterModule:
    def filters(self):
        return {"matching": matching}
