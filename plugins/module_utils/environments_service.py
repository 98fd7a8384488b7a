# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a running unit and what its next start would take differ: the environment, and the files that make the unit."""

from __future__ import annotations

import contextlib
import os
import time

from . import environments, files, procfs, server_command, units
from .errors import RingmasterError

MARK = b"ringmaster.gpu.sglang"  # in a unit that the role wrote


def look(unit, home, current=None):
    """{exists, active, state, environment (of the running server, or None), restart_due [sentences], kept_flags, foreign} of UNIT.

    CURRENT: the environment to be taken for the one in force, when it is not the one that is linked. `foreign`: the unit's file, when it
    is not the role's.
    """
    found = {"exists": False, "active": False, "state": None, "environment": None, "restart_due": [], "kept_flags": kept_flags(unit)}
    found["foreign"] = None
    properties = units.show(unit)
    if properties is None:
        return found
    pid = units.main_pid(properties)
    active = units.is_up(properties)  # one that ended and waits for its next start does not run
    found.update(exists=True, active=active, state=properties["ActiveState"])
    text = files.content(properties["FragmentPath"]) if properties["FragmentPath"] else None
    found["foreign"] = properties["FragmentPath"] if text is not None and MARK not in text else None
    if active:
        found["environment"] = environment_of(procfs.command_line(pid) or [], home)
        found["restart_due"] = [
            *_other_environment(found["environment"], current or environments.linked(home)),
            *_changed_files(properties),
        ]
    return found


def environment_of(words, home):
    """The environment below HOME whose Python runs the command WORDS, or None."""
    inside = os.path.join(os.path.realpath(home), "environments") + "/"
    return words[0][len(inside) :].split("/")[0] if words and words[0].startswith(inside) else None


def _other_environment(running, current):
    return [f"it runs {running}, and {current} is in force"] if running and current and running != current else []


def _changed_files(properties):
    """Files of a unit with these PROPERTIES (of `units.show`) that were written after it was started.

    A start that systemd does not tell yet is one of this moment. Clocks get set, so a second more or less is no change.
    """
    age_s = units.age_s(properties)
    if age_s is None:
        return []
    started = time.time() - age_s
    paths = [properties["FragmentPath"], *properties.get("DropInPaths", "").split(), *units.environment_files(properties)]
    changed = []
    for path in filter(None, paths):
        with contextlib.suppress(OSError):
            if os.stat(path).st_mtime > started + 1:
                changed.append(path)
    return [f"{', '.join(changed)} changed since it was started"] if changed else []


def kept_flags(unit):
    """The flags of the command that tune.yml keeps for UNIT, or None: they win over the unit's own."""
    text = files.content(units.drop_in_path(unit)) if unit else None
    words = units.exec_start(text.decode(errors="replace")) if text else []
    if not words or server_command.MODULE not in words:
        return None
    try:
        flags = server_command.parse_flags(words[words.index(server_command.MODULE) + 1 :])
    except RingmasterError:
        return None
    return {name: value for name, value in flags.items() if name not in ("host", "port", "model-path")}
