# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring a container to what is wanted: read, compare, refuse, write, read back, then its state.

Creating and changing take the same way. What is made is read back and compared like any container, and what the creation left out is put
right by a change; so nothing is left out silently."""

from __future__ import annotations

import re
import time
from typing import Any

from . import pve_access, pve_tasks
from .errors import RingmasterError
from .pve_client import Api
from .pve_container import Guest, Plan, created, creation, forecast, lines, plan
from .pve_errors import PveError
from .pve_guest import check_template, find, node_for_new, read, shown
from .pve_power import actions_for, power
from .pve_properties import parse, size_text, truth
from .pve_tasks import Job
from .pve_wanted import Wanted, is_new_volume, wanted


def run(api: Api, params: dict[str, Any], check_mode: bool) -> tuple[dict[str, Any], list[str]]:
    """Bring about PARAMS, the options of proxmox_container, or only say what would change: (its result, warnings)."""
    job = Job(api, params, check_mode)
    asked = wanted(params)
    if params["vmid"] < 100:
        raise RingmasterError(f"vmid is {params['vmid']}.", "Proxmox VE numbers containers from 100 on.")
    if params["timeout_s"] < 1:
        raise RingmasterError(f"timeout_s is {params['timeout_s']}.", "Give a number of seconds above 0.")
    before = _settled(job, find(api, params["vmid"], params["node"], params["pool"]))
    if params["state"] == "absent":
        after = _remove(job, before)
    else:
        after = _create(job, asked) if before is None else _update(job, asked, before)
        if before is not None:
            _hint(job, asked, before)
    return _result(job, before, after), job.warnings


def _result(job: Job, before: Guest | None, after: tuple[Guest | None, Guest | None, bool]) -> dict[str, Any]:
    """after: the container as it was foretold, as it is, and whether something changed."""
    foretold, guest, changed = after
    node = guest or foretold or before
    header = f"container {job.params['vmid']}" + (f" on {node.node}" if node else "")
    seen = shown(guest) if guest else {"pending": [], "restart_required": False}
    return {
        "changed": changed,
        "vmid": job.params["vmid"],
        "node": node.node if node else job.params["node"] or "",
        "status": guest.status if guest else "absent",
        **seen,
        "tasks": [{"upid": task.upid, "type": task.type, "exitstatus": task.exitstatus} for task in job.tasks],
        "diff": {"before": lines(before), "after": lines(foretold), "before_header": header, "after_header": header},
    }


def _settled(job: Job, guest: Guest | None) -> Guest | None:
    """GUEST, after a creation of it that is still going on (of an earlier call that was cut off) has ended."""
    if guest is None or not guest.lock:
        return guest
    row = pve_tasks.active(job.api, guest.node, guest.vmid)
    if row and (guest.lock != "create" or job.check_mode):
        return guest
    if row:
        try:
            job.tasks.append(pve_tasks.wait(job.api, row["upid"], time.monotonic() + job.timeout_s, job.timeout_s))
        except pve_tasks.TaskError as error:
            job.note([f"An earlier creation of container {guest.vmid} failed meanwhile. {error}"])
    # Without a task, too: it may have ended just now, and its lock with it.
    return find(job.api, guest.vmid, guest.node, job.params["pool"])


def _refuse_locked(job: Job, guest: Guest) -> None:
    if not guest.lock or guest.lock == "mounted":
        return
    row = pve_tasks.active(job.api, guest.node, guest.vmid)
    what = f"Container {guest.vmid} on node {guest.node} is locked: {guest.lock}."
    if row:
        raise RingmasterError(f"{what} Task {row['type']} of {row['user']} works on it ({row['upid']}).", "Run again when that has ended.")
    remedy = f"If nothing works on it any more (pvenode task list), take the lock away on node {guest.node}: pct unlock {guest.vmid}."
    if guest.lock == "create":
        remedy = f"It is what a creation left that was cut off. On node {guest.node}: pct unlock {guest.vmid} && pct destroy {guest.vmid}."
    raise RingmasterError(f"{what} No task that {job.api.identity} can see works on it.", f"{remedy} Then run again.")


def _check_allowed(job: Job, guest: Guest, made: Plan) -> None:
    """Raise RingmasterError for what PVE would refuse."""
    drives = [key for key in [*made.set, *made.delete] if re.fullmatch(r"(mp|unused)\d+", key)]
    if drives and truth(guest.running.get("protection", "0")):  # the call that takes the protection away is still under it
        raise RingmasterError(
            f"Container {guest.vmid} is protected, so Proxmox VE changes no volume or mount of it: {', '.join(drives)}. Nothing was sent.",
            "Take the protection away in a task before: extra: {protection: false}.",
        )
    changes = {**made.set, **dict.fromkeys([*made.delete, *made.revert])}
    unprivileged = bool(truth(guest.running.get("unprivileged", "0")))
    pve_access.check(job.api.identity, changes, guest.running, unprivileged, guest.vmid)


def _hint(job: Job, asked: Wanted, guest: Guest) -> None:
    """A template of another system than the container's: nothing to be done about it, but worth a word."""
    name = (asked.ostemplate or "").rpartition("/")[2].partition("-")[0].lower()
    known = ("debian", "ubuntu", "centos", "fedora", "alpine", "devuan", "opensuse", "archlinux", "gentoo", "nixos")
    have = guest.config.get("ostype", "")
    if name in known and have in known and name != have:
        job.note([f"Container {guest.vmid} is {have}; ostemplate names {name}, and is only used to create a container."])


