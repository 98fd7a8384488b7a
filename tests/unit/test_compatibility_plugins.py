# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who asks what runs with what: the plan of a run, and what is to be installed."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.ringmaster.gpu.plugins.action import compatibility as action
from ansible_collections.ringmaster.gpu.plugins.action import tune_plan
from ansible_collections.ringmaster.gpu.plugins.module_utils.errors import RingmasterError
from ansible_collections.ringmaster.gpu.plugins.modules import compatibility as module
from ansible_collections.ringmaster.gpu.plugins.plugin_utils.resolve import Factor
from test_tune_plan import SETTINGS, WORKLOAD

ROOT = Path(__file__).resolve().parents[2]
FUSION = "enable-flashinfer-allreduce-fusion"
GPU = {"name": "NVIDIA RTX PRO 6000 Blackwell Server Edition", "compute_capability": "12.0", "driver": "580.105.08"}
TARGET = {
    "gpus": [GPU] * 8, "link": "PCIe",
    "engine": {"sglang": "0.5.16", "torch": "2.11.0+cu130", "nccl": "2.28.9", "cuda": "13.0", "flashinfer": "0.6.14", "flags": []},
    "configuration": {
        "label": "as found", "nccl": {"scope": "service", "override": False, "settings": {}}, "environment": {}, "patches": [],
        "server": {"python": "/p", "flags": {"tp-size": "8", "disable-custom-all-reduce": True}},
    },
}  # fmt: skip
HARMLESS = Factor("nccl_channels=2", nccl={"NCCL_MAX_NCHANNELS": "2"})
FUSED = Factor(f"--{FUSION}", flags={FUSION: True})


def together(*factors, flags=None, **parts):
    target = copy.deepcopy({**TARGET, **parts})
    target["configuration"]["server"]["flags"].update(flags or {})
    return tune_plan._together("gpu1", target, factors)


def test_a_candidate_that_cannot_work_is_refused_with_the_row_and_its_source():
    errors, warnings = together(FUSED)
    assert [error.rpartition("[")[2].partition(":")[0] for error in errors] == ["fusion-sglang", "fusion-flashinfer"]
    assert all("https://pypi.org/" in error for error in errors)
    assert warnings == []


def test_a_candidate_that_can_work_is_not():
    assert together(HARMLESS) == ([], [])
    assert together(FUSED, gpus=[{**GPU, "name": "NVIDIA H200", "compute_capability": "9.0"}] * 8) == ([], [])


def test_each_factor_is_judged_alone_and_said_once():
    errors, warnings = together(HARMLESS, FUSED, Factor("x", nccl={"NCCL_PROTO": "LL"}), flags={"disable-custom-all-reduce": None})
    assert len(errors) == 2
    assert ["custom-all-reduce-pcie" in warning for warning in warnings] == [True]


def test_what_known_good_has_is_in_force_and_never_refused():
    """Somebody's host may run with NVIDIA's forward-compatibility package, or with a flag that nothing comes of."""
    errors, warnings = together(HARMLESS, flags={FUSION: True}, gpus=[{**GPU, "driver": "570.211.01"}] * 8)
    assert errors == []
    assert len(warnings) == 3
    assert all(warning.endswith("] Known-good has that, too.") for warning in warnings)
    assert any("gpu1 has 570.211.01" in warning for warning in warnings)


def test_taking_the_flag_out_of_known_good_is_fine():
    assert together(Factor(f"--{FUSION} (removed)", flags={FUSION: None}), flags={FUSION: True}) == ([], [])


@pytest.mark.parametrize("engine", [dict.fromkeys(TARGET["engine"]), {"sglang": "0.5.16+simulated", "flags": []}])
@pytest.mark.parametrize("gpus", [None, []])
def test_the_lab_and_a_host_of_which_nothing_is_known_go_on(engine, gpus):
    assert together(HARMLESS, FUSED, engine=engine, gpus=gpus, link=None) == ([], [])


def plan(monkeypatch, **flags):
    """What tune_plan makes of FLAGS on TARGET, or the message of its refusal."""
    target = {
        **copy.deepcopy(TARGET), "problems": [], "warnings": [], "changed_files": [], "gpu_users": [], "systemd": True,
        "unit": {"name": "sglang.service", "active": False, "exists": False},
        "status": {"holder": None, "known_good": {"version": 3}, "versions": [{"version": 2}, {"version": 3}]},
    }  # fmt: skip
    task = object.__new__(tune_plan.ActionModule)
    task._task = SimpleNamespace(args={"target": target, "settings": {**SETTINGS, "workloads": [WORKLOAD], "on_lost_controller": "abort"}})
    monkeypatch.setattr(task, "_given", lambda *_unused: ({"tune_flags": flags}, {}))
    monkeypatch.setattr(tune_plan.variables, "unknown_variables", lambda *_unused: [])
    return task._plan({"inventory_hostname": "gpu1"}), task, target


