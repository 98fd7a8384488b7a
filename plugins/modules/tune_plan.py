#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: tune_plan
short_description: Check what was given for a run and make its plan
version_added: 0.1.0
description:
  - Works on the controller only. Tells factors from inventory (a factor is an extra variable, or in O(factors)), checks variables,
    lays them over the host's known-good configuration, refuses what would disturb a serving host, and orders the launches.
  - Changes nothing.
options:
  target:
    description: What M(ringmaster.gpu.target_info) found.
    type: dict
    required: true
  asked:
    description: The arguments that M(ringmaster.gpu.target_info) had, for first contact.
    type: dict
    default: {}
  settings:
    description: The C(tune_*) variables of the role P(ringmaster.gpu.tune#role), without their prefix.
    type: dict
    required: true
  factors:
    description: Factor variables in addition to the extra variables.
    type: dict
    default: {}
  only:
    description: Plan this factor alone, by its label.
    type: str
  rollback_version:
    description: Plan the way back to this known-good version instead; V(previous) is the one before the version in force.
    type: str
  variables_only:
    description: Only look for misspelt variables.
    type: bool
    default: false
extends_documentation_fragment:
  - ringmaster.gpu.read_only
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Plan the run
  ringmaster.gpu.tune_plan:
    target: "{{ __tune_target.target }}"
    settings: "{{ _tune_settings }}"
  register: __tune_plan
"""

RETURN = r"""
factors:
  description: Labels of what differs from known-good.
  returned: success
  type: list
  elements: str
in_force:
  description: Labels of what was given but is in force already.
  returned: success
  type: list
  elements: str
plan:
  description: The plan for M(ringmaster.gpu.trial_plan) when there is exactly one factor.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule


def main():
    module = AnsibleModule(
        {
            "target": {"type": "dict", "required": True},
            "asked": {"type": "dict", "default": {}},
            "settings": {"type": "dict", "required": True},
            "factors": {"type": "dict", "default": {}},
            "only": {"type": "str"},
            "rollback_version": {"type": "str"},
            "variables_only": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    module.fail_json(msg="ringmaster.gpu.tune_plan works through its action plugin on the controller.")


if __name__ == "__main__":
    main()
