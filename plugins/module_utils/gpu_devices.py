# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which nodes below /dev belong to which GPU, as the driver's /proc directory says now: a minor number can be another after a boot.

`look` reads, everything else is pure. A GPU that cannot be used is named with the reason and left out, for one missing node keeps a
whole container from starting.
"""

from __future__ import annotations

import os
import re
import stat
from typing import NamedTuple

from .errors import RingmasterError

PROC = "/proc/driver/nvidia"
DEV = "/dev"
# What every GPU process opens beside its GPU, in the order in which a container gets it, and whether CUDA works without it.
SHARED_NODES = (
    ("nvidiactl", True),
    ("nvidia-uvm", True),
    ("nvidia-uvm-tools", False),
    ("nvidia-modeset", False),
)
CAPS = "nvidia-caps"
_NO_MODULE = "the NVIDIA kernel module is not loaded"
_FORMATS = "all, a number, or a list of UUIDs (GPU-...) and PCI bus ids (0000:41:00.0 or 41:00.0)"
# "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build ...", or "... UNIX x86_64 Kernel Module  550.163.01"
_VERSION = re.compile(r"NVIDIA UNIX (?P<open>Open )?(?:Kernel Module for \S+|\S+ Kernel Module)\s+(?P<driver>\d+\.\d+(?:\.\d+)?)")
_UUID = re.compile(r"gpu-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
# nvidia-smi writes a domain of eight digits, the kernel of four.
_BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.IGNORECASE)


class Seen(NamedTuple):
    """What `look` has read.

    version: text of PROC/version, None without a driver. information: {bus id: text of its file, or None where it cannot be read}.
    nodes: paths below DEV, relative to it, of device nodes. dev: DEV.
    """

    version: str | None
    information: dict
    nodes: frozenset
    dev: str = DEV


def look(proc=PROC, dev=DEV):
    """A Seen. Nothing is opened below DEV."""
    folder = os.path.join(proc, "gpus")
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    information = {name: _read(os.path.join(folder, name, "information")) for name in names}
    found = [name for name in _listed(dev) if name.startswith("nvidia")]
    found += [os.path.join(CAPS, name) for name in _listed(os.path.join(dev, CAPS))]
    nodes = frozenset(name for name in found if _is_node(os.path.join(dev, name)))
    return Seen(_read(os.path.join(proc, "version")), information, nodes, dev)


def _read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def _listed(folder):
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _is_node(path):
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def parse_version(text):
    """(driver version, 'open' or 'proprietary') of PROC/version, (None, None) where it says neither."""
    match = _VERSION.search(text or "")
    return (match["driver"], "open" if match["open"] else "proprietary") if match else (None, None)


def normal_bus_id(text):
    """'41:00.0', '00000000:41:00.0' -> '0000:41:00.0', in small letters; None when it is no PCI bus id."""
    match = _BUS_ID.fullmatch(text.strip())
    if not match:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function}"


def parse_asked(gpus):
    """What was asked for: 'all', a number, or [(the text as given, UUID in small letters or bus id)].

    Takes what a person may write into an inventory or behind -e: "all", 2, "2", one id, ids with commas, a list. Raises
    RingmasterError for a format that is none of these, and for one id named twice.
    """
    if isinstance(gpus, float):  # one bus id without quotes
        gpus = [gpus]
    if isinstance(gpus, bool) or gpus is None:
        raise RingmasterError(f"gpus is {gpus!r}.", f"Give {_FORMATS}.")
    if isinstance(gpus, int):
        return _number(gpus)
    if isinstance(gpus, str):
        text = gpus.strip()
        if text.lower() == "all":
            return "all"
        if re.fullmatch(r"-?\d+", text):
            return _number(int(text))
        gpus = text.split(",")
    if not isinstance(gpus, (list, tuple)):
        raise RingmasterError(f"gpus is {gpus!r}.", f"Give {_FORMATS}.")
    asked = [(str(item).strip(), _identifier(item)) for item in gpus]
    _no_twice([name for _text, name in asked], {name: text for text, name in asked})
    return asked


def _number(count):
    if count < 0:
        raise RingmasterError(f"gpus is {count}, a number below zero.", f"Give {_FORMATS}.")
    return count


def _identifier(item):
    if not isinstance(item, str):  # YAML takes 41:00.0 for a number to the base of 60
        remedy = "A PCI bus id needs quotes in YAML: '41:00.0'." if isinstance(item, float) else f"Give {_FORMATS}."
        raise RingmasterError(f"gpus names {item!r}, which is not text.", remedy)
    text = item.strip()
    if _UUID.fullmatch(text):
        return text.lower()
    if text.lower().startswith("mig-"):
        raise RingmasterError(f"gpus names {text!r}: a slice of a GPU (MIG) cannot be given alone.", "Name the GPU by its UUID (GPU-...).")
    found = normal_bus_id(text)
    if found is None:
        raise RingmasterError(f"gpus names {text!r}, which is neither a UUID nor a PCI bus id.", f"Give {_FORMATS}.")
    return found


def _no_twice(names, texts):
    twice = sorted({texts[name] for name in names if names.count(name) > 1})
    if twice:
        raise RingmasterError(f"gpus names {', '.join(twice)} twice.", "Name each GPU once.")


def read_gpu(bus_id, text, nodes, dev=DEV):
    """{uuid, bus_id, minor, model, path, present, problem} of one GPU; `problem` says why it cannot be used, None when it can."""
    lines = [line.partition(":") for line in (text or "").splitlines()]
    fields = {key.strip().lower(): value.strip() for key, _colon, value in lines}
    uuid, minor = fields.get("gpu uuid", ""), fields.get("device minor", "")
    gpu = {
        "uuid": uuid if _UUID.fullmatch(uuid) else None,
        "bus_id": bus_id,
        "minor": int(minor) if minor.isdigit() else None,
        "model": fields.get("model") or None,
    }
    node = f"nvidia{gpu['minor']}" if gpu["minor"] is not None else None
    gpu["path"] = os.path.join(dev, node) if node else None
    gpu["present"] = node in nodes
    gpu["problem"] = _problem(text, fields, gpu)
    return gpu


def _problem(text, fields, gpu):
    if not text or not text.strip():
        return "the driver's information on it cannot be read: it may have fallen off the bus (see dmesg for Xid 79)"
    if fields.get("gpu excluded", fields.get("blacklisted", "no")).lower() == "yes":
        return "it is excluded from use by a parameter of the driver (NVreg_ExcludedGpus)"
    if gpu["uuid"] is None:
        return (
            f"the driver has no UUID of it ({fields.get('gpu uuid') or 'nothing'}): it could not be initialised, or nothing has opened it "
            "since the boot (nvidia-smi -L as root opens all; see dmesg for RmInitAdapter)"
        )
    if gpu["minor"] is None:
        return "the driver has no device minor for it"
    if not gpu["present"]:
        return f"{gpu['path']} is missing (nvidia-modprobe -c={gpu['minor']} makes it)"
    return None


def resolve(seen, gpus):
    """What a container needs that is to have GPUS, from a Seen.

    {driver, kernel_module, gpus [...], chosen [...], devices [paths], missing [{asked, why}], problems [str]}: `gpus` all there are and
    `chosen` those to be used, both in the order of bus ids. `devices`: the nodes of `chosen`, then those that all GPUs share, as a
    container has them (below /dev, wherever they were looked for). Raises
    RingmasterError when GPUS is wrong by itself.
    """
    asked = parse_asked(gpus)
    driver, kernel_module = parse_version(seen.version)
    found = [read_gpu(bus_id, text, seen.nodes, seen.dev) for bus_id, text in _in_bus_order(seen.information)]
    chosen, missing = _choose(found, asked, driver)
    devices, problems = [os.path.join(DEV, os.path.basename(gpu["path"])) for gpu in chosen], []
    if chosen:
        for name, needed in SHARED_NODES:
            if name in seen.nodes:
                devices.append(os.path.join(DEV, name))
            elif needed:
                why = "it is missing, and CUDA does not start without it (nvidia-modprobe makes it)"
                missing.append({"asked": os.path.join(seen.dev, name), "why": why})
        devices += [os.path.join(DEV, name) for name in sorted(seen.nodes, key=_by_number) if name.startswith(CAPS + "/")]
    if driver is None:
        problems.append("The NVIDIA kernel module is not loaded." if seen.version is None else "The driver's version cannot be read.")
    problems += [f"GPU {gpu['bus_id']}: {gpu['problem']}." for gpu in found if gpu["problem"]]
    result = {"driver": driver, "kernel_module": kernel_module, "gpus": found, "chosen": chosen}
    return {**result, "devices": devices, "missing": missing, "problems": problems}


def _in_bus_order(information):
    named = [(normal_bus_id(name), text) for name, text in information.items()]
    return sorted(((name, text) for name, text in named if name), key=lambda item: [int(part, 16) for part in re.split("[:.]", item[0])])


def _by_number(name):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _choose(found, asked, driver):
    usable = [gpu for gpu in found if not gpu["problem"]]
    dead = [{"asked": gpu["bus_id"], "why": gpu["problem"]} for gpu in found if gpu["problem"]]
    if asked == "all":
        return usable, dead if found else [{"asked": "all", "why": _NO_MODULE if driver is None else "the driver knows no GPU"}]
    if isinstance(asked, int):
        short = max(0, asked - len(usable))
        why = _NO_MODULE if driver is None else f"there are {len(found)} GPUs here, {len(usable)} of which can be used"
        absent = [{"asked": f"GPU {number} of {asked}", "why": why} for number in range(len(found) + 1, asked + 1)]
        return usable[:asked], (dead + absent)[:short]
    return _choose_named(found, asked, driver)


def _choose_named(found, asked, driver):
    names = {gpu["bus_id"]: gpu for gpu in found}
    names.update((gpu["uuid"].lower(), gpu) for gpu in found if gpu["uuid"])
    matched = [(text, names.get(name)) for text, name in asked]
    bus_ids = [gpu["bus_id"] for _text, gpu in matched if gpu]
    _no_twice(bus_ids, {gpu["bus_id"]: gpu["bus_id"] for gpu in found})
    missing = []
    for text, gpu in matched:
        if gpu is None:
            known = ", ".join(f"{one['bus_id']} {one['uuid'] or '(no UUID)'}" for one in found) or "none"
            why = _NO_MODULE if driver is None else f"the driver has no such GPU (it has: {known})"
            missing.append({"asked": text, "why": why})
        elif gpu["problem"]:
            missing.append({"asked": text, "why": gpu["problem"]})
    return [gpu for gpu in found if gpu["bus_id"] in bus_ids and not gpu["problem"]], missing
