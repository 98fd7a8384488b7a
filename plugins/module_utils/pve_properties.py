# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Property strings of Proxmox VE, such as `local-lvm:vm-100-disk-1,mp=/data,ro=1`: read, compare, write. Nothing else.

A kind (dev, mp, rootfs, net, features, startup) says which token may stand without a name, and of each token what its value is, what it
means to leave it out, and whether PVE adds it on its own. Properties are dicts {token: text}."""

from __future__ import annotations

import posixpath
import re
from typing import Any, NamedTuple

from .errors import RingmasterError

TRUE = ("1", "on", "yes", "true")
FALSE = ("0", "off", "no", "false")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
SIZE_SLACK_BYTES = 8 << 20  # a storage rounds a volume up to its own extents, of 4 MiB or less


class Token(NamedTuple):
    """type: text, caseless, path (where it is absolute, in any spelling), bool, int, number, size, set (`a;b`, in any order), words (`a b`,
    in this order), note (text that PVE ends with a new line), startup. default: as what it counts when it is left out; None: as nothing.
    by_pve: PVE fills it in, so when nobody asks for it, it is no difference and it stays."""

    type: str = "text"
    default: str | None = None
    by_pve: bool = False


class Kind(NamedTuple):
    default_key: str | None
    tokens: dict[str, Token]


BOOL = Token("bool", "0")
VOLUME = {
    "volume": Token("path"),
    "acl": Token("bool"),
    "mountoptions": Token("set"),
    "quota": BOOL,
    "replicate": Token("bool", "1"),
    "ro": BOOL,
    "shared": BOOL,
    "size": Token("size", by_pve=True),
}
KINDS = {
    "dev": Kind(
        "path",
        {
            "path": Token("path"),
            "mode": Token("text", "0660"),
            "uid": Token("int", "0"),
            "gid": Token("int", "0"),
            "deny-write": BOOL,
        },
    ),
    "mp": Kind("volume", {**VOLUME, "mp": Token("path"), "backup": BOOL}),
    "rootfs": Kind("volume", VOLUME),
    "net": Kind(
        None,
        {
            "name": Token(),
            "bridge": Token(),
            "firewall": BOOL,
            "gw": Token(),
            "gw6": Token("caseless"),
            "hwaddr": Token("caseless", by_pve=True),
            "ip": Token("text", "manual"),
            "ip6": Token("caseless", "manual"),
            "link_down": BOOL,
            "mtu": Token("int"),
            "rate": Token("number"),
            "tag": Token("int"),
            "trunks": Token("set"),
            "type": Token("text", by_pve=True),
        },
    ),
    "features": Kind(
        None,
        {
            "force_rw_sys": BOOL,
            "fuse": BOOL,
            "keyctl": BOOL,
            "mknod": BOOL,
            "mount": Token("set"),
            "nesting": BOOL,
        },
    ),
    "startup": Kind("order", {"order": Token("int"), "up": Token("int"), "down": Token("int")}),
}


def parse(kind: str, text: str) -> dict[str, str]:
    """The properties of TEXT."""
    properties = {}
    for part in str(text).split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if equals:
            properties[name] = value
        elif name and KINDS[kind].default_key:
            properties[KINDS[kind].default_key] = name
    return properties


def truth(text: Any) -> bool | None:
    """A boolean as PVE reads it, or None for a text that is none."""
    if isinstance(text, bool):
        return text
    word = str(text).strip().lower()
    return True if word in TRUE else False if word in FALSE else None


def size_bytes(text: Any) -> int | None:
    """Bytes of a size such as `8G` or `512M`, or None for a text that is none. Without a unit it is bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", str(text).strip(), re.IGNORECASE)
    return round(float(found.group(1)) * UNITS[found.group(2).upper()]) if found else None


def gib(size: int) -> float:
    """Bytes as GiB, to three decimals."""
    return round(size / UNITS["G"], 3)


def decimal(value: float) -> str:
    """VALUE with all its places and no exponent: `:g` would keep six digits."""
    return f"{value:.15g}"


