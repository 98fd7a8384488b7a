# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is told of a unit that is down."""

from __future__ import annotations

from ansible_collections.ringmaster.gpu.plugins.module_utils import server_absent, units
from ansible_collections.ringmaster.gpu.plugins.module_utils.state import State


def test_a_command_that_only_systemd_can_complete_still_tells_its_flags_and_its_secrets(tmp_path, monkeypatch):
    log = tmp_path / "log"
    log.write_text("started with hunter2hunter2\n")
    flags = "--model-path /m/%i --port 8000 --api-key hunter2hunter2"
    text = f"[Service]\nStandardOutput=append:{log}\nExecStart=/usr/bin/python3 -m sglang.launch_server {flags}\n"
    monkeypatch.setattr(units, "systemctl", lambda *words, **more: text)
    properties = {"ActiveState": "inactive", "MainPID": "0", "StandardOutput": f"append:{log}", "InvocationID": ""}
    context = {"unit": {"name": "sglang@k"}, "state": State(str(tmp_path / "state")), "timeout_s": 5.0, "stall_timeout_s": 300.0}
    told = server_absent.of_unit("sglang@k", properties, text, context)
    assert (told["port"], told["model"], told["flags"]["api-key"]) == (8000, "/m/%i", "***")
    assert "hunter2" not in str(told)
