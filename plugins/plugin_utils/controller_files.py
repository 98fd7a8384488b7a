# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files on the controller: of the role of a task, beside the playbook, or in the working directory, each time in files/ first."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

from . import given


def reader(action: Any, task_vars: Mapping[str, Any]) -> Callable[[str], tuple[str, str]]:
    """A function that gives (path, text) of a file by the path that a user gave, for the task of ACTION. It raises RingmasterError."""

    def read(path: str) -> tuple[str, str]:
        try:
            place = action._find_needle("files", path)
        except AnsibleError:
            place = given.found(path, task_vars["playbook_dir"])
        try:
            return place, Path(place).read_bytes().decode()  # not read_text, which takes the \r of \r\n
        except FileNotFoundError:
            beside = f", neither in {task_vars['playbook_dir']} nor in {os.getcwd()}, nor in files/ of these"
            sought = "" if path.startswith(("/", "~")) else beside
            raise RingmasterError(f"there is no file {path}{sought}.", "Mend the path.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise RingmasterError(f"{place} cannot be read: {getattr(error, 'strerror', None) or 'it is no text'}.", "Mend it.") from error

    return read
