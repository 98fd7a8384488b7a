#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: diagnose_report
short_description: Show what diagnose.yml has found
version_added: 0.1.0
description:
  - Prints one table for all hosts of the play, a block for each server that does not serve, and the next command.
  - Reads what M(ringmaster.gpu.sglang_server_info) and M(ringmaster.gpu.nccl_info) registered as C(__diagnose_servers) and
    C(__diagnose_nccl) on each host.
  - Works on the controller only and runs once for all hosts. Fails when a host could not be looked at.
options:
  details:
    description: Show a block for servers that serve, too; by default only for a single host.
    type: bool
extends_documentation_fragment:
  - ringmaster.gpu.read_only
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Show the table
  ringmaster.gpu.diagnose_report:
    details: true
"""

RETURN = r"""
verdicts:
  description: The verdict of each host that could be looked at.
  returned: always
  type: dict
  sample: {gpu1: serving}
"""

from ansible.module_utils.basic import AnsibleModule


def main():
    module = AnsibleModule({"details": {"type": "bool"}}, supports_check_mode=True)
    module.fail_json(msg="ringmaster.gpu.diagnose_report works through its action plugin on the controller.")


if __name__ == "__main__":
    main()
