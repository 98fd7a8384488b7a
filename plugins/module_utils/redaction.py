# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No secret in any output: the values of options and variables whose name says that they are one."""

from __future__ import annotations

import re

HIDDEN = "***"
_SECRET = re.compile(r"(api|auth|access|secret|private|admin)[-_]?key|token$|secret|passw|credential", re.IGNORECASE)


def mapping(values):
    """VALUES with the secret ones hidden. `tokenizer-path` and `max-total-tokens` are none."""
    return {name: HIDDEN if _SECRET.search(name) and value not in (None, True, False) else value for name, value in values.items()}


def configuration(value):
    """A configuration fit for results, ledgers and screens."""
    return {
        **value,
        "server": {**value["server"], "flags": mapping(value["server"]["flags"])},
        "environment": mapping(value["environment"]),
    }


def reveal(value, original):
    """VALUE, a configuration that went through `configuration`, with what was hidden taken from ORIGINAL."""

    def fill(hidden, known):
        return {name: known.get(name, item) if item == HIDDEN else item for name, item in hidden.items()}

    return {
        **value,
        "server": {**value["server"], "flags": fill(value["server"]["flags"], original["server"]["flags"])},
        "environment": fill(value["environment"], original["environment"]),
    }
