# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """Of modules that change nothing."""

    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: It changes nothing, so it does the same.
    support: full
  diff_mode:
    description: It changes nothing, so there is no difference to show.
    support: none
"""
