# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of a run that cannot be meant are refused before anything is planned."""

from __future__ import annotations

import pytest
from ansible_collections.ringmaster.gpu.plugins.action import tune_plan
from ansible_collections.ringmaster.gpu.plugins.module_utils import files, survey
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.plugin_utils import plans, resolve

SETTINGS = {
    "starts": 3, "max_starts": 0, "port": 0, "keep_trials": 50, "log_cap_bytes": 64 << 20, "margin_percent": 2.0, "confidence": 0.95,
    "lease_s": 120, "stall_timeout_s": 300, "drain_timeout_s": 60, "isolate": False, "keep": True, "allow_downtime": False,
    "allow_gpu_users": False, "adopt": False, "time_budget_s": "", "smoke": True, "outputs": True, "nccl_capture": "discarded",
    "benchmark_tool": "ringmaster", "aiperf_path": "", "keep_cores": 0,
}  # fmt: skip
WORKLOAD = {"name": "w", "concurrency": 1, "input_len": 32, "output_len": 96, "requests": 2}


def test_the_defaults_pass_also_as_text():
    assert tune_plan.coerce({name: str(value) for name, value in SETTINGS.items()})["lease_s"] == 120.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("starts", 0), ("starts", 10**9), ("max_starts", -1), ("margin_percent", -1), ("margin_percent", "nan"), ("lease_s", 0),
        ("lease_s", "inf"), ("stall_timeout_s", 0), ("drain_timeout_s", -1), ("port", -1), ("port", 99999), ("confidence", 1),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_named(name, value):
    with pytest.raises(RingmasterError, match=f"tune_{name} is {value}"):
        tune_plan.coerce({**SETTINGS, name: value})


def test_a_log_without_room_is_named():
    with pytest.raises(RingmasterError, match="tune_log_cap_mib is 0"):
        tune_plan.coerce({**SETTINGS, "log_cap_bytes": 0})


def test_workloads_need_an_entry_and_positive_numbers():
    assert plans.workloads([WORKLOAD]) == [WORKLOAD]
    with pytest.raises(RingmasterError, match="tune_workloads is empty"):
        plans.workloads([])
    with pytest.raises(RingmasterError, match="entry 2 has concurrency 0, requests -1"):
        plans.workloads([WORKLOAD, {**WORKLOAD, "concurrency": 0, "requests": -1}])


def test_text_with_an_open_quote_is_a_message():
    with pytest.raises(RingmasterError, match="tune_flags cannot be read as text: No closing quotation"):
        resolve.as_mapping("tune_flags", 'a="b')


def test_what_a_cut_off_plan_wrote_was_not_changed_by_something_else(tmp_path):
    site, other = tmp_path / "sitecustomize.py", tmp_path / "other"
    record = {"files": [files.snapshot(str(site)), files.snapshot(str(other))]}
    journal = {"before": [files.snapshot(str(site))]}
    site.write_text("candidate")
    other.write_text("edited by hand")
    assert survey._changed_files(record, None) == [str(site), str(other)]
    assert survey._changed_files(record, journal) == [str(other)]


def test_the_way_back_from_a_foreign_change_is_the_version_in_force():
    """`previous`, which is what a bare rollback means, would be one too far, and at version 1 there is none."""
    target = {
        "status": {"holder": None, "known_good": {"version": 1}}, "unit": {"active": False}, "gpu_users": [], "changed_files": ["/f"],
    }  # fmt: skip
    (said,) = tune_plan.ActionModule._refusals(target, SETTINGS)
    assert "/f" in said
    assert "rollback -e rollback_version=1`" in said
