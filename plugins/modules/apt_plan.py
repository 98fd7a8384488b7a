#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_plan
short_description: Tell what apt would do for packages that belong together
version_added: 0.1.0
description:
  - Simulates an installation with a preferences file that need not be written yet, and names the conflict where there is one.
  - Recommended packages are left out; downgrades and changes of held packages are allowed.
  - Changes nothing. Needs apt, and no Python library of its own.
options:
  packages:
    description:
      - Packages to install. C(NAME), C(NAME=VERSION), where the version may end in C(*), or C(A | B), the first of which that is installed,
        else the first that apt knows, is taken.
    type: list
    elements: str
    default: []
  members:
    description: Shell patterns of the packages that belong together. Only these may be removed.
    type: list
    elements: str
    default: []
  version:
    description: Version to which O(members) that are installed move, where there is such a one. It may end in C(*).
    type: str
    default: ""
  forbidden:
    description: Packages that go where they are installed, and that nothing may bring in.
    type: list
    elements: str
    default: []
  preferences:
    description: Text of a preferences file that is to be in force.
    type: str
    default: ""
  preferences_file:
    description: Where O(preferences) will be written. What is there now is left out of the simulation.
    type: path
  places:
    description: Directories in whose file systems there must be room for what comes.
    type: list
    elements: path
    default: [/usr]
extends_documentation_fragment:
  - ringmaster.gpu.read_only
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Try a driver
  ringmaster.gpu.apt_plan:
    packages: [nvidia-driver-cuda=580.105.08-*, nvidia-kernel-open-dkms=580.105.08-*]
    members: [nvidia-*, libnvidia-*, libcuda1]
    version: 580.105.08-*
    preferences: |
      Package: nvidia-* libnvidia-* libcuda1
      Pin: version 580.105.08-*
      Pin-Priority: 1001
    preferences_file: /etc/apt/preferences.d/nvidia
  register: plan
"""

RETURN = r"""
specs:
  description: What to hand to apt.
  returned: success
  type: list
  elements: str
unknown:
  description: Those of O(packages) that apt does not know. Nothing was simulated then.
  returned: success
  type: list
  elements: str
there:
  description: The versions that there are instead of RV(unknown).
  returned: success
  type: list
  elements: str
bytes:
  description: What would be fetched (C(download)), and what it takes on the disk (C(install)).
  returned: success
  type: dict
steps:
  description: What apt would do.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Package.
      type: str
    action:
      description: V(install), V(change) or V(remove).
      type: str
    before:
      description: Version that is installed.
      type: str
    after:
      description: Version that would be.
      type: str
conflicts:
  description: Why it cannot or must not be done.
  returned: success
  type: list
  elements: str
installed:
  description: The packages of O(members) that are installed, with RV(ignore:version) and RV(ignore:held).
  returned: success
  type: list
  elements: dict
after:
  description: The same once it is done.
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import answer, apt_plan


def argument_spec():
    texts = {"type": "list", "elements": "str", "default": []}
    return {
        "packages": texts,
        "members": texts,
        "version": {"type": "str", "default": ""},
        "forbidden": texts,
        "preferences": {"type": "str", "default": ""},
        "preferences_file": {"type": "path"},
        "places": {"type": "list", "elements": "path", "default": ["/usr"]},
    }


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True)
    given = dict(module.params)
    answer.give(module, lambda: apt_plan.plan(given.pop("packages"), **given), apt_plan.PREFERENCES)


if __name__ == "__main__":
    main()
