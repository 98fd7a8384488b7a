# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where NVIDIA GPUs sit on PCI Express, and what of ACS and IOMMU is on above them. `look` reads sysfs, `advise` judges and is pure.

ACS (access control services) lets a bridge send what one device says to another up to the root complex instead of straight across; an
IOMMU then translates it. Between GPUs without NVLink that makes peer-to-peer slow, and NCCL can hang on it (NCCL's user guide,
troubleshooting, "PCI Access Control Services").
"""

from __future__ import annotations

import os
import re
import struct
from typing import NamedTuple

SYS = "/sys"
CMDLINE = "/proc/cmdline"
NVIDIA = 0x10DE
DISPLAY = 0x03  # base class: VGA 0x0300, 3D controller 0x0302
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# The PCI Express base specification's register layout.
_EXTENDED_START, _CONFIG_BYTES = 0x100, 4096
_OPEN_BYTES = 128  # what the kernel shows to users without CAP_SYS_ADMIN: 64, of a CardBus bridge 128
_ACS = 0x000D
_ACS_CONTROL = 6
ACS_BITS = (
    (0x01, "source validation"),
    (0x02, "translation blocking"),
    (0x04, "request redirect"),
    (0x08, "completion redirect"),
    (0x10, "upstream forwarding"),
    (0x20, "egress control"),
    (0x40, "direct translated"),
)
# Those that send peer-to-peer traffic up: what Linux looks at too (pci_bridge_has_acs_redir in drivers/pci/p2pdma.c).
REDIRECTS = frozenset({"request redirect", "completion redirect", "egress control"})
KERNEL_PARAMETERS = ("iommu", "intel_iommu", "amd_iommu", "iommu.passthrough", "iommu.strict", "pcie_acs_override", "pci")


class Gpu(NamedTuple):
    """`above`: addresses of the bridges over it, from the root port down. `group_type`: of its IOMMU group, None without one."""

    address: str
    device: int
    above: tuple
    group_type: str | None = None
    driver: str | None = None


class Seen(NamedTuple):
    """gpus [Gpu]; acs {bridge address: names of ACS bits that are on, None: no such capability, 'unreadable': not as this user}."""

    gpus: list
    acs: dict
    iommus: list
    cmdline: str


def acs_control(config):
    """Names of the ACS bits that are on in a bridge's configuration space; None where it has no ACS.

    CONFIG: bytes. Raises ValueError where these are those that everybody may read, or no capabilities.
    """
    if len(config) <= _OPEN_BYTES:
        raise ValueError("only root reads more")
    offset, steps = (_EXTENDED_START if len(config) > _EXTENDED_START else 0), 0  # 256 bytes: conventional PCI, which has no ACS
    while offset:
        header = struct.unpack_from("<I", config, offset)[0] if offset + 4 <= len(config) else 0xFFFFFFFF
        if header == 0xFFFFFFFF:  # what a device that is gone answers to every read
            raise ValueError("the configuration space cannot be read")
        if header & 0xFFFF == _ACS and offset + _ACS_CONTROL + 2 <= len(config):
            control = struct.unpack_from("<H", config, offset + _ACS_CONTROL)[0]
            return [name for bit, name in ACS_BITS if control & bit]
        offset, steps = (header >> 20) & 0xFFC, steps + 1
        if steps > _CONFIG_BYTES // 4 or 0 < offset < _EXTENDED_START:
            raise ValueError("the list of capabilities is broken")
    return None


def parameters(cmdline):
    """{name: [values]} of the kernel's parameters that bear on this; a bare word has the value ''."""
    found = {}
    for word in cmdline.split():
        name, _equals, value = word.partition("=")
        if name in KERNEL_PARAMETERS:
            found.setdefault(name, []).append(value)
    return found


def look(sys=SYS, cmdline=CMDLINE):
    """A Seen. Reads only."""
    devices = os.path.join(sys, "bus/pci/devices")
    gpus, acs = [], {}
    for address in sorted(os.listdir(devices)) if os.path.isdir(devices) else []:
        folder = os.path.join(devices, address)
        if _number(folder, "vendor") != NVIDIA or (_number(folder, "class") or 0) >> 16 != DISPLAY:
            continue
        parts = os.path.realpath(folder).split(os.sep)
        above = tuple(part for part in parts[:-1] if _ADDRESS.fullmatch(part))
        group = os.path.basename(_target(folder, "iommu_group") or "")
        kind = _text(os.path.join(sys, "kernel/iommu_groups", group, "type")) if group else None
        driver = os.path.basename(_target(folder, "driver") or "") or None
        gpus.append(Gpu(address, _number(folder, "device") or 0, above, kind, driver))
        acs.update((bridge, _acs_of(os.path.join(devices, bridge))) for bridge in above if bridge not in acs)
    units = os.path.join(sys, "class/iommu")
    return Seen(gpus, acs, sorted(os.listdir(units)) if os.path.isdir(units) else [], _text(cmdline) or "")


