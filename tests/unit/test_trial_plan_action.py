# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the controller tells a host at the end of a plan."""

from __future__ import annotations

from ansible_collections.ringmaster.gpu.plugins.action.trial_plan import ActionModule

PLAN = {
    "plan": "p", "host": "h", "who": "me", "started": "2026-01-01T00:00:00Z", "factor": "nccl_channels=2", "known_good_version": 1,
    "steps": [{"discard": False}] * 2, "workloads": [], "arms": {}, "inventory_lines": [], "simulated": False,
    "cannot_matter": "", "proof_of": [],
    "judge": {"margin_percent": 2, "confidence": 0.95, "keep": True}, "unit": None,
    "settings": {"lease_s": 30.0},
}  # fmt: skip
CRASHED = {
    "id": "p-01", "arm": "baseline", "discard": False, "block": 1, "outcome": "crashed", "log": "/l", "workloads": [],
    "cause": {"signature": "x", "summary": "no memory", "advice": "", "evidence": []},
    "step": {"arm": "baseline", "discard": False, "block": 1, "index": 0}, "engine": {"simulated": False},
}  # fmt: skip


class Ledger:
    def __init__(self):
        self.kept = []

    def trials(self, **_unused):
        return []

    def add_trial(self, trial):
        self.kept.append(trial["id"])

    def add_run(self, run):
        self.kept.append(run["id"])


class Silent:
    def display(self, _text):
        pass


def test_a_host_is_released_and_recorded_when_there_is_nothing_to_judge(monkeypatch):
    decisions, ledger = [], Ledger()
    action = object.__new__(ActionModule)
    action._display = Silent()
    monkeypatch.setattr("ansible_collections.ringmaster.gpu.plugins.action.trial_plan.Narrator.trial", lambda *_unused: "")

    def call(*, command, after=0, decision=None, **_unused):
        if command == "decide":
            decisions.append(decision["command"])
        if command != "poll":
            return {}
        events = [{"n": 1, "kind": "trial", "trial": "p-01"}, {"n": 2, "kind": "waiting", "step": 2}]
        events += [{"n": 3, "kind": "ended", "outcome": "released"}] if decisions else []
        return {"events": [event for event in events if event["n"] > after], "trials": {"p-01": CRASHED}, "alive": True}

    action._call = call
    answer = action._conduct(PLAN, ledger)
    assert decisions == ["release"]
    assert answer["failed"]
    assert "baseline" in answer["msg"]
    assert ledger.kept == ["p-01", "p"]
