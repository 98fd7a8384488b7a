#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_refresh
short_description: Fetch apt's lists of packages, of one repository or of all
version_added: 0.1.0
description:
  - Fetches the lists of one sources file alone, also on a host whose other repositories are out of reach.
  - Waits for a package manager that runs, and names the one that does not end.
options:
  sources_file:
    description: The file in C(/etc/apt/sources.list.d). Without it, all.
    type: path
  max_age_s:
    description:
      - Fetch them only when this module did so longer ago, in seconds. Where they cannot be fetched then, that is a warning, and those that
        are there stay.
    type: float
  lock_timeout_s:
    description: Longest time to wait for another package manager, in seconds.
    type: float
    default: 300
attributes:
  check_mode:
    description: Fetches nothing.
    support: full
  diff_mode:
    description: There is no difference to show.
    support: none
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Fetch the lists of NVIDIA's repository
  become: true
  ringmaster.gpu.apt_refresh:
    sources_file: /etc/apt/sources.list.d/nvidia.sources
    max_age_s: 86400
"""

RETURN = r"""
fetched:
  description: Whether the lists are new ones.
  returned: success
  type: bool
missing:
  description: What apt says of lists that could not be fetched. Those of O(sources_file) are a failure.
  returned: when RV(fetched)
  type: list
  elements: str
advice:
  description: What to do about RV(missing).
  returned: when RV(fetched)
  type: str
sources_file:
  description: The file whose lists were fetched; null when it was all.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import answer, apt_run, apt_set
from ..module_utils.errors import RingmasterError


def main():
    spec = {"sources_file": {"type": "path"}, "max_age_s": {"type": "float"}, "lock_timeout_s": {"type": "float", "default": 300}}
    module = AnsibleModule(spec, supports_check_mode=True)
    given = module.params

    def work():
        due = given["max_age_s"] is None or not apt_set.are_fresh(given["sources_file"], given["max_age_s"])
        result = {"changed": due, "fetched": due and not module.check_mode, "sources_file": given["sources_file"]}
        if result["fetched"]:
            apt_run.wait_until_free(given["lock_timeout_s"])
            try:
                result.update(apt_set.refresh(given["sources_file"], given["lock_timeout_s"]))
            except RingmasterError as error:
                if given["max_age_s"] is None:
                    raise
                module.warn(f"{error} Until then the lists are taken that are here.")
                result.update(changed=False, fetched=False)
        return result

    answer.give(module, work, "/var/lib/apt/lists", "write")


if __name__ == "__main__":
    main()
