# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a task asks of a container: the options of the module in the words of Proxmox VE's configuration, and back. Pure.

Here stand the two tables that join them: the keys that are one value each, and the tokens of devices, mounts and networks."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from .errors import RingmasterError
from .pve_properties import BOOL, KINDS, UNITS, Token, canonical, decimal, gib, octal_mode, parse, path_of, size_bytes, truth

# Keys with an option of their own, then those that `extra` is for.
OWN = {
    "hostname": Token(),
    "description": Token("note"),
    "tags": Token("set"),
    "cores": Token("int"),
    "memory": Token("int", "512"),
    "swap": Token("int", "512"),
    "onboot": BOOL,
    "nameserver": Token("words"),
    "searchdomain": Token("words"),
}
EXTRA = {
    "arch": Token(),
    "cmode": Token("text", "tty"),
    "console": Token("bool", "1"),
    "cpulimit": Token("number", "0"),
    "cpuunits": Token("int"),
    "debug": BOOL,
    "entrypoint": Token("text", "/sbin/init"),
    "env": Token(),
    "hookscript": Token(),
    "ostype": Token(),
    "protection": BOOL,
    "startup": Token("startup"),
    "timezone": Token(),
    "tty": Token("int", "2"),
}
JOINT = {"tags": ";", "nameserver": " ", "searchdomain": " ", "env": "\0"}
UNDELETABLE = ("memory", "rootfs", "ostype", "unprivileged")

# The lists: option -> kind, the token that says which is which, and option's words -> tokens.
LISTS = {
    "devices": ("dev", "path", {"path": "path", "mode": "mode", "uid": "uid", "gid": "gid", "deny_write": "deny-write"}),
    "mounts": (
        "mp",
        "mp",
        {
            "source": "volume",
            "target": "mp",
            "size_gib": "size",
            "read_only": "ro",
            "backup": "backup",
            "shared": "shared",
            "replicate": "replicate",
            "quota": "quota",
            "acl": "acl",
            "mount_options": "mountoptions",
        },
    ),
    "networks": (
        "net",
        "name",
        {
            "name": "name",
            "bridge": "bridge",
            "ip": "ip",
            "gateway": "gw",
            "ip6": "ip6",
            "gateway6": "gw6",
            "hwaddr": "hwaddr",
            "tag": "tag",
            "trunks": "trunks",
            "mtu": "mtu",
            "rate": "rate",
            "firewall": "firewall",
            "link_down": "link_down",
        },
    ),
}
NEW_VOLUME = re.compile(r"([^:/\s]+):(\d+(?:\.\d+)?)")
WAYS_FOR_LXC = (
    "Use devices (devN) for device nodes and mounts (mpN) for directories; any other lxc.* line can only be written on the node, "
    "into /etc/pve/lxc/{vmid}.conf."
)
NOT_SETTINGS = (
    "delete", "revert", "digest", "vmid", "node", "start", "restore", "force", "unique", "storage", "bwlimit", "lock", "ha-managed",
)  # fmt: skip
# How PVE spells what the options of the lists take in other spellings, too.
SPELLING = {
    "mode": octal_mode,
    "path": lambda path: re.sub("/+", "/", path),
    "target": path_of,
    "hwaddr": lambda address: address.replace("-", ":"),
}


class Item(NamedTuple):
    """One device, mount or network: its properties; of a mount that may be a new volume its storage (volume is not among the properties
    then), and the bytes that it shall have."""

    properties: dict[str, str]
    storage: str | None = None
    bytes: int | None = None


class Wanted(NamedTuple):
    """None everywhere: no opinion. scalars: {key: text, or None to take it away}. rootfs: Item with storage and bytes."""

    vmid: int
    scalars: dict[str, str | None]
    features: dict[str, str] | None
    lists: dict[str, list[Item] | None]
    rootfs: Item | None
    unprivileged: bool | None
    pool: str | None
    ostemplate: str | None


def token_of(key: str) -> Token:
    return OWN.get(key) or EXTRA.get(key) or Token()


