# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""pcie_info on trees that look as sysfs does, with configuration spaces written here; and the kernel module by PCI device id."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.ringmaster.gpu.plugins.filter.gpu_kernel_module import FilterModule
from ansible_collections.ringmaster.gpu.plugins.module_utils import gpu_generations, pcie
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

ROOT = Path(__file__).resolve().parents[2]
AER, ACS, DPC = 0x0001, 0x000D, 0x001D
# As Linux sets a downstream port when an IOMMU is on: source validation, both redirects, upstream forwarding.
BY_LINUX = 0x1D
CMDLINE = "BOOT_IMAGE=/boot/vmlinuz-6.8.12-4-pve root=/dev/mapper/pve-root ro quiet"


def config(*capabilities, acs=None, size=4096):
    """A bridge's configuration space with extended capabilities of those ids, one behind the other; `acs`: value of ACS's control."""
    space = bytearray(size)
    space[0:4] = struct.pack("<HH", 0x1022, 0x1483)
    offset = 0x100
    for index, name in enumerate(capabilities):
        following = offset + 0x40 if index + 1 < len(capabilities) else 0
        struct.pack_into("<I", space, offset, name | 1 << 16 | following << 20)
        if name == ACS:
            struct.pack_into("<HH", space, offset + 4, 0x5F, acs)
        offset = following
    return bytes(space)