def test_a_plan_is_not_made_of_what_cannot_work(monkeypatch):
    with pytest.raises(RingmasterError, match=r"gpu1: SGLang 0\.5\.16 ends with .*\[fusion-sglang: .*\[fusion-flashinfer: "):
        plan(monkeypatch, **{FUSION: True})


def test_a_plan_says_what_it_is_warned_of_and_a_way_back_asks_nothing(monkeypatch):
    answer, task, target = plan(monkeypatch, **{"disable-custom-all-reduce": False})
    assert answer["plan"]["factor"] == "--disable-custom-all-reduce (removed)"
    assert any(text.startswith("gpu1: SGLang 0.5.16 turns its custom all-reduce off on 8 GPUs") for text in answer["warnings"])
    target["configuration"]["server"]["flags"][FUSION] = True
    assert task._rollback("gpu1", target, SETTINGS | {"on_lost_controller": "abort"}, "previous")["rollback_to"] == 2


# --- the module


def test_arguments_of_action_and_module_are_the_same():
    assert {*action.ARGUMENTS, *action.VERSIONS} == set(module.argument_spec())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"drivr": "580"}, "drivr is no argument"),
        ({"gpus": "all"}, "gpus is 'all'; it has to be a list"),
        ({"link": "SXM"}, "link is 'SXM'"),
        ({"flags": [1]}, "flags is"),
    ],
)
def test_wrong_arguments_are_named(args, words):
    with pytest.raises(RingmasterError, match=words):
        action.combined(args, "h")


def test_text_of_the_command_line_is_understood():
    assert action.combined({"flags": f"{FUSION} tp-size=8", "link": "", "driver": ""}, "h")["flags"] == {FUSION: True, "tp-size": "8"}


def test_a_row_that_is_accepted_has_to_be_one():
    assert action._rows("driver-for-cuda") == ["driver-for-cuda"]
    assert action._rows("driver-for-cuda, gpu-too-new-for-driver") == ["driver-for-cuda", "gpu-too-new-for-driver"]
    with pytest.raises(RingmasterError, match="provision_accept.*: driver-for-cud is no row"):
        action._rows(["driver-for-cud"])


CALLS = {
    "refused": {"gpus": [{"address": "0000:41:00.0", "device_id": "2bb5"}], "driver": "565.77", "cuda": 13.0, "sglang": "0.6.0"},
    "accepted": {"gpus": ["NVIDIA B200"], "driver": "565.77", "cuda": "13.0", "accept": ["driver-for-cuda", "gpu-too-new-for-driver"]},
    "asked": {"gpus": ["NVIDIA B200"], "driver": "565.77", "fail": "no"},
    "right": {"gpus": ["NVIDIA H200"], "link": "NVLink", "driver": "580.105.08", "cuda": "13.0", "sglang": "0.5.16", "python": "3.12"},
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """{name: result} of CALLS in one play, and all that it printed."""
    directory = tmp_path_factory.mktemp("play")
    tasks = [{"ringmaster.gpu.compatibility": arguments, "register": name, "ignore_errors": True} for name, arguments in CALLS.items()]
    content = "{{ {" + ", ".join(f"'{name}': {name}" for name in CALLS) + "} | to_json }}"
    tasks.append({"ansible.builtin.copy": {"content": content, "dest": str(directory / "answer")}})
    (directory / "play.yml").write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c", "local", str(directory / "play.yml")]
    command += ["-e", f"ansible_python_interpreter={sys.executable}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "ANSIBLE_NOCOLOR": "1"})
    said = " ".join((done.stdout + done.stderr).split())
    assert (directory / "answer").exists(), said
    return json.loads((directory / "answer").read_text()), said


def test_in_a_play_it_fails_with_the_row_and_says_what_it_does_not_know(answers):
    answer = answers[0]["refused"]
    assert answer["failed"]
    assert answer["refused"] == ["driver-for-cuda", "gpu-too-new-for-driver"]
    assert "localhost: The toolkit is CUDA 13.0, which needs driver 580.65.06 or newer; localhost has 565.77." in answer["msg"]
    assert "[driver-for-cuda: NVIDIA" in answer["msg"]
    assert [finding["row"] for finding in answer["findings"]] == [*answer["refused"], "unknown-sglang"]
    assert set(answer["findings"][0]) == {"row", "severity", "text", "change", "source"}
    assert "[WARNING]: localhost: SGLang 0.6.0 is not in this table" in answers[1]


def test_in_a_play_what_is_accepted_or_only_asked_warns(answers):
    for name, refused in (("accepted", []), ("asked", ["gpu-too-new-for-driver"])):
        answer = answers[0][name]
        assert (answer.get("failed", False), answer["changed"], answer["refused"]) == (False, False, refused)
    assert answers[1].count("[WARNING]: localhost: NVIDIA B200 (SM 10.0) runs from driver branch 570 on") >= 1


def test_in_a_play_with_everything_right_nothing_is_said(answers):
    answer = answers[0]["right"]
    assert (answer.get("failed", False), answer["findings"], answer.get("warnings", [])) == (False, [], [])
