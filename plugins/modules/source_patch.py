#!/usr/bin/python
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: source_patch
short_description: Source patches on the packages of a virtual environment
version_added: 0.1.0
description:
  - Brings all patches of an environment to what is listed, in one go. Either every file of every patch changes, or none does; what was
    cut off in between is put back by the next run.
  - A diff is applied exactly. Every context line has to be there, at the stated line or with all hunks of a file equally far off it.
  - Changed Python files are compiled by the environment's own interpreter first. Nothing of the packages is imported.
  - Each patch that is on is recorded in C(ringmaster-patches) below the environment, with its diff and the hashes of its files before and
    after. A patch goes by its record, whatever has become of the file it came from.
options:
  environment:
    description: Folder of the virtual environment. Refused as long as a process runs out of it.
    type: path
    required: true
  patches:
    description: The patches, in the order in which they are put on. They are taken away in reverse.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the patch. It stays the same when its diff changes.
        type: str
        required: true
      state:
        description: V(absent) takes the patch away, also one that was put on by hand where O(patches[].diff) tells what it is.
        type: str
        choices: [present, absent]
        default: present
      patch:
        description: File on the controller with a unified diff. A relative path is looked up as that of a file of a role or a playbook.
        type: str
      diff:
        description: The unified diff itself, instead of O(patches[].patch).
        type: str
      package:
        description: Package whose version counts. The paths of the diff, less C(a/) and C(b/), begin in the folder where it is installed.
        type: str
        default: sglang
      versions:
        description: Versions of the package that the patch is for, such as V(>=0.5.15) and V(<0.5.19). All have to hold.
        type: list
        elements: str
        default: []
  exclusive:
    description: Whether to take away patches that are recorded and not listed. They are named in a warning otherwise.
    type: bool
    default: false
  rehearse:
    description: Only say whether the patches would go on, of an environment that others may run out of. Changes nothing.
    type: bool
    default: false
attributes:
  action:
    description: An action plugin reads O(patches[].patch) on the controller.
    support: full
  check_mode:
    description: Says what would change, and refuses what would be refused.
    support: full
  diff_mode:
    description: Shows the lines that change.
    support: full
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: One patch of our own, and one that goes
  ringmaster.gpu.source_patch:
    environment: /opt/sglang/environments/0.5.16-cu130-1a2b3c4d
    patches:
      - name: shorter-poll
        patch: patches/shorter-poll.patch
        versions: [">=0.5.16", "<0.5.17"]
      - name: flashinfer-fusion-sm120
        state: absent
  become: true
"""

RETURN = r"""
patches:
  description: What is on, from the bottom, as a trial's configuration has it.
  returned: success
  type: list
  elements: dict
  sample: [{name: shorter-poll, package: sglang, version: 0.5.16, sha256: 6d1a…}]
applied:
  description: Names of the patches that were put on. One whose diff changed is in RV(removed), too.
  returned: success
  type: list
  elements: str
removed:
  description: Names of the patches that were taken away.
  returned: success
  type: list
  elements: str
adopted:
  description: Names of the patches that somebody had put on by hand, and that are recorded now.
  returned: success
  type: list
  elements: str
gone:
  description: Names of the patches that were recorded, and that somebody had taken away.
  returned: success
  type: list
  elements: str
unlisted:
  description: Names of the patches that were recorded and are not listed.
  returned: success
  type: list
  elements: str
foreign:
  description: Files of a patch that somebody has changed in other places since. These changes stay.
  returned: success
  type: list
  elements: str
offsets:
  description: How many lines off a patch fits its files, where it does not fit at the stated lines.
  returned: success
  type: dict
  sample: {flashinfer-fusion-sm120: {sglang/srt/layers/communicator.py: 2}}
files:
  description: Files that changed.
  returned: success
  type: list
  elements: str
undone:
  description: Whether a run that was cut off had left a change half-done, which was put back first.
  returned: success
  type: bool
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import answer, patched_environment
from ..module_utils.errors import RingmasterError

WARNINGS = (
    ("unlisted", "Patch {} is on {environment} and not listed: list it with state absent, or say exclusive (sglang_patches_exclusive)."),
    ("gone", "Patch {} was recorded on {environment}, and somebody had taken it away."),
    ("foreign", "{} has changes that are not of a patch. They stay."),
)


def argument_spec():
    return {
        "environment": {"type": "path", "required": True},
        "patches": {
            "type": "list",
            "elements": "dict",
            "default": [],
            "mutually_exclusive": [("patch", "diff")],
            "options": {
                "name": {"type": "str", "required": True},
                "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
                "patch": {"type": "str"},
                "diff": {"type": "str"},
                "package": {"type": "str", "default": "sglang"},
                "versions": {"type": "list", "elements": "str", "default": []},
            },
        },
        "exclusive": {"type": "bool", "default": False},
        "rehearse": {"type": "bool", "default": False},
    }


def main():
    module = AnsibleModule(argument_spec(), supports_check_mode=True)
    given = module.params

    def work():
        unread = [item["name"] for item in given["patches"] if item["patch"] is not None]
        if unread:
            raise RingmasterError(f"The diff of {unread[0]} was not read.", "Use the module by a task: its action plugin reads the file.")
        result = patched_environment.change(
            given["environment"], given["patches"], given["exclusive"], module.check_mode, given["rehearse"]
        )
        if given["rehearse"]:
            return {**result, "changed": False, "diff": []}
        for key, sentence in WARNINGS:
            for found in result[key] if key != "unlisted" or not given["exclusive"] else ():
                module.warn(sentence.format(found, environment=given["environment"]))
        return result

    answer.give(module, work, given["environment"], "patch")


if __name__ == "__main__":
    main()
