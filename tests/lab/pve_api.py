# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""fakepve whose containers are real: a task ends well only when the LXC container did what was asked.

fakepve keeps checks, permissions, configuration, locks and tasks. `task` is where each action passes; four steps that it has no public
place for are taken over by name (requirements-dev.txt pins its version, test_pve.py fails when one is not called any more).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fakepve import FakeCt, FakePve, PveError, TaskError
from host import LabError
from pve_guest import Guests, StartError

GIB = 1024**3
TEMPLATES = {
    "bookworm": "vztmpl/debian-12-standard_12.12-1_amd64.tar.zst",
    "trixie": "vztmpl/debian-13-standard_13.1-1_amd64.tar.zst",
}
USER = "ringmaster@pve"
# What an administrator gives to somebody who manages containers; no Sys.Modify on /, which privileged containers need.
GRANTS = {
    "/": ["Sys.Audit"],
    "/vms": [
        "VM.Allocate", "VM.Audit", "VM.Backup", "VM.Clone", "VM.Console", "VM.Migrate", "VM.PowerMgmt", "VM.Snapshot",
        "VM.Config.CPU", "VM.Config.Disk", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options",
    ],
    "/storage": ["Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit"],
    "/sdn/zones/localnetwork": ["SDN.Audit", "SDN.Use"],
}  # fmt: skip
# Tasks that would change a real container in a way that nothing here does.
NOT_HERE = re.compile(r"ha|vz(restore|clone|suspend|resume|snapshot|delsnapshot|rollback|template|migrate|dump)$")


class Requests(list):
    """The requests seen; each also a line of a file, without its body."""

    def __init__(self, path: Path):
        super().__init__()
        self.path = path
        path.write_text("", encoding="ascii")

    def append(self, request: tuple[str, str, bytes]) -> None:
        super().append(request)
        with open(self.path, "a", encoding="utf-8") as lines:
            lines.write(json.dumps({"method": request[0], "path": request[1]}) + "\n")


class LabPve(FakePve):
    """One node with real containers. passwords: {userid: password}; tokens: {"user@realm!id": secret}."""

    def __init__(self, guests: Guests, passwords: dict[str, str], tokens: dict[str, str], requests: Path, port: int = 0):
        super().__init__("root@pam", passwords["root@pam"], host="127.0.0.1", port=port)
        self.guests = guests
        self.time_scale = 1.0  # tasks run beside the requests, and waiting is real
        self.users = passwords
        self.apitokens = tokens
        self.requests = Requests(requests)
        self.nodes = {guests.node: {"online": True}}
        for holder in [USER, *(token for token in tokens if token.startswith(USER))]:
            for path, privileges in GRANTS.items():
                self.grant(holder, path, *privileges)
        volume = {"content": "vztmpl", "size": 130 * 1024**2, "format": "tzst", "ctime": int(time.time())}
        self.storages["local"]["volumes"] = {name: dict(volume) for name in TEMPLATES.values()}
        self.storages["local-lvm"]["avail"] = 500 * GIB
        self._asked: dict[int, dict[str, Any]] = {}  # the parameters of creations under way, by VMID

    async def task(self, node, ttype, tid, user, body, vm=None, **options):
        """fakepve's task; what it does to a container is then done to the real one."""
        if NOT_HERE.match(ttype):
            raise PveError(501, f"{ttype}: not on this test node, whose containers are real")
        real = {"vzcreate": self._create, "vzstop": self._stop, "vzdestroy": self._destroy}.get(ttype)

        async def whole():
            try:
                return await (real(vm, body) if real and isinstance(vm, FakeCt) else body())
            except LabError as error:
                self._log(vm, getattr(error, "log", []))
                raise TaskError(str(error)) from None
            except OSError as error:
                raise TaskError(f"{type(error).__name__}: {error}") from None

        return await super().task(node, ttype, tid, user, whole, vm=vm, **options)

    def _log(self, ct: FakeCt, lines: list[str]) -> None:
        """Lines for the log of the task that holds the container's lock."""
        if ct and ct.lock_holder in self.tasks:
            self.tasks[ct.lock_holder]["log"] += lines

    @staticmethod
    async def _real(act: Callable, *arguments: Any) -> Any:
        return await asyncio.to_thread(act, *arguments)

    async def _lxc_create(self, user, v):
        self._asked[int(v["vmid"])] = v
        return await super()._lxc_create(user, v)

    async def _create(self, ct, body):
        asked = self._asked.pop(ct.vmid)
        if self.volume_exists(asked["ostemplate"]) is not False:  # body says so when it is missing
            keys = [key for key in str(asked.get("ssh-public-keys") or "").splitlines() if key.strip()]
            unprivileged = bool(1 if asked.get("unprivileged") is None else asked["unprivileged"])
            try:
                await self._real(self.guests.create, ct.vmid, asked["ostemplate"], unprivileged, keys)
            except LabError as error:
                self._drop(ct)
                raise TaskError(f"unable to create CT {ct.vmid} - {error}") from None
        try:
            return await body()
        finally:
            if ct not in self.cts:
                await self._real(self.guests.destroy, ct.vmid)

    async def _start_steps(self, ct, user, skiplock=False):
        await super()._start_steps(ct, user, skiplock)
        ct.status, ct.pid = "stopped", None  # until it is so
        ct.pid = await self._real(self.guests.start, ct.vmid, dict(ct.config))
        ct.status, ct.started_at = "running", time.time()

    async def _ct_powerdown(self, ct, timeout, force):
        if not await self._real(self.guests.shut_down, ct.vmid, int(timeout)):
            if not force:
                raise TaskError("container did not stop")
            await self._real(self.guests.kill, ct.vmid)
        ct.status, ct.pid = "stopped", None

    async def _stop(self, ct, body):
        note = await body()
        ct.status = "running"
        await self._real(self.guests.kill, ct.vmid)
        ct.status, ct.pid = "stopped", None
        return note

    async def _destroy(self, ct, body):
        note = await body()
        self.cts.append(ct)
        await self._real(self.guests.destroy, ct.vmid)
        self._drop(ct)
        return note

    async def _update_config(self, ct, user, values, deletes, reverts):
        """A device must be there when it is configured; what a running container takes at once is put into it."""
        before = set(ct.config)
        try:
            for key in values:
                if re.fullmatch(r"dev\d+", key):
                    self.guests.find_device(str(values[key]).split(",")[0].removeprefix("path="))
            await super()._update_config(ct, user, values, deletes, reverts)
            if ct.status == "running":
                for key in sorted(set(ct.config) - before):
                    if re.fullmatch(r"(dev|mp)\d+", key):
                        await self._real(self.guests.plug, ct.vmid, key, dict(ct.config))
        except LabError as error:
            lines = error.log if isinstance(error, StartError) else []
            raise PveError(500, "; ".join([*lines, str(error)])) from None

    async def watch(self, every_s: float = 0.5) -> None:
        """Notice containers that ended or restarted by themselves."""
        while True:
            await asyncio.sleep(every_s)
            for ct in [ct for ct in self.cts if ct.status == "running" and not ct.lock_holder and not os.path.exists(f"/proc/{ct.pid}")]:
                await asyncio.sleep(1)  # one that restarts is STOPPED for a moment
                status, pid = await self._real(self.guests.status, ct.vmid), await self._real(self.guests.pid, ct.vmid)
                if not ct.lock_holder and ct.status == "running":
                    ct.status, ct.pid = ("stopped", None) if status in ("STOPPED", "") else ("running", pid)
