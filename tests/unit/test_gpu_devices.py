# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_device_info: which nodes belong to which GPU, on directories that look as the driver's /proc and /dev do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import gpu_devices
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

ROOT = Path(__file__).resolve().parents[2]
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build  (root@node)  Tue Sep 15 2026\nGCC: 14\n"
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr  8 12:41:17 UTC 2026\nGCC version:  gcc version 12.2.0\n"
UNKNOWN = "GPU-????????-????-????-????-????????????"
SHARED = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"]


def uuid(number):
    return f"GPU-{number:08x}-aaaa-bbbb-cccc-0123456789ab"


def information(number, minor, **changed):
    """One GPU's file as a driver of 580 writes it; a field that is None is left out."""
    fields = {
        "Model": "NVIDIA H200",
        "IRQ": "18",
        "GPU UUID": uuid(number),
        "Video BIOS": "96.00.bc.00.02",
        "Bus Type": "PCIe",
        "DMA Size": "52 bits",
        "Bus Location": f"0000:{number:02x}:00.0",
        "Device Minor": minor,
        "GPU Firmware": "580.105.08",
        "GPU Excluded": "No",
        **changed,
    }
    return "".join(f"{name}: \t {value}\n" for name, value in fields.items() if value is not None)


@pytest.fixture
def node(tmp_path):
    """A driver with GPUs at bus 41 (minor 1), 81 (minor 0) and c1 (minor 2); links to a device of the kernel stand for nodes."""
    proc, dev = tmp_path / "proc", tmp_path / "dev"
    for number, minor in ((0x41, 1), (0x81, 0), (0xC1, 2)):
        folder = proc / "gpus" / f"0000:{number:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(information(number, minor))
    (proc / "version").write_text(OPEN)
    (dev / "nvidia-caps").mkdir(parents=True)
    for name in [
        *SHARED,
        "nvidia0",
        "nvidia1",
        "nvidia2",
        "nvidia-caps/nvidia-cap2",
        "nvidia-caps/nvidia-cap10",
        "nvidia-caps/nvidia-cap1",
    ]:
        (dev / name).symlink_to("/dev/null")
    (dev / "nvidia-notes").write_text("no node")
    return proc, dev


def resolve(node, gpus):
    proc, dev = node
    return gpu_devices.resolve(gpu_devices.look(str(proc), str(dev)), gpus)


def names(paths):
    """As a container has them, below /dev, wherever they were looked for."""
    assert all(path.startswith("/dev/") for path in paths)
    return [os.path.relpath(path, "/dev") for path in paths]


def test_all_in_the_order_of_bus_ids_whatever_their_minors(node):
    found = resolve(node, "all")
    assert (found["driver"], found["kernel_module"]) == ("580.105.08", "open")
    assert [(gpu["bus_id"], gpu["minor"], gpu["uuid"], gpu["model"]) for gpu in found["chosen"]] == [
        ("0000:41:00.0", 1, uuid(0x41), "NVIDIA H200"),
        ("0000:81:00.0", 0, uuid(0x81), "NVIDIA H200"),
        ("0000:c1:00.0", 2, uuid(0xC1), "NVIDIA H200"),
    ]
    caps = ["nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2", "nvidia-caps/nvidia-cap10"]
    assert names(found["devices"]) == ["nvidia1", "nvidia0", "nvidia2", *SHARED, *caps]
    assert found["chosen"] == found["gpus"]
    assert (found["missing"], found["problems"]) == ([], [])


def test_a_minor_that_moved_is_read_again(node):
    proc, _dev = node
    first, second = (proc / f"gpus/0000:{bus}:00.0/information" for bus in ("41", "81"))
    first.write_text(information(0x41, 0))
    second.write_text(information(0x81, 1))
    assert names(resolve(node, [uuid(0x41)])["devices"])[0] == "nvidia0"