def _update(job: Job, asked: Wanted, guest: Guest) -> tuple[Guest, Guest, bool]:
    made = plan(asked, guest)
    actions = actions_for(job, guest.status)
    if made or actions:
        _refuse_locked(job, guest)
    _check_allowed(job, guest, made)
    job.note(made.notes)
    foretold = forecast(guest, made)
    changed = bool(made) or bool(actions)
    if made and not job.check_mode:
        guest, foretold = converge(job, asked, guest, made)
    return power(job, foretold, guest, actions, changed)


def converge(job: Job, asked: Wanted, guest: Guest, made: Plan, tries: int = 2) -> tuple[Guest, Guest]:
    """Write MADE and read back until nothing is left to do: (the container as it is, and as it was foretold). A key that was written and
    still differs is an error. When somebody changed the configuration meanwhile, it is compared afresh, once."""
    written: set[str] = set()
    foretold = forecast(guest, made)
    while made:
        stuck = sorted(written.intersection(made.keys()))
        if stuck:
            raise _not_taken(guest, made, stuck)
        _check_allowed(job, guest, made)
        try:
            _write(job, guest, made)
            written.update(made.keys())
        except PveError as error:
            tries -= 1
            if not (error.stale or error.unanswered) or not tries:
                raise
            written, foretold = set(), None
        guest = read(job.api, guest.node, guest.vmid, guest.pool)
        made = plan(asked, guest)
        foretold = foretold or forecast(guest, made)
    return guest, foretold or guest


def _not_taken(guest: Guest, made: Plan, keys: list[str]) -> RingmasterError:
    seen = [
        f"{key}: {guest.config.get(key, 'not there')!r} instead of {made.set.get(key, 'not there')!r}" for key in keys if " " not in key
    ]
    sizes = [key for key in keys if " " in key]
    return RingmasterError(
        f"Proxmox VE took the change of container {guest.vmid} without an error, and still it differs: {'; '.join([*seen, *sizes])}.",
        f"Look at it on node {guest.node}: pct config {guest.vmid}; pct pending {guest.vmid}.",
    )


def _write(job: Job, guest: Guest, made: Plan) -> None:
    """Send MADE. Of the first two kinds of change, all in one call; then volumes grow, each with the digest that is then in force."""
    base = f"nodes/{guest.node}/lxc/{guest.vmid}"
    if made.set or made.delete or made.revert:
        lists = {"delete": ",".join(made.delete), "revert": ",".join(made.revert)}
        arguments = {**made.set, **{name: text for name, text in lists.items() if text}, "digest": guest.digest}
        try:
            job.api.put(f"{base}/config", **arguments)
        except PveError as error:
            _half_applied(job, guest, made, error)
    digest = guest.digest
    for disk, size in made.resize.items():
        if len(made.resize) > 1 or made.set or made.delete or made.revert:
            digest = read(job.api, guest.node, guest.vmid).digest

        def resize(disk: str = disk, size: int = size, digest: str = digest) -> Any:
            return job.api.put(f"{base}/resize", disk=disk, size=size_text(size), digest=digest)

        job.task(resize, guest.node, ("resize",))


def _half_applied(job: Job, guest: Guest, made: Plan, error: PveError) -> None:
    """PVE keeps a change that it could not apply. Good enough for what the next start will take; what would keep the container from
    starting (a volume that cannot be made, a directory that is not there), and all of a call that failed otherwise, is taken back."""
    if error.stale or error.unanswered:
        raise error
    if "unable to hotplug" in error.text or "unable to apply pending change" in error.text:
        named = [key for key in made.set if re.search(rf"\b{re.escape(key)}\b", error.text)]
        keys = [key for key in named if _is_hopeless(key, made.set[key], error.text)]
        if not keys:
            job.note([f"Container {guest.vmid} cannot take this while it runs: {error.text}"])
            return
    else:
        keys = [*made.set, *made.delete]
    back = _take_back(job, guest, keys)
    if not back:
        raise error
    raise RingmasterError(f"{error.what} {', '.join(back)} is as it was before.", error.remedy) from error


def _is_hopeless(key: str, text: str, said: str) -> bool:
    volume = parse("mp", text).get("volume", "") if key.startswith("mp") else ""
    return is_new_volume(volume) or "does not exist" in said


