# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The production server as a systemd unit: what it runs, and holding, stopping and starting it."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import time

from . import files, procfs
from .errors import RingmasterError
from .units_parse import KINDS, environment_file, exec_start, unresolved, words

_PROPERTIES = (
    "LoadState", "ActiveState", "SubState", "MainPID", "User", "Group", "WorkingDirectory", "Environment",
    "EnvironmentFiles", "FragmentPath", "DropInPaths", "UnitFileState", "Type", "NRestarts", "Result", "InvocationID", "StandardOutput",
    "StandardError", "ExecMainStartTimestampMonotonic",
)  # fmt: skip
# What systemd itself puts into a service's environment; no part of a configuration.
SYSTEMD_ENVIRONMENT = frozenset(
    ("INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE", "LISTEN_PID",
     "LISTEN_FDS", "NOTIFY_SOCKET", "MAINPID", "WATCHDOG_PID", "WATCHDOG_USEC")
)  # fmt: skip


def available():
    """Whether systemd runs this machine and we may give it orders."""
    return os.geteuid() == 0 and os.path.isdir("/run/systemd/system") and shutil.which("systemctl") is not None


def going_down():
    """Whether this machine is shutting down: systemd then starts nothing any more."""
    return systemctl("is-system-running", check=False).strip() == "stopping"


def unit_name(name):
    return name if name.endswith(KINDS) else f"{name}.service"


