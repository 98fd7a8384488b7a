# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file on the controller, by a path that may be relative."""

from __future__ import annotations

DOCUMENTATION = r"""
name: found_file
short_description: The path of a file on the controller
version_added: 0.1.0
description:
  - A relative path is sought beside the playbook and in the working directory, each time in C(files) first.
  - Gives the path back as it is when there is no such file, so that it can be named.
positional: _playbook_dir
options:
  _input:
    description: The path. C(~) is the home of the user who runs Ansible.
    type: str
    required: true
  _playbook_dir:
    description: The magic variable C(playbook_dir).
    type: str
    required: true
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: A lock of one's own
  ansible.builtin.assert:
    that: sglang_lock | ringmaster.gpu.found_file(playbook_dir) is ansible.builtin.file
    fail_msg: "sglang_lock: there is no file {{ sglang_lock }}, neither beside the playbook nor in the working directory."
"""

RETURN = r"""
_value:
  description: The path.
  type: str
"""

from ansible_collections.ringmaster.gpu.plugins.plugin_utils.given import found


class FilterModule:
    def filters(self):
        return {"found_file": found}
