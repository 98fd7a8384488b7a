# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Server flags as one version of SGLang wants them."""

from __future__ import annotations

DOCUMENTATION = r"""
name: sglang_flags
short_description: Server flags, checked for a version of SGLang
version_added: 0.1.0
description:
  - Checks flags against those that the version takes, and gives old names their new ones.
  - Everything that is wrong is reported at once.
positional: _version
options:
  _input:
    description: The flags. V(true) is a bare flag, null and V(false) are none.
    type: dict
    required: true
  _version:
    description: Version of SGLang.
    type: str
    required: true
  names:
    description: Names of that version's flags, where it is not on record here. Without them nothing is checked then.
    type: list
    elements: str
  kept:
    description: The flags stand in a file that C(tune.yml) wrote, so an old name is an error, too.
    type: bool
    default: false
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Show what becomes of an old name
  ansible.builtin.debug:
    msg: "{{ {'cuda-graph-max-bs': 128} | ringmaster.gpu.sglang_flags('0.5.23') }}"
"""

RETURN = r"""
_value:
  description: The flags, and what a person should know about them.
  type: dict
  contains:
    flags:
      description: The flags as this version wants them.
      type: dict
      sample: {cuda-graph-max-bs-decode: "128"}
    notes:
      description: Sentences.
      type: list
      elements: str
    checked:
      description: Whether the version's flags are known.
      type: bool
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import sglang_flags as flags_of


def _sglang_flags(flags, version, names=None, kept=False):
    table = flags_of.known(version) or {name: {} for name in names or ()}
    if not table:
        return {"flags": dict(flags), "notes": [], "checked": False}
    if kept and (problems := flags_of.check_kept(flags, version, table)):
        remedy = "Go back with rollback.yml first, then switch, then measure again."
        raise AnsibleFilterError(f"What tune.yml keeps here does not go with this SGLang: {' '.join(problems)} {remedy}")
    found = flags_of.check(flags, version, table)
    if found["errors"]:
        raise AnsibleFilterError(" ".join(found["errors"]))
    return {"flags": found["flags"], "notes": found["notes"], "checked": True}


class FilterModule:
    def filters(self):
        return {"sglang_flags": _sglang_flags}
