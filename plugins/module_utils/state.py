# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state directory of a target: lock, journal, known-good versions, plans, trials."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from datetime import datetime, timezone

from . import files
from .errors import RingmasterError


def now():
    """The date in UTC, ISO 8601, to the second."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


LOOK_S = 0.5  # lock_holder holds the lock itself for an instant: that is no reason to refuse


# The server's own user has to get at `site` and at its trial's `witness`, but may list nothing.
MODES = {"": 0o755, "trials": 0o711}


JOURNAL_KEYS = frozenset(("plan", "unit", "unit_was_active", "before", "last_version"))
VERSION_KEYS = frozenset(("version", "configuration", "files", "by", "label", "created"))


class State:
    """Paths and records below one state directory. Nothing is created until something is written."""

    def __init__(self, directory):
        self.directory = os.path.abspath(directory)

    def path(self, *parts):
        return os.path.join(self.directory, *parts)

    def prepare(self):
        """Make the directory, closed to others. Raises RingmasterError when it cannot be written."""
        # A server of another user has to reach its witness directory below trials.
        for name, mode in (("", 0o755), ("bin", 0o700), ("known-good", 0o700), ("plans", 0o700), ("trials", 0o711)):
            files.make_directory(self.path(name).rstrip("/"), mode=mode)

    # --- lock -------------------------------------------------------------------------------------------------

    def take_lock(self, holder):
        """Hold the lock as HOLDER (a dict: who, plan, since) until the returned file is closed or the process ends.

        Raises RingmasterError that says who holds it and since when.
        """
        file = open(self.path("lock"), "a+", encoding="utf-8")  # noqa: SIM115 - stays open as long as the lock is held
        end = time.monotonic() + LOOK_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    file.close()
                    raise self._held() from None
                time.sleep(0.02)
        file.truncate(0)
        with contextlib.suppress(OSError):  # on a full disk the lock holds all the same, only its holder's name is not known
            os.write(file.fileno(), json.dumps(holder).encode())
        return file

    def lock_holder(self):
        """Who holds the lock now, as the dict given to take_lock, or None."""
        try:
            with open(self.path("lock"), encoding="utf-8") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    try:
                        return json.loads(file.read())
                    except ValueError:  # taken this instant, not yet written
                        return {"who": "another run", "plan": "unknown", "since": now()}
        except FileNotFoundError:
            pass
        return None

    def _held(self):
        holder = self.lock_holder() or {"who": "another run", "plan": "unknown", "since": "just now"}
        return RingmasterError(
            f"{self.directory} is locked: {holder['who']} runs plan {holder['plan']} here since {holder['since']}.",
            "Wait for it, look with `ansible-playbook ringmaster.gpu.status`, or end it with `ansible-playbook ringmaster.gpu.abort`.",
        )

    # --- journal ----------------------------------------------------------------------------------------------

    def journal(self):
        """What has to be put back, or None: then the target is as its known-good says."""
        return self._record(
            self.path("journal.json"),
            JOURNAL_KEYS,
            "Keep a copy: it says what the last plan changed. Then move it away and put known-good back with "
            "`ansible-playbook ringmaster.gpu.rollback -e rollback_version=N` (ringmaster.gpu.status lists the versions).",
        )

    def write_journal(self, journal):
        files.write_json(self.path("journal.json"), journal)

    def clear_journal(self):
        files.remove(self.path("journal.json"))

    # --- known-good -------------------------------------------------------------------------------------------

    def versions(self):
        """Numbers of the known-good versions, oldest first."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(int(name[:-5]) for name in os.listdir(self.path("known-good")) if name[:-5].isdigit())
        return []

    def known_good(self, version=None):
        """The record of VERSION, or of the version in force; None before first contact."""
        if version is None:
            try:
                name = os.readlink(self.path("known-good", "current"))
            except FileNotFoundError:
                return None
        else:
            name = f"{version:04d}.json"
        path = self.path("known-good", name)
        remedy = f"Move {self.path('known-good')} away: the next run takes what is in force on the host as version 1."
        record = self._record(path, VERSION_KEYS, remedy)
        if record is None and version is None:
            raise RingmasterError(f"{path}, the known-good version in force, is gone.", remedy)
        if record is None:
            raise RingmasterError(f"{self.directory} has no known-good version {version}.", f"There are: {self.versions()}.")
        return record

    @staticmethod
    def _record(path, keys, remedy):
        """The JSON in PATH, None without one. Raises RingmasterError with REMEDY when it is not what Ringmaster wrote."""
        try:
            record = files.read_json(path)
        except RingmasterError as error:
            raise RingmasterError(error.what, remedy) from error
        if record is not None and not (isinstance(record, dict) and keys <= set(record)):
            raise RingmasterError(f"{path} is not what Ringmaster wrote there.", remedy)
        return record

    def write_version(self, record):
        """Store RECORD as the next version and return its number; `set_current` puts it in force."""
        version = (self.versions() or [0])[-1] + 1
        files.write_json(self.path("known-good", f"{version:04d}.json"), {**record, "version": version, "created": now()})
        return version

    def forget_versions_after(self, version):
        for number in self.versions():
            if number > version:
                files.remove(self.path("known-good", f"{number:04d}.json"))

    def set_current(self, version):
        files.replace_link(f"{version:04d}.json", self.path("known-good", "current"))

    # --- plans and trials -------------------------------------------------------------------------------------

    def plan_path(self, plan, *parts):
        return self.path("plans", plan, *parts)

    def touch_lease(self, plan):
        """Say that the controller of PLAN is there: it counts as lost `lease_s` after the last call."""
        path = self.plan_path(plan, "lease")
        try:
            with open(f"{path}.new", "w", encoding="ascii") as file:  # no fsync: a reboot ends the lease anyway
                file.write(f"{time.monotonic():.3f}")
            os.rename(f"{path}.new", path)
        except OSError as error:
            raise files.explain(path, "write", error) from error

    def lease_left_s(self, plan, lease_s):
        """Seconds until the controller of PLAN counts as lost."""
        heard = files.content(self.plan_path(plan, "lease"))
        return max(0.0, float(heard) + lease_s - time.monotonic()) if heard else 0.0

    def trial_path(self, trial, *parts):
        return self.path("trials", trial, *parts)

    def make_trial(self, trial):
        """Make the directory of a trial; its path."""
        files.make_directory(self.trial_path(trial), mode=0o711)
        return self.trial_path(trial)

    def prune(self, keep):
        """Remove all but the KEEP newest trials and plans."""
        for kind in ("trials", "plans"):
            with contextlib.suppress(FileNotFoundError):
                names = sorted(os.scandir(self.path(kind)), key=lambda entry: entry.stat().st_mtime)
                for entry in names[: max(0, len(names) - keep)]:
                    shutil.rmtree(entry.path, ignore_errors=True)
