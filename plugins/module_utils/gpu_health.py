# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with a GPU, going by what nvidia-smi and the kernel log say of it, and what to do about it. Pure: no process is started."""

from __future__ import annotations

import re
from typing import Callable, NamedTuple


class Field(NamedTuple):
    """`ours`: the name in a result. `names`: what nvidia-smi calls it, the newest first; a driver that knows none has no such figure."""

    ours: str
    names: tuple
    convert: Callable


def _text(text):
    return None if text.strip("[]") in ("N/A", "Not Supported", "Unknown Error", "") else text


def _number(text):
    try:
        return float(text)
    except ValueError:
        return None


def _whole(text):
    number = _number(text)
    return None if number is None else int(number)


def _yes(text):
    return {"Yes": True, "No": False, "Enabled": True, "Disabled": False, "1": True, "0": False}.get(text)


def _mask(text):
    try:
        return int(text, 16)
    except ValueError:
        return None


# Names as `nvidia-smi --help-query-gpu` has them. Remapped rows are in --query-gpu in newer drivers only.
FIELDS = (
    Field("index", ("index",), _whole),
    Field("uuid", ("uuid",), _text),
    Field("name", ("name",), _text),
    Field("pci", ("pci.bus_id",), _text),
    Field("driver", ("driver_version",), _text),
    Field("persistence_mode", ("persistence_mode",), _yes),
    Field("compute_mode", ("compute_mode",), _text),
    Field("memory_used_mib", ("memory.used",), _number),
    Field("memory_total_mib", ("memory.total",), _number),
    Field("utilization_percent", ("utilization.gpu",), _number),
    Field("temperature_c", ("temperature.gpu",), _number),
    Field("memory_temperature_c", ("temperature.memory",), _number),
    Field("power_w", ("power.draw",), _number),
    Field("power_limit_w", ("power.limit",), _number),
    Field("power_default_limit_w", ("power.default_limit",), _number),
    Field("sm_mhz", ("clocks.sm",), _number),
    Field("sm_max_mhz", ("clocks.max.sm",), _number),
    Field("memory_mhz", ("clocks.mem",), _number),
    Field("memory_max_mhz", ("clocks.max.mem",), _number),
    Field("pcie_generation", ("pcie.link.gen.current",), _whole),
    Field("pcie_generation_max", ("pcie.link.gen.max",), _whole),
    Field("pcie_width", ("pcie.link.width.current",), _whole),
    Field("pcie_width_max", ("pcie.link.width.max",), _whole),
    Field("ecc", ("ecc.mode.current",), _yes),
    Field("ecc_uncorrected_since_boot", ("ecc.errors.uncorrected.volatile.total",), _whole),
    Field("ecc_uncorrected_ever", ("ecc.errors.uncorrected.aggregate.total",), _whole),
    Field("retired_pages_pending", ("retired_pages.pending",), _yes),
    Field("remapped_rows_pending", ("remapped_rows.pending",), _yes),
    Field("remapped_rows_failure", ("remapped_rows.failure",), _yes),
    Field("throttle_mask", ("clocks_event_reasons.active", "clocks_throttle_reasons.active"), _mask),
)
# Bits of the throttle mask (NVML's nvmlClocksEventReasons); idle, application clocks, sync boost and display are nobody's trouble.
THROTTLES = (
    (0x04, "software power cap"),
    (0x08, "hardware slowdown"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "hardware power brake"),
)
_IDLE = 0x01
_LOAD_PERCENT = 20
_REJECTED = re.compile(r'[Ff]ield "([^"]+)" is not a valid field')
# What NVIDIA's Xid catalogue says to do; the others are as often a program's fault as the GPU's.
XID_ADVICE = {
    13: "often the program's own fault: compare with the server's log",
    31: "often the program's own fault: compare with the server's log",
    43: "the program that used the GPU was ended: see its log",
    45: "the program that used the GPU was ended: see its log",
    48: "drain the host and reset the GPU (nvidia-smi --gpu-reset -i INDEX), or reboot; again afterwards: replace it",
    63: "a row or page was set aside: reset the GPU at the next pause",
    64: "setting a bad row aside failed: reset the GPU; again afterwards: replace it",
    74: "an NVLink failed: look at nvidia-smi nvlink -s; reset the GPU; again afterwards: check bridge and seat",
    79: "the GPU has fallen off the bus: reboot; again afterwards: check power, heat and seat",
    92: "many correctable memory errors: watch it",
    94: "a memory error was contained: restart the program that had it",
    95: "an uncontained memory error: drain the host and reset the GPU or reboot",
    119: "the GPU's firmware (GSP) does not answer: reset the GPU or reboot",
    120: "the GPU's firmware (GSP) failed: reset the GPU or reboot",
}
_XIDS_SHOWN = 3


