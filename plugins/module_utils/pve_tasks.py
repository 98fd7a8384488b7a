# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tasks of Proxmox VE: started by a call, which answers with their unique name (UPID), and watched until they end.

A task that failed is an error at once, with the end of its log. A connection that is lost in between is none: the task goes on, and is
asked after again until its time is over. When the answer with the name itself is lost, the node is asked which task is new."""

from __future__ import annotations

import re
import time
from typing import Any, Callable, NamedTuple

from .errors import RingmasterError
from .pve_client import Api
from .pve_errors import PveError, explain

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0
LOST_S = 60  # how long the task of a call is looked for whose answer did not come in time, or while nobody answers
CUT_S = 3  # the same, once the API answers, when the connection was cut: the call has arrived by then, or never will


class Task(NamedTuple):
    upid: str
    type: str
    exitstatus: str
    warnings: tuple[str, ...] = ()


class TaskError(RingmasterError):
    """A task that ended badly. upid: its name."""

    def __init__(self, what: str, remedy: str, upid: str) -> None:
        super().__init__(what, remedy)
        self.upid = upid


class StillRunning(RingmasterError):
    """A task whose end was not seen in time."""


class Job:
    """One call of the module: what it works with, and what it has done so far."""

    def __init__(self, api: Api, params: dict[str, Any], check_mode: bool) -> None:
        self.api, self.params, self.check_mode = api, params, check_mode
        self.timeout_s: float = params["timeout_s"]
        self.tasks: list[Task] = []
        self.warnings: list[str] = []

    def task(self, call: Any, node: str, kinds: tuple[str, ...], extra_s: float = 0) -> None:
        """Run the task that CALL starts."""
        ended = run(self.api, call, node=node, vmid=self.params["vmid"], kinds=kinds, timeout_s=self.timeout_s + extra_s)
        if ended:
            self.tasks.append(ended)
            self.warnings += ended.warnings

    def note(self, sentences: list[str]) -> None:
        self.warnings += [sentence for sentence in sentences if sentence not in self.warnings]


def parts(upid: str) -> dict[str, str]:
    """{node, type, id, user} of a UPID."""
    fields = upid.split(":")
    return {"node": fields[1], "type": fields[5], "id": fields[6], "user": fields[7]}


def run(api: Api, call: Callable[[], Any], *, node: str, vmid: int, kinds: tuple[str, ...], timeout_s: float) -> Task | None:
    """The ended task that CALL started; None when the call did its work without one. kinds: the types of task that it may start.

    Raises TaskError, StillRunning, PveError."""
    before = {row["upid"] for row in newest(api, node, vmid)}
    deadline_s = time.monotonic() + timeout_s
    try:
        upid = call()
    except PveError as error:
        if not error.unanswered:
            raise
        until_s = min(deadline_s, time.monotonic() + LOST_S)
        upid = _find_lost(api, node, vmid, kinds, before, until_s, LOST_S if error.kind == "timeout" else CUT_S)
        if upid is None:
            raise
    return wait(api, upid, deadline_s, timeout_s) if str(upid).startswith("UPID:") else None


def newest(api: Api, node: str, vmid: int, **arguments: Any) -> list[dict[str, Any]]:
    """The newest tasks of a container on NODE, ended ones too."""
    return api.get(f"nodes/{node}/tasks", vmid=vmid, limit=20, **{"source": "all", **arguments}) or []


def active(api: Api, node: str, vmid: int) -> dict[str, Any] | None:
    """The task that works on the container now, if the identity may see it."""
    rows = [row for row in newest(api, node, vmid, source="active") if str(row.get("id")) == str(vmid) and not row.get("endtime")]
    return rows[0] if rows else None


def _find_lost(
    api: Api, node: str, vmid: int, kinds: tuple[str, ...], before: set[str], deadline_s: float, patience_s: float
) -> str | None:
    """The task that is not among BEFORE, of one of KINDS and of this identity. Gives up patience_s after the API first answers."""
    answered_s = None
    for pause_s in _pauses(deadline_s):
        try:
            rows = newest(api, node, vmid)
        except PveError as error:
            if not error.passing:
                raise
        else:
            fresh = [row["upid"] for row in rows if row["upid"] not in before and row.get("type") in kinds]
            fresh = [upid for upid in fresh if parts(upid)["user"] == api.identity and parts(upid)["id"] == str(vmid)]
            if fresh:
                return fresh[0]
            answered_s = answered_s or time.monotonic()
            if time.monotonic() - answered_s >= patience_s:
                return None
        time.sleep(pause_s)
    return None


def _pauses(deadline_s: float):
    """Growing pauses in seconds, until the deadline, and one at least."""
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s
        if time.monotonic() >= deadline_s:
            return
        pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)


def wait(api: Api, upid: str, deadline_s: float, timeout_s: float) -> Task:
    """The task UPID once it has ended well. deadline_s: of time.monotonic(). timeout_s: the time that was given, for the message."""
    lost: PveError | None = None
    task = parts(upid)
    for pause_s in _pauses(deadline_s):
        try:
            status, lost = api.get(f"nodes/{task['node']}/tasks/{upid}/status"), None
        except PveError as error:
            lost = error
            if not error.passing:
                break
        else:
            if status.get("status") == "stopped":
                return _ended(api, upid, str(status.get("exitstatus") or "no exit status"))
        time.sleep(pause_s)
    what = f"Task {task['type']} of container {task['id']} has not ended in {timeout_s:g} s."
    if lost:
        what = f"How task {task['type']} of container {task['id']} ended is not known: {lost.what}"
    remedy = f"It goes on by itself. Look at it on node {task['node']} (pvenode task status '{upid}'), and run again."
    raise StillRunning(what, f"{remedy} {lost.remedy if lost and not lost.passing else ''}".rstrip())


def _ended(api: Api, upid: str, exitstatus: str) -> Task:
    task = parts(upid)
    if exitstatus == "OK":
        return Task(upid, task["type"], exitstatus)
    tail = [line for line in _log(api, upid) if line not in ("TASK OK", f"TASK {exitstatus}")]
    if re.fullmatch(r"WARNINGS: \d+", exitstatus):
        words = [line for line in tail if "warn" in line.lower()] or tail[-1:] or [exitstatus]
        return Task(upid, task["type"], exitstatus, tuple(f"Task {task['type']} of container {task['id']}: {line}" for line in words))
    told = explain(
        exitstatus,
        identity=api.identity,
        host=api.host,
        node=task["node"],
        vmid=task["id"],
        call=f"task {task['type']} of container {task['id']}",
    )
    last = [line for line in tail if exitstatus not in line][-3:]
    log = f" Its log ends with: {' / '.join(last)}." if last else ""
    failed = f"Task {task['type']} of container {task['id']} failed on node {task['node']}: "
    raise TaskError(f"{failed}{told.what}{log}", told.remedy or f"Its whole log: pvenode task log '{upid}'.", upid)


def _log(api: Api, upid: str) -> list[str]:
    """The lines of a task's log, without the empty ones; none when it cannot be read, which is no reason to say less of the task."""
    try:
        rows = api.get(f"nodes/{parts(upid)['node']}/tasks/{upid}/log", limit=10000) or []
    except PveError:
        return []
    return [text for text in (str(row.get("t", "")).strip() for row in rows) if text and text != "no content"]
