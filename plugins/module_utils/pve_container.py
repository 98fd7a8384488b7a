# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what is wanted of a container and what it is: what to send, exactly and no more. Pure.

A running container has two configurations: the one in force, and the one of its next start, in which pending changes count. What is wanted
is compared with the second. A pending change that contradicts it is taken back (revert) where that is enough."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple

from .errors import RingmasterError
from .pve_properties import Token, decimal, gib, kept, parse, path_of, render, same, same_size, same_value, size_bytes, size_text, truth
from .pve_wanted import LISTS, Item, Wanted, is_new_volume, token_of

# What a running container takes at once; besides, every change of a network, and devices and mounts that are new.
HOT_GONE = ("description", "onboot", "startup", "protection", "hostname", "hookscript", "cores", "tags", "cpulimit", "cpuunits", "swap")
HOT = (*HOT_GONE, "memory")
CREATE_ONLY = ("vmid", "ostemplate", "pool", "password", "ssh-public-keys")


class Guest(NamedTuple):
    """A container as it was read. config: {key: text} of its next start, running: of now. lock: what holds it, or "". pool: None when it
    was not asked for, "" when it is in none."""

    vmid: int
    node: str
    config: dict[str, str]
    running: dict[str, str]
    digest: str = ""
    lxc: tuple[Any, ...] = ()
    status: str = "stopped"
    lock: str = ""
    pool: str | None = None
    managed: bool = False


@dataclass
class Plan:
    """set, delete, revert: for one call that changes the configuration. resize: {rootfs or mpN: bytes}. notes: sentences for the user."""

    set: dict[str, str] = field(default_factory=dict)
    delete: list[str] = field(default_factory=list)
    revert: list[str] = field(default_factory=list)
    resize: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.set or self.delete or self.revert or self.resize)

    def keys(self) -> list[str]:
        return sorted({*self.set, *self.delete, *self.revert, *(f"size of {disk}" for disk in self.resize)})


def plan(wanted: Wanted, guest: Guest) -> Plan:
    """What brings GUEST to what is WANTED. Raises RingmasterError for what cannot be changed."""
    _refuse_fixed(wanted, guest)
    made = Plan()
    for key, text in wanted.scalars.items():
        _settle(made, guest, key, text, _scalar_test(key, text))
    if wanted.features is not None:
        text = render("features", wanted.features) or None
        _settle(made, guest, "features", text, lambda value: same("features", wanted.features, parse("features", value or "")))
    for option, items in wanted.lists.items():
        if items is not None:
            _settle_list(made, guest, option, items)
    if wanted.rootfs and "rootfs" in guest.config:
        _settle_rootfs(made, guest, wanted.rootfs)
    return made


def _scalar_test(key: str, text: str | None) -> Callable[[str | None], bool]:
    return lambda value: value is None if text is None else same_value(token_of(key), text, value)


def _settle(made: Plan, guest: Guest, key: str, text: str | None, good: Callable[[str | None], bool]) -> None:
    """Put into MADE what gives KEY the value TEXT (None: takes it away), unless GOOD says that it is so already."""
    effective, running = guest.config.get(key), guest.running.get(key)
    if good(effective):
        return
    if effective != running and good(running):
        made.revert.append(key)
    elif text is None:
        made.delete.append(key)
    else:
        made.set[key] = text


def _index(key: str) -> int:
    return int(re.sub(r"\D", "", key))


def assign(kind: str, identity: str, items: list[Item], guest: Guest) -> dict[str, Item]:
    """{key: item}: the key that has the identity already, at the next start or now, or the lowest that is free in both."""
    keys: dict[str, Item] = {}
    left = list(items)
    for config in (guest.config, guest.running):
        at: dict[str, str] = {}
        for key in sorted((key for key in config if re.fullmatch(rf"{kind}\d+", key)), key=_index):
            at.setdefault(_identity(kind, identity, config[key]), key)
        for item in list(left):
            key = at.get(item.properties[identity])
            if key and key not in keys:
                keys[key] = item
                left.remove(item)
    for item in left:
        number = 0
        while any(f"{kind}{number}" in taken for taken in (keys, guest.config, guest.running)):
            number += 1
        keys[f"{kind}{number}"] = item
    return keys


