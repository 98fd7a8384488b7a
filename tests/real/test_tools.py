# Copyright: Ringmaster contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One workload through every benchmark tool against one real server, which wants an API key: the same counts, rates alike.

`tests/real/build aiperf` makes AIPerf's environment; without it that tool is left out, and said so.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from ansible_collections.ringmaster.gpu.plugins.module_utils import bench_tools, loadgen, procfs, readiness, sockets

HERE = Path(__file__).resolve().parent
REAL = Path(os.environ.get("RINGMASTER_REAL_DIR") or HERE.parents[1] / ".cache" / "real").resolve()
PYTHON, MODEL, AIPERF = REAL / "env" / "bin" / "python", REAL / "model", REAL / "aiperf" / "bin" / "aiperf"
KEY = "k3y-that-no-command-line-may-show"
WORKLOADS = [
    {"name": "one stream", "concurrency": 1, "input_len": 64, "output_len": 96, "requests": 4, "warmup_requests": 1, "timeout_s": 120},
    {"name": "four streams", "concurrency": 4, "input_len": 64, "output_len": 96, "requests": 8, "timeout_s": 120},
]
BAND = 1.35  # of (client's rate / server's rate) between tools: the server itself may be slower in one tool's time than in another's


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(base URL, path of the log, environment, pid) of a real server with a prefix cache, which is what a tool can get wrong."""
    if not (REAL / "env" / ".stamp").exists():
        pytest.fail("tests/real/build has to run first")
    host = yaml.safe_load((HERE / "inventory" / "hosts.yml").read_text())["inference"]["vars"]
    flags = {**host["sglang_flags"], "model-path": str(MODEL), "enable-fp32-lm-head": None, "disable-radix-cache": None}
    port, log_path = sockets.free_port(), tmp_path_factory.mktemp("server") / "server.log"
    command = [str(PYTHON), "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(port), "--api-key", KEY]
    command += ["--decode-log-interval", "16", "--enable-cache-report"]
    for name, value in flags.items():
        if value is not None and name not in ("api-key", "decode-log-interval"):
            command += [f"--{name}"] + ([] if value is True else [str(value)])
    with open(REAL / "run.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **host["sglang_environment"]}
        with open(log_path, "wb") as log:
            launcher = subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            url, until_s = f"http://127.0.0.1:{port}", time.monotonic() + 180
            while True:
                try:
                    readiness.ask(url, api_key=KEY, timeout_s=10)
                    break
                except (OSError, ValueError):
                    if launcher.poll() is not None or time.monotonic() > until_s:
                        pytest.fail(log_path.read_text()[-2000:])
                    time.sleep(1)
            yield url, log_path, host["sglang_environment"], launcher.pid
        finally:
            launcher.send_signal(signal.SIGINT)
            try:
                launcher.wait(20)
            finally:
                if launcher.poll() is None:
                    os.killpg(launcher.pid, signal.SIGKILL)
                    launcher.wait(10)


def tool_lines(server_pid: int) -> list[str]:
    """What any user sees of the processes below this one that are not the server's."""
    table = procfs.scan()
    of_server = {server_pid, *(process.pid for process in procfs.descendants(server_pid, table))}
    below = procfs.descendants(os.getpid(), table)
    return [" ".join(procfs.command_line(process.pid)) for process in below if process.pid not in of_server]


@pytest.mark.parametrize("work", WORKLOADS, ids=lambda work: work["name"])
def test_the_same_workload_through_every_tool(server, tmp_path, work):
    url, log_path, environment, server_pid = server
    rows, seen = {}, set()

    def stop():
        seen.update(tool_lines(server_pid))
        return False

    tools = [tool for tool in bench_tools.TOOLS if tool != "aiperf" or AIPERF.exists()]
    for tool in tools:
        rows[tool] = bench_tools.measure(
            tool,
            url,
            work,
            python=str(PYTHON),
            directory=str(tmp_path),
            api_key=KEY,
            log_tail=lambda: log_path.read_text(errors="replace"),
            stop=stop,
            aiperf=str(AIPERF),
            model=str(MODEL),
            environment=environment,
        )
    print()
    for tool, row in rows.items():
        figures = {name: row[name] for name in ("decode_tok_s", "output_tok_s", "server_tok_s", "contaminated")}
        print(f"{work['name']}, {tool}: {figures}, TTFT p50 {row['ttft_ms']['p50']} ms, ITL p50 {row['itl_ms']['p50']} ms")
        print(f"    {bench_tools.warnings(row, flags={'disable-cuda-graph': True})}")
    own = rows["ringmaster"]
    for tool, row in rows.items():
        assert row["errors"] == [], tool
        assert len(row["samples"]) == work["requests"], tool
        assert set(row) == set(own)
        assert all(row[name] is not None and row[name] > 0 for name in ("decode_tok_s", "output_tok_s", "server_tok_s")), row
        assert all(value > 0 for name in ("ttft_ms", "itl_ms") for value in row[name].values()), row
        assert row["server_running"] == work["concurrency"]
        assert not row["contaminated"]
        ratio = (row["decode_tok_s"] / row["server_tok_s"]) / (own["decode_tok_s"] / own["server_tok_s"])
        assert 1 / BAND < ratio < BAND, (tool, ratio)
        assert KEY not in json.dumps(row)
        if tool != "ringmaster":
            artefact = Path(row["artefact"])
            assert artefact.parent == tmp_path
            assert stat.S_IMODE(artefact.stat().st_mode) == 0o600
    assert [line for line in seen if KEY in line] == []
    assert [path.name for path in tmp_path.iterdir() if KEY.encode() in path.read_bytes()] == []
    assert any("sglang.benchmark" in line for line in seen), "the tools were looked at"
    if "aiperf" not in rows:
        pytest.skip("AIPerf left out: run tests/real/build aiperf")


def test_a_tool_is_stopped_with_all_that_it_started(server, tmp_path):
    url, _log_path, environment, _pid = server
    begun, seen = time.monotonic(), []

    def stop():
        seen[:] = [process for process in procfs.descendants(os.getpid()) if "bench" in " ".join(procfs.command_line(process.pid))] or seen
        return time.monotonic() > begun + 12

    long = {**WORKLOADS[0], "requests": 1000}
    with pytest.raises(loadgen.Stopped):
        bench_tools.measure(
            "sglang",
            url,
            long,
            python=str(PYTHON),
            directory=str(tmp_path),
            api_key=KEY,
            stop=stop,
            model=str(MODEL),
            environment=environment,
        )
    assert time.monotonic() - begun < 15
    assert seen
    assert not any(procfs.is_alive(process) for process in seen)