def _acs_of(folder):
    try:
        with open(os.path.join(folder, "config"), "rb") as file:
            return acs_control(file.read(_CONFIG_BYTES))
    except (OSError, ValueError):
        return "unreadable"


def _text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def _number(folder, name):
    try:
        return int(_text(os.path.join(folder, name)) or "", 16)
    except ValueError:
        return None


def _target(folder, name):
    try:
        return os.readlink(os.path.join(folder, name))
    except OSError:
        return None


def used(seen):
    """Those GPUs that this machine uses itself: one that is bound to vfio-pci belongs to a virtual machine."""
    return [gpu for gpu in seen.gpus if gpu.driver != "vfio-pci"]


def bridges(seen):
    """[{address, acs [names] or None or 'unreadable', redirects [names], gpus [addresses below it]}]."""
    rows = []
    for address, bits in seen.acs.items():
        redirects = [name for name in bits if name in REDIRECTS] if isinstance(bits, list) else []
        below = [gpu.address for gpu in used(seen) if address in gpu.above]
        rows.append({"address": address, "acs": bits, "redirects": redirects, "gpus": below})
    return rows


def advise(seen, link=None):
    """[{severity, what, advice, where [addresses]}] of a Seen; severity: 'warning' (slow, or a hang), 'info', 'unknown'.

    LINK: how the GPUs reach each other, of gpus.link(); with NVLink between all of them nothing here slows NCCL down.
    """
    apart = len(used(seen)) > 1 and link != "NVLink"
    rows = [row for row in bridges(seen) if row["gpus"]]
    found = [_redirects(rows, apart), _unreadable(rows, apart), _translation(seen, apart), _override(seen)]
    return [dict(zip(("severity", "what", "advice", "where"), finding)) for finding in found if finding]


def _redirects(rows, apart):
    on = [row for row in rows if row["redirects"]]
    if not on:
        return None
    where = "; ".join(f"{', '.join(row['redirects'])} at {row['address']} above GPU {', '.join(row['gpus'])}" for row in on)
    parameter = ";".join(row["address"] for row in on)
    commands = " ; ".join(f"setpci -s {row['address']} ECAP_ACS+0x6.w=0" for row in on)
    return (
        "warning" if apart else "info",
        f"ACS sends peer-to-peer traffic up to the root complex: {where}. Between GPUs without NVLink it is slow then, and NCCL can hang.",
        f"Turn ACS off in the BIOS, or start the kernel with pci=disable_acs_redir={parameter} , or until the next boot: {commands} . "
        "Virtual machines that have a device behind such a bridge are then less isolated. Otherwise keep NCCL off it: nccl_p2p_disable: 1.",
        [row["address"] for row in on],
    )


def _unreadable(rows, apart):
    closed = [row["address"] for row in rows if row["acs"] == "unreadable"]
    advice = "Configuration space beyond its first 64 bytes is for root: run with become: true."
    return ("unknown" if apart else "info", f"ACS of {', '.join(closed)} cannot be read.", advice, closed) if closed else None


def _translation(seen, apart):
    translated = [gpu for gpu in used(seen) if (gpu.group_type or "").startswith("DMA")]
    if not translated:
        return None
    types = ", ".join(sorted({gpu.group_type for gpu in translated}))
    given = [f"{name}={value}" for name, values in parameters(seen.cmdline).items() for value in values if "iommu" in name]
    return (
        "warning" if apart else "info",
        f"The IOMMU translates for GPU {', '.join(gpu.address for gpu in translated)} (group type {types}; kernel parameters: "
        f"{' '.join(given) or 'none of an IOMMU'}). Peer-to-peer between GPUs without NVLink is slow then, or fails.",
        "Start the kernel with iommu=pt: devices of the host are then not translated, those given to virtual machines still are.",
        [gpu.address for gpu in translated],
    )


def _override(seen):
    if "pcie_acs_override" not in parameters(seen.cmdline):
        return None
    return (
        "info",
        "The kernel runs with pcie_acs_override: IOMMU groups look smaller than the isolation that there is.",
        "It turns no ACS bit off and does nothing for peer-to-peer; only passthrough to virtual machines can want it.",
        [],
    )
