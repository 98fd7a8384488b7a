# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Containers as they are: found in the cluster and read, with few calls."""

from __future__ import annotations

import os
from typing import Any

from .errors import RingmasterError
from .pve_client import Api
from .pve_container import Guest, pending
from .pve_errors import PveError
from .pve_wanted import described


def read(api: Api, node: str, vmid: int, pool: str | None = None) -> Guest:
    """The container on NODE. Raises PveError, with `missing` set when it is not there."""
    base = f"nodes/{node}/lxc/{vmid}"
    config = dict(api.get(f"{base}/config"))
    digest, lxc = config.pop("digest", ""), config.pop("lxc", None) or []
    effective = {key: str(value) for key, value in config.items() if not isinstance(value, (list, dict))}
    running = {row["key"]: str(row["value"]) for row in api.get(f"{base}/pending") if row.get("value") is not None}
    running.pop("digest", None)
    status = api.get(f"{base}/status/current")
    lock = effective.pop("lock", "") or str(status.get("lock") or "")
    running.pop("lock", None)
    return Guest(
        vmid=vmid,
        node=node,
        config=effective,
        running=running,
        digest=digest,
        lxc=tuple(lxc),
        status=str(status.get("status", "unknown")),
        lock=lock,
        pool=pool,
        managed=bool((status.get("ha") or {}).get("managed")),
    )


def find(api: Api, vmid: int, node: str | None, pool: str | None) -> Guest | None:
    """The container VMID, or None when there is none. Raises RingmasterError when something else has that number, or it is elsewhere."""
    if node and pool is None:
        try:
            return read(api, node, vmid)
        except PveError as error:
            if not error.missing:
                raise
    rows = [row for row in api.get("cluster/resources", type="vm") if str(row.get("vmid")) == str(vmid)]
    if not rows:
        return None
    row = rows[0]
    if row.get("type") != "lxc":
        raise RingmasterError(
            f"VMID {vmid} is a virtual machine ({row.get('name', 'without name')}) on node {row['node']}, not a container.",
            "Give another vmid; a free one: pvesh get /cluster/nextid.",
        )
    if node and row["node"] != node:
        raise RingmasterError(
            f"Container {vmid} is on node {row['node']}, not on {node}.",
            f"Give node: {row['node']}, leave node out, or move it: pct migrate {vmid} {node} on {row['node']}.",
        )
    return read(api, row["node"], vmid, str(row.get("pool") or ""))


def node_for_new(api: Api, node: str | None, vmid: int) -> str:
    """The node to create a container on. Raises RingmasterError when it is not clear, not there or not running."""
    rows = {row["node"]: row for row in api.get("nodes")}
    here = os.uname().nodename.partition(".")[0]
    if node is None:
        node = here if api.local and here in rows else next(iter(rows)) if len(rows) == 1 else None
    names = ", ".join(sorted(rows))
    if node is None:
        raise RingmasterError(f"There is no container {vmid}, and on which node to create it is not said.", f"Give node, one of {names}.")
    if node not in rows:
        raise RingmasterError(f"There is no node {node} in the cluster.", f"Give node, one of {names}.")
    if rows[node].get("status") == "offline":
        raise RingmasterError(
            f"Node {node} is offline (switched off, or taken out for maintenance).", f"Start it, or give another of {names}."
        )
    return node


def check_template(api: Api, node: str, template: str) -> None:
    """Raise RingmasterError when NODE does not have TEMPLATE. For check mode, which sends nothing that Proxmox could refuse."""
    storage, _colon, name = template.partition(":")
    if not name:  # a path of the node
        return
    there = sorted(row["volid"] for row in api.get(f"nodes/{node}/storage/{storage}/content", content="vztmpl"))
    if template not in there:
        raise RingmasterError(
            f"ostemplate: there is no template {template} on node {node}, but {', '.join(there) or 'none at all'}.",
            f"Give one of these, or fetch it: pveam update; pveam download {storage} NAME.",
        )


def survey(api: Api, params: dict[str, Any]) -> list[dict[str, Any]]:
    """The containers that PARAMS {vmid, node, addresses} ask for, as proxmox_container_info returns them."""
    rows = [row for row in api.get("cluster/resources", type="vm") if row.get("type") == "lxc"]
    for name in ("vmid", "node"):
        if params[name] is not None:
            rows = [row for row in rows if str(row.get(name)) == str(params[name])]
    return [_look(api, row, params["addresses"]) for row in sorted(rows, key=lambda row: int(row["vmid"]))]


def _look(api: Api, row: dict[str, Any], with_addresses: bool) -> dict[str, Any]:
    found = {
        "vmid": int(row["vmid"]),
        "node": row["node"],
        "name": row.get("name", ""),
        "status": row.get("status", "unknown"),
        "lock": row.get("lock", ""),
        "pool": row.get("pool", ""),
        "template": bool(row.get("template")),
        "config": {},
        "pending": [],
        "restart_required": False,
        "problem": "",
        **({"addresses": []} if with_addresses else {}),
    }
    try:
        guest = read(api, row["node"], int(row["vmid"]))
        if with_addresses and guest.status == "running":
            found["addresses"] = addresses(api, guest)
    except PveError as error:  # one node that is down does not hide the others
        if error.kind in ("refused", "name", "tls") or error.status == 401:
            raise
        return {**found, "status": "unknown", "problem": str(error)}
    return {**found, "status": guest.status, "lock": guest.lock, **shown(guest)}


def shown(guest: Guest) -> dict[str, Any]:
    """What both modules say of a container that was read: config, pending, restart_required."""
    waits = pending(guest)
    return {
        "config": described(guest.config, list(guest.lxc)),
        "pending": waits,
        "restart_required": bool(waits) and guest.status == "running",
    }


def addresses(api: Api, guest: Guest) -> list[str]:
    """IP addresses with prefix length of a running container, without the loopback's."""
    found = []
    for interface in api.get(f"nodes/{guest.node}/lxc/{guest.vmid}/interfaces") or []:
        if interface.get("name") == "lo":
            continue
        rows = interface.get("ip-addresses")
        if rows is None:  # before Proxmox VE 9
            found += [interface[family] for family in ("inet", "inet6") if interface.get(family)]
        else:
            found += [f"{row['ip-address']}/{row['prefix']}" for row in rows]
    return found
