#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: reap_report
short_description: Show what reap.yml has found and done
version_added: 0.1.0
description:
  - Prints one table for all hosts of the play, with every process that has a GPU, what it is, and what was done about it.
  - Reads what M(ringmaster.gpu.gpu_worker) registered as C(__reap) on each host.
  - Works on the controller only and runs once for all hosts. Fails when a host could not be looked at, or an orphan not be ended.
options: {}
extends_documentation_fragment:
  - ringmaster.gpu.read_only
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Show the table
  ringmaster.gpu.reap_report:
"""

RETURN = r"""
reaped:
  description: How many processes were ended on each host, or would be.
  returned: always
  type: dict
  sample: {gpu1: 2}
"""

from ansible.module_utils.basic import AnsibleModule


def main():
    module = AnsibleModule({}, supports_check_mode=True)
    module.fail_json(msg="ringmaster.gpu.reap_report works through its action plugin on the controller.")


if __name__ == "__main__":
    main()
