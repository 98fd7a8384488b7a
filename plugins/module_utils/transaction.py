# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes to a target that are always put back: every former state is in the journal before anything is touched."""

from __future__ import annotations

import os

from . import files, nccl_site, procfs, server_command, units
from .state import now


def site_directory(state):
    return state.path("site")


def server_environment(configuration, state):
    """The environment a server of CONFIGURATION gets on top of the bare one: {name: value}."""
    environment = dict(configuration["environment"])
    if configuration["nccl"]["scope"] == "service":
        inherited = [part for part in environment.get("PYTHONPATH", "").split(":") if part and part != site_directory(state)]
        environment["PYTHONPATH"] = ":".join([site_directory(state), *inherited])
    environment["SPT_NOENV"] = "1"  # keeps /proc/PID/environ of renamed workers readable: the cheapest proof
    return environment


def site_file(configuration, state):
    """(path, content) of the sitecustomize file that CONFIGURATION needs; content None: no such file."""
    nccl, python = configuration["nccl"], configuration["server"]["python"]
    path = nccl_site.target_file(nccl["scope"], python=python, site_dir=site_directory(state))
    former = files.content(path)
    return path, nccl_site.desired(nccl["scope"], nccl["settings"], nccl.get("override", False), former)


def unit_file(configuration, state, unit):
    """(path, content) of the drop-in that makes the production unit run CONFIGURATION."""
    server = configuration["server"]
    words = server_command.arguments(server, **server["listen"])
    # Only what differs from the unit's own: its other variables may be secrets, and may be changed by others later.
    own = {"PYTHONPATH", "SPT_NOENV", *configuration.get("own_environment", [])}
    environment = {name: value for name, value in server_environment(configuration, state).items() if name in own}
    text = units.drop_in(words, environment, configuration.get("unset", []))
    return units.drop_in_path(unit), text.encode()


class Transaction:
    """One plan's changes on this target. Create it with `begin`, end it with `put_back` or `keep`."""

    def __init__(self, state, journal):
        self.state = state
        self.journal = journal

    @classmethod
    def begin(cls, state, *, plan, unit=None):
        """Open the journal. With UNIT, the production server is drained, stopped and held until the end."""
        journal = {
            "plan": plan,
            "since": now(),
            "unit": unit,
            "unit_was_active": bool(unit) and units.is_active(unit),
            "before": [],
            "last_version": (state.versions() or [0])[-1],
        }
        transaction = cls(state, journal)
        state.write_journal(journal)
        if unit:
            units.hold(unit)
        return transaction

    def change(self, path, data, mode=0o644):
        """Write DATA to PATH (None removes it), its former state being in the journal first."""
        former = self._remember(path)
        if data is None:
            files.remove(former["path"])
        elif former["content"] is None or files.content(path) != data:
            files.make_directory(os.path.dirname(former["path"]))
            files.write_atomic(path, data, mode=former.get("mode", mode))
        nccl_site.remove_stale_bytecode(former["path"])

    def change_to(self, snapshot):
        """Make a file what SNAPSHOT (of files.snapshot) says, its former state being in the journal first."""
        self._remember(snapshot["path"])
        restore_files([snapshot])

    def _remember(self, path):
        former = files.snapshot(path)
        if former["path"] not in [entry["path"] for entry in self.journal["before"]]:
            self.journal["before"].append(former)
            self.state.write_journal(self.journal)
        return former

    def put_back_files(self):
        """Restore every changed file. The unit stays held: for use between the steps of a plan."""
        restore_files(self.journal["before"])

    def keep(self, version):
        """Put known-good VERSION in force and close the journal. From the first write on, recovery finishes this, too."""
        self.journal["committed"] = version
        self.state.write_journal(self.journal)
        recover(self.state)


def mend(state, who, plan="recovery"):
    """`recover` for WHO holds no lock. Raises RingmasterError while a plan runs: what is in the journal is that plan's."""
    if state.journal() is None:
        return []
    with state.take_lock({"who": who, "plan": plan, "since": now()}):
        return recover(state)


def restore_files(snapshots):
    for former in snapshots:
        files.restore(former)
        nccl_site.remove_stale_bytecode(former["path"])


def recover(state):
    """Put back what the journal says, if there is one. Returns what was done, [str]. Safe to repeat at any point.

    For the holder of the lock; all others use `mend`.
    """
    journal = state.journal()
    if journal is None:
        return []
    if journal.get("committed"):
        state.set_current(journal["committed"])
        state.clear_journal()
        return [f"known-good version {journal['committed']} is in force"]
    # What a killed supervisor and guardian left running: only servers of trials have a witness directory of ours.
    procfs.kill_marked(f"RINGMASTER_WITNESS={state.path('trials')}/")
    restore_files(journal["before"])
    state.forget_versions_after(journal["last_version"])  # one that was written, but never put in force
    done = [f"restored {former['path']}" for former in journal["before"]]
    if journal["unit"] and units.available():
        units.release(journal["unit"])
        if journal["unit_was_active"] and units.going_down():
            return [*done, f"{journal['unit']} is started at the next boot"]  # by the recover unit, for which the journal stays
        if journal["unit_was_active"]:
            # restart: it may run with what was just taken back. --no-block: at boot this runs ordered before the unit.
            units.restart(journal["unit"], "--no-block")
            done.append(f"started {journal['unit']}")
    state.clear_journal()
    return done
