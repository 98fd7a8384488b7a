# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start and stop a container, and see that it has."""

from __future__ import annotations

import time

from .errors import RingmasterError
from .pve_container import Guest
from .pve_guest import read
from .pve_tasks import Job

SHUTDOWN_MARGIN_S = 15  # that a shutdown's own task takes beyond the time that the container is given
STATUS_PAUSE_S = 0.5
ACTIONS = {  # (wanted state, status now): what is done, in order
    ("started", "stopped"): ("start",),
    ("stopped", "running"): ("stop",),
    ("restarted", "running"): ("stop", "start"),
    ("restarted", "stopped"): ("start",),
}
AFTER = {"start": "running", "stop": "stopped"}


def actions_for(job: Job, status: str) -> tuple[str, ...]:
    """What brings a container of that STATUS to the state that JOB wants."""
    return ACTIONS.get((job.params["state"], status), ())


def power(job: Job, foretold: Guest, guest: Guest, actions: tuple[str, ...], changed: bool) -> tuple[Guest, Guest, bool]:
    """Carry out ACTIONS, or only foretell them: (the container as foretold, as it is, changed)."""
    for action in actions:
        foretold = foretold._replace(status=AFTER[action])
        if not job.check_mode:
            _act(job, guest, action)
    if job.check_mode:
        # A start takes all that waits.
        guest = foretold._replace(running=foretold.config) if "start" in actions else foretold
    elif actions:
        guest = read(job.api, guest.node, guest.vmid, guest.pool)
    return foretold, guest, changed


def _act(job: Job, guest: Guest, action: str) -> None:
    """Start or stop, and wait until it has: high availability ends its task before it acts."""
    base = f"nodes/{guest.node}/lxc/{guest.vmid}/status"
    if action == "start":
        job.task(lambda: job.api.post(f"{base}/start"), guest.node, ("vzstart", "hastart"))
    elif job.params["force"]:
        job.task(lambda: job.api.post(f"{base}/stop"), guest.node, ("vzstop", "hastop"))
    else:
        arguments = {"timeout": job.params["timeout_s"]}
        job.task(lambda: job.api.post(f"{base}/shutdown", **arguments), guest.node, ("vzshutdown", "hastop"), SHUTDOWN_MARGIN_S)
    deadline_s = time.monotonic() + (job.timeout_s if guest.managed else SHUTDOWN_MARGIN_S)
    while True:
        status = job.api.get(f"{base}/current").get("status")
        if status == AFTER[action]:
            return
        if time.monotonic() > deadline_s:
            break
        time.sleep(STATUS_PAUSE_S)
    remedy = f"Look at its log: pct start {guest.vmid} --debug on node {guest.node}."
    if guest.managed:
        remedy = "High availability manages it: ha-manager status says whether a node is in maintenance, or the container in error."
    raise RingmasterError(f"Container {guest.vmid} on node {guest.node} is {status} and not {AFTER[action]}.", remedy)
