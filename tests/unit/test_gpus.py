# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU health as nvidia-smi tells it. The rows are fixtures made up in its format; nvidia-smi itself is a script on PATH."""

from __future__ import annotations

import os
import stat
import time

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import gpu_health, gpus
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError

# What a healthy RTX PRO 6000 says, by nvidia-smi's names.
HEALTHY = {
    "index": "0", "uuid": "GPU-11111111-2222-3333-4444-555555555555", "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "pci.bus_id": "00000000:17:00.0", "driver_version": "580.95.05", "persistence_mode": "Enabled", "compute_mode": "Default",
    "memory.used": "91234", "memory.total": "97887", "utilization.gpu": "97", "temperature.gpu": "61", "temperature.memory": "N/A",
    "power.draw": "412.37", "power.limit": "600.00", "power.default_limit": "600.00", "clocks.sm": "2310", "clocks.max.sm": "2430",
    "clocks.mem": "12481", "clocks.max.mem": "12481", "pcie.link.gen.current": "5", "pcie.link.gen.max": "5",
    "pcie.link.width.current": "16", "pcie.link.width.max": "16", "ecc.mode.current": "Enabled",
    "ecc.errors.uncorrected.volatile.total": "0", "ecc.errors.uncorrected.aggregate.total": "0", "retired_pages.pending": "[N/A]",
    "remapped_rows.pending": "No", "remapped_rows.failure": "No", "clocks_event_reasons.active": "0x0000000000000000",
    "clocks_throttle_reasons.active": "0x0000000000000000",
}  # fmt: skip


def one(**changed):
    """The GPU that gpu_health makes of HEALTHY with some answers CHANGED (dots in names as double underscores)."""
    answers = {**HEALTHY, **{name.replace("__", "."): value for name, value in changed.items()}}
    asked = gpu_health.query()
    return gpu_health.parse(asked, [[answers[name] for _field, name in asked]])[0]


def test_a_healthy_gpu():
    gpu = one()
    assert gpu["problems"] == []
    assert gpu["throttle_reasons"] == []
    assert (gpu["index"], gpu["power_w"], gpu["pcie_width"], gpu["ecc"], gpu["memory_temperature_c"]) == (0, 412.37, 16, True, None)
    assert gpu["retired_pages_pending"] is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ecc__errors__uncorrected__volatile__total": "3"}, "3 uncorrected memory errors"),
        ({"remapped_rows__pending": "Yes"}, "a memory row waits to be set aside"),
        ({"remapped_rows__pending": "1"}, "a memory row waits to be set aside"),
        ({"remapped_rows__failure": "Yes"}, "replace the GPU"),
        ({"retired_pages__pending": "Yes"}, "memory pages wait"),
        ({"clocks_event_reasons__active": "0x0000000000000060"}, "slowed down by heat (software thermal slowdown, hardware thermal"),
        ({"clocks_event_reasons__active": "0x0000000000000088"}, "slowed down by hardware (hardware slowdown, hardware power brake)"),
        ({"power__limit": "450.00"}, "power limit 450 W is below the default of 600 W"),
        ({"pcie__link__width__current": "8"}, "PCIe runs 8 of 16 lanes"),
        ({"pcie__link__gen__current": "1"}, "PCIe runs at generation 1 of 5 under load"),
        ({"compute_mode": "Prohibited"}, "nvidia-smi -i 0 -c DEFAULT"),
        ({"persistence_mode": "Disabled"}, "persistence mode is off"),
    ],
)
def test_one_trouble_one_sentence(changed, said):
    found = one(**changed)["problems"]
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.parametrize(
    "changed",
    [
        {"clocks_event_reasons__active": "0x0000000000000001", "utilization__gpu": "0", "clocks__sm": "210"},
        {"pcie__link__gen__current": "1", "utilization__gpu": "0"},  # an idle link sleeps
        {"clocks_event_reasons__active": "0x0000000000000004"},  # at its power limit: what a GPU under load is
        {"ecc__errors__uncorrected__aggregate__total": "2"},  # long mended
        dict.fromkeys((name.replace(".", "__") for name in HEALTHY if name not in ("index", "uuid")), "[N/A]"),
        dict.fromkeys((name.replace(".", "__") for name in HEALTHY if name not in ("index", "uuid")), "[Not Supported]"),
    ],
)
def test_what_is_no_trouble(changed):
    assert one(**changed)["problems"] == []


def test_xids_go_to_their_gpu():
    other = {**one(index="1", pci__bus_id="00000000:65:00.0")}
    xids = [
        {"at": "12:00", "pci": "0000:17:00", "xid": 79, "text": "GPU has fallen off the bus."},
        {"at": "12:01", "pci": "0000:99:00", "xid": 31, "text": "MMU fault"},
    ]
    first, second = gpu_health.with_xids([one(), other], xids)
    assert [xid["xid"] for xid in first["xids"]] == [79]
    assert "fallen off the bus: reboot" in first["problems"][0]
    assert second["xids"] == second["problems"] == []


# --- nvidia-smi as a program


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Makes a script the nvidia-smi on PATH; the file `calls` has a line for each call."""

    def make(script):
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\necho \"$*\" >> {tmp_path}/calls\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return lambda: (tmp_path / "calls").read_text().splitlines()

    return make


def rejecting(*unknown):
    """A script that knows all fields of HEALTHY but UNKNOWN, and as nvidia-smi does names the first it does not know."""
    answers = "\n".join(f'    {name}) printf "%s" "{value}" ;;' for name, value in HEALTHY.items() if name not in unknown)
    return f"""
case "$1" in --query-gpu=*) ;; *) exit 1 ;; esac
line=""
IFS=,
for field in ${{1#--query-gpu=}}; do
  value=$(case "$field" in
{answers}
    *) exit 1 ;;
  esac) || {{ printf 'Field "%s" is not a valid field to query.\\n\\n' "$field"; exit 2; }}
  line="$line, $value"
done
echo "${{line#, }}"
"""


def test_one_call_is_enough(smi):
    calls = smi(rejecting())
    found = gpus.health()
    assert len(calls()) == 1
    assert [gpu["problems"] for gpu in found] == [[]]
    assert found[0]["driver"] == "580.95.05"


def test_a_field_that_an_old_driver_does_not_know_loses_no_other(smi):
    calls = smi(rejecting("clocks_event_reasons.active", "remapped_rows.pending", "remapped_rows.failure"))
    found = gpus.health()
    assert len(calls()) == 4
    assert found[0]["throttle_reasons"] == []  # by its older name
    assert found[0]["remapped_rows_pending"] is None
    assert found[0]["power_w"] == 412.37


def test_nvidia_smi_that_hangs(smi):
    smi("exec sleep 30")
    begun = time.monotonic()
    with pytest.raises(RingmasterError, match=r"nvidia-smi does not answer within 0.3 s"):
        gpus.health(timeout_s=0.3)
    assert time.monotonic() - begun < 10


def test_nvidia_smi_that_fails(smi):
    smi('echo "Unable to determine the device handle for GPU0000:17:00.0: Unknown Error"; exit 15')
    with pytest.raises(RingmasterError, match="Unable to determine the device handle"):
        gpus.health()


def test_no_nvidia_smi(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.health() is None
    assert gpus.users() == []


@pytest.mark.parametrize("said", ["GPU-1, 580.95.05", "No devices were found", ""])
def test_what_is_no_answer_is_none(smi, said):
    smi(f'echo "{said}"')
    assert gpus.read() is None