def _identity(kind: str, identity: str, text: str) -> str:
    value = parse(kind, text).get(identity, "")
    return value if kind == "net" else path_of(value)


def _settle_list(made: Plan, guest: Guest, option: str, items: list[Item]) -> None:
    kind, identity, _table = LISTS[option]
    keys = assign(kind, identity, items, guest)
    for key, item in sorted(keys.items(), key=lambda pair: _index(pair[0])):
        settle = _settle_mount if kind == "mp" else _settle_item
        settle(made, guest, kind, key, item)
    for key in sorted((key for key in guest.config if re.fullmatch(rf"{kind}\d+", key) and key not in keys), key=_index):
        _settle(made, guest, key, None, lambda value: value is None)
        volume = parse(kind, guest.config[key]).get("volume", "/")
        if not volume.startswith("/"):
            made.notes.append(f"Volume {volume} is taken out of container {guest.vmid} ({key}) and kept on its storage as unused.")


def _settle_item(made: Plan, guest: Guest, kind: str, key: str, item: Item) -> None:
    base = parse(kind, guest.config.get(key) or guest.running.get(key) or "")
    text = render(kind, kept(kind, item.properties, base))
    _settle(made, guest, key, text, lambda value: value is not None and same(kind, item.properties, parse(kind, value)))


def _settle_mount(made: Plan, guest: Guest, kind: str, key: str, item: Item) -> None:
    base = parse(kind, guest.config.get(key) or guest.running.get(key) or "")
    volume = _volume(item, base, guest, key)
    properties = {**item.properties, "volume": volume, "mp": base.get("mp", item.properties["mp"])}
    stays = same_value(Token("path"), volume, base.get("volume")) and not is_new_volume(volume)
    text = render(kind, kept(kind, properties, base) if stays else properties)

    def good(value: str | None) -> bool:
        found = parse(kind, value or "")
        return same(kind, properties, found) and not is_new_volume(found["volume"])

    _settle(made, guest, key, text, good)
    if stays and item.bytes:
        _settle_size(made, key, item.properties["mp"], item.bytes, base)
    old = base.get("volume", "/")
    if base and not stays and not old.startswith("/") and not is_new_volume(old):
        made.notes.append(f"Volume {old} is taken out of container {guest.vmid} ({key}) and kept on its storage as unused.")


def _volume(item: Item, base: dict[str, str], guest: Guest, key: str) -> str:
    """The volume of a mount: as asked for, or the one that is there when it is on the storage asked for, or a new one."""
    if item.storage is None:
        return item.properties["volume"]
    there = base.get("volume", "")
    if not there or is_new_volume(there):  # one that is still to be made has failed before
        return f"{item.storage}:{decimal(gib(item.bytes))}"
    if there.partition(":")[0] == item.storage:
        return there
    raise RingmasterError(
        f"mounts: {item.properties['mp']} of container {guest.vmid} is {there} ({key}), not a volume on {item.storage}.",
        f"A new, empty one would hide what is there. Move it (pct move-volume {guest.vmid} {key} {item.storage}), give {there} as source, "
        "or take the mount away first.",
    )


def _settle_rootfs(made: Plan, guest: Guest, item: Item) -> None:
    base = parse("rootfs", guest.config["rootfs"])
    storage = base.get("volume", "").partition(":")[0]
    if storage != item.storage:
        raise RingmasterError(
            f"rootfs of container {guest.vmid} is on {storage}, not on {item.storage}.",
            f"Move it on the node (pct move-volume {guest.vmid} rootfs {item.storage}), or give storage: {storage}.",
        )
    _settle_size(made, "rootfs", "rootfs", item.bytes, base)


def _settle_size(made: Plan, disk: str, where: str, wanted: int, base: dict[str, str]) -> None:
    size = size_bytes(base.get("size", ""))
    if size is not None and same_size(size, wanted):
        return
    if size is not None and wanted < size:
        now, then = decimal(gib(size)), decimal(gib(wanted))
        raise RingmasterError(f"{where} has {now} GiB and cannot shrink to {then} GiB.", f"Give size_gib: {now}.")
    made.resize[disk] = wanted


