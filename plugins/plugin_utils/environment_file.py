# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file for EnvironmentFile of a systemd unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError


def text(variables: Mapping[str, Any], variable: str) -> str:
    """One line for each of VARIABLES, sorted; null leaves one out. Raises RingmasterError naming VARIABLE for what cannot be written."""
    lines = []
    for name, value in sorted(variables.items(), key=str):
        if value is None:
            continue
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            remedy = "Put the name in quotes: YAML reads NO and ON as false and true." if isinstance(name, bool) else ""
            raise RingmasterError(f"{variable}: {name!r} is no name of an environment variable.", remedy)
        if isinstance(value, bool):
            raise RingmasterError(f"{variable}: {name} is {str(value).lower()}; write it as text, such as '1'.")
        if isinstance(value, (list, Mapping)):
            raise RingmasterError(f"{variable}: {name} is a {type(value).__name__}; write it as text.")
        if not str(value).isprintable():
            raise RingmasterError(f"{variable}: the value of {name} has a line break or another control character.")
        quoted = str(value).replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'{name}="{quoted}"\n')
    return "".join(lines)