@pytest.mark.parametrize(
    "gpus",
    [
        ["C1:00.0", uuid(0x81)],
        ["00000000:81:00.0", uuid(0xC1).upper()],
        f" {uuid(0xC1)}, 0000:81:00.0 ",
        [uuid(0x81).lower(), "0000:C1:00.0"],
    ],
)
def test_named_by_uuid_or_bus_id_in_any_spelling_and_order(node, gpus):
    found = resolve(node, gpus)
    assert [gpu["bus_id"] for gpu in found["chosen"]] == ["0000:81:00.0", "0000:c1:00.0"]
    assert names(found["devices"])[:3] == ["nvidia0", "nvidia2", "nvidiactl"]
    assert found["missing"] == []


@pytest.mark.parametrize(
    ("gpus", "buses", "missing"),
    [
        (0, [], []),
        (1, ["41"], []),
        ("2", ["41", "81"], []),
        (3, ["41", "81", "c1"], []),
        (5, ["41", "81", "c1"], ["GPU 4 of 5", "GPU 5 of 5"]),
    ],
)
def test_a_number_takes_them_by_bus_id(node, gpus, buses, missing):
    found = resolve(node, gpus)
    assert [gpu["bus_id"][5:7] for gpu in found["chosen"]] == buses
    assert [item["asked"] for item in found["missing"]] == missing
    assert bool(found["devices"]) == bool(buses)


def kill_uuid(proc, dev):
    (proc / "gpus/0000:81:00.0/information").write_text(information(0x81, 0, **{"GPU UUID": UNKNOWN, "Video BIOS": "??.??.??.??.??"}))


def drop_uuid(proc, dev):
    (proc / "gpus/0000:81:00.0/information").write_text(information(0x81, 0, **{"GPU UUID": None}))


def exclude(proc, dev):
    (proc / "gpus/0000:81:00.0/information").write_text(information(0x81, 0, **{"GPU Excluded": "Yes"}))


def empty(proc, dev):
    (proc / "gpus/0000:81:00.0/information").write_text("")


def remove_information(proc, dev):
    (proc / "gpus/0000:81:00.0/information").unlink()


def remove_node(proc, dev):
    (dev / "nvidia0").unlink()


def replace_node(proc, dev):
    (dev / "nvidia0").unlink()
    (dev / "nvidia0").write_text("")  # what a bind mount of a missing node leaves behind


def no_minor(proc, dev):
    (proc / "gpus/0000:81:00.0/information").write_text(information(0x81, None))


DEATHS = [
    (kill_uuid, r"no UUID of it \(GPU-\?{8}-"),
    (drop_uuid, r"no UUID of it \(nothing\)"),
    (exclude, "excluded"),
    (empty, "cannot be read"),
    (remove_information, "cannot be read"),
    (remove_node, "nvidia0 is missing"),
    (replace_node, "nvidia0 is missing"),
    (no_minor, "no device minor"),
]


@pytest.mark.parametrize(("death", "why"), DEATHS, ids=[death.__name__ for death, _why in DEATHS])
def test_a_dead_gpu_is_named_and_left_out(node, death, why):
    death(*node)
    for asked, there in [("all", ["nvidia1", "nvidia2"]), (["81:00.0", "41:00.0"], ["nvidia1"]), (3, ["nvidia1", "nvidia2"])]:
        found = resolve(node, asked)
        assert names(found["devices"])[: len(there) + 1] == [*there, "nvidiactl"]
        assert [item["asked"] for item in found["missing"]] == ["81:00.0" if isinstance(asked, list) else "0000:81:00.0"]
        assert re.search(why, found["missing"][0]["why"])
        assert len(found["problems"]) == 1
        assert found["problems"][0].startswith("GPU 0000:81:00.0: ")
    assert resolve(node, 2)["missing"] == []  # two of the three live
    assert resolve(node, ["81:00.0"])["devices"] == []  # no shared node alone


def test_what_all_share_is_missed_where_it_is_needed(node):
    (node[1] / "nvidia-uvm").unlink()
    (node[1] / "nvidia-modeset").unlink()
    found = resolve(node, 1)
    assert names(found["devices"])[:3] == ["nvidia1", "nvidiactl", "nvidia-uvm-tools"]
    assert [item["asked"] for item in found["missing"]] == [str(node[1] / "nvidia-uvm")]