def _refuse_fixed(wanted: Wanted, guest: Guest) -> None:
    """What nobody can change once a container is there."""
    now = bool(truth(guest.config.get("unprivileged", "0")))
    if wanted.unprivileged is not None and wanted.unprivileged != now and guest.config:
        raise RingmasterError(
            f"Container {guest.vmid} is {'un' if now else ''}privileged, which cannot be changed.",
            f"Leave unprivileged out, or make it anew: vzdump, then pct restore with --unprivileged {int(wanted.unprivileged)}.",
        )
    if wanted.pool is not None and guest.pool is not None and wanted.pool != guest.pool:
        raise RingmasterError(
            f"Container {guest.vmid} is in {'pool ' + guest.pool if guest.pool else 'no pool'}, not in {wanted.pool}.",
            f"Leave pool out, or move it: pvesh set /pools/{wanted.pool} --vms {guest.vmid} --allow-move 1.",
        )


def creation(wanted: Wanted, params: dict[str, Any]) -> dict[str, str]:
    """The arguments that create the container. Raises RingmasterError for what is missing."""
    missing = [name for name in ("ostemplate", "rootfs") if not params[name]]
    if missing:
        raise RingmasterError(f"There is no container {wanted.vmid}, and {' and '.join(missing)} to create it is not given.", "Give it.")
    made = plan(wanted, Guest(wanted.vmid, "", {}, {}))
    extra = {
        "vmid": str(wanted.vmid),
        "ostemplate": wanted.ostemplate,
        "rootfs": f"{wanted.rootfs.storage}:{decimal(gib(wanted.rootfs.bytes))}",
        "unprivileged": "0" if wanted.unprivileged is False else "1",  # said, because releases differ in what they take it for
        "pool": wanted.pool,
        "password": params["password"],
        "ssh-public-keys": "\n".join(key.strip() for key in params["ssh_public_keys"] or []),
    }
    return {**made.set, **{name: text for name, text in extra.items() if text}}


def forecast(guest: Guest, made: Plan) -> Guest:
    """GUEST as it will be after MADE; the volume of a new mount and the MAC address of a new network are not known before."""
    config, running = dict(guest.config), dict(guest.running)
    off = guest.status != "running"
    for key in made.revert:
        config.pop(key, None)
        if key in running:
            config[key] = running[key]
    for key in made.delete:
        config.pop(key, None)
        if off or key in HOT_GONE or re.fullmatch(r"(net|unused)\d+", key):
            running.pop(key, None)
    for key, text in made.set.items():
        config[key] = text
        if off or key in HOT or key.startswith("net") or (re.fullmatch(r"(dev|mp)\d+", key) and key not in running):
            running[key] = text
    for disk, size in made.resize.items():
        for values in (config, running):
            if disk in values:
                kind = "rootfs" if disk == "rootfs" else "mp"
                values[disk] = render(kind, {**parse(kind, values[disk]), "size": size_text(size)})
    return guest._replace(config=config, running=running)


def created(wanted: Wanted, arguments: dict[str, str], node: str) -> Guest:
    """The container that ARGUMENTS will make."""
    config = {key: text for key, text in arguments.items() if key not in CREATE_ONLY}
    return Guest(wanted.vmid, node, config, config, pool=wanted.pool or "")


def pending(guest: Guest) -> list[dict[str, str]]:
    """What waits for the next start: [{key, value, pending}], value where something is in force, pending where something will be."""
    waits = []
    for key in sorted({*guest.config, *guest.running}):
        now, then = guest.running.get(key), guest.config.get(key)
        if now != then:
            waits.append({"key": key, **({} if now is None else {"value": now}), **({} if then is None else {"pending": then})})
    return waits


def lines(guest: Guest | None) -> str:
    """GUEST as text for a diff: its state, then its configuration, a key a line."""
    if guest is None:
        return ""
    rows = [
        f"{key}: {text.rstrip(chr(10))!r}" if "\n" in text.rstrip("\n") else f"{key}: {text.rstrip(chr(10))}"
        for key, text in guest.config.items()
    ]
    return "\n".join([f"status: {guest.status}", *sorted(rows)]) + "\n"
