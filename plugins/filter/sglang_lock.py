# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a lock file of an SGLang environment says."""

from __future__ import annotations

DOCUMENTATION = r"""
name: sglang_lock
short_description: What a lock file says
version_added: 0.1.0
description:
  - Reads a lock file of pins and checksums, as C(uv pip compile --generate-hashes) writes it, and fails where it is none.
options:
  _input:
    description: Text of the lock file.
    type: str
    required: true
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Show which torch a lock has
  ansible.builtin.debug:
    msg: "{{ (lookup('ansible.builtin.file', 'lock.txt', rstrip=false) | ringmaster.gpu.sglang_lock).versions.torch }}"
"""

RETURN = r"""
_value:
  description: What it says.
  type: dict
  contains:
    sha256:
      description: Checksum of the text.
      type: str
    versions:
      description: Versions of each package; several where they go by the interpreter.
      type: dict
      sample: {torch: ["2.11.0"]}
    python:
      description: Interpreters that it is for, such as V(>=3.10, <3.13); empty for any.
      type: str
    disk_mib:
      description: Room that the environment takes while it is built, 0 when that is not told.
      type: int
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.ringmaster.gpu.plugins.module_utils import environments_lock
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError


def _sglang_lock(text):
    try:
        return environments_lock.parse(text)
    except RingmasterError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    def filters(self):
        return {"sglang_lock": _sglang_lock}