def path_of(path: str) -> str:
    """A path in one spelling: absolute, no doubled or trailing slash."""
    return posixpath.normpath("/" + path.strip("/"))


def size_text(size: int) -> str:
    """Bytes as PVE writes them: the largest unit that divides them."""
    for unit in "TGMK":
        if size and size % UNITS[unit] == 0:
            return f"{size // UNITS[unit]}{unit}"
    return str(size)


def same_size(first: int, second: int) -> bool:
    return abs(first - second) < SIZE_SLACK_BYTES


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def canonical(type_: str, value: Any) -> Any:
    """What two spellings of the same value have in common, by the type of a Token."""
    if type_ == "bool":
        found = truth(value)
        return str(value) if found is None else found
    if type_ in ("int", "number"):
        return _number(str(value))
    if type_ == "size":
        found = size_bytes(value)
        return str(value) if found is None else found
    if type_ == "set":
        return frozenset(part for part in re.split(r"[;,\s]+", str(value).lower()) if part)
    if type_ == "words":
        return [part for part in re.split(r"[\0;,\s]+", str(value)) if part]
    if type_ == "note":
        return str(value).rstrip("\n")
    if type_ == "startup":
        return {name: _number(text) for name, text in parse("startup", value).items()}
    if type_ == "path" and str(value).startswith("/"):
        return path_of(str(value))
    if type_ == "caseless":
        return str(value).lower()
    return str(value)


def same_value(token: Token, wanted: Any, current: Any) -> bool:
    """Whether two values of one token or key mean the same; None is one that is not there."""
    here, there = (token.default if value is None else value for value in (wanted, current))
    if here is None or there is None:
        return here is there
    return canonical(token.type, here) == canonical(token.type, there)


def same(kind: str, wanted: dict[str, str], current: dict[str, str]) -> bool:
    """Whether CURRENT is all that WANTED says and no more. What PVE adds, and what this table does not know, is no difference by itself."""
    tokens = KINDS[kind].tokens
    for name in {*wanted, *current}:
        token = tokens.get(name)
        if name not in wanted and (token is None or token.by_pve):
            continue
        if not same_value(token or Token(), wanted.get(name), current.get(name)):
            return False
    return True


def kept(kind: str, wanted: dict[str, str], current: dict[str, str]) -> dict[str, str]:
    """WANTED, with what PVE added to CURRENT and what nobody can ask for: to be written without losing it (a MAC address, a size)."""
    tokens = KINDS[kind].tokens
    stays = {name: value for name, value in current.items() if name not in tokens or tokens[name].by_pve}
    return {**stays, **wanted}


def render(kind: str, properties: dict[str, str]) -> str:
    """PROPERTIES as a property string: the nameless token first, booleans as 1 and 0, nothing that means the same when left out."""
    default_key, tokens = KINDS[kind]
    parts = []
    for name in sorted(properties, key=lambda name: (name != default_key, name not in ("name", "mp"), name)):
        value, token = properties[name], tokens.get(name, Token())
        if token.default is not None and canonical(token.type, value) == canonical(token.type, token.default):
            continue
        if token.type == "bool":
            value = {True: "1", False: "0"}.get(truth(value), value)
        parts.append(str(value) if name == default_key else f"{name}={value}")
    return ",".join(parts)


def octal_mode(value: Any) -> str:
    """Permission bits of a device node as PVE wants them (`0666`), of text or of the number that YAML makes of an unquoted 0666.

    Raises RingmasterError for anything else."""
    text = f"{value:04o}" if isinstance(value, int) and not isinstance(value, bool) else str(value).strip()
    if re.fullmatch(r"[0-7]{3}", text):
        text = f"0{text}"
    if not re.fullmatch(r"0[0-7]{3}", text):
        raise RingmasterError(f"mode {value!r} of a device is no octal number from 0000 to 0777.", 'Write it with quotes: mode: "0666".')
    return text
