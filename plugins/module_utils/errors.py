# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one exception that a user may see."""

from __future__ import annotations


class RingmasterError(Exception):
    """Something a person can mend: what is wrong (names the variable, path or host, and what was found), and what to do."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what, remedy)  # both as args, so that the error survives pickling between processes
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what} {self.remedy}".rstrip()
