# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What variables of role sglang must look like beyond their type: they become paths, lines of a unit and arguments of commands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.ringmaster.gpu.plugins.module_utils.units_parse import KINDS

# Its programs stand first in a unit's command, where systemd takes no other quotes and variables.
PATH = r"""/+[^/\x00-\x1f\x7f$%'"\\]([^\x00-\x1f\x7f$%'"\\])*"""
# systemctl adds .service to a name with any other dot, such as sglang-k2.5; a name that ends in @ is one of many, not a service.
OTHER_UNITS = "|".join(kind[1:] for kind in KINDS if kind != ".service")
UNIT = rf"(?!.*[.]({OTHER_UNITS})$)(?!.*@([.]service)?$)[A-Za-z0-9:_][A-Za-z0-9:_@.-]*"
# {variable: (what the whole of it has to be, in words)}
TEXTS = {
    "sglang_home": (PATH, "the absolute path of a directory other than /, without quotes, $, % and line breaks"),
    "sglang_service": (f"({UNIT})?", 'the name of a systemd service, or "" for none'),
    # Nobody opens ~, . and $ on the host: they would be taken for a name at the hub.
    "sglang_model_path": (
        r"([^\s.~$\x00-\x1f\x7f-]([^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?)?",
        'an absolute path or the name of a model, without ~, $ or a blank around it, or "" for none',
    ),
    "sglang_host": (r"[A-Za-z0-9.:%_][A-Za-z0-9.:%_-]*", "an address or a host name"),
    "sglang_user": (r"[A-Za-z_][A-Za-z0-9_.-]*", "the name of a user"),
}
NUMBERS = {
    "sglang_port": (1, 65535),
    "sglang_keep_environments": (0, 10**6),
    "sglang_drain_timeout_s": (0, 10**6),
    "sglang_settle_s": (0, 10**6),
    "sglang_build_timeout_s": (1, 10**6),
}
PACKAGE = r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?"


def problems(options: Mapping[str, Any]) -> list[str]:
    """Sentences on those of OPTIONS that cannot be."""
    found = []
    for name, (pattern, words) in TEXTS.items():
        if not re.fullmatch(pattern, options[name]):
            found.append(f"{name}: {options[name]!r} is not {words}.")
    for name, (least, most) in NUMBERS.items():
        if not least <= options[name] <= most:  # not a number is not, either
            found.append(f"{name}: {options[name]} is not from {least} to {most}.")
    if wrong := [name for name in options["sglang_packages"] if not re.fullmatch(PACKAGE, name)]:
        found.append(f"sglang_packages: {wrong[0]!r} is no name of a package; write a list of names.")
    if options["sglang_source"] == "online" and not re.fullmatch(r"(https?|file)://[^\s]+", options["sglang_index_url"] or ""):
        found.append("sglang_index_url is no URL, such as https://pypi.org/simple.")  # not shown: it may have a password
    return found