def text_of(value: Any) -> str:
    """A value of an option as PVE writes it."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return decimal(value) if isinstance(value, float) else str(value)


def is_new_volume(volume: str) -> bool:
    """Whether VOLUME is a storage and a size in GiB, which asks PVE for a new volume."""
    return bool(NEW_VOLUME.fullmatch(volume))


def wanted(params: dict[str, Any]) -> Wanted:
    """PARAMS, the options of the module, as Wanted. Raises RingmasterError for what cannot be meant."""
    scalars = {key: _scalar(key, params[key]) for key in OWN if params[key] is not None}
    for key, value in (params["extra"] or {}).items():
        _refuse_extra(str(key), params["vmid"])
        scalars[str(key)] = _scalar(str(key), value)
    impossible = [key for key, text in scalars.items() if text is None and key in UNDELETABLE]
    if impossible:
        raise RingmasterError(f"{', '.join(impossible)} cannot be taken away from a container.", "Give a value, or leave it out.")
    rows = params["features"]
    return Wanted(
        vmid=params["vmid"],
        scalars=scalars,
        features=None if rows is None else _properties({name: name for name in KINDS["features"].tokens}, rows),
        lists={option: _list(option, params[option]) for option in LISTS},
        rootfs=params["rootfs"] and Item({}, params["rootfs"]["storage"], _bytes(params["rootfs"]["size_gib"], "rootfs")),
        unprivileged=params["unprivileged"],
        pool=params["pool"],
        ostemplate=params["ostemplate"],
    )


def _scalar(key: str, value: Any) -> str | None:
    if any(isinstance(part, dict) for part in (value if isinstance(value, list) else [value])):
        raise RingmasterError(f"extra: {key} is {value!r}.", "Give text as Proxmox VE writes it, such as order=2,up=30.")
    if isinstance(value, list):
        value = JOINT.get(key, ",").join(str(part) for part in value)
    if key == "tags":
        value = ";".join(sorted(canonical("set", value)))
    token = token_of(key)
    if token.type == "note":
        value = canonical("note", value)
    if value is None or value == "" or (key == "cores" and value == 0):
        return None
    return text_of(truth(value) if token.type == "bool" and truth(value) is not None else value)


def _refuse_extra(key: str, vmid: int) -> None:
    if key.startswith("lxc.") or key == "lxc":
        raise RingmasterError(f"extra: the API shows {key} but does not accept it, from nobody.", WAYS_FOR_LXC.format(vmid=vmid))
    family = re.fullmatch(r"(dev|mp|net)\d+", key)
    if family:
        option = next(option for option, (kind, _unused, _table) in LISTS.items() if kind == family.group(1))
        raise RingmasterError(f"extra: {key} has an option of its own.", f"Use {option}.")
    if key in OWN or key in ("rootfs", "features", "unprivileged", "pool", "password", "ostemplate", "ssh-public-keys"):
        raise RingmasterError(f"extra: {key} has an option of its own.", f"Use {key.replace('-', '_')}.")
    if key in NOT_SETTINGS:
        raise RingmasterError(f"extra: {key} is not a setting of a container.", "Leave it out.")


def _properties(table: dict[str, str], row: dict[str, Any]) -> dict[str, str]:
    found = {}
    for option, token in table.items():
        value = row.get(option)
        if value is None or value == []:
            continue
        found[token] = ";".join(str(part) for part in value) if isinstance(value, list) else text_of(value)
    return found


def _bytes(size_gib: float | None, where: str) -> int | None:
    if size_gib is not None and size_gib <= 0:
        raise RingmasterError(f"{where}: size_gib is {decimal(size_gib)}.", "Give a size above 0.")
    return None if size_gib is None else round(size_gib * UNITS["G"])


def _list(option: str, rows: list[dict[str, Any]] | None) -> list[Item] | None:
    if rows is None:
        return None
    kind, identity, table = LISTS[option]
    items = []
    for row in rows:
        row = {**row, **{word: spell(row[word]) for word, spell in SPELLING.items() if row.get(word) is not None}}
        items.append(_mount(row, table) if kind == "mp" else Item(_properties(table, row)))
        for token, text in items[-1].properties.items():
            if re.search(r"[,\n]", text) or not text:
                raise RingmasterError(f"{option}: {token} is {text!r}.", "A comma, a line break or nothing at all cannot stand there.")
    names = [item.properties[identity] for item in items]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RingmasterError(f"{option}: {', '.join(twice)} is there more than once.", "Each can be there once.")
    bad = [name for name in names if kind == "dev" and not re.fullmatch(r"/dev(/(?!\.\.?(/|$))[^/]+)+", name)]
    if bad:
        raise RingmasterError(
            f"devices: {', '.join(bad)} is no path below /dev/, or has . or .. in it.",
            "Give the device node of the node, such as /dev/nvidia0.",
        )
    return items


def _mount(row: dict[str, Any], table: dict[str, str]) -> Item:
    target, source = row["target"], row["source"].strip()
    size = _bytes(row.get("size_gib"), f"mounts: {target}")
    short = NEW_VOLUME.fullmatch(source)
    if short:
        source, size = short.group(1), size or _bytes(float(short.group(2)), f"mounts: {target}")
    properties = _properties(table, {**row, "source": None, "size_gib": None})
    if source.startswith("/"):
        if size:
            raise RingmasterError(
                f"mounts: {target} is a path of the node and has size_gib.", "Leave size_gib out; only a volume has a size."
            )
        return Item({**properties, "volume": path_of(source)})
    if ":" in source:
        return Item({**properties, "volume": source}, bytes=size)
    if not size:
        raise RingmasterError(
            f"mounts: {target} is on storage {source} and has no size_gib.", "Give size_gib, or a path or a volume as source."
        )
    return Item(properties, source, size)


def described(config: dict[str, str], lxc: list[list[str]]) -> dict[str, Any]:
    """The configuration CONFIG {key: text} and the raw LXC lines in the words of the options; what is not set is null or an empty list."""
    found: dict[str, Any] = {key: _value(OWN[key], config.get(key)) for key in OWN}
    found["unprivileged"] = bool(truth(config.get("unprivileged", "0")))
    found["features"] = {name: _value(token, parse("features", config.get("features", "")).get(name)) for name, token in FEATURES.items()}
    rootfs = _parse_volume("rootfs", config.get("rootfs", ""))
    found["rootfs"] = {
        "volume": rootfs["volume"] if ":" in rootfs.get("volume", "") else None,
        "storage": rootfs["volume"].partition(":")[0] if "volume" in rootfs else None,
        "size_gib": _value(Token("size"), rootfs.get("size")),
    }
    taken = {*OWN, "features", "rootfs", "unprivileged"}
    for option, (kind, _identity, table) in LISTS.items():
        keys = sorted((key for key in config if re.fullmatch(rf"{kind}\d+", key)), key=lambda key: int(key[len(kind) :]))
        rows = []
        for key in keys:
            properties = _parse_volume(kind, config[key])
            rows.append({"key": key, **{word: _value(KINDS[kind].tokens[token], properties.get(token)) for word, token in table.items()}})
        found[option] = rows
        taken.update(keys)
    found["extra"] = {key: text for key, text in sorted(config.items()) if key not in taken}
    found["lxc"] = lxc
    return found


FEATURES = KINDS["features"].tokens


def _parse_volume(kind: str, text: str) -> dict[str, str]:
    """The properties of TEXT; of a volume that is still to be made, its storage as volume, and its size."""
    properties = parse(kind, text)
    new = NEW_VOLUME.fullmatch(properties.get("volume", ""))
    return {**properties, "volume": new.group(1), "size": f"{new.group(2)}G"} if new else properties


def _value(token: Token, text: str | None) -> Any:
    text = token.default if text is None else text
    if text is None:
        return [] if token.type in ("set", "words") else None
    if token.type == "bool":
        return bool(truth(text))
    if token.type in ("int", "number"):
        number = canonical("number", text)
        return int(number) if isinstance(number, float) and number.is_integer() else number
    if token.type == "size":
        size = size_bytes(text)
        return text if size is None else gib(size)
    found = canonical(token.type, text)
    return sorted(found) if token.type == "set" else found if token.type in ("words", "note") else text
