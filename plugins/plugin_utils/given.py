# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What users give: paths on the controller, and versions that YAML reads as numbers."""

from __future__ import annotations

import os
from typing import Any


def places(path: str, playbook_dir: str) -> list[str]:
    """Where PATH may be, in order: as Ansible's own copy looks for files of a playbook, then the same of the working directory."""
    whole = os.path.expanduser(path)
    return [os.path.join(place, *below, whole) for place in (playbook_dir, os.getcwd()) for below in (["files"], [])]


def found(path: str, playbook_dir: str) -> str:
    """The first of these that there is, or PATH as it was given."""
    return next((place for place in places(path, playbook_dir) if os.path.exists(place)), path) if path else path


def ambiguous(value: Any, variable: str) -> str:
    """Why VALUE is no version that can be relied on, or ''.

    Without quotes YAML reads both 3.1 and 3.10 as the number 3.1. Versions with .20 and beyond there are none, so 12.8 says what it means.
    """
    if not isinstance(value, float) or not str(value).endswith(".1"):
        return ""
    return f'{variable} is the number {value}, which is what YAML reads {value}0 as, too. Put it in quotes: "{value}" or "{value}0".'