def test_a_gpu_that_is_not_here_is_missing(node):
    found = resolve(node, [uuid(0x99), "41:00.0"])
    assert [gpu["bus_id"] for gpu in found["chosen"]] == ["0000:41:00.0"]
    assert found["missing"][0]["asked"] == uuid(0x99)
    assert f"0000:c1:00.0 {uuid(0xC1)}" in found["missing"][0]["why"]


@pytest.mark.parametrize("asked", ["all", 2, [uuid(0x41)]])
def test_no_driver_is_a_result_not_an_error(tmp_path, asked):
    found = gpu_devices.resolve(gpu_devices.look(str(tmp_path / "none"), str(tmp_path / "nodev")), asked)
    assert (found["driver"], found["kernel_module"], found["devices"]) == (None, None, [])
    assert found["problems"] == ["The NVIDIA kernel module is not loaded."]
    assert {item["why"] for item in found["missing"]} == {"the NVIDIA kernel module is not loaded"}


def test_both_kinds_of_kernel_module():
    assert gpu_devices.parse_version(OPEN) == ("580.105.08", "open")
    assert gpu_devices.parse_version(PROPRIETARY) == ("550.163.01", "proprietary")
    assert gpu_devices.parse_version("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.86.15  Release") == (
        "570.86.15",
        "open",
    )
    assert gpu_devices.parse_version("something else") == (None, None)


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (["41:00.0", "0000:41:00.0"], "twice"),
        ([uuid(1), uuid(1).upper()], "twice"),
        ([uuid(0x41), "41:00.0"], "0000:41:00.0 twice"),
        (-1, "below zero"),
        ("-1", "below zero"),
        (None, "None"),
        (True, "True"),
        ({"a": 1}, "bus ids"),
        ("some", "'some'"),
        (["GPU-1"], "'GPU-1'"),
        (["41:00"], "'41:00'"),
        (["MIG-12345678-aaaa-bbbb-cccc-0123456789ab"], "MIG"),
        ([2460.0], "quotes"),
        ([[1]], "a list of UUIDs"),
        ([0, 1], "gpus names 0, which is not text. Give all, a number, or a list of UUIDs"),
        ("", "''"),
        (2460.0, "quotes"),
    ],
)
def test_what_cannot_be_meant_is_refused(node, gpus, words):
    with pytest.raises(RingmasterError, match=words):
        resolve(node, gpus)


def test_long_domains_sort_as_numbers(node):
    proc, _dev = node
    (proc / "gpus/10000:01:00.0").mkdir()
    (proc / "gpus/10000:01:00.0/information").write_text(information(1, 2))
    (proc / "gpus/0000:0a:00.0").mkdir()
    (proc / "gpus/0000:0a:00.0/information").write_text(information(0x0A, 2))
    (proc / "gpus/lost+found").mkdir()
    assert [gpu["bus_id"] for gpu in resolve(node, "all")["gpus"]] == [
        "0000:0a:00.0",
        "0000:41:00.0",
        "0000:81:00.0",
        "0000:c1:00.0",
        "10000:01:00.0",
    ]


def run_module(tmp_path, **arguments):
    module = ROOT / "collections/ansible_collections/ringmaster/gpu/plugins/modules/gpu_device_info.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "collections")}
    name = "ansible_collections.ringmaster.gpu.plugins.modules.gpu_device_info"
    given = json.dumps({"ANSIBLE_MODULE_ARGS": {**arguments, "_ansible_remote_tmp": str(tmp_path)}})
    assert module.exists()
    done = subprocess.run([sys.executable, "-m", name], input=given, env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


def test_the_module_itself(node, tmp_path):
    proc, dev = node
    done = run_module(tmp_path, gpus=["81:00.0"], proc=str(proc), dev=str(dev))
    assert done["changed"] is False
    assert names(done["devices"])[:2] == ["nvidia0", "nvidiactl"]
    failed = run_module(tmp_path, gpus="first", proc=str(proc), dev=str(dev))
    assert failed["failed"]
    assert "'first'" in failed["msg"]
