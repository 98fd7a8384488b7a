# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The line of a systemd unit that starts a server."""

from __future__ import annotations

DOCUMENTATION = r"""
name: sglang_command
short_description: A server's command, for ExecStart of a systemd unit
version_added: 0.1.0
description:
  - Puts a server's flags into one line, quoted for systemd, with its specifiers and variables made literal.
positional: _python, _host, _port
options:
  _input:
    description: The flags. V(true) is a bare flag; a list is several values.
    type: dict
    required: true
  _python:
    description: Interpreter.
    type: str
    required: true
  _host:
    description: Address to listen on.
    type: str
    required: true
  _port:
    description: Port to listen on.
    type: int
    required: true
author:
  - Ringmaster contributors (@ringmaster)
"""

EXAMPLES = r"""
- name: Show a command
  ansible.builtin.debug:
    msg: "{{ {'model-path': '/models/m', 'tp-size': '8'} | ringmaster.gpu.sglang_command('/opt/sglang/bin/python', '0.0.0.0', 30000) }}"
"""

RETURN = r"""
_value:
  description: The command.
  type: str
"""

from ansible_collections.ringmaster.gpu.plugins.module_utils import server_command, units


def _sglang_command(flags, python, host, port):
    return units.command_line(server_command.arguments({"python": python, "flags": flags}, host=host, port=int(port)))


class FilterModule:
    def filters(self):
        return {"sglang_command": _sglang_command}