def query(rejected=()):
    """[(Field, name)] to ask nvidia-smi for when it knows none of the names REJECTED."""
    chosen = [(field, next((name for name in field.names if name not in rejected), None)) for field in FIELDS]
    return [(field, name) for field, name in chosen if name]


def rejected(output):
    """Names that nvidia-smi, saying OUTPUT, does not know."""
    return _REJECTED.findall(output)


def parse(asked, rows):
    """[{name: value}] of the CSV ROWS that answer ASKED (of `query`): every name of FIELDS, None where nothing is known, and `problems`."""
    gpus = []
    for row in rows:
        gpu = dict.fromkeys(field.ours for field in FIELDS)
        gpu.update({field.ours: field.convert(text) for (field, _name), text in zip(asked, row)})
        mask = gpu.pop("throttle_mask")
        gpu["throttle_reasons"] = None if mask is None else [name for bit, name in THROTTLES if mask & bit]
        gpu["idle"] = mask & _IDLE != 0 if mask is not None else None
        gpus.append({**gpu, "xids": [], "problems": problems(gpu)})
    return gpus


def problems(gpu):
    """Sentences, each with a next step, about one GPU of `parse`."""
    index = gpu["index"]
    loaded = (gpu["utilization_percent"] or 0) >= _LOAD_PERCENT
    reset = f"nvidia-smi --gpu-reset -i {index}, or reboot"
    limit, default = gpu["power_limit_w"], gpu["power_default_limit_w"]
    thermal = [reason for reason in gpu["throttle_reasons"] or () if "thermal" in reason]
    hardware = [reason for reason in gpu["throttle_reasons"] or () if "hardware" in reason and reason not in thermal]
    width, width_max, gen, gen_max = (gpu[f"pcie_{name}"] for name in ("width", "width_max", "generation", "generation_max"))
    found = (
        (gpu["remapped_rows_failure"], f"a bad memory row could not be set aside: replace the GPU (first {reset})"),
        (gpu["remapped_rows_pending"], f"a memory row waits to be set aside: stop its users, then {reset}"),
        (gpu["retired_pages_pending"], f"memory pages wait to be retired: stop its users, then {reset}"),
        (
            gpu["ecc_uncorrected_since_boot"],
            f"{gpu['ecc_uncorrected_since_boot']} uncorrected memory errors since the driver was loaded: stop its users, then {reset}",
        ),
        (
            thermal,
            f"slowed down by heat ({', '.join(thermal)}, {_figure(gpu['temperature_c'])} C): check fans and air; "
            "nvidia-smi -q -d TEMPERATURE",
        ),
        (hardware, f"slowed down by hardware ({', '.join(hardware)}): check power supply and cables; nvidia-smi -q -d PERFORMANCE"),
        (
            limit and default and limit < default - 0.5,
            f"power limit {_figure(limit)} W is below the default of {_figure(default)} W: "
            f"if nobody wants that, nvidia-smi -i {index} -pl {_figure(default)}",
        ),
        (
            width and width_max and width < width_max,
            f"PCIe runs {width} of {width_max} lanes: check seat, riser and BIOS; lspci -vv -s {gpu['pci'] or ''}".rstrip(),
        ),
        # An idle GPU lets the link fall back to generation 1 to save power: that is no trouble.
        (
            loaded and gen and gen_max and gen < gen_max,
            f"PCIe runs at generation {gen} of {gen_max} under load: check riser and BIOS; lspci -vv -s {gpu['pci'] or ''}".rstrip(),
        ),
        (
            gpu["compute_mode"] == "Prohibited",
            f"compute mode Prohibited lets no program compute: nvidia-smi -i {index} -c DEFAULT",
        ),
        (
            gpu["persistence_mode"] is False,
            "persistence mode is off, which makes each start slower: systemctl enable --now nvidia-persistenced",
        ),
    )
    return [sentence for holds, sentence in found if holds]


def _figure(number):
    return "?" if number is None else f"{number:g}"


def with_xids(gpus, xids):
    """GPUS with the kernel's XIDS ([{at, pci, xid, text}]) added to those they name: `xids`, the newest last, and as `problems`."""
    found = []
    for gpu in gpus:
        own = [xid for xid in xids if gpu["pci"] and _slot(xid["pci"]) == _slot(gpu["pci"])]
        said = [
            f"Xid {xid['xid']}{' at ' + str(xid['at']) if xid.get('at') else ''}: {xid_advice(xid['xid'])}" for xid in own[-_XIDS_SHOWN:]
        ]
        found.append({**gpu, "xids": own, "problems": gpu["problems"] + said})
    return found


def xid_advice(number):
    return XID_ADVICE.get(number, "look it up in NVIDIA's Xid catalogue, and read the server's log of that moment")


def _slot(pci):
    """Bus and device of a PCI address, which drivers write as 00000000:17:00.0 or 0000:17:00."""
    domain, _sign, rest = str(pci).lower().partition(":")
    return int(domain or "0", 16), rest.partition(".")[0]
