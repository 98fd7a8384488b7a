# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What befalls a real SGLang, and what the engine makes of it: outcome, cause, and nothing left. The table is in README.md.

A second server with an API key of its own serves on another port all through: nothing here may touch it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from ansible_collections.ringmaster.gpu.plugins.module_utils import control, procfs, readiness, sockets
from conftest import SEEN
from real_lab import KEY, REAL, RealLab
from trial_lab import Lab

SHORT = {"name": "c1", "concurrency": 1, "input_len": 16, "output_len": 16, "requests": 2, "warmup_requests": 1}
FOUR = {"name": "c4", "concurrency": 4, "input_len": 16, "output_len": 192, "requests": 8, "warmup_requests": 1}
SETTINGS = {"stall_timeout_s": 120.0, "drain_timeout_s": 30.0}
OTHER_KEY = "k3y-of-the-server-beside"


@contextlib.contextmanager
def standin_server(lab, port):
    """A server that is no trial's on PORT, by the stand-in of LAB; the Processes of it once it answers."""
    words = [lab.python, "-m", "sglang.launch_server", "--model-path", lab.model, "--tp-size", "1", "--api-key", OTHER_KEY]
    with open(lab.directory / f"other-{port}.log", "w") as log:
        server = subprocess.Popen(
            [*words, "--host", "127.0.0.1", "--port", str(port)], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 20
        while not answers(port):
            assert time.monotonic() < deadline, "the stand-in server does not answer"
            time.sleep(0.1)
        yield [procfs.read(server.pid), *procfs.descendants(server.pid)]
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(10)


def answers(port):
    """Whether the stand-in server on PORT completes something."""
    with contextlib.suppress(OSError, ValueError):
        return bool(readiness.ask(f"http://127.0.0.1:{port}", api_key=OTHER_KEY, timeout_s=10)["completion"])
    return False


@pytest.fixture(scope="module")
def standin():
    """An environment with the stand-in SGLang, for servers that are not the trial's."""
    made = Lab()
    yield made
    made.remove()


@pytest.fixture(scope="module")
def beside(standin):
    """The second server of this host: (port, its Processes)."""
    port = sockets.free_port()
    with standin_server(standin, port) as members:
        yield port, members


@pytest.fixture(scope="module")
def machine():
    """The real server's machine, for one run at a time. At the end the trials' key is nowhere but where it has to be."""
    if not (REAL / "env" / ".stamp").exists():
        pytest.fail("tests/real/build has to run first")
    with open(REAL / "run.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield RealLab()


@pytest.fixture
def lab(machine, beside):
    """That machine; afterwards nothing of the trial is left, and the server beside it is the same and answers."""
    yield machine
    left = machine.settle(timeout_s=5)
    for process in machine.processes():  # a failed test must not disturb the next one
        procfs.send_signal(process, signal.SIGKILL)
    assert left == []
    port, members = beside
    assert [process for process in members if not procfs.is_alive(process)] == []
    assert answers(port)


def trial_of(run, name):
    """The only trial of RUN once its plan has ended, nothing of it being left."""
    if not any(event["kind"] == "ended" for event in run.events):
        run.until("waiting", timeout_s=180)
        run.release()
    trial = run.trials[0] if run.trials else control.files.read_json(run.state.trial_path(f"{run.name}-01", "trial.json"))
    SEEN.append((name, trial))
    assert trial["ended"]["left"] == []
    assert trial["ended"]["released_after_s"] is not None
    return trial


# --- it serves -----------------------------------------------------------------------------------------------------------


def test_stopped_when_idle(lab):
    """The end of every good trial; with an API key, which stays between the server and us."""
    trial = trial_of(lab.begin(lab.plan(lab.configuration(), workloads=[SHORT], **SETTINGS)), "SIGTERM, idle (ours)")
    assert (trial["outcome"], trial["cause"]) == ("ready", None)
    assert (trial["ended"]["by"], trial["ended"]["drained"], trial["ended"]["exit"]) == ("SIGTERM", True, 137)
    assert trial["workloads"][0]["errors"] == []
    assert trial["workloads"][0]["decode_tok_s"] > 0
    assert KEY not in str(trial)


def test_stopped_with_four_streams(lab):
    """Our own stop in the middle: an abort."""
    run = lab.begin(lab.plan(lab.configuration(), workloads=[FOUR], **SETTINGS))
    run.until("workload", timeout_s=120, done=1)
    time.sleep(1)
    control.abort(lab.state, who="another@here", wait_s=60)
    assert "another@here" in run.until("ended")["reason"]
    trial = trial_of(run, "SIGTERM, 4 streams (ours)")
    assert (trial["ended"]["by"], trial["ended"]["drained"], trial["ended"]["exit"]) == ("SIGTERM", True, 137)


def test_normal_stop_from_outside_after_the_last_request_began(lab):
    """SGLang goes on to answer until nothing runs when it looks, every 5 s: all four finish, and what they measured counts."""
    run = lab.begin(lab.plan(lab.configuration(), workloads=[{**FOUR, "requests": 4}], **SETTINGS))
    run.until("workload", timeout_s=120, done=1)
    time.sleep(1)
    procfs.send_signal(run.servers()["launcher"], signal.SIGTERM)
    trial = trial_of(run, "SIGTERM, last 4 streams")
    assert (trial["outcome"], trial["cause"]) == ("ready", None)
    assert (trial["workloads"][0]["errors"], len(trial["workloads"][0]["samples"])) == ([], 4)
    assert (trial["ended"]["drained"], trial["ended"]["exit"]) == (True, 137)


def group(process):
    os.killpg(process.pid, signal.SIGTERM)


def by(number):
    return lambda process: procfs.send_signal(process, number)


STRIKES = {  # what is done to whom while 4 of 8 streams run: outcome, in the cause's summary, most seconds until it is noticed
    "SIGTERM to the group": (group, "launcher", "killed", "", 2),
    "SIGINT, 4 of 8 streams": (by(signal.SIGINT), "launcher", "killed", "stopped from outside while it was measured", 60),
    "SIGKILL, launcher": (by(signal.SIGKILL), "launcher", "crashed", "ended without a message during serving", 2),
    "SIGKILL, scheduler": (by(signal.SIGKILL), "sglang::scheduler", "killed", "scheduler was killed by signal 9", 2),
    "SIGKILL, detokenizer": (by(signal.SIGKILL), "sglang::detokenizer", "killed", "detokenizer was killed by signal 9", 2),
}


@pytest.mark.parametrize("name", STRIKES)
def test_struck_while_it_serves(lab, name):
    strike, whom, outcome, words, within_s = STRIKES[name]
    run = lab.begin(lab.plan(lab.configuration(), workloads=[FOUR], **SETTINGS))
    run.until("workload", timeout_s=120, done=1)
    time.sleep(1)
    moment = time.time()
    strike(run.servers()[whom])
    died = run.until("died", timeout_s=90)
    trial = trial_of(run, name)
    assert died["t"] - moment < within_s
    assert (trial["outcome"], words in trial["cause"]["summary"]) == (outcome, True), trial["cause"]


# --- it does not get that far --------------------------------------------------------------------------------------------


def loading(lab):
    """A run whose server loads and has all its processes: where a SIGTERM makes orphans."""
    run = lab.begin(lab.plan(lab.configuration(), workloads=[SHORT], **SETTINGS))
    deadline = time.monotonic() + 120
    while not {"launcher", "sglang::detokenizer"} <= set(run.servers()):
        assert time.monotonic() < deadline, run.servers()
        run.poll()  # renews the lease
    return run


def test_stopped_before_ready(lab):
    run = loading(lab)
    control.abort(lab.state, who="another@here", wait_s=30)
    run.until("ended")
    trial = trial_of(run, "abort before ready (ours)")
    assert (trial["outcome"], trial["ended"]["by"]) == (None, "SIGKILL")


def test_sigterm_before_ready(lab):
    run = loading(lab)
    struck = time.time()
    procfs.send_signal(run.servers()["launcher"], signal.SIGTERM)
    died = run.until("died", timeout_s=60)
    trial = trial_of(run, "SIGTERM before ready")
    assert died["t"] - struck < 2
    assert (trial["outcome"], trial["ended"]["exit"]) == ("crashed", 143)
    assert "signal 15" in trial["cause"]["summary"], trial["cause"]


REFUSED = {  # flags: signature, exit, in the summary
    "wrong flag": ({"no_such_flag": "1"}, "flag_unknown", 2, "knows no --no-such-flag"),
    "wrong choice": ({"attention_backend": "steam"}, "flag_value", 2, "--attention-backend: invalid choice: 'steam'"),
    "model path missing": ({"model_path": "/no/such/model"}, "model_path", 1, "model path does not exist: /no/such/model"),
    "no weights": ({"load_format": "auto"}, "no_weights", 137, "no model weights in the model path"),
    "memory fraction too small": (
        {"mem_fraction_static": "0.0001", "max_total_tokens": None}, "static_memory_too_small", 137, "no memory is left for the KV cache",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_does_not_start(lab, name):
    flags, signature, exit_code, words = REFUSED[name]
    trial = trial_of(lab.begin(lab.plan(lab.configuration(**flags), workloads=[SHORT], **SETTINGS)), name)
    assert (trial["outcome"], trial["cause"]["signature"], trial["ended"]["exit"]) == ("crashed", signature, exit_code), trial["cause"]
    assert words in trial["cause"]["summary"]
    assert trial["cause"]["evidence"], "no line of the log says so"


# --- somebody has its port -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def mute(_standin, port):
    with socket.create_server(("127.0.0.1", port)):
        yield


class Page(BaseHTTPRequestHandler):
    """A web server that knows nothing of models."""

    def do_GET(self):
        self.send_error(404)

    do_POST = do_GET

    def log_message(self, *_arguments):
        """Nothing on the test's output."""


@contextlib.contextmanager
def web_server(_standin, port):
    with ThreadingHTTPServer(("127.0.0.1", port), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


HOLDERS = {"mute listener": mute, "plain HTTP server": web_server, "another SGLang": standin_server}


@pytest.mark.parametrize("name", HOLDERS)
def test_the_port_is_taken_while_it_loads(lab, standin, name):
    run = lab.begin(lab.plan(lab.configuration(), workloads=[SHORT], **SETTINGS))
    run.until("phase", timeout_s=30)
    with HOLDERS[name](standin, lab.port):
        trial = trial_of(run, f"port taken: {name}")
    assert (trial["outcome"], trial["cause"]["signature"]) == ("refused", "port"), trial["cause"]
    assert f"port {lab.port} in use by a server that is not this trial's" in trial["cause"]["summary"]


@pytest.mark.parametrize("name", HOLDERS)
def test_the_port_is_held_from_the_start(lab, standin, name):
    plan = lab.plan(lab.configuration(), workloads=[SHORT], **SETTINGS)
    with HOLDERS[name](standin, lab.port):
        trial = trial_of(lab.begin(plan), f"port held: {name}")
        assert (trial["outcome"], trial["ended"]["exit"]) == ("refused", None)
        assert trial["cause"]["summary"] == f"port {lab.port} in use"


# --- at the end ----------------------------------------------------------------------------------------------------------


def test_the_key_is_nowhere_but_in_the_plan(machine):
    """What is handed over to the supervisor has to have it, closed to others; results, events and logs do not."""
    holders = []
    for path in machine.directory.rglob("*"):
        if path.is_file() and KEY.encode() in path.read_bytes():
            holders.append((path.name, oct(path.stat().st_mode & 0o777)))
    assert set(holders) <= {("plan.json", "0o600")}
