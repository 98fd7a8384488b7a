#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: tune_report
short_description: Show what a run has measured
version_added: 0.1.0
description:
  - Prints one table for all hosts of the play, and the inventory lines that make kept changes permanent.
  - Works on the controller only and runs once for all hosts.
options:
  show:
    description: The results of a run, or what M(ringmaster.gpu.trial_plan) registered as C(__tune_status) on each host.
    type: str
    choices: [results, status]
    default: results
  fail_on:
    description: Verdicts that make the run fail.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - ringmaster.gpu.read_only
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Show the table
  ringmaster.gpu.tune_report:
"""

RETURN = r"""
rows:
  description: The rows of the table.
  returned: always
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule


def main():
    module = AnsibleModule(
        {
            "show": {"type": "str", "choices": ["results", "status"], "default": "results"},
            "fail_on": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    module.fail_json(msg="ringmaster.gpu.tune_report works through its action plugin on the controller.")


if __name__ == "__main__":
    main()
