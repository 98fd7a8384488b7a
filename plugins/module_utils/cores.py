# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Core dumps of a trial's server: off unless asked for, since one of a rank can be as large as the host's memory."""

from __future__ import annotations

import contextlib
import os

PATTERN = "/proc/sys/kernel/core_pattern"


def directory(trial_directory):
    """Where the server has to run so that its cores land in TRIAL_DIRECTORY; None where the kernel sends them elsewhere anyway."""
    with open(PATTERN, encoding="utf-8") as file:
        pattern = file.read().strip()
    if pattern.startswith(("|", "/")):
        return None
    path = os.path.join(trial_directory, "cores")
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def found(trial_directory):
    """Paths of the cores in TRIAL_DIRECTORY."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(entry.path for entry in os.scandir(os.path.join(trial_directory, "cores")) if entry.is_file())
    return []


def prune(trials_directory, keep):
    """Remove all cores but the KEEP newest of all trials. Returns the paths removed."""
    with contextlib.suppress(FileNotFoundError):
        paths = [path for entry in os.scandir(trials_directory) for path in found(entry.path)]
        old = sorted(paths, key=os.path.getmtime, reverse=True)[keep:]
        for path in old:
            os.unlink(path)
        return old
    return []
