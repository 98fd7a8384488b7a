#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_closure
short_description: Tell the exact version of each package that a metapackage stands for
version_added: 0.1.0
description:
  - A metapackage that asks for its parts by C(>=) is content with parts of a later release. This follows its dependencies and takes, of
    each part, the version that is named there.
  - Changes nothing. Needs apt's lists of packages.
options:
  packages:
    description: Packages to begin with, C(NAME=VERSION), where the version may be a shell pattern; then the newest is taken.
    type: list
    elements: str
    required: true
  members:
    description: Shell patterns of the packages that belong together. Dependencies on others are left to apt.
    type: list
    elements: str
    required: true
  shared:
    description: Shell patterns of those members that other sets need, too. One that is installed and new enough stays as it is.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - ringmaster.gpu.read_only
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: All of CUDA 12.8.1
  ringmaster.gpu.apt_closure:
    packages: [cuda-toolkit-12-8=12.8.1-*]
    members: ["*-12-8", "cuda-toolkit-*config-common", "nsight-*"]
  register: set
"""

RETURN = r"""
rows:
  description: RV(ignore:name) and RV(ignore:version) of each.
  returned: success
  type: list
  elements: dict
others:
  description: The same of members that are installed and none of RV(rows).
  returned: success
  type: list
  elements: dict
unknown:
  description: What apt does not know.
  returned: success
  type: list
  elements: str
there:
  description: The versions that there are instead.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import answer, apt_closure


def argument_spec():
    return {
        "packages": {"type": "list", "elements": "str", "required": True},
        "members": {"type": "list", "elements": "str", "required": True},
        "shared": {"type": "list", "elements": "str", "default": []},
    }


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True)
    given = module.params
    answer.give(module, lambda: apt_closure.closure(given["packages"], given["members"], given["shared"]), "/var/lib/apt")


if __name__ == "__main__":
    main()
