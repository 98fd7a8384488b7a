#!/usr/bin/env python3
# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`pci_tree.py DIRECTORY`: a sysfs with two Blackwell GPUs below root ports that redirect peer-to-peer traffic."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

SYS = Path(sys.argv[1])


def device(path, vendor, product, kind, config):
    folder = SYS / "devices/pci0000:40" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in (("vendor", vendor), ("device", product), ("class", kind)):
        (folder / name).write_text(f"0x{value:04x}\n")
    (folder / "config").write_bytes(config)
    (SYS / "bus/pci/devices" / folder.name).symlink_to(folder)


(SYS / "bus/pci/devices").mkdir(parents=True)
acs = bytearray(4096)
struct.pack_into("<IHH", acs, 0x100, 0x000D | 1 << 16, 0x5F, 0x1D)
for number in (0, 1):
    port = f"0000:40:01.{number + 1}"
    device(port, 0x1022, 0x14AB, 0x060400, bytes(acs))
    device(f"{port}/0000:4{number}:00.0", 0x10DE, 0x2BB5, 0x030200, bytes(4096))
