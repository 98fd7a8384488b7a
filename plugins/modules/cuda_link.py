#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_link
short_description: Choose the CUDA toolkit that /usr/local/cuda stands for
version_added: 0.1.0
description:
  - Without O(folder), keeps the toolkit that is in force from being replaced by the installation of another. NVIDIA's packages switch to
    the newest one by themselves, before it is complete.
  - With O(folder), switches to that toolkit once its compiler has answered with O(version) and O(compiler). Nothing is switched else.
  - Uses the alternative C(cuda) of C(update-alternatives), which replaces a link in one step, and makes it where there is none.
options:
  link:
    description: The link.
    type: path
    default: /usr/local/cuda
  folder:
    description: Directory of the toolkit that is to be in force.
    type: path
  version:
    description: Release that it has to be, such as V(12.8).
    type: str
    default: ""
  compiler:
    description: Version that its C(nvcc) has to answer with, such as V(12.8.93). Empty for a toolkit without a compiler.
    type: str
    default: ""
attributes:
  check_mode:
    description: Tells whether it would switch. The compiler is not asked.
    support: full
  diff_mode:
    description: Shows the link before and after.
    support: full
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Nothing is switched by packages
  become: true
  ringmaster.gpu.cuda_link:

- name: CUDA 12.8.1 is in force
  become: true
  ringmaster.gpu.cuda_link:
    folder: /usr/local/cuda-12.8
    version: "12.8"
    compiler: 12.8.93
"""

RETURN = r"""
target:
  description: The toolkit in force; null where there is none.
  returned: success
  type: str
before:
  description: The one that was before.
  returned: with O(folder)
  type: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import answer, cuda_link


def argument_spec():
    return {
        "link": {"type": "path", "default": "/usr/local/cuda"},
        "folder": {"type": "path"},
        "version": {"type": "str", "default": ""},
        "compiler": {"type": "str", "default": ""},
    }


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True)
    given = module.params

    def work():
        if given["folder"] is None:
            return cuda_link.fix(given["link"], module.check_mode)
        return cuda_link.switch(given["link"], given["folder"], given["version"], given["compiler"], module.check_mode)

    answer.give(module, work, given["link"], "change")


if __name__ == "__main__":
    main()