def systemctl(*arguments, timeout_s=120, check=True):
    """Run systemctl; its standard output. Raises RingmasterError with what systemctl said."""
    try:
        done = subprocess.run(
            ["systemctl", *arguments], capture_output=True, encoding="utf-8", errors="replace", timeout=timeout_s, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RingmasterError(f"systemctl {' '.join(arguments)} did not end within {timeout_s:.0f} s.") from error
    if check and done.returncode != 0:
        raise RingmasterError(f"systemctl {' '.join(arguments)} failed: {(done.stderr or done.stdout).strip()}.")
    return done.stdout


def show(unit):
    """Properties of UNIT, {name: value}, or None where there is no such unit or no systemd. One told several times has a line for each."""
    if not unit or not available():
        return None
    properties = {}
    for line in systemctl("show", unit_name(unit), f"--property={','.join(_PROPERTIES)}", check=False).split("\n"):
        name, sign, value = line.partition("=")
        if sign:
            properties[name] = f"{properties[name]}\n{value}" if name in properties else value
    return properties if properties.get("LoadState") == "loaded" else None


def is_active(unit):
    properties = show(unit)
    return bool(properties) and properties["ActiveState"] in ("active", "activating", "reloading", "deactivating")


def is_up(properties):
    """Whether a unit with these PROPERTIES (of `show`) has its main process; one that ended and waits for its next start has none."""
    return bool(properties) and properties["ActiveState"] in ("active", "activating", "reloading") and main_pid(properties) > 0


def main_pid(properties):
    """The main process of a unit with these PROPERTIES (of `show`), or 0."""
    return int((properties or {}).get("MainPID") or 0)


def age_s(properties):
    """Seconds since the main process of a unit with these PROPERTIES (of `show`) was started; None while systemd does not tell."""
    started_us = int(properties.get("ExecMainStartTimestampMonotonic") or 0)
    return time.clock_gettime(time.CLOCK_MONOTONIC) - started_us / 1e6 if started_us else None


def command(unit, properties, must_be_whole=True):
    """The argument list that UNIT runs: of its live main process, else of the last ExecStart line of its files.

    A launcher never shows in a live process, only what it became. The unit's next start goes through it again, so it is what counts.
    Raises RingmasterError for a line that only systemd can complete, unless MUST_BE_WHOLE is false.
    """
    pid = main_pid(properties)
    live = procfs.command_line(pid) if pid and procfs.read(pid) else None
    text = systemctl("cat", unit_name(unit), check=not live)
    written = exec_start(text)
    if live and written and is_launcher(written[0]) and os.path.basename(live[0]).startswith("python"):
        return [written[0], *live[1:]]
    if not live and must_be_whole and (signs := unresolved(text)):
        what = f"{unit_name(unit)} does not run, and its ExecStart has {', '.join(signs)}, which only systemd can replace."
        raise RingmasterError(what, "Start the unit, so that its command can be seen, or write into ExecStart what that stands for.")
    return live or written


def is_launcher(program):
    """Whether PROGRAM is a script that starts a Python, in the place of that Python."""
    try:
        with open(program, "rb") as file:
            return os.path.basename(program).startswith("python") and file.read(2) == b"#!"
    except OSError:
        return False


def environment(properties):
    """The environment that the unit gives its server: of the live main process, else of its Environment= and files."""
    pid = main_pid(properties)
    live = procfs.environment(pid) if pid else None
    if live is None:
        live = dict(item.split("=", 1) for item in words(properties.get("Environment", "")) or [] if "=" in item)
        for path in environment_files(properties):
            live.update(_environment_file(path))
    return {name: value for name, value in live.items() if name not in SYSTEMD_ENVIRONMENT}


def environment_files(properties):
    """Paths of the files that a unit with these PROPERTIES (of `show`) reads its environment from, as far as they exist."""
    patterns = [entry.rpartition(" (ignore_errors=")[0] or entry for entry in properties.get("EnvironmentFiles", "").split("\n")]
    return [path for pattern in patterns for path in sorted(glob.glob(pattern))]


def _environment_file(path):
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:  # a line may end in either way, and not every one does
            return environment_file(file.read())
    except OSError:
        return {}


# --- holding: a start is refused while a plan runs ------------------------------------------------------------
# `systemctl mask --runtime` does nothing for a unit file in /etc, which comes before /run. A runtime drop-in with a
# condition that cannot hold works for every unit, also against Restart= and dependencies, and a reboot removes it.


def _hold_path(unit):
    return f"/run/systemd/system/{unit_name(unit)}.d/99-ringmaster-hold.conf"


def is_held(unit):
    """Whether a plan keeps UNIT from being started."""
    return os.path.exists(_hold_path(unit))


def hold(unit):
    """Stop UNIT, with all the time its own TimeoutStopSec gives it to drain, and keep everybody from starting it."""
    files.make_directory(os.path.dirname(_hold_path(unit)))
    text = "# Ringmaster measures on this host. Removed when it has finished, and by any reboot.\n[Unit]\n"
    text += "ConditionPathExists=/nonexistent/ringmaster-has-finished\n"
    files.write_atomic(_hold_path(unit), text.encode(), mode=0o644)
    systemctl("daemon-reload")
    systemctl("stop", unit_name(unit), timeout_s=3600)


def kill(unit):
    """End every process of UNIT at once: one that never answered would drain for ever, waiting for what it cannot finish."""
    systemctl("kill", "--signal=SIGKILL", unit_name(unit), check=False)


def restart(unit, *options):
    """(Re)start UNIT. Its own limit of starts an hour is for one that fails again and again, not for what is asked for."""
    systemctl("reset-failed", unit_name(unit), check=False)  # a unit that is not loaded has nothing to be forgotten
    systemctl("restart", *options, unit_name(unit))


def release(unit):
    """Undo the hold. Starting is the caller's business."""
    files.remove(_hold_path(unit)) if os.path.exists(_hold_path(unit)) else None
    systemctl("daemon-reload")


# --- the drop-in that carries a kept configuration -------------------------------------------------------------


def drop_in_path(unit):
    return f"/etc/systemd/system/{unit_name(unit)}.d/50-ringmaster.conf"


def quote(word):
    """WORD for a systemd command or Environment line: quoted, with specifiers and variables made literal."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    return f'"{escaped}"'


def command_line(arguments):
    """ARGUMENTS as what follows ExecStart=."""
    return " ".join(quote(word.replace("$", "$$")) for word in arguments)


def drop_in(arguments, environment, unset):
    """Text of the drop-in: ARGUMENTS the server's command, ENVIRONMENT {name: value}, UNSET names to take away."""
    lines = ["# Written by Ringmaster: the known-good configuration. `ansible-playbook ringmaster.gpu.rollback` goes back.", "[Service]"]
    lines += [f"Environment={quote(f'{name}={value}')}" for name, value in sorted(environment.items())]
    lines += [f"UnsetEnvironment={name}" for name in sorted(unset)]
    lines += ["ExecStart=", f"ExecStart={command_line(arguments)}"]
    return "\n".join(lines) + "\n"
