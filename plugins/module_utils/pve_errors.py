# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Proxmox VE says when it refuses, in words that say what to do. Pure: a table of its texts, the first that matches wins.

PVE tells its errors by text alone: nearly all of them are status 500."""

from __future__ import annotations

import re
from typing import NamedTuple

from .errors import RingmasterError

PROXY = (502, 503, 504)  # never Proxmox VE's own
LOST = (595, 596, 597, 598, 599)  # the API host could not reach the node that has the answer, or its own pvedaemon


class PveError(RingmasterError):
    """A call that failed. status: of HTTP, None when there was no answer. text: PVE's own. kind: http, or how the connection failed
    (refused, name, tls, timeout, cut)."""

    def __init__(self, what: str, remedy: str = "", *, status: int | None = None, text: str = "", kind: str = "http") -> None:
        super().__init__(what, remedy)
        self.status, self.text, self.kind = status, text, kind

    @property
    def unanswered(self) -> bool:
        """Whether the call may have been carried out all the same."""
        return self.kind in ("timeout", "cut") or (self.status in PROXY + LOST and self.status != 595)

    @property
    def passing(self) -> bool:
        """Whether the next try may well succeed."""
        return self.unanswered or self.kind == "refused" or self.status == 595

    @property
    def missing(self) -> bool:
        """Whether it says that the container is not (on that node)."""
        return bool(re.search(r"Configuration file '\S*' does not exist", self.text))

    @property
    def stale(self) -> bool:
        """Whether somebody changed the configuration after it was read."""
        return bool(re.search(r"detected modified configuration|checksum mismatch", self.text))


class Rule(NamedTuple):
    """what and remedy may hold {1} (a group of the pattern), {identity}, {vmid}, {node}, {call}. who: whose words the text is."""

    pattern: str
    what: str
    remedy: str
    who: str = "Proxmox VE"


ROOT_REMEDY = (
    "Give api_user: root@pam with api_password (a ticket; a token of root is not root), or leave api_host out and run the task on the node."
)
RULES = (
    Rule(
        r"only allowed for root@pam|Only root can",
        "Proxmox VE takes this from root@pam alone, not from {identity}.",
        ROOT_REMEDY,
    ),
    Rule(
        r"Permission check failed \((/\S*), ((?:VM|Datastore|Sys|SDN|Pool|Mapping)\.[\w.|]+)",
        "{identity} lacks the privilege {2} on {1}.",
        "Grant it on the node: pveum acl modify {1} --{whose} '{identity}' --roles ROLE, with a role that has {2}. "
        "A token with privilege separation needs it besides its user.",
    ),
    Rule(
        r"Permission check failed \((pool '\S+' does not exist)\)",
        "{1}.",
        "Make the pool, or give one that is there (pvesh get /pools).",
    ),
    Rule(
        r"Permission check failed",
        "{identity} lacks a privilege for {call}.",
        "To create or remove a container it needs VM.Allocate on /vms/{vmid} or on the pool: "
        "pveum acl modify /vms/{vmid} --{whose} '{identity}' --roles PVEVMAdmin.",
    ),
    Rule(
        r"is locked \((\w[\w-]*)\)",
        "Container {vmid} is locked: {1}.",
        "Wait until that has ended and run again. A lock that nobody holds any more is taken away on the node: pct unlock {vmid}.",
    ),
    Rule(
        r"can't lock file|unable to acquire lock|trying to acquire.*lock.*timeout",
        "Another task holds the configuration of container {vmid}.",
        "Run again when it has ended; the tasks of the node say which: pvesh get /nodes/{node}/tasks --source active --vmid {vmid}.",
    ),
    Rule(
        r"no quorum|not ready - no quorum|Permission denied.*/etc/pve",
        "The cluster has lost its quorum, so its configuration is read-only.",
        "Bring back enough of its nodes (pvecm status on a node), then run again.",
    ),
    Rule(
        r"(CT|VM) (\d+) already exists on node '([\w.-]+)'|Could not reserve ID|already taken|(CT|VM) (\d+) already exists",
        "VMID {vmid} is taken.",
        "Give another vmid; a free one: pvesh get /cluster/nextid. If it is a container that {identity} cannot see, grant VM.Audit "
        "on /vms/{vmid}.",
    ),
    Rule(
        r"(?i)no space left|out of space|insufficient free|not enough (?:free )?space|quota exceeded|volume group .* has insufficient",
        "The storage is full.",
        "Make room on it (pvesm status on the node), or give another storage or a smaller size_gib.",
    ),
    Rule(
        r"storage '([^']+)' (?:does not exist|is not available on node|is not online|is disabled)|"
        r"connection check for storage '([^']+)' failed",
        "Storage {1}{2} cannot be used on node {node}.",
        "See pvesm status on the node; give a storage that is there and active.",
    ),
    Rule(
        r"storage '([^']+)' does not (?:support container directories|allow content type)",
        "Storage {1} does not hold containers.",
        "Allow it (pvesm set {1} --content ... with rootdir), or give another storage.",
    ),
    Rule(
        r"volume '(\S*vztmpl/[^']*)' does not exist|can't open '?(\S*/template/cache/[^' ]+)|parse directory volume name '([^']+)'|"
        r"unable to use volume (\S+) - content type needs to be 'vztmpl'",
        "There is no template {1}{2}{3}{4}.",
        "See what there is (pveam list STORAGE on the node), or fetch it: pveam update; pveam download STORAGE NAME.",
    ),
    Rule(
        r"unable to parse volume ID '([^']*)'",
        "{1} is no volume of a storage.",
        "Give STORAGE:NAME; for a template, as pveam list STORAGE on the node shows it.",
    ),
    Rule(
        r"Device (/dev/\S+) does not exist|Could not get mode or device ID of (/dev/\S+)|Could not (?:find|stat) device (/dev/\S+)",
        "Node {node} has no device {1}{2}{3}, which container {vmid} is to get.",
        "Load its driver on the node (for /dev/nvidia-uvm: nvidia-modprobe -u -c0), or take it out of devices.",
    ),
    Rule(
        r"bridge '([^']+)' does not exist",
        "Node {node} has no bridge {1}.",
        "Give one of its bridges (ip -br link show type bridge).",
    ),
    Rule(
        r"protection mode enabled",
        "Container {vmid} is protected.",
        "Take the protection away in a task before: extra: {{protection: false}}.",
    ),
    Rule(
        r"used in HA resources",
        "Container {vmid} is managed by high availability.",
        "Give purge: true to take it out of that, too.",
    ),
    Rule(
        r"container is running",
        "Container {vmid} is running.",
        "Stop it first (state: stopped), or give force: true.",
    ),
    Rule(
        r"did not stop",
        "Container {vmid} did not shut down in time.",
        "Give more timeout_s, or force: true to stop it at once.",
    ),
    Rule(
        r"unable to shrink",
        "A volume of container {vmid} cannot shrink.",
        "Give the size that it has, or more.",
    ),
    Rule(
        r"hostname lookup '([^']+)' failed|no such cluster node '([^']+)'",
        "There is no node {1}{2} in the cluster.",
        "Give node as Proxmox VE names it (pvesh get /nodes).",
    ),
    Rule(
        r"property is not defined in schema",
        "This Proxmox VE does not know a setting that was asked for.",
        "Devices (devN) need Proxmox VE 8.2 or newer: pveversion on the node. Keys of extra have to be spelled as Proxmox VE does.",
    ),
    Rule(
        r"Configuration file '\S*' does not exist",
        "There is no container {vmid} on node {node}.",
        "It may have been moved or removed just now: run again.",
    ),
    Rule(
        r"detected modified configuration|checksum mismatch",
        "Somebody else keeps changing the configuration of container {vmid}.",
        "Run again when it is quiet.",
    ),
)
STATUS = {
    401: Rule("", "{host} does not accept {identity}.", ""),
    403: Rule("", "{identity} may not do this: {call}.", "See its privileges: pveum user permissions '{identity}'."),
    501: Rule("", "This Proxmox VE does not know {call}.", "Proxmox VE 8.2 or newer is needed: pveversion on the node."),
}
CREDENTIALS = {
    "token": "Check api_token_id (the name after the '!'), api_token_secret (the secret that was shown when the token was made, not its "
    "name), and that the token has not expired or been removed: pveum user token list {user}.",
    "ticket": "Check api_user, with its realm (root@pam is not root@pve), and api_password. A user with a second factor needs a token.",
}
PROXIED = Rule(
    "",
    "Something before {host} answers {call}, not Proxmox VE.",
    "Is pveproxy running there (systemctl status pveproxy)? Look at the proxy between, or give api_host and api_port (8006) of a node "
    "itself; run again when it answers.",
    "It",
)
NODE_LOST = Rule(
    "",
    "{host} cannot reach node {node}.",
    "The node is switched off, is booting, or is taken out for maintenance: see its state (pvecm status; ha-manager status) and run again "
    "when it answers, or give another node.",
)
DAEMON_LOST = Rule(
    "",
    "{host} cannot reach what carries out {call}.",
    "Look at that node (systemctl status pvedaemon pveproxy; pvecm status), and run again when it answers.",
)


def explain(text: str, *, status: int | None = None, fields: dict[str, str] | None = None, **facts: str) -> PveError:
    """The error for PVE's TEXT. fields: {parameter: message} of a refused parameter. facts: identity, host, vmid, node, call."""
    told = " ".join([text.strip(), *(f"{name}: {message}".strip() for name, message in sorted((fields or {}).items()))]).strip()
    rule, groups = _rule(told, status, bool(facts.get("node")))
    values = {"identity": "", "host": "", "vmid": "", "node": "", "call": "", **facts}
    values["whose"] = "tokens" if "!" in values["identity"] else "users"
    values["user"] = values["identity"].partition("!")[0]
    remedy = CREDENTIALS["token" if "!" in values["identity"] else "ticket"] if status == 401 else rule.remedy
    what, remedy = (_fill(sentence, groups, values) for sentence in (rule.what, remedy))
    answer = f"{status} {told}".strip() if status else told
    return PveError(
        f"{what} {rule.who} says: {answer or 'nothing'}{'' if answer.endswith(('.', '?')) else '.'}", remedy, status=status, text=told
    )


def _rule(told: str, status: int | None, of_node: bool) -> tuple[Rule, list[str]]:
    if status in PROXY:
        return PROXIED, []
    if status in LOST:
        return NODE_LOST if of_node else DAEMON_LOST, []
    if status == 401:
        return STATUS[401], []
    for rule in RULES:
        found = re.search(rule.pattern, told)
        if found:
            return rule, [group or "" for group in found.groups()]
    return STATUS.get(status or 0, Rule("", "{call} failed.", "")), []


def _fill(sentence: str, groups: list[str], values: dict[str, str]) -> str:
    def value(match: re.Match) -> str:
        name = match.group(1)
        if name.isdigit():
            return groups[int(name) - 1] if int(name) <= len(groups) else ""
        return values[name]

    return re.sub(r"\{(\w+)\}", value, sentence).replace("{{", "{").replace("}}", "}")