class Tree:
    """A sysfs to be filled: `device` puts one behind others, as the kernel's directories nest."""

    def __init__(self, root):
        self.sys, self.cmdline = root / "sys", root / "cmdline"
        (self.sys / "bus/pci/devices").mkdir(parents=True)
        self.cmdline.write_text(CMDLINE + "\n")

    def device(self, *path, space=None, vendor=0x1022, device=0x1483, kind=0x060400, group=None, driver=None):
        folder = self.sys.joinpath("devices", f"pci{path[0][:7]}", *path)
        folder.mkdir(parents=True)
        for name, value in (("vendor", vendor), ("device", device), ("class", kind)):
            (folder / name).write_text(f"0x{value:04x}\n")
        (folder / "config").write_bytes(config() if space is None else space)
        (self.sys / "bus/pci/devices" / path[-1]).symlink_to(os.path.relpath(folder, self.sys / "bus/pci/devices"))
        if group is not None:
            number, group_type = group
            place = self.sys / f"kernel/iommu_groups/{number}"
            place.mkdir(parents=True, exist_ok=True)
            (place / "type").write_text(f"{group_type}\n")
            (folder / "iommu_group").symlink_to(os.path.relpath(place, folder))
        if driver:
            (self.sys / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
            (folder / "driver").symlink_to(self.sys / "bus/pci/drivers" / driver)

    def gpu(self, *path, device=0x2684, **more):
        self.device(*path, vendor=0x10DE, device=device, kind=0x030000, space=config(AER), **more)
        function = path[-1][:-1] + "1"
        self.device(*path[:-1], function, vendor=0x10DE, device=0x22BA, kind=0x040300)  # its sound

    def advise(self, link=None):
        seen = pcie.look(str(self.sys), str(self.cmdline))
        return pcie.advise(seen, link)


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def two_gpus(tree, control=BY_LINUX, group_type="DMA-FQ", **more):
    for number, (port, gpu) in enumerate((("0000:40:01.1", "0000:41:00.0"), ("0000:80:03.1", "0000:81:00.0"))):
        tree.device(port, space=config(AER, ACS, DPC, acs=control))
        tree.gpu(port, gpu, group=(number, group_type) if group_type else None, driver="nvidia", **more)


def test_both_redirects_are_found_above_each_gpu(tree):
    two_gpus(tree)
    (tree.sys / "class/iommu/ivhd0").mkdir(parents=True)
    redirect, translation = tree.advise()
    assert redirect["severity"] == translation["severity"] == "warning"
    assert "request redirect, completion redirect at 0000:40:01.1 above GPU 0000:41:00.0" in redirect["what"]
    assert "pci=disable_acs_redir=0000:40:01.1;0000:80:03.1 " in redirect["advice"]
    assert redirect["where"] == ["0000:40:01.1", "0000:80:03.1"]
    assert translation["where"] == ["0000:41:00.0", "0000:81:00.0"]
    assert "group type DMA-FQ; kernel parameters: none" in translation["what"]


def test_nothing_to_say_of_a_host_in_order(tree):
    two_gpus(tree, control=0x11, group_type="identity")  # source validation and upstream forwarding redirect nothing
    tree.cmdline.write_text(CMDLINE + " intel_iommu=on iommu=pt\n")
    assert tree.advise() == []


@pytest.mark.parametrize(
    ("control", "words"),
    [
        (0x04, "request redirect at"),
        (0x08, "completion redirect at"),
        (0x20, "egress control at"),
        (0x7F, "request redirect, completion redirect, egress"),
        (0x53, None),
        (0x00, None),
    ],
)
def test_every_bit_that_redirects(tree, control, words):
    two_gpus(tree, control=control, group_type=None)
    found = tree.advise()
    assert ([words in item["what"] for item in found] == [True]) if words else found == []


def test_a_switch_is_seen_through(tree):
    port, up = "0000:00:01.0", "0000:01:00.0"
    tree.device(port, space=config(ACS, acs=BY_LINUX))
    tree.device(port, up, space=config(AER))  # an upstream port has no ACS
    for slot, bus in (("08", "03"), ("10", "04")):
        tree.device(port, up, f"0000:02:{slot}.0", space=config(AER, DPC, ACS, acs=BY_LINUX))
        tree.gpu(port, up, f"0000:02:{slot}.0", f"0000:{bus}:00.0")
    tree.device("0000:00:02.0", space=config(ACS, acs=BY_LINUX))
    tree.device("0000:00:02.0", "0000:05:00.0", vendor=0x8086, kind=0x020000)  # a network card with ACS above it is nobody's business
    seen = pcie.look(str(tree.sys), str(tree.cmdline))
    assert [(gpu.address, gpu.above) for gpu in seen.gpus] == [
        ("0000:03:00.0", (port, up, "0000:02:08.0")),
        ("0000:04:00.0", (port, up, "0000:02:10.0")),
    ]
    rows = {row["address"]: (row["acs"] is not None, row["gpus"]) for row in pcie.bridges(seen)}
    assert rows == {
        port: (True, ["0000:03:00.0", "0000:04:00.0"]),
        up: (False, ["0000:03:00.0", "0000:04:00.0"]),
        "0000:02:08.0": (True, ["0000:03:00.0"]),
        "0000:02:10.0": (True, ["0000:04:00.0"]),
    }
    assert tree.advise()[0]["where"] == [port, "0000:02:08.0", "0000:02:10.0"]


def test_it_matters_less_with_nvlink_and_with_one_gpu(tree):
    two_gpus(tree)
    assert {item["severity"] for item in tree.advise("NVLink")} == {"info"}
    assert {item["severity"] for item in tree.advise("PCIe with P2P")} == {"warning"}
    (tree.sys / "bus/pci/devices/0000:81:00.0").unlink()
    assert {item["severity"] for item in tree.advise()} == {"info"}


def test_a_gpu_of_a_virtual_machine_does_not_count(tree):
    two_gpus(tree)
    tree.device("0000:c0:01.1", space=config(ACS, acs=BY_LINUX))
    tree.gpu("0000:c0:01.1", "0000:c1:00.0", group=(9, "DMA"), driver="vfio-pci")
    found = tree.advise()
    assert not any("0000:c" in place for item in found for place in item["where"])


@pytest.mark.parametrize(
    "space",
    [
        config()[:64],
        b"",
        b"\xff" * 4096,
        config()[:0x100] + struct.pack("<I", AER | 0x100 << 20) + bytes(3836),
        config()[:0x100] + struct.pack("<I", AER | 0x40 << 20) + bytes(3836),
        config()[:0x100] + struct.pack("<I", AER | 0xF00 << 20)[:3],
    ],
    ids=["not root", "empty", "device gone", "loop", "backwards", "cut off"],
)
def test_what_cannot_be_read_is_said_to_be_unknown(tree, space):
    for port, gpu in (("0000:40:01.1", "0000:41:00.0"), ("0000:80:03.1", "0000:81:00.0")):
        tree.device(port, space=space)
        tree.gpu(port, gpu)
    (found,) = tree.advise()
    assert (found["severity"], found["where"]) == ("unknown", ["0000:40:01.1", "0000:80:03.1"])
    assert "become" in found["advice"]


def test_conventional_pci_has_no_acs(tree):
    assert pcie.acs_control(config(size=4096)[:256]) is None
    assert pcie.acs_control(config(AER)) is None
    assert pcie.acs_control(config(AER, ACS, acs=0)) == []


def test_parameters_of_the_kernel():
    line = "quiet intel_iommu=on iommu=pt pci=noaer pci=realloc pcie_acs_override=downstream,multifunction iommufd root=iommu=off"
    assert pcie.parameters(line) == {
        "intel_iommu": ["on"],
        "iommu": ["pt"],
        "pci": ["noaer", "realloc"],
        "pcie_acs_override": ["downstream,multifunction"],
    }


def test_an_override_is_no_remedy(tree):
    two_gpus(tree, control=0, group_type="identity")
    tree.cmdline.write_text(CMDLINE + " pcie_acs_override=downstream\n")
    (found,) = tree.advise()
    assert found["severity"] == "info"
    assert "turns no ACS bit off" in found["advice"]


def test_a_machine_without_any(tmp_path):
    assert pcie.look(str(tmp_path), str(tmp_path / "none")) == pcie.Seen([], {}, [], "")


def test_the_module_itself(tree, tmp_path):
    two_gpus(tree, device=0x2B85)
    given = {"sys": str(tree.sys), "cmdline": str(tree.cmdline), "link": "PCIe", "_ansible_remote_tmp": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "ansible_collections.ringmaster.gpu.plugins.modules.pcie_info"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": given}),
        env={**os.environ, "PYTHONPATH": str(ROOT / "collections")},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert [(gpu["address"], gpu["device_id"], gpu["generation"], gpu["driver"], gpu["group_type"]) for gpu in found["gpus"]] == [
        ("0000:41:00.0", "2b85", "Blackwell or later", "nvidia", "DMA-FQ"),
        ("0000:81:00.0", "2b85", "Blackwell or later", "nvidia", "DMA-FQ"),
    ]
    assert found["bridges"][0]["acs"] == ["source validation", "request redirect", "completion redirect", "upstream forwarding"]
    assert (found["link"], len(found["findings"])) == ("PCIe", 2)


# The kernel module


CHIPS = {  # names as pci.ids has them
    0x1381: "Maxwell",
    0x17FD: "Maxwell",
    0x15F8: "Pascal",
    0x1B06: "Pascal",
    0x1DB4: "Volta",
    0x1EB8: "Turing",
    0x2182: "Turing",
    0x20B0: "Ampere",
    0x2204: "Ampere",
    0x2330: "Hopper",
    0x2335: "Hopper",
    0x2342: "Grace Hopper",
    0x2684: "Ada",
    0x26B9: "Ada",
    0x2901: "Blackwell or later",
    0x2BB5: "Blackwell or later",
    0x2E12: "Blackwell or later",
    0x3182: "Blackwell or later",
}


@pytest.mark.parametrize(("device", "name"), CHIPS.items())
def test_generations(device, name):
    assert gpu_generations.of(device).name == name


def test_ranges_do_not_overlap():
    ranges = [(generation.first, generation.last) for generation in gpu_generations.GENERATIONS]
    assert all(first <= last for first, last in ranges)
    assert all(before[1] < after[0] for before, after in zip(ranges, ranges[1:], strict=False))


def choose(devices, asked="auto", version=""):
    gpus = [{"address": f"0000:{number:02x}:00.0", "device_id": f"{device:04x}"} for number, device in enumerate(devices, 1)]
    return FilterModule().filters()["gpu_kernel_module"](gpus, asked, version)


@pytest.mark.parametrize(
    ("devices", "version", "module"),
    [
        ([0x2BB5], "", "open"),
        ([0x2BB5], "580.105.08-1", "open"),
        ([0x2342], "", "open"),
        ([0x2204, 0x2684], "580.105.08", "open"),
        ([0x2204], "550.163.01", "proprietary"),
        ([0x2335, 0x2335], "560.35.05", "open"),
        ([0x1B06], "580.105.08", "proprietary"),
        ([0x1DB4, 0x20B0], "535.261.03", "proprietary"),
        ([0x1B06, 0x2204], "", "proprietary"),
        ([0x2204, 0x2BB5], "575.57.08", "open"),
    ],
)
def test_auto_by_generation(devices, version, module):
    assert choose(devices, version=version) == module
    assert choose(devices, asked=module, version=version) == module


@pytest.mark.parametrize(
    ("devices", "asked", "version", "words"),
    [
        ([0x2BB5], "proprietary", "580.1.1", r"0000:01:00.0 is a Blackwell or later \(10de:2bb5\).*proprietary.*auto"),
        ([0x2342], "proprietary", "", "Grace Hopper"),
        ([0x1B06], "open", "", "Pascal.*open kernel module"),
        ([0x1B06, 0x2BB5], "auto", "580.1.1", "cannot run with one kernel module: 0000:01:00.0 Pascal, 0000:02:00.0 Blackwell"),
        ([0x1DB4], "auto", "590.44.01", "Volta.*no longer runs.*branch 580"),
        ([0x2BB5], "auto", "565.77", "does not run yet.*branch 570"),
        ([0x1180], "auto", "", "10de:1180"),
        ([0x1180], "open", "", "10de:1180"),
        ([], "auto", "", "No NVIDIA GPU.*cuda_kernel_module"),
    ],
)
def test_what_cannot_run_is_refused(devices, asked, version, words):
    with pytest.raises(AnsibleFilterError, match=words):
        choose(devices, asked, version)
    with pytest.raises(RingmasterError, match=words):
        gpu_generations.kernel_module([(f"0000:{n:02x}:00.0", device) for n, device in enumerate(devices, 1)], asked, version)


def test_without_a_gpu_the_module_can_be_named():
    assert choose([], "open") == "open"
