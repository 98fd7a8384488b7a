# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Proxmox VE takes from nobody but root@pam, whatever privileges another identity has. Pure.

PVE compares the identity with the text `root@pam`; that of a token is `root@pam!name`. So it is told before anything is sent."""

from __future__ import annotations

import re
from typing import Callable

from .errors import RingmasterError
from .pve_properties import canonical, parse, truth

ROOT = "root@pam"
WAYS = (
    "Two ways out: give api_user: root@pam with api_password (a ticket, no token); or leave api_host out and run the task on the node "
    "as root (delegate_to), where pvesh is asked."
)


def _path_of_the_node(new: str | None, _old: str | None, _unprivileged: bool) -> bool:
    return new is not None and parse("mp", new).get("volume", "").startswith("/")


def _features(new: str | None, old: str | None, unprivileged: bool) -> bool:
    """All features of a privileged container; of another all but nesting. PVE takes one that is off for another than one that is
    not there."""
    if not unprivileged:
        return True
    before, after = (parse("features", text or "") for text in (old, new))
    if before and new is not None:
        there, then = ({name: canonical("bool", text) for name, text in row.items() if name != "nesting"} for row in (before, after))
        return there != then
    changed = after if new is not None else before
    return bool(changed) and not (list(changed) == ["nesting"] and truth(changed["nesting"]))


Test = Callable[["str | None", "str | None", bool], bool]
RULES: tuple[tuple[str, str, Test], ...] = (
    (r"dev\d+", "device", lambda *_values: True),
    (r"hookscript", "hook script", lambda *_values: True),
    (r"rootfs|mp\d+", "mount of a path of the node", _path_of_the_node),
    (r"features", "feature other than nesting of an unprivileged container", _features),
    (r"ostemplate", "template that is a path of the node", lambda new, *_values: bool(new and new.startswith("/"))),
)


def root_only(identity: str, changes: dict[str, str | None], running: dict[str, str], unprivileged: bool) -> list[tuple[str, str]]:
    """[(key, what it is)] of CHANGES {key: new text, None for one that goes away} that PVE refuses to IDENTITY. RUNNING: as it is now."""
    if identity == ROOT:
        return []
    found = []
    for key, new in sorted(changes.items()):
        for pattern, what, refused in RULES:
            if re.fullmatch(pattern, key) and refused(new, running.get(key), unprivileged):
                found.append((key, what))
    return found


def check(identity: str, changes: dict[str, str | None], running: dict[str, str], unprivileged: bool, vmid: int) -> None:
    """Raise RingmasterError when PVE would refuse some of CHANGES to IDENTITY."""
    found = root_only(identity, changes, running, unprivileged)
    if found:
        asked = ", ".join(f"{key} ({what})" for key, what in found)
        token = f" {identity} is a token, and so not {ROOT}." if identity.startswith(f"{ROOT}!") else ""
        raise RingmasterError(
            f"Proxmox VE takes this from {ROOT} alone, and the identity in use is {identity}: {asked} of container {vmid}.{token} "
            "Nothing was sent.",
            WAYS,
        )