def _take_back(job: Job, guest: Guest, keys: list[str]) -> list[str]:
    """Those of KEYS that are not as GUEST was before, put back in one call."""
    now = read(job.api, guest.node, guest.vmid)
    changed = [key for key in keys if now.config.get(key) != guest.config.get(key)]
    waiting = [key for key in changed if now.running.get(key) == guest.running.get(key) == guest.config.get(key)]
    rest = [key for key in changed if key not in waiting]
    lists = {"revert": ",".join(waiting), "delete": ",".join(key for key in rest if key not in guest.config)}
    arguments = {key: guest.config[key] for key in rest if key in guest.config}
    if changed:
        job.api.put(f"nodes/{guest.node}/lxc/{guest.vmid}/config", **arguments, **{name: text for name, text in lists.items() if text})
    return changed


def _create(job: Job, asked: Wanted) -> tuple[Guest, Guest, bool]:
    api, params = job.api, job.params
    arguments = creation(asked, params)
    if api.local and params["password"]:
        raise RingmasterError(
            "password would stand on the command line of pvesh, for everybody on the node to see.", "Give ssh_public_keys."
        )
    node = node_for_new(api, params["node"], asked.vmid)
    pve_access.check(api.identity, dict(arguments), {}, arguments["unprivileged"] == "1", asked.vmid)
    foretold = guest = created(asked, arguments, node)
    if job.check_mode:
        check_template(api, node, arguments["ostemplate"])
    else:
        guest = _make(job, asked, node, arguments)
    actions = actions_for(job, "stopped")
    try:
        return power(job, foretold, guest, actions, True)
    except RingmasterError as error:
        known = not isinstance(error, pve_tasks.StillRunning)
        up = "has not come up" if known else "whether it comes up is not known"
        again = "" if "run again" in error.remedy.lower() else "Then run again."
        raise RingmasterError(
            f"{error.what} Container {asked.vmid} is there now, as configured, and {up}.", f"{error.remedy} {again}".strip()
        ) from error


def _make(job: Job, asked: Wanted, node: str, arguments: dict[str, str]) -> Guest:
    """Create the container, read it back, put right what the creation left out. Nothing half made is left behind, or it is said."""
    api, vmid = job.api, asked.vmid
    ours = False
    try:
        job.task(lambda: api.post(f"nodes/{node}/lxc", **arguments), node, ("vzcreate",))
        ours = True
        guest = read(api, node, vmid, asked.pool)
        return converge(job, asked, guest, plan(asked, guest))[0]
    except pve_tasks.StillRunning:
        raise
    except RingmasterError as error:
        if isinstance(error, PveError) and not ours:
            raise  # it was refused before anything was made, or nobody knows
        raise RingmasterError(f"{error.what} {_clean_up(job, node, ours)}", error.remedy) from error


def _clean_up(job: Job, node: str, ours: bool) -> str:
    """After a creation that failed: remove what it made, and nothing else. Says what is left.

    OURS: its task ended well, so the container is ours beyond doubt, and has never run. After a task that failed PVE itself cleans up."""
    api, vmid = job.api, job.params["vmid"]
    try:
        guest = read(api, node, vmid)
        if not ours:
            if guest.lock == "create":
                return (
                    f"What it left, container {vmid} with lock create, is removed on node {node}: pct unlock {vmid} && pct destroy {vmid}."
                )
            return f"The container {vmid} that is there now was not made by this run, and is not touched."
        job.task(lambda: api.delete(f"nodes/{node}/lxc/{vmid}", purge=1), node, ("vzdestroy",))
    except PveError as error:
        if not error.missing:
            return f"Whether something is left of container {vmid} on node {node} is not known: {error.what}"
    except RingmasterError as error:
        return f"Container {vmid} is left on node {node}, incomplete: {error.what} Remove it: pct destroy {vmid}."
    return "Nothing is left of it."


def _remove(job: Job, guest: Guest | None) -> tuple[Guest | None, Guest | None, bool]:
    if guest is None:
        return None, None, False
    if guest.status == "running" and not job.params["force"]:
        what = f"Container {guest.vmid} on node {guest.node} is running, and is not removed."
        raise RingmasterError(what, "Stop it first (state: stopped), or give force: true.")
    _refuse_locked(job, guest)
    if truth(guest.config.get("protection", "0")):
        raise RingmasterError(f"Container {guest.vmid} is protected.", "Take the protection away first: extra: {protection: false}.")
    if guest.managed and not job.params["purge"]:
        raise RingmasterError(f"Container {guest.vmid} is managed by high availability.", "Give purge: true to take it out of that, too.")
    if not job.check_mode:
        options = {name: 1 for name in ("force", "purge") if job.params[name]}
        job.task(lambda: job.api.delete(f"nodes/{guest.node}/lxc/{guest.vmid}", **options), guest.node, ("vzdestroy",))
    return None, None, True
