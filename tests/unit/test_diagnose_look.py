# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The look of diagnose.yml at real processes: stand-in servers started by hand, as a trial, broken in every way that the lab knows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import (
    control,
    host_look,
    nccl_log,
    parallel,
    procfs,
    server_absent,
    server_look,
    server_result,
    sockets,
)
from ansible_collections.ringmaster.gpu.plugins.module_utils.state import State
from trial_lab import Lab

LIMIT_S = 120.0


@pytest.fixture(scope="module")
def lab():
    made = Lab()
    yield made
    made.remove()


@pytest.fixture
def start(lab, tmp_path):
    """Starts a server by hand; all it leaves is killed in the end."""
    started = []

    def make(*flags, environment=None, port=None, output=None, command=None):
        port = port or sockets.free_port()
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "RINGMASTER_", "PYTHON", "SPT_"))}
        words = [lab.python, "-m", "sglang.launch_server", "--model-path", str(lab.model), "--tp-size", "2", "--port", str(port), *flags]
        log = open(tmp_path / f"{len(started)}.log", "ab") if output is None else output  # noqa: SIM115 - the server's
        process = subprocess.Popen(
            command(words) if command else words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            env={**clean, **(environment or {})},
        )  # fmt: skip
        process.port, process.log = port, tmp_path / f"{len(started)}.log"
        started.append(process)
        return process

    yield make
    for process in started:
        for one in [*session(process.pid), *procfs.descendants(process.pid)]:
            procfs.send_signal(one, signal.SIGKILL)
        process.wait()


def session(pid):
    return [process for process in procfs.scan().values() if process.session == pid]


def seen(process, lab, **asked):
    """The server of PROCESS (or of its session, for orphans) among all that this machine has."""
    servers = server_look.look(lab.state, **{"stall_timeout_s": 60.0, **asked})
    mine = {one.pid for one in session(process.pid)} | {process.pid}
    return next((server for server in servers if mine & set(server["pids"])), None)


def until(process, lab, condition, **asked):
    """What `seen` says once CONDITION holds of it."""
    end = time.monotonic() + LIMIT_S
    while True:
        server = seen(process, lab, **asked)
        if server and condition(server):
            return server
        assert time.monotonic() < end, server


def serving(process, lab, **asked):
    return until(process, lab, lambda server: server["state"] == "serving", **asked)


def test_a_server_started_by_hand(start, lab):
    process = start("--api-key", "geheim-4711", environment={"NCCL_PROTO": "LL", "SPT_NOENV": "1"})
    server = serving(process, lab)
    assert (server["verdict"], server["certainty"], server["managed_by"]) == ("unmanaged", "proven", None)
    assert (server["pid"], server["port"], server["python"]) == (process.pid, process.port, lab.python)
    assert server["http"] == {"model_info": 200, "server_info": 200, "ready": server["http"]["ready"]}
    assert server["version"] == "0.5.16+simulated"
    assert server["simulated"]
    assert server["flags"]["api-key"] == "***"
    assert server["flags"]["tp-size"] == "2"
    assert (server["log"]["path"], server["log"]["kind"]) == (str(process.log), "file")
    assert sorted(server["ranks"]) == ["sglang::scheduler_TP0", "sglang::scheduler_TP1"]
    for values in server["nccl"]["effective"].values():
        assert values["NCCL_PROTO"] == {"value": "LL", "source": "environment", "proof": "environ", "certainty": "proven"}
    assert "geheim" not in json.dumps(server)


def test_nccls_own_log_of_a_trial_is_the_best_proof(start, lab, tmp_path):
    trial, logs = tmp_path / "trials" / "t-01", tmp_path / "trials" / "t-01" / "nccl"
    for directory in (trial / "witness", logs):
        directory.mkdir(parents=True)
    process = start(
        environment={
            "RINGMASTER_WITNESS": str(trial / "witness"), "NCCL_PROTO": "LL", "SPT_NOENV": "1", **nccl_log.environment(str(logs), {}),
        }  # fmt: skip
    )
    server = serving(process, lab)
    assert (server["managed_by"], server["trial"], server["verdict"]) == ("ringmaster", "t-01", "serving")
    assert {values["NCCL_PROTO"]["proof"] for values in server["nccl"]["effective"].values()} == {"nccl log"}


def test_what_a_blanked_environment_leaves_to_infer(start, lab, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import os\nos.environ.setdefault('NCCL_ALGO', 'Ring')\n")
    process = start(environment={"PYTHONPATH": str(site), "NCCL_PROTO": "LL"})
    server = serving(process, lab)
    assert server["nccl"]["site"]["path"] == str(site / "sitecustomize.py")
    assert server["nccl"]["site"]["ours"] is False
    assert server["nccl"]["site"]["values"] == {"NCCL_ALGO": "Ring"}
    for values in server["nccl"]["effective"].values():
        assert {name: (row["value"], row["source"], row["certainty"]) for name, row in values.items()} == {
            "NCCL_ALGO": ("Ring", "sitecustomize", "inferred"),
            "NCCL_CUMEM_ENABLE": ("0", "sglang", "inferred"),
            "NCCL_NVLS_ENABLE": ("0", "sglang", "inferred"),
            "NCCL_PROTO": ("LL", "environment", "inferred"),
        }
    (site / "sitecustomize.py").write_text("import os\nos.environ.setdefault('NCCL_ALGO', 'Tree')\n")
    later = seen(process, lab)["nccl"]
    assert later["site"]["changed"]
    assert {values["NCCL_ALGO"]["certainty"] for values in later["effective"].values()} == {"unknown"}


def test_an_interpreter_that_ignores_the_environment(start, lab, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ.setdefault('NCCL_ALGO', 'Ring')\n")
    process = start(environment={"PYTHONPATH": str(tmp_path)}, command=lambda words: [words[0], "-E", *words[1:]])
    assert serving(process, lab)["nccl"]["site"]["values"] == {}


@pytest.mark.parametrize("fault", ["hang_at_phase:weights", "spin_at_phase:distributed"])
def test_hung_while_loading(start, lab, fault):
    process = start(environment={"RINGMASTER_LAB_FAULT": fault})
    server = until(process, lab, lambda server: server["state"] == "hung", stall_timeout_s=1.5)
    assert server["verdict"] == "unmanaged"
    assert server["certainty"] == "inferred"
    assert fault.partition(":")[2] in server["why"] or server["phase"] in server["why"]
    assert seen(process, lab, stall_timeout_s=600.0)["state"] == "loading"  # too early to say


def test_a_server_that_takes_requests_and_answers_none(start, lab):
    process = start(environment={"RINGMASTER_LAB_FAULT": "no_answer"})
    assert serving(process, lab)["certainty"] == "proven"  # all that may be asked without generating
    server = seen(process, lab, probe_timeout_s=1.0)
    assert (server["state"], server["certainty"]) == ("hung", "inferred")
    assert server["http"]["completion"] == "timed out"


def test_a_probe_completes(start, lab):
    process = start()
    serving(process, lab)
    assert seen(process, lab, probe_timeout_s=10.0)["http"]["completion"] == 200


def test_a_server_without_its_scheduler(start, lab):
    (lab.model / "lab.json").write_text(json.dumps({**json.loads((lab.model / "lab.json").read_text()), "crash_settle_s": 30.0}))
    try:
        process = start()
        rank = serving(process, lab)["ranks"]["sglang::scheduler_TP1"]
        os.kill(rank, signal.SIGKILL)
        server = until(process, lab, lambda server: server["state"] == "crashed")
        assert server["certainty"] == "proven"
        assert "scheduler" in server["why"]
        assert "signal 9" in server["cause"]["summary"]
    finally:
        (lab.model / "lab.json").write_text(
            json.dumps({**json.loads((lab.model / "lab.json").read_text()), "crash_settle_s": 2.0})
        )


def test_a_frozen_server_is_hung_for_certain(start, lab):
    process = start()
    serving(process, lab)
    os.kill(process.pid, signal.SIGSTOP)
    server = seen(process, lab)
    assert (server["state"], server["certainty"]) == ("hung", "proven")
    assert server["next"].startswith("kill -CONT ")
    os.kill(process.pid, signal.SIGCONT)
    assert serving(process, lab)


def test_orphans(start, lab, tmp_path):
    mark = f"LAB_TEST={tmp_path}"
    process = start(environment={"RINGMASTER_LAB_FAULT": "leave_zombies", "LAB_TEST": str(tmp_path), "SPT_NOENV": "1"})
    try:
        serving(process, lab)
        process.kill()  # its workers end with it; what shares its name with one and has a session of its own stays
        process.wait()
        time.sleep(0.5)
        found = [one for one in server_look.look(lab.state) if any(marked(pid, mark) for pid in one["pids"])]
        assert [(one["kind"], one["verdict"], one["certainty"]) for one in found] == [("orphans", "crashed", "proven")]
        assert found[0]["next"] == f"kill -KILL {found[0]['pids'][0]}"
    finally:
        procfs.kill_marked(mark)


def marked(pid, mark):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return mark.encode() in file.read()
    return False


def test_port_held_by_a_mute_listener(start, lab):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        process = start(port=mute.getsockname()[1])
        early = until(process, lab, lambda server: server["phase"] not in (None, "spawn"))
        assert early["state"] in ("loading", "hung")
        assert f"taken by pid {os.getpid()}" in early["why"]
        late = until(process, lab, lambda server: server["state"] == "hung", stall_timeout_s=3.0)
        assert "port" in late["why"]


def test_two_servers_on_one_host(start, lab):
    one, other = start(), start("--disable-radix-cache")
    for process in (one, other):
        server = serving(process, lab)
        assert server["port"] == process.port
        assert server["log"]["path"] == str(process.log)


def test_a_log_behind_tee(start, lab, tmp_path):
    path = tmp_path / "teed.log"
    process = start(command=lambda words: ["sh", "-c", '"$@" 2>&1 | tee "$0" >/dev/null', str(path), *words])
    server = serving(process, lab)
    assert server["log"]["path"] == str(path)


def test_no_log_is_said(start, lab):
    process = start(output=subprocess.DEVNULL)
    server = serving(process, lab)
    assert server["log"]["kind"] == "unknown"
    assert "/dev/null" in server["log"]["note"]


def test_a_trial_is_ringmasters(lab):
    run = lab.begin(lab.plan(lab.configuration(nccl={"NCCL_MAX_NCHANNELS": "2"}, **{"api-key": "k-4711-k"}), workloads=()))
    run.until("waiting")  # after the last step: no server at this moment, if nothing else runs here
    found = host_look.look(lab.state)
    assert found["ringmaster"]["holder"]["plan"] == run.name
    run.release()
    assert lab.settle() == []
    assert found["last_trial"]["outcome"] == "ready"


def test_during_a_trial(lab):
    environment = {"RINGMASTER_LAB_FAULT": "hang_at_phase:weights"}
    run = lab.begin(lab.plan(lab.configuration(nccl={"NCCL_MAX_NCHANNELS": "2"}, environment=environment), stall_timeout_s=60.0))
    try:
        end = time.monotonic() + LIMIT_S
        server = None
        while time.monotonic() < end and not (server and server["ranks"]):
            servers = server_look.look(lab.state)
            server = next((one for one in servers if (one["trial"] or "").startswith(run.name)), None)
        assert (server["managed_by"], server["verdict"]) == ("ringmaster", "loading"), server["why"]
        assert server["log"]["path"] == lab.state.trial_path(server["trial"], "server.log")
        assert server["nccl"]["site"]["ours"]
        assert server["nccl"]["site"]["values"] == {"NCCL_MAX_NCHANNELS": "2"}
        for values in server["nccl"]["effective"].values():
            assert values["NCCL_MAX_NCHANNELS"]["certainty"] == "proven"
    finally:
        control.abort(lab.state, who="test", wait_s=40.0)
    assert lab.settle() == []


def test_a_crashed_trial_is_found_with_its_cause(lab):
    run = lab.begin(lab.plan(lab.configuration(environment={"RINGMASTER_LAB_FAULT": "crash_at_phase:weights"})))
    run.release()
    assert lab.settle() == []
    trial = server_absent.last_trial(lab.state)
    assert trial["outcome"] == "crashed"
    assert trial["cause"]["summary"]
    assert os.path.exists(trial["log"])


# --- without processes


def test_no_key_in_what_a_log_says():
    line = "server_args=ServerArgs(model_path='/m', api_key='hidden-1', admin_api_key=None), started with --api-key hidden-2 --port 1"
    said = json.dumps(server_result.without({"cause": [{"line": line}, {"line": "a hidden-3 word"}]}, ["hidden-3", True]))
    assert "hidden" not in said
    assert "model_path='/m'" in said
    assert "--port 1" in said


def test_nothing_was_ever_here(tmp_path):
    state = State(str(tmp_path / "none"))
    server = server_absent.of_host({"state": state, "unit": None, "stall_timeout_s": 300.0})
    assert (server["verdict"], server["certainty"]) == ("stopped", "proven")
    assert not (tmp_path / "none").exists()


def test_together_leaves_what_hangs():
    begun = time.monotonic()
    found = parallel.together({"hangs": lambda: time.sleep(30), "fails": lambda: 1 / 0, "works": lambda: 7}, 0.2)
    assert time.monotonic() - begun < 10
    assert isinstance(found["hangs"], TimeoutError)
    assert isinstance(found["fails"], ZeroDivisionError)
    assert found["works"] == 7


# --- GPUs


@contextlib.contextmanager
def gpus_of(monkeypatch, tmp_path, script):
    path = tmp_path / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    yield


def test_a_hanging_nvidia_smi_holds_nothing_up(monkeypatch, tmp_path, lab):
    with gpus_of(monkeypatch, tmp_path, "exec sleep 30"):
        found = host_look.look(lab.state, timeout_s=1.5)
    assert found["gpus"] is None
    assert "nvidia-smi does not answer within 1.5 s" in found["gpu_problem"]
    assert found["seconds"] < 10


def test_memory_goes_to_its_server():
    users = [{"pid": 12, "uuid": "GPU-a", "name": "p", "memory_mib": 5.0}, {"pid": 77, "uuid": "GPU-b", "name": "x", "memory_mib": 7.0}]
    rows = host_look.memory(users, [{"uuid": "GPU-a", "index": 0}], servers=[{"pid": 10, "pids": [10, 12]}, {"pid": None, "pids": []}])
    assert [(row["index"], row["server"]) for row in rows] == [(0, 10), (None, None)]
